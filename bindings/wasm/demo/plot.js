// The plot of all codecs: bits on the horizontal axis, error on a logarithmic vertical axis. Filled marks are keys as the
// cache stores them, and hollow marks raw keys. A ring marks the choice.
import { FAMILIES, familyOf } from "./choices.js";

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

export const short = (x) => (x === 0 ? "0" : x < 0.001 || x >= 1000 ? x.toExponential(1) : x.toPrecision(2));

/** Shapes of marks, because colour alone does not tell them apart. */
const SHAPES = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
  (r) => `M${-r},${-r}H${r}V${r}H${-r}Z`,
  (r) => `M0,${-1.3 * r}L${1.2 * r},${0.9 * r}H${-1.2 * r}Z`,
  (r) => `M0,${-1.35 * r}L${1.35 * r},0L0,${1.35 * r}L${-1.35 * r},0Z`,
];

function mark(family, x, y, r, hollow, parent) {
  return element("path", { d: SHAPES[family % 4](r), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, class: `s${family}${hollow ? " hollow" : ""}` }, parent);
}

/** The largest number of bits in the plot. Wider formats are in the table only. */
const WIDEST = 9.5;

export function draw(svg, { points, spec, prepared, hasQueries, choose }) {
  const width = Math.max(svg.clientWidth, 280);
  const narrow = width < 560;
  const height = narrow ? 330 : 420;
  const [left, right, top, bottom] = [50, 12, 30, 46];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren();
  const shown = points.filter((point) => point.raw.bits < WIDEST && point.raw.error > 0);
  const errors = shown.flatMap((point) => [point.raw.error, point.prepared.error]);
  const [low, high] = errors.length > 0 ? [Math.log10(Math.min(...errors)) - 0.15, Math.log10(Math.max(...errors)) + 0.15] : [-5, 1];
  const x = (bits) => left + (bits / WIDEST) * (width - left - right);
  const y = (error) => top + ((high - Math.log10(error)) / (high - low)) * (height - top - bottom);

  for (let bits = 0; bits <= 9; bits++) {
    element("line", { class: "grid", x1: x(bits), x2: x(bits), y1: top, y2: height - bottom }, svg);
    element("text", { class: "tick", x: x(bits), y: height - bottom + 18, "text-anchor": "middle" }, svg, bits);
  }
  for (let power = Math.ceil(low); power <= high; power++) {
    element("line", { class: "grid", x1: left, x2: width - right, y1: y(10 ** power), y2: y(10 ** power) }, svg);
    const value = power >= -3 ? String(Number((10 ** power).toFixed(3))) : `1e${power}`;
    element("text", { class: "tick", x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, svg, value);
  }
  element("text", { class: "axis", x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, svg, "bits stored a value");
  const axis = hasQueries ? "KL of attention weights, nats" : "distortion of the vectors";
  element("text", { class: "axis", x: 4, y: 15 }, svg, axis);

  // The Pareto front: no other codec has fewer bits and a smaller error.
  const front = shown
    .map((point) => point.prepared)
    .filter((a) => !shown.some(({ prepared: b }) => b !== a && b.bits <= a.bits && b.error <= a.error))
    .sort((a, b) => a.bits - b.bits);
  element("polyline", { class: "front", points: front.map((point) => `${x(point.bits)},${y(point.error)}`).join(" ") }, svg);

  const chosen = shown.find((point) => point.spec === spec);
  if (chosen && hasQueries && chosen.raw !== chosen.prepared)
    element("line", { class: "link", x1: x(chosen.raw.bits), y1: y(chosen.raw.error), x2: x(chosen.prepared.bits), y2: y(chosen.prepared.error) }, svg);
  for (const point of shown) {
    for (const [hollow, { bits, error }] of [[true, point.raw], [false, point.prepared]]) {
      if (hollow && !hasQueries) continue;
      const group = element("g", { class: "point" }, svg);
      element("title", {}, group, `${point.spec}, ${hollow ? "raw keys" : hasQueries ? "as the cache keeps keys" : "as they are"}: ${bits.toFixed(2)} bits, ${short(error)}`);
      mark(familyOf(point.spec), x(bits), y(error), narrow ? 4.5 : 5, hollow, group);
      group.addEventListener("click", () => choose(point.spec));
    }
  }
  if (!chosen) return;
  const at = prepared || !hasQueries ? chosen.prepared : chosen.raw;
  element("circle", { class: "ring", cx: x(at.bits), cy: y(at.error), r: 11 }, svg);
  const words = `${chosen.spec}${prepared || !hasQueries ? "" : ", raw"}: ${short(at.error)}`;
  const isRight = x(at.bits) + 20 + words.length * 7.5 > width - right;
  const place = { class: "label", x: x(at.bits) + (isRight ? -17 : 17), y: y(at.error) - 9, "text-anchor": isRight ? "end" : "start" };
  element("text", place, svg, words);
}

/** The legend. */
export function legend(list, points, hasQueries) {
  const entry = (family, hollow, text) => {
    const item = document.createElement("li");
    const svg = element("svg", { viewBox: "-8 -8 16 16", "aria-hidden": "true" });
    mark(family, 0, 0, 5, hollow, svg);
    item.append(svg, text);
    return item;
  };
  const families = [...new Set(points.map((point) => familyOf(point.spec)))].sort((a, b) => a - b);
  const items = families.filter((family) => points.some((point) => familyOf(point.spec) === family && point.raw.bits < WIDEST));
  list.replaceChildren(...items.map((family) => entry(family, false, FAMILIES[family].name)));
  if (hasQueries) list.append(entry(0, false, "filled: as the cache keeps keys"), entry(0, true, "hollow: raw keys"));
}
