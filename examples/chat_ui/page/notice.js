// The card above the message box: why sending must wait, and what can be done.
//
// Law of this file: it shows and announces; it decides nothing. The announcer speaks once per change of
// state, never with the seconds that run down.

import { clockTime, say } from "./text.js";

const byId = (id) => document.getElementById(id);
const card = byId("notice");
const title = byId("notice-title");
const detail = byId("notice-detail");
const clock = byId("clock");
const bar = byId("bar");
const again = byId("again");
const cancel = byId("cancel");
const autoLabel = byId("auto-label");

function sentence(words) {
  return /[.。]$/.test(words) ? words : words + say.fullStop;
}

/** Says something to a screen reader, once. */
export function announce(...sentences) {
  byId("announcer").textContent = sentences.filter(Boolean).map(sentence).join(" ");
}

function show(kind, heading, words, { isTimed = false, canCancel = false, againWords = "" } = {}) {
  card.className = kind;
  title.textContent = heading;
  detail.textContent = words;
  clock.hidden = bar.hidden = autoLabel.hidden = !isTimed;
  cancel.hidden = !canCancel;
  again.hidden = againWords === "";
  again.textContent = againWords;
  card.hidden = false;
}

/** Takes the card away. */
export function hideNotice() {
  card.hidden = true;
}

/** Why the server said no, in the reader's language. */
export function reasonWords(info) {
  const words = [say.reasons[info?.reason] ?? ""];
  if (info?.isFromOtherTab) words.push(say.otherTab);
  if (info?.isGuess) words.push(say.guess);
  return words.filter(Boolean).join(" ");
}

/** A wait has begun or has become longer. */
export function showWait(state, { hasDraft, canCancel }) {
  const words = [reasonWords(state.info), hasDraft ? say.kept : ""].filter(Boolean).join(" ");
  show("wait", say.busyTitle, words, { isTimed: true, canCancel });
  showTime(state);
  announce(say.busyTitle, words, say.waitTitle(spokenTime(state.remainingSeconds)));
}

function spokenTime(seconds) {
  return seconds < 60 ? say.seconds(seconds) : clockTime(seconds);
}

/** The running figure and the bar; silent. */
export function showTime(state) {
  clock.textContent = clockTime(state.remainingSeconds);
  bar.firstElementChild.style.width = `${(100 * state.remainingMs) / Math.max(1, state.totalMs)}%`;
}

/** The wait is over. */
export function showReady(hasDraft) {
  if (!hasDraft) return hideNotice();
  show("ready", say.ready, say.readyDetail);
  return announce(say.ready);
}

/** The request is on its way; `place` and `backendWait` say more when the server does. */
export function showProgress({ place, backendWait } = {}) {
  let words = "";
  let heading = say.connecting;
  if (place) {
    if (place.position) heading = say.place(place.position);
    if (place.waitSeconds) words = say.placeWait(Math.ceil(place.waitSeconds));
  } else if (backendWait) {
    heading = say.backendWaits;
    words = [say.reasons[backendWait.reason], say.placeWait(Math.max(1, Math.ceil(backendWait.wait_s ?? 1)))]
      .filter(Boolean)
      .join(" ");
  }
  show("progress", heading, words);
}

/** A failure that no countdown describes. */
export function showFailure(error) {
  const [heading, words] = failureWords(error);
  show("failure", heading, words, { againWords: say.again });
  announce(heading, words);
}

function failureWords(error) {
  if (error.name === "UnreachableError") return [say[error.kind], say[`${error.kind}Detail`]];
  if (error.name !== "RefusedError") return [say.broken, say.kept];
  if (error.isHtml) return [say.htmlError(error.status), say.kept];
  const known = say.reasons[error.advice.reason];
  return [say.refused(error.status), known ?? error.advice.message ?? say.kept];
}
