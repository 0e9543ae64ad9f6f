#!/usr/bin/env python3
"""Checks that each measured figure has one source, so that it has one value in all pages.

    ci/figures.py          prints PAGE:LINE: what is wrong, and fails if anything is
    ci/figures.py list     prints the figures of all pages, as docs/plots/figures.csv writes them

A figure is a number with a unit of UNITS (`84 s`, `9 to 13 ns`, `2.6x`, `3.1 bits`), or a fraction with two or more decimals
(`0.0056`). Outside code blocks and comments, in all Markdown files except UNCHECKED, a figure needs one of these:

* It is in a table that ci/tables.py writes, below `<!-- table: … -->`.
* A comment behind it names a cell of a file of docs/plots/, and the two agree:

      takes 2.0 ms <!-- figure: plots/FILE.csv ROW @ COLUMN -->
      is 2.6x faster <!-- figure: plots/FILE.csv ROW over ROW @ COLUMN -->

  The figure is the last number before the comment, and may have fewer digits than the cell. COLUMN is a title. ROW is the first
  cells of one row, with `; ` between them. No line begins with such a comment, because Markdown would end the paragraph there.
* It is in a table below `<!-- checked: FILE -->`: a test that reads this page and computes or compares the table.
* docs/plots/figures.csv has it: the figure as it is written, its pages, what it is, the command and the machine that gave it. Each
  page that the row names must have it. Numbers that are no measurement, such as a limit, have a row too, with the word
  `definition` or `paper` as the command."""
import csv
import re
import sys

from docs import tracked, without_blocks
from tables import ROOT, read

UNCHECKED = ("CHANGELOG.md", "docs/notes/", "docs/papers.md")  # history; published figures, and ours by the tests it names
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNITS = r"ns|µs|ms|s|seconds?|minutes?|hours?|[kMG]i?B|KiB|%|dB|nats|Gbit/s|tokens/s|tokens\sa\ssecond|times\sas"
START = r"(?<![\w.,/:=^·-])(?<!ggml )(?<!candle )(?<!candle-nn )"  # not in the middle of a number or a name, and no version
FIGURE = re.compile(  # \s, because a line may end between a number and its unit
    rf"{START}(?:{NUMBER}(?:\s(?:to|and|or)\s{NUMBER})*(?:\s(?:{UNITS})(?![\w/])|x(?!\w)|%))"
    rf"|{START}(?:\d+\.\d+(?:\s(?:to|and|or)\s\d+\.\d+)*\sbits|0\.\d\d+(?![\w.]\w|x|·))"
)
MARKER = re.compile(r"<!-- figure: plots/(\S+)\.csv (.+?)(?: over (.+?))? @ (.+?) -->")


def cell(titles, rows, row, column):
    """The number in a row's cell."""
    start = [word.strip() for word in row.replace("`", "").split(";")]
    found = [cells for cells in rows if [each.replace("`", "") for each in cells[: len(start)]] == start]
    if len(found) != 1 or titles.count(column) != 1:
        raise ValueError(f"{len(found)} rows {row!r}, {titles.count(column)} columns {column!r}")
    return float(found[0][titles.index(column)].lstrip("<"))


def marked(text):
    """The figures that name their cells and differ: numbers of lines, and words."""
    for found in re.finditer(r"<!-- figure.*?-->", text, re.DOTALL):
        line, before = text.count("\n", 0, found.start()), re.sub(r"<!--.*?-->", "", text[: found.start()], flags=re.DOTALL)
        number = (re.findall(NUMBER, before.rsplit("\n\n", 1)[-1]) or [""])[-1].replace(",", "")
        try:
            name, row, under, column = MARKER.fullmatch(found[0]).groups()
            exact = cell(*read(name), row, column) / (cell(*read(name), under, column) if under else 1)
            unit = 0.1 ** len(number.partition(".")[2])
            if abs(float(number) - exact) > 0.5 * unit + 1e-9:
                yield line, f"{number}, and {found[0]} is {exact:.6g}"
            if before.rpartition("\n")[2].strip() == "":
                yield line, "a line begins with a figure's comment"
        except (ArithmeticError, AttributeError, OSError, ValueError) as error:
            yield line, f"{found[0]}: {error}"


def outside_tables(name, text):
    """The lines, with those of code blocks and of tables that are written or checked elsewhere empty."""
    known = False
    for line in without_blocks(text):
        if line.startswith("<!-- table"):
            known = True
        elif checked := re.fullmatch(r"<!-- checked: (\S+) -->", line):
            known = name.removeprefix("docs/") in (ROOT / checked[1]).read_text()
        elif line and not line.startswith("|"):
            known = False
        yield "" if known else line


def written(name, text):
    """The figures without a comment: numbers of lines, and figures."""
    plain = "\n".join(outside_tables(name, text))
    plain = re.sub(rf"{NUMBER}x?%?(?=[^\d\n]*<!-- figure)", "", plain)
    plain = re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), plain, flags=re.DOTALL)
    plain = re.sub(r"`[^`]*`|\]\([^)\s]*\)", lambda code: re.sub(r"\S", "`", code[0]), plain)
    for found in FIGURE.finditer(re.sub(r"\n *", "\n", plain)):
        yield plain.count("\n", 0, found.start()), " ".join(found[0].split())


# Files of sizes in bytes, and the cells of a row of a page, in kB: (row, column) of the file.
SIZES = {
    ("docs/platforms.md", "ci/sizes.txt"): ["cache 1, cache 2", "family 1, family 2", "any 1, any 2"],
    ("bindings/wasm/README.md", "bindings/wasm/sizes.txt"): ["simd 2, plain 2", "allsimd 2, all 2", "one 2"],
}


def sizes():
    for (page, file), rows in SIZES.items():
        bytes_of = {words[0]: words for line in (ROOT / file).read_text().splitlines() if (words := line.split())}
        for row in rows:
            cells = (bytes_of[name][int(column)] for name, column in map(str.split, row.split(", ")))
            end = "".join(f" {int(each) / 1000:.0f} |" for each in cells)
            if not any(line.endswith(f"|{end}") for line in (ROOT / page).read_text().splitlines()):
                yield page, 1, f"no row ends in |{end}, which {file} has"


def main():
    wrong, pages = list(sizes()), {}
    for name in tracked("*.md"):
        if not name.startswith(UNCHECKED):
            text = (ROOT / name).read_text()
            wrong += [(name, line + 1, what) for line, what in marked(text)]
            pages[name] = list(written(name, text))
    if sys.argv[1:] == ["list"]:
        for name, each in pages.items():
            print(*(f"{name}:{line + 1}: {figure}" for line, figure in each), sep="\n")
    with open(ROOT / "docs/plots/figures.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    pairs = [(row["figure"], name) for row in rows for name in row["pages"].split()]
    listed = set(pairs)
    wrong += [("docs/plots/figures.csv", 1, f"{figure} of {name} has two rows") for figure, name in listed if pairs.count((figure, name)) > 1]
    wrong += [("docs/plots/figures.csv", at, "no cell may be empty") for at, row in enumerate(rows, 2) if not all(row.values())]
    for name, each in pages.items():
        wrong += [(name, line + 1, f"{figure} has no source: see ci/figures.py") for line, figure in each if (figure, name) not in listed]
    found = {(figure, name) for name, each in pages.items() for _, figure in each}
    wrong += [(name, 1, f"lacks {figure}, which docs/plots/figures.csv has") for figure, name in sorted(listed - found)]
    for name, line, what in wrong:
        print(f"{name}:{line}: {what}")
    if wrong:
        sys.exit(f"figures without a source, or different from it: {len(wrong)}")
    marks = sum((ROOT / name).read_text().count("<!-- figure") for name in pages)
    print(f"{marks} figures agree with the cells that they name, and {len(found)} with {len(rows)} rows of docs/plots/figures.csv")


if __name__ == "__main__":
    main()
