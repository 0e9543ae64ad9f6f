"""Provides a cache and an attention for Hugging Face's transformers: ``OctaplexCache``, and ``attn_implementation="octaplex"``.

>>> from octaplex.transformers import OctaplexCache
>>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="octaplex")  # doctest: +SKIP
>>> model.generate(**inputs, cache=OctaplexCache(model.config, bits=4.2))  # doctest: +SKIP

Importing this module registers the attention. It reads the compressed bytes on the model's device: the CPU, or a GPU of NVIDIA's. Each
layer's cache is on the device of its keys.

Before transformers 5.24 the argument ``cache`` is called ``past_key_values``.

It needs transformers 5.17 or newer. There, ``update`` takes a layer's new keys and values, and its result goes to the attention function.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, Optional, Union

from . import _gpu, _octaplex, _options
from ._cache import Cache, Stats, profile_text, settings_of
from ._octaplex import Error

#: The newest version of transformers that is tested. Others work as long as they have what this module imports.
KNOWN = "5.24"

try:
    import torch
    import transformers
    from transformers.cache_utils import Cache as _Base
    from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, CacheLayerMixin, get_layer_types_and_kwargs
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, bidirectional_mask_function, causal_mask_function, sdpa_mask
    from transformers.masking_utils import sliding_window_causal_mask_function
    from transformers.modeling_utils import AttentionInterface

    from . import _compiled
except ImportError as error:
    if error.name in ("torch", "transformers"):
        raise
    version = getattr(transformers, "__version__", "of unknown version")
    raise Error(
        f"transformers {version} lacks what octaplex needs ({error}); 5.17 to {KNOWN} have it: pip install 'transformers=={KNOWN}.*', or a newer octaplex"
    ) from error

__all__ = ["KNOWN", "DecodeGraph", "OctaplexCache"]

#: First tokens of a prompt that decide the balance, as in ``octaplex generate``.
_CALIBRATION = 256
#: Rows of a mask that are checked together.
_MASK_ROWS = 256
_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(Cache).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in ("sliding_window", "value_dim", "device", "forks")
}
#: Tokens of a prompt that a GPU appends and attends to at once. Queries read the tokens as they are stored: pages that close within the
#: block are already compressed.
_BLOCK = 2048
#: The number of steps left is unknown.
_UNKNOWN = -1
#: Kinds of layers that OctaplexCache holds, and kinds that it leaves to transformers (or that have no state).
_OURS = ("full_attention", "sliding_attention")
_THEIRS = ("linear_attention", "conv", "moe", "mlp", "dummy")
_TYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class _States(torch.Tensor):
    """The new states of a layer, which ``update`` returns. They carry their layer to the attention function.

    Models pass this tensor to the attention function, but not the cache. Any other attention would take the new tokens for all tokens, so
    every operation on this tensor raises an error."""

    layer: _Layer

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name == "__get__":  # shape, dtype, device
            return super().__torch_function__(function, types, args, kwargs or {})
        if name == "to":  # layers that read another layer's keys move them to their own device: these stay in the cache
            return args[0]
        layer = next((each.layer for each in args if isinstance(each, _States) and hasattr(each, "layer")), None)
        if layer is not None and layer.owner.config._attn_implementation.startswith("octaplex"):
            raise Error(
                f"the model ({layer.owner.config.model_type}) computes on its keys and values outside of transformers' attention functions, "
                "so it cannot read an OctaplexCache: use a cache of transformers for it"
            )
        raise Error(
            "the model's attention cannot read an OctaplexCache: call model.set_attn_implementation('octaplex'), "
            "or load the model with attn_implementation='octaplex'. If you did, the model has attention of its own: use a cache of "
            "transformers for it"
        )


class _Padding(torch.Tensor):
    """A mask of this module: which tokens are not padding, [batch, 1, queries, tokens]. It is a view without memory of its own, and models
    may select some of its queries."""


class _Sequences:
    """The caches of a batch on the CPU, one for each sequence. Each has all layers of the model, because layer numbers decide rotations
    and boundary layers."""

    def __init__(self, caches: list[Cache], layer: int) -> None:
        self.caches, self.layer = caches, layer

    @property
    def batch(self) -> int:
        """Returns the number of sequences."""
        return len(self.caches)

    def next_position(self, number: int, layer: Optional[int] = None) -> int:
        """Returns a sequence's next position in a layer, by default in the first layer of the group."""
        return self.caches[number].next_position(self.layer if layer is None else layer)

    def truncate(self, number: int, position: int) -> None:
        """Removes a sequence's tokens from ``position`` on."""
        self.caches[number].truncate(position)

    def stats(self) -> list[Stats]:
        """Returns the counts of each sequence."""
        return [cache.stats() for cache in self.caches]

    def __deepcopy__(self, memo: Any) -> _Sequences:
        return _Sequences([cache.fork() for cache in self.caches], self.layer)

    def pick(self, indices: list[int]) -> None:
        """Selects sequences by number. A repeated number becomes a fork, which shares the pages."""
        picked: list[Cache] = []
        for number, index in enumerate(indices):
            picked.append(self.caches[index].fork() if index in indices[:number] else self.caches[index])
        self.caches = picked


class _OnGpu:
    """One layer's sequences of a batch on a GPU. One call attends for all of them."""

    def __init__(self, owner: OctaplexCache, layer: _Layer, batch: int, shape: tuple[int, int], number: int) -> None:
        self.layer, self.batch, self.number = layer.number, batch, number
        # When the first query of a block reads its window, the newest token is a block further on.
        self.window = layer.window
        held = None if layer.held is None else layer.held + _BLOCK
        settings = settings_of(**owner.options, sliding_window=held, held_layers=owner.held_layers())
        size = (len(owner.layers), *shape, owner.capacity)
        self.made_of = (number, size, settings)
        self.cache = self._made(batch)
        self.sink_logits: tuple[Any, Any] = (None, None)
        #: Tokens of each sequence that the GPU has counted since the last `settle`, and the number of steps left, if known.
        self.pending, self.left = 0, _UNKNOWN

    def _made(self, count: int) -> _octaplex.DeviceCache:
        """Creates an empty cache of ``count`` sequences, and a spare one for `pick`."""
        number, size, settings = self.made_of
        return _gpu.made(number, size, settings, count + 1, self.layer)

    def __deepcopy__(self, memo: Any) -> _OnGpu:
        self.settle()
        copy = _OnGpu.__new__(_OnGpu)
        copy.__dict__.update(self.__dict__)
        copy.cache = self._moved(list(range(self.batch)))
        return copy

    def _moved(self, indices: list[int]) -> _octaplex.DeviceCache:
        """Creates a cache of these sequences. Each goes through the host once, and a repeated one shares its pages."""
        cache = self._made(len(indices))
        for number, index in enumerate(indices):
            if index in indices[:number]:
                cache.fork(indices.index(index), number)
            else:
                held = self.cache.download(index)
                _gpu.retried(lambda held=held, number=number: cache.upload(number, held))  # type: ignore[misc]
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

    def next_position(self, number: int, layer: Optional[int] = None) -> int:
        """Returns a sequence's next position in this layer."""
        return self.cache.next_position(0, number) + self.pending

    def truncate(self, number: int, position: int) -> None:
        """Removes a sequence's tokens from ``position`` on."""
        self.settle()
        self.cache.truncate(number, position)

    def check_truncate(self, number: int, position: int) -> None:
        """Raises an error if `truncate` would."""
        self.settle()
        self.cache.check_truncate(number, position)

    def settle(self) -> None:
        """Reads the GPU's count of tokens, and closes full pages."""
        self.left = _UNKNOWN
        if self.pending:
            self.pending = 0
            _gpu.retried(lambda: self.cache.settle(0, _stream(self.number)))

    def reserve(self, capacity: int) -> None:
        """Allocates memory for ``capacity`` tokens of each sequence. After that memory does not move."""
        _gpu.retried(lambda: self.cache.reserve(capacity, self.batch))

    def step(self, keys: torch.Tensor, values: torch.Tensor, stream: int, captured: bool) -> bool:
        """Appends a token to each sequence [sequences, kv_heads, 1, head_dim] without waiting. Returns False if that is impossible."""
        if self.left == _UNKNOWN or self.left == 0:
            if self.left == 0 and not captured:
                self.settle()
            left = self.cache.steps_left(0, (0, self.batch))
            self.left = 0 if left is None else left
            if not self.left:
                self.left = _UNKNOWN
                return False
        if keys.stride() != values.stride() or keys.stride(3) != 1:
            keys, values = keys.contiguous(), values.contiguous()
        sequence, head = keys.stride()[:2]
        length = (keys.shape[0] - 1) * sequence + (keys.shape[1] - 1) * head + keys.shape[3]
        name = _TYPES[keys.dtype]
        rows = (keys.data_ptr(), length, name), (values.data_ptr(), length, _TYPES[values.dtype]), keys.shape[0], sequence, head
        self.cache.append_step(0, (0, self.batch), rows, stream)
        if not captured:
            self.count()
        return True

    def count(self) -> None:
        """Counts a token that the GPU has appended to each sequence."""
        self.pending += 1
        self.left -= 1

    def stats(self) -> list[Stats]:
        """Returns the counts of each sequence."""
        self.settle()
        return [Stats(*self.cache.stats(number)) for number in range(self.batch)]

    def append(self, number: int, keys: torch.Tensor, values: torch.Tensor, stream: int) -> None:
        """Appends tokens [kv_heads, tokens, head_dim] to a sequence. Reads them in place."""
        self.settle()
        if keys.stride() != values.stride() or keys.stride(2) != 1:
            keys, values = keys.contiguous(), values.contiguous()
        head, token, _ = keys.stride()
        length = (keys.shape[0] - 1) * head + (keys.shape[1] - 1) * token + keys.shape[2]
        name = _TYPES[keys.dtype]
        rows = (keys.data_ptr(), length, name), (values.data_ptr(), length, _TYPES[values.dtype]), keys.shape[1], token, head
        _gpu.retried(lambda: self.cache.append(0, number, rows, stream))

    def attend(
        self, first: int, queries: torch.Tensor, options: dict[str, Any], stream: int, position: Optional[int] = None
    ) -> torch.Tensor:
        """Attends to sequences from ``first`` on, with queries [sequences, heads, tokens, head_dim].

        The queries are at the newest tokens, or from ``position`` on."""
        queries = queries.contiguous()
        if queries.data_ptr() % 16:
            queries = queries.clone()
        out = torch.empty_like(queries)
        name, count = _TYPES[queries.dtype], queries.numel()
        given, target = (queries.data_ptr(), count, name), (out.data_ptr(), count, name)
        asked = {
            "queries": queries.shape[2],
            "scale": options["scale"],
            "soft_cap": options["soft_cap"],
            "window": self.window,
            "keep_sinks": False,
            "position": position,
        }
        logits = self._logits(options.get("sink_logits"))
        if logits is not None or queries.shape[2] > 1:
            self.settle()  # the call waits for the GPU and reads its count, so this count must follow
        _gpu.retried(lambda: self.cache.attend(0, (first, len(queries)), given, asked, logits, None, target, stream))
        return out

    def _logits(self, logits: Optional[torch.Tensor]) -> Any:
        """Returns sink logits on the host. They are parameters of the model, so they are copied once."""
        if logits is None:
            return None
        seen = (logits.data_ptr(), logits._version, logits.shape)
        if self.sink_logits[0] != seen:
            self.sink_logits = (seen, _gpu.host(logits, "sink_logits"))
        return self.sink_logits[1]


class _Layer(CacheLayerMixin):
    """One layer of an OctaplexCache."""

    is_croppable = True

    def __init__(self, owner: OctaplexCache, number: int, window: Optional[int], read_again: bool) -> None:
        super().__init__()
        self.owner, self.number, self.window, self.is_sliding = owner, number, window, window is not None
        #: Later layers also read this layer's keys and values, of all tokens of a prompt. So it drops none.
        self.read_again = read_again
        self.held = None if read_again else window
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
        """Takes new states [batch, kv_heads, tokens, head_dim]. The attention function appends them, because it knows the padding and
        works block by block."""
        if torch.compiler.is_compiling():
            if self.read_again:
                raise Error("layers that read another layer's keys and values cannot be compiled: call the model without torch.compile")
            _compiled.updated[self.number] = self
            return key_states, value_states
        _check(key_states, "keys")
        padded = key_states.shape[3] - value_states.shape[3]
        if key_states.shape[:3] != value_states.shape[:3] or padded < 0:
            shapes = f"{list(key_states.shape)} and {list(value_states.shape)}"
            raise Error(f"keys and values have the shapes {shapes}: only their widths may differ, with values narrower than keys")
        if padded:
            value_states = torch.nn.functional.pad(value_states, (0, padded))
        self.padded = padded
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif key_states.shape[0] != self.sequences.batch:
            raise Error(f"a batch of {key_states.shape[0]} does not fit the cache, which has a batch of {self.sequences.batch}: call reset() first")
        elif key_states.device != self.device:
            raise Error(f"keys are on {key_states.device}, and layer {self.number} of the cache is on {self.device}: call reset() first")
        self.pending = (key_states.detach(), value_states.detach())
        keys, values = (torch.Tensor._make_subclass(_States, states) for states in self.pending)
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
        """Appends and attends with what a model gives. The mask may be a `_Padding`, whose queries are all equal."""
        if mask is not None and mask.ndim == 4:
            mask = mask.as_subclass(torch.Tensor)[:, 0, 0]
        options: dict[str, Any] = {"scale": scale, "soft_cap": soft_cap}
        if sink_logits is not None:
            options["sink_logits"] = sink_logits.detach().contiguous()
        return self.attend(queries.detach(), mask, options)

    def attend(self, queries: torch.Tensor, mask: Optional[torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
        """Appends the states of ``update`` and attends. Queries are [batch, heads, tokens, head_dim], the result
        [batch, tokens, heads, head_dim]."""
        if self.pending is None:
            if not self.read_again:
                raise Error(f"layer {self.number} is read twice, but the model's config names no layers that share its keys")
            return self._narrowed(self._again(queries, mask, options))
        (keys, values), self.pending = self.pending, None
        tokens = keys.shape[2]
        total = self.length + tokens
        if mask is not None and tuple(mask.shape) != (len(keys), total):
            raise Error(f"attention_mask has the shape {list(mask.shape)}: pass [{len(keys)}, {total}], which includes the cached tokens")
        padding = [0] * len(keys) if mask is None else self.owner._padding_of(mask)
        captured = _is_captured(keys)  # in a graph only the GPU counts tokens
        for number, padded in enumerate(() if captured or self.owner.stepping else padding):
            held = self.sequences.next_position(number, self.number)
            if held != max(self.length - padded, 0):
                raise Error(
                    f"sequence {number} has {held} tokens in the cache, and attention_mask leaves {max(self.length - padded, 0)}: "
                    "pass the mask of the tokens before as well, or call reset()"
                )
        if isinstance(self.sequences, _OnGpu):
            found = self._on_gpu(self.sequences, keys, values, queries, padding, options, captured)
            self.length = self.length if captured else total
            return self._narrowed(found.transpose(1, 2))
        out = torch.zeros(queries.shape, dtype=torch.float32)
        for number, (cache, padded) in enumerate(zip(self.sequences.caches, padding)):
            new = slice(max(padded - self.length, 0), tokens)  # padding is not appended; its queries get zeros
            if new.start < tokens:
                k, v, q = (states[number, :, new] for states in (keys, values, queries))
                out[number, :, new] = self._append_attend(cache, k, v, q, options)
        self.length = total
        return self._narrowed(out.transpose(1, 2).contiguous().to(queries.dtype))

    def _narrowed(self, found: torch.Tensor) -> torch.Tensor:
        """Cuts the output to the width of the model's values."""
        return found[..., : found.shape[-1] - self.padded] if self.padded else found

    def _again(self, queries: torch.Tensor, mask: Optional[torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
        """Attends for another layer, when this layer already has the tokens."""
        tokens, device = queries.shape[2], queries.device
        before = self.length - tokens
        padding = [0] * len(queries) if mask is None else self.owner._padding_of(mask)
        if isinstance(self.sequences, _OnGpu):
            on, queries = self.sequences, queries.to(self.device)
            if tokens == 1 and (_is_captured(queries) or max(padding) <= before):
                return on.attend(0, queries, options, _stream(on.number)).transpose(1, 2).to(device)
            out = torch.zeros_like(queries)
            for number, padded in enumerate(padding):
                for start in range(max(padded - before, 0), tokens, _BLOCK):
                    block, asked = slice(start, start + _BLOCK), queries[number : number + 1, :, start : start + _BLOCK]
                    position = on.next_position(number) - tokens + start
                    out[number, :, block] = on.attend(number, asked, options, _stream(on.number), position)[0]
            return out.transpose(1, 2).to(device)
        found = torch.zeros(queries.shape, dtype=torch.float32)
        for number, (cache, padded) in enumerate(zip(self.sequences.caches, padding)):
            asked = queries[number, :, max(padded - before, 0) :].contiguous()
            if asked.shape[1]:
                output = torch.empty(asked.shape, dtype=torch.float32)
                found[number, :, tokens - asked.shape[1] :] = cache.attend(self.number, asked, window=self.window, out=output, **options)
        return found.transpose(1, 2).contiguous().to(queries.dtype)

    def _on_gpu(
        self,
        on: _OnGpu,
        keys: torch.Tensor,
        values: torch.Tensor,
        queries: torch.Tensor,
        padding: list[int],
        options: dict[str, Any],
        captured: bool,
    ) -> torch.Tensor:
        tokens, stream = keys.shape[2], _stream(on.number)
        if tokens == 1 and (captured or max(padding) <= self.length):
            if on.step(keys, values, stream, captured):
                return on.attend(0, queries, options, stream)
        if captured:
            raise Error("a graph can capture only single tokens, before a page closes: use octaplex.transformers.DecodeGraph")
        starts = [max(padded - self.length, 0) for padded in padding]
        for number, start in enumerate(starts):
            if start < tokens:
                self._calibrate_on(on, number, keys[number, :, start:], queries[number, :, start:])
        if not any(starts):
            if tokens <= _BLOCK:
                for number in range(len(keys)):
                    on.append(number, keys[number], values[number], stream)
                return on.attend(0, queries, options, stream)
            parts = []
            for start in range(0, tokens, _BLOCK):
                for number in range(len(keys)):
                    k, v = (states[number, :, start : start + _BLOCK] for states in (keys, values))
                    on.append(number, k, v, stream)
                parts.append(on.attend(0, queries[:, :, start : start + _BLOCK], options, stream))
            return torch.cat(parts, 2)
        out = torch.zeros_like(queries)  # padding is not appended; its queries get zeros
        for number, first in enumerate(starts):
            for start in range(first, tokens, _BLOCK):
                block = slice(start, start + _BLOCK)
                on.append(number, keys[number, :, block], values[number, :, block], stream)
                out[number, :, block] = on.attend(number, queries[number : number + 1, :, block], options, stream)[0]
        return out

    def _calibrate_on(self, on: _OnGpu, number: int, keys: torch.Tensor, queries: torch.Tensor) -> None:
        """Decides the balance, if the first page closes within this prompt."""
        options = self.owner.options
        closes = keys.shape[1] >= options["sink_tokens"] + options["recent_window"] + options["page"]
        if options["balance"] and closes and on.next_position(number) == 0:
            k, q = (states[:, :_CALIBRATION] for states in (keys, queries))
            on.cache.calibrate(0, number, _gpu.host(k, "keys"), _gpu.host(q, "queries"))

    def _append_attend(
        self, cache: Cache, keys: torch.Tensor, values: torch.Tensor, queries: torch.Tensor, options: dict[str, Any]
    ) -> torch.Tensor:
        self._calibrate(cache, keys, queries)
        outputs, done, tokens = [], 0, keys.shape[1]
        while done < tokens:
            start = cache.next_position(self.number)
            block = slice(done, min(done + self._block_end(start) - start, tokens))
            cache.append(self.number, keys[:, block].contiguous(), values[:, block].contiguous())
            asked = queries[:, block].contiguous()
            outputs.append(cache.attend(self.number, asked, window=self.window, out=torch.empty(asked.shape, dtype=torch.float32), **options))
            done = block.stop
        return torch.cat(outputs, 1)

    def _block_end(self, start: int) -> int:
        """Returns the end of the block that starts with token ``start``. A block reaches from one closing page to the next. So every
        query sees the pages that it would see with tokens appended one by one."""
        sinks, recent, page = (self.owner.options[name] for name in ("sink_tokens", "recent_window", "page"))
        first = sinks + recent + page - 1
        end = first if start < first else _next_page(start, first, page)
        if self.held is None:
            return end
        # A sliding layer drops a page that its newest query no longer sees. The first query of the block must not see it either.
        seen = max(start + 1 - self.held, sinks)
        return min(end, _next_page(seen, sinks, page) + self.held - 1)

    def _calibrate(self, cache: Cache, keys: torch.Tensor, queries: torch.Tensor) -> None:
        """Decides the balance, if the first page closes within this prompt."""
        options = self.owner.options
        exact = cache.specs[self.number][0] in ("f16", "bf16", "f32")
        closes = keys.shape[1] >= options["sink_tokens"] + options["recent_window"] + options["page"]
        if options["balance"] and closes and not exact and cache.next_position(self.number) == 0:
            cache.calibrate(self.number, *(x[:, :_CALIBRATION].contiguous() for x in (keys, queries)))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns length and offset of the mask. It covers all tokens since the start, for sliding layers too."""
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
    """Holds a model's compressed keys and values, which ``attn_implementation="octaplex"`` reads on the model's device.

    It follows the config for full and sliding-window layers. It stores each sequence of a batch separately, without left padding. States
    of linear attention and convolutions stay with transformers. Each page is encoded once.

    After an error in a forward pass, call ``reset()``, because earlier layers already have the pass's tokens.
    """

    def __init__(self, config: Any, *, capacity: Optional[int] = None, **options: Any) -> None:
        """Creates an empty cache for a model's ``config``, with ``capacity`` tokens a sequence (default: ``max_position_embeddings``).

        The options are those of :class:`octaplex.Cache`: codecs, ``bits``, ``profile``, ``page``, ``sink_tokens``, ``recent_window``,
        ``max_rollback`` and others."""
        if unknown := sorted(options.keys() - _DEFAULTS):
            raise Error(f"{', '.join(unknown)}: no option here (windows and shapes come from the model): pass {', '.join(_DEFAULTS)}")
        encodes, config = config, config.get_text_config(decoder=True)
        if getattr(encodes, "is_encoder_decoder", False) or getattr(config, "is_encoder_decoder", False):
            raise Error(
                f"the model ({encodes.model_type}) has an encoder and a decoder, and OctaplexCache serves only decoders: use a cache of "
                "transformers for it"
            )
        if getattr(config, "kv_lora_rank", None):
            raise Error(
                f"the model ({config.model_type}) has multi-head latent attention (MLA), which OctaplexCache does not support: use a cache "
                "of transformers for it"
            )
        kinds, settings = get_layer_types_and_kwargs(config)
        if other := sorted(set(kinds) - {*_OURS, *_THEIRS}):
            raise Error(
                f"the model ({config.model_type}) has layers of {', '.join(other)}: OctaplexCache supports {' and '.join(_OURS)}, and "
                "leaves linear_attention and conv to transformers: use a cache of transformers for this model"
            )
        if not set(kinds) & set(_OURS):
            raise Error(f"the model ({config.model_type}) has no layer of attention: use a cache of transformers for it")
        if isinstance(settings, dict):  # 5.17 has one for all layers
            states = {key: value for key, value in settings.items() if key != "sliding_window"}
            settings = [settings if kind == "sliding_attention" else {} if kind in _OURS else states for kind in kinds]
        self.options = _DEFAULTS | options
        if self.options["profile"] is not None:
            self.options["profile"] = profile_text(self.options["profile"])  # read once, for all layers
        if capacity is None:
            capacity = getattr(config, "max_position_embeddings", None)
        if capacity is None:
            raise Error(f"the model ({config.model_type}) does not say how many tokens it takes: pass capacity")
        self.config, self.capacity = config, _options.whole(capacity, "capacity")
        self._groups: dict[tuple[Any, ...], Union[_Sequences, _OnGpu]] = {}
        self._padding: tuple[Any, list[int]] = (None, [])
        #: The number by which compiled code finds this cache.
        self.handle = _compiled.register(self)
        #: Whether a DecodeGraph is running. It has no mask: each sequence continues after its own tokens.
        self.stepping = False
        again = _read_again(config, kinds)
        #: Layers that stay with transformers, by number: their kind and its arguments.
        self._theirs = {number: (kind, each) for number, (kind, each) in enumerate(zip(kinds, settings)) if kind not in _OURS}
        super().__init__(
            layers=[
                self._their(number) if number in self._theirs else _Layer(self, number, each.get("sliding_window"), number in again)
                for number, each in enumerate(settings)
            ]
        )
        #: Layers whose keys and values this cache holds.
        self.ours = [layer for layer in self.layers if isinstance(layer, _Layer)]
        self._check_options()

    def _check_options(self) -> None:
        """Raises the errors of the first forward pass: creates a cache on the CPU, if the config has a shape that all layers may have."""
        each = getattr(self.config, "per_layer_config", None)  # where layers differ, as in Gemma 4, the config itself has no shape
        config = each[self.ours[0].number] if each else self.config
        heads, queries = (getattr(config, name, None) for name in ("num_key_value_heads", "num_attention_heads"))
        width = getattr(config, "head_dim", None)
        if width is None and isinstance(queries, int) and isinstance(getattr(config, "hidden_size", None), int):
            width = config.hidden_size // max(queries, 1)
        kv_heads, dim = (size if isinstance(size, int) and size > 0 else usual for size, usual in ((heads or queries, 1), (width, 128)))
        settings = settings_of(**self.options, sliding_window=self.ours[0].held, held_layers=self.held_layers())
        _octaplex.Cache(len(self.layers), kv_heads, dim, self.capacity, settings)

    def _their(self, number: int) -> Any:
        """Creates an empty layer of transformers."""
        kind, settings = self._theirs[number]
        return DYNAMIC_LAYER_TYPE_MAPPING[kind](**settings)

    def __deepcopy__(self, memo: Any) -> OctaplexCache:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        copied.handle = _compiled.register(copied)
        return copied

    def _sequences_of(self, batch: int, heads: int, width: int, layer: _Layer, device: Any) -> Union[_Sequences, _OnGpu]:
        """Returns the sequences of a layer. On the CPU, all layers with this shape and window share them, because a Cache has one shape and
        one window. On a GPU each layer has its own."""
        group: tuple[Any, ...] = (heads, width, layer.held)
        number = _number_of(device)
        if number is not None:
            group = (*group, layer.number)
            if group not in self._groups:
                self._groups[group] = _OnGpu(self, layer, batch, (heads, width), number)
        elif group not in self._groups:
            shape = (len(self.layers), heads, width, self.capacity)
            settings = settings_of(**self.options, sliding_window=layer.held, held_layers=self.held_layers())
            caches = [Cache.__new__(Cache)._own(_octaplex.Cache(*shape, settings)) for _ in range(batch)]
            self._groups[group] = _Sequences(caches, layer.number)
        return self._groups[group]

    def held_layers(self) -> Optional[list[int]]:
        """Returns the numbers of the layers that this cache holds, or None if it holds all. ``bits`` and ``profile`` apply to them."""
        return None if len(self.ours) == len(self.layers) else [layer.number for layer in self.ours]

    def reset(self) -> None:
        """Removes all tokens."""
        self._groups.clear()
        self._padding = (None, [])
        super().reset()
        for number in self._theirs:  # theirs would keep the batch size
            recorded = getattr(self.layers[number], "record_past", False)
            self.layers[number] = self._their(number)
            if recorded:
                self.layers[number].activate_past_recording()

    def _padding_of(self, mask: torch.Tensor) -> list[int]:
        """Returns the padding of each sequence in tokens. All layers get the same mask, so it is copied from the GPU once."""
        known = self._padding[0]  # it stays alive, so no other mask has its address
        if known is None or (known.data_ptr(), known.shape) != (mask.data_ptr(), mask.shape):
            self._padding = (mask, (mask.shape[1] - mask.sum(1)).tolist())
        return self._padding[1]

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last ``-tokens_to_remove`` tokens. Up to ``max_rollback`` tokens back the cache is exactly what it was before.

        Beyond that, it raises an error if a sliding window has dropped tokens that would be visible again."""
        if tokens_to_remove > 0:
            raise Error(f"crop({tokens_to_remove}): pass minus the number of tokens to remove, a negative number")
        others = [layer for layer in self.layers if not isinstance(layer, _Layer)]
        # A layer of convolutions goes back only if it has recorded its past.
        if tokens_to_remove and not all(layer.is_croppable and getattr(layer, "record_past", True) for layer in others):
            raise Error("the states of linear attention cannot be taken back: call reset(), and pass the tokens that stay to the model again")

        def ends(sequences: Union[_Sequences, _OnGpu]) -> list[tuple[int, int]]:
            return [(number, max(sequences.next_position(number) + tokens_to_remove, 0)) for number in range(sequences.batch)]

        for sequences in self._groups.values():
            if isinstance(sequences, _OnGpu):
                for end in ends(sequences):
                    sequences.check_truncate(*end)
        for group in sorted(self._groups, key=lambda group: group[2] is None):  # sliding layers first, because they may raise
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
            if not isinstance(layer, _Layer):
                layer.reorder_cache(torch.tensor(indices))
            if hasattr(layer, "batch_size"):
                layer.batch_size = len(indices)

    def on_gpus(self) -> list[_OnGpu]:
        """Returns the layers' caches. Raises an :class:`Error` unless all are on GPUs."""
        found = [sequences for sequences in self._groups.values() if isinstance(sequences, _OnGpu)]
        if len(found) < len(self.ours):
            raise Error("not every layer has tokens on a GPU: call the model with a prompt first, on CUDA")
        return found

    def stats(self) -> Stats:
        """Returns counts over all sequences. ``next_position`` is that of the longest sequence."""
        every = [stats for sequences in self._groups.values() for stats in sequences.stats()]
        together = Stats(*map(sum, zip(*every))) if every else Stats(*[0] * len(Stats._fields))
        return together._replace(next_position=max((stats.next_position for stats in every), default=0))


def _read_again(config: Any, kinds: list[str]) -> set[int]:
    """Returns the layers whose keys and values later layers also read, as in Gemma 3n and Gemma 4.

    The config names them. In 5.17 they are the last ones of each kind before the layers without keys and values of their own."""
    modes = getattr(config, "kv_sharing_modes", None)
    if modes is not None:
        return {number for number, mode in enumerate(modes) if mode == "store"}
    if not getattr(config, "num_kv_shared_layers", None):
        return set()
    return {len(kinds) - 1 - kinds[::-1].index(kind) for kind in set(kinds)}


def _stream(number: int) -> int:
    """Returns PyTorch's current stream of a GPU."""
    return int(torch.cuda.current_stream(number).cuda_stream) if torch.cuda.is_available() else 0


def _is_captured(states: torch.Tensor) -> bool:
    return bool(states.is_cuda and torch.cuda.is_current_stream_capturing())


def _next_page(position: int, first: int, page: int) -> int:
    """Returns the end of the page that contains ``position``, if the first page starts at ``first``."""
    return int(first + ((position - first) // page + 1) * page)


def given(model: Any, cache: OctaplexCache) -> dict[str, Any]:
    """Returns a cache as an argument of a model: ``cache``, which was ``past_key_values`` before transformers 5.24."""
    names = inspect.signature(getattr(getattr(model, "_orig_mod", model), "forward", model)).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}


class DecodeGraph:
    """Runs a model's decode steps as one CUDA graph. A step takes a token of each sequence and returns logits.

    >>> step = DecodeGraph(torch.compile(model), cache)  # doctest: +SKIP
    >>> logits = model(prompt, cache=cache, logits_to_keep=1).logits  # doctest: +SKIP
    >>> for _ in range(100):  # doctest: +SKIP
    ...     logits = step(logits[:, -1:].argmax(-1))

    The first two calls run as usual, and the third is captured. The model may be compiled, in the default mode of ``torch.compile``.
    The cache then allocates memory for its whole capacity, because a graph's memory cannot move: create it with ``capacity``. Model and
    cache must be on one GPU.

    Between steps you may crop the cache and call the model with other tokens: the graph continues after them. ``reset`` and other batches
    need a new graph."""

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
        positions = [layers[0].next_position(number) for number in range(layers[0].batch)]
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
                self._ready(layer)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.logits = self._logits()
            self.graph, self.layers = graph, layers
        if any(mine is not theirs for mine, theirs in zip(self.layers, layers)):
            raise Error("the cache was reset after the graph was captured: create another DecodeGraph")
        for layer in layers:
            self._ready(layer)
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
            found = self.model(self.tokens, **given(self.model, self.cache), position_ids=self.positions, use_cache=True)
        finally:
            self.cache.stepping = False
        logits: torch.Tensor = found.logits
        return logits

    @staticmethod
    def _ready(layer: _OnGpu) -> None:
        """Closes full pages, so that a step is left."""
        if layer.left <= 0:
            layer.settle()
            layer.left = layer.cache.steps_left(0, (0, layer.batch)) or 0
        if layer.left == 0:
            raise Error("the cache is full, or has fewer tokens than its sinks: use a larger capacity, or a longer prompt")


def _number_of(device: Any) -> Optional[int]:
    """Returns the GPU number of a device, or None for the CPU."""
    return int(device.index or 0) if device.type == "cuda" else None


def _check(states: torch.Tensor, what: str) -> None:
    if states.device.type not in ("cpu", "cuda"):
        raise Error(f"{what} are on {states.device}, but octaplex attention runs on the CPU and on CUDA: call model.to('cpu') or model.to('cuda')")
    if states.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise Error(f"{what} are of {states.dtype}: load the model in float32, float16 or bfloat16")


def _attention(
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
    """Implements an attention function of transformers' AttentionInterface. It cannot return attention weights.

    Layers that never have a cache, as in an image encoder, get PyTorch's attention."""
    compiling = torch.compiler.is_compiling()
    layer: Optional[_Layer] = _compiled.updated.pop(getattr(module, "layer_idx", -1), None) if compiling else getattr(key, "layer", None)
    if layer is None:
        if not getattr(module, "is_causal", True) and softcap is None and s_aux is None and not isinstance(attention_mask, _Padding):
            output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
            return output, None
        raise Error(
            "octaplex attention reads an OctaplexCache: pass cache=OctaplexCache(model.config), which is past_key_values= before transformers "
            f"5.24. If you did, {type(module).__name__} does not use it: set attn_implementation={{'text_config': 'octaplex'}} for a model of "
            "text and images, and use another attention for other models"
        )
    _check(query, "queries")
    if torch.is_grad_enabled() and query.requires_grad:
        raise Error("octaplex attention has no gradients: call the model under torch.no_grad()")
    if dropout:
        raise Error("octaplex attention has no dropout: call model.eval()")
    if attention_mask is not None and attention_mask.ndim != 2 and not isinstance(attention_mask, _Padding):
        raise Error(f"attention_mask has {attention_mask.ndim} dimensions: pass None, or [batch, tokens] with padding on the left")
    if kwargs.get("is_causal") is False or kwargs.get("position_bias") is not None:
        raise Error("octaplex attention is causal and has no position bias: this model needs attn_implementation='eager'")
    if "sliding_window" in kwargs and kwargs["sliding_window"] != layer.window:
        asked = kwargs["sliding_window"]
        raise Error(f"layer {layer.number} needs a sliding window of {asked}, but the cache has {layer.window}: create it with this model's config")
    if compiling:
        given = query, key, value, attention_mask, s_aux
        return torch.ops.octaplex.attend(*given, layer.owner.handle, layer.number, scaling, softcap), None
    return layer.attend_with(query, attention_mask, s_aux, scaling, softcap), None


def _is_same(one: Any, other: Any) -> bool:
    """Returns whether two functions have the same code and the same captured values. Then masks need no check of their elements."""
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if not inspect.isfunction(one) or not inspect.isfunction(other):
        return type(one) is type(other) and isinstance(one, (int, float, str, type(None))) and bool(one == other)
    if one is other:
        return True
    cells = [[cell.cell_contents for cell in function.__closure__ or ()] for function in (one, other)]
    return one.__code__ is other.__code__ and one.__defaults__ == other.__defaults__ and _is_same(*cells)


def _mask(
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

    Attention here is causal, with or without a window. Any other pattern, such as chunks or images with full attention among text, raises
    an error. Encoders have no cache and get PyTorch's mask."""
    if local_size is None and _is_same(mask_function, bidirectional_mask_function):
        sizes = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
        return sdpa_mask(**sizes, mask_function=mask_function, attention_mask=attention_mask, use_vmap=use_vmap, device=device, **kwargs)
    usual = causal_mask_function if local_size is None else sliding_window_causal_mask_function(local_size)
    columns = torch.arange(kv_length, device=device) + kv_offset
    for start in range(0, 0 if _is_same(mask_function, usual) else q_length, _MASK_ROWS):
        count = min(_MASK_ROWS, q_length - start)
        shape = {"batch_size": batch_size, "q_length": count, "kv_length": kv_length, "q_offset": q_offset + start, "kv_offset": kv_offset}
        asked = sdpa_mask(**shape, mask_function=mask_function, allow_is_causal_skip=False, use_vmap=use_vmap, device=device)
        rows = (torch.arange(count, device=device) + q_offset + start)[:, None]
        causal = (columns <= rows) & (columns > rows - (local_size or kv_length + kv_offset + 1))
        if not bool((asked == causal).all()):
            raise Error("the model needs a mask that is neither causal nor a sliding window: use attn_implementation='eager' for it")
    if attention_mask is None or bool(attention_mask.all()):
        return None
    padded = (~attention_mask).sum(1, keepdim=True)
    if not torch.equal(attention_mask, torch.arange(attention_mask.shape[1], device=device) >= padded):
        raise Error("attention_mask hides tokens that are not at the left: pass padding_side='left' to the tokenizer")
    return attention_mask[:, None, None].expand(-1, 1, q_length, -1).as_subclass(_Padding)


AttentionInterface.register("octaplex", _attention)
AttentionMaskInterface.register("octaplex", torch.compiler.disable(_mask))  # it reads masks on the host
