import { Handle } from "./memory.js";
import { OctaplexError, known, show, whole } from "./error.js";

const NONE = 2 ** 32 - 1;
const CENTERS = ["off", "prefix", "page"];
const CONFIG = [
  "layers", "boundaryLayers", "kvHeads", "headDim", "keyDim", "valueDim", "capacity", "keys", "values", "cache_type_k",
  "cache_type_v", "bits", "profile", "page", "sinkTokens", "recentWindow", "center", "balance", "slidingWindow", "maxRollback",
  "queryHeads",
];
const ATTEND = ["queries", "scale", "softCap", "window", "keepSinks", "sinkLogits", "bias", "position"];
const STATS = [
  "tokens", "pagedTokens", "exactTokens", "nextPosition", "evictedTokens", "decodedTokens", "bytes", "pagedBytes", "sharedBytes", "values",
  "balancedHeads",
];
const FORMATS = { f32: 0, f16: 1, bf16: 2 };

/** The compressed keys and values of a model, and attention on them. `octaplex.cache(config)` and `loadCache` create it. */
export class Cache extends Handle {
  #wasm;
  #memory;
  #shapes;

  constructor(wasm, memory, handle) {
    super(memory, handle, wasm.cache_drop, "cache");
    this.#wasm = wasm;
    this.#memory = memory;
    this.#shapes = [];
    const layers = wasm.cache_shape(handle, 0) === -1 ? 0 : this.#shape(0).layers;
    this.layers = layers;
  }

  static make(wasm, memory, config) {
    known(config, CONFIG, "a cache's options");
    const number = (name, missing) => whole(config[name], name, missing);
    const keyDim = number("keyDim", config.headDim === undefined ? undefined : number("headDim"));
    const center = CENTERS.indexOf(config.center ?? "page");
    if (center < 0) throw new OctaplexError("Value", `center: off, prefix or page, got ${show(config.center)}`);
    const numbers = [
      number("layers", 1), number("boundaryLayers", 0), number("kvHeads"), keyDim, number("valueDim", keyDim),
      number("capacity"), number("page", NONE), number("sinkTokens", NONE), number("recentWindow", NONE), center,
      config.balance === false ? 0 : 1, number("slidingWindow", NONE), number("maxRollback", NONE),
      number("queryHeads", NONE),
    ];
    const [keys, values] = [spec(config, "keys", "cache_type_k"), spec(config, "values", "cache_type_v")];
    const bits = finite(config.bits, "bits");
    return run(memory, () => {
      const specs = [...memory.text(keys, "keys"), ...memory.text(values, "values")];
      const profile = config.profile === undefined ? [0, NONE] : memory.text(config.profile, "profile");
      const made = wasm.cache_new(memory.numbers(numbers), bits, ...specs, ...profile);
      return new Cache(wasm, memory, memory.check(made));
    });
  }

  static load(wasm, memory, bytes) {
    return run(memory, () => {
      const from = memory.span(bytes, Uint8Array, "bytes");
      return new Cache(wasm, memory, memory.check(wasm.cache_load(memory.place(from), from.length)));
    });
  }

  /** Returns the heads, widths and codecs of a layer. */
  shape(layer = 0) {
    return { ...this.#shape(this.#layer(layer)) };
  }

  #shape(layer) {
    let shape = this.#shapes[layer];
    if (shape === undefined) {
      const length = this.#memory.check(this.#wasm.cache_shape(Handle.of(this), layer));
      const [layers, kvHeads, keyDim, valueDim, keys, values] = JSON.parse(this.#memory.said(length));
      this.#shapes[layer] = shape = { layers, kvHeads, keyDim, valueDim, keys, values };
    }
    return shape;
  }

  #layer(layer) {
    return whole(layer, "layer");
  }

  /** Returns the bits a value in a layer's pages, everything counted. A long context approaches this rate. */
  pageBits(layer = 0) {
    this.#shape(this.#layer(layer));
    return this.#wasm.cache_page_bits(Handle.of(this), layer);
  }

  /** Appends tokens: keys and values as [head][token][width], in Float32Array, Float16Array, or Uint16Array with a format. */
  append(layer, keys, values, options = {}) {
    known(options, ["format"], "append's options");
    const [memory, handle] = [this.#memory, Handle.of(this)];
    return run(memory, () => {
      const tag = ArrayBuffer.isView(keys) ? keys[Symbol.toStringTag] : "";
      const Type = { Float16Array: globalThis.Float16Array, Uint16Array }[tag] ?? Float32Array;
      const format = FORMATS[options.format ?? { Float32Array: "f32", Float16Array: "f16" }[Type.name]];
      if (format === undefined || (format === 0) !== (Type === Float32Array))
        throw new OctaplexError("Type", `format: f16 or bf16 for a Uint16Array, f32 for a Float32Array, got ${show(options.format)}`);
      const [k, v] = [memory.span(keys, Type, "keys"), memory.span(values, Type, "values")];
      const [keysAt, valuesAt] = [memory.place(k), memory.place(v)];
      memory.check(this.#wasm.cache_append(handle, this.#layer(layer), format, keysAt, k.length, valuesAt, v.length));
    });
  }

  /** Decides a layer's balance from a prompt's keys and queries, before they are appended. */
  calibrate(layer, keys, queries) {
    const [memory, handle] = [this.#memory, Handle.of(this)];
    run(memory, () => {
      const [k, q] = [memory.span(keys, Float32Array, "keys"), memory.span(queries, Float32Array, "queries")];
      const [keysAt, queriesAt] = [memory.place(k), memory.place(q)];
      memory.check(this.#wasm.cache_calibrate(handle, this.#layer(layer), keysAt, k.length, queriesAt, q.length));
    });
  }

  /** Computes attention of queries, [query head][query][width]. Without `queryHeads` in the cache's options, pass `queries`. */
  attend(layer, queries, options, out) {
    const [memory, handle] = [this.#memory, Handle.of(this)];
    memory.begin();
    try {
      const shape = this.#shape(this.#layer(layer));
      const from = memory.span(queries, Float32Array, "queries");
      const to = memory.target(out, Float32Array, Math.floor(from.length / shape.keyDim) * shape.valueDim);
      const rest = options === undefined ? undefined : this.#options(options);
      // All spans are known, so memory may grow from here on.
      const at = memory.place(from, to);
      const given = rest === undefined ? 0 : memory.numbers(rest.flatMap((x) => (typeof x === "number" ? x : place(memory, x, to))));
      memory.check(this.#wasm.cache_attend(handle, layer, at, from.length, given, memory.room(to), to.length));
      return memory.give(to, Float32Array);
    } catch (error) {
      throw memory.exception(error);
    } finally {
      memory.end();
    }
  }

  /** Returns the options as numbers and spans of floats. */
  #options(options) {
    known(options, ATTEND, "attend's options");
    const memory = this.#memory;
    const float = (name) => finite(options[name], name, Math.fround);
    const floats = (name) => (options[name] === undefined ? null : memory.span(options[name], Float32Array, name));
    const [scale, softCap] = new Uint32Array(new Float32Array([float("scale"), float("softCap")]).buffer);
    return [
      whole(options.queries, "queries", NONE), whole(options.window, "window", NONE), whole(options.position, "position", NONE),
      options.keepSinks ? 1 : 0, scale, softCap, floats("bias"), floats("sinkLogits"),
    ];
  }

  /** Computes the scores q·k of one head, [query][token], without scale and mask, for your own softmax. */
  scores(layer, head, queries, out) {
    const [wasm, memory, handle] = [this.#wasm, this.#memory, Handle.of(this)];
    return run(memory, () => {
      const tokens = memory.check(wasm.cache_tokens(handle, this.#layer(layer)));
      const from = memory.span(queries, Float32Array, "queries");
      const to = memory.target(out, Float32Array, Math.floor(from.length / this.#shape(layer).keyDim) * tokens);
      const at = memory.place(from, to);
      memory.check(wasm.cache_scores(handle, layer, whole(head, "head"), at, from.length, memory.room(to), to.length));
      return memory.give(to, Float32Array);
    });
  }

  /** Computes Σ weight·v of one head. Weights are [query][token]. */
  accumulate(layer, head, weights, out) {
    const [wasm, memory, handle] = [this.#wasm, this.#memory, Handle.of(this)];
    return run(memory, () => {
      const tokens = memory.check(wasm.cache_tokens(handle, this.#layer(layer)));
      const from = memory.span(weights, Float32Array, "weights");
      const rows = Math.floor(from.length / Math.max(tokens, 1));
      const to = memory.target(out, Float32Array, rows * this.#shape(layer).valueDim);
      const at = memory.place(from, to);
      memory.check(wasm.cache_accumulate(handle, layer, whole(head, "head"), at, from.length, memory.room(to), to.length));
      return memory.give(to, Float32Array);
    });
  }

  /** Removes the tokens from a position on. */
  truncate(position) {
    const at = whole(position, "position");
    run(this.#memory, () => this.#memory.check(this.#wasm.cache_truncate(Handle.of(this), at)));
  }

  /** Drops the pages that lie entirely within these positions. Returns the dropped tokens, summed over layers. */
  evict(from, to) {
    const [first, end] = [whole(from, "from"), whole(to, "to")];
    return run(this.#memory, () => this.#wasm.cache_evict(Handle.of(this), first, end) >>> 0);
  }

  /** Removes all tokens. */
  clear() {
    run(this.#memory, () => this.#wasm.cache_clear(Handle.of(this)));
  }

  /** Creates a second cache with the same tokens. The two share pages. */
  fork() {
    const memory = this.#memory;
    return run(memory, () => new Cache(this.#wasm, memory, memory.check(this.#wasm.cache_fork(Handle.of(this)))));
  }

  /** Returns a snapshot, for `octaplex.loadCache` on any machine. */
  save() {
    const [wasm, memory] = [this.#wasm, this.#memory];
    return run(memory, () => {
      const where = memory.numbers([0, 0]);
      memory.check(wasm.cache_save(Handle.of(this), where));
      const [at, length] = memory.view(Uint32Array).subarray(where / 4, where / 4 + 2);
      const bytes = memory.view(Uint8Array).slice(at, at + length);
      wasm.cache_release(at, length);
      return bytes;
    });
  }

  /** Counts what the cache holds, over all layers. Counts of tokens are those of the layer with the most tokens. */
  stats() {
    const memory = this.#memory;
    return run(memory, () => {
      const numbers = JSON.parse(memory.said(this.#wasm.cache_stats(Handle.of(this))));
      const stats = Object.fromEntries(STATS.map((name, i) => [name, numbers[i]]));
      return { ...stats, ownBytes: stats.bytes - stats.sharedBytes, bitsPerValue: (8 * stats.bytes) / Math.max(stats.values, 1) };
    });
  }
}

/** Returns the address and length of floats, or zeros for none. */
function place(memory, span, target) {
  return span === null ? [0, 0] : [memory.place(span, target), span.length];
}

/** Returns a number that is finite, also after rounding, or NaN for undefined. */
function finite(value, name, round = Number) {
  if (value === undefined) return NaN;
  if (typeof value === "number" && Number.isFinite(round(value))) return value;
  throw new OctaplexError("Range", `${name}: a finite number, got ${show(value)}`);
}

/** Returns a spec under either of its names. */
function spec(config, name, alias) {
  const [given, other] = [config[name], config[alias]];
  if (given !== undefined && other !== undefined && given !== other)
    throw new OctaplexError("Conflict", `${name} and ${alias} are the same option, and say different things`);
  return given ?? other ?? ""; // the library's default
}

function run(memory, call) {
  memory.begin();
  try {
    return call();
  } catch (error) {
    throw memory.exception(error);
  } finally {
    memory.end();
  }
}
