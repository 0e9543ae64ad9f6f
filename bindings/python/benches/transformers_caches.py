"""Compares OctaplexCache with transformers' own quantised caches: one model, one text, one run, all taking turns token by token.

    pip install ./bindings/python torch transformers==5.23.0 gguf accelerate optimum-quanto ninja hqq
    python bindings/python/benches/transformers_caches.py MODEL.gguf TEXT.txt [PROMPT STEPS PARTS]    # 448 136 2

Each part of the text is a prompt, read at once, and steps after it, each the next token of the text. A row is a cache: what it holds
at the end in bytes, all tensors counted, and in bits a value; the KL divergence of the next token, at these steps, from that with f32
(nats; its mean, and the mean's standard error over parts); perplexity; the time of a step and of the prompt against f32's, the least
CPU time of all cores. transformers' own quantised caches attend to the prompt before they quantise it, ours reads pages while it reads
the prompt. quanto needs keys by channel in groups of 64: kv_heads · PROMPT and kv_heads · (PROMPT + 128) are multiples of that."""

import os
import sys
import time

import torch
import transformers
from octaplex.transformers import OctaplexCache
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, QuantizedCache

CACHES = {
    "f32 (DynamicCache)": lambda config: DynamicCache(config=config),
    "fp8": lambda config: QuantizedCache("fp8", config),
    "quanto, 4 bits": lambda config: QuantizedCache("quanto", config, nbits=4),
    "quanto, 4 bits, keys by channel": lambda config: QuantizedCache("quanto", config, nbits=4, axis_key=-1),
    "hqq, 4 bits": lambda config: QuantizedCache("hqq", config, nbits=4),
    "quanto, 2 bits": lambda config: QuantizedCache("quanto", config, nbits=2),
    "quanto, 2 bits, keys by channel": lambda config: QuantizedCache("quanto", config, nbits=2, axis_key=-1),
    "octaplex": lambda config: OctaplexCache(config),
    "octaplex, no exact window": lambda config: OctaplexCache(config, recent_window=0, max_rollback=0),
    "octaplex, trellis, no exact window": lambda config: OctaplexCache(config, keys="trellis", values="trellis", recent_window=0, max_rollback=0),
    "octaplex, trellis": lambda config: OctaplexCache(config, keys="trellis", values="trellis"),
    "octaplex, trellis:bits=2": lambda config: OctaplexCache(config, keys="trellis:bits=2", values="trellis:bits=2"),
}


def bytes_of(held):
    """All tensors in an attribute of a cache, those within other tensors too."""
    if isinstance(held, dict):
        return sum(map(bytes_of, held.values()))
    if isinstance(held, (list, tuple)) and not isinstance(held, torch.Size):
        return sum(map(bytes_of, held))
    parts = [getattr(held, name, None) for name in ("_data", "_scale", "_shift")]
    if any(part is not None for part in parts):
        return sum(map(bytes_of, parts))
    return held.nbytes if isinstance(held, torch.Tensor) else 0


def bytes_in(cache):
    if isinstance(cache, OctaplexCache):
        return cache.stats().bytes
    names = ("keys", "values", "_quantized_keys", "_quantized_values")
    return sum(bytes_of(getattr(layer, name, None)) for layer in cache.layers for name in names)


def timed(best, name, work):
    start = time.process_time()
    result = work()
    best[name] = min(best.get(name, float("inf")), time.process_time() - start)
    return result


def main(path, text, prompt=448, steps=136, parts=2):
    torch.set_grad_enabled(False)
    folder, file = os.path.split(path)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    with open(text, encoding="utf-8") as opened:
        tokens = AutoTokenizer.from_pretrained(folder, gguf_file=file)(opened.read(), return_tensors="pt").input_ids
    if tokens.shape[1] <= parts * (prompt + steps):
        sys.exit(f"{text} has {tokens.shape[1]} tokens: {parts} parts of {prompt + steps} and one more are asked for")
    step, prefill, kl, surprise, held = {}, {}, {}, {}, {}
    for part in range(parts):
        here = tokens[:, part * (prompt + steps) :][:, : prompt + steps + 1]
        caches = {name: make(model.config) for name, make in CACHES.items()}

        def forward(name, inputs, best):
            model.set_attn_implementation("octaplex" if name.startswith("octaplex") else "sdpa")
            return timed(best, name, lambda: model(inputs, past_key_values=caches[name], logits_to_keep=1)).logits[0, -1].log_softmax(-1)

        for name in CACHES:
            forward(name, here[:, :prompt], prefill)
            kl.setdefault(name, []).append(0.0)
        for at in range(prompt, prompt + steps):
            for name in CACHES:
                found = forward(name, here[:, at : at + 1], step)
                if name.startswith("f32"):
                    exact = found
                kl[name][-1] += float((exact.exp() * (exact - found)).sum()) / steps
                surprise[name] = surprise.get(name, 0.0) - float(found[here[0, at + 1]]) / (parts * steps)
        held = {name: bytes_in(cache) for name, cache in caches.items()}
    total = held["f32 (DynamicCache)"]
    print(f"{file}, {os.path.basename(text)}: {parts} parts of {prompt} + {steps} tokens; torch {torch.__version__}, transformers {transformers.__version__}")
    print("| cache | bytes | bits a value | KL, nats | perplexity | a step beside f32's | the prompt beside f32's |\n| :-- | --: | --: | --: | --: | --: | --: |")
    for name in CACHES:
        each = torch.tensor(kl[name], dtype=torch.float64)
        error = float(each.std() / parts**0.5) if parts > 1 else float("nan")
        times = [best[name] / best["f32 (DynamicCache)"] for best in (step, prefill)]
        print(
            f"| {name} | {held[name]} | {32 * held[name] / total:.2f} | {each.mean():.4f} ± {error:.4f} | {torch.tensor(surprise[name]).exp():.3f} "
            f"| {times[0]:.2f} | {times[1]:.2f} |"
        )


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 6:
        sys.exit(__doc__)
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
