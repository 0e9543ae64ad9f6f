"""A decoder of every format, written from docs/formats.md and the pages that it refers to, not from the library's sources: the
specification read a second time. `check.py` beside it holds it against the golden files. Slow, and no part of the library.

Sums, products, quotients and roots of f32 are worked out in Python's f64 and rounded to f32 one by one, which gives f32's own.
Tables of numbers are parsed from the files that the pages name, `src/codebook/**`."""
import math
import re
import struct
import zlib
from array import array
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = [32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576]

# Specs: each codec's keys that a decoder needs, with their defaults. 0 is "not given".
DEFAULTS = {
    "turboquant": "bits=4,levels=0,rotation=wht,rounds=1,seed=0",
    "trellis": "m=4,states=8,rotation=wht,rounds=1,seed=0",
    "graded": "fine=8,coarse=2,bits=0,states=8,rotation=wht,rounds=1,seed=0",
    "octopus": "bits=3,split=paper,bdir=0,bnrm=0,tail=scalar,norm=f16,rotation=wht,rounds=1,seed=0",
    "octopus-qjl": "bits=3,split=paper,bdir=0,bnrm=0,tail=scalar,norm=f16,rotation=wht,rounds=1,seed=0,sketch=wht,sketch_rounds=2",
    "turboquant-qjl": "bits=3,levels=0,rotation=wht,rounds=1,seed=0,sketch=wht,sketch_rounds=2",
    "qjl": "sketch=wht,sketch_rounds=2,seed=0",
    "polarquant": "bits=4,depth=full,rotation=wht,rounds=1,seed=0",
    "tq3_0": "variant=original",
    "hqmq": "s=96,r=4,secondary=random,packing=,med=0,rotate=false,rotation=wht,rounds=1,seed=0",
    "additive": "k=16,r=4,seed=0",
    "int": "bits=4,group=token,asymmetric=false,med=0,rotate=false,rotation=wht,rounds=1,seed=0",
    "q8_0": "rotate=none", "q5_0": "rotate=none", "q4_0": "rotate=none", "iq4_nl": "rotate=none",
    "fp8": "scale=tensor", "f32": "", "f16": "", "bf16": "",
}  # fmt: skip


def codec(spec, dim, layer=0, role=0):
    name, _, given = spec.partition(":")
    keys = dict(pair.split("=") for pair in f"{DEFAULTS[name]},{given}".split(",") if pair)
    keys = {key: int(value) if value.isdigit() else value for key, value in keys.items()}
    return SimpleNamespace(**{**keys, "name": name, "dim": dim, "layer": layer, "role": role})


def f32(values):
    return array("f", values).tolist()


def single(value):
    return struct.unpack("f", struct.pack("f", value))[0]


class Reader:
    """Bytes from first to last; planes are whole bytes."""

    def __init__(self, data):
        self.data, self.at, self.section = data, 0, 0

    def take(self, kinds):
        """Little-endian numbers, by the letters of `struct`: e is f16."""
        values = struct.unpack_from("<" + kinds, self.data, self.at)
        self.at += struct.calcsize("<" + kinds)
        return list(values)

    def bytes(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def checksum(self):
        """The CRC-32 of the section that ends here."""
        found = zlib.crc32(self.data[self.section : self.at])
        assert self.take("I") == [found], "a checksum"
        self.section = self.at

    def plane(self, widths):
        """A bit stream of fields, least significant bit first."""
        fields, bits = [], int.from_bytes(self.bytes((sum(widths) + 7) // 8), "little")
        for width in widths:
            fields.append(bits & (1 << width) - 1)
            bits >>= width
        return fields

    def digits(self, base, count):
        group, width = {3: (5, 8), 5: (3, 7), 9: (2, 7)}[base]
        sizes = [min(group, count - first) for first in range(0, count, group)]
        groups = self.plane([width if size == group else math.ceil(math.log2(base**size)) for size in sizes])
        return [value // base**i % base for value, size in zip(groups, sizes) for i in range(size)]

    def codes(self, levels, count):
        """Codes below L = o·2^r: the raw plane, then the digit plane."""
        r = (levels & -levels).bit_length() - 1
        raw = self.plane([r] * count)
        return raw if levels >> r == 1 else [low | d << r for low, d in zip(raw, self.digits(levels >> r, count))]


# Random streams


def chacha8(seed, layer, role, purpose, sub_block=0):
    """64-bit outputs: pairs of 32-bit words, the first one low; counter from 0 and nonce 0."""
    key = b"octaplex" + struct.pack("<QIIBBB5x", seed, layer, 0, role, purpose, sub_block)
    start, counter = struct.unpack("<12I", b"expand 32-byte k" + key), 0
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    while True:
        block = (*start, counter, 0, 0, 0)
        s = list(block)
        for a, b, c, d in (columns + diagonals) * 4:
            for to, by, turned, left in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[to] = (s[to] + s[by]) & 0xFFFFFFFF
                x = s[turned] ^ s[to]
                s[turned] = (x << left | x >> 32 - left) & 0xFFFFFFFF
        words = [(x + y) & 0xFFFFFFFF for x, y in zip(s, block)]
        yield from (low | high << 32 for low, high in zip(words[::2], words[1::2]))
        counter += 1


@lru_cache(None)
def signs(dim, *stream):
    draw = chacha8(*stream)
    words = [next(draw) for _ in range(0, dim, 64)]
    return [-1.0 if words[j // 64] >> j % 64 & 1 else 1.0 for j in range(dim)]


@lru_cache(None)
def gaussian_matrix(dim, *stream):
    """Row-major, f64. The library's ln, sin and cos are its own: an f64 may differ in its last bit, an f32 hardly ever."""
    draw, numbers = chacha8(*stream), []
    for _ in range(dim * dim // 2):
        u1, u2 = ((next(draw) >> 11) + 1) * 2.0**-53, (next(draw) >> 11) * 2.0**-53
        radius, angle = math.sqrt(-2 * math.log(u1)), 2 * math.pi * u2
        numbers += [radius * math.cos(angle), radius * math.sin(angle)]
    return [numbers[i : i + dim] for i in range(0, dim * dim, dim)]


# Rotation


@lru_cache(None)
def paley(order):
    q = {12: 11, 20: 19, 28: 13}[order]
    chi = [0] + [1 if any(x * x % q == a for x in range(q)) else -1 for a in range(1, q)]
    square = [[chi[(a - b) % q] for b in range(q)] for a in range(q)]
    if order != 28:
        skew = [[0] + [1] * q] + [[-1] + row for row in square]
        return [[x + (i == j) for j, x in enumerate(row)] for i, row in enumerate(skew)]
    blocks = {0: ((1, -1), (-1, -1)), 1: ((1, 1), (1, -1)), -1: ((-1, -1), (-1, 1))}
    return [[x for e in row for x in blocks[e][half]] for row in [[0] + [1] * q] + [[1] + r for r in square] for half in (0, 1)]


def transposed_hadamard(x):
    """Hᵀ·x, not normalised: the bases from the low index up, then the butterflies."""
    step = 1
    for order in {80: [20], 96: [12], 112: [28], 160: [20], 192: [12], 576: [12, 12]}.get(len(x), []):
        matrix, y = paley(order), []
        for i in range(len(x)):
            row, first = i // step % order, i - i // step % order * step
            total = matrix[0][row] * x[first]
            for k in range(1, order):
                total = single(total + matrix[k][row] * x[first + k * step])
            y.append(total)
        x, step = y, step * order
    while step < len(x):
        x = f32(x[i - step] - v if i // step & 1 else v + x[i + step] for i, v in enumerate(x))
        step *= 2
    return x


def inverse_wht(x, flips, rounds=1):
    scale = single(1 / math.sqrt(len(x)))
    for _ in range(rounds):
        x = f32(v * scale * sign for v, sign in zip(transposed_hadamard(x), flips))
    return x


@lru_cache(None)
def haar(dim, *stream):
    """Q of A = QR by Householder's reflections."""
    a = [row[:] for row in gaussian_matrix(dim, *stream)]
    q = [[float(i == j) for j in range(dim)] for i in range(dim)]
    for k in range(dim):
        v = [a[i][k] for i in range(k, dim)]
        v[0] += math.copysign(math.sqrt(sum(x * x for x in v)), v[0])
        beta = 2 / sum(x * x for x in v)
        products = [sum(x * a[k + i][j] for i, x in enumerate(v)) for j in range(dim)]
        for i, x in enumerate(v):
            a[k + i] = [value - beta * x * product for value, product in zip(a[k + i], products)]
        for row in q:
            product = beta * sum(row[k + i] * x for i, x in enumerate(v))
            row[k:] = [value - product * x for value, x in zip(row[k:], v)]
    return [f32(math.copysign(1, a[k][k]) * x for k, x in enumerate(row)) for row in q]


def transposed_dense(rows, x):
    """Mᵀ·x = Σⱼ xⱼ·rowⱼ, j ascending."""
    total = [0.0] * len(x)
    for xj, row in zip(x, rows):
        total = f32(t + p for t, p in zip(total, f32(xj * m for m in row)))
    return total


def unrotate(c, x):
    if c.rotation == "haar":
        return transposed_dense(haar(len(x), c.seed, c.layer, c.role, 1), x)
    return inverse_wht(x, signs(len(x), c.seed, c.layer, c.role, 0), c.rounds)


# Codebooks


@lru_cache(None)
def lists(file, pattern):
    """The groups of each match; the last one is a list of numbers."""
    text = re.sub("//.*", "", (ROOT / "src/codebook" / file).read_text())
    found = [match.groups() for match in re.finditer(pattern, text)]
    return [(*head, [float(x) for x in numbers.split(",") if x.strip()]) for *head, numbers in found]


def lloyd_max(dim, levels):
    """The scale and its integers."""
    books = lists("tables.rs", r"book\((\S+), &\[([^]]+)\]")[WIDTHS.index(dim) * 13 :]
    return next((single(float(scale)), book) for scale, book in books if len(book) == levels)


def trellis_table(states, m):
    """κ, and the integers of the lowest code of each window, of the next one …"""
    books = lists("trellis.rs", r"book\((\d+), (\d+), (\S+), &\[([^]]+)\]")
    return next((single(float(k)), t8) for history, levels, k, t8 in books if (1 << int(history), int(levels)) == (states, m))


def angles(level, bits):
    """The cosine and sine of each code."""
    cosines = f32(lists("angles/tables.rs", r"\[([-\d.,e\s]+)\]")[level - 1][0][(1 << bits) - 2 : (2 << bits) - 2])
    if level > 1:
        return list(zip(cosines, cosines[::-1]))
    quarter = len(cosines) // 4
    return list(zip(cosines, cosines[-quarter:] + cosines[:-quarter] if quarter else [1.0, -1.0]))


@lru_cache(None)
def directions(bdir):
    """An octahedral direction for each code of ξ and of η, rounded to bytes up to bdir = 5."""
    half = [x / 2**15 for x in lists("octahedral_tables.rs", r"&\[([\d,\s]+)\]")[bdir - 1][0]]
    centroids, table = [-x for x in reversed(half)] + half, {}
    for i, xi in enumerate(centroids):
        for j, eta in enumerate(centroids):
            x, y, z = xi, eta, 1 - abs(xi) - abs(eta)
            if z < 0:
                x, y = math.copysign(1 - abs(eta), xi), math.copysign(1 - abs(xi), eta)
            reciprocal = single(1 / math.sqrt(x * x + y * y + z * z))
            n = f32((x * reciprocal, y * reciprocal, z * reciprocal))
            table[i, j] = n if bdir > 5 else [math.copysign(math.floor(127 * abs(c) + 0.5), c) for c in n]
    return table


def octahedral_radii(dim, bnrm):
    return [x / 2**16 for x in lists("octahedral_tables.rs", r"&\[([\d,\s]+)\]")[7 + 7 * WIDTHS.index(dim) + bnrm][0]]


@lru_cache(None)
def seeded_members(count, *stream):
    draw, members = chacha8(*stream), []

    def pair(lowest):
        while True:
            a, b = ((next(draw) >> 11) * 2.0**-52 - 1 for _ in range(2))
            if lowest < a * a + b * b < 1:
                return a, b

    for _ in range(count):
        (a, b), (c, d) = pair(-1), pair(0)
        f = math.sqrt((1 - (a * a + b * b)) / (c * c + d * d))
        members.append(f32((a, b, c * f, d * f)))
    return members


def members(c):
    if c.secondary == "random":
        return seeded_members(c.s, c.seed, c.layer, c.role, 4)
    return [f32(member) for (member,) in lists("quaternions/tables.rs", r"\[([^][]*\.[^][]*)\]")[c.s - 24 : 2 * c.s - 24]]


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
    coarse = octopus(c, reader, norm) if c.name == "octopus-qjl" else turboquant(stage(c), reader, norm)
    rest = sketch(c, reader, single(norm * reader.take("e")[0]))
    return unrotate(c, f32(a + b for a, b in zip(coarse, rest)))


def stage(c):
    return SimpleNamespace(**{**vars(c), "bits": c.bits - 1})


def halves(c):
    """The two trellis codes of `graded`."""
    levels = (1 << c.bits, 1 << c.bits - 2) if c.bits else (c.fine, c.coarse)
    return [SimpleNamespace(**{**vars(c), "name": "trellis", "dim": c.dim // 2, "m": m}) for m in levels]


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


def hqmq(c, reader):
    chunks, step, codes = c.dim // 4, single(reader.take("e")[0] / ((1 << c.r) - 1)), []
    if c.packing != "index" and c.s % 3 == 0 and (c.s // 3).bit_count() == 1:
        k = (24 * c.s // 9).bit_length() - 1
        raw, digits = reader.plane([k] * chunks), reader.digits(3, 2 * chunks)
        codes = [low | a + 3 * b << k for low, a, b in zip(raw, digits[::2], digits[1::2])]
    else:
        codes = reader.plane([math.ceil(math.log2(24 * c.s))] * chunks)
    units = [[(1, -1)[p % 2] * (p // 2 == i) for i in range(4)] for p in range(8)]
    units += [[-0.5 if b >> i & 1 else 0.5 for i in range(4)] for b in range(16)]
    book, row = members(c), []
    for code, radius in zip(codes, reader.plane([c.r] * chunks)):
        (a, b, e, d), (w, x, y, z) = units[code // c.s], book[code % c.s]
        four = (a * w, -b * x, -e * y, -d * z), (a * x, b * w, e * z, -d * y), (a * y, e * w, d * x, -b * z), (a * z, d * w, b * y, -e * x)
        pairs = [f32((p + q, r + s)) for p, q, r, s in four]
        row += f32(single(radius * step) * v for v in f32(p + q for p, q in pairs))
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
    "turboquant": with_norm, "trellis": with_norm, "octopus": with_norm, "turboquant-qjl": with_sketch, "octopus-qjl": with_sketch,
    "graded": graded, "qjl": qjl, "polarquant": polarquant, "tq3_0": tq3_0, "hqmq": hqmq, "additive": additive, "int": integers,
    "q8_0": ggml, "q5_0": ggml, "q4_0": ggml, "iq4_nl": ggml, "fp8": fp8, "f32": floats, "f16": floats, "bf16": floats,
}  # fmt: skip


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


# Pages of a cache


def grades(c):
    return halves(c) if c.name == "graded" else [c]


def plane_bytes(c):
    reader = Reader(bytes(4 * c.dim))
    PLANES[c.name](c, reader, 0.0)
    return reader.at


def is_lean(c):
    """Whether rows are planes, the norms apart. `graded` sorts channels of keys alone."""
    if c.name not in ("turboquant", "trellis") and (c.name != "octopus" or c.norm != "f16") and (c.name != "graded" or c.role == 1):
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
    decoded = [[unrotate(g, PLANES[g.name](g, Reader(planes), norm)) for planes, norm in zip(*part)] for g, *part in zip(grades(c), rows, norms)]
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

OFF, PREFIX, PAGE = range(3)


def snapshot(data):
    """A cache's layers."""
    reader = Reader(data)
    assert reader.bytes(8) == b"octacach" and reader.take("I") == [3]
    layers = [snapshot_layer(Reader(reader.bytes(reader.take("Q")[0]))) for _ in range(reader.take("I")[0])]
    assert reader.at == len(data)
    return layers


def snapshot_layer(reader):
    assert reader.bytes(8) == b"octalayr" and reader.take("I") == [3]
    fields = "number kv_heads key_dim value_dim page sink_tokens recent_window max_rollback center balance zero sliding_window capacity"
    layer = SimpleNamespace(**dict(zip(fields.split(), reader.take("8IBBHQQ"))))
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
