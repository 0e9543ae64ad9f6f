"""KL of llama.cpp's `q8_0` and `q4_0` caches with and without exact tokens, in NumPy: a model's attention in f32, on keys and
values that are rotated and rounded as llama.cpp does it. It explains why figures of llama.cpp differ from octaplex's.

usage: python benches/cache_types.py MODEL.gguf TEXT TOKENS     needs numpy, gguf and tokenizers; Llama or Qwen2

Prints CSV: the KL of the next token from the same model with f16 keys and values, over the positions behind the first 131."""

import sys
from functools import lru_cache

import numpy as np
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer, models, pre_tokenizers

reader, text, tokens = GGUFReader(sys.argv[1]), open(sys.argv[2]).read(), int(sys.argv[3])
tensors = {tensor.name: tensor for tensor in reader.tensors}


def field(name):
    found = reader.fields.get(name.replace("ARCH", reader.fields["general.architecture"].contents()))
    return found and found.contents()


@lru_cache(None)
def weights(name):
    return dequantize(tensors[name].data, tensors[name].tensor_type).astype(np.float32)


heads, kv_heads = field("ARCH.attention.head_count"), field("ARCH.attention.head_count_kv")
layers, width = field("ARCH.block_count"), field("ARCH.embedding_length") // heads
interleaved = field("general.architecture") == "llama"
merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(field("tokenizer.ggml.tokens"))}, merges))
digits, rest = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])
ids = np.array(tokenizer.encode(text[: tokens * 8]).ids[:tokens])
position = np.arange(len(ids))
angles = position[:, None] * (field("ARCH.rope.freq_base") or 10000.0) ** (-np.arange(0, width, 2) / width)
cos, sin = np.cos(angles).astype(np.float32)[:, None], np.sin(angles).astype(np.float32)[:, None]
hadamard = np.ones((1, 1), np.float32)
while len(hadamard) < 64:
    hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]]) / np.float32(np.sqrt(2))


def rope(x):
    pairs = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, width // 2), slice(width // 2, None))
    (a, b), out = (x[..., pair] for pair in pairs), np.empty_like(x)
    out[..., pairs[0]], out[..., pairs[1]] = a * cos - b * sin, a * sin + b * cos
    return out


def norm(x, name):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + field("ARCH.attention.layer_norm_rms_epsilon")) * weights(name)


def rotate(x):
    return (x.reshape(-1, 64) @ hadamard).reshape(x.shape)


def f16(x):
    return x.astype(np.float16).astype(np.float32)


def q8_0(x):
    blocks = x.reshape(-1, 32)
    scale = np.abs(blocks).max(1, keepdims=True) / 127
    return (np.rint(blocks / np.where(scale == 0, 1, scale)) * f16(scale)).reshape(x.shape)


def q4_0(x):
    blocks = x.reshape(-1, 32)
    scale = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1) / -8
    codes = np.clip(np.trunc(blocks / np.where(scale == 0, 1, scale) + 8.5), 0, 15)
    return ((codes - 8) * f16(scale)).reshape(x.shape)


def rounded(x, kind):
    return rotate(kind(rotate(x)))


def hidden(kind=None, round_queries=False, exact=None):
    """The last layer's output. `exact` has the sinks, the window and the page of a cache, whose tokens stay in f16."""
    x = weights("token_embd.weight")[ids]
    future = position[None, :] > position[:, None]
    if exact:
        sinks, window, page = exact
        closed = sinks + np.maximum(position + 1 - sinks - window, 0) // page * page
        is_exact = (position[None, :] < sinks) | (position[None, :] >= closed[:, None])
    else:
        is_exact = np.full(future.shape, kind is None)
    for block in (f"blk.{layer}." for layer in range(layers)):
        y, rows = norm(x, block + "attn_norm.weight"), []
        for name in (f"{block}attn_{role}." for role in "qkv"):
            bias = weights(name + "bias") if name + "bias" in tensors else 0
            rows.append((y @ weights(name + "weight").T + bias).reshape(len(ids), -1, width))
        q, k, v = rope(rows[0]), f16(rope(rows[1])), f16(rows[2])
        rounded_q = rounded(q, q8_0) if round_queries else q
        rounded_k, rounded_v = (rounded(k, kind), rounded(v, kind)) if kind else (k, v)
        out = np.empty_like(q)
        for head in range(heads):
            of = head * kv_heads // heads
            scores = np.where(is_exact, q[:, head] @ k[:, of].T, rounded_q[:, head] @ rounded_k[:, of].T)
            scores = np.where(future, -np.inf, scores / np.sqrt(width))
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            out[:, head] = np.where(is_exact, scores, 0) @ v[:, of] + np.where(is_exact, 0, scores) @ rounded_v[:, of]
        x = x + out.reshape(len(ids), -1) @ weights(block + "attn_output.weight").T
        y = norm(x, block + "ffn_norm.weight")
        gate = y @ weights(block + "ffn_gate.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ weights(block + "ffn_up.weight").T)) @ weights(block + "ffn_down.weight").T
    return norm(x, "output_norm.weight")


def log_softmax(x):
    x = (x @ weights("output.weight" if "output.weight" in tensors else "token_embd.weight").T).astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


reference = hidden()
print("cache,KL", flush=True)
for kind in (q8_0, q4_0):
    for what, options in {
        "4 first and 64 to 127 newest tokens exact": {"exact": (4, 64, 64)},
        "the same, and queries rounded to q8_0": {"exact": (4, 64, 64), "round_queries": True},
        "nothing exact": {},
        "nothing exact, queries rounded to q8_0": {"round_queries": True},
    }.items():
        found, total = hidden(kind, **options), 0.0
        for rows in np.array_split(np.arange(131, len(ids)), 8):
            a, b = log_softmax(reference[rows]), log_softmax(found[rows])
            total += (np.exp(a) * (a - b)).sum()
        print(f'"{kind.__name__}, {what}",{total / (len(ids) - 131):.3g}', flush=True)
