"""Writes a model's keys, values and queries on your text, as the file that ``octaplex compare --input`` reads.

``python -m octaplex.capture MODEL --text FILE --out kv.safetensors``; MODEL is a folder or a name of Hugging Face's hub.

The file has tensors in float32: ``k`` (after the rotary embedding) and ``v`` [layers, kv_heads, tokens, head_dim], ``q``
[layers, q_heads, queries, head_dim], and ``q_pos``, the token of each query. It needs PyTorch and transformers, which are imported when
it runs, and works with every model whose attention transformers can replace (``attn_implementation``). Written for transformers 5.23.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from typing import Any, Optional, Sequence

from ._octaplex import Error

__all__ = ["capture", "main"]

#: The name of the attention that keeps what it is given.
_NAME = "octaplex_capture"
_NEEDS = "pip install torch transformers"


def _import() -> tuple[Any, Any]:
    """PyTorch and transformers."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise Error(f"a model of transformers is needed, and {error.name} is not installed: {_NEEDS}") from error
    return torch, transformers


def _layers(asked: Optional[Sequence[int]], windows: Sequence[Optional[int]], tokens: int) -> list[int]:
    """The layers that were asked for, in order; by default the first, the middle and the last that see all tokens."""
    sees_all = [window is None or window >= tokens for window in windows]
    if asked is None:
        every = [layer for layer, sees in enumerate(sees_all) if sees]
        if not every:
            raise Error(f"no layer sees all {tokens} tokens: give fewer, at most {max(window or 0 for window in windows)}")
        return sorted({every[0], every[len(every) // 2], every[-1]})
    for layer in asked:
        if not 0 <= layer < len(windows):
            raise Error(f"layer {layer} is out of range (0..{len(windows)})")
        if not sees_all[layer]:
            raise Error(
                f"layer {layer} sees {windows[layer]} tokens only, and compare takes all: leave it out, or give {windows[layer]} tokens"
            )
    return sorted(set(asked))


def _windows(config: Any) -> list[Optional[int]]:
    """Tokens that each layer sees; None for all."""
    window = getattr(config, "sliding_window", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return [None] * int(config.num_hidden_layers)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * int(config.num_hidden_layers)
    return [int(window) if kind == "sliding_attention" else None for kind in types]


class _Recorder:
    """Attention that keeps its keys, values and queries of some layers, and lets transformers' own compute."""

    def __init__(self, torch: Any, layers: Sequence[int], positions: Sequence[int], progress: Any) -> None:
        self.torch, self.layers, self.progress = torch, set(layers), progress
        self.positions = torch.tensor(positions)
        self.kept: dict[int, tuple[Any, Any, Any]] = {}

    def attend(self, attention: Any, module: Any, query: Any, key: Any, value: Any, *arguments: Any, **options: Any) -> Any:
        layer = int(module.layer_idx)
        self.progress(layer)
        for name, what in (("softcap", "a soft cap"), ("s_aux", "sinks' logits")):
            if options.get(name) is not None:
                raise Error(f"layer {layer} attends with {what}, and compare without: such models are not supported")
        if layer in self.layers:
            if layer in self.kept:
                raise Error(f"layer {layer} attends twice: models that share layers, or with two kinds of attention, are not supported")
            if key.shape != value.shape:
                shapes = f"{list(key.shape)} and {list(value.shape)}"
                raise Error(f"keys and values have the shapes {shapes}: models whose values have another width are not supported")
            # Scores of transformers are scaled by what the model says, and those of compare by 1/sqrt(head_dim).
            scaling = options.get("scaling")
            scale = 1.0 if scaling is None else float(scaling) * float(query.shape[-1]) ** 0.5
            rows = (key, value, query[:, :, self.positions.to(query.device)] * scale)
            self.kept[layer] = tuple(tensor[0].detach().to("cpu", self.torch.float32, copy=True) for tensor in rows)
        return attention(module, query, key, value, *arguments, **options)


def capture(
    model: Any, tokens: Any, layers: Optional[Sequence[int]] = None, queries: int = 64, progress: Any = lambda layer: None
) -> tuple[dict[str, Any], list[int]]:
    """Keys, values and queries of a model of transformers on one sequence of tokens [1, tokens]: what goes into the file, and the layers.

    ``queries`` of each query head are kept, at equal distances; the last is at the last token. ``progress`` is called with each layer's
    number.
    """
    torch, transformers = _import()
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    count = int(tokens.shape[-1])
    if tuple(tokens.shape) != (1, count) or count == 0:
        raise Error(f"tokens have the shape {list(tokens.shape)}; one sequence, [1, tokens], is expected")
    if queries < 1:
        raise Error(f"{queries} queries; at least 1 is expected")
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
            f"layer {missing[0]} did not attend by transformers' interface: a layer without attention, or a model with attention of its "
            "own; choose other layers"
        )
    k, v, q = (torch.stack([recorder.kept[layer][part] for layer in chosen]).numpy() for part in range(3))
    return {"k": k, "v": v, "q": q, "q_pos": torch.tensor(positions, dtype=torch.int32).numpy()}, chosen


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}': numbers with commas between them are expected, for example 0,12,23") from None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}': a number from 1 on is expected")
    return int(text)


def _run(arguments: argparse.Namespace) -> str:
    text_file, out = Path(arguments.text), Path(arguments.out)
    try:
        text = text_file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Error(f"{text_file}: not text in UTF-8") from None
    if not out.absolute().parent.is_dir():
        raise Error(f"{out}: no such folder")
    torch, transformers = _import()
    from safetensors.numpy import save_file

    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # each of its tries is a warning
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
        model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=arguments.dtype).eval().to(arguments.device)
    except (OSError, ValueError, RuntimeError) as error:
        raise Error(f"{arguments.model}: {str(error).strip().splitlines()[0]}") from error
    config = model.config.get_text_config()
    limit = int(getattr(config, "max_position_embeddings", 0) or 0)
    most = arguments.tokens or min(1024, limit or 1024)
    if limit and most > limit:
        raise Error(f"{most} tokens are more than the {limit} that the model was made for")
    tokens = tokenizer(text, return_tensors="pt", truncation=False, verbose=False)["input_ids"][:, :most]
    if arguments.tokens is None and tokens.shape[1] > 64:  # whole pages of a cache: the rest would stay exact
        tokens = tokens[:, : tokens.shape[1] // 64 * 64]
    if tokens.shape[1] < (arguments.tokens or 1):
        raise Error(f"{text_file}: {tokens.shape[1]} tokens, but {most} are needed")
    shown = sys.stderr.isatty()
    start = time.monotonic()

    def progress(layer: int) -> None:
        if shown:
            print(f"\rreading {tokens.shape[1]} tokens: layer {layer + 1} of {config.num_hidden_layers}", end="", file=sys.stderr, flush=True)

    try:
        tensors, layers = capture(model, tokens.to(arguments.device), arguments.layers, arguments.queries, progress)
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr)
    for name in ("k", "v", "q"):
        if not bool(torch.from_numpy(tensors[name]).isfinite().all()):
            raise Error(f"{name} has values that are NaN or infinite: try --dtype float32")
    listed = ", ".join(str(layer) for layer in layers)
    partial = out.with_name(f".{out.name}.part")
    try:
        save_file(tensors, partial, metadata={"model": str(arguments.model), "text": text_file.name, "layers": listed})
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    _, kv_heads, count, width = tensors["k"].shape
    megabytes = out.stat().st_size / 1e6
    return (
        f"{out}: layers {listed}, {kv_heads} key/value and {tensors['q'].shape[1]} query heads of {width}, {count} tokens, "
        f"{tensors['q'].shape[2]} queries of each query head; {megabytes:.1f} MB, {time.monotonic() - start:.1f} s\n"
        f"Next: octaplex compare --input {out}"
    )


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m octaplex.capture",
        description="Writes a model's keys, values and queries on your text, as the file that `octaplex compare --input` reads.",
    )
    parser.add_argument("model", metavar="MODEL", help="a model of transformers: a folder, or a name of the hub")
    parser.add_argument("--text", metavar="FILE", required=True, help="a text in UTF-8, read from its start")
    parser.add_argument("--out", metavar="FILE", required=True, help="where the tensors go: a safetensors file")
    parser.add_argument("--tokens", metavar="N", type=_count, help="tokens of the text (default: 1024, or as many pages of 64 as it fills)")
    parser.add_argument(
        "--layers", metavar="N,N,...", type=_numbers, help="layers, counted from 0 (default: the first, the middle and the last)"
    )
    parser.add_argument(
        "--queries", metavar="N", type=_count, default=64, help="queries of each query head, at equal distances (default: 64)"
    )
    parser.add_argument("--dtype", default="auto", help="the model's numbers: auto (as its file has them), float32, bfloat16, float16")
    parser.add_argument("--device", default="cpu", help="where the model runs: cpu, cuda")
    options = parser.parse_args(arguments)
    try:
        print(_run(options))
    except (Error, OSError) as error:
        print(f"octaplex.capture: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
