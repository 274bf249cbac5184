// Reads the records of a file as a stream: JSON lines, CSV after RFC 4180, or a document a line.

import { isObject, parse } from "./values.js";

const FORMATS = { jsonl: "jsonl", ndjson: "jsonl", csv: "csv", txt: "text", text: "text" };
const MAX_CHARACTERS = 16 * 2 ** 20; // of a line or a CSV record, as `lamina index build` has it
const BEGINNING = 2 ** 20; // characters that tell how lines end
const DELIMITERS = [",", ";", "\t"];

export function formatOf(name) {
  const [ending] = name.toLowerCase().replace(/\.gz$/, "").split(".").slice(-1);
  if (name.includes(".") && FORMATS[ending]) return FORMATS[ending];
  throw new Error(`${name} is none of the files that can be read here: .jsonl, .csv and .txt, each also as .gz`);
}

// Yield {line, values} of each record, of CSV with `columns`, or {line, error}; `onBytes` hears how much was read.
export async function* records(file, onBytes = () => {}) {
  const lines = readLines(file, onBytes);
  try {
    yield* { jsonl: objects, csv: table, text: plain }[formatOf(file.name)](lines, file.name);
  } finally {
    await lines.return(); // so that the file is closed where nobody reads to its end
  }
}

async function* readLines(file, onBytes) {
  let bytes = 0;
  const count = new TransformStream({
    transform(chunk, to) { bytes += chunk.length; onBytes(bytes); to.enqueue(chunk); },
  });
  let stream = file.stream().pipeThrough(count);
  if (/\.gz$/i.test(file.name)) stream = stream.pipeThrough(new DecompressionStream("gzip"));
  const reader = stream.pipeThrough(new TextDecoderStream("utf-8", { fatal: true })).getReader();
  let [line, rest, isLong, ending] = [0, "", false, null];
  try {
    for (;;) {
      const { done, value } = await next(reader, file.name);
      rest += value ?? "";
      if (!ending && !done && rest.length < BEGINNING) continue;
      ending ??= /^[^\n]*\r[^\n]*$/.test(rest.slice(0, BEGINNING)) ? "\r" : "\n";
      const ended = rest.split(ending);
      rest = done ? "" : ended.pop();
      for (const text of ended) {
        isLong ||= text.length > MAX_CHARACTERS;
        yield isLong ? { line: ++line, text: "", error: "longer than 16 MiB" } : { line: ++line, text };
        isLong = false;
      }
      if (done) return;
      if (rest.length > MAX_CHARACTERS) [isLong, rest] = [true, ""];
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function next(reader, name) {
  try {
    return await reader.read();
  } catch {
    const packed = /\.gz$/i.test(name) ? "gzip of " : "";
    throw new Error(`${name} cannot be read as ${packed}UTF-8 text; save it so.`);
  }
}

async function* objects(lines) {
  for await (const { line, text, error } of lines) {
    if (error) yield { line, error };
    if (!text.trim()) continue;
    try {
      const values = parse(text);
      yield isObject(values) ? { line, values } : { line, error: "not a JSON object" };
    } catch (error) {
      yield { line, error: `not JSON: ${error.message}` };
    }
  }
}

async function* plain(lines, name) {
  for await (const { line, text, error } of lines) {
    if (error) yield { line, error };
    if (text.trim()) yield { line, values: { id: `${name}:${line}`, text: text.trim() } };
  }
}

async function* table(lines, name) {
  let names;
  for await (const { line, cells, error } of cellsOf(lines)) {
    if (!names && error) throw new Error(`The header of ${name} cannot be read: ${error}.`);
    if (!names) {
      names = cells;
      const twice = names.find((one, at) => one && names.indexOf(one) !== at);
      if (twice) throw new Error(`${name} has two columns ${twice}; rename one.`);
    } else if (error) {
      yield { line, error };
    } else if (cells.length !== names.length) {
      yield { line, error: `${cells.length} columns; the header has ${names.length}` };
    } else {
      const named = names.map((column, at) => [column, cells[at]]);
      const values = Object.fromEntries(named.filter(([column, cell]) => column && cell));
      yield { line, values, columns: names.filter(Boolean) };
    }
  }
}

// After a record that cannot be parsed go on at its second line: a stray quote costs its own line.
async function* cellsOf(lines) {
  const again = []; // lines to be read once more
  let delimiter;
  const nextLine = async () => again.shift() ?? (await lines.next()).value;
  for (let first = await nextLine(); first; first = await nextLine()) {
    if (first.error) yield first;
    if (!first.text.replace(/\r$/, "")) continue;
    delimiter ??= DELIMITERS.find((one) => first.text.includes(one)) ?? ",";
    const record = new CsvRecord(delimiter);
    const taken = [];
    let length = first.text.length;
    record.add(first.text);
    while (record.isOpen && !record.error) {
      const more = await nextLine();
      if (more) taken.push(more);
      length += more?.text.length ?? 0;
      if (!more || more.error || length > MAX_CHARACTERS) record.error = "a quote is never closed";
      else record.add(more.text);
    }
    if (record.error) again.unshift(...taken);
    yield { line: first.line, cells: record.cells, error: record.error };
  }
}

class CsvRecord {
  cells = [];
  isOpen = false; // whether the end of the last line was within quotes
  error;
  #delimiter;
  #cell = "";

  constructor(delimiter) {
    this.#delimiter = delimiter;
  }

  // Take in a line, which may end with the CR of a CR LF.
  add(text) {
    let at = this.isOpen ? this.#quoted(text, 0) : 0;
    while (!this.error && !this.isOpen && at <= text.length) at = this.#next(text, at);
  }

  // Read the cell that begins here; gives where the next one does.
  #next(text, at) {
    if (text[at] === '"') return this.#quoted(text, at + 1);
    const found = text.indexOf(this.#delimiter, at);
    const end = found < 0 ? text.length : found;
    const cell = text.slice(at, end);
    this.cells.push(found < 0 ? cell.replace(/\r$/, "") : cell);
    return end + 1;
  }

  // Read on within quotes.
  #quoted(text, from) {
    for (let at = from; ;) {
      const end = text.indexOf('"', at);
      this.isOpen = end < 0;
      this.#cell += this.isOpen ? `${text.slice(at)}\n` : text.slice(at, end);
      if (this.isOpen) return text.length + 1;
      if (text[end + 1] !== '"') return this.#closed(text, end + 1);
      this.#cell += '"';
      at = end + 2;
    }
  }

  #closed(text, at) {
    const rest = text.slice(at).replace(/^\r$/, "");
    if (rest && rest[0] !== this.#delimiter) this.error = "something stands behind a closing quote";
    this.cells.push(this.#cell);
    this.#cell = "";
    return rest ? at + 1 : text.length + 1;
  }
}
