// Draws openapi.json: every operation with calls to copy, parameters, bodies, replies and problems.

const LIMITS = {
  minimum: "≥ #", exclusiveMinimum: "> #", maximum: "≤ #", exclusiveMaximum: "< #",
  minLength: "≥ # characters", maxLength: "≤ # characters", minItems: "≥ # items", maxItems: "≤ # items",
};
const api = await (await fetch("openapi.json")).json();
const base = new URL(".", location.href).href.replace(/\/$/, "");
const linked = new Set(); // references to the schemas that are drawn below the operations

function node(tag, text, ...children) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function resolve(schema) {
  if (!schema?.$ref) return schema ?? {};
  return schema.$ref.split("/").slice(1).reduce((at, part) => at[part], api);
}

function anchor(reference) {
  return `schema-${reference.split("/").pop()}`;
}

function link(reference) {
  linked.add(reference);
  const made = node("a", resolve({ $ref: reference }).title);
  made.href = `#${anchor(reference)}`;
  return made;
}

function joined(parts, between) {
  return parts.flatMap((part, at) => (at ? [between, ...part] : part));
}

// What a value may be: texts, and links to the schemas of objects.
function kind(schema = {}) {
  if (schema.$ref) return [link(schema.$ref)];
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return joined(options.map(kind), " | ");
  if (schema.enum) return [schema.enum.map((value) => JSON.stringify(value)).join(" | ")];
  if (schema.const !== undefined) return [JSON.stringify(schema.const)];
  const limits = Object.entries(LIMITS).filter(([name]) => schema[name] !== undefined && !schema.prefixItems)
    .map(([name, text]) => text.replace("#", schema[name]));
  const said = limits.length ? [` ${limits.join(", ")}`] : [];
  if (schema.prefixItems) return ["[", ...joined(schema.prefixItems.map(kind), ", "), "]"];
  if (schema.type === "array") return ["[", ...kind(schema.items), "]", ...said];
  if (schema.additionalProperties?.constructor === Object) return ["{name: ", ...kind(schema.additionalProperties), "}"];
  return [schema.type ?? "any", ...said];
}

function table(title, rows) {
  if (!rows.length) return [];
  const body = rows.map((row) => node("tr", "", ...row.map((cell) => node("td", "", ...cell))));
  return [...heading(title), node("table", "", node("tbody", "", ...body))];
}

function heading(title) {
  return title ? [node("h3", title)] : [];
}

// The fields of an object; of anything else, what it may be.
function fields(title, schema) {
  const found = resolve(schema);
  if (!found.properties && found.oneOf) {
    return found.oneOf.flatMap((option, at) => fields(`${title}, ${at ? "or" : "either"}`, option));
  }
  if (!found.properties) {
    return [...heading(title), node("p", "", ...kind(schema), found.description ? `: ${found.description}` : "")];
  }
  const required = new Set(found.required);
  const rows = Object.entries(found.properties).map(([name, property]) => [
    [name + (required.has(name) ? "" : "?")],
    kind(property),
    [[property.description, property.default !== undefined && `default ${JSON.stringify(property.default)}`]
      .filter(Boolean).join("; ")],
  ]);
  if (!rows.length) return [...heading(title), node("p", found.description)];
  const either = (found.oneOf ?? []).flatMap((option) => option.required ?? []);
  return [...table(title, rows), ...(either.length ? [node("p", `Exactly one of ${either.join(", ")}.`)] : [])];
}

// An example of a parameter or of a body: its own, or its schema's.
function example(one) {
  return one.example ?? Object.values(one.examples ?? {})[0]?.value ?? resolve(one.schema).examples?.[0];
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function curl(method, path, operation, type, content) {
  const value = (one) => encodeURIComponent(example(one) ?? one.name);
  const given = operation.parameters ?? [];
  const address = given.filter((one) => one.in === "path")
    .reduce((at, one) => at.replace(`{${one.name}}`, value(one)), path);
  const query = given.filter((one) => one.in === "query" && one.required)
    .map((one) => `${one.name}=${value(one)}`).join("&");
  const parts = [`curl ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${quoted(base + address + (query && `?${query}`))}`];
  const sent = content && example(content);
  if (sent !== undefined) parts.push(`-H ${quoted(`Content-Type: ${type}`)}`);
  if (sent !== undefined) parts.push(type === "application/json" ? `-d ${quoted(JSON.stringify(sent))}` : `--data-binary ${quoted(sent)}`);
  return parts.join(" \\\n  ");
}

// Replies that look alike are drawn once, with all their statuses.
function replies(good) {
  const alike = new Map();
  for (const [status, reply] of good) {
    const [content] = Object.values(reply.content ?? {});
    const key = JSON.stringify(content?.schema);
    const said = status === "200" ? status : `${status} ${reply.description}`;
    alike.set(key, { schema: content?.schema, statuses: [...(alike.get(key)?.statuses ?? []), said] });
  }
  return [...alike.values()].flatMap(({ schema, statuses }) => fields(`Reply ${statuses.join(" or ")}`, schema));
}

function draw(method, path, operation) {
  const parameters = (operation.parameters ?? []).map((one) => {
    const [[type, content]] = Object.entries(one.content ?? { "": one });
    const value = content.schema.default !== undefined && `default ${JSON.stringify(content.schema.default)}`;
    return [
      [one.name + (one.required ? "" : "?")],
      [...kind(content.schema), type && ` as ${type}`, ` in ${one.in}`],
      [[one.description, value].filter(Boolean).join("; ")],
    ];
  });
  const { content = {}, required } = operation.requestBody ?? {};
  const bodies = Object.entries(content);
  const body = ([type, { schema }]) =>
    fields(`Body${bodies.length > 1 ? ` as ${type}` : ""}${required ? "" : ", may be left out"}`, schema);
  const answers = Object.entries(operation.responses);
  const isGood = ([status]) => status.startsWith("2");
  const problems = answers.filter((answer) => !isGood(answer)).map(([status, reply]) => [
    [status], [reply.description], kind(Object.values(reply.content)[0].schema),
  ]);
  return node("article", "",
    node("h2", `${method.toUpperCase()} ${path}`),
    node("p", operation.description ?? operation.summary),
    ...(bodies.length ? bodies : [[]]).map(([type, media]) => node("pre", curl(method, path, operation, type, media))),
    ...table("Parameters", parameters),
    ...bodies.flatMap(body),
    ...replies(answers.filter(isGood)),
    ...table("Problems", problems));
}

const element = (id) => document.getElementById(id);
element("description").textContent = `${api.info.description} Version ${api.info.version}.`;
for (const { description } of Object.values(api.components.securitySchemes)) {
  element("key").append(`${description} Send it with `, node("code", "-H 'Authorization: Bearer KEY'"));
}
for (const [path, operations] of Object.entries(api.paths)) {
  for (const [method, operation] of Object.entries(operations)) {
    element("operations").append(draw(method, path, operation));
  }
}
for (const reference of linked) { // which drawing adds to
  const found = resolve({ $ref: reference });
  const section = node("section", "", node("h2", found.title), node("p", found.description), ...fields("", found));
  section.id = anchor(reference);
  element("schemas").append(section);
}
element(location.hash.slice(1))?.scrollIntoView(); // it was not there when the page was loaded
