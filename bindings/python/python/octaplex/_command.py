"""The common parts of the commands ``python -m octaplex.capture`` and ``python -m octaplex.calibrate``: arguments, texts, models and errors."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, Callable, Optional

from ._octaplex import Error


def count(text: str) -> int:
    """Parses an argument that counts something."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}': expected a number from 1 on")
    return int(text)


def parser(name: str, description: str, text: str, out: str, epilog: Optional[str] = None) -> argparse.ArgumentParser:
    """Returns a parser with the arguments of both commands: a model, a text, the file to write, and the device."""
    found = argparse.ArgumentParser(prog=f"python -m octaplex.{name}", description=description, epilog=epilog)
    found.add_argument("model", metavar="MODEL", help="a model of transformers: a folder, or a name of the hub")
    found.add_argument("--text", metavar="FILE", required=True, help=text)
    found.add_argument("--out", metavar="FILE", required=True, help=out)
    found.add_argument("--device", default="cpu", help="the device of the model: cpu (default), cuda")
    return found


def run(name: str, command: Callable[[argparse.Namespace], str], options: argparse.Namespace) -> int:
    """Prints what the command returns, or its error in one line. Returns the exit code."""
    try:
        print(command(options))
    except (Error, OSError) as error:
        print(f"octaplex.{name}: {error}", file=sys.stderr)
        return 2
    return 0


def read(text: Path, out: Path) -> str:
    """Reads the text. Refuses a file to write that has no folder, or is one, before any work."""
    try:
        found = text.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Error(f"{text}: not text in UTF-8") from None
    if not out.absolute().parent.is_dir():
        raise Error(f"{out}: no such folder")
    if out.is_dir():
        raise Error(f"{out} is a folder; a file is expected")
    return found


def write(out: Path, save: Callable[[Path], Any]) -> None:
    """Writes a file whole or not at all: ``save`` writes to the path that it is given."""
    partial = out.with_name(f".{out.name}.new")
    try:
        save(partial)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def libraries() -> tuple[Any, Any]:
    """Imports PyTorch and transformers."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise Error(f"{error.name} is not installed: pip install torch transformers") from error
    return torch, transformers


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """Returns the tokenizer and the model of the arguments, on their device."""
    _, transformers = libraries()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it warns on every retry
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
        model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype)
        return tokenizer, model.eval().to(options.device)
    except (OSError, ValueError, RuntimeError, AssertionError) as error:  # the last: PyTorch was built without CUDA
        raise Error(f"{options.model}: {str(error).strip().splitlines()[0]}") from error


def tokens_of(tokenizer: Any, text: str, most: int) -> Any:
    """Returns the first tokens of a text, at most ``most``: [1, tokens]."""
    return tokenizer(text, return_tensors="pt", truncation=False, verbose=False)["input_ids"][:, :most]


def limit_of(config: Any) -> int:
    """Returns the number of positions that a model was made for; 0 where it does not say."""
    return int(getattr(config, "max_position_embeddings", 0) or 0)


class Progress:
    """A line on a terminal that says what runs now; nothing elsewhere. A context manager, which clears the line."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __call__(self, what: str) -> None:
        if self.shown:
            print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *error: Any) -> None:
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr)
