"""The cost of a chunk of 256 tokens of an 8B model in a store: the table of docs/gpu-engines.md.

    ci/lmcache.sh && target/python/lmcache/bin/pip install zstandard
    target/python/lmcache/bin/python bindings/python/benches/chunk_store.py [KV.safetensors]

32 layers, 8 heads of keys and values, 128 wide, bf16, one core. KV.safetensors has `k` and `v` [layers, kv_heads, 1024, 128] and `q`
[layers, query_heads, queries, 128] at the positions `q_pos`, of a real model: each stretch of 256 tokens stands for a head, and what is
measured of its layers counts for all 32. Without it the numbers are Gaussian, which says nothing of errors.

A row: bytes in the store, seconds to encode and to decode (CPU time, which other work on the machine does not add to; the least of many,
all taking turns), the link below which it takes less time than bf16 as it is, to store and to load, and the error of attention over
the 1,024 tokens, of its norm."""

import os

os.environ["RAYON_NUM_THREADS"] = "1"  # before octaplex and NumPy begin
os.environ["OMP_NUM_THREADS"] = "1"

import json
import struct
import sys
import time
from types import SimpleNamespace

import lmcache
import numpy as np
import octaplex
import torch
import zstandard
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.serde.fp8 import Fp8QuantizationDeserializer, Fp8QuantizationSerializer
from octaplex.lmcache import OctaplexDeserializer, OctaplexSerializer, Settings

LAYERS, HEADS, TOKENS, WIDTH = 32, 8, 256, 128
RAW = 2 * LAYERS * HEADS * TOKENS * WIDTH * 2
SECONDS = float(os.environ.get("SECONDS_EACH", 3))  # of work, for each row


def tensors_in(path):
    """A safetensors file's, as float32."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        body = file.read()
    header.pop("__metadata__", None)
    types = {"F16": np.float16, "F32": np.float32, "I32": np.int32}
    read = lambda each: np.frombuffer(body[slice(*each["data_offsets"])], types[each["dtype"]]).reshape(each["shape"])
    return {name: torch.from_numpy(read(each).astype(np.float32)) for name, each in header.items()}


def chunk_of(k, v):
    """[layers, kv_heads, 4 · 256, 128] as a chunk [2, layers, 256, 8 · 128], whose heads are stretches of 256 tokens."""
    stacked = torch.stack([k, v])
    count, layers, heads, tokens, width = stacked.shape
    if (heads * tokens, width) != (HEADS * TOKENS, WIDTH):
        sys.exit(f"k has the shape {list(k.shape)}: [layers, kv_heads, tokens, {WIDTH}] with kv_heads · tokens = {HEADS * TOKENS} is needed")
    parts = stacked.reshape(count, layers, HEADS, TOKENS, width).transpose(2, 3)
    return parts.reshape(count, layers, TOKENS, HEADS * width).to(torch.bfloat16).contiguous()


def rows_of(chunk, like):
    """The reverse."""
    parts = chunk.float().reshape(2, -1, TOKENS, HEADS, WIDTH).transpose(2, 3)
    return parts.reshape(2, *like.shape)


def attention(k, v, q, positions):
    shared = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(shared, 1).transpose(2, 3) / WIDTH**0.5
    scores.masked_fill_(torch.arange(k.shape[2])[None] > positions[:, None], float("-inf"))
    return scores.softmax(-1) @ v.repeat_interleave(shared, 1)


KEY = ObjectKey(chunk_hash=bytes(8), model_name="model", kv_rank=0)


class Serde:
    """A serializer and a deserializer of LMCache, as its processor calls them."""

    def __init__(self, serializer, deserializer):
        self.serializer, self.deserializer = serializer, deserializer

    def prepare(self, tensor):
        layout = SimpleNamespace(shapes=[tensor.shape], dtypes=[tensor.dtype])
        self.source, self.back = SimpleNamespace(tensor=tensor), SimpleNamespace(tensor=torch.empty_like(tensor))
        self.stored = SimpleNamespace(tensor=torch.empty(self.serializer.estimate_serialized_size(layout), dtype=torch.uint8))

    def encode(self):
        return self.serializer.serialize(self.source, self.stored, KEY)

    def decode(self):
        self.deserializer.deserialize(self.stored, self.back, KEY)
        return self.back.tensor


class Zstd:
    """bf16 in zstd; `apart`: all low bytes first, then all high ones, which are what compresses."""

    def __init__(self, level, apart):
        self.packer, self.unpacker, self.apart = zstandard.ZstdCompressor(level), zstandard.ZstdDecompressor(), apart

    def prepare(self, tensor):
        self.shape, self.bytes = tensor.shape, tensor.view(torch.uint8).flatten().numpy()

    def encode(self):
        self.packed = self.packer.compress(self.bytes.reshape(-1, 2).T.copy() if self.apart else self.bytes)
        return len(self.packed)

    def decode(self):
        found = np.frombuffer(self.unpacker.decompress(self.packed), np.uint8)
        found = found.reshape(2, -1).T.copy() if self.apart else found.copy()
        return torch.from_numpy(found).flatten().view(torch.bfloat16).reshape(self.shape)


def octaplex_serde(**codecs):
    settings = Settings(head_dim=WIDTH, **codecs)
    return Serde(OctaplexSerializer(settings), OctaplexDeserializer(settings))


ROWS = {
    "LMCache's `fp8`": Serde(Fp8QuantizationSerializer(), Fp8QuantizationDeserializer()),
    "zstd, level 1": Zstd(1, False),
    "zstd, level 1, low and high bytes apart": Zstd(1, True),
    "`turboquant`": octaplex_serde(keys="turboquant", values="turboquant"),
    "`trellis`": octaplex_serde(keys="trellis", values="trellis"),
    "`trellis:bits=2`": octaplex_serde(keys="trellis:bits=2", values="trellis:bits=2"),
}


def main(path=None):
    torch.set_num_threads(1)
    if path:
        real = tensors_in(path)
        keys, values = real["k"], real["v"]
    else:
        real, (keys, values) = None, torch.randn(2, 7, 2, 1024, WIDTH, generator=torch.Generator().manual_seed(0))
    tensor = chunk_of(keys, values)
    all_layers = LAYERS / tensor.shape[1]
    for row in ROWS.values():
        row.prepare(tensor)
    best = {name: [float("inf"), float("inf")] for name in ROWS}
    found, until = {}, time.perf_counter() + SECONDS * len(ROWS)
    while time.perf_counter() < until or not found:
        for name, row in ROWS.items():
            start = time.process_time()
            length = row.encode()
            middle = time.process_time()
            decoded = row.decode()
            times = middle - start, time.process_time() - middle
            best[name] = [min(pair) for pair in zip(best[name], times)]
            found[name] = length, decoded
    print(f"{os.path.basename(path) if path else 'Gaussian numbers'}; octaplex {octaplex.__version__} ({octaplex.backend()}), LMCache {lmcache.__version__}, "
          f"torch {torch.__version__}, zstandard {zstandard.__version__}")
    print("| stored as | bytes | bits a value | s to encode | s to decode | faster to store below, Gbit/s | faster to load below, Gbit/s | error of attention |")
    print("| :-- | --: | --: | --: | --: | --: | --: | --: |")
    print(f"| bf16, as it is | {RAW} | 16 | | | | | |")
    for name, (length, decoded) in found.items():
        size, times = length * all_layers, [time * all_layers for time in best[name]]
        links = [8 * (RAW - size) / time / 1e9 for time in times]
        error = "—"
        if real:
            exact, near = (attention(*rows_of(each, keys), real["q"], real["q_pos"]) for each in (tensor, decoded))
            error = f"{float((near - exact).norm() / exact.norm()):.4f}"
        print(f"| {name} | {size:.0f} | {16 * size / RAW:.2f} | {times[0]:.4f} | {times[1]:.4f} | {links[0]:.1f} | {links[1]:.1f} | {error} |")


if __name__ == "__main__":
    main(*sys.argv[1:2])
