// What an answer advises: how long to wait, why, and whether waiting helps at all.
//
// Law of this file: total and pure. Told the status, the headers, the body and the time, it answers
// with a value and never throws. Precedence: retry-after-ms, Retry-After, the RateLimit field and its
// drafts, vendor resets of exhausted limits, then the body. A named wait of zero, a date that has
// passed and anything malformed count as no advice, never as "at once".

import { parseDecimal, parseDuration, parseHttpDate, parseTimestamp } from "./durations.js";
import { parseDictionary, parseList } from "./structured.js";

/** Beyond this a wait is not shown as a countdown: 24 hours. */
export const MAX_BELIEVABLE_WAIT_MS = 86_400_000;

const YEAR_MS = 31_557_600_000;
const EXPOSED = [
  "retry-after-ms", "retry-after", "x-should-retry", "date", "age",
  "ratelimit", "ratelimit-remaining", "ratelimit-reset",
  "x-ratelimit-remaining", "x-ratelimit-reset",
  "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests",
  "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
  "anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset",
  "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset",
  "anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset",
  "anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset",
];

/** Lines of one name are joined with ", ", as Headers does and RFC 9110 section 5.3 allows. */
function collect(headers) {
  const found = new Map();
  const add = (name, value) => {
    const key = String(name).toLowerCase();
    if (!EXPOSED.includes(key)) return;
    const text = String(value).trim();
    found.set(key, found.has(key) ? `${found.get(key)}, ${text}` : text);
  };
  if (headers == null) return found;
  if (Array.isArray(headers)) for (const pair of headers) add(pair[0], pair[1]);
  else if (typeof headers.forEach === "function") headers.forEach((value, name) => add(name, value));
  else for (const [name, value] of Object.entries(headers)) add(name, value);
  return found;
}

/** The server's idea of now: its Date, unless a cache has held the answer. */
function serverNowMs(headers, nowMs) {
  if ((parseDecimal(headers.get("age") ?? "") ?? 0) > 0) return nowMs;
  return parseHttpDate(headers.get("date") ?? "", nowMs) ?? nowMs;
}

function positive(valueMs) {
  return valueMs !== null && valueMs > 0 ? valueMs : null;
}

function fromRetryAfterMs(headers) {
  return positive(parseDecimal(headers.get("retry-after-ms") ?? ""));
}

function fromRetryAfter(headers, nowMs) {
  const text = headers.get("retry-after") ?? "";
  const at = parseHttpDate(text, nowMs);
  if (at !== null) return positive(at - serverNowMs(headers, nowMs));
  const members = text.split(",").map((member) => parseDecimal(member.trim()));
  if (members.includes(null)) return null;
  return positive(Math.max(...members) * 1_000); // joined duplicates: the most careful one
}

function isCount(value) {
  return typeof value === "number" && value >= 0;
}

/** The longest `t` among policies with nothing left; a policy without `r` breaks the field. */
function fromRateLimit(headers) {
  const text = headers.get("ratelimit");
  if (!text || (parseDecimal(headers.get("age") ?? "") ?? 0) > 0) return null;
  const items = parseList(text);
  if (items !== null && items.length > 0 && items.every((item) => typeof item.name === "string")) {
    if (!items.every((item) => isCount(item.parameters.get("r")))) return null;
    const waits = items
      .filter((item) => item.parameters.get("r") === 0 && isCount(item.parameters.get("t")))
      .map((item) => item.parameters.get("t"));
    return waits.length > 0 ? positive(Math.max(...waits) * 1_000) : null;
  }
  const legacy = parseDictionary(text);
  if (legacy === null || !isCount(legacy.get("reset"))) return null;
  return (legacy.get("remaining") ?? 0) === 0 ? positive(legacy.get("reset") * 1_000) : null;
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

const VENDOR_LIMITS = [
  ["ratelimit-remaining", "ratelimit-reset"],
  ["x-ratelimit-remaining", "x-ratelimit-reset"],
  ...["requests", "tokens"].map((unit) => [`x-ratelimit-remaining-${unit}`, `x-ratelimit-reset-${unit}`]),
  ...["requests", "tokens", "input-tokens", "output-tokens"].map((unit) => [
    `anthropic-ratelimit-${unit}-remaining`,
    `anthropic-ratelimit-${unit}-reset`,
  ]),
];

function fromVendorResets(headers, nowMs) {
  let longest = null;
  for (const [remaining, reset] of VENDOR_LIMITS) {
    const left = headers.get(remaining);
    if (!headers.has(reset) || (left !== undefined && parseDecimal(left) !== 0)) continue;
    const waitMs = positive(resetMs(headers.get(reset), headers, nowMs));
    if (waitMs !== null) longest = Math.max(longest ?? 0, waitMs);
  }
  return longest;
}

function fromBody(error) {
  for (const [name, unitMs] of [["retry_after_ms", 1], ["retry_after", 1_000]]) {
    const value = error[name];
    const number = typeof value === "string" ? parseDecimal(value.trim()) : value;
    if (typeof number === "number" && Number.isFinite(number) && number > 0) return number * unitMs;
  }
  const details = Array.isArray(error.details) ? error.details : [];
  const info = details.find((detail) => typeof detail?.retryDelay === "string");
  return info === undefined ? null : positive(parseDuration(info.retryDelay));
}

function text(value) {
  return typeof value === "string" && value !== "" ? value : null;
}

/** The error object of a JSON body in the OpenAI, Anthropic or RFC 9457 dialect; {} for anything else. */
function errorObject(body) {
  let parsed = body;
  if (typeof body === "string") {
    try {
      parsed = JSON.parse(body);
    } catch {
      return {};
    }
  }
  if (parsed === null || typeof parsed !== "object") return {};
  const inner = parsed.error;
  return inner !== null && typeof inner === "object" ? inner : parsed;
}

const EXHAUSTED = new Set(["insufficient_quota", "quota_exhausted", "billing_hard_limit_reached"]);

/**
 * Reads what an answer advises.
 * @param {{status: number, headers?: unknown, body?: unknown, nowMs?: number}} answer
 *   `headers`: a Headers, an array of pairs, or an object; `body`: text or parsed JSON.
 * @returns {import("../tidegate.js").Advice}
 */
export function parseAdvice({ status, headers, body, nowMs = Date.now() }) {
  const found = collect(headers);
  const error = errorObject(body);
  const sources = [
    ["retry-after-ms", () => fromRetryAfterMs(found)],
    ["retry-after", () => fromRetryAfter(found, nowMs)],
    ["ratelimit", () => fromRateLimit(found)],
    ["vendor", () => fromVendorResets(found, nowMs)],
    ["body", () => fromBody(error)],
  ];
  const isRefusal = status === 429 || status === 503 || status === 529;
  let waitMs = null;
  let source = null;
  for (const [name, read] of isRefusal ? sources : []) {
    waitMs = read();
    if (waitMs !== null) {
      source = name;
      break;
    }
  }
  const veto = found.get("x-should-retry")?.toLowerCase() === "false";
  return {
    status,
    waitMs,
    source,
    isRefusal,
    mayRetry: isRefusal && !veto && !EXHAUSTED.has(error.code) && !EXHAUSTED.has(error.type),
    reason: text(error.reason) ?? text(error.code) ?? text(error.type),
    scope: text(error.scope),
    message: text(error.message) ?? text(error.detail) ?? text(error.title),
  };
}
