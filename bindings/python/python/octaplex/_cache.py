"""The cache of a model."""

from __future__ import annotations

import os
from typing import Any, Literal, NamedTuple, Optional, Union

import numpy as np

from . import _gpu, _octaplex, _options, _tensors
from ._octaplex import Error
from ._tensors import Buffer, Tensor


class Stats(NamedTuple):
    """Counts what a cache holds, over all layers. Counts of tokens are those of the layer with the most tokens."""

    #: Tokens that attention can see.
    tokens: int
    #: Visible tokens in pages.
    paged_tokens: int
    #: Tokens whose rows are held in f16: sinks, the window, and tokens of closed pages that ``truncate`` may open again.
    #: The latter count in ``paged_tokens`` too.
    exact_tokens: int
    #: The position of the next token.
    next_position: int
    #: Tokens dropped by eviction or by a sliding window.
    evicted_tokens: int
    #: Tokens that ``truncate`` decoded back into the window.
    decoded_tokens: int
    #: Bytes in use: f16 rows, pages with their centres and headers, and the balance.
    bytes: int
    #: Bytes of pages.
    paged_bytes: int
    #: Bytes of pages that another fork also holds.
    shared_bytes: int
    #: Number of values that these bytes encode.
    values: int
    #: Heads whose keys are balanced. 0 until the first page closes or ``calibrate`` is called.
    balanced_heads: int

    @property
    def bits_per_value(self) -> float:
        """Returns all bits in use divided by the number of values. Shared pages count in full."""
        return 8 * self.bytes / max(self.values, 1)


#: Profiles take kilobytes.
_MOST_PROFILE = 1 << 24


def profile_text(profile: Any) -> str:
    """A profile's text: itself, or that of the file at a path."""
    if isinstance(profile, str) and profile.lstrip().startswith(("octaplex-profile", "#")):
        return profile
    if not isinstance(profile, (str, os.PathLike)):
        raise Error(f"profile is a path or the text of a profile, not {type(profile).__name__}")
    path = os.fspath(profile)
    shown = _options.shown(path)
    if isinstance(path, str) and ("\n" in path or "\0" in path or len(path) > 4096):
        raise Error(f"profile is {shown}, neither a path nor a profile: the text of a profile begins with \"octaplex-profile\"")
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):  # a pipe or a device may never end
        raise Error(f"profile is {shown}, which is not a regular file: pass a file from octaplex calibrate")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_PROFILE + 1)
    except UnicodeDecodeError:
        raise Error(f"{path!r} is no profile: it is not text in UTF-8") from None
    if len(text) > _MOST_PROFILE:
        raise Error(f"{path!r} is no profile: it has more than {_MOST_PROFILE} characters")
    return text


def settings_of(
    *, keys: Any, values: Any, bits: Any, profile: Any = None, held_layers: Optional[list[int]] = None, value_dim: Any = None, **more: Any
) -> dict[str, Any]:
    """Returns the settings as the extension takes them. If not all layers hold keys and values, ``held_layers`` has their numbers."""
    if bits is not None and (keys is not None or values is not None):
        raise Error("bits chooses the codecs itself: pass either bits, or keys and values")
    if profile is not None and bits is None:
        raise Error("a profile spends bits: pass bits as well")
    return {
        "keys": _options.text_or_none(keys, "keys"),
        "values": _options.text_or_none(values, "values"),
        "bits": _options.real_or_none(bits, "bits"),
        "profile": None if profile is None else profile_text(profile),
        "held_layers": held_layers,
        "value_dim": _options.whole_or_none(value_dim, "value_dim"),
        "page": _options.whole(more["page"], "page"),
        "sink_tokens": _options.whole(more["sink_tokens"], "sink_tokens"),
        "recent_window": _options.whole(more["recent_window"], "recent_window"),
        "max_rollback": _options.whole(more["max_rollback"], "max_rollback"),
        "sliding_window": _options.whole_or_none(more["sliding_window"], "sliding_window"),
        "center": _options.text(more["center"], "center"),
        "balance": _options.flag(more["balance"], "balance"),
        "boundary_layers": _options.whole(more["boundary_layers"], "boundary_layers"),
    }


class Cache:
    """Holds the compressed keys and values of one sequence, in all layers of a model. Attention reads the compressed bytes.

    For a batch, create one cache for each sequence. :meth:`fork` shares the pages of a common prompt.
    Threads may share a cache: reads run at once, changes one after the other.

    >>> import numpy, octaplex
    >>> cache = octaplex.Cache(layers=2, kv_heads=8, head_dim=128, capacity=4096)
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
        value_dim: Optional[int] = None,
        keys: Optional[str] = None,
        values: Optional[str] = None,
        bits: Optional[float] = None,
        profile: Union[str, os.PathLike[str], None] = None,
        page: Literal[64, 128, 256] = 64,
        sink_tokens: int = 4,
        recent_window: int = 64,
        max_rollback: int = 64,
        sliding_window: Optional[int] = None,
        center: Literal["off", "prefix", "page"] = "page",
        balance: bool = True,
        boundary_layers: int = 0,
        device: Any = "cpu",
        forks: int = 0,
    ) -> None:
        """Creates an empty cache for ``capacity`` tokens. Values are ``value_dim`` wide, by default as wide as keys.

        ``keys`` and ``values`` are specs of codecs. The defaults are ``"graded"`` and ``"trellis"``, which take 3.2 bits a
        value. At widths 32, 80, 96, 112 and 576 the default for keys is ``"trellis"`` too. Set ``bits`` instead to choose the
        most accurate codecs whose pages take at most this many bits a value. ``profile`` is a file from ``octaplex calibrate``,
        or its text: it spends the ``bits`` where this model needs them.

        The first ``sink_tokens`` tokens and at least the newest ``recent_window`` tokens stay exact. ``truncate`` restores the
        exact earlier state up to ``max_rollback`` tokens back. A query sees ``sliding_window`` positions, by default all.
        ``center`` chooses the mean to subtract from keys: each page's own, that of the first keys (``"prefix"``) or none.
        ``balance`` divides keys by a per-channel scale, so that the errors of all channels count alike. The first
        ``boundary_layers`` and the last ``boundary_layers`` layers stay in f16.

        ``device`` is ``"cpu"``, ``"cuda"``, or a numbered GPU such as ``"cuda:1"``. On a GPU, arguments and results are
        tensors of that GPU, and memory grows with the tokens. ``forks`` is the largest number of forks that exist at once; they
        share the cache's memory. It matters on a GPU only."""
        settings = settings_of(
            keys=keys, values=values, bits=bits, profile=profile, page=page, sink_tokens=sink_tokens, recent_window=recent_window, max_rollback=max_rollback,
            sliding_window=sliding_window, center=center, balance=balance, boundary_layers=boundary_layers,
            value_dim=value_dim,
        )
        sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "capacity": capacity}
        layers, kv_heads, head_dim, capacity = (_options.whole(size, what) for what, size in sizes.items())
        number, forks = _gpu.number_of(device), _options.whole(forks, "forks")
        if number is None:
            self._own(_octaplex.Cache(layers, kv_heads, head_dim, capacity, settings))
        else:
            self._own(_gpu.Sequence.empty(number, (layers, kv_heads, head_dim, capacity), settings, forks))

    def _own(self, cache: Union[_octaplex.Cache, _gpu.Sequence]) -> Cache:
        self._gpu = cache if isinstance(cache, _gpu.Sequence) else None
        self._any = cache
        if isinstance(cache, _gpu.Sequence):
            self.layers, self.kv_heads, self.head_dim = cache.layers, cache.kv_heads, cache.head_dim
            self.value_dim = self.head_dim  # a GPU has no other
        else:
            self._cache = cache
            self.layers, self.kv_heads, self.head_dim, self.value_dim = cache.shape()
        return self

    @property
    def device(self) -> str:
        """Returns the device of the cache, such as "cpu" or "cuda:0"."""
        return "cpu" if self._gpu is None else f"cuda:{self._gpu.pool.number}"

    def to(self, device: Any, *, forks: int = 0) -> Cache:
        """Returns a cache with the same tokens on another device. Pages are copied unchanged. A cache that is already on the
        device returns itself."""
        number, forks = _gpu.number_of(device), _options.whole(forks, "forks")
        if number == (None if self._gpu is None else self._gpu.pool.number):
            return self
        cache = self._cache if self._gpu is None else self._gpu.download()
        if number is not None:
            _gpu.find_compiler()
            made = _gpu.retried(lambda: _octaplex.DeviceCache.like(number, cache, 1 + forks))
            return Cache.__new__(Cache)._own(_gpu.Sequence(_gpu.Pool(made, number, 1 + forks)).upload(cache))
        return Cache.__new__(Cache)._own(cache)

    @property
    def specs(self) -> list[tuple[str, str]]:
        """Returns the specs of each layer's keys and values."""
        return self._any.specs()

    @property
    def page_bits(self) -> float:
        """Returns the bits a value in pages. ``stats().bits_per_value`` comes down to it as the context grows, because the newest tokens
        are exact."""
        return self._any.page_bits()

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Appends tokens to a layer: keys [kv_heads, tokens, head_dim], after the rotary embedding, and values
        [kv_heads, tokens, value_dim].

        Reads the tensors in place. On a GPU they may have gaps between tokens or heads, like views of a model's states. After
        an error the cache is unchanged."""
        if self._gpu is not None:
            return self._gpu.append(_options.whole(layer, "layer"), keys, values)
        layer = _options.whole(layer, "layer")
        both = (keys, "keys", self.head_dim), (values, "values", self.value_dim)
        return self._cache.append(layer, *(_tensors.shaped(x, what, (self.kv_heads, "tokens", dim)) for x, what, dim in both))

    def append_chunk(self, blob: Buffer) -> None:
        """Appends a chunk's full pages without decoding them. Works only on the CPU.

        Layers, codecs, page, centre and balance must agree, and the exact window must be empty. Otherwise it raises an error
        that names the difference: decode the chunk then, and append its rows."""
        if self._gpu is not None:
            raise Error("chunks are appended on the CPU: create the cache there, append, and call to(\"cuda\")")
        self._cache.append_chunk(_tensors.buffer(blob, "blob"))

    def calibrate(self, layer: int, keys: Tensor, queries: Tensor) -> None:
        """Decides a layer's balance from a prompt's keys [kv_heads, tokens, head_dim] and queries [query_heads, queries, head_dim].

        This is better than deciding from keys alone. Call it before you append the prompt. The module ``octaplex.calibrate`` is
        something else: it writes a profile."""
        if self._gpu is not None:
            return self._gpu.calibrate(_options.whole(layer, "layer"), keys, queries)
        found = _tensors.shaped(keys, "keys", (self.kv_heads, "tokens", self.head_dim))
        layer = _options.whole(layer, "layer")
        return self._cache.calibrate(layer, found, _tensors.shaped(queries, "queries", ("query_heads", "queries", self.head_dim)))

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
        """Computes causal attention of queries [query_heads, head_dim], or of a block [query_heads, queries, head_dim].

        Returns float32 of the same shape, but ``value_dim`` wide, in ``out`` if you pass it. The result is a PyTorch tensor if
        the queries are one, otherwise a NumPy array. The last query of a block is at the newest token, or the first query is at ``position``.

        The logit is ``scale``·q·k; ``scale`` is 1/√head_dim by default. ``soft_cap`` then replaces it by
        ``soft_cap``·tanh(logit/``soft_cap``). ``bias``, [positions] or [query_heads, positions], is added last. A query sees
        ``window`` positions, and with ``keep_sinks`` also the sinks. ``sink_logits`` [query_heads] take weight and add nothing
        to the output.

        On a GPU, queries and result are tensors of that GPU, and ``out`` may be float16 or bfloat16. A call with one query a
        head does not wait for the GPU. Queries are not checked: a non-finite query makes the output of its own head
        meaningless."""
        options: dict[str, Any] = {
            "scale": _options.real_or_none(scale, "scale"),
            "soft_cap": _options.real_or_none(soft_cap, "soft_cap"),
            "window": _options.whole_or_none(window, "window"),
            "keep_sinks": _options.flag(keep_sinks, "keep_sinks"),
            "position": _options.whole_or_none(position, "position"),
        }
        if self._gpu is not None:
            return self._gpu.attend(_options.whole(layer, "layer"), queries, options, sink_logits, bias, out)
        found, shape = _tensors.floats(queries, "queries")
        if len(shape) not in (2, 3) or shape[-1] != self.head_dim:
            raise Error(f"queries has the shape {list(shape)}: pass [query_heads, {self.head_dim}] or [query_heads, queries, {self.head_dim}]")
        layer = _options.whole(layer, "layer")
        options["queries"] = shape[1] if len(shape) == 3 else 1
        shape = (*shape[:-1], self.value_dim)
        if out is None:
            out = _tensors.like(np.empty(shape, np.float32), queries)
        more = [None if x is None else _tensors.floats(x, what)[0] for x, what in ((sink_logits, "sink_logits"), (bias, "bias"))]
        target = _tensors.shaped(out, "out", shape, writable=True)
        _tensors.apart(target, queries=found, sink_logits=more[0], bias=more[1])
        self._cache.attend(layer, found, options, more[0], more[1], target)
        return out

    def truncate(self, position: int) -> None:
        """Removes the tokens from ``position`` on in every layer, for example after rejected drafts."""
        self._any.truncate(_options.whole(position, "position"))

    def evict(self, start: int, end: int) -> int:
        """Drops the pages that lie entirely in positions ``start`` to ``end`` (excluded), in every layer. Returns the number of
        dropped tokens."""
        return self._any.evict(_options.whole(start, "start"), _options.whole(end, "end"))

    def clear(self) -> None:
        """Removes all tokens."""
        self._any.clear()

    def fork(self) -> Cache:
        """Creates a second cache with the same tokens. The two share pages and change independently. On a GPU, at most ``forks``
        forks exist at once."""
        return Cache.__new__(Cache)._own(self._any.fork())

    def __copy__(self) -> Cache:
        return self.fork()

    def __deepcopy__(self, memo: Any) -> Cache:
        return self.fork()  # shared pages never change

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache.load, (self.save(),)  # unpickling always creates a cache on the CPU

    def save(self, path: Union[str, os.PathLike[str], None] = None) -> Optional[bytes]:
        """Returns a snapshot as bytes, or writes it to the file at ``path``.

        The file is written whole or not at all. It keeps its mode. Links are followed, and devices are written directly.
        Pickling a cache stores the same bytes."""
        cache = self._cache if self._gpu is None else self._gpu.download()
        if path is None:
            return cache.save()
        cache.save_file(os.fsdecode(path))
        return None

    @staticmethod
    def load(snapshot: Union[Buffer, str, os.PathLike[str]], *, device: Any = "cpu", forks: int = 0) -> Cache:
        """Creates the cache of a snapshot: bytes, or a path. Untrusted bytes are safe: damaged ones raise an error. Snapshots of
        CPU and GPU are the same."""
        if isinstance(snapshot, (str, os.PathLike)):
            loaded = _octaplex.Cache.load_file(os.fsdecode(snapshot))
        else:
            loaded = _octaplex.Cache.load(_tensors.buffer(snapshot, "snapshot"))
        return Cache.__new__(Cache)._own(loaded).to(device, forks=forks)

    def next_position(self, layer: int = 0) -> int:
        """Returns the position of a layer's next token."""
        return self._any.next_position(_options.whole(layer, "layer"))

    def stats(self) -> Stats:
        """Returns counts of what the cache holds."""
        return Stats(*self._any.stats())

    def __repr__(self) -> str:
        stats = self.stats()
        where = "" if self._gpu is None else f" on {self.device}"
        bits = f"{stats.bits_per_value:.2f} bits a value, {self.page_bits:.2f} in pages"
        return f"<Cache{where}: {self.layers} layers, {stats.next_position} tokens, {stats.bytes} bytes, {bits}>"
