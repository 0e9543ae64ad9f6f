import { Handle } from "./memory.js";
import { OctaplexError, known, show, whole } from "./error.js";

/** Encodes and decodes vectors, and computes scores and sums on the bytes. `octaplex.codec(spec, options)` creates it. */
export class Codec extends Handle {
  #wasm;
  #memory;
  #plain;

  constructor(wasm, memory, spec, options) {
    known(options, ["dim", "layer", "head", "role"], "a codec's options");
    const { role = "keys" } = options;
    if (role !== "keys" && role !== "values") throw new OctaplexError("Value", `role: keys or values, got ${show(role)}`);
    const dim = whole(options.dim, "dim");
    const [layer, head] = [whole(options.layer, "layer", 0), whole(options.head, "head", 0)];
    memory.begin();
    let handle;
    try {
      const values = role === "values" ? 1 : 0;
      handle = memory.check(wasm.codec_new(...memory.text(spec, "spec"), dim, layer, head, values));
    } catch (error) {
      throw memory.exception(error);
    } finally {
      memory.end();
    }
    super(memory, handle, wasm.codec_drop, "codec");
    this.#wasm = wasm;
    this.#memory = memory;
    this.dim = dim;
    this.blockBytes = wasm.codec_block_bytes(handle);
    this.#plain = wasm.codec_bytes_max(handle, 2) === 2 * this.blockBytes;
    this.spec = wasm.codec_spec === undefined ? spec : memory.said(wasm.codec_spec(handle));
  }

  /** All stored bits divided by the number of values. Lists of outliers (`med`) are not counted. */
  get bitsPerValue() {
    return (8 * this.blockBytes) / this.dim;
  }

  /** Returns the bytes of `rows` rows. With outliers (`med`) this is the largest size. */
  bytesFor(rows) {
    return this.#wasm.codec_bytes_max(Handle.of(this), whole(rows, "rows")) >>> 0;
  }

  /** Encodes consecutive rows into blocks, in `out` or in a new array. */
  encode(rows, out) {
    const [wasm, memory, handle] = [this.#wasm, this.#memory, Handle.of(this)];
    memory.begin();
    try {
      const from = memory.span(rows, Float32Array, "rows");
      const to = memory.target(out, Uint8Array, wasm.codec_bytes_max(handle, (from.length / this.dim) | 0) >>> 0);
      const at = memory.place(from, to);
      const used = wasm.codec_encode(handle, at, from.length, memory.room(to), to.length);
      return memory.give(to, Uint8Array, memory.check(used));
    } catch (error) {
      throw memory.exception(error);
    } finally {
      memory.end();
    }
  }

  /** Decodes blocks into rows. */
  decode(blocks, out) {
    const [wasm, memory, handle] = [this.#wasm, this.#memory, Handle.of(this)];
    memory.begin();
    try {
      const from = memory.span(blocks, Uint8Array, "blocks");
      const span = out === undefined ? undefined : memory.span(out, Float32Array, "out");
      const at = memory.place(from, span);
      const to = memory.target(span, Float32Array, this.#rows(handle, at, from.length) * this.dim);
      memory.check(wasm.codec_decode(handle, at, from.length, memory.room(to), to.length));
      return memory.give(to, Float32Array);
    } catch (error) {
      throw memory.exception(error);
    } finally {
      memory.end();
    }
  }

  /** Computes scores q·k of all queries with all blocks, [query][block]. */
  score(queries, blocks, out) {
    return this.#product(this.#wasm.codec_score, queries, "queries", blocks, out);
  }

  /** Computes Σ weight·v over the blocks, in the basis of the rows. Weights are [output][block]. */
  accumulate(weights, blocks, out) {
    return this.#product(this.#wasm.codec_accumulate, weights, "weights", blocks, out);
  }

  #product(kernel, input, name, blocks, out) {
    const memory = this.#memory;
    const handle = Handle.of(this);
    memory.begin();
    try {
      const from = memory.span(input, Float32Array, name);
      const bytes = memory.span(blocks, Uint8Array, "blocks");
      const span = out === undefined ? undefined : memory.span(out, Float32Array, "out");
      const at = memory.place(from, span);
      const blocksAt = memory.place(bytes, span);
      const count = this.#rows(handle, blocksAt, bytes.length);
      const length = name === "queries" ? (from.length / this.dim) * count : (from.length / Math.max(count, 1)) * this.dim;
      const to = memory.target(span, Float32Array, Math.floor(length));
      memory.check(kernel(handle, at, from.length, blocksAt, bytes.length, memory.room(to), to.length));
      return memory.give(to, Float32Array);
    } catch (error) {
      throw memory.exception(error);
    } finally {
      memory.end();
    }
  }

  #rows(handle, at, length) {
    if (this.#plain && length % this.blockBytes === 0) return length / this.blockBytes;
    return this.#memory.check(this.#wasm.codec_rows(handle, at, length));
  }
}
