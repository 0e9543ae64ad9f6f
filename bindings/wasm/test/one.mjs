// The build of one codec (one.wasm), with the package's JavaScript.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { OctaplexError, load } from "octaplex";

const [all, one] = [await load({ simd: false, codecs: "all" }), await load({ module: await readFile("one.wasm") })];
const rows = Float32Array.from({ length: 5 * 128 }, (_, i) => Math.fround(Math.sin(i)));
for (const spec of ["turboquant", "turboquant:bits=1", "turboquant:bits=8"]) {
  const [a, b] = [all, one].map((octaplex) => octaplex.codec(spec, { dim: 128 }));
  const blocks = a.encode(rows);
  assert.deepEqual(b.encode(rows), blocks);
  assert.deepEqual(b.decode(blocks), a.decode(blocks));
  assert.deepEqual(b.score(rows, blocks), a.score(rows, blocks));
  assert.deepEqual(b.accumulate(rows.subarray(0, 10), blocks), a.accumulate(rows.subarray(0, 10), blocks));
}
for (const call of [() => one.codec("trellis", { dim: 128 }), () => one.codec("turboquant", { dim: 80 }), () => one.cache({}), () => one.verify()])
  assert.throws(call, (error) => error instanceof OctaplexError && error.code === "Unsupported");
assert.throws(() => one.codec("turboquant:bits=9", { dim: 128 }), OctaplexError);
console.log("the build of one codec gives the same bytes");
