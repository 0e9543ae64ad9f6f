"""Every codec's decoder, from docs/formats.md and the pages that it refers to."""
import math
import struct
from types import SimpleNamespace

from codebooks import angles, directions, lloyd_max, members, octahedral_radii, seeded_members, trellis_table
from parts import f32, gaussian_matrix, inverse_wht, signs, single, transposed_dense, transposed_hadamard, unrotate

# Specs: the keys that a decoder needs, with their defaults; 0 stands for none.
ROTATED = "rotation=wht,rounds=1,seed=0"
SKETCHED = "sketch=wht,sketch_rounds=2"
OCTOPUS = f"bits=3,split=paper,bdir=0,bnrm=0,tail=scalar,norm=f16,{ROTATED}"
DEFAULTS = {
    "turboquant": f"bits=4,levels=0,{ROTATED}",
    "trellis": f"m=4,states=8,{ROTATED}",
    "graded": f"fine=8,coarse=2,states=8,{ROTATED}",
    "octopus": OCTOPUS,
    "octopus-qjl": f"{OCTOPUS},{SKETCHED}",
    "turboquant-qjl": f"bits=3,levels=0,{ROTATED},{SKETCHED}",
    "qjl": f"{SKETCHED},seed=0",
    "polarquant": f"bits=4,depth=full,{ROTATED}",
    "tq3_0": "variant=original",
    "hqmq": f"s=96,r=4,secondary=random,packing=radix,med=0,rotate=false,{ROTATED}",
    "additive": "k=16,r=4,seed=0",
    "int": f"bits=4,group=token,asymmetric=false,med=0,rotate=false,{ROTATED}",
    **dict.fromkeys(("q8_0", "q5_0", "q4_0", "iq4_nl"), "rotate=none"),
    "fp8": "scale=tensor",
    **dict.fromkeys(("f32", "f16", "bf16"), ""),
}


def codec(spec, dim, layer=0, role=0):
    name, _, given = spec.partition(":")
    keys = dict(pair.split("=") for pair in f"{DEFAULTS[name]},{given}".split(",") if pair)
    keys = {key: int(value) if value.isdigit() else value for key, value in keys.items()}
    return SimpleNamespace(**{**keys, "name": name, "dim": dim, "layer": layer, "role": role})


# Rows without their norms, in the rotated basis


def turboquant(c, reader, norm):
    scale, centroids = lloyd_max(c.dim, c.levels or 1 << c.bits)
    unit = single(norm * scale)
    return f32(centroids[code] * unit for code in reader.codes(len(centroids), c.dim))


def trellis(c, reader, norm):
    kappa, t8 = trellis_table(c.states, c.m)
    unit, window, row = single(norm * single(1 / (kappa * math.sqrt(c.dim)))), 0, []
    path = reader.plane([1] * c.dim)
    for bit, digit in zip(path, reader.codes(c.m, c.dim)):
        window = bit * c.states | window >> 1
        row.append(t8[digit * 2 * c.states + window] * unit)
    return f32(row)


def octopus(c, reader, norm):
    b = c.bits
    bdir, bnrm = (c.bdir, c.bnrm) if c.bdir else (b + 1, b if c.split == "even" else b - 1)
    rest = 0 if c.tail == "paper" else c.dim % 3
    triplets, field = (c.dim + 2 - rest) // 3, 2 * bdir + bnrm
    tail = (field + 2) // 3
    spare = [field - rest * tail] if rest else []
    codes = iter(reader.plane([bdir, bdir, bnrm] * triplets + [tail] * rest + spare))
    table, radii, row = directions(bdir), octahedral_radii(c.dim, bnrm), []
    unit = norm if bdir > 5 else single(norm * single(1 / 127))
    for _ in range(triplets):
        n, radius = table[next(codes), next(codes)], radii[next(codes)]
        row += f32(unit * x for x in f32(radius * x for x in n))
    scale, centroids = lloyd_max(c.dim, 1 << tail) if rest else (0, [])
    return (row + f32(centroids[next(codes)] * single(norm * scale) for _ in range(rest)))[: c.dim]


def sketch(c, reader, norm):
    """Tᵀ·(c·norm·signs)"""
    seed, dim = (c.seed, c.layer, c.role), c.dim
    gamma = math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2)
    constant = math.sqrt(math.pi / 2) / dim if c.sketch == "gauss" else math.sqrt(math.pi) * math.exp(gamma) / dim
    value = single(single(constant) * norm)
    x = [value if bit else -value for bit in reader.plane([1] * dim)]
    if c.sketch == "gauss":
        return transposed_dense([f32(row) for row in gaussian_matrix(dim, *seed, 3)], x)
    return inverse_wht(x, signs(dim, *seed, 2), c.sketch_rounds)


PLANES = {"turboquant": turboquant, "trellis": trellis, "octopus": octopus}


# Blocks


def with_norm(c, reader):
    norm = reader.take("f" if c.name == "octopus" and c.norm == "f32" else "e")[0]
    return unrotate(c, PLANES[c.name](c, reader, norm))


def with_sketch(c, reader):
    """A coarse code, and signs of what it left over."""
    norm = reader.take("f" if c.name == "octopus-qjl" and c.norm == "f32" else "e")[0]
    stage = SimpleNamespace(**{**vars(c), "bits": c.bits - (c.name == "turboquant-qjl")})
    coarse = PLANES[c.name.removesuffix("-qjl")](stage, reader, norm)
    rest = sketch(c, reader, single(norm * reader.take("e")[0]))
    return unrotate(c, f32(a + b for a, b in zip(coarse, rest)))


def halves(c):
    """The two trellis codes of `graded`."""
    return [SimpleNamespace(**{**vars(c), "name": "trellis", "dim": c.dim // 2, "m": m}) for m in (c.fine, c.coarse)]


def graded(c, reader):
    return [x for half in halves(c) for x in with_norm(half, reader)]


def qjl(c, reader):
    return sketch(c, reader, reader.take("e")[0])


def polarquant(c, reader):
    if c.depth == 4:
        radii, bits = reader.take("e" * (c.dim // 16)), [4, 2, 2, 2]
        codes = reader.plane([4] * (c.dim // 2)) + reader.plane([2] * (7 * c.dim // 16))
    else:
        radii, bits = reader.take("e"), [c.bits] * (c.dim.bit_length() - 1)
        codes = reader.plane([c.bits] * (c.dim - 1))
    for level in range(len(bits), 0, -1):  # the highest level's codes are the last
        codes, last = codes[: -len(radii)], codes[-len(radii) :]
        table = angles(level, bits[level - 1])
        radii = f32(radius * part for radius, code in zip(radii, last) for part in table[code])
    return unrotate(c, radii)


def tq3_0(c, reader):
    centroids, row = [0.4528, 1.510] if c.variant == "original" else [0.2428, 0.7434, 1.3336, 2.1573], []
    centroids = f32([-x for x in reversed(centroids)] + centroids)
    for _ in range(c.dim // 32):
        codes, third, (scale,) = reader.plane([2] * 32), reader.plane([1] * 32), reader.take("e")
        codes = codes if c.variant == "original" else [low | high << 2 for low, high in zip(codes, third)]
        turned = transposed_hadamard(f32(scale * centroids[code] for code in codes))
        flips = (1 if sign == "+" else -1 for sign in "+-++--+-++-+-+--+--++-+--+++--+-")
        row += f32(x * single(0.17677669) * sign for x, sign in zip(turned, flips))
    return row


def product(unit, member):
    """Hamilton's. Single products are exact: units are 0, ±½ and ±1."""
    (a, b, c, d), (w, x, y, z) = unit, member
    left = f32((a * w - b * x, a * x + b * w, a * y + c * w, a * z + d * w))
    right = f32((-c * y - d * z, c * z - d * y, d * x - b * z, b * y - c * x))
    return f32(p + q for p, q in zip(left, right))


def hqmq(c, reader):
    chunks, step, codes = c.dim // 4, single(reader.take("e")[0] / ((1 << c.r) - 1)), []
    if c.packing == "radix" and c.s % 3 == 0 and (c.s // 3).bit_count() == 1:
        k = (24 * c.s // 9).bit_length() - 1
        raw, digits = reader.plane([k] * chunks), reader.digits(3, 2 * chunks)
        codes = [low | a + 3 * b << k for low, a, b in zip(raw, digits[::2], digits[1::2])]
    else:
        codes = reader.plane([math.ceil(math.log2(24 * c.s))] * chunks)
    units = [[(1, -1)[p % 2] * (p // 2 == i) for i in range(4)] for p in range(8)]
    units += [[-0.5 if b >> i & 1 else 0.5 for i in range(4)] for b in range(16)]
    book, row = members(c), []
    for code, radius in zip(codes, reader.plane([c.r] * chunks)):
        row += f32(single(radius * step) * part for part in product(units[code // c.s], book[code % c.s]))
    return row


def additive(c, reader):
    chunks, step = c.dim // 4, single(reader.take("e")[0] / ((1 << c.r) - 1))
    first, second = (seeded_members(c.k, c.seed, c.layer, c.role, 4, book) for book in (1, 2))
    codes, row = reader.plane([math.ceil(math.log2(c.k * c.k))] * chunks), []
    for code, radius in zip(codes, reader.plane([c.r] * chunks)):
        sums = f32(a + b for a, b in zip(first[code // c.k], second[code % c.k]))
        row += f32(single(radius * step) * v for v in sums)
    return row


def integers(c, reader):
    group = c.dim if c.group == "token" else c.group
    scales = [reader.take("ee") if c.asymmetric == "true" else reader.take("e") for _ in range(0, c.dim, group)]
    zero = 0 if c.asymmetric == "true" else 1 << c.bits - 1
    scaled = f32((code - zero) * scales[j // group][0] for j, code in enumerate(reader.plane([c.bits] * c.dim)))
    return f32(x + scales[j // group][1] for j, x in enumerate(scaled)) if c.asymmetric == "true" else scaled


def ggml(c, reader):
    row = []
    for _ in range(c.dim // 32):
        (d,) = reader.take("e")
        if c.name == "q8_0":
            codes = reader.take("32b")
        else:
            fifth = reader.plane([1] * 32) if c.name == "q5_0" else [0] * 32
            nibbles = reader.plane([4] * 32)
            codes = [low | high << 4 for low, high in zip(nibbles[::2] + nibbles[1::2], fifth)]
        if c.name == "iq4_nl":
            codes = [(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)[code] for code in codes]
        row += f32(d * (code - {"q5_0": 16, "q4_0": 8}.get(c.name, 0)) for code in codes)
    run = {"none": 1, "keys": c.dim & -c.dim, "values": 64}[c.rotate]
    return row if run == 1 else [x for i in range(0, c.dim, run) for x in inverse_wht(row[i : i + run], [1] * run)]


def fp8(c, reader):
    scale = reader.take("f")[0] if c.scale == "token" else 1
    bytes_ = reader.take("B" * c.dim)
    exact = [(-1) ** (b >> 7) * math.ldexp((b & 7) + 8 * (b & 120 > 0), max(b >> 3 & 15, 1) - 10) for b in bytes_]
    return f32(x * scale for x in exact)


def floats(c, reader):
    if c.name == "bf16":
        return list(struct.unpack(f"{c.dim}f", struct.pack(f"{c.dim}I", *(x << 16 for x in reader.take("H" * c.dim)))))
    return reader.take({"f32": "f", "f16": "e"}[c.name] * c.dim)


BLOCKS = {
    **dict.fromkeys(PLANES, with_norm),
    **dict.fromkeys(("turboquant-qjl", "octopus-qjl"), with_sketch),
    **dict.fromkeys(("q8_0", "q5_0", "q4_0", "iq4_nl"), ggml),
    **dict.fromkeys(("f32", "f16", "bf16"), floats),
    "graded": graded, "qjl": qjl, "polarquant": polarquant, "tq3_0": tq3_0,
    "hqmq": hqmq, "additive": additive, "int": integers, "fp8": fp8,
}


def page(c, reader, count):
    """Blocks, and behind them the exact chunks of those that are flagged (`med`)."""
    rows, flagged = [], []
    for row in range(count):
        rows.append(BLOCKS[c.name](c, reader))
        if getattr(c, "med", 0):
            flagged += [(row, 4 * chunk) for chunk, flag in enumerate(reader.plane([1] * (c.dim // 4))) if flag]
    for row, at in flagged:
        rows[row][at : at + 4] = f32(x + exact for x, exact in zip(rows[row][at : at + 4], reader.take("4e")))
    return [unrotate(c, row) for row in rows] if c.name in ("int", "hqmq") and c.rotate == "true" else rows
