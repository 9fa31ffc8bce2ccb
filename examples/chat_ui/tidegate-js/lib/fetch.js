// A fetch that understands a busy server.
//
// Law of this file: a request is sent again only when the server refused it before any work (429 or
// 503 with advice it may be retried), never after an answer has begun and never after a lost
// connection. The server's wait is a floor; jitter is added on top and grows with the attempt. A wait
// beyond the caller's limit is an error at once, never a shortened wait. A refusal's body is read for two
// seconds at most.

import { MAX_BELIEVABLE_WAIT_MS, parseAdvice } from "./advice.js";

const MAX_ERROR_BODY_CHARACTERS = 65_536;
const MAX_ERROR_BODY_MS = 2_000;
const BASE_MS = 500;
const CAP_MS = 8_000;
const GUESS_FLOOR_MS = 2_000;
const UNBELIEVABLE_HOLD_MS = 60_000; // what the page waits when the server names days or centuries

/** Whether the wait that was named can be shown to a person as a countdown. */
function isBelievable(advice) {
  return advice.waitMs !== null && advice.waitMs <= MAX_BELIEVABLE_WAIT_MS;
}

/** The server said "not now". `waitMs` is ours (`isGuess`) where it named no wait, or an absurd one. */
export class RateLimitedError extends Error {
  constructor(advice, waitMs, refusals) {
    super(advice.message ?? `the server answered ${advice.status}: try again in ${Math.ceil(waitMs / 1_000)} s`);
    this.name = "RateLimitedError";
    this.advice = advice;
    this.waitMs = waitMs;
    this.isGuess = !isBelievable(advice);
    this.retryAt = new Date(Date.now() + waitMs);
    this.refusals = refusals;
  }
}

/** The server said no and waiting does not help (4xx, 5xx, a permanent refusal). */
export class RefusedError extends Error {
  constructor(advice, isHtml) {
    super(advice.message ?? `the server answered ${advice.status}`);
    this.name = "RefusedError";
    this.status = advice.status;
    this.advice = advice;
    this.isHtml = isHtml; // a page of some proxy, not of the service
  }
}

/** Nothing came back. `kind`: offline (no network), blocked (CORS hides the answer), unreachable. */
export class UnreachableError extends Error {
  constructor(kind, cause) {
    super(`no answer: ${kind}`, { cause });
    this.name = "UnreachableError";
    this.kind = kind;
  }
}

/** The answer broke off after it had begun; what came before is the caller's to keep. */
export class BrokenAnswerError extends Error {
  constructor(cause) {
    super("the answer broke off", { cause });
    this.name = "BrokenAnswerError";
  }
}

/**
 * Full jitter: a random share of a window that doubles with each attempt, capped before the draw.
 * @param {number} attempt counts from 1
 * @param {() => number} [uniform]
 */
export function fullJitterMs(attempt, uniform = Math.random) {
  return uniform() * Math.min(CAP_MS, BASE_MS * 2 ** Math.min(attempt, 30));
}

/**
 * The error for one refusal. Its wait is the named one; with none, full jitter above a floor of two
 * seconds, wider with each refusal in a row; with an absurd one, a minute.
 * @param {import("../tidegate.js").Advice} advice
 * @param {number} refusals in a row, this one included
 * @param {() => number} [uniform]
 */
export function refusalOf(advice, refusals, uniform = Math.random) {
  let waitMs = GUESS_FLOOR_MS + 2 * fullJitterMs(refusals, uniform);
  if (advice.waitMs !== null) waitMs = isBelievable(advice) ? advice.waitMs : UNBELIEVABLE_HOLD_MS;
  return new RateLimitedError(advice, waitMs, refusals);
}

function sleep(waitMs, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, waitMs);
    signal?.addEventListener("abort", stop, { once: true });
    if (signal?.aborted) stop();
  });
}

/**
 * A failed fetch does not say why. An opaque request to the same address still arrives when only CORS
 * stands in the way, and fails when nobody is there.
 */
async function whyUnreachable(url, fetchFunction, signal) {
  if (typeof navigator !== "undefined" && navigator.onLine === false) return "offline";
  if (typeof location === "undefined" || new URL(url, location.href).origin === location.origin) return "unreachable";
  try {
    const late = AbortSignal.timeout(3_000);
    await fetchFunction(url, {
      mode: "no-cors",
      method: "HEAD",
      cache: "no-store",
      credentials: "omit",
      signal: signal && AbortSignal.any ? AbortSignal.any([late, signal]) : late,
    });
    return "blocked";
  } catch {
    return "unreachable";
  }
}

/** The body as far as it comes soon; what never ends is given up. */
async function startOf(response) {
  if (typeof response.body?.getReader !== "function") return response.text();
  const reader = response.body.getReader();
  const end = () => reader.cancel().catch(() => {});
  const late = AbortSignal.timeout?.(MAX_ERROR_BODY_MS); // browsers before 2023 wait for the whole body
  late?.addEventListener("abort", end);
  const decoder = new TextDecoder();
  let text = "";
  try {
    while (text.length < MAX_ERROR_BODY_CHARACTERS) {
      const { value, done } = await reader.read();
      if (done) break;
      text += decoder.decode(value, { stream: true });
    }
  } finally {
    late?.removeEventListener("abort", end);
    end();
  }
  return text;
}

async function explain(response) {
  const type = response.headers.get("content-type") ?? "";
  const isHtml = /\bhtml\b/.test(type);
  let body = "";
  try {
    body = (await startOf(response)).slice(0, MAX_ERROR_BODY_CHARACTERS);
  } catch {
    // The headers alone must do.
  }
  return { advice: parseAdvice({ status: response.status, headers: response.headers, body: isHtml ? "" : body }), isHtml };
}

/**
 * Fetches; on a refusal waits and tries again as far as the options allow.
 *
 * @param {string | URL} url
 * @param {RequestInit} [init] a `body` that can be read once only (a stream) is sent once, whatever `maxAttempts`
 * @param {import("../tidegate.js").TidegateOptions} [options]
 * @returns {Promise<Response>} an answer with an ok status
 * @throws {RateLimitedError | RefusedError | UnreachableError | DOMException}
 */
export async function fetchWithTidegate(url, init = {}, options = {}) {
  const {
    maxAttempts = 1,
    refusalsBefore = 0,
    maxWaitMs = 60_000,
    cooldown = null,
    onWait = () => {},
    uniform = Math.random,
    fetchFunction = globalThis.fetch,
  } = options;
  for (let attempt = 1; ; attempt += 1) {
    let response;
    try {
      response = await fetchFunction(url, init);
    } catch (error) {
      if (init.signal?.aborted) throw error;
      const why = await whyUnreachable(url, fetchFunction, init.signal);
      init.signal?.throwIfAborted();
      throw new UnreachableError(why, error);
    }
    if (response.ok) return response;
    const { advice, isHtml } = await explain(response);
    init.signal?.throwIfAborted();
    if (!advice.isRefusal || !advice.mayRetry || (advice.status === 503 && advice.waitMs === null)) {
      throw new RefusedError(advice, isHtml);
    }
    const refusal = refusalOf(advice, attempt + refusalsBefore, uniform);
    const { waitMs, isGuess } = refusal;
    cooldown?.hold(waitMs, { reason: advice.reason, message: advice.message, isGuess });
    // A sentence says when, but proves no refusal before work: a person may send again, this does not.
    const isProven = advice.status === 429 || advice.source !== "message";
    const isTooLong = (advice.waitMs !== null && isGuess) || waitMs > maxWaitMs;
    if (attempt >= maxAttempts || !isProven || isTooLong || isOneShot(init.body)) throw refusal;
    let pauseMs = waitMs + (isGuess ? 0 : fullJitterMs(attempt, uniform));
    while (pauseMs > 0) {
      onWait({ attempt, maxAttempts, waitMs: pauseMs, reason: advice.reason, isGuess });
      await sleep(pauseMs, init.signal);
      // Another request may have been told to wait longer meanwhile: that holds for this one too.
      const leftMs = cooldown?.remainingMs ?? 0;
      if (leftMs > maxWaitMs) throw new RateLimitedError(advice, leftMs, refusal.refusals);
      pauseMs = leftMs > 0 ? leftMs + fullJitterMs(attempt, uniform) : 0;
    }
  }
}

function isOneShot(body) {
  return typeof body?.getReader === "function" || typeof body?.[Symbol.asyncIterator] === "function";
}
