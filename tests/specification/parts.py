"""Parts that formats share: numbers in bytes, random streams, rotations. A page of docs/formats.md has a section for each.

Sums, products, quotients and roots of f32 are worked out in Python's f64 and rounded to f32 one by one, which gives f32's own."""
import math
import struct
import zlib
from array import array
from functools import lru_cache


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
        assert bits == 0, "encoders leave spare bits zero"
        return fields

    def digits(self, base, count):
        group, width = {3: (5, 8), 5: (3, 7)}[base]
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
