#!/usr/bin/env python3
"""Compares the tables of the results pages with the figures in docs/plots/*.csv.

    ci/tables.py            prints PAGE:LINE: what differs, and fails if anything does
    ci/tables.py --write    writes the rows of the tables; titles are yours to edit

To add a table, put its figures into a file, one number a column, with units in the titles. The page needs a marker, an
empty line and the titles. This script writes the rows below them.

    <!-- table: plots/FILE.csv -->          the rows are those of the file
    <!-- table: plots/FILE.csv NAME -->     `Tables.NAME` below yields the cells of each row

Without a NAME, a column whose title starts with `(`, `to `, `±` or `,` joins the column on its left: `0.53 (+1.3%)`,
`3.6 to 3.9`. A NAME is for ratios, and for a choice of rows. Ratios are speeds: 2.6x is 2.6 times as fast.

ci/figures.py checks figures in prose and in tables that are written by hand."""
import csv
import re
import sys
from collections import defaultdict
from itertools import takewhile, zip_longest
from math import prod
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
MARKER = re.compile(r"<!-- table: plots/(\S+)\.csv(?: (\w+))? -->")
WITHOUT_TABLE = {"smollm2", "qwen05", "qwen15", "gpu-codecs", "llama-cpp", "llama-threads", "figures"}  # pictures and links


def read(name):
    """The titles of a file, and its rows: lists of strings."""
    with open(ROOT / f"docs/plots/{name}.csv", newline="") as file:
        titles, *rows = csv.reader(file)
    if any(len(row) != len(titles) for row in rows):
        raise ValueError(f"{name}.csv has rows of different lengths")
    return titles, rows


def ratio(over, under, digits=2):
    return f"{float(over) / float(under):.{digits}f}"


def faster(theirs, ours):
    """Our speed as a multiple of theirs, from times."""
    times = float(theirs) / float(ours)
    return f"{times:.{1 if times >= 0.995 else 2}f}x"


def thousands(count):
    return f"{int(count):,}"


def joined(titles, rows):
    """The cells of a table without a NAME."""
    for row in rows:
        cells = []
        for title, cell in zip(titles, row):
            if title.startswith("("):
                cells[-1] += cell and f" ({cell}{'%' if title.endswith('%)') else ''})"
            elif title.startswith("to "):
                cells[-1] += f" to {cell}" if cell != cells[-1] else ""
            elif title.startswith("±"):
                cells[-1] += cell and f" ± {cell}"
            elif title.startswith(","):
                cells[-1] += f", {cell or '-'}"
            else:
                cells.append(thousands(cell) if title == "tokens" and cell.isdigit() else cell)
        yield cells


# Attention of one head, and settings of llama.cpp: names in files and in tables. Other rows are in the files only.
HEADS = {"graded / trellis": "`graded` / `trellis`", "turboquant / turboquant": "`turboquant`"}
ARM = [f"{codes} 1 neon-dotprod" for codes in ("codes 16 128", "trellis 4 128", "trellis 8 64", "trellis 2 64")]
# Keys' kernels and values' kernel of one token's attention.
ARM_CACHES = {"`graded` / `trellis`": (("trellis 8 64", "trellis 2 64"), "trellis 4 128"),
              "`trellis`": (("trellis 4 128",), "trellis 4 128"), "`turboquant`": (("codes 16 128",), "codes 16 128")}
GPU = ("turboquant", "trellis", "trellis:bits=2", "int")
LLAMA = {"f16": "llama.cpp's f16", "q8_0": "its `q8_0`", "q4_0": "its `q4_0`", "ours, 3.2 bits": "octaplex's default"}


def heads_of(rows, caches, widths=("128", "64")):
    f16 = {tuple(row[:5]): row[6] for row in rows if row[5] == "ggml f16"}
    cells = {tuple(row[:6]): f"{row[6]} ({faster(f16[tuple(row[:5])], row[6])})" for row in rows}
    columns = sorted({row[2:5] for row in f16}, key=lambda case: [int(each) for each in reversed(case)])
    for width in widths:
        for isa, title in ("avx512", "AVX-512"), ("avx2", "AVX2"):
            for cache in caches:
                row = [cells.get((isa, width, *column, cache), "") for column in columns]
                row = [each.removesuffix(" (1.0x)") for each in row] if cache == "ggml f16" else row
                yield f"{width}, {title}: {HEADS.get(cache, cache)}", *row


class Tables:
    def accuracy(titles, rows):
        """KL alone: of prose, and the largest of the three texts."""
        for name, least, most, *cells in rows:
            models = [cells[at : at + 6 : 2] for at in (0, 6, 12)]
            worst = [max(texts, key=lambda cell: float(cell.lstrip("<"))) for texts in models]
            bits = least if least == most else f"{least} to {most}"
            yield name, bits, *(cell for texts, most in zip(models, worst) for cell in (texts[0], most))

    def cache_types(titles, rows):
        """With a last row of llama.cpp's own figures."""
        yield from rows
        theirs = {name: cells for name, *cells in read("llama-cpp-kl")[1]}
        yield "llama.cpp itself", *(theirs[f"its `{kind}`"][model] for model in (0, 2) for kind in ("q8_0", "q4_0"))

    def appending(titles, rows):
        yield [append for *_, append in rows if append]

    def kernels(titles, rows):
        """Two instruction sets in one cell."""
        shown = "ggml f16, ggml q8_0, ggml q4_0, trellis, turboquant, int, f16".split(", ")
        avx2 = {row[1]: row[2:] for row in rows if row[0] == "AVX2"}
        for isa, codec, *times in rows:
            if isa == "AVX-512" and (codec in shown or ", 4 bits" in codec):
                cells = [f"{a}, {b}" if a else "-" for a, b in zip(times, avx2[codec])]
                del cells[titles.index("score of 8") - 2]
                yield codec if " " in codec else f"`{codec}`", *cells

    def heads(titles, rows):
        """A row for each width, instruction set and cache, a column for each (tokens, query heads, queries)."""
        return heads_of(rows, ("ggml f16", "plain f16", "graded / trellis", "turboquant / turboquant"))

    def heads_of_avx2(titles, rows):
        """The rows of a CPU without AVX-512."""
        caches = "ggml f16", "plain f16", "graded / trellis", "turboquant / turboquant"
        return (row for row in heads_of(rows, caches) if "AVX2" in row[0])

    def heads_of_ggml(titles, rows):
        return heads_of(rows, ("ggml q8_0", "ggml q4_0", "graded / trellis"), ("128",))

    def errors(titles, rows):
        yield [error for _, error in rows]

    def onnxruntime(titles, rows):
        """Speeds relative to its f32."""
        for cache, *times, error in rows:
            yield cache, *(faster(f32, ns) for f32, ns in zip(rows[0][1:], times)), error

    def peers_more(titles, rows):
        for cache, *times, a, b, c in rows:
            yield cache, *times, *(share and faster(1, share) for share in (a, b, c))

    def whole_models(titles, rows):
        """Each time, and how many times as fast as with ggml's f16."""
        for cache, *cells in rows:
            pairs = zip(rows[1][1::2], cells[::2])
            yield cache, *(f"{ours} ({faster(f16, ours)})" if rows.index([cache, *cells]) > 1 else ours for f16, ours in pairs)

    def arm(titles, rows):
        """A choice of kernels and of CPUs."""
        for kernel, _, n1, a55, _, m1, v2 in rows:
            what, shape = kernel.split(" ", 1)
            if what == "ggml" and "f16-f32" not in shape:
                yield f"ggml: {shape}", a55, n1, v2, m1
            elif shape in ARM:
                codes, levels, dim, *_ = shape.split()
                yield f"{what}, {codes} of {levels}, width {dim}", a55, n1, v2, m1

    def arm_attention(titles, rows):
        """Cycles a token and query for scores and sum, and speeds relative to ggml's f16."""
        cycles = {row[0]: dict(zip(titles[2:], map(float, row[2:]))) for row in rows}
        cpus = ("cortex-a55", "cortex-a57", "neoverse-n1", "apple-m1", "neoverse-v2")
        old = "cortex-a57"  # no dot products, no f16 arithmetic

        def total(cpu, *kernels, queries=1):
            return sum(cycles[kernel][cpu] for kernel in kernels) / queries

        f16 = {cpu: total(cpu, *(f"ggml {call}-f16{'-f32' if cpu == old else ''}" for call in ("score", "sum"))) for cpu in cpus}
        yield "ggml f16", *(f"{f16[cpu]:.0f}" for cpu in cpus)
        for kind in "q8_0", "q4_0":
            both = {cpu: total(cpu, f"ggml score-{kind}", f"ggml sum-{kind}") for cpu in cpus if cpu != old}
            yield f"ggml {kind}", *(f"{both[cpu]:.0f} ({faster(f16[cpu], both[cpu])})" if cpu in both else "" for cpu in cpus)
        for queries, of in (1, "one query"), (4, "groups of four"):
            for cache, (scores, values) in ARM_CACHES.items():
                cells = []
                for cpu in cpus:
                    way = f"{queries} {'neon' if cpu == old else 'neon-dotprod'}"
                    ours = total(cpu, *(f"score {kernel} {way}" for kernel in scores), f"sum {values} {way}", queries=queries)
                    cells.append(f"{ours:.0f} ({faster(f16[cpu], ours)})")
                yield f"{cache}, {of}", *cells

    def gpu_steps(titles, rows):
        """A choice of columns, and how many times as fast as cuDNN."""
        for queries, keys, sequences, tokens, cudnn, *times in rows:
            shown = [us for title, us in zip(titles[5:], times) if title in GPU]
            each = "" if sequences == "1" else " each"
            cells = [us and f"{us} ({faster(cudnn, us)})" for us in shown]
            yield f"{queries}/{keys}, {sequences}, {thousands(tokens)}{each}", cudnn, *cells

    def portable(titles, rows):
        """Speeds relative to f32 loops."""
        for codecs, *times in rows:
            ranges = [[faster(1, most), faster(1, least)] for least, most in zip(times[::2], times[1::2])]
            yield codecs, *(" to ".join(dict.fromkeys(each)) for each in ranges)

    def wasm(titles, rows):
        for score, ns, error in rows:
            yield score, ns, faster(rows[0][1], ns), error

    def trellis(titles, rows):
        """Two instruction sets in one cell."""
        for what, *speeds in rows:
            yield what, *(f"{a}x, {b}x" for a, b in zip(speeds[::2], speeds[1::2]))

    def profile_texts(titles, rows):
        texts = defaultdict(dict)
        for model, text, tokens, _, bits, without, profile in rows:
            texts[model, tokens, bits][text] = f"{without}, {profile}"
        for (model, tokens, bits), cells in texts.items():
            yield model, thousands(tokens), bits, *(cells.get(text, "") for text in ("code", "licence", "prose"))

    def profile_gains(titles, rows):
        """Geometric means over the texts."""
        texts, ratios = defaultdict(list), defaultdict(list)
        for model, text, tokens, _, bits, without, profile in rows:
            if text not in texts[model, tokens]:
                texts[model, tokens].append(text)
            ratios[model, tokens, bits].append(float(profile) / float(without))
        for (model, tokens), names in texts.items():
            each = [ratios[model, tokens, bits] for bits in ("2.20", "2.70", "3.20")]
            means = [f"{prod(of) ** (1 / len(of)):.2f}" if of else "" for of in each]
            yield model, thousands(tokens), ", ".join(names), *means

    def profile_windows(titles, rows):
        """Geometric means over the texts, and those of the profiles in `profiles/` on the same texts."""
        known = {(model, tokens, bits, text): (float(without), float(profile))
                 for model, text, tokens, _, bits, without, profile in read("profiles")[1]}
        found = defaultdict(dict)
        for model, calibrated, text, tokens, _, bits, profile in rows:
            without, committed = known[model, tokens, bits, text]
            found[model, tokens, calibrated].setdefault(bits, []).append((float(profile) / without, committed / without))
        for (model, tokens, calibrated), each in found.items():
            pairs = [[prod(of) ** (1 / len(of)) for of in zip(*each[bits])] if bits in each else [] for bits in ("2.20", "2.70", "3.20")]
            cells = ["{:.2f} ({:.2f})".format(*pair) if pair else "" for pair in pairs]
            yield model, thousands(tokens), calibrated, str(max(map(len, each.values()))), *cells

    def llama_speed(titles, rows):
        """Medians of the runs, and speeds as multiples of llama.cpp's f16."""
        speeds, memory = defaultdict(list), defaultdict(list)
        for what, tokens, setting, speed, mib in rows:
            speeds[what, tokens, setting].append(float(speed))
            memory[what, tokens, setting].append(float(mib))
        columns = ("prompt", "8192"), ("decode", "1024"), ("decode", "8192"), ("decode", "32768")
        for setting, name in LLAMA.items():
            cells = []
            for column in columns:
                speed, f16 = speeds[(*column, setting)], median(speeds[(*column, "f16")])
                times = "" if setting == "f16" or not speed else f" ({faster(median(speed), f16)})"
                cells.append(f"{median(speed):.0f}{times}" if speed else "not measured")
            mib = memory[(*columns[-1], setting)]
            yield name, *cells, f"{median(mib):.0f}" if mib else "not measured"

    def llama_lengths(titles, rows):
        """Tokens a second, and how many times as fast as llama.cpp's f16."""
        for shape, tokens, *speeds in rows:
            cells = [speed and f"{speed} ({faster(speed, speeds[at // 4 * 4])})" if at % 4 else speed
                     for at, speed in enumerate(speeds)]
            yield f"{shape}, {thousands(tokens)}", *cells

    def llama_cuda(titles, rows):
        for cache, *cells in rows:
            f16 = rows[0][1:]
            times = [f"{ms} ({faster(theirs, ms)})" for theirs, ms in zip(f16[:3], cells)]
            yield cache, *(cells[:3] if cells == f16 else times), *cells[3:]

    def candle(titles, rows):
        for model, tokens, *figures, equal, written in rows:
            theirs, ours = figures[::2], figures[1::2]
            times = [f"{a}, {b} ({faster(a, b)})" for a, b in zip(theirs[:2], ours[:2])]
            size = f"{int(theirs[2]) / 1e6:.1f}, {int(ours[2]) / 1e6:.1f}"
            yield f"{model}, {thousands(tokens)}", *times, size, f"{equal} of {written}"

    def chunk_store(titles, rows):
        raw = int(rows[0][1])
        yield rows[0][0], rows[0][1], "16", *[""] * 5
        for stored, size, encode, decode, error in rows[1:]:
            gigabits = 8e-9 * (raw - int(size))
            links = ratio(gigabits, encode, 1), ratio(gigabits, decode, 1)
            yield stored, size, ratio(16 * int(size), raw), encode, decode, *links, error

    def transformers_cpu(titles, rows):
        for cache, bits, long, kl, error, step, prompt in rows:
            yield cache, bits, long, kl + (error and f" ± {error}"), faster(1, step), faster(1, prompt)

    def gpu_bf16(titles, rows):
        for sequences, tokens, best, *ours in rows:
            times = [f"{ms} ({faster(best, ms)})" if ms else "not measured" for ms in ours]
            yield ("" if sequences == "1" else f"{sequences} x ") + thousands(tokens), best, *times

    def transformers_gpu(titles, rows):
        """The shortest and the longest context, and the most sequences."""
        for cache, sequences, tokens, *cells in rows:
            if (sequences, tokens) in (("1", "2048"), ("1", "131072"), ("16", "16384")):
                yield cache, ("" if sequences == "1" else f"{sequences} x ") + thousands(tokens), *cells


def compare(text, used):
    """The page with its tables written anew, and what differs: numbers of lines, and words."""
    lines, wrong = text.split("\n"), []
    for at, line in reversed(list(enumerate(lines))):  # from below, so that the numbers of lines stay
        if not line.startswith("<!-- table"):
            continue
        marker = MARKER.fullmatch(line)
        if not marker or lines[at + 1] or not re.match(r"\|[ :|-]+\|$", lines[at + 3]):
            wrong.append((at, "this needs the form in ci/tables.py, an empty line and a table's titles behind it"))
            continue
        used.update(marker.groups())
        old = list(takewhile(lambda line: line.startswith("|"), lines[at + 4 :]))
        try:
            new = list((getattr(Tables, marker[2]) if marker[2] else joined)(*read(marker[1])))
        except (ArithmeticError, AttributeError, LookupError, OSError, ValueError) as error:
            wrong.append((at, f"{marker[1]}.csv: {error!r}"))
            continue
        new = ["|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in new]
        if any(row.count("|") != lines[at + 2].count("|") for row in new):
            wrong.append((at + 2, f"{marker[1]}.csv has more or fewer columns than titles"))
        both = enumerate(zip_longest(old, new, fillvalue="nothing"), at + 4)
        wrong += [(row, f"is\n  {was}\nand {marker[1]}.csv has\n  {now}") for row, (was, now) in both if was != now]
        lines[at + 4 : at + 4 + len(old)] = new
    return "\n".join(lines), sorted(wrong)


def main():
    write, used, count = sys.argv[1:] == ["--write"], set(), 0
    for path in sorted((ROOT / "docs").rglob("*.md")):
        new, wrong = compare(text := path.read_text(), used)
        if write and new != text:
            path.write_text(new)
            _, wrong = compare(new, used)
        for line, what in wrong:
            print(f"{path.relative_to(ROOT)}:{line + 1}: {what}")
        count += len(wrong)
    files = {path.stem for path in (ROOT / "docs/plots").glob("*.csv")} - WITHOUT_TABLE
    for name in sorted(files.union(name for name in vars(Tables) if name[0] != "_") - used):
        print(f"docs: no page has the table of {name}")
        count += 1
    if count:
        sys.exit(f"differences: {count}. Where a file of docs/plots is right, run python3 ci/tables.py --write")
    print(f"The tables of {len(files)} files are in order")


if __name__ == "__main__":
    main()
