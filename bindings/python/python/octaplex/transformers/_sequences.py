"""The sequences of a batch: what a layer needs of them, and those on the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Protocol

import torch

from .._cache import Cache, Stats

#: First tokens of a prompt that decide the balance, as in ``octaplex generate``.
_CALIBRATION = 256


class Asked(NamedTuple):
    """Queries of a layer [batch, heads, tokens, head_dim], at its newest tokens."""

    layer: int
    queries: torch.Tensor
    #: The first token of each sequence. The tokens before it are padding: caches do not hold them, and their
    #: outputs are zeros.
    starts: list[int]
    #: Options of attention: ``scale``, ``soft_cap``, ``window`` and ``sink_logits``.
    options: dict[str, Any]


class Sequences(Protocol):
    """The sequences of a batch on one device, of one layer or of several."""

    @property
    def batch(self) -> int:
        """Returns the number of sequences."""

    def next_position(self, number: int, layer: int) -> int:
        """Returns a sequence's next position in a layer."""

    def ends(self) -> list[int]:
        """Returns each sequence's next position in the first of these layers."""

    def append_attend(self, keys: torch.Tensor, values: torch.Tensor, asked: Asked) -> torch.Tensor:
        """Appends new states and attends with their queries. Outputs have the queries' shape and type."""

    def attend_again(self, asked: Asked) -> torch.Tensor:
        """Attends with queries of tokens that are in the cache already."""

    def check_truncate(self, number: int, position: int) -> None:
        """Raises an error if `truncate` would, where that can be known."""

    def truncate(self, number: int, position: int) -> None:
        """Removes a sequence's tokens from ``position`` on."""

    def pick(self, indices: list[int]) -> None:
        """Selects sequences by number. A repeated number becomes a fork, which shares the pages."""

    def stats(self) -> list[Stats]:
        """Returns the counts of each sequence."""


def calibration_rows(
    settings: dict[str, Any], keys: torch.Tensor, queries: torch.Tensor
) -> Optional[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the rows of a prompt that decide the balance, or None if no page closes within the prompt."""
    closes = keys.shape[1] >= settings["sink_tokens"] + settings["recent_window"] + settings["page"]
    return (keys[:, :_CALIBRATION], queries[:, :_CALIBRATION]) if settings["balance"] and closes else None


class CpuSequences:
    """Sequences on the CPU, for all layers of one shape. Each has all layers of the model, because layer
    numbers decide rotations and boundary layers."""

    def __init__(self, caches: list[Cache], first: int, settings: dict[str, Any]) -> None:
        self.caches, self.first, self.settings = caches, first, settings

    @property
    def batch(self) -> int:
        """Returns the number of sequences."""
        return len(self.caches)

    def __deepcopy__(self, memo: Any) -> CpuSequences:
        return CpuSequences([cache.fork() for cache in self.caches], self.first, self.settings)

    def next_position(self, number: int, layer: int) -> int:
        """Returns a sequence's next position in a layer."""
        return self.caches[number].next_position(layer)

    def ends(self) -> list[int]:
        """Returns each sequence's next position in the first layer."""
        return [cache.next_position(self.first) for cache in self.caches]

    def append_attend(self, keys: torch.Tensor, values: torch.Tensor, asked: Asked) -> torch.Tensor:
        """Appends and attends, one sequence after the other."""
        layer, queries, starts, options = asked
        out = _zeros(queries)
        for cache, found, start, *states in zip(self.caches, out, starts, keys, values, queries):
            if start < keys.shape[2]:
                k, v, q = (each[:, start:] for each in states)
                found[:, start:] = self._append_attend(cache, layer, k, v, q, options)
        return out

    def _append_attend(
        self,
        cache: Cache,
        layer: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        queries: torch.Tensor,
        options: dict[str, Any],
    ) -> torch.Tensor:
        rows = calibration_rows(self.settings, keys, queries)
        if rows is not None and cache.next_position(layer) == 0:
            if cache.specs[layer][0] not in ("f16", "bf16", "f32"):
                cache.calibrate(layer, *(x.contiguous() for x in rows))
        outputs, done, tokens = [], 0, keys.shape[1]
        while done < tokens:
            start = cache.next_position(layer)
            block = slice(done, min(done + self._block_end(start) - start, tokens))
            cache.append(layer, keys[:, block].contiguous(), values[:, block].contiguous())
            outputs.append(_attended(cache, layer, queries[:, block], options))
            done = block.stop
        return torch.cat(outputs, 1)

    def _block_end(self, start: int) -> int:
        """Returns the end of the block that starts with token ``start``. A block reaches from one closing
        page to the next. So every query sees the pages that it would see with tokens appended one by one."""
        sinks, recent, page = (self.settings[name] for name in ("sink_tokens", "recent_window", "page"))
        first = sinks + recent + page - 1
        end = first if start < first else _next_page(start, first, page)
        held = self.settings["sliding_window"]
        if held is None:
            return end
        # A sliding layer drops a page that its newest query no longer sees. The first query of the block must
        # not see it either.
        seen = max(start + 1 - held, sinks)
        return int(min(end, _next_page(seen, sinks, page) + held - 1))

    def attend_again(self, asked: Asked) -> torch.Tensor:
        """Attends, one sequence after the other."""
        out = _zeros(asked.queries)
        for cache, found, start, queries in zip(self.caches, out, asked.starts, asked.queries):
            if start < queries.shape[1]:
                found[:, start:] = _attended(cache, asked.layer, queries[:, start:], asked.options)
        return out

    def check_truncate(self, number: int, position: int) -> None:
        """Does nothing: only `truncate` itself checks."""

    def truncate(self, number: int, position: int) -> None:
        """Removes a sequence's tokens from ``position`` on."""
        self.caches[number].truncate(position)

    def pick(self, indices: list[int]) -> None:
        """Selects sequences by number. A repeated number becomes a fork, which shares the pages."""
        picked: list[Cache] = []
        for number, index in enumerate(indices):
            picked.append(self.caches[index].fork() if index in indices[:number] else self.caches[index])
        self.caches = picked

    def stats(self) -> list[Stats]:
        """Returns the counts of each sequence."""
        return [cache.stats() for cache in self.caches]


def _zeros(queries: torch.Tensor) -> torch.Tensor:
    """Returns zeros of the queries' shape and type. In memory tokens come before heads, as models read
    outputs."""
    return torch.zeros_like(queries.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _attended(cache: Cache, layer: int, queries: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    out = torch.empty(queries.shape, dtype=torch.float32)
    cache.attend(layer, queries.contiguous(), out=out, **options)
    return out


def _next_page(position: int, first: int, page: int) -> int:
    """Returns the end of the page that contains ``position``, if the first page starts at ``first``."""
    return int(first + ((position - first) // page + 1) * page)
