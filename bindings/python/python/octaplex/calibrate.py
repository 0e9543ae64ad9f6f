"""Measures which layers of a model need more bits, and writes a profile, as ``octaplex calibrate`` does for GGUF files.

``python -m octaplex.calibrate MODEL --text FILE --out model.octaprofile``; MODEL is a folder or a name of Hugging Face's hub.

It compresses the keys of one layer, or its values, to 2 bits and measures the KL divergence of the next token; all else stays exact. It
also measures each rate with all layers, keys and values apart. The profile follows from both. It needs PyTorch and transformers, which
are imported when it runs, and takes the models that ``octaplex.transformers.OctaplexCache`` takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Callable, Optional
from collections.abc import Sequence

from . import _command, _octaplex
from ._codec import Codec
from ._octaplex import Error

__all__ = ["calibrate", "main"]

#: The name of the attention that reads an OctaplexCache in some layers, and is exact in the others.
_NAME = "octaplex_calibrate"
#: Bits whose KL is foretold; the one in the middle is checked.
_FORETOLD = (2.0, 2.5, 3.0)
#: The first position that reads a page, with the default sinks, window and page: those before it see exact tokens only.
_FIRST_PAGED = 4 + 64 + 64 - 1
#: Rows whose divergences are computed at once.
_ROWS = 64
#: Progress: what runs now.
_Progress = Callable[[str], None]


class _Model:
    """A model of transformers whose layers attend exactly, or read an OctaplexCache: each as a case says. A context manager."""

    def __init__(self, model: Any, progress: _Progress = lambda what: None) -> None:
        self.torch, _ = _command.libraries()
        from . import transformers as ours

        self.ours, self.model, self.progress = ours, model, progress
        self.config = model.config.get_text_config(decoder=True)
        self.before = self.exact = model.config._attn_implementation
        if self.before.startswith("octaplex"):
            self.exact = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
        held = ours.OctaplexCache(self.config, capacity=_FIRST_PAGED + 1).ours
        #: The numbers of the layers that hold keys and values.
        self.layers = [layer.number for layer in held]
        # A skipped layer gives later ones nothing but its output.
        self.blocks = self._blocks() if not any(layer.read_again for layer in held) else None

    def __enter__(self) -> _Model:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

        from .transformers import _attention
        from .transformers._cache import States

        exact = ALL_ATTENTION_FUNCTIONS[self.exact] if self.exact in ALL_ATTENTION_FUNCTIONS.valid_keys() else None
        exact_mask = ALL_MASK_ATTENTION_FUNCTIONS[self.exact]

        def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(key, States):
                if options.get("s_aux") is not None:
                    options["s_aux"] = options["s_aux"].cpu()
                found, _ = _attention.attention(module, query.cpu(), key, value, None, *arguments, **options)
                return found.to(query.device), None
            # Eager attention is each model's own.
            attention = exact or sys.modules[type(module).__module__].eager_attention_forward
            return attention(module, query, key, value, mask, *arguments, **options)

        def mask(*arguments: Any, **options: Any) -> Any:
            _attention.mask(*arguments, **options)  # masks that it refuses are not for OctaplexCache
            return exact_mask(*arguments, **options)

        AttentionInterface.register(_NAME, attend)
        AttentionMaskInterface.register(_NAME, mask)
        self.model.set_attn_implementation(_NAME)
        if self.config._attn_implementation != _NAME:
            self.model.set_attn_implementation(self.before)
            raise Error(f"the model ({self.config.model_type}) has attention of its own, which transformers cannot replace")
        return self

    def __exit__(self, *error: Any) -> None:
        self.model.set_attn_implementation(self.before)

    def _blocks(self) -> Optional[list[Any]]:
        """The model's layers, where they are a list."""
        layers = getattr(self.model.get_decoder(), "layers", None)
        return list(layers) if layers is not None and len(layers) == self.config.num_hidden_layers else None

    def cache(self, layer: Optional[int], **options: Any) -> Any:
        """An OctaplexCache; or with one layer of it, where the others hold keys and values exactly. It is on the CPU, where all codecs
        are and where a query sees what it would see if tokens came one by one; the model is where it is."""
        from transformers.cache_utils import DynamicLayer

        cache = self.ours.OctaplexCache(self.config, max_rollback=0, **options)
        for number in self.layers:
            if layer is not None and number != layer:
                cache.layers[number] = DynamicLayer()
            else:
                take = cache.layers[number].update
                cache.layers[number].update = lambda k, v, *arguments, take=take, **more: take(k.cpu(), v.cpu(), *arguments, **more)
        return cache

    def logits(self, tokens: Any, cache: Any = None) -> Any:
        """Logits [positions, vocabulary] from the first position that reads pages on, except those of the last token."""
        options = {"use_cache": False} if cache is None else {**self.ours.given(self.model, cache), "use_cache": True}
        with self.torch.no_grad():
            found = self.model(input_ids=tokens, logits_to_keep=tokens.shape[1] - _FIRST_PAGED, **options)
        return found.logits[0, :-1].float()

    def shape(self, tokens: Any) -> tuple[int, int]:
        """Key/value heads and width of a layer, found by a run on a few tokens."""
        cache = self.cache(None, keys="f16", values="f16", capacity=_FIRST_PAGED + 1)
        with self.torch.no_grad():
            self.model(input_ids=tokens[:, :2], **self.ours.given(self.model, cache), use_cache=True, logits_to_keep=1)
        for layer in cache.ours:
            if not layer.is_initialized:
                raise Error(f"layer {layer.number} did not attend by transformers' interface: the model has attention of its own")
        shapes = sorted({group[:2] for group in cache._groups})
        if len(shapes) > 1:
            listed = ", ".join(f"{heads} heads of {width}" for heads, width in shapes)
            raise Error(f"the model ({self.config.model_type}) has layers of several shapes ({listed}), and a profile has one")
        heads, width = shapes[0]
        return heads, width

    def fingerprint(self) -> int:
        """A checksum of the first numbers of each weight: whether it is the same model."""
        found = 0
        for name, weight in self.model.named_parameters():
            some = weight.detach().flatten()[:64].to("cpu", self.torch.float32)
            found = zlib.crc32(some.numpy().tobytes(), zlib.crc32(f"{name} {list(weight.shape)}".encode(), found))
        return found


class _Baseline:
    """A model on windows of a text with exact attention: what its caches are measured against."""

    def __init__(self, runs: _Model, windows: Sequence[Any]) -> None:
        self.runs, self.windows = runs, windows
        #: Each layer's output, of each window; None where layers cannot be skipped.
        self.outputs: Optional[list[list[Any]]] = None if runs.blocks is None else []
        self.references = [self._reference(window) for window in windows]

    def _reference(self, window: Any) -> Any:
        self.runs.progress("exact attention")
        outputs: list[Any] = []
        hooks = [block.register_forward_hook(lambda block, given, output: outputs.append(output)) for block in self.runs.blocks or []]
        try:
            reference = self.runs.logits(window)
        finally:
            for hook in hooks:
                hook.remove()
        if not bool(reference.isfinite().all()):
            raise Error("the model's logits are NaN or infinite: try --dtype float32")
        if self.outputs is not None:
            self.outputs.append(outputs)
            if len(outputs) != len(self.runs.blocks or []) or not self.runs.torch.equal(self._logits(window, outputs, None), reference):
                self.outputs = None  # layers change more than what they return
        return reference

    def _logits(self, window: Any, outputs: list[Any], cache: Any) -> Any:
        """Logits where the first layers give these outputs, and are not computed again."""
        blocks = (self.runs.blocks or [])[: len(outputs)]
        before = [block.__dict__.get("forward") for block in blocks]
        try:
            for block, output in zip(blocks, outputs):
                block.forward = lambda *arguments, output=output, **options: output
            return self.runs.logits(window, cache)
        finally:
            for block, forward in zip(blocks, before):
                del block.forward
                if forward is not None:
                    block.forward = forward

    def divergence(self, what: str, layer: Optional[int] = None, **options: Any) -> float:
        """The mean divergence of the next token where the cache has these options, in all layers or in one."""
        found: list[Any] = []
        for number, (window, reference) in enumerate(zip(self.windows, self.references)):
            self.runs.progress(what)
            cache = self.runs.cache(layer, capacity=int(window.shape[1]), **options)
            known = [] if self.outputs is None else self.outputs[number][: layer or 0]
            logits = self._logits(window, known, cache)
            for start in range(0, len(reference), _ROWS):
                p, q = (rows[start : start + _ROWS].double().log_softmax(-1) for rows in (reference, logits))
                found.append((p.exp() * (p - q)).sum(-1))
        mean = float(self.runs.torch.cat(found).mean())
        if not mean < float("inf"):
            raise Error(f"{what}: the divergence is {mean}: try --dtype float32")
        return max(mean, 0.0)


def _case(role: str, codec: str, layer: Optional[int]) -> tuple[str, dict[str, str]]:
    """A measurement in words, and as options of a cache."""
    other = "values" if role == "keys" else "keys"
    where = "all layers" if layer is None else f"layer {layer}"
    return f"{role} {codec} in {where}", {role: codec, other: "f16"}


def calibrate(model: Any, windows: Sequence[Any], name: str, progress: _Progress = lambda what: None) -> str:
    """The profile of a model of transformers on windows of a text, each [1, tokens] on the model's device: its text.

    ``name`` is the model's, for people. ``progress`` is called with what is run, before each run. A profile needs at least 256 tokens a
    window, and wants 512.

    >>> text = octaplex.calibrate.calibrate(model, [tokens], "my model")  # doctest: +SKIP
    >>> cache = OctaplexCache(model.config, profile=text, bits=2.5)  # doctest: +SKIP
    """
    for window in windows:
        _check_window(window)
    with _Model(model, progress) as runs:
        return _calibrated(runs, windows, name, _Kept(None), {})[0]


def _calibrated(runs: _Model, windows: Sequence[Any], name: str, kept: _Kept, key: dict[str, Any]) -> tuple[str, tuple[int, int]]:
    """The profile and the shape of a layer. What is kept under the key is not measured again."""
    shape = runs.shape(windows[0])
    calibration = _octaplex.Calibration(len(runs.layers), *shape)
    baseline: Optional[_Baseline] = None
    divergences = []
    for role, codec, place in calibration.cases():
        layer = None if place is None else runs.layers[place]
        measured = {**key, "measured": {"role": role, "codec": codec, "layer": layer}}
        kl = kept.find(measured)
        if kl is None:
            baseline = baseline or _Baseline(runs, windows)
            what, options = _case(role, codec, layer)
            kl = baseline.divergence(what, layer, **options)
            kept.add(measured, kl)
        divergences.append(kl)
    return calibration.profile(name, divergences), shape


def _check_window(window: Any) -> None:
    count = int(window.shape[-1])
    if tuple(window.shape) != (1, count):
        raise Error(f"a window has the shape {list(window.shape)}; one sequence, [1, tokens], is expected")
    if count <= _FIRST_PAGED + 1:
        raise Error(f"{count} tokens: no page closes, and nothing is compressed; give at least 256")


class _Kept:
    """Results in a file, a line of JSON each, written as soon as they are there."""

    def __init__(self, path: Optional[Path]) -> None:
        self.path = path
        self.rows: list[tuple[dict[str, Any], float]] = []
        if path is None or not path.exists():
            return
        whole, end, part = path.read_bytes().rpartition(b"\n")
        for number, line in enumerate(whole.splitlines()):
            try:
                row = json.loads(line)
                self.rows.append((dict(row["run"]), float(row["kl"])))
            except (ValueError, KeyError, TypeError):
                raise Error(f"{path}, line {number + 1}: no result of a calibration; remove the file to start again") from None
        if part:  # the last line of a run that was interrupted
            path.write_bytes(whole + end)

    def find(self, key: dict[str, Any]) -> Optional[float]:
        """The result of this measurement."""
        return next((kl for run, kl in self.rows if run == key), None)

    def add(self, key: dict[str, Any], kl: float) -> None:
        """Adds a result to the file."""
        self.rows.append((key, kl))
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": key, "kl": kl}) + "\n")


def _picture(specs: Sequence[tuple[str, str]], layers: Sequence[int], width: int) -> str:
    """A line for each layer: the bits of its keys and of its values, as bars."""
    bits = {spec: Codec(spec, width).bits_per_value for pair in specs for spec in pair}

    def bar(spec: str) -> str:
        return f"{'▇' * round(3 * bits[spec])} {bits[spec]:.1f}"

    rows = [f"{layer:>4}  {bar(keys):<26} {bar(values)}\n" for layer, (keys, values) in zip(layers, specs)]
    return f"      {'keys':<26} values\n{''.join(rows)}"


def _table(profile: str, layers: int, shape: tuple[int, int]) -> str:
    """Returns a table of the KL that the profile expects at each number of bits."""
    rows = "  bits   expected KL   without a profile\n"
    for bits in _FORETOLD:
        found = []
        for text in (profile, None):
            try:
                found.append(_octaplex.expected_divergence(profile, _specs(text, layers, shape, bits)))
            except Error:  # the smallest codecs take more bits
                found.append(None)
        with_it, without = ("-" if kl is None else f"{kl:.4f}" for kl in found)
        rows += f"{bits:>6.1f} {with_it:>13} {without:>19}\n"
    return rows


def _specs(profile: Optional[str], layers: int, shape: tuple[int, int], bits: float) -> list[tuple[str, str]]:
    """The codecs of each layer."""
    from ._cache import Cache

    return Cache(layers, *shape, 256, bits=bits, profile=profile).specs


def _run(options: argparse.Namespace) -> str:
    text_file, out, count, windows = Path(options.text), Path(options.out), options.tokens, options.windows
    start = time.monotonic()
    text = _command.read(text_file, out)
    if count <= _FIRST_PAGED + 1:
        raise Error(f"--tokens {count}: no page closes, and nothing is compressed; give at least 256")
    part = out.with_name(f"{out.name}.part")
    kept = _Kept(part)
    tokenizer, model = _command.load(options)
    config = model.config.get_text_config(decoder=True)
    limit = _command.limit_of(config)
    if limit and count > limit:
        raise Error(f"--tokens {count}: more than the {limit} that the model was made for")
    needed = count * (windows + 1)
    tokens = _command.tokens_of(tokenizer, text, needed)
    if tokens.shape[1] < needed:
        raise Error(f"{text_file}: {tokens.shape[1]} tokens, but {needed} are needed: {windows} x {count}, and {count} to check the result")
    parts = list(tokens.to(options.device).split(count, 1))
    name = Path(options.model).resolve().name if Path(options.model).exists() else str(options.model)
    name = "".join(character if character.isprintable() else "?" for character in f"{name} ({config.model_type})").strip()
    dtype = str(model.dtype).replace("torch.", "")
    exact = dtype == "float32"

    done = total = 0
    with _command.Progress() as show:

        def progress(what: str) -> None:
            nonlocal done
            done += 1
            show(f"run {done} of {total}: {what}")

        with _Model(model, progress) as runs:
            key = {
                "model": name, "weights": runs.fingerprint(), "dtype": dtype, "device": options.device,
                "text": zlib.crc32(tokens[:, : count * windows].numpy().tobytes()), "window_tokens": count, "windows": windows,
            }
            cases = len(_octaplex.Calibration(len(runs.layers), *runs.shape(parts[0])).cases())
            missing = cases - sum({**run, "measured": None} == {**key, "measured": None} for run, _ in kept.rows)
            total = (missing + (missing > 0)) * windows + 4 - exact  # the last ones check the result
            profile, shape = _calibrated(runs, parts[:windows], name, kept, key)
            baseline = _Baseline(runs, parts[windows:])
            bits = _FORETOLD[1]
            with_it = baseline.divergence("the check, with the profile", bits=bits, profile=profile)
            without = baseline.divergence("the check, without a profile", bits=bits)
            rounding = None if exact else baseline.divergence("the check, with f16", keys="f16", values="f16")
            layers = runs.layers
    noise = ""
    if rounding is not None:
        noise = f"An exact cache has KL {rounding:.4f} there, from rounding to {dtype} alone: float32 tells layers apart that lose less.\n"
    _command.write(out, lambda path: path.write_text(profile, encoding="utf-8"))
    part.unlink(missing_ok=True)  # all of it is in the profile now
    return (
        f"{name}: {len(layers)} layers of {shape[0]} key/value heads of {shape[1]}\n"
        f"{text_file}, {windows} {'window' if windows == 1 else 'windows'} of {count} tokens; {dtype} on {options.device}\n\n"
        f"Bits of each layer at {bits} bits a value:\n\n"
        f"{_picture(_specs(profile, len(layers), shape, bits), layers, shape[1])}\n{_table(profile, len(layers), shape)}\n"
        f"Checked at {bits} bits on the {count} tokens that follow: KL {with_it:.4f} with the profile, {without:.4f} without.\n{noise}"
        f"{time.monotonic() - start:.0f} s\n\n"
        f"Next: OctaplexCache(model.config, profile={str(out)!r}, bits={bits})"
    )


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command line. Returns the exit code."""
    parser = _command.parser(
        "calibrate",
        "Measures which layers of a model need more bits, and writes a profile for `OctaplexCache(profile=...)`.",
        text="a text file in UTF-8, read from its start; prose serves code as well",
        out="the profile to write",
        epilog="Each result is kept at once, in FILE.part beside the profile. A run that was interrupted goes on when it is started again.",
    )
    parser.add_argument("--tokens", metavar="N", type=_command.count, default=512, help="tokens of a window (default: 512)")
    parser.add_argument("--windows", metavar="N", type=_command.count, default=1, help="windows; one more checks the result (default: 1)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16", "auto"), default="float32",
        help="the model's numbers; auto: as its file has them (default: float32, as rounding to 16 bits hides what a layer loses)",
    )
    return _command.run("calibrate", _run, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
