// The page: a message box that knows when it may send.
//
// Law of this file: Send is enabled exactly when nothing is under way and the cooldown is open; that
// is decided in one place (`refresh`). The draft leaves the box only when an answer has begun, so no
// refusal can lose or double a turn. Nothing is sent by itself unless the box for it is ticked.

import { Conversation } from "./conversation.js";
import { startDemo } from "./demo.js";
import * as notice from "./notice.js";
import { siteStorage, tabStorage } from "./storage.js";
import { clockTime, preferredLanguage, say, setLanguage } from "./text.js";
import { Cooldown, fullJitterMs } from "./tidegate/tidegate.js";
import { addAnswer, addQuestion } from "./transcript.js";

const byId = (id) => document.getElementById(id);
const draft = byId("draft");
const send = byId("send");
const stop = byId("stop");
const auto = byId("auto");
const narrow = matchMedia("(max-width: 560px)");
const DRAFT_KEY = "tidegate:draft";
const MAX_AUTO_SENDS = 5; // then a person must look

const cooldown = new Cooldown({ name: "chat", storage: tabStorage });
const conversation = new Conversation(document.querySelector("meta[name=chat-api]").content, cooldown);
let underway = null; // the AbortController of the request under way
let refusedDraft = false; // this tab's draft was refused and may be sent by itself
let autoSends = 0;
let autoTimer = null;

function refresh() {
  const isOpen = cooldown.isOpen;
  const isBusy = underway !== null;
  if (send.disabled !== (isBusy || !isOpen)) send.disabled = isBusy || !isOpen;
  send.hidden = isBusy;
  stop.hidden = !isBusy;
  const time = clockTime(cooldown.state.remainingSeconds);
  byId("send-words").textContent = isOpen ? say.send : narrow.matches ? time : say.sendIn(time);
  send.setAttribute("aria-label", isOpen ? say.send : say.sendIn(time));
  send.classList.toggle("waiting", !isOpen);
  draft.readOnly = isBusy && draft.value !== "";
}

function fitDraft() {
  draft.style.height = "auto";
  draft.style.height = `${Math.min(draft.scrollHeight, innerHeight * 0.35)}px`;
  tabStorage.setItem(DRAFT_KEY, draft.value);
}

function setDraft(text) {
  draft.value = text;
  fitDraft();
}

/** What one request shows while it runs. */
function makeView(question) {
  let answer = null;
  return {
    place: (place) => notice.showProgress({ place }),
    backendWait: (backendWait) => notice.showProgress({ backendWait }),
    commit() {
      notice.hideNotice();
      addQuestion(question);
      setDraft("");
      draft.readOnly = false;
      answer = addAnswer();
    },
    piece: (text) => answer.append(text),
    end: (remark, retry) => answer?.end(remark, retry),
    get hasBegun() {
      return answer !== null;
    },
  };
}

async function submit() {
  const question = draft.value.trim();
  clearTimeout(autoTimer);
  if (underway !== null || !cooldown.isOpen) return;
  if (question === "") {
    draft.focus();
    return;
  }
  const controller = new AbortController();
  underway = controller;
  refusedDraft = false;
  notice.showProgress();
  refresh();
  const view = makeView(question);
  try {
    await conversation.ask(question, view, controller.signal);
    autoSends = 0;
    view.end();
    notice.announce(say.answered);
  } catch (error) {
    conclude(error, view, question, controller.signal.aborted);
  } finally {
    underway = null;
    refresh();
    draft.focus({ preventScroll: true });
  }
}

function conclude(error, view, question, wasStopped) {
  if (view.hasBegun) {
    view.end(wasStopped ? say.stopped : say.broken, () => askAgain(question));
    if (!wasStopped) notice.announce(say.broken);
  } else if (wasStopped) {
    notice.hideNotice();
  } else if (error.name === "RateLimitedError") {
    refusedDraft = true;
    showWait(); // the cooldown may have been held longer already, by another tab
  } else {
    notice.showFailure(error);
  }
}

/** Puts a question whose answer broke off back into the box, and sends it unless something is written there. */
function askAgain(question) {
  const written = draft.value.trim();
  setDraft(written === "" ? question : `${question}\n\n${draft.value}`);
  draft.focus();
  if (written === "") submit();
}

function showWait() {
  const hasDraft = draft.value.trim() !== "";
  notice.showWait(cooldown.state, { hasDraft, canCancel: refusedDraft });
}

cooldown.addEventListener("hold", () => {
  refresh();
  if (underway === null) showWait();
});
cooldown.addEventListener("tick", ({ detail }) => {
  notice.showTime(detail);
  refresh();
});
cooldown.addEventListener("open", () => {
  refresh();
  if (underway !== null) return;
  notice.showReady(draft.value.trim() !== "");
  if (auto.checked && refusedDraft && autoSends < MAX_AUTO_SENDS) {
    autoSends += 1;
    autoTimer = setTimeout(submit, fullJitterMs(autoSends) / 4); // several tabs must not come at once
  }
});

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  autoSends = 0;
  submit();
});
draft.addEventListener("keydown", (event) => {
  // An Enter that confirms a word of an input method is not meant for us (229: Safari says it late).
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  if (!event.repeat) byId("composer").requestSubmit();
});
draft.addEventListener("input", fitDraft);
stop.addEventListener("click", () => underway?.abort());
byId("again").addEventListener("click", submit);
byId("cancel").addEventListener("click", () => {
  refusedDraft = false;
  auto.checked = false;
  clearTimeout(autoTimer);
  notice.hideNotice();
  notice.announce(say.cancelled);
  draft.focus();
});
addEventListener("pagehide", () => underway?.abort()); // the backend sees it and stops the work

function speak(language) {
  setLanguage(language);
  siteStorage.setItem("tidegate:language", language);
  const button = byId("language");
  button.textContent = language === "zh" ? "EN" : "中文";
  button.lang = language === "zh" ? "en" : "zh-CN";
  button.setAttribute("aria-label", say.languageLabel);
  draft.placeholder = say.placeholder;
  byId("ideas").replaceChildren(
    ...say.ideas.map((idea) => {
      const chip = document.createElement("button");
      chip.type = "button";
      chip.className = "quiet";
      chip.textContent = idea;
      chip.addEventListener("click", () => {
        setDraft(idea);
        draft.focus();
      });
      return chip;
    }),
  );
  paintTheme();
  refresh();
  if (!cooldown.isOpen) showWait();
}

const systemDark = matchMedia("(prefers-color-scheme: dark)");

function paintTheme() {
  const chosen = siteStorage.getItem("tidegate:theme");
  document.documentElement.style.colorScheme = chosen ?? "light dark";
  const isDark = chosen ? chosen === "dark" : systemDark.matches;
  byId("theme").textContent = isDark ? "☀" : "☾";
  byId("theme").setAttribute("aria-label", isDark ? say.themeLight : say.themeDark);
}

byId("theme").addEventListener("click", () => {
  const isDark = (siteStorage.getItem("tidegate:theme") ?? (systemDark.matches ? "dark" : "light")) === "dark";
  siteStorage.setItem("tidegate:theme", isDark ? "light" : "dark");
  paintTheme();
});
systemDark.addEventListener("change", paintTheme);
byId("language").addEventListener("click", () => {
  speak(document.documentElement.lang === "en" ? "zh" : "en");
  startDemo();
});

setDraft(tabStorage.getItem(DRAFT_KEY) ?? "");
speak(siteStorage.getItem("tidegate:language") ?? preferredLanguage());
startDemo();
draft.focus();
performance.mark("chat-ready");
document.documentElement.dataset.ready = "true";
