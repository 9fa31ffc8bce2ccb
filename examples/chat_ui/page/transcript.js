// The list of turns. Law of this file: text becomes text nodes, never markup, whoever wrote it.

import { say } from "./text.js";

const list = document.getElementById("transcript");
const welcome = document.getElementById("welcome");

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function paragraph(text) {
  const made = element("p");
  for (const [index, part] of text.split(/`([^`\n]+)`/).entries()) {
    made.append(index % 2 ? element("code", "", part) : part);
  }
  return made;
}

/** Paragraphs, fenced code and inline code; everything else stays as it was written. */
function format(text) {
  const made = document.createDocumentFragment();
  for (const [index, part] of text.split(/^```[^\n]*\n?/m).entries()) {
    if (index % 2) {
      const block = element("pre");
      block.append(element("code", "", part));
      block.tabIndex = 0;
      made.append(block);
    } else {
      for (const block of part.split(/\n{2,}/)) if (block.trim()) made.append(paragraph(block.trim()));
    }
  }
  return made;
}

function isAtEnd() {
  return list.scrollHeight - list.scrollTop - list.clientHeight < 80;
}

/** Adds the person's turn. */
export function addQuestion(text) {
  welcome.hidden = true;
  const item = element("li", "question");
  item.append(element("span", "hidden", say.you), element("p", "", text));
  list.append(item);
  list.scrollTop = list.scrollHeight;
}

/** Adds an answer that grows; at most one repaint a frame, whatever the pace of the chunks. */
export function addAnswer() {
  const item = element("li", "answer");
  const body = element("div", "body");
  item.append(element("span", "hidden", say.assistant), body);
  item.setAttribute("aria-busy", "true");
  list.append(item);
  let text = "";
  let isScheduled = false;
  const paint = () => {
    isScheduled = false;
    const follow = isAtEnd();
    body.replaceChildren(format(text));
    if (follow) list.scrollTop = list.scrollHeight;
  };
  return {
    get text() {
      return text;
    },
    append(piece) {
      text += piece;
      if (isScheduled) return;
      isScheduled = true;
      requestAnimationFrame(paint);
    },
    /** Ends the answer; `remark` says why when it is not whole, `retry` offers to ask again. */
    end(remark, retry) {
      paint();
      item.removeAttribute("aria-busy");
      if (!remark) return;
      const note = element("p", "remark", remark);
      if (retry) {
        const button = element("button", "quiet", say.askAgain);
        button.type = "button";
        button.addEventListener("click", () => {
          button.remove();
          retry();
        });
        note.append(" ", button);
      }
      item.append(note);
      list.scrollTop = list.scrollHeight;
    },
  };
}
