/** The tools: what a model reads about each one, and what it does to the notebook. */

import { LIMITS, TAG } from "./notebook.js";

/** @typedef {import("./notebook.js").Notebook} Notebook */
/** @typedef {Record<string, any>} Schema JSON Schema */

/**
 * @typedef {object} Tool
 * @property {string} title
 * @property {string} description
 * @property {Schema} input
 * @property {Schema} output
 * @property {{ readOnlyHint: boolean, destructiveHint: boolean, idempotentHint: boolean }} annotations
 * @property {(notebook: Notebook, args: any) => Record<string, unknown>} run
 */

const READS = { readOnlyHint: true, destructiveHint: false, idempotentHint: true };
const ADDS = { readOnlyHint: false, destructiveHint: false, idempotentHint: false };
const ADDS_ONCE = { readOnlyHint: false, destructiveHint: false, idempotentHint: true };
const CHANGES = { readOnlyHint: false, destructiveHint: true, idempotentHint: false };
const SETS = { readOnlyHint: false, destructiveHint: true, idempotentHint: true };

const ID = { type: "string", minLength: 1, maxLength: LIMITS.title, description: "Id of a note, such as n1, or its exact title" };
const TITLE = { type: "string", minLength: 1, maxLength: LIMITS.title, description: "One line, not used by another note" };
const TEXT = { type: "string", minLength: 1, maxLength: LIMITS.text };
const ONE_TAG = {
  type: "string",
  pattern: TAG,
  maxLength: LIMITS.tag,
  description: "Lower-case letters, digits and hyphens",
};
const TAGS = { type: "array", items: ONE_TAG, maxItems: LIMITS.tags };
const STRING = { type: "string" };
const COUNT = { type: "integer", minimum: 0 };
const STRINGS = { type: "array", items: STRING };

/** @param {Schema} properties @param {string[]} [optional] @returns {Schema} */
function object(properties, optional = []) {
  const required = Object.keys(properties).filter((name) => !optional.includes(name));
  return { type: "object", properties, ...(required.length && { required }), additionalProperties: false };
}

const NOTE = object({ id: STRING, title: STRING, text: STRING, tags: STRINGS });
const LISTED = { type: "array", items: object({ id: STRING, title: STRING, tags: STRINGS, words: COUNT }) };

/** @type {Record<string, Tool>} */
export const TOOLS = {
  list_notes: {
    title: "List notes",
    description: "List the notes in the order in which they were made, all of them or those with one tag.",
    input: object({ tag: { ...ONE_TAG, description: "Only notes with this tag" } }, ["tag"]),
    output: object({ notes: LISTED }),
    annotations: READS,
    run: (notebook, { tag }) => ({ notes: notebook.list(tag) }),
  },
  read_note: {
    title: "Read a note",
    description: "Read one note: its title, its whole text and its tags.",
    input: object({ id: ID }),
    output: NOTE,
    annotations: READS,
    run: (notebook, { id }) => notebook.read(id),
  },
  search_notes: {
    title: "Search notes",
    description: "Find the notes whose title, text or tags contain some words. Upper and lower case are the same.",
    input: object({ query: { type: "string", minLength: 1, maxLength: LIMITS.query, description: "Words as they stand in the note" } }),
    output: object({ notes: LISTED }),
    annotations: READS,
    run: (notebook, { query }) => ({ notes: notebook.search(query) }),
  },
  count_words: {
    title: "Count words",
    description: "Count the words, characters and lines in the text of a note.",
    input: object({ id: ID }),
    output: object({ id: STRING, title: STRING, words: COUNT, characters: COUNT, lines: COUNT }),
    annotations: READS,
    run: (notebook, { id }) => notebook.count(id),
  },
  list_tags: {
    title: "List tags",
    description: "List every tag in use with the number of notes that have it, in alphabetical order.",
    input: object({}),
    output: object({ tags: { type: "array", items: object({ tag: STRING, notes: COUNT }) } }),
    annotations: READS,
    run: (notebook) => ({ tags: notebook.tags() }),
  },
  create_note: {
    title: "Create a note",
    description: "Create a note. It gets the next free id.",
    input: object({ title: TITLE, text: TEXT, tags: TAGS }, ["tags"]),
    output: NOTE,
    annotations: ADDS,
    run: (notebook, draft) => notebook.create(draft),
  },
  append_to_note: {
    title: "Append to a note",
    description: "Add text to the end of a note, on a new line.",
    input: object({ id: ID, text: TEXT }),
    output: NOTE,
    annotations: ADDS,
    run: (notebook, { id, text }) => notebook.append(id, text),
  },
  replace_text: {
    title: "Replace a note's text",
    description: "Replace the whole text of a note by another one. Title and tags stay.",
    input: object({ id: ID, text: TEXT }),
    output: NOTE,
    annotations: SETS,
    run: (notebook, { id, text }) => notebook.replace(id, text),
  },
  rename_note: {
    title: "Rename a note",
    description: "Give a note another title. Id, text and tags stay.",
    input: object({ id: ID, title: TITLE }),
    output: NOTE,
    annotations: CHANGES,
    run: (notebook, { id, title }) => notebook.rename(id, title),
  },
  tag_note: {
    title: "Tag a note",
    description: "Add a tag to a note. Nothing changes where the note has it already.",
    input: object({ id: ID, tag: ONE_TAG }),
    output: NOTE,
    annotations: ADDS_ONCE,
    run: (notebook, { id, tag }) => notebook.tag(id, tag),
  },
  untag_note: {
    title: "Untag a note",
    description: "Take a tag from a note.",
    input: object({ id: ID, tag: ONE_TAG }),
    output: NOTE,
    annotations: CHANGES,
    run: (notebook, { id, tag }) => notebook.untag(id, tag),
  },
  delete_note: {
    title: "Delete a note",
    description: "Delete a note for good. Its id is not used again.",
    input: object({ id: ID }),
    output: object({ id: STRING, title: STRING }),
    annotations: CHANGES,
    run: (notebook, { id }) => notebook.delete(id),
  },
  reset_notes: {
    title: "Reset the notebook",
    description: "Put the notebook back to its first notes, or to the notes that are given; ids begin at n1 again.",
    input: object(
      { notes: { type: "array", maxItems: LIMITS.notes, items: object({ title: TITLE, text: TEXT, tags: TAGS }, ["tags"]) } },
      ["notes"],
    ),
    output: object({ notes: LISTED }),
    annotations: SETS,
    run: (notebook, { notes }) => ({ notes: notebook.reset(notes) }),
  },
};
