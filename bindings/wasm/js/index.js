/**
 * octaplex in WebAssembly.
 *
 *     import { load } from "octaplex";
 *     const octaplex = await load(); // with SIMD128 if the engine supports it
 *     const codec = octaplex.codec("turboquant:bits=4", { dim: 128 });
 *     const blocks = codec.encode(keys); // a Float32Array of rows, as a Uint8Array
 *     const scores = codec.score(query, blocks);
 */
import { Cache } from "./cache.js";
import { Codec } from "./codec.js";
import { OctaplexError, known, show } from "./error.js";
import { Bytes, Floats, Memory } from "./memory.js";

export { Bytes, Cache, Codec, Floats, OctaplexError };

/** Addresses of the modules, for programs that move them: with the recommended codecs, and with all. */
export const urls = {
  plain: new URL("./octaplex.wasm", import.meta.url),
  simd: new URL("./octaplex.simd.wasm", import.meta.url),
  allPlain: new URL("./octaplex.all.wasm", import.meta.url),
  allSimd: new URL("./octaplex.all.simd.wasm", import.meta.url),
};

/** Returns whether this engine has SIMD128, by validating a module with one such function. */
export function hasSimd() {
  const words = "0061736d010000000105016000017b030201000a0a010800410" + "0fd0ffd620b";
  return WebAssembly.validate(Uint8Array.from(words.match(/../g), (byte) => parseInt(byte, 16)));
}

/**
 * Loads the module: one of the builds in this package, the one at `url`, or `module` (bytes or a WebAssembly.Module).
 * The builds have `trellis`, `graded`, `turboquant` and plain floats. With `codecs: "all"` they have every codec, and are
 * twice as large. Each call creates an instance with its own memory.
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

/** Runs `step`. If the file is missing or not a module, throws an error that says what to do. */
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
    /** `simd128` or `portable`. They are bit-exact and differ in speed. */
    this.backend = memory.said(wasm.backend());
  }

  /** Creates a codec for rows of `dim` values of one head. */
  codec(spec, options) {
    return new Codec(this.#wasm, this.#memory, spec, options);
  }

  /** Creates an empty cache. */
  cache(config) {
    return Cache.make(this.#all(), this.#memory, config);
  }

  /** Creates the cache of a snapshot. */
  loadCache(bytes) {
    return Cache.load(this.#all(), this.#memory, bytes);
  }

  #all() {
    if (this.#wasm.cache_new === undefined) throw new OctaplexError("Unsupported", "this build of the module has one codec and no cache");
    return this.#wasm;
  }

  /** Allocates zeros in the module's memory, which calls read and write without a copy. */
  floats(length) {
    return new Floats(this.#memory, length);
  }

  /** Allocates zero bytes in the module's memory. */
  bytes(length) {
    return new Bytes(this.#memory, length);
  }

  /** Returns all codecs of this build: name, summary, and the keys of the spec. */
  codecs() {
    const lines = this.#memory.said(this.#all().codecs()).trimEnd().split("\n");
    return lines.map((line) => {
      const [name, summary, ...keys] = line.split("\t");
      return { name, summary, keys };
    });
  }

  /** Returns bytes in use by buffers, codecs and caches, and bytes that the module has from the system, which never shrink. */
  memory() {
    return { used: this.#wasm.heap_used() >>> 0, reserved: this.#memory.size };
  }

  /** Computes the checksums of all codecs, and compares them with the published table. */
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
