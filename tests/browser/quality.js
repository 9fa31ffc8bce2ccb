// Run inside a page: what a person with low vision, a keyboard or a screen reader would stumble over.
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (front, back) => [0, 1, 2].map((part) => front[part] * front[3] + back[part] * (1 - front[3])).concat(1);
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reduceRight((back, front) => over(front, back), [255, 255, 255, 1]);
  };
  const luminance = ([red, green, blue]) => {
    const linear = [red, green, blue].map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const isShown = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest(".hidden, .skip");

  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !isShown(element) || element.closest("svg")) continue;
    const style = getComputedStyle(element);
    const back = ground(element);
    const ratio = contrast(over(rgba(style.color), back), back);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) faint.push(`${walker.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
  }

  const name = (element) =>
    element.getAttribute("aria-label") ||
    [...(element.labels ?? [])].map((label) => label.textContent.trim()).join(" ") ||
    (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent).join("") ||
    element.textContent.trim();
  const controls = [...document.querySelectorAll("button, a[href], input, textarea, select, [role=img], [role=region]")].filter(isShown);
  const nameless = controls.filter((element) => !name(element)).map((element) => element.outerHTML.slice(0, 80));
  const small = controls
    .filter((element) => element.matches("button, a, input, textarea"))
    .map((element) => [element.closest("label") ?? element, element])
    .filter(([target]) => Math.min(target.getBoundingClientRect().width, target.getBoundingClientRect().height) < 24)
    .map(([, element]) => element.outerHTML.slice(0, 80));
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  const doubled = ids.filter((id, index) => ids.indexOf(id) !== index);
  const pictures = [...document.querySelectorAll("img:not([alt])")].map((element) => element.outerHTML);
  const levels = [...document.querySelectorAll("h1, h2, h3")].filter(isShown).map(({ tagName }) => Number(tagName[1]));
  const jumps = levels.filter((level, index) => level > (levels[index - 1] ?? 0) + 1);
  return {
    faint,
    nameless,
    small,
    doubled,
    pictures,
    jumps,
    language: document.documentElement.lang ? [] : ["no lang"],
    landmarks: document.querySelectorAll("main").length === 1 ? [] : ["not one main"],
    overflow: document.documentElement.scrollWidth > innerWidth ? [`${document.documentElement.scrollWidth} px`] : [],
  };
}
