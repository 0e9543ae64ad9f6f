"""The common parts of the tests of ``python -m octaplex.capture`` and ``python -m octaplex.calibrate``."""

import importlib.util
import subprocess
import sys

import pytest

HAS_MODELS = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
needs_models = pytest.mark.skipif(not HAS_MODELS, reason="PyTorch and transformers are not installed; ci/transformers.sh installs them")


def run(name, *arguments):
    """Runs a command as a program."""
    return subprocess.run([sys.executable, "-m", f"octaplex.{name}", *map(str, arguments)], capture_output=True, text=True)


def refused(name, folder, cases):
    """Each case is a text, an output and more arguments: it ends with one line that has these words, and nothing is written."""
    (folder / "text.txt").write_text("some text")
    (folder / "bad.txt").write_bytes(b"\xff\xfe")
    before = sorted(path.name for path in folder.iterdir())
    for text, out, more, words in [
        ("none.txt", "x", [], ["none.txt"]),
        ("bad.txt", "x", [], ["bad.txt", "UTF-8"]),
        ("text.txt", "none/x", [], ["no such folder"]),
        ("text.txt", ".", [], ["is a folder"]),
        *cases,
    ]:
        done = run(name, "model", "--text", folder / text, "--out", folder / out, *more)
        assert done.returncode == 2 and done.stderr.startswith(f"octaplex.{name}: "), done.stderr
        assert len(done.stderr.splitlines()) == 1 and all(word in done.stderr for word in words), done.stderr
    assert sorted(path.name for path in folder.iterdir()) == before


def refused_arguments(name, cases):
    """Each case is arguments that the parser refuses, with a sentence that has a word."""
    for more, word in cases:
        done = run(name, "model", "--text", "t", "--out", "o", *more)
        assert done.returncode == 2 and word in done.stderr, done.stderr
