// The choices of the page. The library provides everything else about codecs.

/** Codecs and their rates, in families. `octaplex compare` measures the same ones. */
export const FAMILIES = [
  { name: "trellis", about: "random rotation and a trellis code", specs: ["trellis:m=2", "trellis", "trellis:m=8", "trellis:m=16"] },
  {
    name: "turboquant",
    about: "random rotation and a scalar quantiser",
    specs: ["turboquant:bits=2", "turboquant:bits=3", "turboquant", "turboquant:bits=6", "turboquant:bits=8"],
  },
  { name: "octopus", about: "triplets as a direction and a radius", specs: ["octopus", "octopus:split=even"] },
  { name: "polarquant", about: "a tree of polar coordinates", specs: ["polarquant:bits=3", "polarquant"] },
  { name: "hqmq", about: "products of quaternions", specs: ["hqmq:s=24,r=3", "hqmq:secondary=optimised", "hqmq:r=6,med=3"] },
  { name: "additive", about: "sums of random directions, a baseline", specs: ["additive"] },
  { name: "qjl", about: "signs of random projections, unbiased scores", specs: ["qjl", "turboquant-qjl:bits=4", "octopus-qjl"] },
  {
    name: "int",
    about: "plain integers with a scale",
    specs: ["int:bits=3", "int", "int:rotate=true", "int:asymmetric=true", "int:group=32", "int8"],
  },
  { name: "llama.cpp", about: "its cache types, byte for byte", specs: ["q4_0", "q4_0:rotate=keys", "iq4_nl", "q5_0", "q8_0"] },
  { name: "tq3_0", about: "blocks of a llama.cpp fork", specs: ["tq3_0", "tq3_0:variant=3bit"] },
  { name: "fp8", about: "8-bit floats, vLLM's cache", specs: ["fp8", "fp8:scale=token"] },
  { name: "graded", about: "two trellis codes, more bits for channels that queries weigh; values in trellis", specs: ["graded:bits=2", "graded", "graded:bits=4"] },
  { name: "floats", about: "not compressed", specs: ["f16", "bf16", "f32"] },
];

export const SPECS = FAMILIES.flatMap((family) => family.specs);
export const FIRST = "trellis";
export const familyOf = (spec) => FAMILIES.findIndex((family) => family.specs.includes(spec));

const VALUES = { "graded:bits=2": "trellis:m=2", graded: "trellis", "graded:bits=4": "trellis:m=8" };

/** Returns the spec of values that belongs to these keys. Rotations name keys or values, and `graded` is for keys only. */
export const forValues = (spec) => VALUES[spec] ?? spec.replace("rotate=keys", "rotate=values");

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
