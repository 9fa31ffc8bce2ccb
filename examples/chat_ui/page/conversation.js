// One question and its answer over the wire.
//
// Law of this file: no DOM. It tells a view what happens and when the turn is committed: with the
// first piece of the answer. Before that a failure leaves no trace; after it nothing is ever replayed.

import {
  BrokenAnswerError,
  fetchWithTidegate,
  parseAdvice,
  readEvents,
  readQueuePlace,
  refusalOf,
  RefusedError,
} from "./tidegate/tidegate.js";

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A refusal or a failure that came as an event under status 200. */
function eventError(body, refusals) {
  const error = body.error ?? body;
  const isBusy = error.retry_after || /rate_limit|overloaded|server_busy/i.test(`${error.code} ${error.type}`);
  const status = Number(error.status ?? error.code) || (isBusy ? 429 : 500);
  const advice = parseAdvice({ status, body });
  return advice.isRefusal && advice.mayRetry ? refusalOf(advice, refusals) : new RefusedError(advice, false);
}

/** The messages so far, and how the next one is asked. */
export class Conversation {
  #messages = [];
  #refusals = 0;

  /**
   * @param {string} url
   * @param {import("../tidegate-js/tidegate.js").Cooldown} cooldown
   */
  constructor(url, cooldown) {
    this.url = url;
    this.cooldown = cooldown;
  }

  /**
   * Asks, and reports to `view`: `place(place)` while queued, `backendWait(wait)` while the backend
   * waits, `commit()` once with the first piece, `piece(text)` for each piece.
   * @throws the errors of tidegate.js; `BrokenAnswerError` when the answer broke off after `commit`
   */
  async ask(question, view, signal) {
    const messages = [...this.#messages, { role: "user", content: question }];
    const response = await fetchWithTidegate(
      this.url,
      {
        method: "POST",
        headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
        body: JSON.stringify({ messages }),
        signal,
      },
      { cooldown: this.cooldown, refusalsBefore: this.#refusals },
    ).catch((error) => this.#count(error));
    let answer = "";
    const commit = (piece) => {
      if (answer === "") view.commit();
      answer += piece;
      view.piece(piece);
    };
    try {
      await this.#listen(response, view, commit);
    } catch (error) {
      if (answer === "" || signal.aborted) throw error;
      throw error instanceof BrokenAnswerError ? error : new BrokenAnswerError(error);
    } finally {
      if (answer !== "") this.#messages = [...messages, { role: "assistant", content: answer }];
    }
    if (answer === "") view.commit(); // the model had nothing to say
    this.#refusals = 0;
  }

  #count(error) {
    if (error.name === "RateLimitedError") this.#refusals += 1;
    throw error;
  }

  async #listen(response, view, commit) {
    let isWhole = false;
    for await (const { event, data, comment } of readEvents(response)) {
      const place = readQueuePlace(comment);
      if (place !== null) view.place(place);
      if (data === "[DONE]") isWhole = true;
      const body = parseJson(data);
      if (body === null || typeof body !== "object") continue;
      if (event === "wait") view.backendWait(body);
      else if (event === "error" || body.error) throw this.#refused(body);
      const choice = body.choices?.[0];
      const piece = choice?.delta?.content;
      if (typeof piece === "string" && piece !== "") commit(piece);
      if (choice?.finish_reason) isWhole = true;
    }
    if (!isWhole) throw new BrokenAnswerError(new TypeError("the stream ended without its end mark"));
  }

  #refused(body) {
    const error = eventError(body, this.#refusals + 1);
    if (error.name === "RateLimitedError") {
      this.#refusals += 1;
      const { reason, message } = error.advice;
      this.cooldown.hold(error.waitMs, { reason, message, isGuess: error.isGuess });
    }
    return error;
  }
}
