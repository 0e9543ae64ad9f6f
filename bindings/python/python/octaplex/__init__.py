"""Compresses the key/value cache of transformer attention to 1 to 8 bits a value, and attends on the compressed bytes.

Tensors are NumPy arrays, PyTorch tensors on the CPU, or any object with DLPack. They are contiguous, in float32, float16 or
bfloat16. Calls read and write keys, values and chunks in place, and widen 16-bit queries to float32 first.

Calls release the interpreter's lock while they work. Meanwhile no other thread may write to an array that a call reads, or
use one that it writes. Results are bit-exact, whatever the process's settings for denormals and rounding. A forked process
starts its own threads.

Wrong arguments raise an :class:`Error` that says what to do. File errors raise OSError.
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


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads and starts its own
    os.register_at_fork(
        before=_octaplex.before_fork,
        after_in_parent=_octaplex.after_fork,
        after_in_child=_octaplex.after_fork_in_child,
    )


def verify() -> str:
    """Returns the checksum of all codecs' bytes and results on this machine, which ``octaplex verify`` also prints.

    Compares each codec's checksum with this version's table. Raises an :class:`Error` that names the codecs that differ. It
    takes about a second."""
    found, together = _octaplex.verify()
    wrong = [name for name, checksum, wanted in found if checksum != wanted]
    if wrong:
        raise Error(f"this machine computes different results with {', '.join(wrong)}: please report its CPU")
    return together
