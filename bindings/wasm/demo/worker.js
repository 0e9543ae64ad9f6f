// Everything that takes time: codecs on a sample, checksums, timings. Two workers run: one for the last choice, one for the
// rest. So the page answers at once. A message is { id, task, ... }, and its answer { id, result } or { id, error }.
import { OctaplexError, load } from "./octaplex/index.js";
import { divergence, exactScores, relativeError, weights } from "./attention.js";
import { FileError, parse } from "./files.js";
import { forValues } from "./choices.js";

const octaplex = load({ codecs: "all" });
let sample;
let scores = new Map(); // exact ones, by query head

const FLOATS = ["f16", "bf16", "f32"];
const PAGE = 64;
/** Number of keys whose deviations decide the balance, as in `octaplex compare`. */
const CALIBRATION = 256;

const shared = (head) => Math.floor(head / sample.group);
const exact = (head) => {
  if (!scores.has(head)) scores.set(head, exactScores(sample.queries[head], sample.positions, sample.keys[shared(head)], sample.dim));
  return scores.get(head);
};

/** Every second query decides the balance. The others measure, for both ways of storing keys. */
const measured = () => sample.positions.flatMap((_, i) => (sample.positions.length === 1 || i % 2 === 1 ? [i] : []));

function calibration(kvHead) {
  const { group, dim, positions } = sample;
  const rows = sample.queries.slice(kvHead * group, (kvHead + 1) * group);
  if (positions.length === 1) return new Float32Array(0);
  const count = Math.ceil(positions.length / 2);
  return Float32Array.from({ length: rows.length * count * dim }, (_, i) => {
    const [row, query] = [Math.floor(i / (count * dim)), Math.floor(i / dim) % count];
    return rows[row][2 * query * dim + (i % dim)];
  });
}

/** Creates a cache of one head, with all tokens in pages except those that fill no page. */
function filled(wasm, kvHead, options) {
  const { dim, tokens } = sample;
  const exactly = { kvHeads: 1, headDim: dim, capacity: Math.max(tokens, PAGE), page: PAGE, sinkTokens: 0, recentWindow: 0, maxRollback: 0 };
  const cache = wasm.cache({ ...exactly, ...options });
  const keys = sample.keys[kvHead];
  const queries = options.balance === false || FLOATS.includes(options.keys) ? [] : calibration(kvHead);
  if (queries.length > 0) cache.calibrate(0, keys.slice(0, CALIBRATION * dim), queries);
  cache.append(0, keys, sample.values?.[kvHead] ?? keys);
  return cache;
}

function disposing(objects, use) {
  try {
    return use(...objects);
  } finally {
    objects.forEach((object) => object.dispose());
  }
}

/** Returns the stored bytes of a head's keys, and the scores of one or several query heads, [query][token]. */
function stored(wasm, spec, prepared, kvHead, queryHeads) {
  const { dim, tokens } = sample;
  if (!prepared || FLOATS.includes(spec)) {
    return disposing([wasm.codec(spec, { dim })], (codec) => {
      const blocks = codec.encode(sample.keys[kvHead]);
      return { bytes: blocks.length, scores: queryHeads.map((head) => codec.score(sample.queries[head], blocks)) };
    });
  }
  return disposing([filled(wasm, kvHead, { keys: spec, values: "f16" })], (cache) => {
    const bytes = cache.stats().bytes - 2 * tokens * dim;
    return { bytes, scores: queryHeads.map((head) => cache.scores(0, 0, sample.queries[head])) };
  });
}

const row = (scores, query) => scores.subarray(query * sample.tokens, (query + 1) * sample.tokens);

/** Returns bits a value, and the mean KL over all heads and queries. Plain vectors have their distortion instead. */
function measure(wasm, spec, prepared) {
  const { dim, tokens, group, kvHeads, layers } = sample;
  if (sample.queries === null) {
    const { decoded, bits } = decode(wasm, spec);
    return { bits, error: relativeError(sample.keys[0], decoded) };
  }
  let [bytes, sum, count] = [0, 0, 0];
  for (let kvHead = 0; kvHead < kvHeads * layers.length; kvHead++) {
    const heads = Array.from({ length: group }, (_, i) => kvHead * group + i);
    const head = stored(wasm, spec, prepared, kvHead, heads);
    bytes += head.bytes;
    heads.forEach((queryHead, i) => {
      for (const query of measured()) {
        sum += divergence(exact(queryHead)[query], row(head.scores[i], query), dim);
        count++;
      }
    });
  }
  return { bits: (8 * bytes) / (kvHeads * layers.length * tokens * dim), error: sum / count };
}

function decode(wasm, spec) {
  return disposing([wasm.codec(spec, { dim: sample.dim })], (codec) => {
    const blocks = codec.encode(sample.keys[0]);
    return { decoded: codec.decode(blocks), bits: (8 * blocks.length) / sample.keys[0].length };
  });
}

/** Returns the outputs of attention with keys and values in this codec. */
function outputError(wasm, spec, prepared, head) {
  const { dim, positions } = sample;
  const [queries, values] = [sample.queries[head], sample.values[shared(head)]];
  const options = { keys: spec, values: forValues(spec), ...(prepared ? {} : { center: "off", balance: false }) };
  return disposing([filled(wasm, shared(head), options)], (cache) => {
    const [outputs, truth] = [[], []];
    positions.forEach((position, query) => {
      outputs.push(...cache.attend(0, queries.slice(query * dim, (query + 1) * dim), { queries: 1, position }));
      const output = new Float64Array(dim);
      weights(exact(head)[query], dim).forEach((weight, token) => {
        for (let i = 0; i < dim; i++) output[i] += weight * values[token * dim + i];
      });
      truth.push(...output);
    });
    return relativeError(truth, outputs);
  });
}

/** Computes scores of float vectors in plain JavaScript. */
function plainScores(query, keys, out) {
  const dim = query.length;
  for (let token = 0, at = 0; token < out.length; token++) {
    let [a, b, c, d] = [0, 0, 0, 0];
    for (let i = 0; i < dim; i += 4, at += 4) {
      a += query[i] * keys[at];
      b += query[i + 1] * keys[at + 1];
      c += query[i + 2] * keys[at + 2];
      d += query[i + 3] * keys[at + 3];
    }
    out[token] = a + b + (c + d);
  }
}

const KEYS = 4096;

/** Returns the fastest of some runs of ten milliseconds, in nanoseconds a key. */
function nanoseconds(run) {
  run();
  let [times, shortest] = [1, Infinity];
  for (let i = 0; i < 12; i++) {
    const start = performance.now();
    for (let j = 0; j < times; j++) run();
    const took = performance.now() - start;
    if (took < 8) {
      times = Math.ceil(times * Math.min(10 / Math.max(took, 0.1), 50));
      i = Math.min(i, 3);
    } else shortest = Math.min(shortest, (1e6 * took) / times / KEYS);
  }
  return shortest;
}

/** Computes FNV-1a, folded, over the checksums: the last line of `octaplex verify`. */
function together(sums) {
  let fold = 0xcbf29ce484222325n;
  for (const sum of sums)
    for (let byte = 0n; byte < 4n; byte++) fold = BigInt.asUintN(64, (fold ^ ((BigInt(sum) >> (8n * byte)) & 255n)) * 0x100000001b3n);
  return ((fold >> 32n) ^ (fold & 0xffffffffn)).toString(16).padStart(8, "0");
}

const TASKS = {
  /** Makes a file the sample. */
  open(wasm, { name, bytes }) {
    sample = parse(name, bytes);
    scores = new Map();
    const { origin, dim, tokens, layers, kvHeads, group, positions } = sample;
    return { name, origin, dim, tokens, layers, kvHeads, group, positions, hasQueries: sample.queries !== null };
  },

  codecs: (wasm) => ({ backend: wasm.backend, codecs: wasm.codecs() }),

  /** Returns for each spec the bits a value in pages of a model, or null if the codec lacks this width. */
  bits(wasm, { specs, kvHeads, dim }) {
    return specs.map((spec) => {
      try {
        const options = { kvHeads, headDim: dim, capacity: 1024, keys: spec, values: forValues(spec) };
        return disposing([wasm.cache(options)], (cache) => cache.pageBits());
      } catch (error) {
        if (error.code === "Width") return null;
        throw error;
      }
    });
  },

  /** Returns the attention weights of a query head, exact and compressed, [query][token]. Plain vectors have their values. */
  maps(wasm, { spec, prepared, head }) {
    const { dim, tokens, positions } = sample;
    if (sample.queries === null) {
      const { decoded, bits } = decode(wasm, spec);
      return { exact: sample.keys[0], compressed: decoded, bits, error: relativeError(sample.keys[0], decoded) };
    }
    const of = stored(wasm, spec, prepared, shared(head), [head]);
    const [exactMap, compressed] = [new Float32Array(positions.length * tokens), new Float32Array(positions.length * tokens)];
    const divergences = positions.map((position, query) => {
      const approximate = row(of.scores[0], query);
      exactMap.set(weights(exact(head)[query], dim), query * tokens);
      compressed.set(weights(approximate, dim, position + 1), query * tokens);
      return divergence(exact(head)[query], approximate, dim);
    });
    const used = measured();
    const error = used.reduce((sum, query) => sum + divergences[query], 0) / used.length;
    return { exact: exactMap, compressed, divergences, bits: (8 * of.bytes) / (tokens * dim), error, output: outputError(wasm, spec, prepared, head) };
  },

  /** Returns the points of a spec in the plot: keys as the cache stores them, and raw keys. */
  point(wasm, { spec }) {
    const raw = measure(wasm, spec, false);
    return { spec, raw, prepared: sample.queries === null || FLOATS.includes(spec) ? raw : measure(wasm, spec, true) };
  },

  verify(wasm, { table }) {
    const { backend, all, codecs } = wasm.verify();
    const stated = new Map(table.trim().split("\n").map((line) => [line.slice(0, line.indexOf(" ")), line.slice(line.indexOf(" ") + 1)]));
    const rows = codecs.map(({ name, checksum }) => ({ name, checksum, stated: stated.get(name) ?? "none" }));
    const sums = [...stated.values()].flatMap((text) => text.split(" ").map((word) => parseInt(word, 16)));
    const matches = all === together(sums) && rows.length === stated.size && rows.every((row) => row.checksum === row.stated);
    return { backend, all, stated: together(sums), rows, matches };
  },

  /** Times the scores of one query with 4,096 keys: of a codec, of f32 in the same module, and of a loop in JavaScript. */
  time(wasm, { spec, dim }) {
    const keys = Float32Array.from({ length: KEYS * dim }, (_, i) => Math.sin(i * i));
    const query = keys.slice(0, dim);
    const of = (name) =>
      disposing([wasm.codec(name, { dim }), wasm.floats(dim), wasm.floats(KEYS)], (codec, queries, out) => {
        queries.set(query);
        const encoded = codec.encode(keys);
        return disposing([wasm.bytes(encoded.length)], (blocks) => {
          blocks.set(encoded);
          const [q, b, o] = [queries, blocks, out].map((buffer) => buffer.view);
          return nanoseconds(() => codec.score(q, b, o));
        });
      });
    const out = new Float32Array(KEYS);
    return { spec, dim, keys: KEYS, backend: wasm.backend, codec: of(spec), f32: of("f32"), script: nanoseconds(() => plainScores(query, keys, out)) };
  },
};

onmessage = async ({ data: { id, task, ...given } }) => {
  try {
    postMessage({ id, result: TASKS[task](await octaplex, given) });
  } catch (error) {
    const isFile = error instanceof FileError;
    if (!isFile && !(error instanceof OctaplexError)) console.error(error);
    postMessage({ id, error: { isFile, code: error.code ?? "", message: error.message } });
  }
};
