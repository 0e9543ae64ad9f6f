"""The cache of a model, and its layers."""

from __future__ import annotations

import copy
from typing import Any, Optional

import torch
from transformers.cache_utils import Cache as _Base
from transformers.cache_utils import CacheLayerMixin

from .. import _octaplex, _options
from .._cache import Cache, OnCpu, Stats, defaults_without, profile_text, settings_of
from .._octaplex import Error
from . import _compiled
from ._config import LayerKind, decoder_of, layers_of, refused, shape_of
from ._gpu_sequences import BLOCK, GpuSequences, is_captured
from ._sequences import Asked, CpuSequences, Sequences

_DEFAULTS = defaults_without("sliding_window", "value_dim")


class States(torch.Tensor):
    """The new states of a layer, which ``update`` returns. They carry their layer to the attention function.

    Models pass this tensor to the attention function, but not the cache. Any other attention would take the
    new tokens for all tokens, so every operation on this tensor raises an error."""

    layer: Layer

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name == "__get__":  # shape, dtype, device
            return super().__torch_function__(function, types, args, kwargs or {})
        if name == "to":  # layers that read another layer's keys move them to their own device: these stay
            return args[0]
        layers = (each.layer for each in args if isinstance(each, States) and hasattr(each, "layer"))
        layer = next(layers, None)
        if layer is not None and layer.owner.config._attn_implementation.startswith("octaplex"):
            where = "outside of transformers' attention functions, so it cannot read an OctaplexCache"
            raise refused(layer.owner.config, f"computes on its keys and values {where}")
        raise Error(
            "the model's attention cannot read an OctaplexCache: call "
            "model.set_attn_implementation('octaplex'), or load the model with "
            "attn_implementation='octaplex'. If you did, the model has attention of its own: use a cache of "
            "transformers for it"
        )


class Layer(CacheLayerMixin):
    """One layer of an OctaplexCache."""

    is_croppable = True

    def __init__(self, owner: OctaplexCache, number: int, kind: LayerKind) -> None:
        super().__init__()
        self.owner, self.number, self.window = owner, number, kind.arguments.get("sliding_window")
        self.is_sliding = self.window is not None
        #: Later layers also read this layer's keys and values, of all tokens of a prompt. So it drops none.
        self.read_again = kind.read_again
        self.held = None if kind.read_again else self.window
        #: Number of channels by which values are narrower than keys. They are filled with zeros.
        self.padded = 0
        self.length = 0
        self.pending: Optional[tuple[Any, Any]] = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Creates the batch's caches, unless an earlier layer did."""
        batch, heads, _, width = key_states.shape
        self.sequences = self.owner._sequences_of(batch, heads, width, self, key_states.device)
        self.batch_size, self.dtype, self.device = batch, key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes new states [batch, kv_heads, tokens, head_dim]. The attention function appends them, because
        it knows the padding and works block by block."""
        if torch.compiler.is_compiling():
            if self.read_again:
                advice = "call the model without torch.compile"
                raise Error(f"layers that read another layer's keys and values cannot be compiled: {advice}")
            _compiled.updated[self.number] = self
            return key_states, value_states
        check(key_states, "keys")
        padded = key_states.shape[3] - value_states.shape[3]
        if key_states.shape[:3] != value_states.shape[:3] or padded < 0:
            shapes = f"{list(key_states.shape)} and {list(value_states.shape)}"
            allowed = "only their widths may differ, with values narrower than keys"
            raise Error(f"keys and values have the shapes {shapes}: {allowed}")
        if padded:
            value_states = torch.nn.functional.pad(value_states, (0, padded))
        self.padded = padded
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif key_states.shape[0] != self.sequences.batch:
            batches = f"a batch of {key_states.shape[0]} does not fit the cache, which has a batch of"
            raise Error(f"{batches} {self.sequences.batch}: call reset() first")
        elif key_states.device != self.device:
            layer = f"layer {self.number} of the cache is on {self.device}"
            raise Error(f"keys are on {key_states.device}, and {layer}: call reset() first")
        self.pending = (key_states.detach(), value_states.detach())
        keys, values = (torch.Tensor._make_subclass(States, states) for states in self.pending)
        keys.layer = values.layer = self
        return keys, values

    def attend_with(
        self,
        queries: torch.Tensor,
        mask: Optional[torch.Tensor],
        sink_logits: Optional[torch.Tensor],
        scale: Optional[float],
        soft_cap: Optional[float],
    ) -> torch.Tensor:
        """Appends the states of ``update`` and attends. Queries are [batch, heads, tokens, head_dim], the
        result [batch, tokens, heads, head_dim]. The mask may be one of this package, whose rows are all
        equal."""
        if mask is not None and mask.ndim == 4:
            mask = mask.as_subclass(torch.Tensor)[:, 0, 0]
        options: dict[str, Any] = {"scale": scale, "soft_cap": soft_cap, "window": self.window}
        if sink_logits is not None:
            options["sink_logits"] = sink_logits.detach().contiguous()
        append = self._again if self.pending is None else self._append
        found = append(queries.detach(), mask, options).transpose(1, 2)
        return found[..., : found.shape[-1] - self.padded] if self.padded else found

    def _append(
        self, queries: torch.Tensor, mask: Optional[torch.Tensor], options: dict[str, Any]
    ) -> torch.Tensor:
        """Appends the states of ``update`` and attends."""
        assert self.pending is not None
        (keys, values), self.pending = self.pending, None
        total = self.length + keys.shape[2]
        if mask is not None and tuple(mask.shape) != (len(keys), total):
            wanted = f"[{len(keys)}, {total}], which includes the cached tokens"
            raise Error(f"attention_mask has the shape {list(mask.shape)}: pass {wanted}")
        padding = self._padding(len(keys), mask)
        captured = is_captured(keys)  # in a graph only the GPU counts tokens
        for number, padded in enumerate(() if captured or self.owner.stepping else padding):
            held, left = self.sequences.next_position(number, self.number), max(self.length - padded, 0)
            if held != left:
                raise Error(
                    f"sequence {number} has {held} tokens in the cache, and attention_mask leaves {left}: "
                    "pass the mask of the tokens before as well, or call reset()"
                )
        starts = [max(padded - self.length, 0) for padded in padding]
        found = self.sequences.append_attend(keys, values, Asked(self.number, queries, starts, options))
        self.length = self.length if captured else total
        return found

    def _again(
        self, queries: torch.Tensor, mask: Optional[torch.Tensor], options: dict[str, Any]
    ) -> torch.Tensor:
        """Attends for another layer, when this layer already has the tokens."""
        if not self.read_again:
            reason = "the model's config names no layers that share its keys"
            raise Error(f"layer {self.number} is read twice, but {reason}")
        before = self.length - queries.shape[2]
        starts = [max(padded - before, 0) for padded in self._padding(len(queries), mask)]
        asked = Asked(self.number, queries.to(self.device), starts, options)
        return self.sequences.attend_again(asked).to(queries.device)

    def _padding(self, batch: int, mask: Optional[torch.Tensor]) -> list[int]:
        """Returns the padding of each sequence in tokens."""
        return [0] * batch if mask is None else self.owner._padding_of(mask)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns length and offset of the mask. It covers all tokens since the start, for sliding layers
        too."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Returns the number of tokens so far, including padding."""
        return self.length

    def get_max_length(self) -> int:
        """Returns the capacity, or the sliding window."""
        return self.owner.capacity if self.window is None else self.window

    def reset(self) -> None:
        """Removes all tokens."""
        self.length, self.pending, self.is_initialized = 0, None, False
        for name in ("sequences", "batch_size"):
            self.__dict__.pop(name, None)


class OctaplexCache(_Base):
    """Holds a model's compressed keys and values, which ``attn_implementation="octaplex"`` reads on the
    model's device.

    It follows the config for full and sliding-window layers. It stores each sequence of a batch separately,
    without left padding. States of linear attention and convolutions stay with transformers. Each page is
    encoded once.

    After an error in a forward pass, call ``reset()``, because earlier layers already have the pass's tokens.
    """

    def __init__(self, config: Any, *, capacity: Optional[int] = None, **options: Any) -> None:
        """Creates an empty cache for a model's ``config``, with ``capacity`` tokens a sequence (default:
        ``max_position_embeddings``).

        The options are those of :class:`octaplex.Cache`: codecs, ``bits``, ``profile``, ``page``,
        ``sink_tokens``, ``recent_window``, ``max_rollback`` and others."""
        if unknown := sorted(options.keys() - _DEFAULTS):
            where = "no option here (windows and shapes come from the model)"
            raise Error(f"{', '.join(unknown)}: {where}: pass {', '.join(_DEFAULTS)}")
        config = decoder_of(config)
        kinds = layers_of(config)
        self.options = _DEFAULTS | options
        if self.options["profile"] is not None:
            self.options["profile"] = profile_text(self.options["profile"])  # read once, for all layers
        if capacity is None:
            capacity = getattr(config, "max_position_embeddings", None)
        if capacity is None:
            missing = "does not say how many tokens it takes: pass capacity"
            raise Error(f"the model ({config.model_type}) {missing}")
        self.config, self.capacity = config, _options.whole(capacity, "capacity")
        self._groups: dict[tuple[Any, ...], Sequences] = {}
        self._padding: tuple[Any, list[int]] = (None, [])
        #: The number by which compiled code finds this cache.
        self.handle = _compiled.register(self)
        #: Whether a DecodeGraph is running. It has no mask: each sequence continues after its own tokens.
        self.stepping = False
        #: Layers that stay with transformers, by number.
        self._theirs = {number: kind for number, kind in enumerate(kinds) if not kind.is_ours}
        super().__init__(
            layers=[Layer(self, i, kind) if kind.is_ours else kind.theirs() for i, kind in enumerate(kinds)]
        )
        #: Layers whose keys and values this cache holds.
        self.ours = [layer for layer in self.layers if isinstance(layer, Layer)]
        # Raises the errors of the first forward pass, if the config has the shape of a layer.
        first = self.ours[0]
        size = (len(kinds), *shape_of(config, first.number), self.capacity)
        _octaplex.Cache(*size, self._settings(first.held))

    def __deepcopy__(self, memo: Any) -> OctaplexCache:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        copied.handle = _compiled.register(copied)
        return copied

    def _sequences_of(self, batch: int, heads: int, width: int, layer: Layer, device: Any) -> Sequences:
        """Returns the sequences of a layer. On the CPU, all layers with this shape and window share them,
        because a Cache has one shape and one window. On a GPU each layer has its own."""
        group: tuple[Any, ...] = (heads, width, layer.held)
        number = _number_of(device)
        if number is not None:
            group = (*group, layer.number)
        if group not in self._groups:
            # When the first query of a GPU's block reads its window, the newest token is a block further on.
            held = layer.held if number is None or layer.held is None else layer.held + BLOCK
            size, settings = (len(self.layers), heads, width, self.capacity), self._settings(held)
            if number is not None:
                self._groups[group] = GpuSequences(number, size, settings, layer.number, batch)
            else:
                caches = [Cache._of(OnCpu(_octaplex.Cache(*size, settings))) for _ in range(batch)]
                self._groups[group] = CpuSequences(caches, layer.number, settings)
        return self._groups[group]

    def _settings(self, held: Optional[int]) -> dict[str, Any]:
        """Returns the settings of layers that hold at least ``held`` tokens."""
        return settings_of(**self.options, sliding_window=held, held_layers=self.held_layers())

    def held_layers(self) -> Optional[list[int]]:
        """Returns the numbers of the layers that this cache holds, or None if it holds all. ``bits`` and
        ``profile`` apply to them."""
        return None if len(self.ours) == len(self.layers) else [layer.number for layer in self.ours]

    def reset(self) -> None:
        """Removes all tokens."""
        self._groups.clear()
        self._padding = (None, [])
        super().reset()
        for number, kind in self._theirs.items():  # theirs would keep the batch size
            recorded = getattr(self.layers[number], "record_past", False)
            self.layers[number] = kind.theirs()
            if recorded:
                self.layers[number].activate_past_recording()

    def _padding_of(self, mask: torch.Tensor) -> list[int]:
        """Returns the padding of each sequence in tokens. All layers get the same mask, so it is copied from
        the GPU once."""
        known = self._padding[0]  # it stays alive, so no other mask has its address
        if known is None or (known.data_ptr(), known.shape) != (mask.data_ptr(), mask.shape):
            self._padding = (mask, (mask.shape[1] - mask.sum(1)).tolist())
        return self._padding[1]

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last ``-tokens_to_remove`` tokens. Up to ``max_rollback`` tokens back the cache is
        exactly what it was before.

        Beyond that, it raises an error if a sliding window has dropped tokens that would be visible again."""
        if tokens_to_remove > 0:
            advice = "pass minus the number of tokens to remove, a negative number"
            raise Error(f"crop({tokens_to_remove}): {advice}")
        others = [layer for layer in self.layers if not isinstance(layer, Layer)]
        # A layer of convolutions goes back only if it has recorded its past.
        croppable = (layer.is_croppable and getattr(layer, "record_past", True) for layer in others)
        if tokens_to_remove and not all(croppable):
            advice = "call reset(), and pass the tokens that stay to the model again"
            raise Error(f"the states of linear attention cannot be taken back: {advice}")

        def ends(sequences: Sequences) -> list[tuple[int, int]]:
            return [(number, max(end + tokens_to_remove, 0)) for number, end in enumerate(sequences.ends())]

        for sequences in self._groups.values():
            for end in ends(sequences):
                sequences.check_truncate(*end)
        # Sliding layers first, because they may raise.
        for group in sorted(self._groups, key=lambda group: group[2] is None):
            sequences = self._groups[group]
            for end in ends(sequences):
                sequences.truncate(*end)
        for layer in others:
            if getattr(layer, "record_past", True):
                layer.crop(tokens_to_remove)
        for layer in self.ours:
            layer.length = max(layer.length + tokens_to_remove, 0)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Replaces each sequence i with the former sequence ``beam_idx[i]``."""
        self._pick(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each sequence ``repeats`` times, one after the other."""
        self._pick([index for index in range(max(self.batch_size, 0)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps only these sequences, by number or by a mask."""
        if self._groups:  # as transformers' caches do, an empty one takes any
            self._pick(torch.arange(self.batch_size)[torch.as_tensor(indices).cpu()].tolist())

    def _pick(self, indices: list[int]) -> None:
        for sequences in self._groups.values():
            sequences.pick(indices)
        for layer in self.layers:
            if not isinstance(layer, Layer):
                layer.reorder_cache(torch.tensor(indices))
            if hasattr(layer, "batch_size"):
                layer.batch_size = len(indices)

    def on_gpus(self) -> list[GpuSequences]:
        """Returns the layers' caches. Raises an :class:`Error` unless all are on GPUs."""
        found = [sequences for sequences in self._groups.values() if isinstance(sequences, GpuSequences)]
        if len(found) < len(self.ours):
            raise Error("not every layer has tokens on a GPU: call the model with a prompt first, on CUDA")
        return found

    def stats(self) -> Stats:
        """Returns counts over all sequences. ``next_position`` is that of the longest sequence."""
        every = [stats for sequences in self._groups.values() for stats in sequences.stats()]
        together = Stats(*map(sum, zip(*every))) if every else Stats(*[0] * len(Stats._fields))
        return together._replace(next_position=max((stats.next_position for stats in every), default=0))


def _number_of(device: Any) -> Optional[int]:
    """Returns the GPU number of a device, or None for the CPU."""
    return int(device.index or 0) if device.type == "cuda" else None


def check(states: torch.Tensor, what: str) -> None:
    """Raises an :class:`Error` if a model's tensor has a wrong device or type."""
    if states.device.type not in ("cpu", "cuda"):
        advice = "call model.to('cpu') or model.to('cuda')"
        raise Error(
            f"{what} are on {states.device}, but octaplex attention runs on the CPU and on CUDA: {advice}"
        )
    if states.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise Error(f"{what} are of {states.dtype}: load the model in float32, float16 or bfloat16")
