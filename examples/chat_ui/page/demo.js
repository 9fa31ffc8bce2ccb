// The demo's own controls: start a flood, open the operator's page. They stay hidden on any backend
// that does not offer `/api/demo`.

import { say } from "./text.js";

const flood = document.getElementById("flood");
const tide = document.getElementById("tide");
const operator = document.getElementById("operator");
let offer = null;
let isRunning = false;

function label() {
  flood.textContent = say.floodStart;
  operator.textContent = say.operator;
}

async function readJson(url, init) {
  const response = await fetch(url, { cache: "no-store", ...init });
  if (!response.ok) throw new Error(String(response.status));
  return response.json();
}

async function follow() {
  isRunning = flood.disabled = true;
  tide.hidden = false;
  try {
    for (let state = { isRunning: true }; state.isRunning; ) {
      state = await readJson("/api/flood");
      const { answered, refused, lost, total } = state;
      tide.textContent = `${say.floodRunning(answered + lost, total)} · ${say.floodResult({ answered, refused, lost })}`;
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  } catch {
    tide.hidden = true; // the backend is gone; the message box says so when it matters
  } finally {
    isRunning = flood.disabled = false;
  }
}

flood.addEventListener("click", async () => {
  if (isRunning) return;
  try {
    await readJson("/api/flood", { method: "POST" });
    await follow();
  } catch {
    tide.hidden = true;
  }
});

/** Shows the controls where the backend has them; again after a change of language. */
export async function startDemo() {
  try {
    offer ??= await readJson("/api/demo");
  } catch {
    return;
  }
  label();
  flood.hidden = false;
  operator.hidden = !offer.console;
  if (offer.console) operator.href = new URL(offer.console, location.href);
}
