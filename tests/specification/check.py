#!/usr/bin/env python3
"""A second reading of docs/formats.md: parts.py, codebooks.py, decode.py and cache.py are written from that page and those that it
refers to, not from the library's sources, and are held here against the committed bytes. Two seconds, nothing but Python 3.10:

    python3 tests/specification/check.py

Golden files: every bit of every decoded vector. Scores and sums are not read, nor are bits that no decoder reads (the signs of
`tq3_0:variant=original`). Snapshots and chunks: exact tokens, checksums, prefix centres and pages of f16 to the bit; for other rows of pages,
which no file holds decoded, what their bytes must be if they are read right (`rows_are_right`)."""
import math
import struct
import sys
from operator import add, sub

sys.dont_write_bytecode = True
from cache import chunk, grades, is_lean, snapshot
from codebooks import ROOT
from decode import BLOCKS, codec, page
from parts import Reader, f32


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


def rows_are_right(c, decoded, given, worst):
    """Checks that the distortion is at most `worst`. Norms of lean rows are ‖x‖⟨u,q⟩/⟨q,q⟩, so ⟨x,x̂⟩ = ⟨x̂,x̂⟩ in each row. The
    tolerance is half a step of a norm's code (1/128 octave, where they are of like length) and its f16 (2⁻¹¹). Rows that are
    read wrongly are far from both."""
    errors = [list(map(sub, x, y)) for x, y in zip(given, decoded)]
    error = sum(dot(e, e) for e in errors) / sum(dot(x, x) for x in given)
    assert error <= worst, f"distortion {error}"
    width, lengths = c.dim // len(grades(c)), [dot(x, x) for x in given]
    # Steps double until the scale reaches from the longest row to the shortest.
    double = next(e for e in range(4) if e == 3 or 2**e * 63 / 64 >= math.log2(max(lengths) / min(lengths)) / 2)
    for x, y in zip(given, decoded) if is_lean(c) else ():
        for at in range(0, c.dim, width):
            part = y[at : at + width]
            octaves = math.log2(dot(x[at : at + width], part) / dot(part, part))
            assert abs(octaves) <= 2**double / 128 + 1.45 / 2**11, f"a norm is {octaves} octaves from its row's"


def tamed(rows):
    """The rows of a page, with the mean of a channel's other values in place of outlying ones."""
    columns, count = list(zip(*rows)), len(rows)
    for channel, column in enumerate(columns):
        mean, most = sum(column) / count, math.ceil(count / 32)
        squares = [(x - mean) ** 2 for x in column]
        if count < 8 or count * max(squares) <= 48 * (sum(squares) - max(squares)):
            continue
        others = sorted(column)[most : count - most]
        mean = sum(others) / len(others)
        limit = 144 * sum((x - mean) ** 2 for x in others) / len(others)
        outlying = [(x - mean) ** 2 > limit for x in column]
        if sum(outlying) <= most:
            columns[channel] = f32(mean if out else x for x, out in zip(column, outlying))
    return list(zip(*columns))


def prefix_rows(layer, keys):
    """The keys whose mean is the prefix centre."""
    first, page = layer.first_keys, layer.page
    pages = [[keys[position] for position in first[at : at + page]] for at in range(0, len(first), page)]
    if len(pages) > 1 and len(pages[-1]) < 8:
        pages.pop()
    return sum(map(tamed, pages), [])[: layer.prefix_keys]


def head_is_right(layer, head, keys, values, worst):
    """Inputs by position; the distortions of keys and values."""
    tokens, balance, prefix = layer.heads[head]
    for position, token in tokens.items():
        assert token == (keys[position], values[position]), f"exact token {position}"
    if not layer.pages:
        return
    order = sorted(range(layer.key_dim), key=lambda channel: balance[channel] < 0)
    balanced = lambda rows: [f32(row[channel] / balance[channel] for channel in order) for row in rows]
    first, keys = balanced(prefix_rows(layer, keys)), balanced(keys)
    if any(prefix):
        sums = [0.0] * layer.key_dim
        for key in first:
            sums = f32(map(add, sums, key))
        assert f16(f32(x / len(first) for x in sums)) == prefix, "the prefix centre"
    for position, heads in layer.pages:
        decoded_keys, centre, decoded_values = heads[head]
        given = [list(map(sub, key, prefix)) for key in keys[position:][: layer.page]]
        gap = dot(centre, [sum(column) / len(given) for column in zip(*given)]) - dot(centre, centre)
        assert abs(gap) <= dot(centre, centre) / 2**11 + math.sqrt(dot(centre, centre)) * 2e-7, "a page's centre"
        rows_are_right(layer.keys, decoded_keys, [list(map(sub, key, centre)) for key in given], worst[0])
        rows_are_right(layer.values, decoded_values, values[position:][: layer.page], worst[1])


def cache(file, seeds, tokens, worst, factor=lambda head, token, channel: 1):
    """A snapshot of tests/snapshot.rs: the seeds of each layer's keys and values, and what its keys are multiplied by."""
    layers = snapshot((ROOT / "tests/snapshots" / file).read_bytes())
    for layer, (keys, values), bounds in zip(layers, seeds, worst, strict=True):
        keys, values = numbers(keys), numbers(values)
        for head in range(layer.kv_heads):  # A cache rounds to f16 first.
            head_keys = [f16(next(keys) * factor(head, t, c) for c in range(layer.key_dim)) for t in range(tokens)]
            head_values = [f16(next(values) for _ in range(layer.value_dim)) for _ in range(tokens)]
            head_is_right(layer, head, head_keys, head_values, bounds)
    return sum(len(layer.pages) for layer in layers)


def chunks(file, worst):
    """A chunk of tests/chunk.rs; its numbers have eight bits."""
    layers = chunk((ROOT / "tests/snapshots" / file).read_bytes())
    tokens, heads, width = layers[0].tokens, layers[0].kv_heads, layers[0].key_dim
    draw = numbers(0)
    tensor = [math.floor(32 * next(draw)) / 32 for _ in range(2 * len(layers) * tokens * heads * width)]

    def row(layer, token, head, value):
        if layers[0].fused:
            return tensor[(((layer * tokens + token) * heads + head) * 2 + value) * width :][:width]
        return tensor[(((value * len(layers) + layer) * tokens + token) * heads + head) * width :][:width]

    for number, layer in enumerate(layers):
        for head in range(heads):
            keys, values = ([row(number, token, head, value) for token in range(tokens)] for value in (0, 1))
            head_is_right(layer, head, keys, values, worst)
    return sum(len(layer.pages) for layer in layers)


if __name__ == "__main__":
    if not __debug__:
        sys.exit("python -O leaves out the checks")
    files = sorted((ROOT / "tests/golden").glob("*.hex"))
    assert {path.stem for path in files} == set(BLOCKS), "a codec without golden bytes, or the other way round"
    print(f"{sum(golden(path) for path in files)} golden cases of {len(files)} codecs: every decoded bit")
    pages = cache("lean.snapshot", [(20, 21)] * 4, 200, [(0.0095, 0.12), (0.022, 0.085), (0.026, 0.085), (0, 0)])
    pages += cache("version3.snapshot", [(0, 7), (1, 7), (2, 7)], 300, [(0, 0), (0.037, 0.043), (0, 0)])
    longer = lambda head, token, channel: (8 if 24 <= channel < 32 else 1) * (16 if (head, token) == (0, 70) else 1)
    pages += cache("graded.snapshot", [(20, 21)], 140, [(0.03, 0.18)], longer)
    pages += chunks("split.chunk", (0.04, 0.05)) + chunks("fused.chunk", (0.17, 0.085))
    print(f"{pages} pages of caches and chunks: their rows are those of the inputs")
