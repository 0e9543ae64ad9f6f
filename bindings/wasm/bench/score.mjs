// Measures what the npm package costs on top of the Rust library, built for the same target:
//   node score.mjs BENCH.wasm      (ci/wasm.sh bench builds it, and runs this in the folder of the installed package)
// Each time is the best of many: of 4,096 keys of 4 bits and width 128, and of one key. The difference is the overhead of a call.
import { readFile } from "node:fs/promises";
import { load } from "octaplex";

const [DIM, KEYS] = [128, 4096];
const { instance } = await WebAssembly.instantiate(await readFile(process.argv[2]));
const rust = instance.exports;
let seed = 1;
const rows = Float32Array.from({ length: KEYS * DIM }, () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 31 - 1);
new Float32Array(rust.memory.buffer, rust.rows(), rows.length).set(rows);

const octaplex = await load({ simd: true });
const codec = octaplex.codec("turboquant:bits=4", { dim: DIM });
const [query, blocks, out] = [octaplex.floats(DIM), octaplex.bytes(codec.bytesFor(KEYS)), octaplex.floats(KEYS)];
query.set(rows.subarray(0, DIM));
blocks.set(codec.encode(rows));

const ofRust = (keys) => ({ name: `Rust, ${keys} keys`, keys, run: (times) => rust.score(keys, times) });
const ofPackage = (keys, name, inside) => {
  const [q, b, o] = inside
    ? [query.view, blocks.view.subarray(0, codec.bytesFor(keys)), out.view.subarray(0, keys)]
    : [query.view.slice(), blocks.view.slice(0, codec.bytesFor(keys)), new Float32Array(keys)];
  const run = (times) => {
    for (let i = 0; i < times; i++) codec.score(q, b, o);
  };
  return { name: `${name}, ${keys} keys`, keys, run };
};
const all = [KEYS, 1].flatMap((keys) => [ofRust(keys), ofPackage(keys, "npm, the module's memory", true), ofPackage(keys, "npm, arrays of one's own", false)]);
for (const each of all) {
  if (each.name.startsWith("Rust")) rust.score(each.keys, 0);
  each.best = Infinity;
}
for (let turn = 0; turn < 60; turn++)
  for (const each of all) {
    if (each.name.startsWith("Rust")) rust.score(each.keys, 0);
    const times = each.keys === 1 ? 5000 : 50;
    const before = performance.now();
    each.run(times);
    each.best = Math.min(each.best, ((performance.now() - before) * 1e6) / times);
  }
for (const { name, best } of all) console.log(`${name.padEnd(36)} ${best.toFixed(0).padStart(8)} ns`);
const [rustAll, npmAll, , rustOne, npmOne, copied] = all.map((each) => each.best);
console.log(`\nscore of ${KEYS} keys: ${(npmAll / rustAll).toFixed(3)} times Rust's`);
console.log(`a call: ${(npmOne - rustOne).toFixed(0)} ns over Rust's, ${(copied - rustOne).toFixed(0)} ns with arrays of one's own`);

rust.score(KEYS, 0);
rust.score(KEYS, 1);
const scores = codec.score(query.view, blocks.view);
if (!new Float32Array(rust.memory.buffer, rust.scores(), KEYS).every((x, i) => x === scores[i])) throw new Error("the scores differ");
