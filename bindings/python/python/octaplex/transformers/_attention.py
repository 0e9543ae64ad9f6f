"""Attention and masks of ``attn_implementation="octaplex"``."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Optional

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
    sliding_window_causal_mask_function,
)
from transformers.modeling_utils import AttentionInterface

from .._octaplex import Error
from . import _compiled
from ._cache import Layer, check

#: Rows of a mask that are checked together.
_MASK_ROWS = 256


class _Padding(torch.Tensor):
    """A mask of this module: which tokens are not padding, [batch, 1, queries, tokens]. It is a view without
    memory of its own, and models may select some of its queries."""


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    scaling: Optional[float] = None,
    softcap: Optional[float] = None,
    dropout: float = 0.0,
    s_aux: Optional[torch.Tensor] = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Implements transformers' AttentionInterface. It cannot return attention weights.

    Layers that never have a cache, as in an image encoder, get PyTorch's attention."""
    compiling = torch.compiler.is_compiling()
    layer: Optional[Layer] = getattr(key, "layer", None)
    if compiling:
        layer = _compiled.updated.pop(getattr(module, "layer_idx", -1), None)
    if layer is None:
        is_plain = softcap is None and s_aux is None and not isinstance(attention_mask, _Padding)
        if is_plain and not getattr(module, "is_causal", True):
            output, _ = sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
            )
            return output, None
        model = type(module).__name__
        raise Error(
            "octaplex attention reads an OctaplexCache: pass cache=OctaplexCache(model.config), which is "
            f"past_key_values= before transformers 5.24. If you did, {model} does not use it: set "
            "attn_implementation={'text_config': 'octaplex'} for a model of text and images, and use "
            "another attention for other models"
        )
    check(query, "queries")
    if torch.is_grad_enabled() and query.requires_grad:
        raise Error("octaplex attention has no gradients: call the model under torch.no_grad()")
    if dropout:
        raise Error("octaplex attention has no dropout: call model.eval()")
    if attention_mask is not None and attention_mask.ndim != 2 and not isinstance(attention_mask, _Padding):
        wanted = "None, or [batch, tokens] with padding on the left"
        raise Error(f"attention_mask has {attention_mask.ndim} dimensions: pass {wanted}")
    if kwargs.get("is_causal") is False or kwargs.get("position_bias") is not None:
        advice = "this model needs attn_implementation='eager'"
        raise Error(f"octaplex attention is causal and has no position bias: {advice}")
    if "sliding_window" in kwargs and kwargs["sliding_window"] != layer.window:
        windows = f"a sliding window of {kwargs['sliding_window']}, but the cache has {layer.window}"
        raise Error(f"layer {layer.number} needs {windows}: create it with this model's config")
    if compiling:
        given = query, key, value, attention_mask, s_aux
        return torch.ops.octaplex.attend(*given, layer.owner.handle, layer.number, scaling, softcap), None
    return layer.attend_with(query, attention_mask, s_aux, scaling, softcap), None


def _is_same(one: Any, other: Any) -> bool:
    """Returns whether two functions have the same code and the same captured values. Then masks need no check
    of their elements."""
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if not inspect.isfunction(one) or not inspect.isfunction(other):
        return (
            type(one) is type(other) and isinstance(one, (int, float, str, type(None))) and bool(one == other)
        )
    if one is other:
        return True
    cells = [[cell.cell_contents for cell in function.__closure__ or ()] for function in (one, other)]
    return one.__code__ is other.__code__ and one.__defaults__ == other.__defaults__ and _is_same(*cells)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Optional[torch.Tensor] = None,
    local_size: Optional[int] = None,
    use_vmap: bool = False,
    device: Any = "cpu",
    **kwargs: Any,
) -> Optional[torch.Tensor]:
    """Returns the mask for a model's layers: None, or which tokens are not padding.

    Attention here is causal, with or without a window. Any other pattern, such as chunks or images with full
    attention among text, raises an error. Encoders have no cache and get PyTorch's mask."""
    made = functools.partial(
        sdpa_mask,
        batch_size=batch_size,
        kv_length=kv_length,
        kv_offset=kv_offset,
        mask_function=mask_function,
        use_vmap=use_vmap,
        device=device,
    )
    if local_size is None and _is_same(mask_function, bidirectional_mask_function):
        return made(q_length=q_length, q_offset=q_offset, attention_mask=attention_mask, **kwargs)
    usual = causal_mask_function if local_size is None else sliding_window_causal_mask_function(local_size)
    columns = torch.arange(kv_length, device=device) + kv_offset
    for start in range(0, 0 if _is_same(mask_function, usual) else q_length, _MASK_ROWS):
        count = min(_MASK_ROWS, q_length - start)
        asked = made(q_length=count, q_offset=q_offset + start, allow_is_causal_skip=False)
        rows = (torch.arange(count, device=device) + q_offset + start)[:, None]
        causal = (columns <= rows) & (columns > rows - (local_size or kv_length + kv_offset + 1))
        if not bool((asked == causal).all()):
            advice = "use attn_implementation='eager' for it"
            raise Error(f"the model needs a mask that is neither causal nor a sliding window: {advice}")
    if attention_mask is None or bool(attention_mask.all()):
        return None
    padded = (~attention_mask).sum(1, keepdim=True)
    if not torch.equal(attention_mask, torch.arange(attention_mask.shape[1], device=device) >= padded):
        advice = "pass padding_side='left' to the tokenizer"
        raise Error(f"attention_mask hides tokens that are not at the left: {advice}")
    return attention_mask[:, None, None].expand(-1, 1, q_length, -1).as_subclass(_Padding)


def register() -> None:
    """Registers attention and masks with transformers."""
    AttentionInterface.register("octaplex", attention)
    AttentionMaskInterface.register("octaplex", torch.compiler.disable(mask))  # it reads masks on the host
