"""A model of 7B's shape with random weights on a GPU: prompt, decode step and memory with transformers' caches and with OctaplexCache.

    python gpu_decode.py [TOKENS ...]      2048 16384 131072 by default

The prompt goes in pieces of 2,048 tokens. A step is the median of 24, by the host's clock, with the GPU waited for around each. The best bf16
is a cache of exactly these tokens, compiled, in one graph, with the faster of PyTorch's FlashAttention and cuDNN's attention."""

import gc
import sys
import time

import octaplex
import torch
import transformers
from octaplex.transformers import DecodeGraph, OctaplexCache
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, Cache, DynamicCache, Qwen2Config, Qwen2ForCausalLM, StaticCache
from transformers.cache_utils import DynamicLayer

PIECE, STEPS = 2048, 24
CONFIG = Qwen2Config(
    vocab_size=32000, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
    max_position_embeddings=262144,
)


def used():
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def measure(model, name, make, implementation, tokens, batch=1, compiled=False):
    gc.collect()
    torch.cuda.empty_cache()
    model.set_attn_implementation(implementation)
    before, cache = used(), make()
    ids = torch.randint(0, 32000, (batch, tokens), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for at in range(0, tokens, PIECE):
        found = model(ids[:, at : at + PIECE], past_key_values=cache, use_cache=True, logits_to_keep=1)
    torch.cuda.synchronize()
    prompt, logits = time.perf_counter() - start, found.logits[0, -1].float()
    forward = torch.compile(model.forward, mode="reduce-overhead") if compiled else model.forward
    first = found.logits[:, -1:].argmax(-1).clone()
    step = steps(lambda token: forward(token, past_key_values=cache, use_cache=True).logits, first)
    print(f"{name:36s} {tokens:7d} x{batch}  prompt {prompt:6.2f} s  step {step:7.2f} ms  memory {used() - before:6.2f} GB", end="", flush=True)
    if isinstance(cache, OctaplexCache):
        stats = cache.stats()
        pool = sum(layer.cache.page_bytes() for layer in cache.on_gpus())
        print(f"  cache {stats.bytes / 1e9:.3f} GB, {stats.bits_per_value:.2f} bits a value, pages with room {pool / 1e9:.3f} GB", end="")
        graph = steps(DecodeGraph(model, cache), first)
        print(f"  in one graph {graph:7.2f} ms, memory {used() - before:6.2f} GB", end="")
        graph = steps(DecodeGraph(torch.compile(model.forward), cache), first)
        print(f"  compiled, in one graph {graph:7.2f} ms", end="")
    print(flush=True)
    return logits


def steps(forward, token):
    """The median of steps, in ms."""
    times = []
    for _ in range(STEPS + 6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        token = forward(token)[:, -1:].argmax(-1).clone()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times[6:])[STEPS // 2]


class Exact(DynamicLayer):
    """bf16 keys and values of exactly the tokens of a step, the last one written by it. No mask is needed."""

    def __init__(self, tokens, batch):
        super().__init__()
        shape = (batch, CONFIG.num_key_value_heads, tokens, CONFIG.hidden_size // CONFIG.num_attention_heads)
        self.keys, self.values = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        self.keys[:, :, -1:], self.values[:, :, -1:] = key_states, value_states
        return self.keys, self.values

    def get_seq_length(self, *args):
        return self.keys.shape[2] - 1

    def get_mask_sizes(self, *args):
        return self.keys.shape[2], 0


def grouped(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Attention of one token. Query heads of a key head are rows of one product, so that keys are read once."""
    batch, heads, _, dim = query.shape
    rows = query.reshape(batch, key.shape[1], -1, dim)
    found = torch.nn.functional.scaled_dot_product_attention(rows, key, value, scale=scaling)
    return found.reshape(batch, 1, heads, dim), None


AttentionInterface.register("grouped", grouped)


def best(model, tokens, batch=1):
    """Prints the step of the best bf16 that PyTorch has."""
    gc.collect()
    torch.cuda.empty_cache()
    model.set_attn_implementation("grouped")
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        name = f"bf16 of exact length, {backend.name.split('_')[0]}"
        try:
            torch._dynamo.reset()
            cache = Cache(layers=[Exact(tokens + 1, batch) for _ in range(CONFIG.num_hidden_layers)])
            token, positions = (torch.full((batch, 1), number, device="cuda") for number in (1, tokens))
            forward = torch.compile(model.forward)
            call = lambda: forward(token, past_key_values=cache, position_ids=positions, use_cache=True).logits
            with sdpa_kernel(backend):
                for _ in range(3):
                    call()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    logits = call()

            def step(next_token):
                token.copy_(next_token)
                graph.replay()
                return logits

            print(f"{name:36s} {tokens:7d} x{batch}  compiled, in one graph {steps(step, token.clone()):7.2f} ms", flush=True)
        except Exception as error:  # a backend that does not take these shapes
            print(f"{name:36s} {tokens:7d} x{batch}  failed: {str(error)[:300]}", flush=True)


def ours(tokens, **options):
    return lambda: OctaplexCache(CONFIG, capacity=tokens + 256, **options)


#: The default of the library, and one with more bits.
CODECS = {"graded, trellis": dict(keys="graded", values="trellis"), "turboquant": dict(keys="turboquant", values="turboquant")}


def calls(model, tokens):
    """Host's time of the two calls of a step, without the model."""
    for codec, options in CODECS.items():
        cache = octaplex.Cache(1, 4, 128, tokens + 4096, device="cuda", **options)
        rows = torch.randn(4, tokens, 128, device="cuda", dtype=torch.bfloat16)
        cache.append(0, rows, rows)
        row, queries = rows[:, :1], torch.randn(28, 128, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(queries)
        for what, call in (("append", lambda: cache.append(0, row, row)), ("attend", lambda: cache.attend(0, queries, out=out))):
            for _ in range(10):
                call()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                call()
            host = time.perf_counter() - start
            torch.cuda.synchronize()
            both = time.perf_counter() - start
            print(f"{what} of {codec}, {tokens} tokens: {1e4 * host:.1f} us a call, {1e4 * both:.1f} with the GPU", flush=True)
        del cache


@torch.no_grad()
def main():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(CONFIG).eval()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    for tokens in map(int, sys.argv[1:] or (2048, 16384, 131072)):
        calls(model, tokens)
        best(model, tokens)
        wanted = []
        caches = [(f"OctaplexCache {codec}", ours(tokens, **options), "octaplex", False) for codec, options in CODECS.items()]
        for name, make, implementation, compiled in (
            *caches,
            ("DynamicCache, sdpa", lambda: DynamicCache(config=CONFIG), "sdpa", False),
            ("StaticCache, sdpa, torch.compile", lambda: StaticCache(config=CONFIG, max_cache_len=tokens + 256), "sdpa", True),
        ):
            try:
                found = measure(model, name, make, implementation, tokens, compiled=compiled)
                if implementation == "octaplex":
                    wanted.append((name, found))
                for other, logits in wanted if name.startswith("Dynamic") else ():
                    log = torch.log_softmax(found, -1)
                    print(f"    KL of the prompt's last logits from bf16's, {other}: {float((log.exp() * (log - torch.log_softmax(logits, -1))).sum()):.2e} nats")
            except Exception as error:  # out of memory, or what compiling says
                print(f"{name:44s} {tokens:7d}  failed: {str(error)[:300]}", flush=True)
    for batch in (4, 16):
        best(model, 16384, batch)
        for name, options in CODECS.items():
            measure(model, f"OctaplexCache {name}", ours(16384, **options), "octaplex", 16384, batch=batch)
        measure(model, "DynamicCache, sdpa", lambda: DynamicCache(config=CONFIG), "sdpa", 16384, batch=batch)


if __name__ == "__main__":
    main()
