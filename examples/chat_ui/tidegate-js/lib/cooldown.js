// One countdown that every part of a page, and every tab of a site, agrees on.
//
// Law of this file: the deadline is absolute and only ever moves later; ticks are for showing, never
// for counting. Two clocks are read: the monotonic one, which some systems stop during sleep, and
// the wall clock, which somebody may set back. Whichever has advanced further tells how much time has
// passed, so a sleeping laptop and a hidden tab are right at once and a clock set back changes nothing.
// `open` is fired exactly once per hold, however many events say that time is up.

/** Reads both clocks; tests pass their own. */
export const systemClock = {
  monotonicMs: () => performance.now(),
  wallMs: () => Date.now(),
  setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
  clearTimeout: (timer) => clearTimeout(timer),
};

class CooldownEvent extends Event {
  constructor(type, detail) {
    super(type);
    this.detail = detail;
  }
}

/**
 * The time before which nothing should be sent.
 *
 * Events, each with `event.detail` holding a snapshot: `hold` (a wait began or became longer), `tick`
 * (the whole seconds shown have changed), `open` (the wait is over; once per hold).
 */
export class Cooldown extends EventTarget {
  #clock;
  #channel = null;
  #storage;
  #key;
  #timer = null;
  #held = null; // {monotonicMs, wallMs, waitMs, info} or null when open
  #shownSeconds = 0;
  #listeners = [];
  #isDisposed = false;

  /**
   * @param {object} [options]
   * @param {string} [options.name] tabs whose cooldowns share a name agree; empty: this tab alone
   * @param {Storage} [options.storage] survives a reload, e.g. sessionStorage
   * @param {typeof systemClock} [options.clock]
   * @param {boolean} [options.watchPage] look at once when the page is shown again (default: where there is one)
   */
  constructor({ name = "", storage, clock = systemClock, watchPage = typeof document !== "undefined" } = {}) {
    super();
    this.#clock = clock;
    this.#storage = storage;
    this.#key = `tidegate:${name}`;
    if (name && typeof BroadcastChannel === "function") this.#join();
    if (watchPage) this.#watch();
    this.#restore();
  }

  /** Milliseconds still to wait, 0 when open. */
  get remainingMs() {
    const held = this.#held;
    if (held === null) return 0;
    const elapsedMs = Math.max(
      this.#clock.monotonicMs() - held.monotonicMs,
      this.#clock.wallMs() - held.wallMs,
    );
    return Math.max(0, held.waitMs - Math.max(0, elapsedMs));
  }

  /** Whether something may be sent now. Looks at the clock, so it is right between two ticks. */
  get isOpen() {
    this.look();
    return this.#held === null;
  }

  /** @returns {import("../tidegate.js").CooldownState} */
  get state() {
    const remainingMs = this.remainingMs;
    return {
      isOpen: this.#held === null,
      remainingMs,
      remainingSeconds: Math.ceil(remainingMs / 1_000),
      totalMs: this.#held?.waitMs ?? 0,
      until: this.#held === null ? null : new Date(this.#clock.wallMs() + remainingMs),
      info: this.#held?.info ?? null,
    };
  }

  /**
   * Nothing is to be sent for so long. A shorter wait than the present one changes nothing.
   * @param {number} waitMs
   * @param {object} [info] plain data shown with the wait: reason, message, isGuess
   * @returns {boolean} whether the deadline has moved
   */
  hold(waitMs, info = {}) {
    return this.#hold(waitMs, info, true);
  }

  /** Compares with the clock now; called by every timer and whenever the page is shown again. */
  look() {
    if (this.#held === null) return;
    this.#clock.clearTimeout(this.#timer);
    const remainingMs = this.remainingMs;
    if (remainingMs <= 0) {
      const before = this.state;
      this.#held = null;
      this.#save();
      this.dispatchEvent(new CooldownEvent("open", { ...this.state, info: before.info }));
      return;
    }
    this.#arm(remainingMs);
    const seconds = Math.ceil(remainingMs / 1_000);
    if (seconds !== this.#shownSeconds) {
      this.#shownSeconds = seconds;
      this.dispatchEvent(new CooldownEvent("tick", this.state));
    }
  }

  /** Ends timers, listeners and the channel. A refusal that arrives afterwards is kept, and told to nobody. */
  dispose() {
    this.#isDisposed = true;
    this.#clock.clearTimeout(this.#timer);
    this.#channel?.close();
    this.#channel = null;
    for (const [target, type, listener] of this.#listeners) target.removeEventListener(type, listener);
    this.#listeners = [];
  }

  #hold(waitMs, info, isOwn) {
    if (!(Number.isFinite(waitMs) && waitMs > 0) || waitMs <= this.remainingMs) return false;
    this.#held = { monotonicMs: this.#clock.monotonicMs(), wallMs: this.#clock.wallMs(), waitMs, info };
    this.#shownSeconds = Math.ceil(waitMs / 1_000);
    this.#arm(waitMs);
    this.#save();
    if (isOwn) this.#tell();
    this.dispatchEvent(new CooldownEvent("hold", this.state));
    return true;
  }

  /** The next look: when the shown second changes. A timer that fires early finds time left and looks again. */
  #arm(remainingMs) {
    this.#clock.clearTimeout(this.#timer);
    if (this.#isDisposed) return;
    const delayMs = (remainingMs % 1_000 || 1_000) + 1;
    this.#timer = this.#clock.setTimeout(() => this.look(), delayMs);
  }

  #join() {
    this.#channel = new BroadcastChannel(this.#key);
    this.#channel.unref?.(); // Node: a listening channel must not keep a process alive
    this.#channel.onmessage = ({ data }) => {
      if (data?.kind === "hold") this.#adopt(data, { isFromOtherTab: true });
      else if (data?.kind === "hello" && this.#held !== null) this.#tell();
    };
    this.#channel.postMessage({ kind: "hello" });
  }

  #tell() {
    const { remainingMs, info } = this.state;
    const news = { kind: "hold", waitMs: remainingMs, atMs: this.#clock.wallMs() };
    try {
      this.#channel?.postMessage({ ...news, info });
    } catch {
      this.#channel?.postMessage(news); // what is no plain data stays in this tab
    }
  }

  /** A wait from elsewhere has already run for a while; half a second is noise, not news. */
  #adopt({ waitMs, atMs, info }, origin) {
    const leftMs = waitMs - Math.max(0, this.#clock.wallMs() - atMs);
    if (leftMs > this.remainingMs + 500) this.#hold(leftMs, { ...info, ...origin }, false);
  }

  #watch() {
    const look = () => this.look();
    for (const [target, type] of [[document, "visibilitychange"], [window, "focus"], [window, "pageshow"]]) {
      target.addEventListener(type, look);
      this.#listeners.push([target, type, look]);
    }
  }

  #save() {
    try {
      if (this.#held === null) this.#storage?.removeItem(this.#key);
      else {
        const { waitMs, wallMs, info } = this.#held;
        this.#storage?.setItem(this.#key, JSON.stringify({ waitMs, atMs: wallMs, info }));
      }
    } catch {
      // A full or forbidden storage costs the countdown its memory of a reload, nothing else.
    }
  }

  #restore() {
    try {
      const saved = JSON.parse(this.#storage?.getItem(this.#key) ?? "null");
      if (saved !== null) this.#adopt(saved, {});
    } catch {
      // Not ours, or damaged: begin open.
    }
  }
}
