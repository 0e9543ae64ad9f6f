#!/usr/bin/env python3
"""Checks the Markdown files of the repository, and the words of comments:

* relative links lead to files, and anchors to headings;
* paths in the repository that stand in backquotes exist;
* docs/SUMMARY.md has every page of docs/, except the notes, bytes of codecs that docs/formats.md has, and pages for contributors
  that CONTRIBUTING.md has;
* docs/options.md has every option of a cache and of attention that OPTIONS finds, and says which language lacks it;
* lines end at 120 characters, except in tables, code blocks, and links that cannot be broken;
* sentences of the book have at most 25 words, and 12 on average;
* public pages use the field's words: WORDS has those that this project once used for them;
* so do comments in COMMENTED, and they say what a thing is or does: OPENINGS has the words that none begins with.

    ci/docs.py            prints FILE:LINE: what is wrong, and fails if anything is
    ci/docs.py words      also prints the words of each page of the book, and of a sentence on it"""
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120
LONGEST, MEAN = 25, 12  # words of a sentence of the book: each, and on average
# Pages for people who work on the code, and what is not ours to word.
NOT_PUBLIC = ("CHANGELOG.md", "docs/notes/")
# Words that this project must not use for something else, as whole words outside code, and what to write.
WORDS = {
    r"(?<!model )cards?": "GPU",
    r"(?<!ARM )boards?": "microcontroller, or bare metal",
    r"twins?": "bit-exact",
    r"rooms?|houses?|inhabitants?": "module, architecture, type, space",
    r"texts? (of|for) (the |a |all )?(kernels?|registers)|portable texts?": "implementation",
    r"so many": "n",
    r"of which": "two sentences",
    r"but for": "except",
    r"(?<!clone )beside": "compared with, next to, with",
    r"save that": "except that",
    r"(is|are) asked": "requires, takes; name who does it",
    r"what (is|are) there": "name the thing",
    r"what [a-z]+ (has|have|brings)": "name the thing",
}
# Folders whose comments are checked, except for those in UNCHECKED.
COMMENTED = "arch src bindings/python bindings/ggml cli metrics files benches examples bindings/wasm bindings/c bindings/candle fuzz ci tests".split()
UNCHECKED = ("ci/docs.py",)
OPENINGS = r"(What|How|Who|Whose|Which|Why|Where) (?!.*\?)"  # a question may begin with them
SLASHES = re.compile(r"(?:^|\s)//[/!]?(?=\s)(.*)|^\s*/?\*+(?=\s)(.*)|^\s*/\*(.*)")
HASH = re.compile(r"(?:^|\s)#(?=\s)(.*)")
SYNTAX = dict.fromkeys((".rs", ".cuh", ".js", ".mjs", ".ts", ".css", ".c", ".h", ".cpp"), SLASHES)
SYNTAX |= dict.fromkeys((".sh", ".py", ".toml", ".txt"), HASH)
# Code that starts with one of these folders is a path, if it has no space or placeholder.
FOLDERS = "src|arch|cli|docs|tests|ci|bindings|fuzz|benches|examples|metrics|files"
PATH = re.compile(rf"(?:{FOLDERS})/[\w./*-]+")


# Where each language declares the options of a cache and of attention: files, and patterns of a declaration and of a name in it.
FIELDS = r"    pub (\w+):"
OPTIONS = {
    "Rust": [
        ("src/cache/config.rs", r"pub struct (?:Layer|Cache)Config \{(.*?)\n\}", FIELDS),
        ("src/attention.rs", r"pub struct Attend<'a> \{(.*?)\n\}", FIELDS),
        ("src/cache/builder.rs", r"(pub const fn builder\(.*?)\)", r"[(,] ?(\w+):"),
        ("src/cache/builder.rs", r"impl KvCacheBuilder \{(.*)", r"pub (?:const )?fn (bits|profile|backend)\b"),
    ],
    "Python": [
        ("bindings/python/python/octaplex/_cache.py", r"\nclass Cache:.*?def __init__\((.*?)\) ->", r"        (\w+): "),
        ("bindings/python/python/octaplex/_cache.py", r"\nclass Cache:.*?def attend\([^)]*?\*,(.*?)\) ->", r"        (\w+): "),
    ],
    "C": [("bindings/c/octaplex.h", r"typedef struct \{([^{}]*)\} octaplex_(?:config|attend);", r"\n    [\w ]+[ *](\w+);")],
    "JavaScript": [("bindings/wasm/js/index.d.ts", r"interface (?:Cache|Attend)Options \{(.*?)\n\}", r"\n  (\w+)\??:")],
    "llama.cpp": [("bindings/ggml/src/settings.rs", r"(.*)", r'"(OCTAPLEX_\w+)"')],
}


def tracked(*patterns):
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if (ROOT / name).exists()]


def without_blocks(text):
    """The lines, with those of code blocks empty."""
    inside = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        yield "" if fence or inside else line
        inside ^= fence


@lru_cache(None)
def anchors(path):
    """What a forge makes of each heading; of equal ones the second ends in -1."""
    found = set()
    for line in without_blocks(path.read_text()):
        if heading := re.match(r"#+ (.+)", line):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1].strip()).lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            count = 0
            while (name := slug + (f"-{count}" if count else "")) in found:
                count += 1
            found.add(name)
    return found


def links(name, text):
    """Of whole pages: a link's name may be on two lines."""
    lines = list(without_blocks(text))
    page = "\n".join(re.sub(r"`[^`]*`", lambda code: " " * len(code[0]), line) for line in lines)
    for link in re.finditer(r"\]\(([^()\s]+(?:\([^()\s]*\))?)\)", page):
        line = page.count("\n", 0, link.start()) + 1
        target, _, anchor = link[1].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (ROOT / name).parent / target if target else ROOT / name
        if not file.exists():
            yield line, f"no file {target}"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.resolve()):
            yield line, f"{target or name} has no heading #{anchor}"


def paths(name, text):
    folders = (ROOT, (ROOT / name).parent)
    for number, line in enumerate(without_blocks(text), 1):
        for code in re.findall(r"`([^`]+)`", line):
            path = PATH.fullmatch(code.split(" ")[0])
            # Without an extension it may be a module. NAME.rs is for the reader to fill in.
            if not path or "." not in path[0].rsplit("/", 1)[-1] or re.search(r"[A-Z]{4}.*\.(?!md)", path[0]):
                continue
            if not any(found for folder in folders for found in folder.glob(path[0].rstrip("."))):
                yield number, f"no file {path[0]}"


def widths(text):
    for number, line in enumerate(without_blocks(text), 1):
        if len(line) > WIDTH and not line.startswith("|"):
            line = re.sub(r" ?<!--.*?(-->|$)|^.*-->", "", line)
            breaks = re.sub(r"`[^`]*`|\]\([^)]*\)", lambda whole: "x" * len(whole[0]), line.lstrip())
            if len(line) > WIDTH and " " in breaks[:WIDTH].removeprefix("- ").removeprefix("* "):
                yield number, f"{len(line)} characters; lines end at {WIDTH}"


def count(text):
    """The number of words: of what has a letter or a digit."""
    return sum(any(c.isalnum() for c in word) for word in text.split())


def sentences(text):
    """The sentences outside code blocks, tables and headings: numbers of lines, and numbers of words."""
    prose = ["" if re.match(r"\||#|!\[", line) else line for line in without_blocks(text)]
    plain = re.sub(r"`[^`]*`", "code", re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), "\n".join(prose), flags=re.DOTALL))
    plain = re.sub(r"\]\([^)\n]*\)", "]", plain)
    at = 0
    for end in [*re.finditer(r"[.!?](?=[*_)\]\"]*\s)|\n\s*\n|\n(?=\s*([*-]|\d+\.) )|\Z", plain)]:
        sentence = plain[at : end.end()]
        if number := count(sentence):
            yield plain.count("\n", 0, at + len(sentence) - len(sentence.lstrip())) + 1, number
        at = end.end()


def words(text):
    plain = "\n".join(without_blocks(text))
    plain = re.sub(r"`[^`]*`", "``", plain)
    plain = re.sub(r"\]\([^)\n]*\)", "]", plain)
    for pattern, instead in WORDS.items():
        # A phrase may go on in the next line.
        for found in re.finditer(rf"\b(?:{pattern})\b".replace(" ", r"\s"), plain, re.IGNORECASE):
            said = " ".join(found[0].split())
            yield plain.count("\n", 0, found.start()) + 1, f'"{said}": write {instead}'
    for number, line in enumerate(plain.split("\n"), 1):
        if found := re.search(r"(?<![\w.)])\.\d+", line):
            yield number, f"write 0{found[0]}, not {found[0]}"


def comments(text, syntax):
    """The comments and docstrings of a source file, and empty lines for its code."""
    inside = False
    for line in text.split("\n"):
        quotes = line.count('"""') if syntax is HASH else 0
        found = syntax.search(line)
        yield line.replace('"""', " ") if inside or quotes else next(filter(None, found.groups()), "") if found else ""
        inside ^= quotes % 2


def openings(text):
    """Comments that begin like a question without being one. A comment begins behind a line without one."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if found := re.match(OPENINGS, line.strip()):
            if number == 1 or not lines[number - 2]:
                yield number, f'"{found[1]}": write what it is or does'


def options():
    """What docs/options.md lacks, and the rows of its first tables that are wrong about a language."""
    page, declared = (ROOT / "docs/options.md").read_text(), {}
    for language, places in OPTIONS.items():
        declared[language] = set()
        for file, declaration, name in places:
            parts = re.findall(declaration, (ROOT / file).read_text(), re.DOTALL)
            names = {re.sub(r"(?<=[a-z])[A-Z]", lambda c: "_" + c[0].lower(), each) for part in parts for each in re.findall(name, part)}
            declared[language] |= names
            yield from ((1, f"lacks `{each}` of {file}") for each in sorted(names) if f"{each}`" not in page)
            if not names:
                yield 1, f"no options found in {file}"
    for number, line in enumerate(page.split("\n## Rust\n")[0].split("\n"), 1):
        if line.startswith("| `"):
            cells = line.split("|")
            for name in re.findall(r"`(\w+)`", cells[1]):
                lack = {language for language, names in declared.items() if name not in names} - {"llama.cpp"}
                if lack != set(filter(None, cells[4].replace(" ", "").split(","))):
                    yield number, f"{name} is not in {', '.join(sorted(lack)) or 'none'}"


def linked(name):
    return {link.removeprefix("docs/") for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text())}


def summary():
    listed = linked("docs/SUMMARY.md") | linked("docs/formats.md") | linked("CONTRIBUTING.md") | {"SUMMARY.md"}
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name not in listed:
            yield 1, f"lacks {page.name}, and so do docs/formats.md and CONTRIBUTING.md"


def main():
    wrong = [("docs/SUMMARY.md", *found) for found in summary()]
    wrong += [("docs/options.md", *found) for found in options()]
    names, book, listed = tracked("*.md"), [], linked("docs/SUMMARY.md")
    for name in names:
        text = (ROOT / name).read_text()
        checks = [links(name, text), paths(name, text), widths(text)]
        if not name.startswith(NOT_PUBLIC):
            checks.append(words(text))
        wrong += [(name, *found) for check in checks for found in check]
        if re.fullmatch(r"docs/\w[^/]*\.md", name) and name != "docs/SUMMARY.md":
            lengths = list(sentences(text))
            wrong += [(name, line, f"a sentence of {number} words") for line, number in lengths if number > LONGEST]
            if Path(name).name in listed:
                book.append((name, count("\n".join(without_blocks(text))), [number for _, number in lengths]))
    lengths = [number for *_, each in book for number in each]
    if (mean := sum(lengths) / len(lengths)) > MEAN:
        wrong.append(("docs", 1, f"{mean:.1f} words a sentence; at most {MEAN}"))
    if sys.argv[1:] == ["words"]:
        for name, number, each in book:
            print(f"{name:28} {number:6,} words, {sum(each) / len(each):4.1f} a sentence, at most {max(each)}")
    sources = [name for name in tracked(*COMMENTED) if Path(name).suffix in SYNTAX and not name.startswith(UNCHECKED)]
    for name in sources:
        text = "\n".join(comments((ROOT / name).read_text(), SYNTAX[Path(name).suffix]))
        wrong += [(name, *found) for check in (words(text), openings(text)) for found in check]
    for name, line, what in wrong:
        print(f"{name}:{line}: {what}")
    if wrong:
        sys.exit(f"{len(wrong)} mistakes in the documentation")
    print(f"The book has {sum(number for _, number, _ in book):,} words outside code, and {mean:.1f} a sentence")
    print(f"{len(names)} Markdown files and the comments of {len(sources)} other files are in order")


if __name__ == "__main__":
    main()
