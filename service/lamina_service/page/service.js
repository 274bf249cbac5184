// Asks the service, with the key that was given on the page where it needs one.

const KEY = "lamina-key";
const POSSIBLE = /^[!-~]+$/; // what a header can carry
const unlock = document.getElementById("unlock");
const key = document.getElementById("key");
let back = null;

// A refusal: its message is the problem's detail, `problem` all of it.
export class Refusal extends Error {
  constructor(reply, problem) {
    super(problem.detail ?? problem.title);
    this.status = reply.status;
    this.problem = problem;
    this.retrySeconds = Number(reply.headers.get("Retry-After")) || 1;
  }
}

function kept() {
  const token = sessionStorage.getItem(KEY);
  return POSSIBLE.test(token ?? "") ? token : null;
}

export function hasKey() {
  return kept() !== null;
}

// Ask for a key, or for another; the focus goes back to where it was needed.
export function askForKey(from = null) {
  back = from;
  unlock.hidden = false;
  key.focus();
}

export async function call(path, { type = "application/json", ...options } = {}) {
  const headers = { "Content-Type": type };
  const token = kept();
  if (token) headers.Authorization = `Bearer ${token}`;
  const reply = await fetch(path, { ...options, headers });
  const body = await reply.json().catch(() => ({ title: `The service answered ${reply.status}` }));
  if (reply.status === 401) askForKey();
  if (!reply.ok) throw new Refusal(reply, body);
  return body;
}

export function address(collection) {
  return `v1/collections/${encodeURIComponent(collection)}`;
}

// Call `then` after each key that is given, with what needed it.
export function onKey(then) {
  unlock.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = key.value.trim();
    document.getElementById("no-key").hidden = POSSIBLE.test(given);
    if (!POSSIBLE.test(given)) return key.select();
    sessionStorage.setItem(KEY, given);
    key.value = "";
    unlock.hidden = true;
    then(back);
  });
}
