// Drives the WebAssembly module of the library:
//   node run.mjs MODULE                                the bit-equality suite; OCTAPLEX_REQUIRE=simd128 makes its absence an error
//   node run.mjs MODULE trellis                        the trellis codec on 110,000 random and 4,400 adversarial vectors, likewise
//   node run.mjs MODULE verify                         as `octaplex verify`, on every backend
//   node run.mjs MODULE time [DIM]                     attention on 2,000 tokens, eight query heads on two: µs, compared with plain f32
import { readFile } from "node:fs/promises";

let lines = [];
const bytes = (at, length) => new Uint8Array(instance.exports.memory.buffer, at, length).slice();
const host = {
  print: (text, length) => lines.push(new TextDecoder().decode(bytes(text, length))),
};
const [, , path, task, ...options] = process.argv;
const { instance } = await WebAssembly.instantiate(await readFile(path), { host });

function said(call) {
  lines = [];
  try {
    return [call(), lines];
  } catch (trap) {
    return [1, [...lines, String(trap)]];
  }
}

function checkBackends() {
  const [, backends] = said(instance.exports.backends);
  console.log(`backends: ${backends.join(" ")}`);
  const required = (process.env.OCTAPLEX_REQUIRE ?? "scalar").split(",");
  const missing = required.filter((name) => !backends.includes(name));
  if (missing.length > 0) {
    console.error(`OCTAPLEX_REQUIRE asks for ${missing.join(" ")}, this build lacks it`);
    process.exitCode = 1;
  }
}

function suite() {
  checkBackends();
  const [failures, differences] = said(instance.exports.run_suite);
  differences.forEach((difference) => console.error(difference));
  console.log(failures === 0 ? "every kernel equals the specification" : `${failures} kernels differ`);
  if (failures !== 0) process.exitCode = 1;
}

function trellis() {
  checkBackends();
  const [failed, words] = said(instance.exports.run_trellis);
  if (failed) process.exitCode = 1;
  console.log(failed ? `the trellis codec differs: ${words.join(" ")}` : `trellis: every backend agrees on ${words[0]}`);
}

function verify() {
  checkBackends();
  const [differ, differences] = said(instance.exports.run_verify);
  differences.forEach((difference) => console.error(difference));
  console.log(differ === 0 ? "every codec gives the table's checksums" : `${differ} checksums differ`);
  if (differ !== 0) process.exitCode = 1;
}

/// The address and the length of bytes, copied into the module's memory.
function give(data) {
  const at = instance.exports.room(data.length);
  new Uint8Array(instance.exports.memory.buffer, at, data.length).set(data);
  return [at, data.length];
}

/// The fastest of many calls that take turns.
function time(dim) {
  const [, backends] = said(instance.exports.backends);
  const rows = Float32Array.from({ length: (2 * 2 * 2000 + 8) * dim }, () =>
    Array.from({ length: 12 }, Math.random).reduce((sum, x) => sum + x) - 6);
  const codecs = ["turboquant:bits=2", "turboquant:bits=3", "turboquant", "turboquant:bits=8", "trellis:m=2", "trellis", "trellis:m=8"];
  const names = ["", ...codecs.flatMap((codec) => backends.map((backend) => `${codec} ${backend}`))];
  const runs = names.map((name) => {
    const [run, words] = said(() =>
      instance.exports.prepare(...give(new TextEncoder().encode(name)), dim, ...give(new Uint8Array(rows.buffer))));
    if (run === 0) throw new Error(words.join("\n"));
    return { name, run, best: Infinity };
  });
  for (const start = performance.now(); performance.now() < start + 10000; )
    for (const each of runs) {
      const before = performance.now();
      if (instance.exports.attend(each.run) !== 0) throw new Error(each.name);
      each.best = Math.min(each.best, performance.now() - before);
    }
  for (const { name, best } of runs)
    console.log(`${(name || "plain f32").padEnd(32)} ${(1000 * best).toFixed(0).padStart(7)} ${(best / runs[0].best).toFixed(2).padStart(6)} times`);
}

if (task === undefined) suite();
else if (task === "time") time(Number(options[0] ?? 64));
else if (task === "trellis") trellis();
else if (task === "verify") verify();
else throw new Error(`no task ${task}`);
