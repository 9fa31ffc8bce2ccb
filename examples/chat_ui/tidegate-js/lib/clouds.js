// What clouds say of a refusal in its body alone: Google in typed details, OpenRouter in headers it
// encloses, OpenAI and Azure in a sentence.
//
// Law of this file: total, and bounded in what is looked at. Details and headers are data and count as such.
// A sentence is written for people: it is read by a narrow grammar of whole durations, and all it can tell
// is a time.

import { parseDuration } from "./durations.js";

const MOST_ITEMS = 32;
const MOST_CHARS = 4_096;
const OF_A_DAY = /PerDay|Daily/;

const NUMBER = "[0-9]{1,9}(?:\\.[0-9]{1,12})?";
const UNIT = "(?:milliseconds?|ms|seconds?|s|minutes?|m|hours?|h)";
const NEXT = ",? and |, | ";
const PART = new RegExp(`(${NUMBER}) ?(${UNIT})(?![a-z])`, "gi");
const SENTENCE = new RegExp(
  `\\b(?:try again|retry) (?:in|after) ((?:${NUMBER} ?${UNIT}(?:${NEXT})?){1,6})(?!(?:${NEXT})?[0-9]|[a-z])`,
  "gi",
);
const BY_INITIALS_MS = { ms: 1, mil: 1, s: 1e3, sec: 1e3, m: 6e4, min: 6e4, h: 36e5, hou: 36e5 };

/** The objects among the first few members of an array. */
function objects(items) {
  const first = Array.isArray(items) ? items.slice(0, MOST_ITEMS) : [];
  return first.filter((item) => item !== null && typeof item === "object");
}

/**
 * The longest `retryDelay` (google.rpc.RetryInfo) among an error's details, in milliseconds; null without one.
 * @param {unknown} details
 */
export function parseDetails(details) {
  const delays = objects(details).map((detail) => detail.retryDelay);
  const waits = delays.filter((delay) => typeof delay === "string" && delay.length <= 64).map((delay) => parseDuration(delay));
  const longest = Math.max(0, ...waits.filter((wait) => wait !== null));
  return longest > 0 ? longest : null;
}

/**
 * Whether a google.rpc.QuotaFailure names a quota of a day. The `retryDelay` that Google sends along is then
 * still one of seconds, after which nothing has changed.
 * @param {unknown} details
 */
export function isDailyQuota(details) {
  const violations = objects(details).flatMap((detail) => objects(detail.violations));
  return violations.some(({ quotaId }) => typeof quotaId === "string" && OF_A_DAY.test(quotaId.slice(0, MOST_CHARS)));
}

/**
 * The headers of another server's answer that an error's metadata enclose, as OpenRouter's do, in pairs.
 * @param {unknown} metadata
 */
export function enclosedHeaders(metadata) {
  const headers = metadata?.headers;
  if (headers === null || typeof headers !== "object") return [];
  return Object.entries(headers).slice(0, MOST_ITEMS).filter(([, value]) => typeof value === "string");
}

/**
 * The longest time after which a message asks to come back, in milliseconds; null without one.
 * @param {unknown} message such as `try again in 1m3.5s`, `retry in 47.43s`, `retry after 7 seconds`
 */
export function parseSentence(message) {
  if (typeof message !== "string") return null;
  const waits = Array.from(message.slice(0, MOST_CHARS).matchAll(SENTENCE), ([, duration]) =>
    Array.from(duration.matchAll(PART)).reduce(
      (sum, [, number, unit]) => sum + Number(number) * BY_INITIALS_MS[unit.toLowerCase().slice(0, 3)],
      0,
    ),
  );
  const longest = Math.max(0, ...waits);
  return longest > 0 ? longest : null;
}
