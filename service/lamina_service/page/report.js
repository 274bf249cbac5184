// What became of the records of a file.

import { element, node } from "./nodes.js";

const MAX_TOLD = 100;
const count = (number) => number.toLocaleString("en");

export class Report {
  collection = "";
  inserted = 0;
  replaced = 0;
  repeated = 0; // whose id a later line of the same part has
  refused = 0;
  truncated = 0;
  told = [];

  add(part, sent, reply) {
    this.inserted += reply.inserted;
    this.replaced += reply.replaced;
    this.repeated += sent.length - reply.inserted - reply.replaced - reply.error_count;
    this.truncated += reply.truncated_count;
    this.refused += reply.error_count + part.length - sent.length;
    const unread = part.filter(({ error }) => error).map(({ line, error }) => [line, error]);
    const faults = [...unread, ...reply.errors.map(({ position, detail }) => [sent[position].line, detail])];
    this.told.push(...faults.sort(([one], [other]) => one - other).slice(0, MAX_TOLD - this.told.length));
  }

  toString() {
    const again = this.repeated ? `, ${count(this.repeated)} replaced by later lines of the file` : "";
    const cut = this.truncated ? ` Of ${count(this.truncated)} the encoder read the beginning only.` : "";
    return `Stored ${count(this.inserted + this.replaced)} in ${this.collection}: ${count(this.inserted)} new, ${count(this.replaced)} replaced${again}. ` +
      `Refused ${count(this.refused)}.${cut}`;
  }

  draw() {
    const items = this.told.map(([line, reason]) => node("li", "", `line ${line}: ${reason}`));
    const more = this.refused - this.told.length;
    if (more) items.push(node("li", "", `and ${count(more)} more`));
    element("refused").replaceChildren(...items);
  }
}
