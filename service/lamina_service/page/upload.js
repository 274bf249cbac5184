// Adds the documents of a file to a collection, part by part, and tells what became of each.

import { BY_LINE, documentOf, parts } from "./documents.js";
import { element } from "./nodes.js";
import { formatOf, records } from "./records.js";
import { Report } from "./report.js";
import { address, askForKey, call, hasKey } from "./service.js";
import { written } from "./values.js";

const form = element("add");
const { file, to, name, text, id } = form.elements;
const [progress, submit] = ["progress", "[type=submit]"].map((one) => form.querySelector(one));
const LOOKED_AT = 100; // records whose columns are offered
let page; // what the search page tells of its collections
let stop = null; // ends the upload that runs

function say(words, error = "") {
  element("add-status").textContent = words;
  element("add-error").textContent = error;
  element("add-error").hidden = !error;
}

function forget() {
  say("");
  element("refused").replaceChildren();
}

// Another key was given: what was refused to the last one is past.
export function forgetRefusal(from) {
  if (from === submit) forget();
}

function setRunning(runs) {
  const from = runs ? submit : element("stop");
  const hadFocus = document.activeElement === from;
  for (const one of form.querySelectorAll("input, select, [type=submit]")) one.disabled = runs;
  element("stop").hidden = progress.hidden = !runs;
  if (hadFocus) (runs ? element("stop") : submit).focus();
}

// The panel follows the collection that is open.
export function follow() {
  if (stop) return;
  const open = page.collection();
  element("add-here").textContent = open || "an open collection: there is none";
  to[0].disabled = !open;
  if (!open) to.value = "new";
  followTarget();
}

function followTarget() {
  name.disabled = to.value !== "new";
  element("scope").hidden = !hasKey();
}

function choices(names, chosen, more = []) {
  return [...names.map((one) => new Option(one, one, false, one === chosen)), ...more];
}

// Look at the first records, and offer their columns for text and id.
async function look() {
  forget();
  element("columns").hidden = true;
  const [chosen] = file.files;
  submit.disabled = Boolean(chosen); // until it is known what it holds
  if (!chosen) return;
  try {
    const found = await firstGood(chosen, LOOKED_AT);
    if (file.files[0] !== chosen) return; // another was chosen meanwhile
    const names = new Set(found.flatMap(({ columns, values }) => columns ?? Object.keys(values)));
    const columns = [...names].filter((one) => one !== "metadata");
    const known = ["id", "_id"].find((one) => columns.includes(one)) ?? BY_LINE;
    text.replaceChildren(...choices(columns, columns.includes("text") ? "text" : longest(found)));
    id.replaceChildren(...choices(columns, known, [new Option("made of the line number", BY_LINE, false, known === BY_LINE)]));
    element("columns").hidden = formatOf(chosen.name) === "text";
    preview(found);
    submit.disabled = false;
  } catch (error) {
    say("", error.message);
  }
}

// The column that is most likely to be the text.
function longest(found) {
  const texts = found.flatMap(({ values }) => Object.entries(values)).filter(([, value]) => typeof value === "string");
  return texts.sort(([, one], [, other]) => other.length - one.length)[0]?.[0];
}

// The good ones of the first records, or the first good one behind them.
async function firstGood(chosen, looked = 1) {
  const good = [];
  let reason = formatOf(chosen.name) === "csv" ? "it is empty or only a header" : "it is empty";
  let seen = 0;
  for await (const record of records(chosen)) {
    if (record.values) good.push(record);
    else if (!seen) reason = `line ${record.line}: ${record.error}`;
    if (++seen >= looked && good.length) break;
  }
  if (!good.length) throw new Error(`${chosen.name} has no record that can be read: ${reason}.`);
  return good;
}

async function preview(given) {
  const [chosen] = file.files;
  const [{ values, line }] = given ?? await firstGood(chosen);
  const made = documentOf(values, line, { file: chosen.name, id: id.value, text: text.value });
  const fields = Object.entries(made.metadata).map(([key, value]) => `${key}: ${written(value)}`);
  say(`The first document: “${String(made.text ?? "").slice(0, 200)}”, id ${made.id}${fields.length ? `, ${fields.join(" · ")}` : ""}`);
}

// Make the collection that was named, or take the one that is open.
async function target() {
  if (to.value !== "new") return page.collection();
  const made = name.value.trim();
  if (page.describe(made)) throw new Error(`There is a collection ${made} already; choose it above to add to it.`);
  await call(address(made), { method: "PUT" });
  return made;
}

const pause = (seconds, signal) => new Promise((done) => {
  const timer = setTimeout(done, seconds * 1000);
  signal.addEventListener("abort", () => { clearTimeout(timer); done(); });
});

// Store documents, to the end even after a stop; while the service has no room, wait as long as it says.
async function send(collection, documents, signal) {
  for (;;) {
    try {
      const reply = await call(`${address(collection)}/documents`, {
        method: "POST", type: "application/x-ndjson", body: documents.join("\n"),
      });
      return { ...reply, errors: reply.errors.map(({ position, detail }) => ({ position, detail })) };
    } catch (error) {
      if (error.problem?.type?.endsWith(":documents-refused")) {
        const errors = error.problem.errors.map(({ field, message }) => ({ position: Number(field.match(/\d+/)[0]), detail: message }));
        return { inserted: 0, replaced: 0, truncated_count: 0, error_count: documents.length, errors };
      }
      if (error.status !== 429) throw error;
      signal.throwIfAborted();
      say(`${element("add-status").textContent.replace(/ The service is busy.*/, "")} The service is busy; this waits.`);
      await pause(error.retrySeconds, signal);
      signal.throwIfAborted();
    }
  }
}

async function upload() {
  const [chosen] = file.files;
  const options = { file: chosen.name, id: id.value, text: text.value };
  stop = new AbortController();
  const { signal } = stop;
  const report = new Report();
  let [collection, failure] = ["", ""];
  setRunning(true);
  say("");
  report.draw();
  try {
    progress.value = 0;
    report.collection = collection = await target();
    if (formatOf(chosen.name) === "csv") options.types = page.describe(collection)?.fields ?? {};
    let read = 0;
    const found = records(chosen, (bytes) => { read = bytes; });
    for await (const part of parts(found, options)) {
      signal.throwIfAborted();
      const sent = part.filter(({ document }) => document);
      const none = { inserted: 0, replaced: 0, truncated_count: 0, error_count: 0, errors: [] };
      report.add(part, sent, sent.length ? await send(collection, sent.map(({ document }) => document), signal) : none);
      progress.value = read / chosen.size;
      say(`${report}`);
      report.draw();
    }
  } catch (error) {
    if (error.status === 403) askForKey(submit);
    failure = error === signal.reason ? "Stopped; what was stored stays." : error.message;
  }
  stop = null;
  setRunning(false);
  if (collection) {
    await page.changed(collection);
    to.value = "open"; // where the rest goes if it is tried again
  }
  follow();
  say(collection && `${report}`, failure);
}

// A file may be dropped anywhere on the page.
function drag(event) {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  form.classList.toggle("over", event.type === "dragover");
  if (event.type === "dragleave" || stop) return;
  element("adding").open = true;
  if (event.type !== "drop") return;
  file.files = event.dataTransfer.files;
  look();
}

export function setUp(told) {
  page = told;
  form.addEventListener("submit", (event) => { event.preventDefault(); if (!stop) upload(); });
  file.addEventListener("change", look);
  for (const one of [text, id]) one.addEventListener("change", () => preview());
  for (const one of to) one.addEventListener("change", followTarget);
  element("stop").addEventListener("click", () => {
    if (!stop || stop.signal.aborted) return;
    say(`${element("add-status").textContent} This stops once the part on its way is stored.`);
    stop.abort();
  });
  for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, drag);
  addEventListener("beforeunload", (event) => { if (stop) event.preventDefault(); });
}
