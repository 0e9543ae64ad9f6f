"""cuDNN's bf16 attention through PyTorch, as benches/gpu.rs measures a decode step: as many layers as exceed the GPU's cache
several times, one after the other in one graph, median of 50 launches, microseconds a layer.

    python3 benches/peers/sdpa.py
"""
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [(28, 4, 1, 16384), (28, 4, 1, 65536), (28, 4, 1, 131072), (32, 8, 1, 65536), (64, 8, 8, 131072)]
DIM = 128
BYTES = 400_000_000

print(f"{torch.cuda.get_device_name(0)}: microseconds a decode step, D = {DIM}, median of 50, PyTorch {torch.__version__}, "
      f"cuDNN {torch.backends.cudnn.version()}")
for heads, kv_heads, batch, tokens in SHAPES:
    size = 2 * batch * kv_heads * tokens * DIM * 2
    count = max(1, -(-BYTES // size))
    layers = [torch.randn(2, batch, kv_heads, tokens, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    query = torch.randn(batch, heads, 1, DIM, device="cuda", dtype=torch.bfloat16)

    def steps():
        for keys, values in layers:
            F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3): steps()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): steps()
        times = []
        for i in range(60):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(); graph.replay(); end.record(); end.synchronize()
            if i >= 10: times.append(1000 * start.elapsed_time(end) / count)
    print(f"{heads}/{kv_heads} x {batch}, {tokens:6} tokens, cuDNN bf16          {sorted(times)[25]:8.1f} us ({size / sorted(times)[25] / 1e6:4.2f} TB/s, {count} layers)",
          flush=True)
    del layers, query, graph
    torch.cuda.empty_cache()

# A block of queries, the newest of the tokens: each sees those before it.
from torch.nn.attention.bias import causal_lower_right
heads, kv_heads, tokens = 28, 4, 32768
keys, values = torch.randn(2, 1, kv_heads, tokens, DIM, device="cuda", dtype=torch.bfloat16)
for count in (2048, 16):
    query = torch.randn(1, heads, count, DIM, device="cuda", dtype=torch.bfloat16)
    for name, backend, seen in (("cuDNN bf16, every token seen", SDPBackend.CUDNN_ATTENTION, None),
                                ("FlashAttention bf16", SDPBackend.FLASH_ATTENTION, causal_lower_right(count, tokens))):
        with sdpa_kernel(backend), torch.no_grad():
            times = []
            for i in range(30):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record(); F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, enable_gqa=True); end.record(); end.synchronize()
                if i >= 10: times.append(1000 * start.elapsed_time(end))
        print(f"block of {count} queries, {heads}/{kv_heads}, {tokens} tokens, {name} {sorted(times)[10]:8.1f} us", flush=True)
