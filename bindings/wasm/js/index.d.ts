/** The kind of an error. Its `message` says what was wrong and what was expected. */
export type ErrorCode =
  // Errors of the library: see its `Error`.
  | "NonFinite" | "Overflow" | "Weight" | "Length" | "Row" | "Page" | "Missing" | "Capacity" | "Rows" | "Heads" | "Width"
  | "Corrupt" | "Full" | "Dropped" | "Empty" | "Snapshot" | "UnknownCodec" | "UnknownKey" | "Value" | "Conflict"
  | "Unsupported" | "Profile" | "ProfileShape" | "Other"
  // An argument has the wrong type, a number is out of range, or an option does not exist.
  | "Type" | "Range" | "UnknownOption"
  // An object, or a view of a buffer, was used after `dispose()`; a view crosses its buffer's end. A view is detached.
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
  /** The values, initially zeros. Read this property again after calls that may grow the memory, and after new buffers. */
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
  /** n: the first n and the last n layers stay in f16. 0 by default. */
  boundaryLayers?: number;
  kvHeads: number;
  /** Query heads, a multiple of `kvHeads`. Without it, each call of `attend` must say `queries`; snapshots do not hold it. */
  queryHeads?: number;
  /** Width of keys and values. Or set `keyDim` and `valueDim`. */
  headDim?: number;
  keyDim?: number;
  valueDim?: number;
  /** The largest number of tokens that a layer holds. */
  capacity: number;
  /**
   * Specs of the codecs. The default is `graded` keys and `trellis` values, 3.1 to 3.2 bits a value. At the widths 32, 80,
   * 96, 112 and 576 keys are `trellis`. `q8_0` and `q4_0` are the bytes of ggml's blocks, without llama.cpp's rotation.
   */
  keys?: string;
  values?: string;
  /** llama.cpp's names for `keys` and `values`. */
  cache_type_k?: string;
  cache_type_v?: string;
  /**
   * Chooses `keys` and `values`: the most accurate codecs whose pages take at most this many bits a value, everything
   * counted. At least 2.1 at a width of 128, and 2.3 at 32.
   */
  bits?: number;
  /**
   * The text of a model's profile, which `octaplex calibrate` writes. It needs `bits`, and spends them where the model needs
   * them. Each layer then has its own codecs; `shape(layer)` returns them.
   */
  profile?: string;
  /** Tokens of a page: 64 (by default), 128 or 256. */
  page?: number;
  /** Number of first tokens that stay in f16 for ever. 4 by default. */
  sinkTokens?: number;
  /** At least this many of the newest tokens stay in f16. 64 by default. */
  recentWindow?: number;
  /** The mean to subtract from keys: each page's own (the default), that of the first keys (`prefix`), or none. */
  center?: "off" | "prefix" | "page";
  /** Whether keys are divided by a scale for each channel, so that the errors of all channels count alike. True by default. */
  balance?: boolean;
  /** The number of tokens that a query sees, its own included. By default all. */
  slidingWindow?: number;
  /** `truncate` restores the exact earlier state up to this many tokens back. 64 by default. */
  maxRollback?: number;
}

export interface AttendOptions {
  /** Queries of each query head. Needed unless the cache knows its `queryHeads`; then they are counted. */
  queries?: number;
  /** Factor of the logits: scale·q·k. 1/√width by default. */
  scale?: number;
  /** Soft cap, applied before the bias: cap·tanh(logit/cap). */
  softCap?: number;
  /** The number of positions that a query sees. By default the layer's sliding window, or all. */
  window?: number;
  /** Whether queries also see the sinks outside the window. */
  keepSinks?: boolean;
  /** A logit for each query head, which takes weight and adds nothing to the output. */
  sinkLogits?: Float32Array;
  /** Added to the logits: [positions] or [query heads][positions]; -∞ hides a token. */
  bias?: Float32Array;
  /** Position of the first query. By default the last query is at the newest token. */
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

/** Counts what a cache holds, over all layers. Counts of tokens are those of the layer with the most tokens. */
export interface Stats {
  /** Tokens that attention can see. */
  tokens: number;
  /** Visible tokens in pages. */
  pagedTokens: number;
  /** Tokens whose rows are held in f16: sinks, the window, and tokens of closed pages that `truncate` may open again. */
  exactTokens: number;
  nextPosition: number;
  evictedTokens: number;
  decodedTokens: number;
  /** Bytes in use. Pages that forks share count in full. */
  bytes: number;
  /** Bytes of pages. */
  pagedBytes: number;
  /** Bytes of pages that another fork also holds. */
  sharedBytes: number;
  /** Bytes that no other fork holds. */
  ownBytes: number;
  /** Number of values that `bytes` encode. */
  values: number;
  /** Heads whose keys are balanced, once that is decided. */
  balancedHeads: number;
  bitsPerValue: number;
}

/**
 * The compressed keys and values of one sequence, in all layers of a model, and attention on them. For a batch, create one
 * cache for each sequence.
 */
export interface Cache extends Disposal {
  readonly layers: number;
  shape(layer?: number): Shape;
  /** Returns the bits a value in a layer's pages, keys and values together. A long context approaches this rate. */
  pageBits(layer?: number): number;
  /** Appends tokens to a layer: [head][token][width], keys after the rotary embedding. After an error the layer is unchanged. */
  append(layer: number, keys: Rows, values: Rows, options?: { format?: "f32" | "f16" | "bf16" }): void;
  /**
   * Decides a layer's balance from a prompt's keys and queries, before they are appended. The command `octaplex calibrate` is
   * something else: it writes a profile.
   */
  calibrate(layer: number, keys: Float32Array, queries: Float32Array): void;
  /** Computes causal attention. Queries and outputs are [query head][query][width]; the last query is at the newest token. */
  attend(layer: number, queries: Float32Array, options?: AttendOptions, out?: Float32Array): Float32Array;
  /** Computes q·k of one key/value head, [query][token], without scale and mask. */
  scores(layer: number, head: number, queries: Float32Array, out?: Float32Array): Float32Array;
  /** Computes Σ weight·v of one key/value head. Weights are [query][token]. */
  accumulate(layer: number, head: number, weights: Float32Array, out?: Float32Array): Float32Array;
  /** Removes the tokens from a position on. */
  truncate(position: number): void;
  /** Drops the pages that lie entirely in positions `from` to `to` (excluded). Returns the dropped tokens, summed over layers. */
  evict(from: number, to: number): number;
  clear(): void;
  /** Creates a second cache with the same tokens. The two share pages. */
  fork(): Cache;
  /** Returns a snapshot, for `loadCache`. */
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
