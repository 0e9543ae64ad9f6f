// Times the scores of 4,096 keys of 4 bits and width 128 with one query, by modules passed as NAME=FILE. They take turns. Prints
// the fastest of many, in nanoseconds a key, and the ratio to the first module. See ../wasm.sh.
import { readFile } from "node:fs/promises";

const [DIM, KEYS, TIMES, TURNS] = [128, 4096, 10, 400];
let seed = 1;
const uniform = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32;
// Gaussian enough for timing.
const rows = Float32Array.from({ length: KEYS * DIM }, () => Array.from({ length: 12 }, uniform).reduce((a, b) => a + b) - 6);
const exact = Array.from({ length: KEYS }, (_, key) => {
  let sum = 0;
  for (let i = 0; i < DIM; i++) sum += rows[i] * rows[key * DIM + i];
  return sum;
});

const modules = [];
for (const argument of process.argv.slice(2)) {
  const [name, file] = argument.split("=");
  const module = await WebAssembly.compile(await readFile(file));
  // Imports of ggml's C library, which these calls do not use.
  const imports = {};
  for (const { module: from, name: what } of WebAssembly.Module.imports(module))
    (imports[from] ??= {})[what] = () => { throw new Error(`${name} calls ${what}`); };
  const instance = await WebAssembly.instantiate(module, imports);
  const { memory, rows: place, score, scores } = instance.exports;
  new Float32Array(memory.buffer, place(), rows.length).set(rows);
  if (score(KEYS, 0) || score(KEYS, 1)) throw new Error(`${name} has no scores`);
  const found = new Float32Array(memory.buffer, scores(), KEYS);
  const [error, norm] = [exact.reduce((sum, x, i) => sum + (x - found[i]) ** 2, 0), exact.reduce((sum, x) => sum + x * x, 0)];
  modules.push({ name, best: Infinity, run: () => score(KEYS, TIMES), apart: Math.sqrt(error / norm) });
  if (!(modules.at(-1).apart < 0.2)) throw new Error(`${name}: its scores are ${modules.at(-1).apart} of them away`);
}
for (let turn = 0; turn < TURNS; turn++)
  for (const each of modules) {
    const before = performance.now();
    each.run();
    each.best = Math.min(each.best, ((performance.now() - before) * 1e6) / TIMES / KEYS);
  }
console.log(`| score, a key, Node ${process.versions.node} | ns | relative to ${modules[0].name} | error |\n|---|---|---|---|`);
for (const { name, best, apart } of modules)
  console.log(`| ${name} | ${best.toFixed(1)} | ${(best / modules[0].best).toFixed(2)} | ${apart.toFixed(3)} |`);
