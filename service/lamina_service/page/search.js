// The search page. Texts come from strangers: they only ever become text nodes.

const TOP_K = 20;
const PAUSE_MS = 120; // typing rests this long before a search is sent
const element = (id) => document.getElementById(id);
const [form, query, collection, unlock, key] =
  ["search", "query", "collection", "unlock", "key"].map(element);
let running = new AbortController();
let timer;
let similar = ""; // id of the document whose like is shown, until a query is typed

async function call(path, options = {}) {
  const headers = { "Content-Type": "application/json" };
  const token = sessionStorage.getItem("lamina-key");
  if (token) headers.Authorization = `Bearer ${token}`;
  const reply = await fetch(path, { ...options, headers });
  const body = await reply.json().catch(() => ({ title: `The service answered ${reply.status}` }));
  if (reply.status === 401) {
    unlock.hidden = false;
    key.focus();
  }
  if (!reply.ok) throw new Error(body.detail ?? body.title);
  return body;
}

function show(error) {
  element("error").textContent = error?.message ?? "";
  element("error").hidden = !error;
}

function line(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

function item(hit) {
  const node = document.createElement("li");
  node.tabIndex = -1;
  node.append(line("p", "text", hit.text), line("span", "score", hit.score.toFixed(3)));
  const metadata = Object.entries(hit.metadata).map(([name, value]) => `${name}: ${value}`);
  if (metadata.length) node.append(line("span", "metadata", metadata.join(" · ")));
  node.append(line("span", "id", hit.id));
  const more = line("a", "similar", "more like this");
  more.href = `?${new URLSearchParams({ collection: collection.value, similar: hit.id })}`;
  node.append(more);
  return node;
}

async function search() {
  clearTimeout(timer);
  running.abort();
  running = new AbortController();
  if (!collection.value) return; // why there is none stands on the page, and its name in the address
  const text = query.value.trim();
  if (text) similar = "";
  const where = new URLSearchParams({ collection: collection.value, ...(similar ? { similar } : { q: text }) });
  history.replaceState(null, "", text || similar ? `?${where}` : location.pathname);
  if (!(text || similar)) {
    element("hits").replaceChildren();
    element("status").textContent = "";
    show(null);
    return;
  }
  const started = performance.now();
  try {
    const route = similar ? `similar/${encodeURIComponent(similar)}` : "search";
    const reply = await call(`v1/collections/${encodeURIComponent(collection.value)}/${route}`, {
      method: "POST",
      body: JSON.stringify({ ...(similar ? {} : { query: text }), top_k: TOP_K }),
      signal: running.signal,
    });
    element("hits").replaceChildren(...reply.hits.map(item));
    const cut = reply.truncated ? `, the query was cut at ${reply.token_count} tokens` : "";
    const total = Math.round(performance.now() - started);
    element("status").textContent =
      `${reply.hits.length} ${similar ? `like ${similar}` : "results"} in ${reply.took.total.toFixed(1)} ms (${total} ms in all)${cut}`;
    show(null);
  } catch (error) {
    if (error.name === "AbortError") return; // a newer search is on its way
    element("hits").replaceChildren();
    element("status").textContent = "";
    show(error);
  }
}

// A collection and its aliases, which can be chosen if it can be searched.
function choices({ name, status, aliases, problem }) {
  const reason = problem ? `: ${problem.detail}` : "";
  const made = [new Option(name + reason, name), ...aliases.map((alias) => new Option(`${alias} → ${name}${reason}`, alias))];
  for (const option of made) option.disabled = status !== "open";
  return made;
}

// Choose what the address names, or the first that can be searched; never another in its place.
function choose(asked) {
  const options = [...collection.options];
  const found = options.find((option) => (asked === null ? !option.disabled : option.value === asked));
  collection.selectedIndex = found && !found.disabled ? found.index : -1;
  if (collection.value) return;
  if (!options.length) throw new Error("There is no collection here yet: `lamina index build` makes one.");
  if (asked === null) throw new Error(options.map((option) => option.text).join("\n"));
  throw new Error(found ? found.text : `There is no collection or alias ${asked} here; choose one.`);
}

async function start() {
  try {
    const { collections } = await call("v1/collections");
    const failed = ({ status }) => Number(status !== "open"); // they come last: an alias may hide one
    collection.replaceChildren(...collections.sort((one, other) => failed(one) - failed(other)).flatMap(choices));
    const asked = new URLSearchParams(location.search);
    query.value ||= asked.get("q") ?? "";
    similar = asked.get("similar") ?? "";
    unlock.hidden = true;
    choose(asked.get("collection") || null);
    show(null);
    await search();
  } catch (error) {
    show(error);
  }
}

function step(event) {
  const hits = [...element("hits").children];
  const at = hits.indexOf(document.activeElement);
  const to = at + (event.key === "ArrowDown" ? 1 : -1);
  if (to >= 0 && to < hits.length) hits[to].focus();
  else if (to < 0) query.focus();
  event.preventDefault();
}

form.addEventListener("submit", (event) => { event.preventDefault(); search(); });
query.addEventListener("input", () => { similar = ""; clearTimeout(timer); timer = setTimeout(search, PAUSE_MS); });
collection.addEventListener("change", () => { similar = ""; search(); });
unlock.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("lamina-key", key.value.trim());
  key.value = "";
  start().then(() => query.focus());
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, select");
  if (event.key === "/" && !typing) { event.preventDefault(); query.select(); }
  else if (event.key.startsWith("Arrow") && !event.target.matches("select") && /Up|Down/.test(event.key)) step(event);
});

start();
