import { Handle } from "./memory.js";
import { OctaplexError, known, show, whole } from "./error.js";

/** Vectors to bytes and back, scores and sums on the bytes. Made by `octaplex.codec(spec, options)`. */
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

  /** Bits of a value, everything stored counted but for lists of outliers (`med`). */
  get bitsPerValue() {
    return (8 * this.blockBytes) / this.dim;
  }

  /** Bytes that so many rows take; with outliers (`med`), at most. */
  bytesFor(rows) {
    return this.#wasm.codec_bytes_max(Handle.of(this), whole(rows, "rows")) >>> 0;
  }

  /** Rows, one after the other, as blocks: in `out`, or in an array of their own. */
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

  /** Blocks as rows. */
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

  /** Scores q·k of every query with every block, laid out [query][block]. */
  score(queries, blocks, out) {
    return this.#product(this.#wasm.codec_score, queries, "queries", blocks, out);
  }

  /** Sums of weight·v over the blocks, weights laid out [output][block], in the vectors' own basis. */
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
