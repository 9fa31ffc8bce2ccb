// The shared countdown, on clocks that the test moves.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Cooldown } from "../tidegate-js/tidegate.js";

/** Two clocks and the timers; `pass` lets both run, `jump` moves one without any timer firing. */
class TestClock {
  constructor() {
    this.mono = 1_000;
    this.wall = 1_700_000_000_000;
    this.timers = new Map();
    this.next = 1;
  }
  monotonicMs() {
    return this.mono;
  }
  wallMs() {
    return this.wall;
  }
  setTimeout(callback, delayMs) {
    this.timers.set(this.next, { at: this.mono + delayMs, callback });
    return this.next++;
  }
  clearTimeout(id) {
    this.timers.delete(id);
  }
  pass(ms) {
    const end = this.mono + ms;
    for (;;) {
      const due = [...this.timers].filter(([, { at }]) => at <= end).sort(([, a], [, b]) => a.at - b.at)[0];
      if (due === undefined) break;
      const [id, { at, callback }] = due;
      this.timers.delete(id);
      this.advance(at - this.mono);
      callback();
    }
    this.advance(end - this.mono);
  }
  advance(ms) {
    this.mono += ms;
    this.wall += ms;
  }
}

function watched(options = {}) {
  const clock = new TestClock();
  const cooldown = new Cooldown({ clock, ...options });
  const seen = [];
  for (const type of ["hold", "tick", "open"]) {
    cooldown.addEventListener(type, ({ detail }) => seen.push([type, detail.remainingSeconds]));
  }
  return { clock, cooldown, seen };
}

test("counts whole seconds down and opens exactly once", () => {
  const { clock, cooldown, seen } = watched();
  cooldown.hold(2_500, { reason: "queue_full" });
  assert.equal(cooldown.isOpen, false);
  clock.pass(10_000);
  cooldown.look();
  cooldown.look();
  assert.deepEqual(seen, [["hold", 3], ["tick", 2], ["tick", 1], ["open", 0]]);
  assert.equal(cooldown.isOpen, true);
  assert.equal(clock.timers.size, 0);
});

test("never opens early, even when a timer does", () => {
  const { clock, cooldown } = watched();
  cooldown.hold(1_000);
  clock.advance(989);
  cooldown.look();
  assert.equal(cooldown.isOpen, false);
  clock.advance(11);
  assert.equal(cooldown.isOpen, true);
});

test("a longer wait replaces, a shorter or absurd one changes nothing", () => {
  const { cooldown } = watched();
  assert.equal(cooldown.hold(10_000), true);
  for (const wait of [5_000, 0, -1, NaN, Infinity, undefined]) assert.equal(cooldown.hold(wait), false);
  assert.equal(cooldown.hold(60_000), true);
  assert.equal(cooldown.state.remainingSeconds, 60);
});

test("a sleeping laptop: the wall clock ran, the monotonic one stood still, no timer fired", () => {
  const { clock, cooldown, seen } = watched();
  cooldown.hold(60_000);
  clock.wall += 120_000;
  cooldown.look();
  assert.equal(cooldown.isOpen, true);
  assert.deepEqual(seen.map(([type]) => type), ["hold", "open"]);
});

test("a wall clock set back or far forward: the first adds nothing, the second opens", () => {
  const { clock, cooldown } = watched();
  cooldown.hold(5_000);
  clock.wall -= 3_600_000;
  clock.pass(5_001);
  assert.equal(cooldown.isOpen, true);
});

/** The news arrives by the channel, when the machine gets to it. */
async function heldIn({ cooldown }) {
  while (cooldown.remainingMs === 0) await new Promise((resolve) => setTimeout(resolve, 5));
}

test("tabs with one name agree, a tab that comes later too; others do not hear", async () => {
  const name = `tabs-${process.pid}`;
  const first = watched({ name });
  const second = watched({ name });
  const stranger = watched({ name: `${name}-other` });
  first.cooldown.hold(30_000, { reason: "queue_full" });
  await heldIn(second);
  assert.equal(second.cooldown.state.remainingSeconds, 30);
  assert.equal(second.cooldown.state.info.isFromOtherTab, true);
  assert.equal(second.cooldown.state.info.reason, "queue_full");
  const late = watched({ name });
  await heldIn(late);
  assert.equal(late.cooldown.isOpen, false);
  assert.equal(stranger.cooldown.isOpen, true);
  for (const { cooldown } of [first, second, stranger, late]) cooldown.dispose();
});

test("after dispose a refusal that was under way is kept, and disturbs nobody", () => {
  const { clock, cooldown } = watched({ name: `disposed-${process.pid}` });
  cooldown.dispose();
  cooldown.hold(3_000);
  assert.equal(cooldown.remainingMs, 3_000);
  assert.equal(clock.timers.size, 0);
  clock.advance(3_001);
  assert.equal(cooldown.isOpen, true);
});

test("what is no plain data stays in this tab; the wait itself is told", async () => {
  const name = `functions-${process.pid}`;
  const [first, second] = [watched({ name }), watched({ name })];
  first.cooldown.hold(30_000, { reason: "queue_full", retry: () => {} });
  await heldIn(second);
  assert.deepEqual(second.cooldown.state.info, { isFromOtherTab: true });
  assert.equal(first.cooldown.state.info.reason, "queue_full");
  for (const { cooldown } of [first, second]) cooldown.dispose();
});

test("a reload goes on with the wait; damaged or full storage does no harm", () => {
  const kept = new Map();
  const storage = {
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => kept.set(key, value),
    removeItem: (key) => kept.delete(key),
  };
  const before = watched({ storage });
  before.cooldown.hold(20_000, { reason: "queue_full" });
  const after = new Cooldown({ clock: before.clock, storage });
  assert.equal(after.state.remainingSeconds, 20);
  assert.equal(after.state.info.reason, "queue_full");
  after.dispose();
  before.clock.pass(20_001);
  assert.equal(kept.size, 0);
  for (const text of ["{", "[]", '"x"', '{"waitMs": "soon"}', '{"waitMs": 1e99, "atMs": null}']) {
    const cooldown = new Cooldown({ clock: new TestClock(), storage: { ...storage, getItem: () => text } });
    assert.equal(typeof cooldown.isOpen, "boolean", text);
    cooldown.dispose();
  }
  const full = () => {
    throw new Error("full");
  };
  const brave = new Cooldown({ clock: new TestClock(), storage: { getItem: full, setItem: full, removeItem: full } });
  assert.equal(brave.hold(1_000), true);
  brave.dispose();
});
