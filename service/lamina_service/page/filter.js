// The filter, as conditions that all must hold, and the values of fields to choose from.

import { element, node } from "./nodes.js";
import { isObject } from "./values.js";

const MAX_FACETS = 16; // that the service counts in one search
let conditions = []; // each a filter of its own: of the page, {field: value}
let changed = () => {};

export function onFilter(then) {
  changed = then;
}

export function clearFilter() {
  conditions = [];
}

// Take up a filter of the API; what the page itself cannot make stays as it is.
export function readFilter(text) {
  const given = JSON.parse(text);
  if (!isObject(given)) throw new SyntaxError("a filter is an object");
  conditions = parts(given);
}

function parts(filter) {
  return Object.entries(filter).flatMap(([name, value]) =>
    (name === "$and" && Array.isArray(value) && value.every(isObject) ? value.flatMap(parts) : [{ [name]: value }]));
}

// The conditions as one filter of the API; null where there are none.
export function filter() {
  const names = conditions.flatMap(Object.keys);
  if (!names.length) return null;
  return new Set(names).size === names.length ? Object.assign({}, ...conditions) : { $and: conditions };
}

// Names of the fields to count: all, or the first that the service takes.
export function facetsOf(fields) {
  return Object.keys(fields ?? {}).slice(0, MAX_FACETS);
}

const same = (one) => (other) => JSON.stringify(one) === JSON.stringify(other);

function toggle(condition) {
  const others = conditions.filter((other) => !same(condition)(other));
  conditions = others.length < conditions.length ? others : [...conditions, condition];
  changed();
}

function button(className, condition, ...content) {
  const made = node("button", className, ...content);
  made.type = "button";
  made.dataset.condition = JSON.stringify(condition);
  made.addEventListener("click", () => toggle(condition));
  return made;
}

function told(condition) {
  const [[name, value]] = Object.entries(condition);
  return typeof value === "object" ? JSON.stringify(condition) : `${name}: ${value}`;
}

// A value and its count; of a field in which all values are rare there is nothing to choose.
function facet(name, { values, others }) {
  const chosen = values.filter(({ value }) => conditions.some(same({ [name]: value })));
  if (!chosen.length && !values.some(({ count }) => count > 1)) return [];
  const items = values.map(({ value, count }) => {
    const made = button("value", { [name]: value }, node("span", "", String(value)), " ", node("span", "count", String(count)));
    made.setAttribute("aria-pressed", chosen.some((one) => one.value === value));
    made.disabled = Number.isInteger(value) && !Number.isSafeInteger(value); // it would ask for another
    return node("li", "", made);
  });
  const more = others ? [node("small", "", `and ${others} more`)] : [];
  const list = node("ul", "", ...items);
  list.setAttribute("aria-label", name);
  return [node("section", "", node("h2", "", name), list, ...more)];
}

// Draw conditions and values; who was on one of them stays there.
export function drawFilter(facets) {
  const at = document.activeElement;
  const [area] = ["conditions", "facets"].map(element).filter((one) => one.contains(at));
  const drawn = Object.entries(facets).flatMap(([name, found]) => facet(name, found));
  element("values").replaceChildren(...drawn);
  element("facets").hidden = !drawn.length;
  element("conditions").replaceChildren(...conditions.map((condition) => {
    const made = button("condition", condition, told(condition), " ", node("span", "", "✕"));
    made.setAttribute("aria-label", `Remove ${told(condition)}`);
    return node("li", "", made);
  }));
  element("conditions").hidden = !conditions.length;
  if (!area) return;
  const again = [...area.querySelectorAll("button")].find((one) => one.dataset.condition === at.dataset.condition);
  (again ?? (area.hidden ? element("query") : area.querySelector("summary, button"))).focus();
}
