"""Reads the config of a model: its layers and their shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, get_layer_types_and_kwargs

from .._octaplex import Error

#: Kinds of layers that OctaplexCache holds, and kinds that it leaves to transformers (or that have no state).
_OURS = ("full_attention", "sliding_attention")
_THEIRS = ("linear_attention", "conv", "moe", "mlp", "dummy")


class LayerKind(NamedTuple):
    """A layer's kind, and the arguments that transformers takes for it."""

    kind: str
    arguments: dict[str, Any]
    #: Later layers also read this layer's keys and values.
    read_again: bool

    @property
    def is_ours(self) -> bool:
        """Returns whether OctaplexCache holds this layer."""
        return self.kind in _OURS

    def theirs(self) -> Any:
        """Creates an empty layer of transformers."""
        return DYNAMIC_LAYER_TYPE_MAPPING[self.kind](**self.arguments)


def refused(config: Any, why: str) -> Error:
    """Returns the error for a model that OctaplexCache cannot serve."""
    return Error(f"the model ({config.model_type}) {why}: use a cache of transformers for it")


def decoder_of(config: Any) -> Any:
    """Returns the config of a model's decoder. Raises an :class:`Error` if OctaplexCache does not support
    it."""
    decoder = config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False) or getattr(decoder, "is_encoder_decoder", False):
        raise refused(config, "has an encoder and a decoder, and OctaplexCache serves only decoders")
    if getattr(decoder, "kv_lora_rank", None):
        raise refused(decoder, "has multi-head latent attention (MLA), which OctaplexCache does not support")
    return decoder


def layers_of(config: Any) -> list[LayerKind]:
    """Returns the kinds of all layers."""
    kinds, arguments = get_layer_types_and_kwargs(config)
    if other := sorted(set(kinds) - {*_OURS, *_THEIRS}):
        raise Error(
            f"the model ({config.model_type}) has layers of {', '.join(other)}: OctaplexCache supports "
            f"{' and '.join(_OURS)}, and leaves linear_attention and conv to transformers: use a cache of "
            "transformers for this model"
        )
    if not set(kinds) & set(_OURS):
        raise refused(config, "has no layer of attention")
    if isinstance(arguments, dict):  # 5.17 has one for all layers
        states = {key: value for key, value in arguments.items() if key != "sliding_window"}
        by_kind: dict[str, Any] = {"sliding_attention": arguments, "full_attention": {}}
        arguments = [by_kind.get(kind, states) for kind in kinds]
    again = _read_again(config, kinds)
    return [LayerKind(kind, each, i in again) for i, (kind, each) in enumerate(zip(kinds, arguments))]


def shape_of(config: Any, layer: int) -> tuple[int, int]:
    """Returns the key/value heads and the width of a layer, or usual ones where the config has none."""
    each = getattr(config, "per_layer_config", None)  # where layers differ, as in Gemma 4
    config = each[layer] if each else config
    names = ("num_key_value_heads", "num_attention_heads", "head_dim", "hidden_size")
    heads, queries, width, hidden = (getattr(config, name, None) for name in names)
    if width is None and isinstance(queries, int) and isinstance(hidden, int):
        width = hidden // max(queries, 1)
    sizes = ((heads or queries, 1), (width, 128))
    kv_heads, dim = (size if isinstance(size, int) and size > 0 else usual for size, usual in sizes)
    return kv_heads, dim


def _read_again(config: Any, kinds: list[str]) -> set[int]:
    """Returns the layers whose keys and values later layers also read, as in Gemma 3n and Gemma 4.

    The config names them. In 5.17 they are the last ones of each kind before the layers without keys and
    values of their own."""
    modes = getattr(config, "kv_sharing_modes", None)
    if modes is not None:
        return {number for number, mode in enumerate(modes) if mode == "store"}
    if not getattr(config, "num_kv_shared_layers", None):
        return set()
    return {len(kinds) - 1 - kinds[::-1].index(kind) for kind in set(kinds)}
