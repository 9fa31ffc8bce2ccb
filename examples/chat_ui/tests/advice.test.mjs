// Reading answers: the table of wire cases that the Python halves run too, and what only a page meets.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { parseAdvice, parseDuration, parseHttpDate } from "../tidegate-js/tidegate.js";

const table = JSON.parse(readFileSync(new URL("../../../tests/wire_cases.json", import.meta.url), "utf8"));
const nowMs = table.wall_now * 1_000;

for (const { name, status, headers, body, quota, advice } of table.cases) {
  test(`wire case: ${name}`, () => {
    const read = parseAdvice({ status, headers, body, nowMs });
    if (advice.wait_s === null) assert.equal(read.waitMs, null);
    else assert.ok(Math.abs(read.waitMs - advice.wait_s * 1_000) < 1e-3, `${read.waitMs} ms`);
    assert.equal(read.source ?? "none", advice.source);
    if (advice.should_retry === false || quota === true) assert.equal(read.mayRetry, false);
  });
}

test("headers may be a Headers, pairs or an object, in any case", () => {
  const pairs = [["RETRY-AFTER", "7"]];
  const forms = [new Headers(pairs), pairs, new Map(pairs), new Set(pairs), pairs.values(), { "Retry-After": "7" }];
  for (const headers of forms) assert.equal(parseAdvice({ status: 429, headers }).waitMs, 7_000);
});

test("the body is read last, in every dialect", () => {
  const bodies = [
    ['{"error": {"retry_after": 3, "reason": "queue_full", "scope": "class"}}', 3_000, "queue_full"],
    ['{"type": "error", "error": {"type": "rate_limit_error", "retry_after_ms": 250}}', 250, "rate_limit_error"],
    ['{"title": "Too many requests", "retry_after": "2.5", "reason": "too_early"}', 2_500, "too_early"],
    ['{"error": {"code": 429, "details": [{}, {"retryDelay": "53s"}]}}', 53_000, null],
    ["<html>", null, null],
    ["[1]", null, null],
    ["null", null, null],
    ['{"error": {"retry_after": -4}}', null, null],
    ['{"error": {"retry_after": "soon"}}', null, null],
  ];
  for (const [body, waitMs, reason] of bodies) {
    const read = parseAdvice({ status: 429, body });
    assert.deepEqual([read.waitMs, read.reason], [waitMs, reason], body);
  }
  assert.equal(parseAdvice({ status: 429, headers: { "retry-after": "1" }, body: bodies[0][0] }).waitMs, 1_000);
});

test("what waiting does not help is not retried", () => {
  const quota = { error: { code: "insufficient_quota", retry_after: 5 } };
  assert.equal(parseAdvice({ status: 429, body: quota }).mayRetry, false);
  assert.equal(parseAdvice({ status: 429, headers: { "X-Should-Retry": "FALSE" } }).mayRetry, false);
  assert.equal(parseAdvice({ status: 400, headers: { "Retry-After": "5" } }).mayRetry, false);
  assert.equal(parseAdvice({ status: 503 }).mayRetry, true);
});

test("a two-digit year means the nearest century", () => {
  const text = (year) => `Sunday, 06-Nov-${year} 08:49:37 GMT`;
  const year = (word) => new Date(parseHttpDate(text(word), Date.UTC(2026, 0))).getUTCFullYear();
  assert.deepEqual(["26", "75", "77", "94"].map(year), [2026, 2075, 1977, 1994]);
});

test("impossible dates and durations are nothing", () => {
  const dates = ["Sun, 31 Feb 2026 10:00:00 GMT", "Sun, 06 Nov 2026 25:00:00 GMT", "Sun, 06 nov 2026 10:00:00 GMT", ""];
  for (const text of dates) assert.equal(parseHttpDate(text, nowMs), null, text);
  for (const text of ["", "s", "1", "1x", "-1s", "1 s", "١s"]) assert.equal(parseDuration(text), null, text);
  assert.equal(parseDuration("1h2m3.5s"), 3_723_500);
  assert.equal(parseDuration("12ms"), 12);
});

test("junk never throws and never gives a wait that is not a finite number above zero", () => {
  let seed = 7;
  const draw = (limit) => (seed = (seed * 48_271) % 2_147_483_647) % limit;
  const pieces = ['"a"', ";", "r=0", "t=", "-", "9", "1e9", ":", ",", " ", "Sun", "GMT", "٣", "\\", "{", "=", "ms", "²", '"'];
  const names = ["retry-after", "retry-after-ms", "ratelimit", "x-ratelimit-reset", "date", "age", "ratelimit-reset"];
  for (let round = 0; round < 4_000; round += 1) {
    const text = () => Array.from({ length: draw(9) }, () => pieces[draw(pieces.length)]).join("");
    const headers = Array.from({ length: 1 + draw(3) }, () => [names[draw(names.length)], text()]);
    const { waitMs } = parseAdvice({ status: 429, headers, body: text(), nowMs });
    assert.ok(waitMs === null || (Number.isFinite(waitMs) && waitMs > 0), JSON.stringify(headers));
  }
  for (const headers of [null, undefined, [], [[]], [null], {}, { "retry-after": null }, 5]) {
    assert.equal(parseAdvice({ status: 429, headers, body: undefined, nowMs }).waitMs, null);
  }
});
