// Reads keys, values and queries from a safetensors file, or vectors from an .npy file. Whatever is wrong with a file, the
// FileError says it in one sentence.
import { WIDTHS } from "./choices.js";

export class FileError extends Error {}

const LARGEST = 2 ** 28;
const TOKENS = 4096;

const fail = (sentence) => {
  throw new FileError(sentence);
};

/**
 * A sample to measure codecs on: name, origin, dim, tokens, layers (their numbers), kvHeads, group (query heads that share
 * a key/value head), positions (the token of each query), and rows by head: keys, values, queries. Plain vectors have
 * neither values nor queries.
 */
export function parse(name, bytes) {
  if (bytes.length === 0) fail(`${name} is empty.`);
  if (bytes.length > LARGEST) fail(`${name} has ${(bytes.length / 2 ** 20).toFixed(0)} MiB; this page takes at most 256: cut it to a few heads.`);
  const sample = [..."\x93NUMPY"].every((letter, i) => bytes[i] === letter.charCodeAt(0)) ? npy(name, bytes) : safetensors(name, bytes);
  if (!WIDTHS.includes(sample.dim)) fail(`${name} has vectors of width ${sample.dim}; codecs exist for ${WIDTHS.join(", ")}.`);
  return { name, ...sample };
}

const half = (() => {
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    table[bits] = sign * (exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction ? NaN : Infinity) : (1 + fraction / 1024) * 2 ** (exponent - 15));
  }
  return table;
})();

/** Returns little-endian values of any alignment as f32. */
function floats(bytes, kind) {
  const own = bytes.slice().buffer; // aligned; and engines with WebAssembly are little-endian
  switch (kind) {
    case "F16":
      return Float32Array.from(new Uint16Array(own), (bits) => half[bits]);
    case "BF16":
      return new Float32Array(Uint32Array.from(new Uint16Array(own), (bits) => bits << 16).buffer);
    case "F32":
      return new Float32Array(own);
    case "F64":
      return Float32Array.from(new Float64Array(own));
  }
}

const SIZES = { F16: 2, BF16: 2, F32: 4, F64: 8, I32: 4, I64: 8 };

function finite(values, name, dim) {
  const index = values.findIndex((value) => !Number.isFinite(value));
  if (index >= 0) fail(`${name}: row ${Math.floor(index / dim)}, column ${index % dim} is NaN or infinite.`);
  return values;
}

function npy(name, bytes) {
  const damaged = () => fail(`${name} has a damaged .npy header.`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 12) damaged();
  const start = bytes[6] === 1 ? 10 : 12;
  const length = bytes[6] === 1 ? view.getUint16(8, true) : view.getUint32(8, true);
  if (start + length > bytes.length) damaged();
  const header = new TextDecoder("latin1").decode(bytes.subarray(start, start + length));
  const [, kind] = /'descr':\s*'([^']*)'/.exec(header) ?? damaged();
  const [, order] = /'fortran_order':\s*(True|False)/.exec(header) ?? damaged();
  const [, list] = /'shape':\s*\(([\d,\s]*)\)/.exec(header) ?? damaged();
  if (order === "True") fail(`${name} is in Fortran order; save it with numpy.ascontiguousarray.`);
  const dtype = { "<f2": "F16", "<f4": "F32", "<f8": "F64" }[kind];
  if (dtype === undefined) fail(`${name} has values of type ${kind}; little-endian f2, f4 and f8 are read.`);
  const shape = list.split(",").flatMap((text) => (text.trim() === "" ? [] : [Number(text)]));
  if (shape.length < 2) fail(`${name} has the shape (${list.trim()}); rows of vectors are needed, [rows, width].`);
  const data = bytes.subarray(start + length);
  const count = shape.reduce((a, b) => a * b, 1);
  if (count * SIZES[dtype] !== data.length) fail(`${name} has the shape (${list.trim()}), which does not fit its ${data.length} bytes of values.`);
  if (count === 0) fail(`${name} has no vectors: its shape is (${list.trim()}).`);
  const dim = shape.at(-1);
  const tokens = Math.min(count / dim, TOKENS);
  const rows = finite(floats(data.subarray(0, tokens * dim * SIZES[dtype]), dtype), name, dim);
  return { origin: "", dim, tokens, layers: [0], kvHeads: 1, group: 1, positions: [], keys: [rows], values: null, queries: null };
}

function safetensors(name, bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const neither = (why) => fail(`${name} is neither a safetensors file with tensors k, v and q nor an .npy array of vectors${why}.`);
  if (bytes.length < 8) neither("; it may be damaged");
  const length = view.getUint32(0, true);
  if (bytes[0] === 0x50 && bytes[1] === 0x4b) neither("; it is a zip archive (.npz or .pt): save the arrays one by one, or as safetensors");
  if (view.getUint32(4, true) !== 0 || 8 + length > bytes.length) neither("; it may be damaged");
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, 8 + length)));
  } catch {
    neither("; it may be damaged");
  }
  if (header === null || typeof header !== "object") neither("; it may be damaged");
  const { __metadata__: metadata = {}, ...tensors } = header;
  const data = bytes.subarray(8 + length);
  const tensor = (wanted, dims) => {
    const { dtype, shape, data_offsets: [from, to] = [] } = tensors[wanted] ?? {};
    if (dtype === undefined) fail(`${name} has no tensor ${wanted}; k, v and q are needed, it has ${Object.keys(tensors).slice(0, 8).join(", ") || "none"}.`);
    const whole = Array.isArray(shape) && shape.every((n) => Number.isSafeInteger(n) && n > 0);
    if (!whole || shape.length !== dims) fail(`${name}: ${wanted} has the shape [${shape}]; ${dims === 4 ? "[layers, heads, tokens, width]" : "one dimension"} is needed.`);
    const count = shape.reduce((a, b) => a * b, 1);
    if (!(from >= 0 && to <= data.length && to - from === count * SIZES[dtype])) {
      if (SIZES[dtype] === undefined) fail(`${name}: ${wanted} is ${dtype}; F16, BF16, F32 and F64 are read.`);
      fail(`${name} is damaged: ${wanted} does not fit the file.`);
    }
    return { dtype, shape, count, bytes: data.subarray(from, to) };
  };
  const rows = (tensor, wanted) => floats(tensor.bytes, tensor.dtype) ?? fail(`${name}: ${wanted} is ${tensor.dtype}; F16, BF16, F32 and F64 are read.`);
  const whole = (wanted) => {
    const { dtype, bytes } = tensor(wanted, 1);
    const own = bytes.slice().buffer;
    if (dtype !== "I32" && dtype !== "I64") fail(`${name}: ${wanted} is ${dtype}; I32 and I64 are read.`);
    return dtype === "I32" ? [...new Int32Array(own)] : Array.from(new BigInt64Array(own), Number);
  };
  const [k, v, q] = ["k", "v", "q"].map((wanted) => tensor(wanted, 4));
  const [layers, kvHeads, all, dim] = k.shape;
  if (`${v.shape}` !== `${k.shape}`) fail(`${name}: v has the shape [${v.shape}], k has [${k.shape}]; they must be the same.`);
  const [qLayers, qHeads, count, qDim] = q.shape;
  if (qLayers !== layers || qDim !== dim) fail(`${name}: q has the shape [${q.shape}]; [${layers}, heads, queries, ${dim}] goes with these keys.`);
  if (qHeads % kvHeads !== 0) fail(`${name}: ${qHeads} query heads do not divide into ${kvHeads} key/value heads.`);
  let positions = tensors.q_pos ? whole("q_pos") : Array.from({ length: count }, (_, i) => all - count + i);
  if (positions.length !== count || positions.some((position) => !(position >= 0 && position < all)))
    fail(`${name}: the positions of its ${count} queries are not within its ${all} tokens.`);
  const numbers = tensors.layers ? whole("layers") : Array.from({ length: layers }, (_, i) => i);
  if (numbers.length !== layers) fail(`${name}: layers names ${numbers.length} of its ${layers} layers.`);
  // Long files: take the first tokens, and the queries of these tokens.
  const tokens = Math.min(all, TOKENS);
  const kept = positions.flatMap((position, i) => (position < tokens ? [i] : []));
  if (kept.length === 0) fail(`${name}: none of its queries is among its first ${TOKENS} tokens, which this page shows.`);
  positions = kept.map((i) => positions[i]);
  const heads = (wanted, tensor, rowsOf) => {
    const values = finite(rows(tensor, wanted), `${name}, ${wanted}`, dim);
    const size = tensor.shape[2] * dim;
    return Array.from({ length: values.length / size }, (_, head) => rowsOf(values.subarray(head * size, (head + 1) * size)));
  };
  const first = (values) => values.slice(0, tokens * dim);
  const chosen = (values) => Float32Array.from({ length: kept.length * dim }, (_, i) => values[kept[Math.floor(i / dim)] * dim + (i % dim)]);
  const origin = ["model", "text"].flatMap((key) => (typeof metadata[key] === "string" ? [metadata[key]] : [])).join(", ");
  return {
    origin, dim, tokens, layers: numbers, kvHeads, group: qHeads / kvHeads, positions,
    keys: heads("k", k, first), values: heads("v", v, first), queries: heads("q", q, chosen),
  };
}
