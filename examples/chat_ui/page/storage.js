// What the page remembers between reloads.
//
// Law of this file: it never throws. A browser that keeps nothing (cookies blocked, a sandboxed frame, a full
// disk) costs the page its memory, not its life; even to name a forbidden storage throws there.

class Kept {
  #name;
  constructor(name) {
    this.#name = name;
  }
  getItem(key) {
    return this.#try((storage) => storage.getItem(key));
  }
  setItem(key, value) {
    this.#try((storage) => storage.setItem(key, value));
  }
  removeItem(key) {
    this.#try((storage) => storage.removeItem(key));
  }
  #try(use) {
    try {
      return use(window[this.#name]);
    } catch {
      return null;
    }
  }
}

/** Kept for this tab. */
export const tabStorage = new Kept("sessionStorage");

/** Kept for the whole site. */
export const siteStorage = new Kept("localStorage");
