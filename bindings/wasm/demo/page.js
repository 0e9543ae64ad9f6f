// The page. It sends choices to two workers (worker.js), and shows their answers.
import { EVERY_WIDTH, FAMILIES, FIRST, MODELS, SPECS, WIDTHS, familyOf } from "./choices.js";
import * as maps from "./maps.js";
import * as plot from "./plot.js";

const $ = (id) => document.getElementById(id);
const { short } = plot;

/** A worker whose calls are promises. */
function start() {
  const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  const waiting = new Map();
  let last = 0;
  worker.onmessage = ({ data: { id, result, error } }) => {
    const { resolve, reject } = waiting.get(id);
    waiting.delete(id);
    if (error) reject(Object.assign(new Error(error.message), error));
    else resolve(result);
  };
  worker.onerror = (event) => broken(event.message ?? "the worker did not start; serve this folder over HTTP");
  return (task, given = {}) =>
    new Promise((resolve, reject) => {
      waiting.set(++last, { resolve, reject });
      worker.postMessage({ id: last, task, ...given });
    });
}

function broken(words) {
  $("broken").hidden = false;
  $("broken").textContent = `Something went wrong: ${words}`;
}

const [now, later] = [start(), start()];
const state = { spec: FIRST, prepared: true, head: 2, sample: null, map: null, points: [], bits: [], run: 0 };

const percent = (x) => `${x >= 0.0995 ? (100 * x).toFixed(0) : x >= 0.000095 ? (100 * x).toPrecision(2) : "<0.01"}%`;
const bytes = (x) => {
  const power = Math.max(0, Math.min(4, Math.floor(Math.log10(x) / 3)));
  return `${(x / 1000 ** power).toPrecision(3).replace(/\.0+$/, "")} ${["bytes", "kB", "MB", "GB", "TB"][power]}`;
};

function made(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function table(element, columns, rows, current = -1) {
  const head = made("thead", {}, made("tr", {}, ...columns.map((text) => made("th", { scope: "col" }, text))));
  const line = (cells, i) => made("tr", i === current ? { "aria-current": "true" } : {}, made("th", { scope: "row" }, cells[0]), ...cells.slice(1).map((cell) => made("td", {}, cell)));
  element.replaceChildren(head, made("tbody", {}, ...rows.map(line)));
}

/** Draws horizontal bars: name, share of the longest, words. */
function bars(list, rows) {
  const longest = Math.max(...rows.map((row) => row.value));
  list.replaceChildren(
    ...rows.map(({ name, value, words, chosen }) => {
      const bar = made("b");
      bar.style.width = `${(100 * value) / longest}%`;
      return made("div", chosen ? { class: "chosen" } : {}, made("dt", {}, name), made("dd", {}, made("span", { class: "track", "aria-hidden": "true" }, bar), made("span", { class: "said" }, words)));
    }),
  );
}

// The choice.

function offerRates() {
  const family = FAMILIES[familyOf(state.spec)];
  $("family").value = String(familyOf(state.spec));
  $("summary").textContent = family.about;
  const label = (spec) => {
    const bits = state.bits[SPECS.indexOf(spec)];
    const input = made("input", { type: "radio", name: "spec", value: spec });
    Object.assign(input, { checked: spec === state.spec, disabled: bits === null });
    return made("label", {}, input, made("span", {}, bits === null ? "not at this width" : bits?.toFixed(2) ?? "…", made("small", {}, spec)));
  };
  const focused = $("rates").contains(document.activeElement);
  $("rates").replaceChildren(...family.specs.map(label));
  if (focused) $("rates").querySelector(":checked")?.focus();
}

async function choose(change) {
  Object.assign(state, change);
  offerRates();
  drawPlot();
  tablePoints();
  save();
  await Promise.all([showMaps(), showSavings(), measureSpeed()]);
}

/** Returns the result of a call, or null if there was a later call. */
function latest(call) {
  let last = 0;
  return async (...given) => {
    const mine = ++last;
    const result = await call(...given);
    return mine === last ? result : null;
  };
}

// Maps.

const askMaps = latest((given) => now("maps", given));

async function showMaps() {
  $("maps").setAttribute("aria-busy", "true");
  const { spec, prepared, head } = state;
  let map;
  try {
    map = await askMaps({ spec, prepared, head });
  } catch (error) {
    $("maps").setAttribute("aria-busy", "false");
    return fileError(`${spec}: ${error.message}`);
  }
  if (map === null) return;
  state.map = { ...map, spec, prepared, head };
  $("maps").setAttribute("aria-busy", "false");
  $("bits").textContent = map.bits.toFixed(2);
  $("smaller").textContent = `${(16 / map.bits).toFixed(1)}×`;
  $("error").textContent = short(map.error);
  $("output").textContent = map.output === undefined ? "" : percent(map.output);
  $("compressed-name").textContent = spec;
  drawMaps();
  describeMaps();
}

function drawMaps() {
  const { map, sample } = state;
  if (!map) return;
  const difference = map.exact.map((x, i) => map.compressed[i] - x);
  if (sample.hasQueries) {
    const seen = (row) => sample.positions[row] + 1;
    maps.draw($("exact"), map.exact, sample.tokens, maps.SCALES.weight, seen);
    maps.draw($("compressed"), map.compressed, sample.tokens, maps.SCALES.weight, seen);
    maps.draw($("difference"), difference, sample.tokens, maps.SCALES.difference, seen);
    return;
  }
  const all = () => sample.dim;
  const top = map.exact.reduce((top, x) => Math.max(top, Math.abs(x)), 0);
  for (const [id, values, limit] of [["exact", map.exact, top], ["compressed", map.compressed, top], ["difference", difference, top / 4]])
    maps.draw($(id), values, sample.dim, maps.SCALES.value(limit), all);
}

function describeMaps() {
  const { map, sample } = state;
  const label = (id, words) => $(id).setAttribute("aria-label", words);
  document.querySelector(".scale.weight, .scale.value").className = `scale ${sample.hasQueries ? "weight" : "value"}`;
  if (!sample.hasQueries) {
    const top = map.exact.reduce((top, x) => Math.max(top, Math.abs(x)), 0);
    label("exact", `${sample.tokens} vectors of width ${sample.dim}, values up to ${short(top)}`);
    label("compressed", `The same vectors after ${map.spec}`);
    label("difference", `What is lost: distortion ${short(map.error)}`);
    [$("weight-low").textContent, $("weight-high").textContent] = [`values: -${short(top)}`, short(top)];
    [$("difference-low").textContent, $("difference-high").textContent] = [`difference: -${short(top / 4)}`, short(top / 4)];
    $("caption").textContent = `Each row is one of ${sample.tokens} vectors, each column one of ${sample.dim} channels. There are no queries in this file, so there is no attention to show.`;
    table($("weights"), ["vector", "length", "after", "distortion"], Array.from({ length: Math.min(sample.tokens, 32) }, (_, i) => {
      const [exact, compressed] = [map.exact, map.compressed].map((values) => values.subarray(i * sample.dim, (i + 1) * sample.dim));
      const norm = (x) => x.reduce((sum, value) => sum + value * value, 0);
      return [String(i), short(Math.sqrt(norm(exact))), short(Math.sqrt(norm(compressed))), short(norm(exact.map((x, at) => x - compressed[at])) / norm(exact))];
    }));
    return;
  }
  const { positions, tokens } = sample;
  const rows = positions.map((position, query) => {
    const [exact, compressed] = [map.exact, map.compressed].map((values) => values.subarray(query * tokens, query * tokens + position + 1));
    const heaviest = exact.reduce((best, x, token) => (x > exact[best] ? token : best), 0);
    const worst = exact.reduce((worst, x, token) => Math.max(worst, Math.abs(x - compressed[token])), 0);
    return { position, kl: map.divergences[query], heaviest, exact: exact[heaviest], compressed: compressed[heaviest], worst };
  });
  const worst = Math.max(...rows.map((row) => row.worst));
  const of = headName(map.head);
  label("exact", `Exact attention weights of ${of}: ${positions.length} queries, ${tokens} tokens. The query at token ${positions.at(-1)} gives ${percent(rows.at(-1).exact)} to token ${rows.at(-1).heaviest}, the most.`);
  label("compressed", `Attention weights of ${of} with keys in ${map.spec}, ${map.prepared ? "as the cache keeps them" : "raw"}: KL ${short(map.error)} nats.`);
  label("difference", `Compressed minus exact: no weight is off by more than ${(100 * worst).toPrecision(2)} percentage points.`);
  [$("weight-low").textContent, $("weight-high").textContent] = ["0.01%", "100% of a query’s attention"];
  [$("difference-low").textContent, $("difference-high").textContent] = ["5 points too little", "too much"];
  $("caption").textContent = `${of[0].toUpperCase()}${of.slice(1)}: each row is one of ${positions.length} queries, each column one of ${tokens} tokens; a query sees the tokens before it, the rest is grey. Largest difference: ${(100 * worst).toPrecision(2)} percentage points.`;
  table($("weights"), ["query at token", "KL, nats", "looks most at token", "exact", "compressed", "largest difference, points"],
    rows.map((row) => [String(row.position), short(row.kl), String(row.heaviest), percent(row.exact), percent(row.compressed), (100 * row.worst).toPrecision(2)]));
}

function pointed(event) {
  const { map, sample } = state;
  if (!map) return;
  const columns = sample.hasQueries ? sample.tokens : sample.dim;
  const [row, column] = maps.cell(event.currentTarget, event, map.exact.length / columns, columns);
  const [exact, compressed] = [map.exact, map.compressed].map((values) => values[row * columns + column]);
  $("readout").textContent = !sample.hasQueries
    ? `vector ${row}, channel ${column}: ${short(exact)}, compressed ${short(compressed)}`
    : column > sample.positions[row]
      ? `the query at token ${sample.positions[row]} does not see token ${column}`
      : `query at token ${sample.positions[row]}, token ${column}: ${percent(exact)} of its attention, compressed ${percent(compressed)}`;
}

function headName(head) {
  const { layers, kvHeads, group } = state.sample;
  const heads = kvHeads * group;
  return `layer ${layers[Math.floor(head / heads)]}, head ${(head % heads) + 1} of ${heads}`;
}

// The plot.

function drawPlot() {
  if (!state.sample) return;
  const { points, spec, prepared, sample } = state;
  plot.draw($("plot"), { points, spec, prepared, hasQueries: sample.hasQueries, choose: (spec) => guarded(choose)({ spec }) });
  const chosen = points.find((point) => point.spec === spec);
  const what = sample.hasQueries ? "KL of attention weights against bits a value" : "Distortion against bits a value";
  const at = !chosen ? "" : sample.hasQueries
    ? ` ${spec}: ${chosen.prepared.bits.toFixed(2)} bits, KL ${short(chosen.prepared.error)} as the cache keeps keys, ${short(chosen.raw.error)} raw.`
    : ` ${spec}: ${chosen.raw.bits.toFixed(2)} bits, distortion ${short(chosen.raw.error)}.`;
  $("plot").setAttribute("aria-label", `${what}, ${points.length} codecs; the table below has the numbers.${at}`);
}

function tablePoints() {
  const { points, spec, sample } = state;
  const sorted = [...points].sort((a, b) => a.prepared.bits - b.prepared.bits);
  const columns = sample.hasQueries ? ["codec", "bits", "KL", "KL raw"] : ["codec", "bits", "distortion"];
  const cells = ({ spec, prepared, raw }) => [made("code", {}, spec), prepared.bits.toFixed(3), short(prepared.error), short(raw.error)].slice(0, columns.length);
  table($("points"), columns, sorted.map(cells), sorted.findIndex((point) => point.spec === spec));
  plot.legend($("legend"), points, sample.hasQueries);
}

async function measureAll() {
  const run = ++state.run;
  state.points = [];
  const specs = [state.spec, ...SPECS.filter((spec) => spec !== state.spec)];
  for (const [i, spec] of specs.entries()) {
    if (run !== state.run) return;
    $("progress").textContent = i % 6 === 0 ? `${i} of ${specs.length} codecs measured …` : $("progress").textContent;
    let point = null;
    try {
      point = await later("point", { spec });
    } catch (error) {
      if (error.code === "") return broken(error.message); // a codec that this width does not have is left out
    }
    if (run !== state.run) return;
    if (point !== null) state.points.push(point);
    drawPlot();
    tablePoints();
  }
  $("progress").textContent = `${state.points.length} codecs measured on ${state.sample.name}.`;
}

// Bytes.

const askModelBits = latest((given) => now("bits", given));

function offerModel(model) {
  if (!model) return;
  $("layers").value = model.layers;
  $("kv").value = model.heads;
  $("dim").value = WIDTHS.indexOf(model.dim);
  $("context").value = Math.log2(model.context);
}

async function showSavings() {
  const [layers, heads, dim] = [Number($("layers").value), Number($("kv").value), WIDTHS[Number($("dim").value)]];
  const context = Math.round(2 ** Number($("context").value));
  const model = MODELS[Number($("model").value)];
  $("layers-said").textContent = layers;
  $("kv-said").textContent = heads;
  $("dim-said").textContent = dim;
  $("dim").setAttribute("aria-valuetext", String(dim));
  $("context-said").textContent = `${context.toLocaleString("en")} tokens`;
  $("context").setAttribute("aria-valuetext", `${context} tokens`);
  const answer = await askModelBits({ specs: [state.spec, EVERY_WIDTH], kvHeads: heads, dim });
  if (answer === null) return;
  // The default, where a width lacks the first choice, is the library's, too.
  const [spec, bits] = answer[0] === null && state.spec === FIRST ? [EVERY_WIDTH, answer[1]] : [state.spec, answer[0]];
  const values = 2 * layers * heads * dim * context;
  const exact = (values * 16) / 8;
  if (bits === null) {
    $("saved").textContent = `${spec} does not come in a width of ${dim}`;
    $("sizes").replaceChildren();
    $("saved-words").textContent = "";
    return;
  }
  const compressed = (values * bits) / 8;
  $("saved").textContent = bits >= 16 ? "Nothing: these are not compressed" : `${bytes(exact - compressed)} saved, ${(16 / bits).toFixed(1)} times smaller`;
  bars($("sizes"), [
    { name: "f16, as models keep it", value: exact, words: bytes(exact) },
    { name: made("code", {}, spec), value: compressed, words: bytes(compressed), chosen: true },
  ]);
  const near = 2 * layers * heads * dim * 68 * 2;
  const source = model ? ` The model’s numbers: config.json of ${model.source}.` : "";
  $("saved-words").textContent = `${bits.toFixed(3)} bits a value in pages, keys and values together, everything counted, as the library says. The first 4 and the newest 64 to 127 tokens, which a cache keeps exact, are at least ${bytes(near)} in f16 on top.${source}`;
}

// Speed.

const askTimes = latest((given) => later("time", given));

async function measureSpeed() {
  if (!state.sample) return;
  const { spec } = state;
  $("again").disabled = true;
  let times;
  try {
    times = await askTimes({ spec, dim: state.sample.dim });
  } catch (error) {
    $("fast").textContent = error.message;
    return;
  }
  if (times === null) return;
  $("again").disabled = false;
  const ns = (x) => `${x < 10 ? x.toFixed(1) : x.toFixed(0)} ns`;
  const ratio = times.f32 / times.codec;
  const module = times.backend === "simd128" ? "WebAssembly with SIMD128" : "WebAssembly without SIMD";
  $("fast").textContent = `${ns(times.codec)} a key, ${ratio >= 1.05 ? `${ratio.toFixed(1)} times faster than` : ratio > 0.95 ? "as fast as" : `${(1 / ratio).toFixed(1)} times slower than`} plain f32`;
  bars($("times"), [
    { name: made("code", {}, times.spec), value: times.codec, words: ns(times.codec), chosen: true },
    { name: `f32, ${module}`, value: times.f32, words: ns(times.f32) },
    { name: "f32, a loop in JavaScript", value: times.script, words: ns(times.script) },
  ]);
  $("speed-words").textContent = `Scores q·k of one query with ${times.keys.toLocaleString("en")} keys of ${times.dim} values, the best of several runs on one thread. Plain f32 is the library’s f32 codec in the same module; the last line is a dot product with four sums on a Float32Array.`;
}

// Checksums.

async function verify() {
  const answer = await fetch("data/expected.txt");
  if (!answer.ok) throw new Error(`data/expected.txt: ${answer.status}`);
  const { backend, all, stated, rows, matches } = await later("verify", { table: await answer.text() });
  $("sum-here").textContent = all;
  $("sum-stated").textContent = stated;
  $("verdict").className = `figure ${matches ? "good" : "bad"}`;
  $("verdict").textContent = matches ? "✓ The same, bit for bit" : "✗ Not the same: this browser computes something else";
  $("verified").dataset.matches = String(matches);
  table($("checksums"), ["codec", "computed here", "stated", "verdict"], rows.map((row) => [row.name, made("code", {}, row.checksum), made("code", {}, row.stated), row.checksum === row.stated ? "✓ same" : "✗ differs"]));
  $("page-backend").textContent = `octaplex ran here on its backend ${backend}. Nothing on this page is loaded from elsewhere, and nothing leaves your browser.`;
}

// Files.

function fileError(words) {
  $("file-error").hidden = words === "";
  $("file-error").textContent = words;
}

/** Makes a file the sample. If something is wrong with it, the page stays as it is. */
async function open(name, buffer) {
  let sample;
  try {
    sample = await now("open", { name, bytes: new Uint8Array(buffer) });
  } catch (error) {
    return fileError(error.isFile ? error.message : `${name} cannot be read: ${error.message}`);
  }
  fileError("");
  await later("open", { name, bytes: new Uint8Array(buffer) });
  const { dim, layers, kvHeads, group, hasQueries, tokens, origin } = sample;
  state.bits = await now("bits", { specs: SPECS, kvHeads, dim });
  const heads = layers.length * kvHeads * group;
  const spec = state.bits[SPECS.indexOf(state.spec)] === null ? EVERY_WIDTH : state.spec;
  Object.assign(state, { sample, spec, head: hasQueries ? Math.min(state.head, heads - 1) : state.head, map: null });
  $("head").replaceChildren(...Array.from({ length: heads }, (_, head) => made("option", { value: head }, headName(head))));
  $("head").value = String(state.head);
  $("heads").hidden = $("preparation").hidden = $("output-tile").hidden = !hasQueries;
  $("error-name").textContent = hasQueries ? "KL of the weights, nats" : "distortion of the vectors";
  $("bits-name").textContent = hasQueries ? "bits a value, these keys" : "bits a value";
  const what = hasQueries ? `${layers.length} layers, ${kvHeads} KV heads, ${tokens} tokens of width ${dim}` : `${tokens} vectors of width ${dim}`;
  $("origin").textContent = `Shown now: ${name} (${what})${origin ? `; ${origin}` : ""}.`;
  $("rate-words").textContent = hasQueries
    ? "Lower is closer to exact attention; further left is smaller. Click on a mark to choose it."
    : "Lower is closer to the exact vectors; further left is smaller. Click on a mark to choose it.";
  offerRates();
  tablePoints();
  drawPlot();
  await Promise.all([showMaps(), measureAll()]);
}

async function openSample() {
  $("sample").hidden = true;
  $("file").value = "";
  const answer = await fetch("data/sample.safetensors");
  if (!answer.ok) throw new Error(`data/sample.safetensors: ${answer.status}`);
  await open("the bundled sample", await answer.arrayBuffer());
}

async function openFile(file) {
  if (!file) return;
  if (file.size > 2 ** 28) return fileError(`${file.name} has ${(file.size / 2 ** 20).toFixed(0)} MiB; this page takes at most 256: cut it to a few heads.`);
  $("sample").hidden = false;
  await open(file.name, await file.arrayBuffer());
  await measureSpeed();
}

// Controls.

/** Writes the choice into the address, so that the address can be shared. */
function save() {
  const { spec, prepared, head } = state;
  history.replaceState(null, "", `#${new URLSearchParams({ codec: spec, keys: prepared ? "cache" : "raw", head: String(head) })}`);
}

function restore() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (SPECS.includes(given.get("codec"))) state.spec = given.get("codec");
  state.prepared = given.get("keys") !== "raw";
  if (given.has("head")) state.head = Math.max(0, Math.trunc(Number(given.get("head"))) || 0);
  document.querySelector(`[name="prepared"][value="${state.prepared ? 1 : 0}"]`).checked = true;
}

const guarded = (act) => (...given) => act(...given)?.catch?.((error) => broken(error.message));

function listen() {
  $("family").onchange = () => {
    const { specs } = FAMILIES[Number($("family").value)];
    // Take the rate nearest to the last one.
    const of = (spec) => state.bits[SPECS.indexOf(spec)] ?? Infinity;
    const wanted = of(state.spec);
    guarded(choose)({ spec: specs.reduce((best, spec) => (Math.abs(of(spec) - wanted) < Math.abs(of(best) - wanted) ? spec : best)) });
  };
  $("rates").onchange = (event) => guarded(choose)({ spec: event.target.value });
  $("preparation").onchange = (event) => guarded(choose)({ prepared: event.target.value === "1" });
  $("head").onchange = () => guarded(choose)({ head: Number($("head").value) });
  $("controls").onsubmit = $("model-form").onsubmit = (event) => event.preventDefault();
  $("model").onchange = guarded(async () => {
    offerModel(MODELS[Number($("model").value)]);
    await showSavings();
  });
  for (const id of ["layers", "kv", "dim"])
    $(id).oninput = guarded(async () => {
      $("model").value = "own";
      await showSavings();
    });
  $("context").oninput = guarded(showSavings);
  $("again").onclick = guarded(measureSpeed);
  $("file").onchange = guarded(() => openFile($("file").files[0]));
  $("sample").onclick = guarded(openSample);
  for (const id of ["exact", "compressed", "difference"]) $(id).onpointermove = pointed;
  const isFile = (event) => event.dataTransfer?.types.includes("Files");
  document.ondragover = (event) => {
    if (isFile(event)) event.preventDefault();
    document.body.classList.toggle("dropping", isFile(event));
  };
  document.ondragleave = () => document.body.classList.remove("dropping");
  document.ondrop = (event) => {
    document.body.classList.remove("dropping");
    if (!isFile(event)) return;
    event.preventDefault();
    guarded(openFile)(event.dataTransfer.files[0]);
  };
  const redraw = () => {
    drawMaps();
    drawPlot();
  };
  new ResizeObserver(redraw).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").onchange = redraw;
}

async function main() {
  FAMILIES.forEach((family, i) => $("family").append(made("option", { value: i }, family.name)));
  $("dim").max = WIDTHS.length - 1;
  $("model").append(...MODELS.map((model, i) => made("option", { value: i }, model.name)), made("option", { value: "own" }, "numbers of my own"));
  offerModel(MODELS[0]);
  restore();
  listen();
  const savings = showSavings();
  const checked = verify(); // ahead of the plot, in the same worker
  await Promise.all([savings, checked, openSample()]);
  await measureSpeed();
  document.documentElement.dataset.ready = "true";
}

guarded(main)();
