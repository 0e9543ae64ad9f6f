"""Chunks: keys and values of a stack of layers as blobs that stand for themselves."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Optional

import numpy as np

from . import _octaplex, _options, _tensors
from ._octaplex import Error
from ._tensors import Buffer, Tensor


class ChunkInfo(NamedTuple):
    """What a blob's header says."""

    layers: int
    kv_heads: int
    head_dim: int
    #: The codecs.
    keys: str
    values: str
    #: "split" or "fused".
    layout: str
    first_layer: int
    page: int
    center: str
    balance: bool
    tokens: int
    #: Of the blob; more may follow in the buffer that was read.
    bytes: int
    #: Of the tensor that was encoded: "float32", "float16" or "bfloat16".
    dtype: str

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the tensor."""
        width = self.kv_heads * self.head_dim
        if self.layout == "fused":
            return (1, self.layers, self.tokens, 2 * width)
        return (2, self.layers, self.tokens, width)


def chunk_info(blob: Buffer) -> ChunkInfo:
    """Reads a blob's header; bytes may follow behind the blob."""
    shape, (keys, values, layout, first_layer, page, center, balance), (tokens, length), dtype = _octaplex.chunk_info(
        _tensors.buffer(blob, "blob")
    )
    return ChunkInfo(*shape, keys, values, layout, first_layer, page, center, balance, tokens, length, dtype)


class ChunkCodec:
    """Encodes [2, layers, tokens, kv_heads · head_dim] ("split": keys, then values) or [1, layers, tokens, kv_heads · 2 · head_dim]
    ("fused": for each head its key, then its value), any number of tokens, into a blob; the same bytes on every machine. Holds
    nothing that changes: threads may share one.

    >>> import numpy, octaplex
    >>> codec = octaplex.ChunkCodec(layers=4, kv_heads=8, head_dim=128, keys="trellis", values="trellis")
    >>> blob = codec.encode(numpy.zeros((2, 4, 256, 1024), numpy.float16))
    >>> len(blob) == codec.max_bytes(256), octaplex.chunk_info(blob).tokens
    (True, 256)
    >>> octaplex.ChunkCodec.of(blob).decode(blob).shape
    (2, 4, 256, 1024)
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        *,
        keys: Optional[str] = None,
        values: Optional[str] = None,
        layout: Literal["split", "fused"] = "split",
        first_layer: int = 0,
        page: Literal[64, 128, 256] = 64,
        center: Literal["off", "prefix", "page"] = "page",
        balance: bool = True,
    ) -> None:
        """``keys`` and ``values`` are codecs; by default those of :class:`octaplex.Cache`. ``first_layer`` is the number of the stack's first layer in its model: layers are rotated differently."""
        settings: dict[str, Any] = {
            "keys": _options.text_or_none(keys, "keys"),
            "values": _options.text_or_none(values, "values"),
            "layout": _options.text(layout, "layout"),
            "first_layer": _options.whole(first_layer, "first_layer", 2**32 - 1),
            "page": _options.whole(page, "page"),
            "center": _options.text(center, "center"),
            "balance": _options.flag(balance, "balance"),
        }
        sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim}
        layers, kv_heads, head_dim = (_options.whole(size, what) for what, size in sizes.items())
        self._codec = _octaplex.ChunkCodec(layers, kv_heads, head_dim, settings)
        self._arguments = (layers, kv_heads, head_dim), settings
        width = kv_heads * head_dim
        self._ends = (1, layers, 2 * width) if layout == "fused" else (2, layers, width)

    def __reduce__(self) -> tuple[Any, ...]:
        return _chunk_codec, self._arguments

    @staticmethod
    def of(blob: Buffer) -> ChunkCodec:
        """The codec that decodes a blob."""
        info = chunk_info(blob)
        return ChunkCodec(
            info.layers,
            info.kv_heads,
            info.head_dim,
            keys=info.keys,
            values=info.values,
            layout=info.layout,  # type: ignore[arg-type]
            first_layer=info.first_layer,
            page=info.page,  # type: ignore[arg-type]
            center=info.center,  # type: ignore[arg-type]
            balance=info.balance,
        )

    def max_bytes(self, tokens: int) -> int:
        """The most bytes that a blob of so many tokens takes; but for codecs that keep outliers (``med``), what it always takes."""
        return self._codec.max_bytes(_options.whole(tokens, "tokens"))

    def encode(self, tensor: Tensor) -> bytes:
        """Encodes a tensor."""
        blob = bytearray(self.max_bytes(self._tokens(tensor)))
        return bytes(memoryview(blob)[: self.encode_into(tensor, blob)])

    def encode_into(self, tensor: Tensor, out: Buffer) -> int:
        """The same into the front of ``out``, ``max_bytes`` bytes or more; returns how many the blob has."""
        self._tokens(tensor)
        found, _ = _tensors.floats(tensor, "tensor")
        target = _tensors.buffer(out, "out", writable=True)
        _tensors.apart(target, tensor=found)
        return self._codec.encode_into(found, target)

    def decode(self, blob: Buffer, out: Optional[Tensor] = None) -> Any:
        """Decodes a blob into ``out``, of any of the three types and the blob's shape. Without it: into a new array of the type that was
        encoded, but float32 for bfloat16, which NumPy does not have."""
        info = chunk_info(blob)
        if out is None:
            out = np.empty(info.shape, np.float16 if info.dtype == "float16" else np.float32)
        target = _tensors.shaped(out, "out", info.shape, writable=True)
        found = _tensors.buffer(blob, "blob")
        _tensors.apart(target, blob=found)
        self._codec.decode_into(found, target)
        return out

    def _tokens(self, tensor: Tensor) -> int:
        _, shape = _tensors.floats(tensor, "tensor")
        planes, layers, width = self._ends
        if len(shape) != 4 or (shape[0], shape[1], shape[3]) != (planes, layers, width):
            raise Error(f"tensor has the shape {list(shape)}: pass [{planes}, {layers}, tokens, {width}]")
        return shape[2]


def _chunk_codec(sizes: tuple[int, int, int], settings: dict[str, Any]) -> ChunkCodec:
    """What a pickle calls."""
    return ChunkCodec(*sizes, **settings)
