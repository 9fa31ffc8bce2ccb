// The request: what is retried, how long it waits, what is thrown. A scripted fetch answers.

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import {
  Cooldown,
  fetchWithTidegate,
  fullJitterMs,
  parseAdvice,
  RateLimitedError,
  readEvents,
  readQueuePlace,
  refusalOf,
  RefusedError,
  UnreachableError,
} from "../tidegate-js/tidegate.js";

function scripted(...answers) {
  const asked = [];
  const fetchFunction = async (url, init) => {
    asked.push({ url, init });
    const next = answers.shift();
    if (next instanceof Error) throw next;
    return next;
  };
  return { asked, fetchFunction };
}

const ok = () => new Response("fine");
const busy = (headers = { "Retry-After": "2" }, body = "") => new Response(body, { status: 429, headers });

/** Lets timers run without waiting: each is fired as soon as the code under test has nothing else to do. */
async function onFakeTime(work) {
  mock.timers.enable({ apis: ["setTimeout"] });
  const waits = [];
  const real = globalThis.setTimeout;
  globalThis.setTimeout = (callback, delayMs) => {
    waits.push(delayMs);
    return real(callback, delayMs);
  };
  let isDone = false;
  const done = work().finally(() => (isDone = true));
  done.catch(() => {});
  while (!isDone) {
    mock.timers.tick(1_000_000);
    await new Promise((resolve) => setImmediate(resolve));
  }
  globalThis.setTimeout = real;
  mock.timers.reset();
  return { result: await done, waits };
}

test("a sentence on a 503 tells the time and proves nothing: it is shown, not sent again", async () => {
  const body = '{"error": {"message": "Restarting. Please retry after 5 seconds."}}';
  const { asked, fetchFunction } = scripted(new Response(body, { status: 503 }), ok());
  const error = await fetchWithTidegate("http://x/", {}, { fetchFunction, maxAttempts: 3 }).catch((thrown) => thrown);
  assert.ok(error instanceof RateLimitedError);
  assert.deepEqual([error.waitMs, asked.length], [5_000, 1]);

  const limited = scripted(busy({}, body), ok());
  const { result } = await onFakeTime(() => fetchWithTidegate("http://x/", {}, { ...limited, maxAttempts: 3 }));
  assert.equal(result.ok, true);
});

/** A refusal whose body begins and never ends. */
function endless() {
  const body = new ReadableStream({ start: (stream) => stream.enqueue(new TextEncoder().encode('{"error')) });
  return new Response(body, { status: 429, headers: { "Retry-After": "2" } });
}

test("a refusal whose body never ends is judged by its headers", async () => {
  const alive = setInterval(() => {}, 1_000); // as the connection would keep this process
  const { fetchFunction } = scripted(endless());
  const error = await fetchWithTidegate("http://x/", {}, { fetchFunction }).catch((thrown) => thrown);
  clearInterval(alive);
  assert.ok(error instanceof RateLimitedError);
  assert.equal(error.waitMs, 2_000);
});

test("whoever leaves while a refusal is read has left", async () => {
  const leaving = new AbortController();
  const fetchFunction = async (_url, { signal }) => {
    const body = new ReadableStream({ start: (stream) => signal.addEventListener("abort", () => stream.error(signal.reason)) });
    return new Response(body, { status: 429, headers: { "Retry-After": "2" } });
  };
  const fetching = fetchWithTidegate("http://x/", { signal: leaving.signal }, { fetchFunction });
  setImmediate(() => leaving.abort(new Error("left")));
  await assert.rejects(fetching, /left/);
});

test("a body that can be read once is sent once, and the refusal is told as it is", async () => {
  for (const body of [new ReadableStream(), (async function* () {})()]) {
    const { asked, fetchFunction } = scripted(busy(), ok());
    const init = { method: "POST", body };
    const error = await fetchWithTidegate("http://x/", init, { fetchFunction, maxAttempts: 3 }).catch((thrown) => thrown);
    assert.ok(error instanceof RateLimitedError);
    assert.equal(asked.length, 1);
  }
});

test("a wait of days is never shortened to a guess, whatever the caller allows", async () => {
  const { asked, fetchFunction } = scripted(busy({ "Retry-After": "172800" }), ok());
  const options = { fetchFunction, maxAttempts: 3, maxWaitMs: Infinity };
  const error = await fetchWithTidegate("http://x/", {}, options).catch((thrown) => thrown);
  assert.ok(error instanceof RateLimitedError);
  assert.equal(asked.length, 1);
});

test("what another request is told meanwhile holds for one that waits; beyond its limit it ends", async () => {
  const left = [40_000, 0];
  const cooldown = { hold: () => {}, get remainingMs() { return left.shift(); } };
  const options = { cooldown, maxAttempts: 3, uniform: () => 0.5 };
  const { waits } = await onFakeTime(() => fetchWithTidegate("http://x/", {}, { ...scripted(busy(), ok()), ...options }));
  assert.deepEqual(waits, [2_500, 40_500]);

  left.push(70_000);
  const { result } = await onFakeTime(() =>
    fetchWithTidegate("http://x/", {}, { ...scripted(busy(), ok()), ...options }).catch((thrown) => thrown),
  );
  assert.ok(result instanceof RateLimitedError);
  assert.equal(result.waitMs, 70_000);
});

test("one attempt by default: the refusal is thrown with its time, and the cooldown is held", async () => {
  const { asked, fetchFunction } = scripted(busy({ "Retry-After": "200" }, '{"error": {"reason": "queue_full"}}'));
  const cooldown = new Cooldown();
  const error = await fetchWithTidegate("http://x/", {}, { fetchFunction, cooldown }).catch((thrown) => thrown);
  assert.ok(error instanceof RateLimitedError);
  assert.deepEqual([error.waitMs, error.isGuess, error.advice.reason], [200_000, false, "queue_full"]);
  const leftMs = [error.retryAt.getTime() - Date.now(), cooldown.state.remainingMs]; // less what has passed
  assert.ok(leftMs.every((left) => left > 100_000 && left <= 200_000));
  assert.equal(asked.length, 1);
  cooldown.dispose();
});

test("retries wait at least as long as told, with jitter on top that grows", async () => {
  const { asked, fetchFunction } = scripted(busy(), busy(), ok());
  const events = [];
  const { result, waits } = await onFakeTime(() =>
    fetchWithTidegate(
      "http://x/",
      { method: "POST", body: "{}" },
      { fetchFunction, maxAttempts: 3, uniform: () => 0.5, onWait: (event) => events.push(event) },
    ),
  );
  assert.equal(result.status, 200);
  assert.deepEqual(waits, [2_500, 3_000]);
  assert.deepEqual(events.map(({ attempt, waitMs }) => [attempt, waitMs]), [[1, 2_500], [2, 3_000]]);
  assert.equal(asked.length, 3);
  assert.equal(asked[2].init.body, "{}");
});

test("a wait beyond the limit is thrown at once, never shortened", async () => {
  for (const wait of ["61", "9999999999"]) {
    const { asked, fetchFunction } = scripted(busy({ "Retry-After": wait }), ok());
    await assert.rejects(
      fetchWithTidegate("http://x/", {}, { fetchFunction, maxAttempts: 5, maxWaitMs: 60_000 }),
      RateLimitedError,
    );
    assert.equal(asked.length, 1);
  }
});

test("no time named: a guess between two seconds and eighteen that widens; absurd: a minute", () => {
  const nothing = parseAdvice({ status: 429 });
  assert.equal(refusalOf(nothing, 1, () => 0).waitMs, 2_000);
  assert.equal(refusalOf(nothing, 1, () => 1).waitMs, 4_000);
  assert.equal(refusalOf(nothing, 50, () => 1).waitMs, 18_000);
  const absurd = refusalOf(parseAdvice({ status: 429, headers: { "Retry-After": "9999999999" } }), 1);
  assert.deepEqual([absurd.waitMs, absurd.isGuess], [60_000, true]);
});

test("errors and final refusals are thrown, not retried", async () => {
  const answers = [
    new Response("<h1>Bad Gateway</h1>", { status: 502, headers: { "Content-Type": "text/html" } }),
    new Response("", { status: 503 }),
    busy({ "X-Should-Retry": "false", "Retry-After": "1" }),
    new Response('{"error": {"message": "too long"}}', { status: 400 }),
  ];
  for (const answer of answers) {
    const { asked, fetchFunction } = scripted(answer, ok());
    const error = await fetchWithTidegate("http://x/", {}, { fetchFunction, maxAttempts: 5 }).catch((thrown) => thrown);
    assert.ok(error instanceof RefusedError);
    assert.equal(error.isHtml, answer.status === 502);
    assert.equal(asked.length, 1);
  }
});

test("a lost connection is not retried: the work may have been done", async () => {
  const { asked, fetchFunction } = scripted(new TypeError("fetch failed"), ok());
  const error = await fetchWithTidegate("http://x/", {}, { fetchFunction, maxAttempts: 5 }).catch((thrown) => thrown);
  assert.ok(error instanceof UnreachableError);
  assert.equal(error.kind, "unreachable");
  assert.equal(asked.length, 1);
});

test("an abort ends the wait at once and sends nothing more", async () => {
  const { asked, fetchFunction } = scripted(busy({ "Retry-After": "50" }), ok());
  const controller = new AbortController();
  const pending = fetchWithTidegate("http://x/", { signal: controller.signal }, { fetchFunction, maxAttempts: 2 });
  setTimeout(() => controller.abort(), 20);
  await assert.rejects(pending, { name: "AbortError" });
  assert.equal(asked.length, 1);
});

test("full jitter is spread over its whole window and bounded", () => {
  assert.equal(fullJitterMs(1, () => 0), 0);
  assert.equal(fullJitterMs(1, () => 1), 1_000);
  assert.equal(fullJitterMs(10_000, () => 1), 8_000);
});

test("events arrive one by one, comments too, and a missing end is no event", async () => {
  const text = ": queued position=2 wait_s=3.5\n\ndata: a\n\nevent: wait\ndata: {}\n\ndata: cut off";
  const found = [];
  for await (const event of readEvents(new Response(text))) found.push(event);
  assert.deepEqual(found.map(({ event, data, comment }) => [event, data, comment]), [
    ["message", "", "queued position=2 wait_s=3.5"],
    ["message", "a", ""],
    ["wait", "{}", ""],
  ]);
});

test("the place in line is read from comments, and nothing from others", () => {
  assert.deepEqual(readQueuePlace("queued position=2 wait_s=3.5"), { position: 2, waitSeconds: 3.5 });
  assert.deepEqual(readQueuePlace("queued position=12"), { position: 12, waitSeconds: null });
  for (const comment of ["", "ping", "keep-alive 5", "position=abc"]) assert.equal(readQueuePlace(comment), null);
});
