#!/usr/bin/env python3
"""A preprocessor for mdBook: links to files outside docs/, and to docs/notes/, lead to the repository, since the book does not
have them."""
import json
import posixpath
import re
import sys

REPOSITORY = "https://github.com/octaplex/octaplex/blob/main/"


def outside(match, folder):
    target = posixpath.normpath(posixpath.join("docs", folder, match[1]))
    return match[0] if target.startswith("docs/") and not target.startswith("docs/notes/") else f"]({REPOSITORY}{target})"


def rewrite(items):
    for item in items:
        if chapter := isinstance(item, dict) and item.get("Chapter"):
            folder = posixpath.dirname(chapter["path"] or "")
            chapter["content"] = re.sub(r"\]\(((?:\.\./|notes/)[^)]*)\)", lambda match: outside(match, folder), chapter["content"])
            rewrite(chapter["sub_items"])


if __name__ == "__main__":
    if sys.argv[1:2] != ["supports"]:
        _, book = json.load(sys.stdin)
        rewrite(book.get("items") or book.get("sections"))
        json.dump(book, sys.stdout)
