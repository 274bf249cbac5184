// Texts come from strangers: they only ever become text nodes.

export const element = (id) => document.getElementById(id);

export function node(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}
