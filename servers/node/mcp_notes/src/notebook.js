/**
 * The notebook: notes in memory under ids n1, n2, … that are never given twice, in the order in which they were made.
 *
 * Whatever cannot be done is a NotebookError in words for the caller, and changes nothing.
 */

/** @typedef {{ id: string, title: string, text: string, tags: string[] }} Note */
/** @typedef {{ title: string, text: string, tags?: string[] }} Draft */
/** @typedef {{ id: string, title: string, tags: string[], words: number }} Entry a note as it is listed */

export const LIMITS = Object.freeze({ notes: 200, title: 80, text: 4000, tags: 10, tag: 30, query: 100 });
export const TAG = "^[a-z0-9][a-z0-9-]*$";

const SHOWN = 12;

export class NotebookError extends Error {}

export class Notebook {
  /** @type {Map<string, Note>} */
  #notes = new Map();
  #made = 0;
  #seed;

  /** @param {Draft[]} seed what the notebook holds at first and after a reset */
  constructor(seed) {
    this.#seed = seed;
    this.reset();
  }

  /**
   * Back to the first state, or to one with exactly these notes.
   * @param {Draft[]} [drafts]
   */
  reset(drafts = this.#seed) {
    const before = { notes: this.#notes, made: this.#made };
    this.#notes = new Map();
    this.#made = 0;
    try {
      for (const draft of drafts) this.create(draft);
    } catch (error) {
      this.#notes = before.notes;
      this.#made = before.made;
      throw error;
    }
    return this.list();
  }

  /** @param {Draft} draft */
  create({ title, text, tags = [] }) {
    if (this.#notes.size >= LIMITS.notes)
      throw new NotebookError(`The notebook is full: it holds ${LIMITS.notes} notes. Delete one first.`);
    const note = { id: "", title: this.#freeTitle(title), text: checkedText(text), tags: checkedTags(tags) };
    note.id = `n${++this.#made}`;
    this.#notes.set(note.id, note);
    return copy(note);
  }

  /** @param {string} id */
  read(id) {
    return copy(this.#find(id));
  }

  /** @param {string} [tag] only notes with this tag */
  list(tag) {
    if (tag !== undefined && !this.tags().some((known) => known.tag === tag))
      throw new NotebookError(`No note has the tag ${quoted(tag)}. Tags in use: ${some(this.tags().map((t) => t.tag))}.`);
    return [...this.#notes.values()].filter((note) => tag === undefined || note.tags.includes(tag)).map(entry);
  }

  /** Every tag in use, in alphabetical order, with the number of its notes. */
  tags() {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const note of this.#notes.values())
      for (const tag of note.tags) counts.set(tag, (counts.get(tag) ?? 0) + 1);
    return [...counts].sort(([a], [b]) => (a < b ? -1 : 1)).map(([tag, notes]) => ({ tag, notes }));
  }

  /**
   * Notes whose title, text or tags contain the query, letter case aside.
   * @param {string} query
   */
  search(query) {
    const wanted = fold(query.trim());
    if (!wanted) throw new NotebookError("The query is empty: say which words to look for.");
    return [...this.#notes.values()]
      .filter((note) => [note.title, note.text, ...note.tags].some((part) => fold(part).includes(wanted)))
      .map(entry);
  }

  /**
   * Adds a line to the end of a note.
   * @param {string} id
   * @param {string} text
   */
  append(id, text) {
    const note = this.#find(id);
    note.text = checkedText(`${note.text}\n${checkedText(text)}`);
    return copy(note);
  }

  /**
   * @param {string} id
   * @param {string} text
   */
  replace(id, text) {
    const note = this.#find(id);
    note.text = checkedText(text);
    return copy(note);
  }

  /**
   * @param {string} id
   * @param {string} title
   */
  rename(id, title) {
    const note = this.#find(id);
    note.title = this.#freeTitle(title, note);
    return copy(note);
  }

  /**
   * @param {string} id
   * @param {string} tag
   */
  tag(id, tag) {
    const note = this.#find(id);
    note.tags = checkedTags([...note.tags, tag]);
    return copy(note);
  }

  /**
   * @param {string} id
   * @param {string} tag
   */
  untag(id, tag) {
    const note = this.#find(id);
    if (!note.tags.includes(tag))
      throw new NotebookError(`Note ${note.id} has no tag ${quoted(tag)}. Its tags: ${some(note.tags)}.`);
    note.tags = note.tags.filter((other) => other !== tag);
    return copy(note);
  }

  /** @param {string} id */
  delete(id) {
    const note = this.#find(id);
    this.#notes.delete(note.id);
    return { id: note.id, title: note.title };
  }

  /** @param {string} id */
  count(id) {
    const { id: found, title, text } = this.#find(id);
    return { id: found, title, words: words(text), characters: [...text].length, lines: text.split("\n").length };
  }

  /** @param {string} id an id, or a title in any letter case */
  #find(id) {
    const wanted = fold(id.trim());
    const found = this.#notes.get(wanted) ?? [...this.#notes.values()].find((note) => fold(note.title) === wanted);
    if (found) return found;
    const known = [...this.#notes.values()].map((note) => `${note.id} (${note.title})`);
    throw new NotebookError(`There is no note ${quoted(id)}. Known notes: ${some(known)}.`);
  }

  /**
   * @param {string} title
   * @param {Note} [own] the note that may keep it
   */
  #freeTitle(title, own) {
    const checked = title.trim();
    if (!checked) throw new NotebookError("The title is empty.");
    if (/[\p{Cc}\p{Zl}\p{Zp}]/u.test(checked)) throw new NotebookError("The title must be one line without control characters.");
    refuseLonger("title", checked, LIMITS.title);
    if (/^n\d+$/i.test(checked))
      throw new NotebookError(`The title ${quoted(checked)} looks like a note's id; choose another one.`);
    const taken = [...this.#notes.values()].find((note) => note !== own && fold(note.title) === fold(checked));
    if (taken) throw new NotebookError(`The title ${quoted(checked)} is taken by note ${taken.id}; choose another one.`);
    return checked;
  }
}

/** @param {string} text */
function checkedText(text) {
  if (!text.trim()) throw new NotebookError("The text is empty.");
  refuseLonger("text", text, LIMITS.text);
  return text;
}

/** @param {string[]} tags @returns each once, in alphabetical order */
function checkedTags(tags) {
  for (const tag of tags) {
    refuseLonger("tag", tag, LIMITS.tag);
    if (!new RegExp(TAG).test(tag))
      throw new NotebookError(`${quoted(tag)} is no tag: a tag is lower-case letters, digits and hyphens.`);
  }
  const distinct = [...new Set(tags)].sort();
  if (distinct.length > LIMITS.tags)
    throw new NotebookError(`A note has at most ${LIMITS.tags} tags; this would be ${distinct.length}.`);
  return distinct;
}

/** @param {string} what @param {string} value @param {number} most */
function refuseLonger(what, value, most) {
  const length = [...value].length;
  if (length > most) throw new NotebookError(`The ${what} is too long: ${length} characters, at most ${most}.`);
}

/** @param {Note} note */
function copy(note) {
  return { ...note, tags: [...note.tags] };
}

/** @param {Note} note @returns {Entry} */
function entry({ id, title, tags, text }) {
  return { id, title, tags: [...tags], words: words(text) };
}

/** @param {string} text */
function words(text) {
  return text.split(/\s+/u).filter(Boolean).length;
}

/** @param {string} text */
function fold(text) {
  return text.normalize("NFC").toLowerCase();
}

/** @param {string} text */
export function quoted(text) {
  const characters = [...text];
  return JSON.stringify(characters.length > 60 ? `${characters.slice(0, 60).join("")}…` : text);
}

/** @param {string[]} items */
function some(items) {
  if (items.length <= SHOWN) return items.join(", ") || "none";
  return `${items.slice(0, SHOWN).join(", ")} and ${items.length - SHOWN} more`;
}
