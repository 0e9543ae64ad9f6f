"""Writes a model's keys, values and queries on your text to a file for ``octaplex compare --input``.

``python -m octaplex.capture MODEL --text FILE --out kv.safetensors``; MODEL is a folder or a name of Hugging Face's hub.

The file has float32 tensors: ``k`` (after the rotary embedding) and ``v`` [layers, kv_heads, tokens, head_dim], and ``q``
[layers, q_heads, queries, head_dim]. ``q_pos`` is the token of each query.

It needs PyTorch and transformers, and imports them when it runs. It works with every model whose attention transformers can replace
(``attn_implementation``). It supports transformers 5.23.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Optional
from collections.abc import Sequence

from . import _command
from ._octaplex import Error

__all__ = ["capture", "main"]

#: The name of the attention that records its arguments.
_NAME = "octaplex_capture"


def _layers(asked: Optional[Sequence[int]], windows: Sequence[Optional[int]], tokens: int) -> list[int]:
    """Returns the requested layers in order; by default the first, the middle and the last that see all tokens."""
    sees_all = [window is None or window >= tokens for window in windows]
    if asked is None:
        every = [layer for layer, sees in enumerate(sees_all) if sees]
        if not every:
            raise Error(f"no layer sees all {tokens} tokens: pass fewer, at most {max(window or 0 for window in windows)}")
        return sorted({every[0], every[len(every) // 2], every[-1]})
    for layer in asked:
        if not 0 <= layer < len(windows):
            raise Error(f"layer {layer} is out of range (0..{len(windows)})")
        if not sees_all[layer]:
            raise Error(
                f"layer {layer} sees {windows[layer]} tokens only, and compare needs all: leave it out, or pass {windows[layer]} tokens"
            )
    return sorted(set(asked))


def _windows(config: Any) -> list[Optional[int]]:
    """Returns how many tokens each layer sees; None for all."""
    window = getattr(config, "sliding_window", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return [None] * int(config.num_hidden_layers)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * int(config.num_hidden_layers)
    return [int(window) if kind == "sliding_attention" else None for kind in types]


class _Recorder:
    """Records keys, values and queries of some layers, and calls transformers' own attention."""

    def __init__(self, torch: Any, layers: Sequence[int], positions: Sequence[int], progress: Any) -> None:
        self.torch, self.layers, self.progress = torch, set(layers), progress
        self.positions = torch.tensor(positions)
        self.kept: dict[int, tuple[Any, Any, Any]] = {}

    def attend(self, attention: Any, module: Any, query: Any, key: Any, value: Any, *arguments: Any, **options: Any) -> Any:
        layer = int(module.layer_idx)
        self.progress(layer)
        for name, what in (("softcap", "a soft cap"), ("s_aux", "sinks' logits")):
            if options.get(name) is not None:
                raise Error(f"layer {layer} attends with {what}, which compare does not support: choose another model")
        if layer in self.layers:
            if layer in self.kept:
                raise Error(f"layer {layer} attends twice: capture does not support models that share layers or have two kinds of attention")
            if key.shape != value.shape:
                shapes = f"{list(key.shape)} and {list(value.shape)}"
                raise Error(f"keys and values have the shapes {shapes}: capture does not support models whose values have another width")
            # The model chooses the scale of its scores, but compare always uses 1/sqrt(head_dim).
            scaling = options.get("scaling")
            scale = 1.0 if scaling is None else float(scaling) * float(query.shape[-1]) ** 0.5
            rows = (key, value, query[:, :, self.positions.to(query.device)] * scale)
            self.kept[layer] = tuple(tensor[0].detach().to("cpu", self.torch.float32, copy=True) for tensor in rows)
        return attention(module, query, key, value, *arguments, **options)


def capture(
    model: Any, tokens: Any, layers: Optional[Sequence[int]] = None, queries: int = 64, progress: Any = lambda layer: None
) -> tuple[dict[str, Any], list[int]]:
    """Runs a model of transformers on one sequence of tokens [1, tokens]. Returns the file's tensors, and the numbers of the layers.

    It keeps ``queries`` queries of each query head, at equal distances; the last is at the last token. It calls ``progress`` with each
    layer's number.
    """
    torch, _ = _command.libraries()
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    count = int(tokens.shape[-1])
    if tuple(tokens.shape) != (1, count) or count == 0:
        raise Error(f"tokens have the shape {list(tokens.shape)}: pass one sequence, [1, tokens]")
    if queries < 1:
        raise Error(f"queries is {queries}: pass at least 1")
    config = model.config.get_text_config()
    chosen = _layers(layers, _windows(config), count)
    kept_queries = min(queries, count)
    positions = [query * count // kept_queries - 1 for query in range(1, kept_queries + 1)]
    recorder = _Recorder(torch, chosen, positions, progress)

    def attend(*arguments: Any, **options: Any) -> Any:
        return recorder.attend(sdpa_attention_forward, *arguments, **options)

    before = model.config._attn_implementation
    AttentionInterface.register(_NAME, attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    try:
        model.set_attn_implementation(_NAME)
        with torch.no_grad():
            model(input_ids=tokens, use_cache=False, logits_to_keep=1)
    finally:
        model.set_attn_implementation(before)
    missing = [layer for layer in chosen if layer not in recorder.kept]
    if missing:
        raise Error(
            f"layer {missing[0]} did not use transformers' attention interface: it has no attention, or the model has its own; "
            "choose other layers"
        )
    k, v, q = (torch.stack([recorder.kept[layer][part] for layer in chosen]).numpy() for part in range(3))
    return {"k": k, "v": v, "q": q, "q_pos": torch.tensor(positions, dtype=torch.int32).numpy()}, chosen


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}': expected numbers with commas between them, for example 0,12,23") from None


def _run(options: argparse.Namespace) -> str:
    text_file, out = Path(options.text), Path(options.out)
    text = _command.read(text_file, out)
    torch, _ = _command.libraries()
    from safetensors.numpy import save_file

    tokenizer, model = _command.load(options)
    config = model.config.get_text_config()
    limit = _command.limit_of(config)
    most = options.tokens or min(1024, limit or 1024)
    if limit and most > limit:
        raise Error(f"{most} tokens are more than the model's limit of {limit}: pass fewer")
    tokens = _command.tokens_of(tokenizer, text, most)
    if options.tokens is None and tokens.shape[1] > 64:  # whole pages only, because a cache would keep the rest exact
        tokens = tokens[:, : tokens.shape[1] // 64 * 64]
    if tokens.shape[1] < (options.tokens or 1):
        raise Error(f"{text_file}: {tokens.shape[1]} tokens, but {most} are needed")
    start = time.monotonic()
    with _command.Progress() as show:

        def progress(layer: int) -> None:
            show(f"reading {tokens.shape[1]} tokens: layer {layer + 1} of {config.num_hidden_layers}")

        tensors, layers = capture(model, tokens.to(options.device), options.layers, options.queries, progress)
    for name in ("k", "v", "q"):
        if not bool(torch.from_numpy(tensors[name]).isfinite().all()):
            raise Error(f"{name} has values that are NaN or infinite: try --dtype float32")
    listed = ", ".join(str(layer) for layer in layers)
    metadata = {"model": str(options.model), "text": text_file.name, "layers": listed}
    _command.write(out, lambda path: save_file(tensors, path, metadata=metadata))
    _, kv_heads, count, width = tensors["k"].shape
    megabytes = out.stat().st_size / 1e6
    return (
        f"{out}: layers {listed}, {kv_heads} key/value and {tensors['q'].shape[1]} query heads of {width}, {count} tokens, "
        f"{tensors['q'].shape[2]} queries of each query head; {megabytes:.1f} MB, {time.monotonic() - start:.1f} s\n"
        f"Next: octaplex compare --input {out}"
    )


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command line. Returns the exit code."""
    parser = _command.parser(
        "capture",
        "Writes a model's keys, values and queries on your text to a file for `octaplex compare --input`.",
        text="a text file in UTF-8",
        out="the safetensors file to write",
    )
    parser.add_argument(
        "--tokens", metavar="N", type=_command.count,
        help="tokens of the text (default: 1024, or the full pages of 64 tokens in a shorter text)",
    )
    parser.add_argument(
        "--layers", metavar="N,N,...", type=_numbers, help="layers, counted from 0 (default: the first, the middle and the last)"
    )
    parser.add_argument(
        "--queries", metavar="N", type=_command.count, default=64, help="queries of each query head, at equal distances (default: 64)"
    )
    parser.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto", help="the model's type (default: that of its file)"
    )
    return _command.run("capture", _run, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
