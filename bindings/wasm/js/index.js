/**
 * octaplex in WebAssembly.
 *
 *     import { load } from "octaplex";
 *     const octaplex = await load(); // with SIMD128 where the engine has it
 *     const codec = octaplex.codec("turboquant:bits=4", { dim: 128 });
 *     const blocks = codec.encode(keys); // a Float32Array of rows, as a Uint8Array
 *     const scores = codec.score(query, blocks);
 */
import { Cache } from "./cache.js";
import { Codec } from "./codec.js";
import { OctaplexError, known, show } from "./error.js";
import { Bytes, Floats, Memory } from "./memory.js";

export { Bytes, Cache, Codec, Floats, OctaplexError };

/** The modules, for those who place them elsewhere: with the recommended codecs, and with all. */
export const urls = {
  plain: new URL("./octaplex.wasm", import.meta.url),
  simd: new URL("./octaplex.simd.wasm", import.meta.url),
  allPlain: new URL("./octaplex.all.wasm", import.meta.url),
  allSimd: new URL("./octaplex.all.simd.wasm", import.meta.url),
};

/** Whether this engine has SIMD128: whether it takes a module of one such function. */
export function hasSimd() {
  const words = "0061736d010000000105016000017b030201000a0a010800410" + "0fd0ffd620b";
  return WebAssembly.validate(Uint8Array.from(words.match(/../g), (byte) => parseInt(byte, 16)));
}

/**
 * Loads the module: one of the builds in this package, or that of `url`, or `module` (bytes or a WebAssembly.Module).
 * The builds have `trellis`, `graded`, `turboquant` and plain floats; with `codecs: "all"`, every codec, in twice the bytes.
 * Every call is an instance with a memory of its own.
 */
export async function load(options = {}) {
  known(options, ["simd", "codecs", "url", "module"], "load's options");
  const { simd = hasSimd(), codecs = "recommended", module } = options;
  if (codecs !== "recommended" && codecs !== "all")
    throw new OctaplexError("Load", `codecs is ${show(codecs)}: expected "recommended" or "all"`);
  const [plain, fast] = codecs === "all" ? [urls.allPlain, urls.allSimd] : [urls.plain, urls.simd];
  const { url = simd ? fast : plain } = options;
  return loading(module == null ? url : "module", async () => {
    const compiled = module instanceof WebAssembly.Module ? module : await WebAssembly.compile(module ?? (await read(url)));
    let memory;
    const host = { fail: (length) => memory.fail(length >>> 0) };
    const { exports } = await WebAssembly.instantiate(compiled, { host });
    if (exports.backend === undefined) throw new Error("this is not a module of octaplex");
    memory = new Memory(exports);
    return new Octaplex(exports, memory);
  });
}

/** Runs `step`; a file that is missing or is no module becomes an error that says what to do. */
async function loading(from, step) {
  try {
    return await step();
  } catch (error) {
    const own = Object.values(urls).includes(from);
    const advice = own ? ". In a clone of the repository, bindings/wasm/build.sh builds the modules first; a bundler has to copy them" : "";
    throw new OctaplexError("Load", `${from}: ${error.message}${advice}`, { cause: error });
  }
}

async function read(url) {
  const from = new URL(url, globalThis.location?.href ?? import.meta.url);
  if (from.protocol === "file:" && globalThis.process?.versions?.node !== undefined) {
    const { readFile } = await import("node:fs/promises");
    return readFile(from);
  }
  const answer = await fetch(from);
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

/** A loaded module. */
class Octaplex {
  #wasm;
  #memory;

  constructor(wasm, memory) {
    this.#wasm = wasm;
    this.#memory = memory;
    /** `simd128` or `portable`: the same bits, at another speed. */
    this.backend = memory.said(wasm.backend());
  }

  /** A codec for rows of `dim` values of one head. */
  codec(spec, options) {
    return new Codec(this.#wasm, this.#memory, spec, options);
  }

  /** An empty cache. */
  cache(config) {
    return Cache.make(this.#all(), this.#memory, config);
  }

  /** The cache of a snapshot. */
  loadCache(bytes) {
    return Cache.load(this.#all(), this.#memory, bytes);
  }

  #all() {
    if (this.#wasm.cache_new === undefined) throw new OctaplexError("Unsupported", "this build of the module has one codec and no cache");
    return this.#wasm;
  }

  /** Zeros in the module's memory, which go through calls without a copy. */
  floats(length) {
    return new Floats(this.#memory, length);
  }

  /** The same, as bytes. */
  bytes(length) {
    return new Bytes(this.#memory, length);
  }

  /** Every codec of this build: its name, what it is, and the keys of its spec. */
  codecs() {
    const lines = this.#memory.said(this.#all().codecs()).trimEnd().split("\n");
    return lines.map((line) => {
      const [name, summary, ...keys] = line.split("\t");
      return { name, summary, keys };
    });
  }

  /** Bytes: in use by buffers, codecs and caches, and what the module has of the system's, which never shrinks. */
  memory() {
    return { used: this.#wasm.heap_used() >>> 0, reserved: this.#memory.size };
  }

  /** The checksums of every codec's bytes and results from a fixed seed, beside what they are on every machine. */
  verify() {
    const memory = this.#memory;
    memory.begin();
    try {
      const lines = memory.said(memory.check(this.#all().verify())).split("\n");
      const [, all, expected] = lines.pop().split(" ");
      const codecs = lines.map((line) => {
        const [name, blocks, cache, wantedBlocks, wantedCache] = line.split(" ");
        return { name, checksum: `${blocks} ${cache}`, expected: `${wantedBlocks} ${wantedCache}` };
      });
      const matches = all === expected && codecs.every((codec) => codec.checksum === codec.expected);
      return { backend: this.backend, codecs, all, expected, matches };
    } catch (error) {
      throw memory.exception(error);
    } finally {
      memory.end();
    }
  }
}
