"""The cache of a model."""

from __future__ import annotations

import inspect
import os
from typing import Any, Literal, NamedTuple, Optional, Protocol, Union

import numpy as np

from . import _gpu, _octaplex, _options, _tensors
from ._octaplex import Error
from ._tensors import Buffer, Tensor


class Stats(NamedTuple):
    """Counts what a cache holds, over all layers. Counts of tokens are those of the layer with the most
    tokens."""

    #: Tokens that attention can see.
    tokens: int
    #: Visible tokens in pages.
    paged_tokens: int
    #: Tokens whose rows are held in f16: sinks, the window, and tokens of closed pages that ``truncate`` may
    #: open again. The latter count in ``paged_tokens`` too.
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


#: Paths are at most this long, and so are files of profiles.
_LONGEST_PATH, _LONGEST_PROFILE = 4096, 1 << 24


def profile_text(profile: Any) -> str:
    """Returns the text of a profile. ``profile`` is this text, or the path of a file that contains it."""
    if isinstance(profile, str) and profile.lstrip().startswith(("octaplex-profile", "#")):
        return profile
    if not isinstance(profile, (str, os.PathLike)):
        raise Error(f"profile is a path or the text of a profile, not {type(profile).__name__}")
    path = os.fspath(profile)
    shown = _options.shown(path)
    if isinstance(path, str) and ("\n" in path or "\0" in path or len(path) > _LONGEST_PATH):
        begins = 'the text of a profile begins with "octaplex-profile"'
        raise Error(f"profile is {shown}, neither a path nor a profile: {begins}")
    # Reading a pipe or a device may never end. For a folder or a missing file `open` raises the error.
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise Error(f"profile is {shown}, which is not a regular file: pass a file from octaplex calibrate")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LONGEST_PROFILE + 1)
    except UnicodeDecodeError:
        raise Error(f"{path!r} is no profile: it is not text in UTF-8") from None
    if len(text) > _LONGEST_PROFILE:
        raise Error(f"{path!r} is no profile: it has more than {_LONGEST_PROFILE} characters")
    return text


def settings_of(
    *,
    keys: Any,
    values: Any,
    bits: Any,
    profile: Any,
    held_layers: Optional[list[int]] = None,
    value_dim: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """Returns the settings as the extension takes them. If not all layers hold keys and values,
    ``held_layers`` has their numbers."""
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


class _Inner(Protocol):
    """The interface that a :class:`Cache` needs of its sequence on a device."""

    @property
    def number(self) -> Optional[int]:
        """Returns the number of the GPU, or None for the CPU."""

    def shape(self) -> tuple[int, int, int, int]: ...
    def specs(self) -> list[tuple[str, str]]: ...
    def page_bits(self) -> float: ...
    def append(self, layer: int, keys: Tensor, values: Tensor) -> None: ...
    def append_chunk(self, blob: Buffer) -> None: ...
    def calibrate(self, layer: int, keys: Tensor, queries: Tensor) -> None: ...
    def attend(self, layer: int, queries: Tensor, out: Optional[Tensor], options: dict[str, Any]) -> Any: ...
    def truncate(self, position: int) -> None: ...
    def evict(self, start: int, end: int) -> int: ...
    def clear(self) -> None: ...
    def fork(self) -> _Inner: ...
    def download(self) -> _octaplex.Cache: ...
    def next_position(self, layer: int) -> int: ...
    def stats(self) -> list[int]: ...


class OnCpu:
    """The inner object of a :class:`Cache` on the CPU."""

    number = None

    def __init__(self, cache: _octaplex.Cache) -> None:
        self.cache = cache
        _, self.kv_heads, self.head_dim, self.value_dim = cache.shape()
        # These calls take no tensors, so they are the extension's own.
        self.shape, self.specs, self.page_bits = cache.shape, cache.specs, cache.page_bits
        self.truncate, self.evict, self.clear = cache.truncate, cache.evict, cache.clear
        self.next_position, self.stats = cache.next_position, cache.stats

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Appends tokens."""
        k = _tensors.shaped(keys, "keys", (self.kv_heads, "tokens", self.head_dim))
        v = _tensors.shaped(values, "values", (self.kv_heads, "tokens", self.value_dim))
        self.cache.append(layer, k, v)

    def append_chunk(self, blob: Buffer) -> None:
        """Appends a chunk's full pages."""
        self.cache.append_chunk(_tensors.buffer(blob, "blob"))

    def calibrate(self, layer: int, keys: Tensor, queries: Tensor) -> None:
        """Decides a layer's balance."""
        found = _tensors.shaped(keys, "keys", (self.kv_heads, "tokens", self.head_dim))
        asked = _tensors.shaped(queries, "queries", ("query_heads", "queries", self.head_dim))
        self.cache.calibrate(layer, found, asked)

    def attend(self, layer: int, queries: Tensor, out: Optional[Tensor], options: dict[str, Any]) -> Any:
        """Returns the output, as a tensor of the library that the queries are from."""
        found, shape = _tensors.floats(queries, "queries")
        options = {**options, "queries": _tensors.queries_in(shape, self.head_dim)}
        shape = (*shape[:-1], self.value_dim)
        if out is None:
            out = _tensors.like(np.empty(shape, np.float32), queries)
        more = ((options[what], what) for what in ("sink_logits", "bias"))
        logits, bias = (None if x is None else _tensors.floats(x, what)[0] for x, what in more)
        target = _tensors.shaped(out, "out", shape, writable=True)
        _tensors.apart(target, queries=found, sink_logits=logits, bias=bias)
        self.cache.attend(layer, found, options, logits, bias, target)
        return out

    def fork(self) -> OnCpu:
        """Creates a cache that shares the pages."""
        return OnCpu(self.cache.fork())

    def download(self) -> _octaplex.Cache:
        """Returns the cache itself."""
        return self.cache


class Cache:
    """Holds the compressed keys and values of one sequence, in all layers of a model. Attention reads the
    compressed bytes.

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
        """Creates an empty cache for ``capacity`` tokens. Values are ``value_dim`` wide, by default as wide
        as keys.

        ``keys`` and ``values`` are specs of codecs. The defaults are ``"graded"`` and ``"trellis"``, which
        take 3.2 bits a value. At widths 32, 80, 96, 112 and 576 the default for keys is ``"trellis"`` too.
        Set ``bits`` instead to choose the most accurate codecs whose pages take at most this many bits a
        value. ``profile`` is a file from ``octaplex calibrate``, or its text: it spends the ``bits`` where
        this model needs them.

        The first ``sink_tokens`` tokens and at least the newest ``recent_window`` tokens stay exact.
        ``truncate`` restores the exact earlier state up to ``max_rollback`` tokens back. A query sees
        ``sliding_window`` positions, by default all. ``center`` chooses the mean to subtract from keys: each
        page's own, that of the first keys (``"prefix"``) or none. ``balance`` divides keys by a per-channel
        scale, so that the errors of all channels count alike. The first ``boundary_layers`` and the last
        ``boundary_layers`` layers stay in f16.

        ``device`` is ``"cpu"``, ``"cuda"``, or a numbered GPU such as ``"cuda:1"``. On a GPU, arguments and
        results are tensors of that GPU, and memory grows with the tokens. ``forks`` is the largest number of
        forks that exist at once; they share the cache's memory. It matters on a GPU only."""
        settings = settings_of(
            keys=keys,
            values=values,
            bits=bits,
            profile=profile,
            page=page,
            sink_tokens=sink_tokens,
            recent_window=recent_window,
            max_rollback=max_rollback,
            sliding_window=sliding_window,
            center=center,
            balance=balance,
            boundary_layers=boundary_layers,
            value_dim=value_dim,
        )
        size = _options.size_of(layers, kv_heads, head_dim, capacity)
        number, forks = _gpu.number_of(device), _options.whole(forks, "forks")
        if number is None:
            self._hold(OnCpu(_octaplex.Cache(*size, settings)))
        else:
            self._hold(_gpu.Sequence.empty(number, size, settings, forks))

    def _hold(self, inner: _Inner) -> None:
        self._inner = inner
        self.layers, self.kv_heads, self.head_dim, self.value_dim = inner.shape()

    @staticmethod
    def _of(inner: _Inner) -> Cache:
        cache = Cache.__new__(Cache)
        cache._hold(inner)
        return cache

    @property
    def device(self) -> str:
        """Returns the device of the cache, such as "cpu" or "cuda:0"."""
        return "cpu" if self._inner.number is None else f"cuda:{self._inner.number}"

    def to(self, device: Any, *, forks: int = 0) -> Cache:
        """Returns a cache with the same tokens on another device. Pages are copied unchanged. A cache that is
        already on the device returns itself."""
        number, forks = _gpu.number_of(device), _options.whole(forks, "forks")
        if number == self._inner.number:
            return self
        cache = self._inner.download()
        return Cache._of(OnCpu(cache) if number is None else _gpu.Sequence.upload(number, cache, forks))

    @property
    def specs(self) -> list[tuple[str, str]]:
        """Returns the specs of each layer's keys and values."""
        return self._inner.specs()

    @property
    def page_bits(self) -> float:
        """Returns the bits a value in pages. ``stats().bits_per_value`` comes down to it as the context
        grows, because the newest tokens are exact."""
        return self._inner.page_bits()

    def append(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Appends tokens to a layer: keys [kv_heads, tokens, head_dim], after the rotary embedding, and
        values [kv_heads, tokens, value_dim].

        Reads the tensors in place. On a GPU they may have gaps between tokens or heads, like views of a
        model's states. After an error the cache is unchanged."""
        self._inner.append(_options.whole(layer, "layer"), keys, values)

    def append_chunk(self, blob: Buffer) -> None:
        """Appends a chunk's full pages without decoding them. Works only on the CPU.

        Layers, codecs, page, centre and balance must agree, and the exact window must be empty. Otherwise it
        raises an error that names the difference: decode the chunk then, and append its rows."""
        self._inner.append_chunk(blob)

    def calibrate(self, layer: int, keys: Tensor, queries: Tensor) -> None:
        """Decides a layer's balance from a prompt's keys [kv_heads, tokens, head_dim] and queries
        [query_heads, queries, head_dim].

        This is better than deciding from keys alone. Call it before you append the prompt. The module
        ``octaplex.calibrate`` is something else: it writes a profile."""
        self._inner.calibrate(_options.whole(layer, "layer"), keys, queries)

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
        """Computes causal attention of queries [query_heads, head_dim], or of a block [query_heads, queries,
        head_dim].

        Returns float32 of the same shape, but ``value_dim`` wide, in ``out`` if you pass it. The result is a
        PyTorch tensor if the queries are one, otherwise a NumPy array. The last query of a block is at the
        newest token, or the first query is at ``position``.

        The logit is ``scale``·q·k; ``scale`` is 1/√head_dim by default. ``soft_cap`` then replaces it by
        ``soft_cap``·tanh(logit/``soft_cap``). ``bias``, [positions] or [query_heads, positions], is added
        last. A query sees ``window`` positions, and with ``keep_sinks`` also the sinks. ``sink_logits``
        [query_heads] take weight and add nothing to the output.

        On a GPU, queries and result are tensors of that GPU, and ``out`` may be float16 or bfloat16. A call
        with one query a head does not wait for the GPU. Queries are not checked: a non-finite query makes the
        output of its own head meaningless."""
        options: dict[str, Any] = {
            "scale": _options.real_or_none(scale, "scale"),
            "soft_cap": _options.real_or_none(soft_cap, "soft_cap"),
            "window": _options.whole_or_none(window, "window"),
            "keep_sinks": _options.flag(keep_sinks, "keep_sinks"),
            "position": _options.whole_or_none(position, "position"),
            "sink_logits": sink_logits,
            "bias": bias,
        }
        return self._inner.attend(_options.whole(layer, "layer"), queries, out, options)

    def truncate(self, position: int) -> None:
        """Removes the tokens from ``position`` on in every layer, for example after rejected drafts."""
        self._inner.truncate(_options.whole(position, "position"))

    def evict(self, start: int, end: int) -> int:
        """Drops the pages that lie entirely in positions ``start`` to ``end`` (excluded), in every layer.
        Returns the number of dropped tokens."""
        return self._inner.evict(_options.whole(start, "start"), _options.whole(end, "end"))

    def clear(self) -> None:
        """Removes all tokens."""
        self._inner.clear()

    def fork(self) -> Cache:
        """Creates a second cache with the same tokens. The two share pages and change independently. On a
        GPU, at most ``forks`` forks exist at once."""
        return Cache._of(self._inner.fork())

    def __copy__(self) -> Cache:
        return self.fork()

    def __deepcopy__(self, memo: Any) -> Cache:
        return self.fork()  # shared pages never change

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache.load, (self.save(),)  # unpickling always creates a cache on the CPU

    def save(self, path: Union[str, os.PathLike[str], None] = None) -> Optional[bytes]:
        """Returns a snapshot as bytes, or writes it to the file at ``path``.

        The file is written whole or not at all. It keeps its mode. Links are followed, and devices are
        written directly. Pickling a cache stores the same bytes."""
        cache = self._inner.download()
        if path is None:
            return cache.save()
        cache.save_file(os.fsdecode(path))
        return None

    @staticmethod
    def load(snapshot: Union[Buffer, str, os.PathLike[str]], *, device: Any = "cpu", forks: int = 0) -> Cache:
        """Creates the cache of a snapshot: bytes, or a path. Untrusted bytes are safe: damaged ones raise an
        error. Snapshots of CPU and GPU are the same."""
        if isinstance(snapshot, (str, os.PathLike)):
            loaded = _octaplex.Cache.load_file(os.fsdecode(snapshot))
        else:
            loaded = _octaplex.Cache.load(_tensors.buffer(snapshot, "snapshot"))
        return Cache._of(OnCpu(loaded)).to(device, forks=forks)

    def next_position(self, layer: int = 0) -> int:
        """Returns the position of a layer's next token."""
        return self._inner.next_position(_options.whole(layer, "layer"))

    def stats(self) -> Stats:
        """Returns counts of what the cache holds."""
        return Stats(*self._inner.stats())

    def __repr__(self) -> str:
        stats = self.stats()
        where = "" if self._inner.number is None else f" on {self.device}"
        bits = f"{stats.bits_per_value:.2f} bits a value, {self.page_bits:.2f} in pages"
        return (
            f"<Cache{where}: {self.layers} layers, {stats.next_position} tokens, {stats.bytes} bytes, {bits}>"
        )


def defaults_without(*names: str) -> dict[str, Any]:
    """Returns the options of :class:`Cache` and their defaults, except its device's and these."""
    options = [x for x in inspect.signature(Cache).parameters.values() if x.kind is x.KEYWORD_ONLY]
    return {each.name: each.default for each in options if each.name not in ("device", "forks", *names)}
