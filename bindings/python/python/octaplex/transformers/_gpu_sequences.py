"""The sequences of one layer on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Optional

import torch

from .. import _gpu, _octaplex
from .._cache import Stats
from .._octaplex import Error
from ._sequences import Asked, calibration_rows

#: Tokens of a prompt that a GPU appends and attends to at once. Queries read the tokens as they are stored:
#: pages that close within the block are already compressed.
BLOCK = 2048
#: The number of steps left is unknown.
_UNKNOWN = -1


def is_captured(states: torch.Tensor) -> bool:
    """Returns whether a CUDA graph is captured on the GPU of these states."""
    return bool(states.is_cuda and torch.cuda.is_current_stream_capturing())


class GpuSequences:
    """One layer's sequences of a batch on a GPU. One call attends for all of them."""

    def __init__(
        self, number: int, size: _gpu.Size, settings: dict[str, Any], layer: int, batch: int
    ) -> None:
        self.number, self.layer, self.batch = number, layer, batch
        self.size, self.settings = size, settings
        self.cache = self._made(batch)
        self.sink_logits: tuple[Any, Any] = (None, None)
        #: Tokens of each sequence that the GPU has counted since the last `settle`, and the number of steps
        #: left, if known.
        self.pending, self.left = 0, _UNKNOWN

    def _made(self, count: int) -> _octaplex.DeviceCache:
        """Creates an empty cache of ``count`` sequences, and a spare one for `pick`."""
        return _gpu.made(self.number, self.size, self.settings, count + 1, self.layer)

    def __deepcopy__(self, memo: Any) -> GpuSequences:
        self.settle()
        copy = GpuSequences.__new__(GpuSequences)
        copy.__dict__.update(self.__dict__)
        copy.cache = self._moved(list(range(self.batch)))
        return copy

    def _moved(self, indices: list[int]) -> _octaplex.DeviceCache:
        """Creates a cache of these sequences. Each goes through the host once, and a repeated one shares its
        pages."""
        cache = self._made(len(indices))
        for number, index in enumerate(indices):
            if index in indices[:number]:
                cache.fork(indices.index(index), number)
            else:
                held = self.cache.download(index)
                _gpu.retried(functools.partial(cache.upload, number, held))
        return cache

    def pick(self, indices: list[int]) -> None:
        """Selects sequences by number. A repeated number becomes a fork, which shares the pages."""
        self.settle()
        if len(indices) < self.cache.sequences():
            self.cache.pick(indices)
            for number in range(len(indices), self.batch):
                self.cache.clear(number)
        else:
            self.cache = self._moved(indices)
        self.batch = len(indices)

    def next_position(self, number: int, layer: int) -> int:
        """Returns a sequence's next position in this layer."""
        return self.cache.next_position(0, number) + self.pending

    def ends(self) -> list[int]:
        """Returns each sequence's next position."""
        return [self.next_position(number, self.layer) for number in range(self.batch)]

    def truncate(self, number: int, position: int) -> None:
        """Removes a sequence's tokens from ``position`` on."""
        self.settle()
        self.cache.truncate(number, position)

    def check_truncate(self, number: int, position: int) -> None:
        """Raises an error if `truncate` would."""
        self.settle()
        self.cache.check_truncate(number, position)

    def stats(self) -> list[Stats]:
        """Returns the counts of each sequence."""
        self.settle()
        return [Stats(*self.cache.stats(number)) for number in range(self.batch)]

    def settle(self) -> None:
        """Reads the GPU's count of tokens, and closes full pages."""
        self.left = _UNKNOWN
        if self.pending:
            self.pending = 0
            _gpu.retried(lambda: self.cache.settle(0, self._stream()))

    def reserve(self, capacity: int) -> None:
        """Allocates memory for ``capacity`` tokens of each sequence. After that memory does not move."""
        _gpu.retried(lambda: self.cache.reserve(capacity, self.batch))

    def ready(self) -> None:
        """Closes full pages, so that a step is left for a graph."""
        if self.left <= 0:
            self.settle()
            self.left = self.cache.steps_left(0, (0, self.batch)) or 0
        if self.left == 0:
            advice = "use a larger capacity, or a longer prompt"
            raise Error(f"the cache is full, or has fewer tokens than its sinks: {advice}")

    def count(self) -> None:
        """Counts a token that the GPU has appended to each sequence."""
        self.pending += 1
        self.left -= 1

    def append_attend(self, keys: torch.Tensor, values: torch.Tensor, asked: Asked) -> torch.Tensor:
        """Appends and attends: a step of all sequences, or blocks."""
        _, queries, starts, options = asked
        tokens, stream, captured = keys.shape[2], self._stream(), is_captured(keys)
        if tokens == 1 and (captured or not any(starts)) and self._step(keys, values, stream, captured):
            return self._attend(0, queries, options, stream)
        if captured:
            advice = "use octaplex.transformers.DecodeGraph"
            raise Error(f"a graph can capture only single tokens, before a page closes: {advice}")
        for number, start in enumerate(starts):
            if start < tokens:
                self._calibrate(number, keys[number, :, start:], queries[number, :, start:])
        if any(starts):
            out = torch.zeros_like(queries)
            for number, block in _blocks(starts, tokens):
                self._append(number, keys[number, :, block], values[number, :, block], stream)
                part = queries[number : number + 1, :, block]
                out[number, :, block] = self._attend(number, part, options, stream)[0]
            return out
        parts = []
        for _, block in _blocks([0], max(tokens, 1)):
            for number in range(len(keys)):
                self._append(number, keys[number, :, block], values[number, :, block], stream)
            parts.append(self._attend(0, queries[:, :, block], options, stream))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    def attend_again(self, asked: Asked) -> torch.Tensor:
        """Attends: one call for a step, or blocks."""
        layer, queries, starts, options = asked
        tokens, stream = queries.shape[2], self._stream()
        if tokens == 1 and (is_captured(queries) or not any(starts)):
            return self._attend(0, queries, options, stream)
        out = torch.zeros_like(queries)
        for number, block in _blocks(starts, tokens):
            position = self.next_position(number, layer) - tokens + block.start
            part = queries[number : number + 1, :, block]
            out[number, :, block] = self._attend(number, part, options, stream, position)[0]
        return out

    def _stream(self) -> int:
        """Returns PyTorch's current stream of this GPU."""
        return int(torch.cuda.current_stream(self.number).cuda_stream) if torch.cuda.is_available() else 0

    def _calibrate(self, number: int, keys: torch.Tensor, queries: torch.Tensor) -> None:
        """Decides the balance, if the first page closes within this prompt."""
        rows = calibration_rows(self.settings, keys, queries)
        if rows is not None and self.next_position(number, self.layer) == 0:
            self.cache.calibrate(0, number, _gpu.host(rows[0], "keys"), _gpu.host(rows[1], "queries"))

    def _step(self, keys: torch.Tensor, values: torch.Tensor, stream: int, captured: bool) -> bool:
        """Appends a token to each sequence [sequences, kv_heads, 1, head_dim] without waiting. Returns False
        if that is impossible."""
        if self.left == _UNKNOWN or self.left == 0:
            if self.left == 0 and not captured:
                self.settle()
            left = self.cache.steps_left(0, (0, self.batch))
            self.left = left or _UNKNOWN
            if not left:
                return False
        self.cache.append_step(
            0, (0, self.batch), _gpu.rows_of_torch(keys, values, tokens=0, heads=1), stream
        )
        if not captured:
            self.count()
        return True

    def _append(self, number: int, keys: torch.Tensor, values: torch.Tensor, stream: int) -> None:
        """Appends tokens [kv_heads, tokens, head_dim] to a sequence. Reads them in place."""
        self.settle()
        rows = _gpu.rows_of_torch(keys, values, tokens=1, heads=0)
        _gpu.retried(lambda: self.cache.append(0, number, rows, stream))

    def _attend(
        self,
        first: int,
        queries: torch.Tensor,
        options: dict[str, Any],
        stream: int,
        position: Optional[int] = None,
    ) -> torch.Tensor:
        """Attends to sequences from ``first`` on, with queries [sequences, heads, tokens, head_dim].

        The queries are at the newest tokens, or from ``position`` on."""
        queries = queries.contiguous()
        if queries.data_ptr() % 16:
            queries = queries.clone()
        out = torch.empty_like(queries)
        sequences, count = (first, len(queries)), queries.numel()
        given, target = _gpu.of_torch(queries, count), _gpu.of_torch(out, count)
        asked = {**options, "queries": queries.shape[2], "keep_sinks": False, "position": position}
        logits = self._logits(options.get("sink_logits"))
        if logits is not None or queries.shape[2] > 1:
            self.settle()  # the call waits for the GPU and reads its count, so this count must follow
        _gpu.retried(lambda: self.cache.attend(0, sequences, given, asked, logits, None, target, stream))
        return out

    def _logits(self, logits: Optional[torch.Tensor]) -> Any:
        """Returns sink logits on the host. They are parameters of the model, so they are copied once."""
        if logits is None:
            return None
        seen = (logits.data_ptr(), logits._version, logits.shape)
        if self.sink_logits[0] != seen:
            self.sink_logits = (seen, _gpu.host(logits, "sink_logits"))
        return self.sink_logits[1]


def _blocks(starts: list[int], tokens: int) -> Iterator[tuple[int, slice]]:
    """Returns the blocks of each sequence: its number, and the block's tokens."""
    for number, first in enumerate(starts):
        for start in range(first, tokens, BLOCK):
            yield number, slice(start, start + BLOCK)
