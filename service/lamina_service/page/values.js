// Values of JSON, whose numbers are kept to the last digit where the browser can.

export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !JSON.isRawJSON?.(value);
}

export function parse(text) {
  return JSON.parse(text, (name, value, context) =>
    (typeof value === "number" && context ? numberOf(context.source, value) : value));
}

// The number that a text of JSON stands for; as it is written where it would come out otherwise.
export function numberOf(text, value = Number(text)) {
  return String(value) === text || !JSON.rawJSON ? value : JSON.rawJSON(text);
}

export function written(value) {
  return String(JSON.isRawJSON?.(value) ? value.rawJSON : value);
}
