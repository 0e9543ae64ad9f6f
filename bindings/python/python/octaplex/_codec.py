"""Codecs without a cache."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import _octaplex, _options, _tensors
from ._octaplex import Error
from ._tensors import Buffer, Tensor


class Codec:
    """Encodes and decodes rows of one width, and computes attention's two products on the bytes.

    >>> import numpy, octaplex
    >>> codec = octaplex.Codec("turboquant:bits=3", 128)
    >>> blocks = codec.encode(numpy.ones((10, 128), numpy.float32))
    >>> len(blocks), codec.bits_per_value
    (500, 3.125)
    >>> codec.score(numpy.ones((2, 128), numpy.float32), blocks).shape
    (2, 10)
    """

    def __init__(
        self, spec: str, dim: int, *, layer: int = 0, head: int = 0, role: Literal["keys", "values"] = "keys"
    ) -> None:
        """Creates the codec of a spec, such as ``"trellis"`` or ``"turboquant:bits=3,seed=7"``, for rows of ``dim`` values.

        Layer, head and role choose the random rotation. Decode blocks with those that encoded them."""
        if role not in ("keys", "values"):
            raise Error(f'role is "keys" or "values", not {role!r}')
        spec, dim = _options.text(spec, "spec"), _options.whole(dim, "dim")
        layer, head = (_options.whole(x, what, 2**32 - 1) for what, x in (("layer", layer), ("head", head)))
        self._codec = _octaplex.Codec(spec, dim, layer, head, role == "values")
        self._arguments = (spec, dim, layer, head, role)

    def __reduce__(self) -> tuple[Any, ...]:
        return _codec, self._arguments

    def __repr__(self) -> str:
        return f"Codec({self.spec!r}, {self.dim})"

    @property
    def spec(self) -> str:
        """Returns the canonical spec."""
        return self._codec.spec

    @property
    def dim(self) -> int:
        """Values of a row."""
        return self._codec.dim

    @property
    def block_bytes(self) -> int:
        """Bytes of an encoded row; outliers (``med``) come on top."""
        return self._codec.block_bytes

    @property
    def bits_per_value(self) -> float:
        """Returns all stored bits divided by the number of values. Outliers (``med``) are not counted."""
        return 8 * self.block_bytes / self.dim

    def encode(self, rows: Tensor) -> NDArray[np.uint8]:
        """Encodes rows [..., dim] into bytes [rows · block_bytes]. Reads float32 in place, and widens 16-bit floats first."""
        return self._codec.encode(self._rows(rows, "rows")[0])

    def decode(self, blocks: Buffer) -> NDArray[np.float32]:
        """Decodes the bytes of :meth:`encode` into [rows, dim]."""
        return self._codec.decode(_tensors.buffer(blocks, "blocks")).reshape(-1, self.dim)

    def score(self, queries: Tensor, blocks: Buffer) -> Any:
        """Computes scores q·k̂ of queries [queries, dim] with all blocks: [queries, rows]. Works on the bytes. Returns a PyTorch
        tensor if the queries are one, otherwise a NumPy array."""
        found, shape = self._rows(queries, "queries")
        scores = self._codec.score(found, _tensors.buffer(blocks, "blocks"))
        return _tensors.like(scores.reshape(math.prod(shape[:-1]), -1 if scores.size else 0), queries)

    def accumulate(self, weights: Tensor, blocks: Buffer) -> Any:
        """Computes sums Σ weight·v̂ for weights [outputs, rows]: [outputs, dim]. Works on the bytes. Returns a PyTorch tensor if
        the weights are one, otherwise a NumPy array."""
        found, shape = _tensors.floats(weights, "weights")
        if len(shape) != 2:
            raise Error(f"weights has the shape {list(shape)}: pass [outputs, rows]")
        sums = self._codec.attend(found, _tensors.buffer(blocks, "blocks")).reshape(-1, self.dim)
        if len(sums) != shape[0]:
            raise Error(f"weights has the shape {list(shape)}: pass [outputs, rows], a weight for each of the blocks' rows")
        return _tensors.like(sums, weights)

    def _rows(self, rows: Tensor, what: str) -> tuple[_tensors.Floats, tuple[int, ...]]:
        found, shape = _tensors.floats(rows, what)
        if not shape or shape[-1] != self.dim:
            raise Error(f"{what} has the shape {list(shape)}: pass [rows, {self.dim}]")
        return found, shape


def _codec(spec: str, dim: int, layer: int, head: int, role: Literal["keys", "values"]) -> Codec:
    """Creates a codec when unpickling."""
    return Codec(spec, dim, layer=layer, head=head, role=role)
