// Server-sent events read from a fetch, comments included.
//
// Law of this file: one generator, which gives each event as soon as its blank line has come, however
// the bytes were cut; a line that was cut off is none. EventSource is no use here: it hides the status and the headers of a refusal.

const MAX_EVENT_CHARACTERS = 4_000_000; // an endless line must not fill the memory

function parseBlock(block) {
  const event = { event: "message", data: "", comment: "" };
  const data = [];
  const comments = [];
  for (const line of block.split("\n")) {
    if (line.startsWith(":")) {
      comments.push(line.slice(1).trim());
      continue;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") data.push(value);
    else if (name === "event") event.event = value;
  }
  event.data = data.join("\n");
  event.comment = comments.join("\n");
  return event.data !== "" || event.comment !== "" || event.event !== "message" ? event : null;
}

/**
 * Yields the events of a streamed response; returns when the body ends.
 * @param {Response} response
 * @returns {AsyncGenerator<{event: string, data: string, comment: string}>}
 */
export async function* readEvents(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      pending += done ? decoder.decode() : decoder.decode(value, { stream: true });
      // A trailing CR may be the first half of CRLF: it waits for what follows.
      const held = !done && pending.endsWith("\r") ? "\r" : "";
      const whole = pending.slice(0, pending.length - held.length).replace(/\r\n?/g, "\n");
      const blocks = whole.split("\n\n");
      // At the end a last event may lack its blank line, but not the end of its line.
      if (!done || !whole.endsWith("\n")) pending = blocks.pop() + held;
      for (const block of blocks) {
        const event = parseBlock(block);
        if (event !== null) yield event;
      }
      if (done) return;
      if (pending.length > MAX_EVENT_CHARACTERS) throw new TypeError("an event has no end");
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * The place in line that Tidegate's keep-alive comments carry, or null for any other comment.
 * @param {string} comment
 * @returns {{position: number | null, waitSeconds: number | null} | null}
 */
export function readQueuePlace(comment) {
  const position = /\bposition[=: ]\s*([0-9]{1,9})\b/.exec(comment);
  const wait = /\b(?:estimated_)?wait(?:_s)?[=: ]\s*([0-9]{1,7}(?:\.[0-9]+)?)/.exec(comment);
  if (position === null && wait === null) return null;
  return { position: position && Number(position[1]), waitSeconds: wait && Number(wait[1]) };
}
