/** The kind of an error. Its `message` says what was wrong and what was expected. */
export type ErrorCode =
  // Errors of the library: see its `Error`.
  | "NonFinite" | "Overflow" | "Weight" | "Length" | "Row" | "Page" | "Missing" | "Capacity" | "Rows" | "Heads" | "Width"
  | "Corrupt" | "Full" | "Dropped" | "Empty" | "Snapshot" | "UnknownCodec" | "UnknownKey" | "Value" | "Conflict"
  | "Unsupported" | "Profile" | "ProfileShape" | "Other"
  // An argument has the wrong type, a number is out of range, or an option does not exist.
  | "Type" | "Range" | "UnknownOption"
  // An object was used after its `dispose()`, or a view after the memory grew.
  | "Disposed" | "Detached"
  // The module is missing or not octaplex's; memory ran out; octaplex has a bug; the module was used after a bug.
  | "Load" | "OutOfMemory" | "Internal" | "Broken";

export class OctaplexError extends Error {
  readonly name: "OctaplexError";
  readonly code: ErrorCode;
}

export interface LoadOptions {
  /** Chooses the build with SIMD128 or the plain one. The default is what the engine supports. */
  simd?: boolean;
  /** `recommended` (the default) has `trellis`, `graded`, `turboquant` and plain floats. `all` has every codec and is twice as large. */
  codecs?: "recommended" | "all";
  /** Address of the module, if it is not next to this package's files. */
  url?: string | URL;
  /** The module itself. */
  module?: WebAssembly.Module | BufferSource;
}

/** Loads the module. Each call creates an instance with its own memory. */
export function load(options?: LoadOptions): Promise<Octaplex>;

/** Returns whether this engine has SIMD128. */
export function hasSimd(): boolean;

/** Addresses of this package's modules. */
export const urls: { readonly plain: URL; readonly simd: URL; readonly allPlain: URL; readonly allSimd: URL };

interface Disposal {
  /** Calls `dispose`, for `using`. Engines without `Symbol.dispose` use the registered symbol of that name. */
  [Symbol.dispose](): void;
  /** Frees the memory. A second call does nothing. Any other call then throws an error (`Disposed`). */
  dispose(): void;
}

/** Memory of the module. Pass its view, or parts of the view, as arguments or as `out`: calls then copy nothing. */
export interface Buffer<View> extends Disposal {
  readonly length: number;
  /** The values, initially zeros. Read this property again after calls that may grow the memory. */
  readonly view: View;
  /** Copies values into the memory. */
  set(values: ArrayLike<number>, offset?: number): void;
}
export type Floats = Buffer<Float32Array>;
export type Bytes = Buffer<Uint8Array>;

export interface CodecOptions {
  /** Width of a row: 32, 64, 80, 96, 112, 128, 160, 192, 256, 512 or 576. */
  dim: number;
  /** Number of the layer. Layer, head and role choose the rotation. */
  layer?: number;
  head?: number;
  role?: "keys" | "values";
}

/** Encodes and decodes vectors, and computes scores and sums on the bytes. Calls write to `out` if you pass it, and return the result. */
export interface Codec extends Disposal {
  readonly spec: string;
  readonly dim: number;
  readonly blockBytes: number;
  /** All stored bits divided by the number of values. Lists of outliers (`med`) are not counted. */
  readonly bitsPerValue: number;
  /** Returns the bytes of `rows` rows. With outliers (`med`) this is the largest size. */
  bytesFor(rows: number): number;
  encode(rows: Float32Array, out?: Uint8Array): Uint8Array;
  decode(blocks: Uint8Array, out?: Float32Array): Float32Array;
  /** Computes scores q·k of all queries with all blocks, [query][block]. */
  score(queries: Float32Array, blocks: Uint8Array, out?: Float32Array): Float32Array;
  /** Computes Σ weight·v over the blocks, in the basis of the rows. Weights are [output][block]. */
  accumulate(weights: Float32Array, blocks: Uint8Array, out?: Float32Array): Float32Array;
}

export interface CacheOptions {
  /** Attention layers; 1 by default. */
  layers?: number;
  /** The first and the last so many layers are kept in f16; 0 by default. */
  boundaryLayers?: number;
  kvHeads: number;
  /** Query heads, a multiple of `kvHeads`. Without it, each call of `attend` must say `queries`; snapshots do not hold it. */
  queryHeads?: number;
  /** Width of keys and values, or each on its own. */
  headDim?: number;
  keyDim?: number;
  valueDim?: number;
  /** Tokens that a layer holds at most. */
  capacity: number;
  /**
   * Specs. The default is `graded` keys and `trellis` values, 3.2 bits a value; keys are `trellis` at the widths 32, 80, 96,
   * 112 and 576. llama.cpp's `f16`, `q8_0`, `q4_0` … have its bytes without its rotation.
   */
  keys?: string;
  values?: string;
  /** llama.cpp's names of these two. */
  cache_type_k?: string;
  cache_type_v?: string;
  /**
   * Chooses `keys` and `values`: the most accurate codecs whose pages take at most so many bits a value, everything counted.
   * From 2.1 at a width of 128, 2.3 at 32.
   */
  bits?: number;
  /**
   * The text of a model's profile (`octaplex calibrate` writes it). It spends `bits`, which it needs, where the model needs
   * them: each layer has codecs of its own, which `shape(layer)` says.
   */
  profile?: string;
  /** Tokens of a page: 64 (by default), 128 or 256. */
  page?: number;
  /** The first tokens, exact for ever; 4 by default. */
  sinkTokens?: number;
  /** At least so many of the newest tokens are exact; 64 by default. */
  recentWindow?: number;
  /** What is subtracted from keys; `page` by default. */
  center?: "off" | "prefix" | "page";
  /** Whether a diagonal makes keys' channels count alike; true by default. */
  balance?: boolean;
  /** Queries see so many tokens; by default, all. */
  slidingWindow?: number;
  /** So many tokens can be taken back without a trace; 64 by default. */
  maxRollback?: number;
}

export interface AttendOptions {
  /** Queries of each query head. Counted where the cache knows its `queryHeads`: otherwise needed. */
  queries?: number;
  /** 1/√width by default. */
  scale?: number;
  /** logit = cap·tanh(logit/cap). */
  softCap?: number;
  /** A query sees so many positions. */
  window?: number;
  /** Whether the sinks are seen from beyond the window as well. */
  keepSinks?: boolean;
  /** A logit of each query head that takes weight and gives nothing. */
  sinkLogits?: Float32Array;
  /** Added to the logits: [positions] or [query heads][positions]; -∞ hides a token. */
  bias?: Float32Array;
  /** Position of the first query; by default the block is at the end. */
  position?: number;
}

/** Rows to append: f32; f16 in a Float16Array; f16 or bf16 as the bits in a Uint16Array, with a format. */
export type Rows = Float32Array | Uint16Array | (ArrayBufferView & { readonly [Symbol.toStringTag]: "Float16Array" });

export interface Shape {
  layers: number;
  kvHeads: number;
  keyDim: number;
  valueDim: number;
  keys: string;
  values: string;
}

/** What a cache holds, all layers together. Counts of tokens are those of the layer that has most. */
export interface Stats {
  /** That attention can see. */
  tokens: number;
  pagedTokens: number;
  exactTokens: number;
  nextPosition: number;
  evictedTokens: number;
  decodedTokens: number;
  /** In use; pages that forks share in full. */
  bytes: number;
  pagedBytes: number;
  sharedBytes: number;
  ownBytes: number;
  values: number;
  /** Heads whose keys are balanced, once that is decided. */
  balancedHeads: number;
  bitsPerValue: number;
}

/** A model's keys and values, compressed, and attention on them. */
export interface Cache extends Disposal {
  readonly layers: number;
  shape(layer?: number): Shape;
  /** Bits that a value in a page of a layer takes, keys and values together, everything counted: what a long context tends to. */
  pageBits(layer?: number): number;
  /** Adds tokens to a layer: [head][token][width]. On an error the layer is as it was. */
  append(layer: number, keys: Rows, values: Rows, options?: { format?: "f32" | "f16" | "bf16" }): void;
  /** Decides a layer's balance from a prompt's keys and queries, before they are appended. */
  calibrate(layer: number, keys: Float32Array, queries: Float32Array): void;
  /** Queries and outputs are [query head][query][width]. */
  attend(layer: number, queries: Float32Array, options?: AttendOptions, out?: Float32Array): Float32Array;
  /** q·k of one head, [query][token], unscaled and unmasked. */
  scores(layer: number, head: number, queries: Float32Array, out?: Float32Array): Float32Array;
  /** Σ weight·v of one head, weights [query][token]. */
  accumulate(layer: number, head: number, weights: Float32Array, out?: Float32Array): Float32Array;
  /** Forgets the tokens from a position on. */
  truncate(position: number): void;
  /** Drops the whole pages within positions; returns the tokens dropped, all layers together. */
  evict(from: number, to: number): number;
  clear(): void;
  /** A second cache with the same tokens, which shares the pages. */
  fork(): Cache;
  /** A snapshot, for `loadCache`. */
  save(): Uint8Array;
  stats(): Stats;
}

export interface Verified {
  backend: string;
  codecs: { name: string; checksum: string; expected: string }[];
  all: string;
  expected: string;
  matches: boolean;
}

export interface Octaplex {
  /** `simd128` or `portable`. They are bit-exact and differ in speed. */
  readonly backend: string;
  codec(spec: string, options: CodecOptions): Codec;
  cache(options: CacheOptions): Cache;
  loadCache(bytes: Uint8Array): Cache;
  floats(length: number): Floats;
  bytes(length: number): Bytes;
  codecs(): { name: string; summary: string; keys: string[] }[];
  /** Returns bytes in use, and bytes that the module has from the system, which never shrink. */
  memory(): { used: number; reserved: number };
  /** Computes the checksums of all codecs, and compares them with the published table. It takes about a second. */
  verify(): Verified;
}
