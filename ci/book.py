#!/usr/bin/env python3
"""A preprocessor for mdBook: links to files that are not in the book lead to the repository. These are files outside docs/, and
pages that docs/SUMMARY.md does not list."""
import json
import posixpath
import re
import sys
from pathlib import Path

REPOSITORY = "https://github.com/octaplex/octaplex/blob/main/"
LISTED = set(re.findall(r"\]\(([^)]+)\)", (Path(__file__).resolve().parents[1] / "docs/SUMMARY.md").read_text()))


def outside(match, folder):
    target = posixpath.normpath(posixpath.join("docs", folder, match[1]))
    page = target.partition("#")[0].removeprefix("docs/")
    within = target.startswith("docs/") and (page in LISTED or not page.endswith(".md"))
    return match[0] if within else f"]({REPOSITORY}{target})"


def rewrite(items):
    for item in items:
        if chapter := isinstance(item, dict) and item.get("Chapter"):
            folder = posixpath.dirname(chapter["path"] or "")
            chapter["content"] = re.sub(r"\]\((?!#|\w+:)([^)\s]+)\)", lambda match: outside(match, folder), chapter["content"])
            rewrite(chapter["sub_items"])


if __name__ == "__main__":
    if sys.argv[1:2] != ["supports"]:
        _, book = json.load(sys.stdin)
        rewrite(book.get("items") or book.get("sections"))
        json.dump(book, sys.stdout)
