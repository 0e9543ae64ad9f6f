"""An OctaplexCache under ``torch.compile``: one operation a layer, which appends and attends. The compiler
keeps it whole.

Compiled code calls ``torch.ops.octaplex.attend`` with the number of a cache and of a layer. The operation
runs ``octaplex.transformers`` on the tensors of that moment, so nothing of a cache becomes part of the
compiled code. With ``mode="reduce-overhead"`` PyTorch puts what lies between these operations into CUDA
graphs."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Optional

import torch

_numbers = itertools.count()
#: Caches by number, while they live.
_caches: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
#: The layer that `update` was called for, by its number, until the attention function takes it. Only tracing
#: uses it.
updated: dict[int, Any] = {}


def register(cache: Any) -> int:
    """Returns a number by which compiled code finds a cache."""
    number = next(_numbers)
    _caches[number] = cache
    return number


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: Optional[torch.Tensor],
    sink_logits: Optional[torch.Tensor],
    cache: int,
    layer: int,
    scale: Optional[float],
    soft_cap: Optional[float],
) -> torch.Tensor:
    """Appends a layer's new states and attends. Returns [batch, tokens, heads, width]."""
    held = _caches[cache].layers[layer]
    held.update(keys, values)
    found: torch.Tensor = held.attend_with(queries, mask, sink_logits, scale, soft_cap)
    return found.contiguous()


def _shape(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Returns a tensor of the result's shape, for tracing."""
    batch, heads, tokens, _ = queries.shape
    return queries.new_empty((batch, tokens, heads, values.shape[3]))


# PyTorch must run it between its CUDA graphs, because the host counts tokens and closes pages. Older versions
# have no such tag.
_tags = [tag for tag in (getattr(torch.Tag, "cudagraph_unsafe", None),) if tag is not None]
torch.library.custom_op("octaplex::attend", attend, mutates_args=(), tags=_tags).register_fake(_shape)
