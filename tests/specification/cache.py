"""Pages of a cache and snapshots, from the sections of docs/formats.md."""
import struct
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
    (largest, octaves), step = reader.take("eB"), 2 ** -(1 / 64)
    unit, codes = single(largest / 32767), reader.plane([6] * count)
    return [single(unit * round(32767 * step ** ((63 - code) << (octaves & 3)))) if code else 0.0 for code in codes]


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


def cache_page(layer, reader):
    """The position, and for each head the keys' rows, their centre beside the prefix, and the values' rows."""
    (position,), rows, heads = reader.take("Q"), [], []
    varies = any(getattr(c, "med", 0) for c in (layer.keys, layer.values))
    assert not varies or reader.take("Q") == [len(reader.data)]
    for c in [layer.keys, layer.values] * layer.kv_heads:
        planes = [[reader.bytes(plane_bytes(g)) for _ in range(layer.page)] for g in grades(c)] if is_lean(c) else None
        rows.append(planes or page(c, reader, layer.page))
    for keys, values in zip(rows[::2], rows[1::2]):
        centre = [0.0] * layer.key_dim
        if layer.center == PAGE and is_lean(layer.keys):
            centre = [x for g in grades(layer.keys) for x in coded_centre(g, reader)]
        elif layer.center == PAGE:
            centre = reader.take("e" * layer.key_dim)
        heads.append((with_norms(layer.keys, keys, reader), centre, with_norms(layer.values, values, reader)))
        reader.take("II" if varies else "")
    assert reader.at == len(reader.data)
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
    if layer.keys.name in ("f32", "f16", "bf16"):
        layer.center, layer.balance = OFF, 0
    layer.next, layer.window, layer.ring, _, _, layer.evicted, _, _, pages = reader.take("7QIQ")
    reader.checksum()
    layer.heads = [exact(layer, reader) for _ in range(layer.kv_heads)]
    reader.checksum()
    layer.pages = []
    for left in range(pages, 0, -1):
        size = (len(reader.data) - reader.at) // left - 4
        if any(getattr(c, "med", 0) for c in (layer.keys, layer.values)):
            (size,) = struct.unpack_from("<Q", reader.data, reader.at + 8)
        layer.pages.append(cache_page(layer, Reader(reader.bytes(size))))
        reader.checksum()
    assert reader.at == len(reader.data)
    return layer


def exact(layer, reader):
    """A head's exact tokens by position, as (key, value), its balance and its prefix centre."""
    tokens, positions = {}, (range(min(layer.sink_tokens, layer.next)), range(layer.ring, layer.next))
    for span in positions:
        keys, values = ([reader.take("e" * dim) for _ in span] for dim in (layer.key_dim, layer.value_dim))
        tokens.update(zip(span, zip(keys, values)))
    balanced = layer.balance or layer.keys.name == "graded"
    prefix = layer.center == PREFIX or layer.center == PAGE and is_lean(layer.keys)
    balance = reader.take("e" * layer.key_dim) if balanced else [1.0] * layer.key_dim
    return tokens, balance, reader.take("e" * layer.key_dim) if prefix else [0.0] * layer.key_dim
