"""The cache of a model."""

from __future__ import annotations

import os
from typing import Any, Literal, NamedTuple, Optional, Union

import numpy as np

from . import _octaplex, _options, _tensors
from ._octaplex import Error
from ._tensors import Buffer, Tensor


class Stats(NamedTuple):
    """What a cache holds, all layers together. Counts of tokens are those of the layer that has most."""

    #: Tokens that attention can see.
    tokens: int
    #: Of these, in pages.
    paged_tokens: int
    #: Tokens with an exact row.
    exact_tokens: int
    #: The position of the next token.
    next_position: int
    #: Tokens dropped by eviction, or behind a sliding window.
    evicted_tokens: int
    #: Tokens that ``truncate`` decoded back into the window.
    decoded_tokens: int
    #: Bytes in use.
    bytes: int
    #: Of these, those in pages.
    paged_bytes: int
    #: Of these, those in pages that another fork holds as well.
    shared_bytes: int
    #: Values that these bytes stand for.
    values: int
    #: Heads whose keys are balanced.
    balanced_heads: int

    @property
    def bits_per_value(self) -> float:
        """Everything in use counted, pages that are shared in full."""
        return 8 * self.bytes / max(self.values, 1)


class Cache:
    """Keys and values of a model's layers, compressed; attention reads the compressed bytes.

    Threads may share one: reads run at once, changes take turns.

    >>> import numpy, octaplex
    >>> cache = octaplex.Cache(layers=2, kv_heads=8, head_dim=128, capacity=4096, keys="trellis", values="trellis")
    >>> rows = numpy.full((8, 300, 128), 0.5, numpy.float32)
    >>> cache.append(0, rows, rows)
    >>> cache.attend(0, numpy.ones((32, 128), numpy.float32)).shape
    (32, 128)
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        keys: Optional[str] = None,
        values: Optional[str] = None,
        bits: Optional[float] = None,
        page: Literal[64, 128, 256] = 64,
        sink_tokens: int = 4,
        recent_window: int = 64,
        max_rollback: int = 64,
        sliding_window: Optional[int] = None,
        center: Literal["off", "prefix", "page"] = "page",
        balance: bool = True,
        boundary_layers: int = 0,
    ) -> None:
        """An empty cache for ``capacity`` tokens.

        ``keys`` and ``values`` are codecs, ``"turboquant"`` by default. ``bits`` instead takes the most accurate codecs of so many
        bits a value in pages. The first
        ``sink_tokens`` and the newest ``recent_window`` tokens stay exact; ``max_rollback`` tokens can be taken back without a
        trace; the first and the last ``boundary_layers`` layers are f16."""
        if bits is not None and (keys is not None or values is not None):
            raise Error("bits chooses the codecs itself: pass either bits, or keys and values")
        settings: dict[str, Any] = {
            "keys": _options.text("turboquant" if keys is None else keys, "keys"),
            "values": _options.text("turboquant" if values is None else values, "values"),
            "bits": _options.real_or_none(bits, "bits"),
            "page": _options.whole(page, "page"),
            "sink_tokens": _options.whole(sink_tokens, "sink_tokens"),
            "recent_window": _options.whole(recent_window, "recent_window"),
            "max_rollback": _options.whole(max_rollback, "max_rollback"),
            "sliding_window": _options.whole_or_none(sliding_window, "sliding_window"),
            "center": _options.text(center, "center"),
            "balance": _options.flag(balance, "balance"),
            "boundary_layers": _options.whole(boundary_layers, "boundary_layers"),
        }
        sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "capacity": capacity}
        layers, kv_heads, head_dim, capacity = (_options.whole(size, what) for what, size in sizes.items())
        self._own(_octaplex.Cache(layers, kv_heads, head_dim, capacity, settings))

    def _own(self, cache: _octaplex.Cache) -> Cache:
        self._cache = cache
        self.layers, self.kv_heads, self.head_dim = cache.shape()
        return self

    @property
    def specs(self) -> list[tuple[str, str]]:
        """The codecs of each layer's keys and values."""
        return self._cache.specs()

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Adds tokens to a layer: keys and values [kv_heads, tokens, head_dim], with their rotary embedding. Read where they lie; on
        an error the cache is as it was."""
        shape = (self.kv_heads, "tokens", self.head_dim)
        layer = _options.whole(layer, "layer")
        self._cache.append(layer, _tensors.shaped(keys, "keys", shape), _tensors.shaped(values, "values", shape))

    def append_chunk(self, blob: Buffer) -> None:
        """Adds a chunk's full pages without decoding them, where layers, codecs, page, centre and balance agree and the exact window
        is empty; otherwise an error says which does not: decode the chunk then, and append its rows."""
        self._cache.append_chunk(_tensors.buffer(blob, "blob"))

    def calibrate(self, layer: int, keys: Tensor, queries: Tensor) -> None:
        """Decides a layer's balance from a prompt's keys [kv_heads, tokens, head_dim] and queries [query_heads, queries, head_dim],
        before they are appended: better than from keys alone."""
        found = _tensors.shaped(keys, "keys", (self.kv_heads, "tokens", self.head_dim))
        layer = _options.whole(layer, "layer")
        self._cache.calibrate(layer, found, _tensors.shaped(queries, "queries", ("query_heads", "queries", self.head_dim)))

    def attend(
        self,
        layer: int,
        queries: Tensor,
        *,
        scale: Optional[float] = None,
        soft_cap: Optional[float] = None,
        window: Optional[int] = None,
        keep_sinks: bool = False,
        position: Optional[int] = None,
        sink_logits: Optional[Tensor] = None,
        bias: Optional[Tensor] = None,
        out: Optional[Tensor] = None,
    ) -> Any:
        """Causal attention of queries [query_heads, head_dim], or of a block [query_heads, queries, head_dim] whose last one is at the
        newest token (or whose first one is at ``position``): float32 of the same shape, in ``out`` if that is given. For PyTorch's
        queries it is a PyTorch tensor, otherwise a NumPy array.

        logit = ``scale``·q·k (1/√head_dim by default), then ``soft_cap``·tanh(logit/``soft_cap``), then ``bias`` ([positions] or
        [query_heads, positions]); a query sees ``window`` positions; ``sink_logits`` [query_heads] take weight and give nothing."""
        found, shape = _tensors.floats(queries, "queries")
        if len(shape) not in (2, 3) or shape[-1] != self.head_dim:
            raise Error(f"queries has the shape {list(shape)}: pass [query_heads, {self.head_dim}] or [query_heads, queries, {self.head_dim}]")
        layer = _options.whole(layer, "layer")
        if out is None:
            out = _tensors.like(np.empty(shape, np.float32), queries)
        options: dict[str, Any] = {
            "queries": shape[1] if len(shape) == 3 else 1,
            "scale": _options.real_or_none(scale, "scale"),
            "soft_cap": _options.real_or_none(soft_cap, "soft_cap"),
            "window": _options.whole_or_none(window, "window"),
            "keep_sinks": _options.flag(keep_sinks, "keep_sinks"),
            "position": _options.whole_or_none(position, "position"),
        }
        more = [None if x is None else _tensors.floats(x, what)[0] for x, what in ((sink_logits, "sink_logits"), (bias, "bias"))]
        target = _tensors.shaped(out, "out", shape, writable=True)
        _tensors.apart(target, queries=found, sink_logits=more[0], bias=more[1])
        self._cache.attend(layer, found, options, more[0], more[1], target)
        return out

    def truncate(self, position: int) -> None:
        """Forgets the tokens from ``position`` on in every layer, as after rejected drafts."""
        self._cache.truncate(_options.whole(position, "position"))

    def evict(self, start: int, end: int) -> int:
        """Drops the whole pages within positions ``start`` to ``end`` in every layer; returns how many tokens that were."""
        return self._cache.evict(_options.whole(start, "start"), _options.whole(end, "end"))

    def clear(self) -> None:
        """Forgets everything."""
        self._cache.clear()

    def fork(self) -> Cache:
        """A second cache with the same tokens, which goes its own way and shares the pages."""
        return Cache.__new__(Cache)._own(self._cache.fork())

    def __copy__(self) -> Cache:
        return self.fork()

    def __deepcopy__(self, memo: Any) -> Cache:
        return self.fork()  # what forks share never changes

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache.load, (self.save(),)

    def save(self, path: Union[str, os.PathLike[str], None] = None) -> Optional[bytes]:
        """A snapshot as bytes; or, with a path, into that file: whole or not at all. Its mode stays, links are followed, devices are
        written directly. Pickling a cache takes the same bytes."""
        if path is None:
            return self._cache.save()
        self._cache.save_file(os.fsdecode(path))
        return None

    @staticmethod
    def load(snapshot: Union[Buffer, str, os.PathLike[str]]) -> Cache:
        """The cache of a snapshot: bytes, or a path. Any bytes may come: damaged ones are an error."""
        if isinstance(snapshot, (str, os.PathLike)):
            loaded = _octaplex.Cache.load_file(os.fsdecode(snapshot))
        else:
            loaded = _octaplex.Cache.load(_tensors.buffer(snapshot, "snapshot"))
        return Cache.__new__(Cache)._own(loaded)

    def next_position(self, layer: int = 0) -> int:
        """The position of a layer's next token."""
        return self._cache.next_position(_options.whole(layer, "layer"))

    def stats(self) -> Stats:
        """What the cache holds."""
        return Stats(*self._cache.stats())

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<Cache: {self.layers} layers, {stats.next_position} tokens, {stats.bytes} bytes>"
