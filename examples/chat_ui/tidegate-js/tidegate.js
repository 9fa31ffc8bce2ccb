// Tidegate for browsers: everything a page needs to obey a busy server.
//
// Law of this file: it only names what is public. Reading headers lives in lib/advice.js, times and
// dates in lib/durations.js, the shared countdown in lib/cooldown.js, server-sent events in
// lib/events.js, and the request itself in lib/fetch.js. Nothing here touches the DOM.

export { parseAdvice, MAX_BELIEVABLE_WAIT_MS } from "./lib/advice.js";
export { parseHttpDate, parseDuration } from "./lib/durations.js";
export { Cooldown, systemClock } from "./lib/cooldown.js";
export { readEvents, readQueuePlace } from "./lib/events.js";
export {
  fetchWithTidegate,
  fullJitterMs,
  refusalOf,
  BrokenAnswerError,
  RateLimitedError,
  RefusedError,
  UnreachableError,
} from "./lib/fetch.js";
