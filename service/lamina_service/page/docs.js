// Draws openapi.json: every operation with its parameters, bodies, replies and a call to copy.

const api = await (await fetch("openapi.json")).json();
const base = new URL(".", location.href).href.replace(/\/$/, "");

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

function kind(schema) {
  const found = resolve(schema);
  const options = found.anyOf ?? (found.properties ? null : found.oneOf);
  if (options) return options.map(kind).join(" | ");
  if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.type === "array") return `[${kind(found.items)}]`;
  const range = [found.minimum ?? found.exclusiveMinimum, found.maximum ?? found.exclusiveMaximum];
  const bounds = range.some((bound) => bound !== undefined) ? ` ${range[0] ?? ""}..${range[1] ?? ""}` : "";
  return (found.title && found.properties ? found.title : found.type ?? "any") + bounds;
}

function table(title, rows) {
  if (!rows.length) return [];
  const body = rows.map((row) => node("tr", "", ...row.map((cell) => node("td", cell))));
  return [node("h3", title), node("table", "", node("tbody", "", ...body))];
}

function properties(title, schema) {
  const found = resolve(schema);
  const required = new Set(found.required);
  const rows = Object.entries(found.properties ?? {}).map(([name, property]) => [
    name + (required.has(name) ? "" : "?"),
    kind(property),
    [property.description, property.default !== undefined && `default ${JSON.stringify(property.default)}`]
      .filter(Boolean).join("; "),
  ]);
  return table(title, rows);
}

function curl(method, path, operation) {
  const body = resolve(operation.requestBody?.content["application/json"].schema);
  const sent = body.examples?.[0];
  const query = (operation.parameters ?? []).filter((one) => one.in === "query" && one.required);
  const asked = query.length ? "?" + query.map((one) => `${one.name}=...`).join("&") : "";
  const data = sent ? ` \\\n  -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(sent)}'` : "";
  return `curl ${method === "post" ? "-X POST " : ""}'${base}${path}${asked}'${data}`;
}

function draw(method, path, operation) {
  const parameters = (operation.parameters ?? []).map((one) => [
    one.name + (one.required ? "" : "?"), `${kind(one.schema)} in ${one.in}`, one.description ?? one.schema.description ?? "",
  ]);
  const [body] = Object.values(operation.requestBody?.content ?? {});
  const [good] = Object.values(operation.responses["200"]?.content ?? {});
  const problems = Object.entries(operation.responses)
    .filter(([status]) => status !== "200")
    .map(([status, reply]) => [status, reply.description]);
  return node("article", "",
    node("h2", `${method.toUpperCase()} ${path}`),
    node("p", operation.description ?? operation.summary),
    node("pre", curl(method, path, operation)),
    ...table("Parameters", parameters),
    ...properties("Body", body?.schema),
    ...properties("Reply", good?.schema),
    ...table("Problems", problems));
}

document.getElementById("description").textContent = `${api.info.description} Version ${api.info.version}.`;
for (const [path, operations] of Object.entries(api.paths)) {
  for (const [method, operation] of Object.entries(operations)) {
    document.getElementById("operations").append(draw(method, path, operation));
  }
}
