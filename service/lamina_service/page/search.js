// The search page: a form, the address that brings the search back, and what was found.

import { clearFilter, drawFilter, facetsOf, filter, onFilter, readFilter } from "./filter.js";
import { item } from "./hits.js";
import { askWhetherThereAreLayers, layersOf, showLayersOf } from "./layers.js";
import { element } from "./nodes.js";
import { address, call, onKey } from "./service.js";
import { follow, forgetRefusal, setUp } from "./upload.js";

const TOP_K = 20;
const PAUSE_MS = 120; // typing rests this long before a search is sent
const [form, query, collection] = ["search", "query", "collection"].map(element);
const modes = [...form.elements.mode];
const known = new Map(); // what the service tells of each collection and alias
let running = new AbortController();
let timer;
let similar = ""; // id of the document whose like is shown, until a query is typed

function show(error) {
  element("error").textContent = error?.message ?? "";
  element("error").hidden = !error;
}

function nothing(error) {
  element("hits").replaceChildren();
  element("status").textContent = "";
  drawFilter({});
  showLayersOf("");
  show(error);
}

// The search as the parameters of an address: those of the API, and `similar`.
function parameters() {
  const text = query.value.trim();
  if (text) similar = "";
  const [mode, wanted] = [form.elements.mode.value, filter()];
  return new URLSearchParams({
    collection: collection.value,
    ...(similar ? { similar } : text && { q: text }),
    ...(mode !== "dense" && !similar && { mode }),
    ...(wanted && { filter: JSON.stringify(wanted) }),
  });
}

async function search() {
  clearTimeout(timer);
  running.abort();
  running = new AbortController();
  if (!collection.value) return; // why there is none stands on the page, and its name in the address
  const where = parameters();
  const asked = where.get("q") || similar;
  history.replaceState(null, "", `?${where}`);
  if (!asked) return nothing();
  const mode = similar ? "dense" : form.elements.mode.value;
  const started = performance.now();
  try {
    const route = similar ? `similar/${encodeURIComponent(similar)}` : "search";
    const reply = await call(`${address(collection.value)}/${route}`, {
      method: "POST",
      body: JSON.stringify({
        ...(!similar && { query: asked, mode, highlight: true }),
        ...(filter() && { filter: filter() }),
        facets: facetsOf(known.get(collection.value).fields),
        explain: true,
        top_k: TOP_K,
      }),
      signal: running.signal,
    });
    element("hits").replaceChildren(...reply.hits.map((hit) => item(hit, mode, likeIt(hit), layersOf(hit.text))));
    drawFilter(reply.facets);
    showLayersOf(similar || mode === "lexical" ? "" : asked); // only where the encoder had its part
    const cut = reply.truncated ? `, the query was cut at ${reply.token_count} tokens` : "";
    const total = Math.round(performance.now() - started);
    element("status").textContent =
      `${reply.hits.length} ${similar ? `like ${similar}` : "results"} in ${reply.took.total.toFixed(1)} ms (${total} ms in all)${cut}`;
    show(null);
  } catch (error) {
    if (error.name !== "AbortError") nothing(error); // else a newer search is on its way
  }
}

function likeIt({ id }) {
  return `?${new URLSearchParams({ collection: collection.value, similar: id })}`;
}

// A collection and its aliases, which can be chosen if it can be searched.
function choices(described) {
  const { name, status, aliases, problem } = described;
  const reason = problem ? `: ${problem.detail}` : "";
  const made = [new Option(name + reason, name), ...aliases.map((alias) => new Option(`${alias} → ${name}${reason}`, alias))];
  for (const option of made) {
    option.disabled = status !== "open";
    if (!option.disabled || !known.has(option.value)) known.set(option.value, described);
  }
  return made;
}

// Choose what the address names, or the first that can be searched; never another in its place.
function choose(asked) {
  const options = [...collection.options];
  const found = options.find((option) => (asked === null ? !option.disabled : option.value === asked));
  collection.selectedIndex = found && !found.disabled ? found.index : -1;
  follow();
  offerModes();
  if (collection.value) return;
  if (!options.length) {
    element("adding").open = true;
    throw new Error("There is no collection here yet: add documents above, or `lamina index build` makes one.");
  }
  if (asked === null) throw new Error(options.map((option) => option.text).join("\n"));
  throw new Error(found ? found.text : `There is no collection or alias ${asked} here; choose one.`);
}

// Offer the ways in which the collection can be searched.
function offerModes() {
  const words = known.get(collection.value)?.word_index ?? true;
  for (const one of modes) one.disabled = one.value !== "dense" && !words;
  element("no-words").hidden = words;
}

function setMode(asked) {
  const found = modes.find((one) => one.value === asked);
  if (!found) throw new Error(`There is no mode ${asked}: it is dense, lexical or hybrid.`);
  found.checked = true;
}

async function list() {
  const { collections } = await call("v1/collections");
  const failed = ({ status }) => Number(status !== "open"); // they come last: an alias may hide one
  known.clear();
  collection.replaceChildren(...collections.sort((one, other) => failed(one) - failed(other)).flatMap(choices));
}

// After documents were added: take up new fields, and search again where they are now.
async function showChanged(name) {
  if (name !== collection.value) {
    clearFilter();
    similar = "";
  }
  try {
    await list();
    choose(name);
    await search();
  } catch (error) {
    show(error);
  }
}

async function start() {
  try {
    await Promise.all([list(), askWhetherThereAreLayers()]);
    const asked = new URLSearchParams(location.search);
    query.value ||= asked.get("q") ?? "";
    similar = asked.get("similar") ?? "";
    choose(asked.get("collection") || null);
    setMode(asked.get("mode") ?? form.elements.mode.value);
    if (asked.has("filter")) readFilter(asked.get("filter"));
    show(null);
    await search();
  } catch (error) {
    show(error instanceof SyntaxError ? new Error(`The filter in the address cannot be read: ${error.message}`) : error);
  }
}

function step(event) {
  const hits = [...element("hits").children];
  const at = hits.indexOf(document.activeElement.closest("#hits > li"));
  const to = at + (event.key === "ArrowDown" ? 1 : -1);
  if (to >= 0 && to < hits.length) hits[to].focus();
  else if (to < 0) query.focus();
  event.preventDefault();
}

form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
query.addEventListener("input", () => { similar = ""; clearTimeout(timer); timer = setTimeout(search, PAUSE_MS); });
for (const mode of modes) mode.addEventListener("change", search);
collection.addEventListener("change", () => {
  similar = "";
  clearFilter(); // it speaks of fields that another collection need not have
  follow();
  offerModes();
  if (modes.some((one) => one.checked && one.disabled)) setMode("dense");
  search();
});
onFilter(search);
onKey((from) => {
  forgetRefusal(from);
  start().then(() => (from ?? query).focus());
});
setUp({
  collection: () => collection.value,
  describe: (name) => known.get(name),
  changed: showChanged,
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=radio]), select");
  if (event.key === "/" && !typing) { event.preventDefault(); query.select(); }
  else if (/^Arrow(Up|Down)$/.test(event.key) && event.target.matches("body, #query, #hits *")) step(event);
});

element("facets").open = matchMedia("(min-width: 52rem)").matches;
start();
