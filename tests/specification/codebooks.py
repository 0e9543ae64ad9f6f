"""Tables of numbers, parsed from the files that the documentation names, `src/codebook/**`, and seeded quaternions."""
import math
import re
from functools import lru_cache
from pathlib import Path

from parts import chacha8, f32, single

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = [32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576]


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
