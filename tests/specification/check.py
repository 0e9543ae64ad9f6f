#!/usr/bin/env python3
"""Holds decode.py, a reading of the documentation alone, against the committed bytes.

    python3 tests/specification/check.py
"""
import struct

from decode import ROOT, Reader, codec, page


def fnv(values):
    digest = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(values)}f", *values):
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return digest


def golden(path):
    """tests/golden.rs says what the lines are."""
    _, *cases = path.read_text().split("case ")
    for case in cases:
        head, *lines = case.splitlines()
        spec, dim = head.split()
        c, count = codec(spec, int(dim)), sum(line.startswith("block ") for line in lines)
        reader = Reader(bytes.fromhex("".join(line.split()[1] for line in lines if line.startswith(("block ", "list ")))))
        rows = page(c, reader, count)
        assert reader.at == len(reader.data), f"{head}: bytes left over"
        digest = f"decode {fnv([x for row in rows for x in row]):016x}"
        assert digest in lines, f"{head}: decoded to {digest}, {rows[0][:4]} …"
    assert cases
    return len(cases)


if __name__ == "__main__":
    files = sorted((ROOT / "tests/golden").glob("*.hex"))
    print(f"{sum(map(golden, files))} golden cases of {len(files)} codecs: every decoded bit")
