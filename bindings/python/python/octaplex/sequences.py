"""Many sequences on a GPU that share one memory: what an engine with its own scheduler builds on.

>>> from octaplex.sequences import Sequences
>>> pool = Sequences(layers=28, kv_heads=4, head_dim=128, capacity=8192, sequences=64)  # doctest: +SKIP
>>> pool.append(layer, 3, keys, values)  # doctest: +SKIP
>>> pool.step(layer, keys, values)  # doctest: +SKIP
>>> pool.attend(layer, queries)  # doctest: +SKIP

Tensors are those of the GPU, PyTorch's or any with ``__cuda_array_interface__``, in float32, float16 or bfloat16. Calls take their place
on the stream of the tensors. ``examples/paged_engine.py`` is an engine on it.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Optional

from . import _gpu, _options
from ._cache import Cache, Stats, settings_of
from ._octaplex import Error
from ._tensors import Tensor

__all__ = ["Sequences"]

_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(Cache).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in ("device", "forks")
}


class Sequences:
    """Sequences 0 to ``sequences - 1`` of a model's layers. Pages lie in one pool a layer, which grows; forks share them."""

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, capacity: int, *, sequences: int, device: Any = "cuda", **options: Any
    ) -> None:
        """Empty sequences of at most ``capacity`` tokens each; options are those of :class:`octaplex.Cache`."""
        if unknown := sorted(options.keys() - _DEFAULTS):
            raise Error(f"{', '.join(unknown)}: no option here: pass {', '.join(_DEFAULTS)}")
        number = _gpu.number_of(device)
        if number is None:
            raise Error('device is "cpu": octaplex.Cache holds a sequence there; pass "cuda", or "cuda:1" and the like')
        sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "capacity": capacity}
        size = tuple(_options.whole(size, what) for what, size in sizes.items())
        self.number, self.layers, self.kv_heads, self.head_dim, self.capacity = number, *size
        self.sequences = _options.whole(sequences, "sequences")
        self._cache = _gpu.made(number, (self.layers, self.kv_heads, self.head_dim, self.capacity), settings_of(**_DEFAULTS | options), self.sequences)

    def append(self, layer: int, sequence: int, keys: Tensor, values: Tensor) -> None:
        """Tokens of one sequence, [kv_heads, tokens, head_dim]: a prompt. They may have gaps between tokens or heads."""
        found, stream, held = _gpu.rows(keys, values, (self.kv_heads, self.head_dim), self.number)
        _gpu.retried(lambda: self._cache.append(layer, sequence, found, stream))
        del held

    def step(self, layer: int, keys: Tensor, values: Tensor, first: int = 0) -> None:
        """One token of each of some sequences, which follow each other from ``first`` on: [sequences, kv_heads, head_dim]. Nothing is
        waited for, so that it can be captured into a CUDA graph, except where :meth:`steps_left` is 0: pages close then. A captured
        step needs a step left at each launch; see :meth:`settle`."""
        seen = [_gpu.ready(tensor, what, self.number) for what, tensor in (("keys", keys), ("values", values))]
        shape = seen[0][0].shape
        if len(shape) != 3 or shape[1:] != (self.kv_heads, self.head_dim) or seen[1][0].shape != shape:
            shapes = f"{list(shape)} and {list(seen[1][0].shape)}"
            raise Error(f"keys and values have the shapes {shapes}: pass [sequences, {self.kv_heads}, {self.head_dim}] of both")
        stream, count = seen[0][0].stream, shape[0]
        if not self._is_captured() and self._cache.steps_left(layer, (first, count)) == 0:
            self.settle(layer, stream)
        rows = seen[0][0].given, seen[1][0].given, count, self.kv_heads * self.head_dim, self.head_dim
        self._cache.append_step(layer, (first, count), rows, stream)

    def attend(
        self,
        layer: int,
        queries: Tensor,
        first: int = 0,
        *,
        scale: Optional[float] = None,
        soft_cap: Optional[float] = None,
        window: Optional[int] = None,
        out: Optional[Tensor] = None,
    ) -> Any:
        """Causal attention of some sequences from ``first`` on: queries [sequences, query_heads, head_dim] at their newest tokens, or
        [sequences, query_heads, queries, head_dim] of which the last is there. The result is float32, or ``out``."""
        found, kept = _gpu.ready(queries, "queries", self.number)
        shape = found.shape
        if len(shape) not in (3, 4) or shape[-1] != self.head_dim:
            raise Error(f"queries has the shape {list(shape)}: pass [sequences, query_heads, {self.head_dim}]")
        out = _gpu.empty_like(shape, queries) if out is None else out
        target = _gpu.view(out, "out", self.number, writable=True)
        if target.shape != shape or not target.contiguous or target.address % 16:
            raise Error(f"out has the shape {list(target.shape)}: pass {list(shape)}, contiguous from a multiple of 16 bytes on")
        options = {
            "queries": shape[2] if len(shape) == 4 else 1,
            "scale": _options.real_or_none(scale, "scale"),
            "soft_cap": _options.real_or_none(soft_cap, "soft_cap"),
            "window": _options.whole_or_none(window, "window"),
            "keep_sinks": False,
            "position": None,
        }
        _gpu.retried(lambda: self._cache.attend(layer, (first, shape[0]), found.given, options, None, None, target.given, found.stream))
        del kept
        return out

    def steps_left(self, first: int = 0, count: Optional[int] = None) -> int:
        """How many tokens each of some sequences takes by :meth:`step` before pages close, in every layer."""
        count = self.sequences - first if count is None else count
        return min(self._cache.steps_left(layer, (first, count)) or 0 for layer in range(self.layers))

    def settle(self, layer: Optional[int] = None, stream: int = 0) -> None:
        """Learns what steps have appended, and closes pages that are full: of a layer, or of all. A step that was refused on the GPU,
        as its token was not finite, is an :class:`Error` here, and its sequence holds the tokens before it."""
        for number in range(self.layers) if layer is None else [layer]:
            _gpu.retried(lambda number=number: self._cache.settle(number, stream))  # type: ignore[misc]

    def reserve(self, tokens: int) -> None:
        """Room for so many tokens of each sequence: memory does not move any more, as captured graphs need it."""
        _gpu.retried(lambda: self._cache.reserve(tokens, self.sequences))

    def fork(self, source: int, target: int) -> None:
        """Makes sequence ``target`` what ``source`` is: they share the pages, and exact tokens are copied."""
        self._cache.fork(source, target)

    def clear(self, sequence: int) -> None:
        """Forgets a sequence; pages that no other has are free."""
        self._cache.clear(sequence)

    def truncate(self, sequence: int, position: int) -> None:
        """Forgets tokens from ``position`` on, in every layer or, where one refuses, in none."""
        self._cache.truncate(sequence, position)

    def next_position(self, sequence: int, layer: int = 0) -> int:
        """The position of a sequence's next token; steps count once they are settled."""
        return self._cache.next_position(layer, sequence)

    def stats(self, sequence: int) -> Stats:
        """What a sequence holds, all layers together."""
        return Stats(*self._cache.stats(sequence))

    @property
    def page_bytes(self) -> int:
        """Bytes that all layers' pages take on the GPU, with those that are free."""
        return self._cache.page_bytes()

    @staticmethod
    def _is_captured() -> bool:
        torch = sys.modules.get("torch")
        return bool(torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
