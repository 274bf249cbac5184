// Draws a hit: its text with the words that were found, its fields, and why it is there.

import { node } from "./nodes.js";

const LEGS = {
  dense: "by meaning, cosine",
  lexical: "by words, BM25",
  hybrid: "both together",
  rerank: "by the reranker",
};

export function item(hit, mode, likeIt, more) {
  const made = node("li", "");
  made.tabIndex = -1;
  made.append(marked(hit.text, hit.highlights ?? []), node("span", "score", hit.score.toFixed(3)));
  const metadata = Object.entries(hit.metadata).map(([name, value]) => `${name}: ${value}`);
  if (metadata.length) made.append(node("span", "metadata", metadata.join(" · ")));
  const like = node("a", "", "more like this");
  like.href = likeIt;
  made.append(node("span", "id", hit.id), node("div", "actions", like, why(hit, mode), ...more));
  return made;
}

// The places count code points, as the parts that a string is spread into.
function marked(text, places) {
  const characters = [...text];
  const part = (from, to) => characters.slice(from, to).join("");
  const made = node("p", "text");
  let done = 0;
  for (const [from, to] of places) {
    made.append(part(done, from), node("mark", "", part(from, to)));
    done = to;
  }
  made.append(part(done));
  return made;
}

function why(hit, mode) {
  const legs = Object.entries(hit.explanation ?? {}).filter(([, leg]) => leg);
  if (mode === "hybrid" && !hit.explanation?.hybrid) legs.push(["hybrid", hit]); // it orders the hits
  const rows = legs.map(([name, { score, rank }]) => row("td", [
    LEGS[name],
    score === null ? "no word of the query" : score.toFixed(3),
    rank ?? "not among its best",
  ]));
  const head = node("thead", "", row("th", ["found", "score", "rank"]));
  return node("details", "why",
    node("summary", "", "why"),
    node("table", "", head, node("tbody", "", ...rows)));
}

function row(tag, cells) {
  return node("tr", "", ...cells.map((cell) => node(tag, "", String(cell))));
}
