// Small pictures: the tank and the lines. Law of this file: it is given numbers and a place to draw,
// and knows nothing of the gate. Null is a gap, never zero.

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes. */
export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function pathOf(points) {
  let path = "";
  let isDrawing = false;
  for (const point of points) {
    if (point === null) isDrawing = false;
    else {
      path += `${isDrawing ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      isDrawing = true;
    }
  }
  return path;
}

/**
 * Draws series over time.
 * @param {SVGElement} place
 * @param {number[]} times seconds, rising; the right edge is the last
 * @param {{values: (number|null)[], kind: string, filled?: boolean}[]} series
 * @param {{spanS: number, top?: number, label: string}} options
 */
export function drawLines(place, times, series, { spanS, top, label }) {
  const { clientWidth: width, clientHeight: height } = place;
  if (!width || !height) return;
  const last = times.at(-1) ?? 0;
  const highest = top ?? Math.max(1e-9, ...series.flatMap(({ values }) => values.map((value) => value ?? 0)));
  const x = (time) => width - ((last - time) / spanS) * width;
  const y = (value) => height - 2 - (Math.min(value, highest) / highest) * (height - 5);
  const drawn = series.flatMap(({ values, kind, filled }) => {
    const points = values.map((value, index) => (value === null ? null : [x(times[index]), y(value)]));
    const path = pathOf(points);
    const line = svg("path", { d: path, class: `line ${kind}` });
    const known = points.filter((point) => point !== null);
    if (!filled || known.length === 0) return [line];
    const area = `${pathOf(known)}L${known.at(-1)[0].toFixed(1)} ${height}L${known[0][0].toFixed(1)} ${height}Z`;
    return [svg("path", { d: area, class: `area ${kind}` }), line];
  });
  place.setAttribute("viewBox", `0 0 ${width} ${height}`);
  place.setAttribute("aria-label", label);
  place.replaceChildren(...drawn);
}

/** Horizontal rules behind the lines, their figures before them. */
export function drawRules(place, shares) {
  const { clientWidth: width, clientHeight: height } = place;
  for (const share of shares) {
    const at = height - 2 - share * (height - 5);
    const words = svg("text", { x: 2, y: at + 14, class: "rule-words" });
    words.textContent = `${Math.round(share * 100)} %`;
    place.prepend(svg("line", { x1: 0, x2: width, y1: at, y2: at, class: "rule" }));
    place.append(words);
  }
}

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** One tank of water; `show` moves it. */
export class Tank {
  constructor() {
    this.root = element("div", "tank");
    this.root.setAttribute("role", "img");
    this.water = element("div", "water");
    const wave = svg(
      "svg",
      { class: "wave", viewBox: "0 0 800 24", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("path", { d: "M0 12c50-16 100-16 200 0s150 16 200 0 100-16 200 0 150 16 200 0V24H0z" }),
    );
    this.water.append(wave);
    this.peak = element("div", "mark peak");
    this.watermark = element("div", "mark high");
    this.figure = element("p", "level");
    this.name = element("p", "name");
    this.detail = element("p", "detail");
    const words = element("div", "words");
    words.append(this.figure, this.name, this.detail);
    this.root.append(this.water, this.peak, this.watermark, words);
  }

  /**
   * @param {{level: number|null, peak: number|null, watermark: number, mood: string, name: string,
   *   detail: string, isSmall: boolean}} now
   */
  show({ level, peak, watermark, mood, name, detail, isSmall }) {
    this.root.dataset.mood = mood;
    this.water.hidden = level === null;
    this.water.style.height = `${100 * Math.min(1, level ?? 0)}%`;
    this.figure.textContent = level === null ? "?" : String(Math.round(level * 100));
    this.figure.dataset.unit = level === null ? "" : "%";
    this.name.textContent = name;
    this.detail.textContent = detail;
    this.#mark(this.watermark, watermark, `${isSmall ? "" : "watermark "}${Math.round(watermark * 100)} %`);
    this.peak.hidden = peak === null;
    if (peak !== null) this.#mark(this.peak, peak, `peak ${Math.round(peak * 100)} %`);
    const told = level === null ? "unknown" : `${Math.round(level * 100)} percent`;
    this.root.setAttribute("aria-label", `${name}: KV level ${told}, ${detail}`);
  }

  #mark(mark, share, words) {
    mark.style.bottom = `${100 * Math.min(1, share)}%`;
    mark.dataset.words = words;
    mark.classList.toggle("below", share > 0.8); // above it the tank's edge would cut the words
  }
}
