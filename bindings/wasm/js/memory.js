import { OctaplexError, show, whole } from "./error.js";

const KEPT = 1 << 24; // bytes of staging memory that stay allocated

/** An argument: where its values lie, and how many. `at` is -1 for an array outside the module's memory. */
class Span {
  constructor(source, at, length, size) {
    this.source = source;
    this.at = at;
    this.length = length;
    this.bytes = length * size;
    this.staged = false;
  }
}

/**
 * The module's memory. Arrays that lie in it go through by their address; others are staged, copied in for the call and
 * out after it. A call is `begin`, spans, `place`, the module's function, `check`, `give`, and `end` whatever happens.
 */
export class Memory {
  #stage = { at: 0, size: 0 };
  /** Staging memory that the last call lacked: the next one that stages gets it. */
  #wanted = 0;
  #used = 0;
  #extra = [];
  #wasm;
  #decoder = new TextDecoder();
  #encoder = new TextEncoder();
  #views = {};
  /** As it is when a call begins: asking the engine takes as long as the rest of a span. */
  #buffer;
  /** Why no call can be trusted any more: a bug of the library, or memory that ran out in the middle of a call. */
  #broken = null;

  constructor(wasm) {
    this.#wasm = wasm;
  }

  /** A view of all memory, of the buffer of today: growth replaces it. */
  view(Type) {
    const { buffer } = this.#wasm.memory;
    let view = this.#views[Type.name];
    if (view === undefined || view.buffer !== buffer) this.#views[Type.name] = view = new Type(buffer);
    return view;
  }

  get size() {
    return this.#wasm.memory.buffer.byteLength;
  }

  begin() {
    if (this.#broken !== null)
      throw new OctaplexError("Broken", `an earlier call failed (${this.#broken}): load the module anew`);
    this.#used = 0;
    this.#buffer = this.#wasm.memory.buffer;
  }

  end() {
    if (this.#extra.length === 0) return;
    let sum = this.#used;
    for (const { at, size } of this.#extra) {
      if (this.#broken === null) this.#wasm.release(at, size);
      sum += size;
    }
    this.#extra = [];
    // Not allocated here, where memory that grows would take the result's view its values.
    if (sum <= KEPT) this.#wanted = sum;
  }

  /** Zeros that stay until they are released. */
  allocate(bytes) {
    const at = bytes < 2 ** 32 - 65536 ? this.#wasm.allocate(bytes) >>> 0 : 0;
    if (at === 0)
      throw new OctaplexError("OutOfMemory", `${bytes} bytes more do not fit WebAssembly's memory: dispose of what is done with`);
    return at;
  }

  release(at, bytes) {
    if (this.#broken === null) this.#wasm.release(at, bytes);
  }

  /** Memory for this call. */
  #take(bytes) {
    if (this.#wanted > 0 && this.#used === 0 && this.#extra.length === 0) {
      if (this.#stage.at !== 0) this.#wasm.release(this.#stage.at, this.#stage.size);
      const at = this.#wasm.allocate(this.#wanted) >>> 0;
      this.#stage = { at, size: at === 0 ? 0 : this.#wanted };
      this.#wanted = 0;
    }
    const at = this.#stage.at + this.#used;
    const taken = (bytes + 15) & ~15;
    if (bytes < 2 ** 31 && this.#used + taken <= this.#stage.size) {
      this.#used += taken;
      return at;
    }
    const size = Math.max(bytes, 1);
    const extra = this.allocate(size);
    this.#extra.push({ at: extra, size });
    return extra;
  }

  /** An argument of that type: of this realm's, or of another's by its name. */
  span(array, Type, name) {
    if (!(array instanceof Type) && !(ArrayBuffer.isView(array) && array[Symbol.toStringTag] === Type.name))
      throw new OctaplexError("Type", `${name}: a ${Type.name}, got ${show(array)}`);
    const { length } = array;
    if (length === 0) expectAttached(array, name);
    const inside = array.buffer === this.#buffer;
    return new Span(array, inside ? array.byteOffset : -1, length, Type.BYTES_PER_ELEMENT);
  }

  /**
   * The array to write to: the caller's, of at least that length, or none yet. A span of it where others were placed
   * before its length is known: memory may have grown, and taken the caller's view its values.
   */
  target(out, Type, length) {
    const size = Type.BYTES_PER_ELEMENT;
    if (out === undefined) return new Span(undefined, -1, length, size);
    const span = out instanceof Span ? out : this.span(out, Type, "out");
    if (span.length < length) throw new OctaplexError("Length", `out: expected ${length}, got ${span.length}`);
    span.length = length;
    span.bytes = length * size;
    return span;
  }

  /** Puts an input where the module sees it, and where no output is written over it. */
  place(span, target) {
    const overlaps =
      target !== undefined && target.at >= 0 && span.at < target.at + target.bytes && target.at < span.at + span.bytes;
    if (span.at >= 0 && !overlaps) return span.at;
    const { source, at: from } = span;
    const at = this.#take(span.bytes);
    if (from >= 0) this.view(Uint8Array).copyWithin(at, from, from + span.bytes);
    else if (source instanceof Float32Array) this.view(Float32Array).set(source, at / 4);
    else this.view(Uint8Array).set(new Uint8Array(source.buffer, source.byteOffset, span.bytes), at);
    span.at = at;
    return at;
  }

  /** Room for an output. */
  room(target) {
    if (target.at < 0) {
      target.staged = true;
      target.at = this.#take(target.bytes);
    }
    return target.at;
  }

  /** The output's first `length` values, as an array of the caller's. */
  give(target, Type, length = target.length) {
    const { source } = target;
    if (!target.staged) {
      // The caller's view is of a memory that may have grown during the call.
      if (source.buffer !== this.#wasm.memory.buffer) return new Type(this.#wasm.memory.buffer, target.at, length);
      return source.length === length ? source : source.subarray(0, length);
    }
    const from = target.at / Type.BYTES_PER_ELEMENT;
    const all = this.view(Type);
    if (source === undefined) return all.slice(from, from + length);
    source.set(all.subarray(from, from + length));
    return source.length === length ? source : source.subarray(0, length);
  }

  /** Text in staging memory, as [address, length]. */
  text(text, name) {
    if (typeof text !== "string") throw new OctaplexError("Type", `${name}: a string, got ${show(text)}`);
    const bytes = this.#encoder.encode(text);
    const at = this.#take(bytes.length);
    this.view(Uint8Array).set(bytes, at);
    return [at, bytes.length];
  }

  /** Numbers in staging memory. */
  numbers(numbers) {
    const at = this.#take(4 * numbers.length);
    new Uint32Array(this.#wasm.memory.buffer, at, numbers.length).set(numbers);
    return at;
  }

  /** What a function of the module returned, unless it failed. */
  check(result) {
    if (result === -1) throw this.#error();
    return result >>> 0;
  }

  /** Text that the module wrote. */
  said(length) {
    const at = this.#wasm.text() >>> 0;
    return this.#decoder.decode(this.view(Uint8Array).subarray(at, at + length));
  }

  #error(length) {
    const at = this.#wasm.text() >>> 0;
    const end = length === undefined ? this.view(Uint8Array).indexOf(0, at) : at + length;
    const [code, ...words] = this.said(end - at).split("\n");
    return new OctaplexError(code, words.join("\n"));
  }

  /** The module's way out where it cannot go on. */
  fail(length) {
    const error = this.#error(length);
    this.#broken = error.message;
    if (error.message.includes("memory allocation of")) error.code = "OutOfMemory";
    throw error;
  }

  /** An exception of a call, as the caller gets it: also where the engine stopped the module. */
  exception(error) {
    if (error instanceof OctaplexError) return error;
    if (error instanceof WebAssembly.RuntimeError || error instanceof RangeError) {
      this.#broken = error.message;
      return new OctaplexError("Internal", error.message, { cause: error });
    }
    return error;
  }
}

function expectAttached(array, name) {
  try {
    new Uint8Array(array.buffer);
  } catch {
    throw new OctaplexError("Detached", `${name}: the module's memory has grown since this view was made; take the buffer's view anew`);
  }
}

/** Memory of the module's, handed out: arrays in it go into calls, and results into them, without a copy. */
class Buffer {
  #memory;
  #at;
  #Type;

  constructor(memory, Type, length) {
    this.#memory = memory;
    this.#Type = Type;
    this.length = whole(length, "length");
    this.#memory.begin();
    this.#at = memory.allocate(this.length * Type.BYTES_PER_ELEMENT);
  }

  /** The values. Take it anew after calls that may have made memory grow: a view of before has no values then. */
  get view() {
    if (this.#at === 0) throw new OctaplexError("Disposed", "this buffer was disposed of");
    return new this.#Type(this.#memory.view(Uint8Array).buffer, this.#at, this.length);
  }

  /** Copies values in; `buffer.view.set(codec.encode(rows))` would take the view before the call that may outdate it. */
  set(values, offset = 0) {
    this.view.set(values, offset);
  }

  dispose() {
    if (this.#at !== 0) this.#memory.release(this.#at, this.length * this.#Type.BYTES_PER_ELEMENT);
    this.#at = 0;
  }

  [Symbol.dispose ?? Symbol.for("Symbol.dispose")]() {
    this.dispose();
  }
}

export class Floats extends Buffer {
  constructor(memory, length) {
    super(memory, Float32Array, length);
  }
}

export class Bytes extends Buffer {
  constructor(memory, length) {
    super(memory, Uint8Array, length);
  }
}

/** What codecs and caches share: a handle of the module's, and its end. */
export class Handle {
  #handle;
  #drop;
  #name;
  #memory;

  constructor(memory, handle, drop, name) {
    this.#memory = memory;
    this.#handle = handle;
    this.#drop = drop;
    this.#name = name;
    FORGOTTEN.register(this, { memory, handle, drop }, this);
  }

  /** The number, while it is one. */
  static of(object) {
    if (object.#handle === 0) throw new OctaplexError("Disposed", `this ${object.#name} was disposed of`);
    return object.#handle;
  }

  /** Frees the memory. A second time, nothing happens. */
  dispose() {
    if (this.#handle === 0) return;
    FORGOTTEN.unregister(this);
    drop(this.#memory, this.#handle, this.#drop);
    this.#handle = 0;
  }

  [Symbol.dispose ?? Symbol.for("Symbol.dispose")]() {
    this.dispose();
  }
}

function drop(memory, handle, dropping) {
  try {
    memory.begin(); // A broken module frees nothing.
  } catch {
    return;
  }
  dropping(handle);
}

/** Frees what nobody disposed of, some time after nobody can reach it. */
const FORGOTTEN = new FinalizationRegistry(({ memory, handle, drop: dropping }) => drop(memory, handle, dropping));
