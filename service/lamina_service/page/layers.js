// How much of each layer the vector of a text takes, where the encoder keeps attention over them.

import { element, node } from "./nodes.js";
import { call } from "./service.js";

const view = element("layers");
let known = false; // whether the encoder tells them
let query = "";

export async function askWhetherThereAreLayers() {
  const { data } = await call("v1/models");
  known = data.some(({ layers }) => layers !== null);
  view.hidden = !(known && query);
}

// Show the query's layers, if they are looked at, or none for an empty text.
export function showLayersOf(text) {
  query = text;
  view.hidden = !(known && query);
  if (!view.hidden && view.open) fill(element("layers-of-query"), query, "query", () => text === query);
}

// What shows the layers of a hit's text once it is opened; nothing where there are none to tell.
export function layersOf(text) {
  if (!known) return [];
  const [made, area] = [node("details", "layers", node("summary", "", "layers")), node("div", "")];
  made.append(area);
  made.addEventListener("toggle", () => made.open && fill(area, text, "document"));
  return [made];
}

async function fill(area, text, role, isWanted = () => true) {
  let drawn;
  try {
    const { weights: [row] } = await call("v1/layers", { method: "POST", body: JSON.stringify({ input: [text], role }) });
    drawn = table(row);
  } catch (error) {
    drawn = node("p", "", error.message);
  }
  if (isWanted()) area.replaceChildren(drawn);
}

function table(weights) {
  const most = Math.max(...weights);
  const rows = weights.map((weight, layer) => {
    const bar = Object.assign(node("meter", ""), { max: most, value: weight });
    bar.setAttribute("aria-hidden", "true"); // the number says it
    return node("tr", "",
      node("td", "", layer ? `${layer}` : "0, embeddings"),
      node("td", "", weight.toFixed(3)),
      node("td", "", (weight * weights.length).toFixed(2)),
      node("td", "", bar));
  });
  const head = ["layer", "share", "of equal", ""].map((name) => node(name ? "th" : "td", "", name));
  return node("table", "", node("thead", "", node("tr", "", ...head)), node("tbody", "", ...rows));
}

view.addEventListener("toggle", () => showLayersOf(query));
