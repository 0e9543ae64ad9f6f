import { OctaplexError, show, whole } from "./error.js";

const KEPT = 1 << 24; // bytes of staging memory that stay allocated
/** The `Memory` of each module's buffer, so that another module's views are checked too. */
const MEMORIES = new WeakMap();
/** The `Buffer` of each view that a buffer returned, to name the reason if the view is detached. */
const OWNERS = new WeakMap();

/** The address and length of an argument. `at` is -1 for an array outside the module's memory. */
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
 * The module's memory. Calls pass arrays in it by address. Other arrays are staged: copied in before the call and out after
 * it. A call is `begin`, spans, `place`, the module's function, `check`, `give`, and always `end`.
 */
export class Memory {
  #stage = { at: 0, size: 0 };
  /** Staging memory that the last call lacked. The next call that stages allocates it. */
  #wanted = 0;
  #used = 0;
  #extra = [];
  #wasm;
  #decoder = new TextDecoder();
  #encoder = new TextEncoder();
  #views = {};
  /** Living buffers as [start, end], in ascending order. Views elsewhere in the memory are refused. */
  #living = [];
  /** Whether views of a disposed buffer may exist that are not detached. */
  #stale = false;
  /** The buffer at the start of a call. It is stored because asking the engine is slow. */
  #buffer;
  /** The reason why calls are refused: a bug of the library, or memory that ran out within a call. */
  #broken = null;

  constructor(wasm) {
    this.#wasm = wasm;
  }

  /** Returns a view of all memory, of the current buffer. Growth replaces the buffer. */
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
    // Do not allocate here: growth would detach the view of the result.
    if (sum <= KEPT) this.#wanted = sum;
  }

  /** Allocates zeros until they are released. */
  allocate(bytes) {
    const at = bytes < 2 ** 32 - 65536 ? this.#wasm.allocate(bytes) >>> 0 : 0;
    if (at === 0)
      throw new OctaplexError("OutOfMemory", `${bytes} bytes more do not fit WebAssembly's memory: dispose of what is done with`);
    return at;
  }

  /**
   * Allocates a buffer. It may lie where a disposed one was, so views of that one are detached first: growing by nothing
   * replaces the memory's `ArrayBuffer`.
   */
  acquire(bytes) {
    this.begin();
    const at = this.allocate(bytes);
    if (this.#stale) this.#wasm.memory.grow(0);
    this.#stale = false;
    this.#living.splice(this.#before(at) + 1, 0, [at, at + bytes]);
    return at;
  }

  /** Frees a buffer. */
  release(at, bytes) {
    this.#living.splice(this.#before(at), 1);
    this.#stale = true;
    if (this.#broken === null) this.#wasm.release(at, bytes);
  }

  /** Returns the index of the last living buffer that starts at or before an address, or -1. */
  #before(at) {
    let [low, high] = [0, this.#living.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#living[middle][0] <= at) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** Returns whether bytes of this memory lie in one living buffer. */
  #holds(at, bytes) {
    const found = this.#before(at);
    return found >= 0 && at + bytes <= this.#living[found][1];
  }

  /** Allocates memory for this call. */
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

  /** Checks the type of an argument. It compares names, so that types of other realms work. */
  span(array, Type, name) {
    if (!(array instanceof Type) && !(ArrayBuffer.isView(array) && array[Symbol.toStringTag] === Type.name))
      throw new OctaplexError("Type", `${name}: a ${Type.name}, got ${show(array)}`);
    const { length, buffer } = array;
    if (length === 0) expectAttached(array, name);
    const inside = buffer === this.#buffer;
    const memory = inside ? this : MEMORIES.get(buffer);
    if (memory !== undefined && length > 0 && !memory.#holds(array.byteOffset, array.byteLength))
      throw new OctaplexError("Disposed", `${name}: ${OUTSIDE}`);
    return new Span(array, inside ? array.byteOffset : -1, length, Type.BYTES_PER_ELEMENT);
  }

  /** Returns whether a view exists and is not detached. */
  isCurrent(view) {
    return view !== undefined && view.buffer === this.#wasm.memory.buffer;
  }

  /** Returns a view of a buffer's values, for the user. */
  viewOf(owner, Type, at, length) {
    const { buffer } = this.#wasm.memory;
    const view = new Type(buffer, at, length);
    MEMORIES.set(buffer, this);
    if (owner !== undefined) OWNERS.set(view, owner);
    return view;
  }

  /**
   * Returns the span to write to: the caller's array of at least this length, or none yet. `out` may already be a span. A
   * call needs that if it places inputs before it knows the length, because growth may detach the caller's view.
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

  /** Copies an input to the module's memory, unless it is there already and no output overwrites it. */
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

  /** Allocates memory for an output. */
  room(target) {
    if (target.at < 0) {
      target.staged = true;
      target.at = this.#take(target.bytes);
    }
    return target.at;
  }

  /** Returns the first `length` values of an output as the caller's array. */
  give(target, Type, length = target.length) {
    const { source } = target;
    if (!target.staged) {
      // The memory may have grown during the call, which detaches the caller's view.
      if (!this.isCurrent(source)) return this.viewOf(OWNERS.get(source), Type, target.at, length);
      return source.length === length ? source : source.subarray(0, length);
    }
    const from = target.at / Type.BYTES_PER_ELEMENT;
    const all = this.view(Type);
    if (source === undefined) return all.slice(from, from + length);
    source.set(all.subarray(from, from + length));
    return source.length === length ? source : source.subarray(0, length);
  }

  /** Writes a string to staging memory. Returns [address, length]. */
  text(text, name) {
    if (typeof text !== "string") throw new OctaplexError("Type", `${name}: a string, got ${show(text)}`);
    const bytes = this.#encoder.encode(text);
    const at = this.#take(bytes.length);
    this.view(Uint8Array).set(bytes, at);
    return [at, bytes.length];
  }

  /** Writes numbers to staging memory. */
  numbers(numbers) {
    const at = this.#take(4 * numbers.length);
    new Uint32Array(this.#wasm.memory.buffer, at, numbers.length).set(numbers);
    return at;
  }

  /** Returns the result of a function of the module. Throws if it failed. */
  check(result) {
    if (result === -1) throw this.#error();
    return result >>> 0;
  }

  /** Returns the string that the module wrote. */
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

  /** Ends a call when the module cannot continue. */
  fail(length) {
    const error = this.#error(length);
    this.#broken = error.message;
    if (error.message.includes("memory allocation of")) error.code = "OutOfMemory";
    throw error;
  }

  /** Converts an exception of a call for the caller, also if the engine stopped the module. */
  exception(error) {
    if (error instanceof OctaplexError) return error;
    if (error instanceof WebAssembly.RuntimeError || error instanceof RangeError) {
      this.#broken = error.message;
      return new OctaplexError("Internal", error.message, { cause: error });
    }
    return error;
  }
}

const OUTSIDE =
  "this part of the module's memory is not in a living buffer. Its buffer was disposed of, or the view crosses the buffer's end: " +
  "pass the view, or a part of the view, of a buffer that is in use";

function expectAttached(array, name) {
  try {
    new Uint8Array(array.buffer);
  } catch {
    if (OWNERS.has(array)) Buffer.expectLiving(OWNERS.get(array), `${name}: `);
    throw new OctaplexError("Detached", `${name}: the module's memory has changed since this view was created: read the buffer's view again`);
  }
}

/** Memory of the module. Calls read and write arrays in it without a copy. */
class Buffer {
  #memory;
  #at;
  #Type;
  #view;

  constructor(memory, Type, length) {
    this.#memory = memory;
    this.#Type = Type;
    this.length = whole(length, "length");
    this.#at = memory.acquire(this.length * Type.BYTES_PER_ELEMENT);
  }

  /**
   * The values. Read this property again after calls that may grow the memory, and after the creation of buffers: an
   * earlier view may then be empty.
   */
  get view() {
    Buffer.expectLiving(this, "");
    if (!this.#memory.isCurrent(this.#view)) this.#view = this.#memory.viewOf(this, this.#Type, this.#at, this.length);
    return this.#view;
  }

  /** Throws after disposal. */
  static expectLiving(buffer, name) {
    if (buffer.#at === 0) throw new OctaplexError("Disposed", `${name}this buffer was disposed of`);
  }

  /** Copies values into the memory. `buffer.view.set(codec.encode(rows))` is wrong: it reads the view before the call that may detach it. */
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

/** The base of codecs and caches: a handle of the module, and its disposal. */
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

  /** Returns the handle. Throws after disposal. */
  static of(object) {
    if (object.#handle === 0) throw new OctaplexError("Disposed", `this ${object.#name} was disposed of`);
    return object.#handle;
  }

  /** Frees the memory. A second call does nothing. */
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

/** Frees objects without `dispose()`, some time after they become unreachable. */
const FORGOTTEN = new FinalizationRegistry(({ memory, handle, drop: dropping }) => drop(memory, handle, dropping));
