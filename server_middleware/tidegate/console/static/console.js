// The operator's page: listens to one stream of events and shows the last one.
//
// Law of this file: it only shows. Names from outside (tenants, models, reasons) become text nodes.
// Unknown is shown as unknown. When the stream is silent the page says so instead of standing still.

import { drawLines, drawRules, Tank } from "./plots.js";

const SPAN_S = 300;
const FAULT_POINTS = 60;
const RECENT_POINTS = 10;
const SILENT_AFTER_MS = 4_000;
const SERIES = ["level", "peak", "watermark", "queued", "running", "oldest_wait_s", "admitted_per_s", "refused_per_s",
  "preemptions_per_s", "faults"];
const byId = (id) => document.getElementById(id);
const tanks = new Map();
let history = { at_s: [], ...Object.fromEntries(SERIES.map((name) => [name, []])) };
let heardAtMs = performance.now();

function element(name, text, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const figure = (value) => (value < 10_000 ? whole.format(value) : short.format(value));
const rate = (value) => (value < 10 ? value.toFixed(1) : figure(value));
const percent = (share) => (share === null ? "unknown" : `${Math.round(share * 100)} %`);

function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return `${Math.round(seconds / 60)} min`;
}

function row(cells, cell = "td") {
  const made = document.createElement("tr");
  cells.forEach((content, index) => {
    const part = content instanceof Node ? element("td", "") : element(index === 0 && cell === "td" ? "th" : cell, content);
    if (part.tagName === "TH") part.scope = cell === "th" ? "col" : "row";
    if (content instanceof Node) part.append(content);
    made.append(part);
  });
  return made;
}

function table(id, heads, rows, empty) {
  const place = byId(id);
  if (rows.length === 0) {
    place.replaceChildren(element("caption", empty));
    return;
  }
  const head = document.createElement("thead");
  head.append(row(heads, "th"));
  const body = document.createElement("tbody");
  body.append(...rows.map((cells) => row(cells)));
  place.replaceChildren(head, body);
}

function bar(share, words) {
  const made = element("span", "", "bar");
  const fill = element("i", "");
  fill.style.width = `${100 * Math.min(1, share)}%`;
  made.append(fill, element("b", words));
  return made;
}

function mood(instance) {
  if (["blind", "stalled", "asleep"].includes(instance.state) || instance.level === null) return "blind";
  if (instance.level >= instance.high_watermark) return "high";
  return instance.level >= instance.high_watermark - 0.12 ? "near" : "calm";
}

function showTanks({ instances, instances_hidden: hidden }) {
  const names = instances.map(({ name }) => name);
  for (const [name, tank] of tanks) if (!names.includes(name)) tank.root.remove(), tanks.delete(name);
  const place = byId("tanks");
  place.classList.toggle("many", instances.length > 2);
  for (const instance of instances) {
    if (!tanks.has(instance.name)) {
      tanks.set(instance.name, new Tank());
      place.append(tanks.get(instance.name).root);
    }
    const age = instance.age_s === null ? "never read" : `${duration(instance.age_s)} old`;
    tanks.get(instance.name).show({
      level: instance.level,
      peak: instance.projected_peak,
      watermark: instance.high_watermark,
      mood: mood(instance),
      name: instance.name,
      detail: `signal ${instance.state}, ${age}`,
      isSmall: instances.length > 1,
    });
  }
  byId("tide-title").textContent = hidden > 0 ? `KV cache (${hidden} more instances not shown)` : "KV cache";
}

/** The most alarming thing first: faults of the gate itself, then a poor signal, then the level. */
function condition({ is_open: isOpen, instances }) {
  const lately = history.faults.slice(-FAULT_POINTS);
  const faults = (lately.at(-1) ?? 0) - (lately[0] ?? 0);
  if (faults > 0) return [`${figure(faults)} gate faults`, "blind"];
  const states = instances.map(({ state }) => state).filter((state) => state !== "fresh");
  if (states.length > 0) return [`signal ${states[0]}`, states.every((state) => state === "stale") ? "near" : "blind"];
  return isOpen ? ["open", "calm"] : ["holding", "high"];
}

function showGate(state) {
  const [words, tone] = condition(state);
  byId("gate").textContent = words;
  byId("gate").dataset.mood = tone;
  const { mode, version, workers } = state;
  const whose = workers > 1 ? `; one of ${workers} workers` : "";
  byId("mode").textContent =
    (mode === "enforce" ? `enforce mode, ${version}` : `${mode} mode: nothing is held back`) + whose;
  byId("mode").dataset.mood = mode === "enforce" ? "" : "near";
  document.title = `${words} · Tidegate`;
}

/** The mean of the last seconds: a figure that changes wildly each second is not legible. */
function recent(name) {
  const values = history[name].slice(-RECENT_POINTS);
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}

function showFigures(state) {
  byId("running").textContent = figure(state.running);
  byId("queued").textContent = figure(state.queued);
  byId("wait").textContent = duration(Math.max(0, ...state.classes.map(({ oldest_wait_s: oldest }) => oldest)));
  byId("admitted").textContent = `${rate(recent("admitted_per_s"))}/s`;
  byId("refused").textContent = `${rate(recent("refused_per_s"))}/s`;
  byId("preemptions").textContent = figure(state.instances.reduce((sum, { preemptions }) => sum + preemptions, 0));
}

function showTables(state) {
  const busiest = Math.max(1, ...state.classes.map(({ queued, running }) => Math.max(queued, running)));
  table(
    "classes",
    ["Class", "Running", "Waiting", "Oldest", "Ceiling"],
    state.classes.map(({ name, running, queued, oldest_wait_s: oldest, kv_ceiling: ceiling }) => [
      name,
      bar(running / busiest, figure(running)),
      bar(queued / busiest, figure(queued)),
      queued > 0 ? duration(oldest) : "–",
      percent(ceiling),
    ]),
    "no classes",
  );
  const heaviest = Math.max(1, ...state.tenants.map(({ queued, running }) => Math.max(queued, running)));
  table(
    "tenants",
    ["Tenant", "Class", "Running", "Waiting", "Refused"],
    state.tenants.map(({ name, priority_class: priority, running, queued, refused_last_minute: refused }) => [
      name,
      priority,
      bar(running / heaviest, figure(running)),
      bar(queued / heaviest, figure(queued)),
      figure(refused),
    ]),
    "Nobody has work here now.",
  );
  const more = state.tenants_hidden > 0 ? `And ${figure(state.tenants_hidden)} more. ` : "";
  byId("tenants-note").textContent = `${more}Refused: in the last minute.`;
  showInstances(state.instances);
}

function capacity({ capacity_tokens: tokens, stated_capacity_tokens: stated, capacity_disputed: isDisputed }) {
  const inForce = tokens === null ? "unknown" : whole.format(tokens);
  return isDisputed ? `${inForce} (disputed: the engine states ${whole.format(stated)})` : inForce;
}

function showInstances(instances) {
  table(
    "instances",
    ["Instance", "Signal", "Level", "Charged now", "Projected peak", "Capacity", "Margin", "Prompt factor", "Leases",
      "Engine running", "Engine waiting", "Preemptions"],
    instances.map((instance) => [
      instance.name,
      instance.state,
      percent(instance.level),
      whole.format(instance.held_tokens),
      whole.format(instance.projected_peak_tokens),
      capacity(instance),
      percent(instance.margin),
      instance.kp.toFixed(2),
      figure(instance.leases),
      instance.running_in_engine === null ? "unknown" : figure(instance.running_in_engine),
      instance.waiting_in_engine === null ? "unknown" : figure(instance.waiting_in_engine),
      figure(instance.preemptions),
    ]),
    "No engine has been read yet.",
  );
}

function showRefusals(state) {
  const reasons = Object.entries(state.refused);
  const most = Math.max(1, ...reasons.map(([, count]) => count));
  const rows = reasons.map(([reason, count]) => {
    const item = element("li", "");
    item.append(element("span", reason.replaceAll("_", " ")), bar(count / most, figure(count)));
    return item;
  });
  byId("refusals").replaceChildren(...(rows.length > 0 ? rows : [element("li", "Nothing has been refused.")]));
  byId("booked").textContent = figure(state.booked_slots);
  const rates = [
    ["Learnt completion rate", `${rate(state.completions_per_s)}/s`],
    ["Admitted so far", figure(state.admitted)],
    ["Bodies waiting", `${short.format(state.queued_bytes)}B`],
  ];
  byId("rates").replaceChildren(
    ...rates.flatMap(([name, value]) => [element("dt", name), element("dd", value)]),
  );
}

function drawHistory() {
  const times = history.at_s;
  const spark = (id, name, words) =>
    drawLines(byId(id), times, [{ values: history[name], kind: "plain", filled: true }], {
      spanS: SPAN_S,
      top: Math.max(1, ...history[name]),
      label: `${words} over the last five minutes`,
    });
  spark("running-plot", "running", "Running requests");
  spark("queued-plot", "queued", "Waiting requests");
  spark("wait-plot", "oldest_wait_s", "Longest wait");
  spark("admitted-plot", "admitted_per_s", "Admissions a second");
  spark("refused-plot", "refused_per_s", "Refusals a second");
  spark("preemptions-plot", "preemptions_per_s", "Preemptions a second");
  const lines = [
    { values: history.watermark, kind: "mark" },
    { values: history.level, kind: "level", filled: true },
    { values: history.peak, kind: "peak" },
  ];
  drawLines(byId("level-plot"), times, lines, { spanS: SPAN_S, top: 1, label: "KV level over the last five minutes" });
  drawRules(byId("level-plot"), [0.5, 1]);
}

function remember(point) {
  history.at_s.push(point.at_s);
  for (const name of SERIES) history[name].push(point[name]);
  while (history.at_s[0] < point.at_s - SPAN_S) for (const values of Object.values(history)) values.shift();
}

function show(state) {
  if (state.history) history = state.history;
  else if (state.point) remember(state.point);
  showGate(state);
  showTanks(state);
  showFigures(state);
  showTables(state);
  showRefusals(state);
  drawHistory();
}

function showLink() {
  const isSilent = performance.now() - heardAtMs > SILENT_AFTER_MS;
  byId("link").textContent = isSilent ? "no news from the server" : "live";
  byId("link").classList.toggle("lost", isSilent);
  document.body.classList.toggle("stale", isSilent);
}

const events = new EventSource("events");
events.addEventListener("message", ({ data }) => {
  heardAtMs = performance.now();
  show(JSON.parse(data));
  showLink();
  document.documentElement.dataset.ready = "true";
});
setInterval(showLink, 1_000);
addEventListener("resize", drawHistory);
