"""Decode steps as one CUDA graph."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .._octaplex import Error
from ._cache import OctaplexCache


def given(model: Any, cache: OctaplexCache) -> dict[str, Any]:
    """Returns a cache as an argument of a model: ``cache``, which was ``past_key_values`` before transformers
    5.24."""
    names = inspect.signature(getattr(getattr(model, "_orig_mod", model), "forward", model)).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


class DecodeGraph:
    """Runs a model's decode steps as one CUDA graph. A step takes a token of each sequence and returns
    logits.

    >>> step = DecodeGraph(torch.compile(model), cache)  # doctest: +SKIP
    >>> with torch.no_grad():  # doctest: +SKIP
    ...     logits = model(prompt, cache=cache, logits_to_keep=1).logits
    >>> for _ in range(100):  # doctest: +SKIP
    ...     logits = step(logits[:, -1:].argmax(-1))

    The first two calls run as usual, and the third is captured. The model may be compiled, in the default
    mode of ``torch.compile``. The cache then allocates memory for its whole capacity, because a graph's
    memory cannot move: create it with ``capacity``. Model and cache must be on one GPU.

    Between steps you may crop the cache and call the model with other tokens: the graph continues after them.
    ``reset`` and other batches need a new graph."""

    #: Calls before the capture. They compile kernels and allocate the memory of libraries.
    WARM_UP = 2

    def __init__(self, model: Any, cache: OctaplexCache) -> None:
        self.model, self.cache, self.calls = model, cache, 0
        self.graph: Any = None

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the logits [batch, 1, vocabulary] of tokens [batch, 1]. The next call overwrites them."""
        with torch.no_grad():
            return self._step(tokens)

    def _step(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        layers = self.cache.on_gpus()
        positions = layers[0].ends()
        if tokens.shape != (len(positions), 1):
            raise Error(f"tokens has the shape {list(tokens.shape)}: pass [{len(positions)}, 1]")
        if self.graph is None:
            self.tokens = tokens.clone()
            self.positions = torch.tensor(positions, device=tokens.device)[:, None]
            self.expected = positions
            if self.calls <= self.WARM_UP:
                return self._logits()
            for layer in layers:
                layer.reserve(self.cache.capacity)
                layer.ready()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.logits = self._logits()
            self.graph, self.layers = graph, layers
        if any(mine is not theirs for mine, theirs in zip(self.layers, layers)):
            raise Error("the cache was reset after the graph was captured: create another DecodeGraph")
        for layer in layers:
            layer.ready()
        if positions != self.expected:
            self.positions.copy_(torch.tensor(positions, device=tokens.device)[:, None])
        self.tokens.copy_(tokens)
        self.graph.replay()
        self.positions.add_(1)
        self.expected = [position + 1 for position in positions]
        for layer in layers:
            layer.count()
        for each in self.cache.ours:
            each.length += 1
        return self.logits

    def _logits(self) -> torch.Tensor:
        self.cache.stepping = True
        try:
            found = self.model(
                self.tokens, **given(self.model, self.cache), position_ids=self.positions, use_cache=True
            )
        finally:
            self.cache.stepping = False
        logits: torch.Tensor = found.logits
        return logits
