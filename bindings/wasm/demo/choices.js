// The choices of the page. The library provides everything else about codecs.

/** Codecs and their rates, in families. `octaplex compare` measures the same ones, under the same names. */
export const FAMILIES = [
  {
    name: "graded",
    about: "the default: two trellis codes, more bits for channels that queries weigh; values in trellis",
    specs: ["graded:bits=2", "graded:bits=3", "graded:bits=4"],
  },
  { name: "trellis", about: "random rotation and a trellis code", specs: ["trellis:bits=2", "trellis:bits=3", "trellis:bits=4", "trellis:bits=5"] },
  {
    name: "turboquant",
    about: "random rotation and a scalar quantiser",
    specs: ["turboquant:bits=2", "turboquant:bits=3", "turboquant:bits=4", "turboquant:bits=6", "turboquant:bits=8"],
  },
  { name: "octopus", about: "triplets as a direction and a radius", specs: ["octopus", "octopus:split=even"] },
  { name: "polarquant", about: "a tree of polar coordinates", specs: ["polarquant:bits=3", "polarquant:bits=4"] },
  { name: "hqmq", about: "products of quaternions", specs: ["hqmq:s=24,r=3", "hqmq:secondary=optimised", "hqmq:r=6,med=3"] },
  { name: "additive", about: "sums of random directions, a baseline", specs: ["additive"] },
  { name: "qjl", about: "signs of random projections, unbiased scores", specs: ["qjl", "turboquant-qjl:bits=4", "octopus-qjl"] },
  {
    name: "int",
    about: "plain integers with a scale",
    specs: ["int:bits=3", "int:bits=4", "int:bits=4,rotate=true", "int:asymmetric=true", "int:bits=4,group=32", "int8"],
  },
  { name: "llama.cpp", about: "its cache types, byte for byte", specs: ["q4_0", "q4_0:rotate=keys", "iq4_nl", "q5_0", "q8_0"] },
  { name: "tq3_0", about: "blocks of a llama.cpp fork", specs: ["tq3_0", "tq3_0:variant=3bit"] },
  { name: "fp8", about: "8-bit floats, vLLM's cache", specs: ["fp8", "fp8:scale=token"] },
  { name: "floats", about: "not compressed", specs: ["f16", "bf16", "f32"] },
];

export const SPECS = FAMILIES.flatMap((family) => family.specs);
/** The page opens with the default, and takes the other one for a file whose width lacks what was chosen: it has every width. */
export const FIRST = "graded:bits=3";
export const EVERY_WIDTH = "trellis:bits=3";
export const familyOf = (spec) => FAMILIES.findIndex((family) => family.specs.includes(spec));

/** Returns the spec of values that belongs to these keys. Rotations name keys or values, and `graded` is for keys only. */
export const forValues = (spec) => spec.replace("graded", "trellis").replace("rotate=keys", "rotate=values");

/** The widths of all codecs except ggml's blocks, as in `octaplex::codebook::WIDTHS`. */
export const WIDTHS = [32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576];

/**
 * Models that keep all tokens in every layer. The numbers are those of their config.json: num_hidden_layers,
 * num_key_value_heads, head_dim (or hidden_size / num_attention_heads) and max_position_embeddings.
 */
export const MODELS = [
  { name: "Llama 3.1 8B", source: "meta-llama/Llama-3.1-8B", layers: 32, heads: 8, dim: 128, context: 131072 },
  { name: "Llama 3.1 70B", source: "meta-llama/Llama-3.1-70B", layers: 80, heads: 8, dim: 128, context: 131072 },
  { name: "Qwen3 32B", source: "Qwen/Qwen3-32B", layers: 64, heads: 8, dim: 128, context: 32768 },
  { name: "Qwen2.5 7B", source: "Qwen/Qwen2.5-7B", layers: 28, heads: 4, dim: 128, context: 131072 },
  { name: "Qwen2.5 Coder 1.5B", source: "Qwen/Qwen2.5-Coder-1.5B", layers: 28, heads: 2, dim: 128, context: 32768 },
  { name: "Qwen2.5 0.5B", source: "Qwen/Qwen2.5-0.5B", layers: 24, heads: 2, dim: 64, context: 32768 },
  { name: "SmolLM2 135M", source: "HuggingFaceTB/SmolLM2-135M", layers: 30, heads: 3, dim: 64, context: 8192 },
];
