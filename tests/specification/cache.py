"""Pages of a cache, snapshots and chunks, from the sections of docs/formats.md."""
import math
from types import SimpleNamespace

from codebooks import lloyd_max
from decode import PLANES, codec, halves, page
from parts import Reader, f32, single, unrotate

OFF, PREFIX, PAGE = range(3)


def grades(c):
    return halves(c) if c.name == "graded" else [c]


def plane_bytes(c):
    reader = Reader(bytes(4 * c.dim))
    PLANES[c.name](c, reader, 0.0)
    return reader.at


def is_lean(c):
    """Whether rows are planes, the norms apart. `graded` sorts channels of keys alone."""
    if c.name not in (*PLANES, "graded") or getattr(c, "norm", "f16") != "f16" or (c.name, c.role) == ("graded", 1):
        return False
    return 8 * sum(map(plane_bytes, grades(c))) <= 4.5 * c.dim


def coded_norms(reader, count):
    largest, octaves = reader.take("eB")
    unit, codes = single(largest / 32767), reader.plane([6] * count)
    below = lambda code: ((63 - code) << (octaves & 3)) / 64
    # 16383.5, half the largest, is rounded down.
    return [single(unit * math.ceil(32767 * 2 ** -below(code) - 0.5)) if code else 0.0 for code in codes]


def coded_centre(c, reader):
    scale, centroids = lloyd_max(c.dim, 32)
    unit = single(reader.take("e")[0] * scale)
    return unrotate(c, f32(centroids[code] * unit for code in reader.plane([5] * c.dim)))


def with_norms(c, rows, reader):
    """Planes of each grade with the norms that lie behind them; other rows are what they were."""
    if not is_lean(c):
        return rows
    norms = [coded_norms(reader, len(part)) for part in rows]
    decoded = []
    for g, part, scales in zip(grades(c), rows, norms):
        decoded.append([unrotate(g, PLANES[g.name](g, Reader(planes), norm)) for planes, norm in zip(part, scales)])
    return [sum(parts, []) for parts in zip(*decoded)]


def cache_page(layer, reader, count):
    """The position, and for each head the keys' rows, their centre relative to the prefix, and the values' rows."""
    start, (position,), rows, heads = reader.at, reader.take("Q"), [], []
    varies = any(getattr(c, "med", 0) for c in (layer.keys, layer.values))
    length = reader.take("Q" if varies else "")
    for c in [layer.keys, layer.values] * layer.kv_heads:
        planes = [[reader.bytes(plane_bytes(g)) for _ in range(count)] for g in grades(c)] if is_lean(c) else None
        rows.append(planes or page(c, reader, count))
    for keys, values in zip(rows[::2], rows[1::2]):
        centre = [0.0] * layer.key_dim
        if layer.center == PAGE and is_lean(layer.keys):
            centre = [x for g in grades(layer.keys) for x in coded_centre(g, reader)]
        elif layer.center == PAGE:
            centre = reader.take("e" * layer.key_dim)
        heads.append((with_norms(layer.keys, keys, reader), centre, with_norms(layer.values, values, reader)))
        reader.take("II" if varies else "")
    assert not varies or length == [reader.at - start]
    return position, heads


# Snapshots


def snapshot(data):
    """A cache's layers."""
    reader = Reader(data)
    assert reader.bytes(8) == b"octacach" and reader.take("I") == [3]
    layers = [snapshot_layer(Reader(reader.bytes(reader.take("Q")[0]))) for _ in range(reader.take("I")[0])]
    assert reader.at == len(data)
    return layers


def snapshot_layer(reader):
    assert reader.bytes(8) == b"octalayr" and reader.take("I") == [3]
    shape = "number kv_heads key_dim value_dim page sink_tokens recent_window max_rollback"
    names = f"{shape} center balance zero sliding_window capacity".split()
    layer = SimpleNamespace(**dict(zip(names, reader.take("8IBBHQQ"))))
    keys, values = (reader.bytes(reader.take("I")[0]).decode() for _ in range(2))
    layer.keys, layer.values = codec(keys, layer.key_dim, layer.number, 0), codec(values, layer.value_dim, layer.number, 1)
    layer.next, layer.window, layer.ring, _, _, layer.evicted, _, _, pages = reader.take("7QIQ")
    reader.checksum()
    layer.first_keys = range(layer.sink_tokens, layer.sink_tokens + layer.recent_window + layer.page)
    layer.prefix_keys = 128
    layer.heads = [(exact(layer, reader), *decided(layer, reader)) for _ in range(layer.kv_heads)]
    reader.checksum()
    layer.pages = []
    for _ in range(pages):
        layer.pages.append(cache_page(layer, reader, layer.page))
        reader.checksum()
    assert reader.at == len(reader.data)
    return layer


def exact(layer, reader):
    """A head's exact tokens by position, as (key, value)."""
    tokens, positions = {}, (range(min(layer.sink_tokens, layer.next)), range(layer.ring, layer.next))
    for span in positions:
        keys, values = ([reader.take("e" * dim) for _ in span] for dim in (layer.key_dim, layer.value_dim))
        tokens.update(zip(span, zip(keys, values)))
    return tokens


def decided(layer, reader):
    """A head's balance and its prefix centre."""
    if layer.keys.name in ("f32", "f16", "bf16"):
        layer.center, layer.balance = OFF, 0
    balanced = layer.balance or layer.keys.name == "graded"
    prefix = layer.center == PREFIX or layer.center == PAGE and is_lean(layer.keys)
    balance = reader.take("e" * layer.key_dim) if balanced else [1.0] * layer.key_dim
    return balance, reader.take("e" * layer.key_dim) if prefix else [0.0] * layer.key_dim


# Chunks


def chunk(data):
    """A chunk's layers, and whether a head's keys and values lie together in its tensor."""
    reader = Reader(data)
    assert reader.bytes(8) == b"octachnk" and reader.take("I") == [1]
    names = "type fused center balance layers first_layer kv_heads key_dim page tokens bytes".split()
    header = dict(zip(names, reader.take("4B5IQQ")))
    keys, values = (reader.bytes(reader.take("I")[0]).decode() for _ in range(2))
    reader.checksum()
    layers = []
    for number in range(header["first_layer"], header["first_layer"] + header["layers"]):
        layer = SimpleNamespace(**header, number=number, value_dim=header["key_dim"], first_keys=range(header["tokens"]), prefix_keys=header["tokens"])
        layer.keys, layer.values = codec(keys, layer.key_dim, number, 0), codec(values, layer.key_dim, number, 1)
        layer.heads = [({}, *decided(layer, reader)) for _ in range(layer.kv_heads)]
        starts = range(0, layer.tokens, layer.page)
        layer.pages = [cache_page(layer, reader, min(layer.page, layer.tokens - start)) for start in starts]
        reader.checksum()
        layers.append(layer)
    assert reader.at == len(data) == header["bytes"]
    return layers
