/** What an answer advises. Times are milliseconds. */
export interface Advice {
  status: number;
  /** How long to wait; null when the answer names no usable wait. */
  waitMs: number | null;
  /** The header (lower case) the wait came from, or `body`, or `message`: the body's sentence for people. */
  source: string | null;
  /** 429, 503 or 529. */
  isRefusal: boolean;
  /** False when waiting does not help: an exhausted quota, or the server's own veto. */
  mayRetry: boolean;
  /** Machine-readable, e.g. `queue_full`. */
  reason: string | null;
  scope: string | null;
  message: string | null;
}

export interface AnswerParts {
  status: number;
  headers?: Headers | Iterable<[string, string]> | Record<string, string> | null;
  body?: unknown;
  /** Epoch milliseconds, default `Date.now()`. */
  nowMs?: number;
}

export const MAX_BELIEVABLE_WAIT_MS: number;
export function parseAdvice(answer: AnswerParts): Advice;
/** Epoch milliseconds of an HTTP date in any of its three forms. */
export function parseHttpDate(text: string, nowMs: number): number | null;
/** Milliseconds of `6m0s`, `500ms`, `53s`. */
export function parseDuration(text: string): number | null;

export interface Clock {
  monotonicMs(): number;
  wallMs(): number;
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(timer: unknown): void;
}
export const systemClock: Clock;

/** Plain data that travels with a wait, to other tabs too. */
export interface WaitInfo {
  reason?: string | null;
  message?: string | null;
  isGuess?: boolean;
  isFromOtherTab?: boolean;
  [key: string]: unknown;
}

export interface CooldownState {
  isOpen: boolean;
  remainingMs: number;
  remainingSeconds: number;
  totalMs: number;
  until: Date | null;
  info: WaitInfo | null;
}

export interface CooldownEvent extends Event {
  readonly detail: CooldownState;
}

export interface CooldownOptions {
  /** Tabs whose cooldowns share a name agree; empty: this tab alone. */
  name?: string;
  /** Survives a reload, e.g. `sessionStorage`. */
  storage?: Pick<Storage, "getItem" | "setItem" | "removeItem">;
  clock?: Clock;
  watchPage?: boolean;
}

/** The time before which nothing should be sent; fires `hold`, `tick` and, once per hold, `open`. */
export class Cooldown extends EventTarget {
  constructor(options?: CooldownOptions);
  readonly remainingMs: number;
  readonly isOpen: boolean;
  readonly state: CooldownState;
  /** Returns whether the deadline has moved; a shorter wait never moves it. */
  hold(waitMs: number, info?: WaitInfo): boolean;
  look(): void;
  dispose(): void;
  addEventListener(
    type: "hold" | "tick" | "open",
    listener: ((event: CooldownEvent) => void) | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
  removeEventListener(
    type: "hold" | "tick" | "open",
    listener: ((event: CooldownEvent) => void) | null,
    options?: boolean | EventListenerOptions,
  ): void;
  removeEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | EventListenerOptions,
  ): void;
}

export interface ServerEvent {
  event: string;
  data: string;
  comment: string;
}
export function readEvents(response: Response): AsyncGenerator<ServerEvent, void, void>;
export interface QueuePlace {
  position: number | null;
  waitSeconds: number | null;
}
export function readQueuePlace(comment: string): QueuePlace | null;

export interface WaitEvent {
  attempt: number;
  maxAttempts: number;
  waitMs: number;
  reason: string | null;
  isGuess: boolean;
}

export interface TidegateOptions {
  /** How often to send at most; 1 (the default) leaves every retry to the person. */
  maxAttempts?: number;
  /** Refusals in a row so far; widens the guess where the server names no wait. */
  refusalsBefore?: number;
  /** A longer wait than this throws at once. */
  maxWaitMs?: number;
  /** Told of every refusal, so that the page and other tabs can show it. */
  cooldown?: Cooldown | null;
  onWait?: (event: WaitEvent) => void;
  uniform?: () => number;
  fetchFunction?: typeof fetch;
}

export function fetchWithTidegate(url: string | URL, init?: RequestInit, options?: TidegateOptions): Promise<Response>;
/** The error for one refusal, for refusals that arrive as an event inside a stream. */
export function refusalOf(advice: Advice, refusals: number, uniform?: () => number): RateLimitedError;
export function fullJitterMs(attempt: number, uniform?: () => number): number;

export class RateLimitedError extends Error {
  constructor(advice: Advice, waitMs: number, refusals: number);
  readonly advice: Advice;
  readonly waitMs: number;
  /** The server named no wait, or more than a day; `waitMs` is ours. */
  readonly isGuess: boolean;
  readonly retryAt: Date;
  /** In a row, this one included. */
  readonly refusals: number;
}
export class RefusedError extends Error {
  constructor(advice: Advice, isHtml: boolean);
  readonly status: number;
  readonly advice: Advice;
  /** A page of some proxy, not of the service. */
  readonly isHtml: boolean;
}
export class UnreachableError extends Error {
  constructor(kind: UnreachableError["kind"], cause?: unknown);
  readonly kind: "offline" | "blocked" | "unreachable";
}
export class BrokenAnswerError extends Error {
  constructor(cause?: unknown);
}
