"""Holds many sequences on a GPU in shared memory, for engines with their own scheduler.

>>> from octaplex.sequences import Sequences
>>> pool = Sequences(layers=28, kv_heads=4, head_dim=128, capacity=8192, sequences=64)  # doctest: +SKIP
>>> pool.append(layer, 3, keys, values)  # doctest: +SKIP
>>> pool.step(layer, keys, values)  # doctest: +SKIP
>>> pool.attend(layer, queries)  # doctest: +SKIP

Tensors are on the GPU: PyTorch's, or any with ``__cuda_array_interface__``, in float32, float16 or bfloat16.
Calls run in order on the stream of the tensors. ``examples/paged_engine.py`` is an engine that uses it."""

from __future__ import annotations

import sys
from typing import Any, Optional

from . import _gpu, _options
from ._cache import Stats, defaults_without, settings_of
from ._octaplex import Error
from ._tensors import Tensor

__all__ = ["Sequences"]

_DEFAULTS = defaults_without("value_dim")


class Sequences:
    """Holds sequences 0 to ``sequences - 1`` of a model's layers. Each layer has one pool of pages, which
    grows. Forks share pages."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        sequences: int,
        device: Any = "cuda",
        **options: Any,
    ) -> None:
        """Creates empty sequences of at most ``capacity`` tokens each. The options are those of
        :class:`octaplex.Cache`."""
        if unknown := sorted(options.keys() - _DEFAULTS):
            raise Error(f"{', '.join(unknown)}: no option here: pass {', '.join(_DEFAULTS)}")
        number = _gpu.number_of(device)
        if number is None:
            raise Error(
                'device is "cpu": use octaplex.Cache there, or pass "cuda" or a numbered GPU such as "cuda:1"'
            )
        size = _options.size_of(layers, kv_heads, head_dim, capacity)
        self.layers, self.kv_heads, self.head_dim, self.capacity = size
        self.number = number
        self.sequences = _options.whole(sequences, "sequences")
        self._cache = _gpu.made(number, size, settings_of(**_DEFAULTS | options), self.sequences)

    def append(self, layer: int, sequence: int, keys: Tensor, values: Tensor) -> None:
        """Appends tokens to one sequence, for example a prompt: keys and values [kv_heads, tokens, head_dim].

        They may have gaps between tokens or heads."""
        rows, stream = _gpu.rows(keys, values, (self.kv_heads, self.head_dim), self.number)
        _gpu.retried(lambda: self._cache.append(layer, sequence, rows, stream))

    def step(self, layer: int, keys: Tensor, values: Tensor, first: int = 0) -> None:
        """Appends one token to each of consecutive sequences from ``first`` on: keys and values [sequences,
        kv_heads, head_dim].

        The call does not wait for the GPU, so a CUDA graph can capture it. It waits only if
        :meth:`steps_left` is 0, because then pages close. Each launch of a captured step needs a step left;
        see :meth:`settle`."""
        k, v = _gpu.ready(keys, "keys", self.number), _gpu.ready(values, "values", self.number)
        if len(k.shape) != 3 or k.shape[1:] != (self.kv_heads, self.head_dim) or v.shape != k.shape:
            shapes, wanted = f"{list(k.shape)} and {list(v.shape)}", f"{self.kv_heads}, {self.head_dim}"
            raise Error(f"keys and values have the shapes {shapes}: pass [sequences, {wanted}] of both")
        sequences = (first, k.shape[0])
        if not self._is_captured() and self._cache.steps_left(layer, sequences) == 0:
            self.settle(layer, k.stream)
        rows = _gpu.Rows.of(k.memory, v.memory, k.shape, k.strides, tokens=0, heads=1)
        self._cache.append_step(layer, sequences, rows, k.stream)

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
        """Computes causal attention of consecutive sequences from ``first`` on.

        Queries are [sequences, query_heads, head_dim], at the newest token of each sequence. They may also be
        [sequences, query_heads, queries, head_dim], where the last query is at the newest token. Returns
        float32, or ``out``."""
        found = _gpu.ready(queries, "queries", self.number)
        shape = found.shape
        if len(shape) not in (3, 4) or shape[-1] != self.head_dim:
            raise Error(
                f"queries has the shape {list(shape)}: pass [sequences, query_heads, {self.head_dim}]"
            )
        out = _gpu.empty_like(shape, queries) if out is None else out
        target = _gpu.view(out, "out", self.number, writable=True)
        if target.shape != shape or not target.contiguous or target.memory.address % 16:
            wanted = f"{list(shape)}, contiguous and starting at a multiple of 16 bytes"
            raise Error(f"out has the shape {list(target.shape)}: pass {wanted}")
        options = {
            "queries": shape[2] if len(shape) == 4 else 1,
            "scale": _options.real_or_none(scale, "scale"),
            "soft_cap": _options.real_or_none(soft_cap, "soft_cap"),
            "window": _options.whole_or_none(window, "window"),
            "keep_sinks": False,
            "position": None,
        }
        at, queried, written, stream = (first, shape[0]), found.memory, target.memory, found.stream
        attend = self._cache.attend
        _gpu.retried(lambda: attend(layer, at, queried, options, None, None, written, stream))
        return out

    def steps_left(self, first: int = 0, count: Optional[int] = None) -> int:
        """Returns how many calls of :meth:`step` these sequences can take before a page closes in any
        layer."""
        count = self.sequences - first if count is None else count
        return min(self._cache.steps_left(layer, (first, count)) or 0 for layer in range(self.layers))

    def settle(self, layer: Optional[int] = None, stream: int = 0) -> None:
        """Reads from the GPU how many tokens the steps have appended, and closes full pages, of one layer or
        of all.

        Raises an :class:`Error` if a step had a token that was not finite. The sequence then holds the tokens
        before it."""
        for number in range(self.layers) if layer is None else [layer]:
            _gpu.retried(lambda number=number: self._cache.settle(number, stream))  # type: ignore[misc]

    def reserve(self, tokens: int) -> None:
        """Allocates memory for ``tokens`` tokens of each sequence. After that memory does not move, as
        captured graphs require."""
        _gpu.retried(lambda: self._cache.reserve(tokens, self.sequences))

    def fork(self, source: int, target: int) -> None:
        """Replaces sequence ``target`` with a fork of ``source``. They share pages, and exact tokens are
        copied."""
        self._cache.fork(source, target)

    def clear(self, sequence: int) -> None:
        """Removes all tokens of a sequence, and frees pages that no other sequence shares."""
        self._cache.clear(sequence)

    def truncate(self, sequence: int, position: int) -> None:
        """Removes tokens from ``position`` on in every layer. After an error no layer has changed."""
        self._cache.truncate(sequence, position)

    def next_position(self, sequence: int, layer: int = 0) -> int:
        """Returns the position of a sequence's next token. Steps count after :meth:`settle`."""
        return self._cache.next_position(layer, sequence)

    def stats(self, sequence: int) -> Stats:
        """Returns counts of what a sequence holds, over all layers."""
        return Stats(*self._cache.stats(sequence))

    @property
    def page_bytes(self) -> int:
        """Returns the bytes of all layers' pages on the GPU, including free pages."""
        return self._cache.page_bytes()

    @staticmethod
    def _is_captured() -> bool:
        torch = sys.modules.get("torch")
        return bool(
            torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        )
