// What an answer advises: how long to wait, why, and whether waiting helps at all.
//
// Law of this file: total and pure. Told the status, the headers, the body and the time, it answers
// with a value and never throws. Precedence: retry-after-ms, Retry-After, the RateLimit field, resets of
// exhausted limits (its older drafts and the vendors'), then the body. A named wait of zero, a date that has
// passed and anything malformed count as no advice, never as "at once".

import { enclosedHeaders, isDailyQuota, parseDetails, parseSentence } from "./clouds.js";
import { HUGE_SECONDS, parseDecimal, parseDuration, parseHttpDate, parseTimestamp } from "./durations.js";
import { parseDictionary, parseList } from "./structured.js";

/** Beyond this a wait is not shown as a countdown: 24 hours. */
export const MAX_BELIEVABLE_WAIT_MS = 86_400_000;

const YEAR_MS = 31_557_600_000;
const MILLISECOND_FIELDS = ["retry-after-ms", "x-ms-retry-after-ms"];
const UNITS = ["requests", "tokens"];
const LIMITS = [
  ["ratelimit-remaining", "ratelimit-reset"],
  ["x-ratelimit-remaining", "x-ratelimit-reset"],
  ["x-ratelimit-remaining", "x-ratelimit-reset-after"],
  ...UNITS.map((unit) => [`x-ratelimit-remaining-${unit}`, `x-ratelimit-reset-${unit}`]),
  ...[...UNITS, "input-tokens", "output-tokens"].map((unit) => [
    `anthropic-ratelimit-${unit}-remaining`,
    `anthropic-ratelimit-${unit}-reset`,
  ]),
];
const READ = new Set([
  ...MILLISECOND_FIELDS,
  ...LIMITS.flat(),
  ...["retry-after", "x-should-retry", "date", "age", "ratelimit"],
]);

/** Lines of one name are joined with ", ", as Headers does and RFC 9110 section 5.3 allows. */
function collect(headers) {
  const found = new Map();
  const add = (name, value) => {
    const key = String(name).toLowerCase();
    if (!READ.has(key)) return;
    const text = String(value).trim();
    found.set(key, found.has(key) ? `${found.get(key)}, ${text}` : text);
  };
  if (headers == null) return found;
  if (typeof headers[Symbol.iterator] === "function") for (const pair of headers) add(pair?.[0], pair?.[1]);
  else if (typeof headers.forEach === "function") headers.forEach((value, name) => add(name, value));
  else for (const [name, value] of Object.entries(headers)) add(name, value);
  return found;
}

function isCached(headers) {
  return (parseDecimal(headers.get("age") ?? "") ?? 0) > 0;
}

/** The server's idea of now: its Date, unless a cache has held the answer. */
function serverNowMs(headers, nowMs) {
  return (isCached(headers) ? null : parseHttpDate(headers.get("date") ?? "", nowMs)) ?? nowMs;
}

/** A wait and the field it came from; null unless it lies in the future. */
function wait(waitMs, source) {
  return waitMs !== null && waitMs > 0 ? { waitMs: Math.min(waitMs, HUGE_SECONDS * 1_000), source } : null;
}

/** The longest of comma-joined figures: where duplicates differ, the most careful one. */
function longest(text) {
  const members = (text ?? "").split(",").map((member) => parseDecimal(member.trim()));
  return members.includes(null) ? null : Math.max(...members);
}

function fromRetryAfter(headers, nowMs) {
  for (const name of MILLISECOND_FIELDS) {
    const found = wait(longest(headers.get(name)), name);
    if (found !== null) return found;
  }
  const text = headers.get("retry-after") ?? "";
  const at = parseHttpDate(text, nowMs);
  if (at !== null) return wait(at - serverNowMs(headers, nowMs), "retry-after");
  const seconds = longest(text);
  return wait(seconds === null ? null : seconds * 1_000, "retry-after");
}

function isCount(value) {
  return typeof value === "number" && value >= 0;
}

/** The longest `t` among policies with nothing left; an item without `r` breaks the whole field. */
function fromRateLimit(headers) {
  const text = headers.get("ratelimit");
  if (!text || isCached(headers)) return null;
  const items = parseList(text);
  if (items !== null && items.length > 0 && items.every((item) => typeof item.name === "string")) {
    if (!items.every((item) => isCount(item.parameters.get("r")))) return null;
    const waits = items
      .filter((item) => item.parameters.get("r") === 0 && isCount(item.parameters.get("t")))
      .map((item) => item.parameters.get("t"));
    return waits.length > 0 ? wait(Math.max(...waits) * 1_000, "ratelimit") : null;
  }
  const legacy = parseDictionary(text);
  if (legacy === null || !isCount(legacy.get("reset")) || (legacy.get("remaining") ?? 0) !== 0) return null;
  return wait(legacy.get("reset") * 1_000, "ratelimit");
}

/** A bare reset is seconds from now, or an epoch in seconds, milliseconds, micro- or nanoseconds. */
function resetMs(text, headers, nowMs) {
  const number = parseDecimal(text);
  if (number === null) {
    const at = parseTimestamp(text) ?? parseHttpDate(text, nowMs);
    return at === null ? parseDuration(text) : at - serverNowMs(headers, nowMs);
  }
  if (number < 1e6) return number * 1_000;
  const scale = [[1e11, 1e3], [1e14, 1], [1e17, 1e-3], [Infinity, 1e-6]].find(([below]) => number < below)[1];
  const waitMs = number * scale - serverNowMs(headers, nowMs);
  return waitMs <= YEAR_MS ? waitMs : null;
}

/** The longest reset among limits with nothing left; one with some left has not bitten. */
function fromResets(headers, nowMs) {
  let best = null;
  for (const [remaining, reset] of isCached(headers) ? [] : LIMITS) {
    const left = headers.get(remaining);
    if (!headers.has(reset) || (left !== undefined && parseDecimal(left) !== 0)) continue;
    const found = wait(resetMs(headers.get(reset), headers, nowMs), reset);
    if (found !== null && found.waitMs > (best?.waitMs ?? 0)) best = found;
  }
  return best;
}

/** What a set of header fields advises, the surest first. */
function fromHeaders(headers, nowMs) {
  return fromRetryAfter(headers, nowMs) ?? fromRateLimit(headers) ?? fromResets(headers, nowMs);
}

function fromBody(error, headers, nowMs) {
  for (const [name, unitMs] of [["retry_after_ms", 1], ["retry_after", 1_000]]) {
    const value = error[name];
    const number = typeof value === "string" ? parseDecimal(value.trim()) : value;
    if (typeof number === "number" && Number.isFinite(number) && number > 0) return wait(number * unitMs, "body");
  }
  const detailsMs = parseDetails(error.details);
  const sentenceMs = parseSentence(error.message);
  // Google cuts the fraction off in the details and says it in the sentence.
  if (detailsMs !== null) return wait(Math.max(detailsMs, sentenceMs ?? 0), "body");
  const clock = [["date", headers.get("date") ?? ""]];
  const enclosed = fromHeaders(collect([...clock, ...enclosedHeaders(error.metadata)]), nowMs);
  return enclosed === null ? wait(sentenceMs, "message") : wait(enclosed.waitMs, "body");
}

function text(value) {
  return typeof value === "string" && value !== "" ? value : null;
}

/** The error object of a JSON body in any of the dialects, alone or in an array; {} for anything else. */
function errorObject(body) {
  let parsed = body;
  if (typeof body === "string") {
    try {
      parsed = JSON.parse(body);
    } catch {
      return {};
    }
  }
  if (Array.isArray(parsed) && parsed.length === 1) [parsed] = parsed; // Google, where a stream was asked for
  if (parsed === null || typeof parsed !== "object") return {};
  const inner = parsed.error;
  if (typeof inner === "string") return { message: inner, type: parsed.error_type };
  return inner !== null && typeof inner === "object" ? inner : parsed;
}

const EXHAUSTED = new Set(["insufficient_quota", "quota_exhausted", "quota_exceeded", "billing_hard_limit_reached"]);

function isUsedUp(error) {
  const words = [error.code, error.type, error.reason].map((word) => String(word).toLowerCase());
  return words.some((word) => EXHAUSTED.has(word)) || isDailyQuota(error.details);
}

/**
 * Reads what an answer advises.
 * @param {{status: number, headers?: unknown, body?: unknown, nowMs?: number}} answer
 *   `headers`: a Headers, pairs in anything iterable, or an object; `body`: text or parsed JSON.
 * @returns {import("../tidegate.js").Advice}
 */
export function parseAdvice({ status, headers, body, nowMs = Date.now() }) {
  const found = collect(headers);
  const error = errorObject(body);
  const isRefusal = status === 429 || status === 503 || status === 529;
  const advised = fromHeaders(found, nowMs) ?? fromBody(error, found, nowMs);
  const word = found.get("x-should-retry")?.toLowerCase();
  const isFinal = word === "false" || isUsedUp(error);
  return {
    status,
    waitMs: advised?.waitMs ?? null,
    source: advised?.source ?? null,
    isRefusal,
    mayRetry: isRefusal && !isFinal,
    reason: text(error.reason) ?? text(error.code) ?? text(error.type) ?? text(error.status),
    scope: text(error.scope),
    message: text(error.message) ?? text(error.detail) ?? text(error.title),
  };
}
