/** Whether arguments are of the types that a tool's schema asks for, in words that help to mend them. */

import { NotebookError, quoted } from "./notebook.js";

/** @typedef {import("./tools.js").Schema} Schema */

/**
 * Types, missing and unknown names. Sizes and contents are the notebook's to judge, which knows the right words.
 * @param {Schema} schema
 * @param {unknown} value
 * @param {string} where how the value is called
 */
export function refuseWrongTypes(schema, value, where) {
  switch (schema.type) {
    case "string":
      if (typeof value !== "string") throw new NotebookError(`${where} must be a string, not ${kind(value)}.`);
      if (/\p{Surrogate}/u.test(value)) throw new NotebookError(`${where} is no text: it holds half a character.`);
      return;
    case "array":
      if (!Array.isArray(value)) throw new NotebookError(`${where} must be a list, not ${kind(value)}.`);
      if (value.length > schema.maxItems)
        throw new NotebookError(`${where} has ${value.length} items, at most ${schema.maxItems} are allowed.`);
      value.forEach((item, index) => refuseWrongTypes(schema.items, item, `${where}[${index}]`));
      return;
    default:
      refuseWrongObject(schema, value, where);
  }
}

/** @param {Schema} schema @param {unknown} value @param {string} where */
function refuseWrongObject(schema, value, where) {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new NotebookError(`${where} must be an object, not ${kind(value)}.`);
  const names = Object.keys(schema.properties);
  for (const name of Object.keys(value))
    if (!names.includes(name))
      throw new NotebookError(`${where} has no argument ${quoted(name)}; there is ${names.join(", ") || "none"}.`);
  for (const [name, inner] of Object.entries(schema.properties)) {
    const given = /** @type {Record<string, unknown>} */ (value)[name];
    if (given !== undefined) refuseWrongTypes(inner, given, name);
    else if (schema.required?.includes(name)) throw new NotebookError(`The argument ${name} of ${where} is missing.`);
  }
}

/** @param {unknown} value */
function kind(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return "a list";
  return typeof value === "object" ? "an object" : `a ${typeof value}`;
}
