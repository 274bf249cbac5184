// Makes documents of the API out of records, in parts that one request can hold.

import { isObject, numberOf, written } from "./values.js";

const LINES = 128; // the service stores so many in one step
const CHARACTERS = 2 ** 19;
const WINDOW = 1000; // records by which the types of CSV columns are found
const NUMBER = /^-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d+)?$/;
const BOOLEANS = new Map([
  ...["true", "True", "TRUE"].map((cell) => [cell, true]),
  ...["false", "False", "FALSE"].map((cell) => [cell, false]),
]);

export const BY_LINE = ""; // in place of a column of ids

// Yield lists of {line, document} or {line, error}; a document is a line of JSON.
export async function* parts(records, { file, id, text, types }) {
  let part = [];
  let size = 0;
  for await (const { line, values, error } of typed(records, types, [id, text])) {
    const made = error ? { line, error } : { line, document: JSON.stringify(documentOf(values, line, { file, id, text })) };
    part.push(made);
    size += made.document?.length ?? 0;
    if (part.length === LINES || size >= CHARACTERS) {
      yield part;
      [part, size] = [[], 0];
    }
  }
  if (part.length) yield part;
}

// What is missing or odd goes to the service as it is, which says so in its words.
export function documentOf(values, line, { file, id, text }) {
  const given = id === BY_LINE ? `${file}:${line}` : values[id];
  const others = Object.fromEntries(Object.entries(values).filter(([name]) => name !== id && name !== text));
  const { metadata, ...rest } = others;
  return { id: idOf(given), text: values[text], metadata: present(isObject(metadata) ? { ...rest, ...metadata } : others) };
}

function idOf(value) {
  const isInteger = typeof value !== "string" && /^-?\d+$/.test(written(value));
  return isInteger ? written(value) : value;
}

function present(entries) {
  return Object.fromEntries(Object.entries(entries).filter(([, value]) => value !== null));
}

// Give the cells of CSV the collection's types, or those that all cells of the first records have.
async function* typed(records, types, taken) {
  if (!types) return yield* records;
  const found = new Map(Object.entries(types));
  const held = [];
  const release = function* () {
    for (const record of held.splice(0)) yield record.error ? record : { ...record, values: converted(record.values, found, taken) };
  };
  let open = true; // whether types are still looked for
  for await (const record of records) {
    held.push(record);
    if (open && held.length < WINDOW) continue;
    if (open) infer(held, found);
    open = false;
    yield* release();
  }
  if (open) infer(held, found);
  yield* release();
}

function infer(records, found) {
  const cells = new Map();
  for (const { values = {} } of records) {
    for (const [name, cell] of Object.entries(values)) {
      if (!cells.has(name)) cells.set(name, []);
      cells.get(name).push(cell);
    }
  }
  for (const [name, all] of cells) {
    if (found.has(name)) continue;
    if (all.every((cell) => NUMBER.test(cell) && Number.isFinite(Number(cell)))) found.set(name, "number");
    else if (all.every((cell) => BOOLEANS.has(cell))) found.set(name, "boolean");
  }
}

function converted(values, types, taken) {
  return Object.fromEntries(Object.entries(values).map(([name, cell]) => {
    const kind = taken.includes(name) ? "string" : types.get(name);
    if (kind === "number" && NUMBER.test(cell)) return [name, numberOf(cell)];
    return [name, kind === "boolean" ? BOOLEANS.get(cell) ?? cell : cell];
  }));
}
