"""Octaplex: the key/value cache of transformer attention in 1 to 8 bits a value, and attention on the compressed bytes.

Tensors are NumPy arrays, PyTorch tensors on the CPU, or anything with DLPack: float32, float16 or bfloat16, contiguous. Keys,
values and chunks are read and written where they lie; queries in halves are widened first. Work is done without the
interpreter's lock, bit-exact whatever the process does with denormals and rounding. A forked process works in threads of its own.
What the library refuses is an :class:`Error` that says what
to do; files raise OSError. No other thread may write to an array that a call reads, or touch one that it writes.
"""

import os

from . import _octaplex
from ._cache import Cache, Stats
from ._chunk import ChunkCodec, ChunkInfo, chunk_info
from ._codec import Codec
from ._octaplex import Error, OutOfMemory, __version__, backend, codecs

__all__ = [
    "Cache",
    "ChunkCodec",
    "ChunkInfo",
    "Codec",
    "Error",
    "OutOfMemory",
    "Stats",
    "__version__",
    "backend",
    "chunk_info",
    "codecs",
    "verify",
]


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads, and starts its own
    os.register_at_fork(
        before=_octaplex.before_fork,
        after_in_parent=_octaplex.after_fork,
        after_in_child=_octaplex.after_fork_in_child,
    )


def verify() -> str:
    """The checksum of every codec's bytes and results on this machine, as ``octaplex verify`` prints it for all; an :class:`Error`
    names the codecs that compute something else than the table of this version says. A second of work."""
    found, together = _octaplex.verify()
    wrong = [name for name, checksum, wanted in found if checksum != wanted]
    if wrong:
        raise Error(f"this machine computes other results with {', '.join(wrong)}: please report its CPU")
    return together
