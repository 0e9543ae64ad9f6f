#!/usr/bin/env python3
"""Holds decode.py, written from the documentation alone, against the committed bytes; a second, nothing but Python 3.10:

    python3 tests/specification/check.py

Golden files: every bit of every decoded vector. Snapshots: exact tokens, checksums and prefix centres to the bit; for rows of pages,
which no file holds decoded, what their bytes must be if they are read right (`rows`, below)."""
import math
import struct
import sys
from operator import add, sub

sys.dont_write_bytecode = True
from decode import PAGE, ROOT, Reader, codec, f32, grades, is_lean, page, single, snapshot


def numbers(seed):
    """The inputs of tests/golden.rs and tests/snapshot.rs."""
    state = 2463534242 + seed
    while True:
        state = (state * 1664525 + 1013904223) % 2**32
        yield ((state >> 16) - 32768) / 8192


def f16(values):
    values = list(values)
    return list(struct.unpack(f"{len(values)}e", struct.pack(f"{len(values)}e", *values)))


def fnv(values):
    digest = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(values)}f", *values):
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return digest


def golden(path):
    """tests/golden.rs says what the lines are."""
    _, *cases = path.read_text().split("case ")
    assert cases, f"{path} is empty"
    for case in cases:
        head, *lines = case.splitlines()
        spec, dim = head.split()
        assert spec.partition(":")[0] == path.stem, head
        blocks = [line.split()[1] for line in lines if line.startswith("block ")]
        lists = [line.split()[1] for line in lines if line.startswith("list ")]
        reader = Reader(bytes.fromhex("".join(blocks + lists)))
        rows = page(codec(spec, int(dim)), reader, len(blocks))
        assert reader.at == len(reader.data), f"{head}: bytes are left over"
        digest = f"decode {fnv(sum(rows, [])):016x}"
        assert digest in lines, f"{head}: {digest} is not what the file says; the first vector begins {rows[0][:4]}"
    return len(cases)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def rows(c, decoded, given, worst, name):
    """Distortion at most `worst`. Norms of lean rows are ‖x‖⟨u,q⟩/⟨q,q⟩, so that a row x has ⟨x,x̂⟩ = ⟨x̂,x̂⟩, but for f16 and the 64 codes
    of a norm: half a step, 1/128 octave, and 2⁻¹¹. A norm, a code or a rotation read otherwise is far from that."""
    error = sum((a - b) ** 2 for x, y in zip(given, decoded) for a, b in zip(x, y))
    assert error <= worst * sum(dot(x, x) for x in given), f"{name}: distortion {error / sum(dot(x, x) for x in given)}"
    for x, y in zip(given, decoded) if is_lean(c) else ():
        for at in range(0, c.dim, c.dim // len(grades(c))):
            x_, y_ = (v[at : at + c.dim // len(grades(c))] for v in (x, y))
            assert abs(math.log2(dot(x_, y_) / dot(y_, y_))) <= 1 / 128 + 1.45 / 2**11, f"{name}: norm of {y_[:4]}"


def layer_is_right(layer, keys, values, worst):
    """Inputs by head and position; the distortions of keys and values."""
    first_page = layer.sink_tokens + layer.recent_window + layer.page
    for head, (tokens, balance, prefix) in enumerate(layer.heads):
        for position, token in tokens.items():
            assert token == (keys[head][position], values[head][position]), f"exact token {position}"
        order = sorted(range(layer.key_dim), key=lambda channel: balance[channel] < 0)
        balanced = [f32(key[i] / balance[i] for i in order) for key in keys[head]] if layer.pages else []
        if any(prefix):
            first = balanced[layer.sink_tokens : min(layer.sink_tokens + 128, first_page)]
            sums = [0.0] * layer.key_dim
            for key in first:
                sums = f32(map(add, sums, key))
            assert f16(f32(x / len(first) for x in sums)) == prefix, f"prefix centre of head {head}"
        for position, heads in layer.pages:
            decoded_keys, centre, decoded_values = heads[head]
            span, name = range(position, position + layer.page), f"layer {layer.number}, head {head}, page at {position}"
            given = [list(map(sub, balanced[p], prefix)) for p in span]
            mean = [sum(column) / layer.page for column in zip(*given)]
            if layer.center == PAGE:
                gap = abs(dot(mean, centre) - dot(centre, centre))
                assert gap <= dot(centre, centre) / 2**11 + math.sqrt(dot(centre, centre)) * 2e-7, f"{name}: centre"
            rows(layer.keys, decoded_keys, [list(map(sub, key, centre)) for key in given], worst[0], f"{name}: keys")
            rows(layer.values, decoded_values, [values[head][p] for p in span], worst[1], f"{name}: values")


def cache(file, seeds, tokens, worst):
    """A snapshot of tests/snapshot.rs: the seeds of each layer's keys and values, which a cache rounds to f16 first."""
    layers = snapshot((ROOT / "tests/snapshots" / file).read_bytes())
    for layer, (keys, values), bounds in zip(layers, seeds, worst, strict=True):
        inputs = []
        for seed, dim in ((keys, layer.key_dim), (values, layer.value_dim)):
            draw = numbers(seed)
            inputs.append([[f16(next(draw) for _ in range(dim)) for _ in range(tokens)] for _ in range(layer.kv_heads)])
        layer_is_right(layer, *inputs, bounds)
    return sum(len(layer.pages) for layer in layers)


if __name__ == "__main__":
    files = sorted((ROOT / "tests/golden").glob("*.hex"))
    print(f"{sum(map(golden, files))} golden cases of {len(files)} codecs: every decoded bit")
    pages = cache("lean.snapshot", [(20, 21)] * 4, 200, [(0.0095, 0.12), (0.022, 0.085), (0.026, 0.085), (0, 0)])
    pages += cache("version3.snapshot", [(0, 7), (1, 7), (2, 7)], 300, [(0, 0), (0.037, 0.043), (0, 0)])
    print(f"{pages} pages of caches: their rows are those of the inputs")
