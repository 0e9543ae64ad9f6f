// Compiles with the package's types; run by nobody.
import { OctaplexError, load, type AttendOptions, type Cache, type Codec } from "octaplex";

const octaplex = await load({ simd: false });
const codec: Codec = octaplex.codec("trellis", { dim: 128, role: "values" });
const blocks: Uint8Array = codec.encode(new Float32Array(128));
const cache: Cache = octaplex.cache({ kvHeads: 8, headDim: 128, capacity: 4096, cache_type_k: "q8_0", cache_type_v: "q4_0" });
const text: string = await (await fetch("model.octaprofile")).text();
octaplex.cache({ layers: 30, kvHeads: 3, headDim: 64, capacity: 4096, bits: 2.5, profile: text }).dispose();
const options: AttendOptions = { queries: 2, softCap: 50 };
const output: Float32Array = cache.attend(0, new Float32Array(1024), options);
const buffer = octaplex.floats(3);
buffer.set([1, 2, output[0] ?? blocks.length]);
cache[Symbol.dispose]();
try {
  cache.fork().append(0, new Uint16Array(3), new Uint16Array(3), { format: "bf16" });
} catch (error) {
  if (error instanceof OctaplexError && error.code === "Disposed") console.log(error.message);
}
// @ts-expect-error: a width is needed
octaplex.codec("int", {});
// @ts-expect-error: a profile is its text
octaplex.cache({ layers: 30, kvHeads: 3, headDim: 64, capacity: 4096, bits: 2.5, profile: new Uint8Array(9) });
// @ts-expect-error: no such option
cache.attend(0, output, { softcap: 3 });
// @ts-expect-error: rows are f32
codec.encode(new Float64Array(128));
