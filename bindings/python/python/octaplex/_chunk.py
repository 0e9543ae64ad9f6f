"""Encodes keys and values of a stack of layers as self-describing blobs."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Optional

import numpy as np

from . import _octaplex, _options, _tensors
from ._octaplex import Error
from ._tensors import Buffer, Tensor


class ChunkInfo(NamedTuple):
    """The fields of a blob's header."""

    layers: int
    kv_heads: int
    head_dim: int
    #: Specs of the codecs.
    keys: str
    values: str
    #: "split" or "fused".
    layout: str
    first_layer: int
    page: int
    center: str
    balance: bool
    tokens: int
    #: Length of the blob. More bytes may follow in the buffer.
    bytes: int
    #: Type of the encoded tensor: "float32", "float16" or "bfloat16".
    dtype: str

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Returns the shape of the encoded tensor."""
        width = self.kv_heads * self.head_dim
        if self.layout == "fused":
            return (1, self.layers, self.tokens, 2 * width)
        return (2, self.layers, self.tokens, width)


def chunk_info(blob: Buffer) -> ChunkInfo:
    """Reads a blob's header. More bytes may follow the blob."""
    shape, (keys, values, layout, first_layer, page, center, balance), (tokens, length), dtype = _octaplex.chunk_info(
        _tensors.buffer(blob, "blob")
    )
    return ChunkInfo(*shape, keys, values, layout, first_layer, page, center, balance, tokens, length, dtype)


class ChunkCodec:
    """Encodes keys and values of a stack of layers into one blob, for any number of tokens.

    The layout "split" is [2, layers, tokens, kv_heads · head_dim]: keys, then values. The layout "fused" is
    [1, layers, tokens, kv_heads · 2 · head_dim]: for each head its key, then its value. Bytes are the same on every machine.
    A codec never changes, so threads may share it.

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
        """Creates a codec for chunks of this shape.

        ``keys`` and ``values`` are specs of codecs, with the defaults of :class:`octaplex.Cache`. ``first_layer`` is the number
        of the stack's first layer in its model. Each layer number has its own rotation."""
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
        """Creates the codec that decodes a blob."""
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
        """Returns the largest size of a blob of ``tokens`` tokens in bytes. Blobs always have this size, except with codecs that
        keep outliers (``med``)."""
        return self._codec.max_bytes(_options.whole(tokens, "tokens"))

    def encode(self, tensor: Tensor) -> bytes:
        """Encodes a tensor into a new blob."""
        blob = bytearray(self.max_bytes(self._tokens(tensor)))
        return bytes(memoryview(blob)[: self.encode_into(tensor, blob)])

    def encode_into(self, tensor: Tensor, out: Buffer) -> int:
        """Encodes a tensor into the front of ``out``, which has at least ``max_bytes`` bytes. Returns the length of the blob."""
        self._tokens(tensor)
        found, _ = _tensors.floats(tensor, "tensor")
        target = _tensors.buffer(out, "out", writable=True)
        _tensors.apart(target, tensor=found)
        return self._codec.encode_into(found, target)

    def decode(self, blob: Buffer, out: Optional[Tensor] = None) -> Any:
        """Decodes a blob into ``out``, which has the blob's shape and any of the three types.

        Without ``out`` it creates an array of the encoded type. For bfloat16, which NumPy lacks, this is float32."""
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
    """Creates a codec when unpickling."""
    return ChunkCodec(*sizes, **settings)
