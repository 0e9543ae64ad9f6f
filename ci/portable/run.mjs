// Runs the suite's WebAssembly module: node run.mjs MODULE. OCTAPLEX_REQUIRE=simd128 makes its absence an error.
import { readFile } from "node:fs/promises";

let lines = [];
const host = {
  print(text, length) {
    const bytes = new Uint8Array(instance.exports.memory.buffer, text, length);
    lines.push(new TextDecoder().decode(bytes.slice()));
  },
};
const { instance } = await WebAssembly.instantiate(await readFile(process.argv[2]), { host });

function said(call) {
  lines = [];
  try {
    return [call(), lines];
  } catch (trap) {
    return [1, [...lines, String(trap)]];
  }
}

const [, backends] = said(instance.exports.backends);
console.log(`backends: ${backends.join(" ")}`);
const missing = (process.env.OCTAPLEX_REQUIRE ?? "scalar").split(",").filter((name) => !backends.includes(name));
if (missing.length > 0) {
  console.error(`OCTAPLEX_REQUIRE asks for ${missing.join(" ")}, this build lacks it`);
  process.exitCode = 1;
}

const [failures, differences] = said(instance.exports.run_suite);
differences.forEach((difference) => console.error(difference));
console.log(failures === 0 ? "every kernel equals the specification" : `${failures} kernels differ`);
if (failures !== 0) process.exitCode = 1;
