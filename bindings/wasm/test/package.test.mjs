// Tests the installed package. Run it in a project that has `octaplex` (ci/wasm.sh).
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { describe, test } from "node:test";
import { OctaplexError, hasSimd, load } from "octaplex";

const DIM = 64;
/** Rows in -1 to 1, the same for the same seed. */
function rows(count, dim = DIM, seed = 1) {
  return Float32Array.from({ length: count * dim }, () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 31 - 1);
}

const fails = (code, call, words = "") =>
  assert.throws(call, (error) => {
    assert.ok(error instanceof OctaplexError, `${error.stack}`);
    assert.equal(error.code, code, error.message);
    assert.ok(error.message.includes(words), error.message);
    return true;
  });

const close = (a, b, error) => {
  assert.equal(a.length, b.length);
  a.forEach((x, i) => assert.ok(Math.abs(x - b[i]) <= error, `${i}: ${x} and ${b[i]}`));
};

const PROFILE = await readFile("smollm2-135m.octaprofile", "utf8"); // of profiles/
const profiled = { layers: 30, kvHeads: 3, headDim: 64, capacity: 1000, profile: PROFILE };

/** The bits of a value in a page, of all layers together. */
const meanBits = (cache) => Array.from({ length: cache.layers }, (_, layer) => cache.pageBits(layer)).reduce((a, b) => a + b) / cache.layers;

/** Attention of one head in f64. */
function attention(query, keys, values, dim = DIM) {
  const dot = (t) => query.reduce((sum, q, i) => sum + q * keys[t * dim + i], 0) / Math.sqrt(dim);
  const logits = Array.from({ length: keys.length / dim }, (_, t) => dot(t));
  const largest = Math.max(...logits);
  const weights = logits.map((x) => Math.exp(x - largest));
  const sum = weights.reduce((a, b) => a + b);
  return Float32Array.from({ length: dim }, (_, i) => weights.reduce((a, w, t) => a + w * values[t * dim + i], 0) / sum);
}

test("the engine of these tests takes SIMD128, and load chooses it", async () => {
  assert.equal(hasSimd(), true);
  assert.equal((await load()).backend, "simd128");
});

for (const simd of [true, false]) {
  describe(simd ? "simd128" : "plain", async () => {
    const octaplex = await load({ simd, codecs: "all" });
    const config = { kvHeads: 2, headDim: DIM, capacity: 1000 };

    test("checksums are those of every machine", () => {
      const { backend, codecs, matches, all, expected } = octaplex.verify();
      assert.equal(backend, simd ? "simd128" : "portable");
      assert.deepEqual(codecs.map((codec) => codec.name), octaplex.codecs().map((codec) => codec.name));
      for (const codec of codecs) assert.equal(codec.checksum, codec.expected, codec.name);
      assert.equal(all, expected);
      assert.ok(matches && /^[0-9a-f]{8}$/.test(all));
    });

    test("every codec encodes, decodes, scores and sums", () => {
      const [keys, query] = [rows(70), rows(3, DIM, 2)];
      for (const { name } of [...octaplex.codecs(), { name: "int:med=1" }]) {
        const codec = octaplex.codec(name, { dim: DIM });
        const blocks = codec.encode(keys);
        assert.ok(blocks.length <= codec.bytesFor(70));
        const decoded = codec.decode(blocks);
        assert.equal(decoded.length, keys.length);
        const scores = codec.score(query, blocks);
        assert.equal(scores.length, 3 * 70);
        const weights = new Float32Array(2 * 70).fill(1 / 64);
        const sums = codec.accumulate(weights, blocks);
        const exact = Array.from({ length: DIM }, (_, i) => decoded.reduce((sum, x, at) => sum + (at % DIM === i ? x / 64 : 0), 0));
        if (!/qjl/.test(name)) {
          const dot = keys.subarray(0, 0).length + decoded.subarray(DIM, 2 * DIM).reduce((sum, x, i) => sum + x * query[i], 0);
          assert.ok(Math.abs(scores[1] - dot) < 0.2, `${name}: ${scores[1]} and ${dot}`);
          close(sums.subarray(0, DIM), exact, 0.05);
        }
        assert.deepEqual(sums.subarray(0, DIM), sums.subarray(DIM));
        codec.dispose();
      }
    });

    test("arrays in the module's memory go through without a copy, with the same results", () => {
      using(octaplex.codec("trellis", { dim: DIM }), (codec) => {
        const keys = rows(64);
        const blocks = codec.encode(keys);
        const [floats, bytes, out] = [octaplex.floats(64 * DIM), octaplex.bytes(codec.bytesFor(64)), octaplex.floats(64)];
        floats.view.set(keys);
        assert.deepEqual(codec.encode(floats.view, bytes.view), blocks);
        assert.equal(codec.encode(floats.view, bytes.view).buffer, bytes.view.buffer);
        assert.deepEqual(bytes.view, blocks);
        const scores = codec.score(floats.view.subarray(DIM, 2 * DIM), bytes.view, out.view);
        assert.equal(scores.buffer, out.view.buffer);
        assert.deepEqual(new Float32Array(out.view), codec.score(keys.subarray(DIM, 2 * DIM), blocks));
        // If output and input overlap, the input is read first.
        codec.decode(bytes.view, floats.view);
        const decoded = codec.decode(blocks);
        assert.deepEqual(floats.view, decoded);
        const expected = codec.score(decoded.subarray(0, DIM), blocks);
        assert.deepEqual(codec.score(floats.view.subarray(0, DIM), bytes.view, floats.view.subarray(0, 64)), expected);
        [floats, bytes, out].forEach((buffer) => buffer.dispose());
      });
    });

    test("a cache attends as exact attention does", () => {
      const [keys, values, queries] = [rows(2 * 300), rows(2 * 300, DIM, 5), rows(4, DIM, 7)];
      for (const [type, error] of [["f16", 0.002], ["q8_0", 0.01], ["turboquant:bits=8", 0.01], ["trellis:m=8", 0.1]]) {
        using(octaplex.cache({ ...config, queryHeads: 4, cache_type_k: type, cache_type_v: type }), (cache) => {
          cache.append(0, keys, values);
          const output = cache.attend(0, queries);
          for (const head of [0, 1, 2, 3]) {
            const from = (head >> 1) * 300 * DIM;
            const [k, v] = [keys, values].map((x) => x.subarray(from, from + 300 * DIM));
            close(output.subarray(head * DIM, (head + 1) * DIM), attention(queries.subarray(head * DIM, (head + 1) * DIM), k, v), error);
          }
          assert.deepEqual(cache.shape(), { layers: 1, kvHeads: 2, keyDim: DIM, valueDim: DIM, keys: type.replace("turboquant:bits=4", "turboquant"), values: type });
        });
      }
    });

    test("a block of queries is not taken for more heads", () => {
      const [tokens, queries] = [rows(2 * 300), rows(8 * 5, DIM, 7)]; // eight heads, five queries each
      const cache = octaplex.cache({ ...config, queryHeads: 8 });
      cache.append(0, tokens, tokens);
      const block = cache.attend(0, queries, { queries: 5 });
      assert.deepEqual(cache.attend(0, queries), block);
      assert.deepEqual(cache.attend(0, queries, {}), block);
      fails("Rows", () => cache.attend(0, queries.subarray(0, 4 * DIM)), "8 heads");
      fails("Rows", () => cache.fork().attend(0, queries.subarray(0, 12 * DIM)), "8 heads");
      // A snapshot does not hold query heads: each call says how many queries a head has.
      const loaded = octaplex.loadCache(cache.save());
      fails("Unsupported", () => loaded.attend(0, queries), "queryHeads");
      assert.deepEqual(loaded.attend(0, queries, { queries: 5 }), block);
      fails("Heads", () => octaplex.cache({ ...config, queryHeads: 3 }), "3 query heads");
      [cache, loaded].forEach((each) => each.dispose());
    });

    test("every option of attention changes what it should", () => {
      using(octaplex.cache({ ...config, queryHeads: 4 }), (cache) => {
        cache.append(0, rows(2 * 300), rows(2 * 300, DIM, 5));
        const queries = rows(4, DIM, 7).map((x) => 8 * x);
        const plain = cache.attend(0, queries);
        assert.deepEqual(cache.attend(0, queries, {}), plain);
        assert.deepEqual(cache.attend(0, queries, { scale: 1 / Math.sqrt(DIM), position: 299 }), plain);
        const hide = new Float32Array(300).fill(-Infinity).fill(0, 290);
        const others = {
          scale: { scale: 0.5 }, softCap: { softCap: 1 }, window: { window: 10 }, bias: { bias: hide },
          sinkLogits: { sinkLogits: new Float32Array(4).fill(3) }, position: { position: 150 },
        };
        for (const [name, options] of Object.entries(others)) assert.notDeepEqual(cache.attend(0, queries, options), plain, name);
        close(cache.attend(0, queries, { window: 10 }), cache.attend(0, queries, { bias: hide }), 1e-6);
        assert.notDeepEqual(cache.attend(0, queries, { window: 10, keepSinks: true }), cache.attend(0, queries, { window: 10 }));
        // A softmax outside the library, from scores and sums.
        const scores = cache.scores(0, 1, queries.subarray(2 * DIM, 3 * DIM));
        assert.equal(scores.length, 300);
        const largest = scores.reduce((a, b) => Math.max(a, b));
        const weights = scores.map((x) => Math.exp((x - largest) / 8));
        const sum = weights.reduce((a, b) => a + b);
        close(cache.accumulate(0, 1, weights.map((w) => w / sum)), plain.subarray(2 * DIM, 3 * DIM), 1e-3);
      });
    });

    test("bits of a page are the library's, before there is one and after", () => {
      using(octaplex.cache({ kvHeads: 8, headDim: 128, capacity: 4096, layers: 2, keys: "trellis", values: "trellis" }), (cache) => {
        assert.equal(Math.round(1000 * cache.pageBits()), 3090); // as `LayerConfig::page_bits` has it
        assert.equal(cache.pageBits(1), cache.pageBits());
        fails("Missing", () => cache.pageBits(2));
        fails("Range", () => cache.pageBits(-1));
      });
      using(octaplex.cache({ kvHeads: 1, headDim: DIM, capacity: 1000, keys: "trellis:m=2" }), (cache) => {
        cache.append(0, rows(1000), rows(1000));
        const { pagedBytes, pagedTokens } = cache.stats();
        assert.equal((8 * pagedBytes) / (2 * DIM * pagedTokens), cache.pageBits());
      });
    });

    test("bits choose the codecs that they choose in Rust", () => {
      const specs = (options) =>
        using(octaplex.cache({ kvHeads: 8, headDim: 128, capacity: 4096, layers: 8, ...options }), (cache) => {
          assert.ok(meanBits(cache) <= options.bits && meanBits(cache) > options.bits - 0.05, `${meanBits(cache)}`);
          return Array.from({ length: 8 }, (_, layer) => [cache.shape(layer).keys, cache.shape(layer).values].join(" "));
        });
      // As `CacheConfig::for_bits` has them: between two rates, some layers have the higher one.
      const [low, high] = ["graded:fine=4,coarse=1 trellis:m=2", "graded trellis:m=2"];
      assert.deepEqual(specs({ bits: 2.5 }), [low, high, high, high, low, high, high, high]);
      assert.deepEqual(specs({ bits: 9.6, boundaryLayers: 2 }), [0, 1, 2, 3, 4, 5, 6, 7].map((layer) => (layer % 6 < 2 ? "f16 f16" : "graded trellis")));
    });

    test("a profile spends the bits as in Rust", () => {
      const codecs = (role) => [...PROFILE.matchAll(new RegExp(`^${role} (\\S+)`, "gm"))].map(([, spec]) => spec);
      // Results of `Profile::solve`: the codecs of each layer's keys and values, as indices of the profile's lists, counted
      // from 0.
      for (const [bits, keys, values] of [
        [1.5, "101212113210001101202001100010", "110000000000000001101001100000"],
        [2.2, "323434334421103213414213311121", "321111111110001101212102200010"],
        [3.2, "444666666643324434636446434242", "543333333231113324424314411131"],
      ])
        using(octaplex.cache({ ...profiled, bits }), (cache) => {
          const solved = (role) => Array.from({ length: 30 }, (_, layer) => codecs(role).indexOf(cache.shape(layer)[role])).join("");
          assert.deepEqual([solved("keys"), solved("values")], [keys, values]);
          assert.ok(meanBits(cache) <= bits && meanBits(cache) > bits - 0.02, `${meanBits(cache)}`);
        });
      // The bytes, too.
      using(octaplex.cache({ ...profiled, bits: 2.2 }), (cache) => {
        for (let layer = 0; layer < 30; layer++) cache.append(layer, rows(3 * 200), rows(3 * 200));
        const digest = createHash("sha256").update(cache.save()).digest("hex");
        assert.equal(digest, "1eda53b8d06ffab710b85df0ebd0cc8182d3a2a9f2d3991bcbf257efa281b4ad"); // of `KvCache::save`
        assert.ok(cache.attend(7, rows(9), { queries: 1 }).every(Number.isFinite));
      });
    });

    test("bits and profiles that fit no cache are refused, and nothing is allocated", () => {
      const all = () => {
        fails("Unsupported", () => octaplex.cache({ ...config, bits: 3.2, keys: "f16" }), "not both");
        fails("Unsupported", () => octaplex.cache({ ...config, bits: 3.2, cache_type_v: "q8_0" }), "not both");
        fails("Unsupported", () => octaplex.cache({ ...config, bits: 0 }), "too small for the codecs");
        for (const bits of [NaN, Infinity, "3.2", null]) fails("Range", () => octaplex.cache({ ...config, bits }), "bits: a finite number");
        fails("Unsupported", () => octaplex.cache({ ...profiled }), "a profile spends bits");
        const spent = { ...profiled, bits: 2.2 };
        fails("Unsupported", () => octaplex.cache({ ...spent, values: "trellis" }), "not both");
        fails("Unsupported", () => octaplex.cache({ ...spent, bits: 1 }), "give more");
        fails("Capacity", () => octaplex.cache({ ...spent, capacity: 100 }), "132");
        // Another model's.
        fails("ProfileShape", () => octaplex.cache({ ...spent, layers: 24 }), "it has 30 layers, and the cache has 24");
        fails("ProfileShape", () => octaplex.cache({ ...spent, kvHeads: 2 }), "it has 3 key/value heads, and the cache has 2");
        fails("ProfileShape", () => octaplex.cache({ ...spent, headDim: 128 }), "64 values in a key");
        fails("ProfileShape", () => octaplex.cache({ ...spent, valueDim: 128 }), "64 values in a value vector");
        // Texts that are no profile, truncated profiles, and changed ones.
        for (const profile of [3, null, new Uint8Array(9)]) fails("Type", () => octaplex.cache({ ...spent, profile }), "profile: a string");
        fails("Profile", () => octaplex.cache({ ...spent, profile: "" }), "line 1: the text ends here");
        fails("Profile", () => octaplex.cache({ ...spent, profile: "model.octaprofile" }), "this is no profile");
        const lines = PROFILE.split("\n");
        for (let count = 1; count < lines.length - 1; count++)
          fails("Profile", () => octaplex.cache({ ...spent, profile: lines.slice(0, count).join("\n") }), "truncated");
        fails("Profile", () => octaplex.cache({ ...spent, profile: PROFILE.replace("0.00058764", "0.00058765") }), "the digest does not match");
        fails("Profile", () => octaplex.cache({ ...spent, profile: PROFILE.replace(/digest \w+/, "digest 01234567") }), "the digest does not match");
        fails("Profile", () => octaplex.cache({ ...spent, profile: `${PROFILE}layer 30 0 0\n` }), "follows the digest");
      };
      all(); // staging memory finds its size
      const before = octaplex.memory();
      all();
      assert.deepEqual(octaplex.memory(), before);
    });

    test("tokens go and come: truncate, evict, fork, save, load, clear", () => {
      const queries = rows(2, DIM, 7);
      const cache = octaplex.cache({ ...config, queryHeads: 2, layers: 2, boundaryLayers: 0, keys: "trellis" });
      for (const layer of [0, 1]) cache.append(layer, rows(2 * 300), rows(2 * 300, DIM, 5));
      const before = cache.attend(0, queries);
      const fork = cache.fork();
      for (const layer of [0, 1]) fork.append(layer, rows(2 * 9), rows(2 * 9));
      assert.notDeepEqual(fork.attend(0, queries), before);
      fork.truncate(300);
      assert.deepEqual(fork.attend(0, queries), before);
      assert.ok(fork.stats().pagedBytes > 0 && fork.stats().pagedBytes < fork.stats().bytes);
      assert.ok(fork.stats().sharedBytes > 0 && fork.stats().ownBytes < cache.stats().bytes);
      const snapshot = cache.save();
      const loaded = octaplex.loadCache(snapshot);
      assert.equal(loaded.layers, 2);
      assert.deepEqual(loaded.attend(1, queries, { queries: 1 }), cache.attend(1, queries));
      assert.deepEqual(loaded.save(), snapshot);
      assert.equal(fork.evict(0, 4 + 64), 2 * 64);
      assert.equal(fork.stats().tokens, 300 - 64);
      assert.equal(cache.stats().tokens, 300);
      fork.clear();
      assert.equal(fork.stats().tokens, 0);
      fails("Empty", () => fork.attend(0, queries));
      [cache, fork, loaded].forEach((each) => each.dispose());
    });

    test("snapshots of a machine of 64 bits are loaded, and saved as the same bytes", async () => {
      for (const file of ["version3", "lean", "graded"]) {
        const golden = new Uint8Array(await readFile(`${file}.snapshot`)); // of tests/snapshots
        const cache = octaplex.loadCache(golden);
        assert.deepEqual(cache.save(), golden, file);
        cache.dispose();
      }
    });

    test("rows in f16 and bf16 are those in f32", () => {
      const halves = rows(2 * 80).map((x) => Math.round(x * 4) / 4 + 0); // which all three hold
      const half = (x) => (x === 0 ? 0 : (x < 0 ? 0x8000 : 0) | ((Math.floor(Math.log2(Math.abs(x))) + 15) << 10) | ((Math.abs(x) / 2 ** Math.floor(Math.log2(Math.abs(x))) - 1) * 1024));
      const f16 = Uint16Array.from(halves, half);
      const bf16 = Uint16Array.from(new Uint32Array(halves.buffer), (bits) => bits >>> 16);
      const save = (x, options) => using(octaplex.cache(config), (cache) => (cache.append(0, x, x, options), cache.save()));
      assert.deepEqual(save(f16, { format: "f16" }), save(halves));
      assert.deepEqual(save(bf16, { format: "bf16" }), save(halves));
      fails("Type", () => save(f16), "format");
      fails("Type", () => save(f16, { format: "f32" }), "format");
      if (globalThis.Float16Array) assert.deepEqual(save(Float16Array.from(halves)), save(halves));
    });

    test("what is wrong is an OctaplexError that says so", () => {
      const codec = octaplex.codec("int:bits=8", { dim: DIM });
      fails("UnknownCodec", () => octaplex.codec("nope", { dim: DIM }), "trellis");
      fails("Value", () => octaplex.codec("int:bits=9", { dim: DIM }), "2..=8");
      fails("UnknownKey", () => octaplex.codec("int:bit=4", { dim: DIM }), "bits");
      fails("Width", () => octaplex.codec("int", { dim: 65 }), "64");
      fails("Type", () => octaplex.codec(7, { dim: DIM }), "spec");
      for (const dim of [undefined, NaN, -1, 1.5, Infinity, 2 ** 40, "64"]) fails("Range", () => octaplex.codec("int", { dim }), "dim");
      fails("Range", () => octaplex.codec("int", { dim: NaN }), "got NaN");
      fails("UnknownOption", () => octaplex.codec("int", { dim: DIM, bits: 4 }), "bits");
      fails("Value", () => octaplex.codec("int", { dim: DIM, role: "queries" }), "role");
      for (const [bad, index] of [[NaN, 3], [Infinity, 70], [-Infinity, 127]]) {
        const keys = rows(2);
        keys[index] = bad;
        fails("NonFinite", () => codec.encode(keys), String(index));
        fails("NonFinite", () => codec.score(keys, codec.encode(rows(4))), String(index));
      }
      fails("Overflow", () => codec.encode(new Float32Array(DIM).fill(1e38)));
      fails("Weight", () => codec.accumulate(Float32Array.of(1e12), codec.encode(rows(1))));
      fails("Length", () => codec.encode(new Float32Array(DIM + 1)), "");
      fails("Length", () => codec.decode(new Uint8Array(codec.blockBytes + 1)));
      fails("Length", () => codec.score(new Float32Array(DIM - 1), codec.encode(rows(2))));
      fails("Length", () => codec.accumulate(new Float32Array(3), codec.encode(rows(2))));
      fails("Length", () => codec.encode(rows(2), new Uint8Array(5)), "out");
      fails("Corrupt", () => codec.decode(new Uint8Array(codec.blockBytes).fill(255)));
      for (const bad of [undefined, null, [1, 2], new Float64Array(DIM), new ArrayBuffer(DIM * 4), "rows"])
        fails("Type", () => codec.encode(bad), "rows: a Float32Array");
      fails("Type", () => codec.decode(rows(1)), "blocks: a Uint8Array");
      codec.dispose();
      codec.dispose();
      for (const call of [() => codec.encode(rows(1)), () => codec.decode(new Uint8Array(66)), () => codec.score(rows(1), new Uint8Array(66)), () => codec.bytesFor(1)])
        fails("Disposed", call, "codec");
    });

    test("what is wrong with a cache is an OctaplexError, and the cache as it was", () => {
      fails("Range", () => octaplex.cache({ headDim: DIM, capacity: 100 }), "kvHeads");
      fails("Capacity", () => octaplex.cache({ ...config, capacity: 100 }), "132");
      fails("Width", () => octaplex.cache({ ...config, headDim: 65 }));
      fails("Conflict", () => octaplex.cache({ ...config, keys: "f16", cache_type_k: "q8_0" }), "cache_type_k");
      fails("UnknownOption", () => octaplex.cache({ ...config, heads: 2 }), "heads");
      fails("Value", () => octaplex.cache({ ...config, center: "mean" }), "center");
      // Sizes that exceed any memory, and sizes whose products exceed 32 bits.
      fails("Unsupported", () => octaplex.cache({ ...config, kvHeads: 2 ** 32 - 2 }));
      fails("Unsupported", () => octaplex.cache({ ...config, layers: 2 ** 20 }));
      fails("OutOfMemory", () => octaplex.cache({ ...config, recentWindow: 2 ** 22, capacity: 2 ** 30, kvHeads: 1, layers: 8 }), "bytes");
      fails("OutOfMemory", () => octaplex.cache({ ...config, layers: 2 ** 16, kvHeads: 64 }));
      fails("OutOfMemory", () => octaplex.floats(2 ** 30));
      fails("Range", () => octaplex.floats(-1));
      fails("OutOfMemory", () => octaplex.bytes(2 ** 32 - 2));

      const cache = octaplex.cache(config);
      cache.append(0, rows(2 * 200), rows(2 * 200));
      const before = cache.save();
      const bad = rows(2 * 5);
      bad[3 * DIM + 7] = NaN;
      fails("Row", () => cache.append(0, bad, rows(2 * 5)), "row 3, value 7");
      fails("Row", () => cache.append(0, rows(2 * 5), bad), "values");
      fails("Rows", () => cache.append(0, rows(3), rows(3)));
      fails("Rows", () => cache.append(0, rows(4), rows(2)));
      fails("Type", () => cache.append(0, rows(2), new Uint16Array(2 * DIM)), "values");
      fails("Missing", () => cache.append(1, rows(2), rows(2)), "layer 1");
      fails("Full", () => cache.append(0, rows(2 * 900), rows(2 * 900)), "1000");
      fails("Range", () => cache.append(-1, rows(2), rows(2)), "layer");
      fails("Missing", () => cache.attend(7, rows(2), { queries: 1 }));
      fails("Heads", () => cache.attend(0, rows(3), { queries: 1 }));
      fails("Rows", () => cache.attend(0, new Float32Array(DIM + 1), { queries: 1 }));
      fails("Row", () => cache.attend(0, rows(2).fill(NaN), { queries: 1 }));
      fails("Length", () => cache.attend(0, rows(2), {}, new Float32Array(3)), "out");
      fails("UnknownOption", () => cache.attend(0, rows(2), { softcap: 3 }), "softCap");
      fails("Range", () => cache.attend(0, rows(2), { scale: NaN }), "scale");
      fails("Range", () => cache.attend(0, rows(2), { queries: 0.5 }), "queries");
      fails("Unsupported", () => cache.attend(0, rows(2), { queries: 0 }));
      fails("Unsupported", () => cache.attend(0, rows(2), { queries: 1, softCap: -1 }));
      fails("Length", () => cache.attend(0, rows(2), { queries: 1, bias: new Float32Array(3) }));
      fails("Missing", () => cache.scores(0, 2, rows(1)));
      fails("Unsupported", () => cache.calibrate(0, rows(2), rows(2)), "page");
      assert.deepEqual(cache.save(), before);
      cache.dispose();
      fails("Disposed", () => cache.append(0, rows(2), rows(2)), "cache");
      for (const name of ["save", "stats", "fork", "clear"]) fails("Disposed", () => cache[name]());
      fails("Disposed", () => cache.truncate(3));
    });

    test("damaged and truncated snapshots are refused, every one", () => {
      const cache = octaplex.cache(config);
      cache.append(0, rows(2 * 200), rows(2 * 200));
      const snapshot = cache.save();
      cache.dispose();
      fails("Type", () => octaplex.loadCache("snapshot"));
      for (let length = 0; length < snapshot.length; length += length < 400 ? 1 : 997)
        fails("Snapshot", () => octaplex.loadCache(snapshot.subarray(0, length)));
      for (let at = 0; at < snapshot.length; at += at < 400 ? 1 : 499) {
        const damaged = snapshot.slice();
        damaged[at] ^= 0x41;
        assert.throws(() => octaplex.loadCache(damaged), OctaplexError, `byte ${at}`);
      }
      octaplex.loadCache(snapshot).dispose();
    });

    test("views of before memory grew are refused, and buffers still have their values", async () => {
      const octaplex = await load({ simd, codecs: "all" });
      const codec = octaplex.codec("int:bits=8", { dim: DIM });
      const floats = octaplex.floats(DIM);
      const stale = floats.view.fill(0.5);
      const { reserved } = octaplex.memory();
      const large = octaplex.bytes(reserved);
      assert.ok(octaplex.memory().reserved > reserved);
      fails("Detached", () => codec.encode(stale), "view again");
      assert.deepEqual(floats.view, new Float32Array(DIM).fill(0.5));
      large.dispose();
      floats.dispose();
      fails("Disposed", () => floats.view);
      // An output in the module's memory, where the call itself makes memory grow.
      const before = octaplex.memory().reserved;
      const count = Math.ceil(before / 66);
      const blocks = new Uint8Array(66 * count);
      blocks.set(codec.encode(rows(1)), 66 * (count - 1));
      const [query, out] = [octaplex.floats(DIM), octaplex.floats(count)];
      query.view.set(rows(1));
      const scores = codec.score(query.view, blocks, out.view);
      assert.ok(octaplex.memory().reserved > before);
      assert.deepEqual(scores, out.view);
      assert.ok(scores[0] === 0 && scores[count - 1] > 1);
      // However much memory the call leaves for the next one, its result is complete.
      for (let count = 1000; count < 60_000; count = Math.ceil(1.1 * count)) {
        const out = octaplex.floats(count);
        assert.equal(codec.score(query.view, new Uint8Array(66 * count), out.view).length, count);
        out.dispose();
      }
      const cache = octaplex.cache({ ...config, kvHeads: 1, capacity: 4096 });
      cache.append(0, rows(300), rows(300));
      const bias = octaplex.floats(300);
      bias.view.fill(-Infinity, 0, 299);
      const held = octaplex.memory().reserved;
      const queries = new Float32Array(DIM * Math.ceil(held / 4 / DIM)); // staging it makes memory grow
      const shown = cache.attend(0, queries, { queries: 1, bias: bias.view });
      assert.ok(octaplex.memory().reserved > held);
      close(shown.subarray(0, DIM), rows(300).subarray(299 * DIM), 0.01);
      [codec, out, query, cache, bias].forEach((each) => each.dispose());
    });

    test("views of disposed buffers, and views across a buffer's end, are refused and overwrite nothing", async () => {
      const [octaplex, other] = [await load({ simd, codecs: "all" }), await load({ simd, codecs: "all" })];
      octaplex.bytes(1 << 24).dispose(); // memory does not grow below
      const cache = octaplex.cache({ ...config, queryHeads: 4 });
      cache.append(0, rows(2 * 200), rows(2 * 200, DIM, 5));
      const codec = octaplex.codec("int:bits=8", { dim: DIM });
      const [queries, expected] = [rows(4), cache.attend(0, rows(4))];
      const refused = (floats, bytes, code = "Disposed") => {
        fails(code, () => cache.attend(0, queries, {}, floats), "out");
        fails(code, () => cache.attend(0, floats), "queries");
        fails(code, () => cache.attend(0, queries, { bias: floats }), "bias");
        fails(code, () => cache.append(0, floats, floats), "keys");
        fails(code, () => cache.scores(0, 0, rows(1), floats), "out");
        fails(code, () => codec.encode(rows(1), bytes), "out");
        fails(code, () => codec.decode(bytes), "blocks");
        fails(code, () => codec.score(rows(1), bytes), "blocks");
      };
      for (const from of [octaplex, other])
        for (const size of [256, 4096, 65536]) {
          const buffers = [from.floats(size), from.bytes(4 * size)];
          const [floats, bytes] = buffers.map((buffer) => buffer.view);
          const [part, some] = [floats.subarray(0, 256), bytes.subarray(8, 74)];
          buffers.forEach((buffer) => buffer.dispose());
          refused(floats, bytes);
          refused(part, some);
          // Now others lie there.
          const others = Array.from({ length: 40 }, (_, i) => from.floats(size >> i % 3));
          others.forEach((buffer) => buffer.view.fill(7));
          refused(floats, bytes);
          refused(part, some, "Detached");
          assert.ok(others.every((buffer) => buffer.view.every((x) => x === 7)));
          // Views that no buffer returned: outside all buffers, across the end of one, and across its start.
          const { view } = others[20];
          for (const [at, bytes] of [[0, 1024], [view.byteOffset, view.byteLength + 16], [view.byteOffset - 16, view.byteLength]])
            refused(new Float32Array(view.buffer, at, bytes / 4), new Uint8Array(view.buffer, at, bytes));
          others.forEach((buffer) => buffer.dispose());
        }
      // Living buffers still go through, in part and as other types; so do views of another module's.
      for (const from of [octaplex, other]) {
        const [before, buffer, after] = [from.floats(8), from.floats(300), from.floats(8)];
        before.dispose();
        const out = buffer.view.subarray(10, 266);
        assert.deepEqual(cache.attend(0, queries, {}, out), expected);
        assert.deepEqual(buffer.view.subarray(10, 266), expected);
        const raw = new Uint8Array(buffer.view.buffer, buffer.view.byteOffset, 66);
        assert.deepEqual(new Uint8Array(codec.encode(rows(1), raw)), codec.encode(rows(1)));
        [buffer, after].forEach((each) => each.dispose());
      }
      assert.equal(cache.stats().tokens, 200);
      [cache, codec].forEach((each) => each.dispose());
    });

    test("nothing leaks, failures included", () => {
      const run = () => {
        const cache = octaplex.cache(config);
        const codec = octaplex.codec("trellis", { dim: DIM });
        cache.append(0, rows(2 * 300), rows(2 * 300));
        const [fork, snapshot] = [cache.fork(), cache.save()];
        octaplex.loadCache(snapshot)[Symbol.dispose ?? Symbol.for("Symbol.dispose")]();
        for (const call of [() => octaplex.loadCache(snapshot.subarray(0, 999)), () => cache.append(0, rows(3), rows(3)), () => codec.encode(rows(2).fill(NaN)), () => octaplex.codec("int", { dim: 65 }), () => octaplex.cache({ ...config, layers: 3, headDim: 3 })])
          assert.throws(call, OctaplexError);
        codec.score(rows(3), codec.encode(rows(100)));
        cache.attend(0, rows(4), { queries: 1, bias: new Float32Array(300), softCap: 9 });
        [cache, fork, codec].forEach((each) => each.dispose());
      };
      for (let i = 0; i < 3; i++) run(); // staging memory finds its size
      const { used, reserved } = octaplex.memory();
      for (let i = 0; i < 50; i++) run();
      assert.deepEqual(octaplex.memory(), { used, reserved });
    });
  });
}

test("the build of the recommended codecs gives the bytes of the build of all, and says what it is without", async () => {
  const [few, all] = [await load(), await load({ codecs: "all" })];
  assert.deepEqual(few.codecs().map((codec) => codec.name), ["trellis", "graded", "turboquant", "f16", "bf16", "f32"]);
  assert.ok(few.verify().matches && few.verify().codecs.length === 6);
  const [a, b] = [few, all].map((octaplex) => {
    const cache = octaplex.cache({ kvHeads: 2, queryHeads: 4, headDim: DIM, capacity: 1000, keys: "graded", values: "trellis" });
    cache.append(0, rows(2 * 300), rows(2 * 300));
    return cache.save();
  });
  assert.deepEqual(a, b);
  for (const call of [() => few.codec("hqmq", { dim: DIM }), () => few.cache({ kvHeads: 1, queryHeads: 1, headDim: DIM, capacity: 9, keys: "q8_0" })])
    fails("Unsupported", call, 'load({ codecs: "all" })');
  // A profile that names another codec says so as well; here its digest is wrong, too.
  const profile = PROFILE.replace("values turboquant:bits=8", "values hqmq");
  fails("Profile", () => few.cache({ ...profiled, bits: 2.2, profile }), 'load({ codecs: "all" })');
  fails("Profile", () => all.cache({ ...profiled, bits: 2.2, profile }), "digest");
  const specs = [few, all].map((octaplex) => {
    const cache = octaplex.cache({ ...profiled, bits: 2.2 });
    return Array.from({ length: 30 }, (_, layer) => cache.shape(layer));
  });
  assert.deepEqual(specs[0], specs[1]);
  await assert.rejects(load({ codecs: "most" }), { code: "Load" });
});

test("both builds give the same bytes", async () => {
  const snapshots = [];
  for (const simd of [true, false]) {
    const octaplex = await load({ simd, codecs: "all" });
    const cache = octaplex.cache({ kvHeads: 2, headDim: DIM, capacity: 1000, keys: "trellis", values: "octopus", queryHeads: 4 });
    cache.append(0, rows(2 * 300), rows(2 * 300));
    snapshots.push(cache.save(), Uint8Array.from(new Uint8Array(cache.attend(0, rows(4)).buffer)));
  }
  assert.deepEqual(snapshots.slice(0, 2), snapshots.slice(2));
});

test("modules can be given, and what is none is refused", async () => {
  const { readFile } = await import("node:fs/promises");
  const bytes = await readFile(new URL(import.meta.resolve("octaplex/octaplex.wasm")));
  assert.equal((await load({ module: bytes })).backend, "portable");
  assert.equal((await load({ module: await WebAssembly.compile(bytes) })).backend, "portable");
  assert.equal((await load({ url: import.meta.resolve("octaplex/octaplex.simd.wasm") })).backend, "simd128");
  await assert.rejects(load({ simd: true, wasm: bytes }), { code: "UnknownOption" });
  await assert.rejects(load({ module: bytes.subarray(0, 99) }), (error) => error.code === "Load" && error.cause instanceof WebAssembly.CompileError);
});

test("a module that failed in the middle of a call says so from then on", async () => {
  // A module that fails at once, with the message in its memory.
  const octaplex = await load({ simd: false });
  const { Memory } = await import(new URL("memory.js", import.meta.resolve("octaplex")));
  const memory = new WebAssembly.Memory({ initial: 1 });
  new Uint8Array(memory.buffer).set(new TextEncoder().encode("Internal\nmemory allocation of 7 bytes failed\0"), 64);
  const broken = new Memory({ memory, text: () => 64, release: () => assert.fail("a broken module is left alone") });
  fails("OutOfMemory", () => broken.fail(44), "7 bytes");
  fails("Broken", () => broken.begin(), "load the module anew");
  assert.equal(broken.exception(new WebAssembly.RuntimeError("unreachable")).code, "Internal");
  assert.ok(octaplex.memory().used === 0);
});

/** Does what the statement `using` does. */
function using(resource, body) {
  try {
    return body(resource);
  } finally {
    resource.dispose();
  }
}
