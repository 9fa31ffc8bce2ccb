// The part of Structured Fields (RFC 9651) that the RateLimit fields use.
//
// Law of this file: a field that does not parse is null as a whole, as the RFC demands; it is never
// half believed. Items are strings or tokens, parameters are integers, strings, tokens or flags; a value of
// any other kind is null, and spoils nothing beside it.

const KEY = /[a-z*][a-z0-9_.*-]*/y;
const TOKEN = /[A-Za-z*][A-Za-z0-9:/!#$%&'*+.^_`|~-]*/y;
const STRING = /"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"/y;
const INTEGER = /-?[0-9]{1,15}(?![0-9.])/y;
const OTHER = /:[A-Za-z0-9+/=]*:|-?[0-9]{1,12}\.[0-9]{1,3}(?![0-9.])|\?[01]|@-?[0-9]{1,15}(?![0-9.])/y;

class Cursor {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }
  take(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found !== null) this.at = pattern.lastIndex;
    return found;
  }
  skip(characters) {
    while (this.at < this.text.length && characters.includes(this.text[this.at])) this.at += 1;
  }
  eat(character) {
    if (this.text[this.at] !== character) return false;
    this.at += 1;
    return true;
  }
  get done() {
    return this.at >= this.text.length;
  }
}

function bareItem(cursor) {
  let found = cursor.take(STRING);
  if (found) return { value: found[1].replace(/\\(["\\])/g, "$1") };
  found = cursor.take(INTEGER);
  if (found) return { value: Number(found[0]) };
  found = cursor.take(TOKEN);
  if (found) return { value: found[0] };
  return cursor.take(OTHER) ? { value: null } : null; // bytes, a decimal, a Boolean, a date
}

function parameters(cursor) {
  const found = new Map();
  while (cursor.eat(";")) {
    cursor.skip(" ");
    const key = cursor.take(KEY);
    if (key === null) return null;
    let value = true;
    if (cursor.eat("=")) {
      const item = bareItem(cursor);
      if (item === null) return null;
      value = item.value;
    }
    found.set(key[0], value);
  }
  return found;
}

function separated(text, readMember) {
  const cursor = new Cursor(text.trim());
  const members = [];
  while (!cursor.done) {
    const member = readMember(cursor);
    if (member === null) return null;
    members.push(member);
    cursor.skip(" \t");
    if (cursor.done) return members;
    if (!cursor.eat(",")) return null;
    cursor.skip(" \t");
    if (cursor.done) return null; // a trailing comma is an error
  }
  return members;
}

/**
 * A list such as `"default";r=0;t=30, "daily";r=7`.
 * @param {string} text
 * @returns {{name: unknown, parameters: Map<string, unknown>}[] | null}
 */
export function parseList(text) {
  return separated(text, (cursor) => {
    const item = bareItem(cursor);
    const found = item === null ? null : parameters(cursor);
    return found === null ? null : { name: item.value, parameters: found };
  });
}

/**
 * A dictionary such as `limit=100, remaining=0, reset=30` (draft 07).
 * @param {string} text
 * @returns {Map<string, unknown> | null}
 */
export function parseDictionary(text) {
  const members = separated(text, (cursor) => {
    const key = cursor.take(KEY);
    if (key === null || !cursor.eat("=")) return null;
    const item = bareItem(cursor);
    return item === null || parameters(cursor) === null ? null : [key[0], item.value];
  });
  return members === null ? null : new Map(members);
}
