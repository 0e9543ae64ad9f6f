"""``python -m octaplex.calibrate``: profiles say what the model loses, and caches take them; and what it says of mistakes."""

import json

import commands
import octaplex
import pytest
from commands import needs_models, run
from octaplex import calibrate


def test_mistakes_are_one_line(tmp_path):
    (tmp_path / "other.octaprofile.part").write_text("not json\n")
    commands.refused("calibrate", tmp_path, [
        ("text.txt", "x.octaprofile", ["--tokens", "132"], ["--tokens 132", "at least 256"]),
        ("text.txt", "other.octaprofile", [], ["other.octaprofile.part, line 1"]),
    ])
    commands.refused_arguments("calibrate", [(["--windows", "0"], "from 1 on"), (["--dtype", "int8"], "int8")])


COMMON = dict(
    vocab_size=120, hidden_size=128, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    max_position_embeddings=600, pad_token_id=0, bos_token_id=1, eos_token_id=None, initializer_range=0.1,
)
LOCAL = dict(num_hidden_layers=3, sliding_window=70, layer_types=["sliding_attention", "full_attention", "sliding_attention"])


def tiny(name):
    """A model with random weights, and the numbers of its layers that hold keys and values."""
    import kinds
    import torch
    import transformers

    torch.manual_seed(3)
    if name in ("gemma3n", "gemma4", "lfm2"):
        config = kinds.configs({**COMMON, "head_dim": 32}).get(name)
        if config is None:
            pytest.skip(f"this version of transformers has no {name}")
        layers = {"gemma3n": [0, 1, 2, 3], "gemma4": [], "lfm2": [1, 3]}[name]
    else:
        config, layers = {
            "llama": (lambda: transformers.LlamaConfig(num_hidden_layers=3, **COMMON), [0, 1, 2]),
            "gemma2": (lambda: transformers.Gemma2Config(attn_logit_softcapping=3.0, **LOCAL, **COMMON), [0, 1, 2]),
            "gemma3": (lambda: transformers.Gemma3TextConfig(query_pre_attn_scalar=50, **LOCAL, **COMMON), [0, 1, 2]),
            "bloom": (lambda: transformers.BloomConfig(vocab_size=120, hidden_size=128, n_layer=2, n_head=2), []),
            "width": (lambda: transformers.LlamaConfig(num_hidden_layers=1, **{**COMMON, "head_dim": 48}), []),
        }[name]
    return transformers.AutoModelForCausalLM.from_config(config(), dtype=torch.float32).eval(), layers


def window_of(count, seed=5):
    import torch

    return torch.randint(2, 120, (1, count), generator=torch.Generator().manual_seed(seed))


def lines_of(profile, word):
    return [line.split()[1:] for line in profile.splitlines() if line.startswith(word + " ")]


@needs_models
@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "gemma3n", "lfm2"])
def test_a_profile_is_what_the_caches_lose(name):
    import kinds
    import torch
    from octaplex.transformers import OctaplexCache

    model, layers = tiny(name)
    windows, seen, before = [window_of(260), window_of(260, 6)], [], model.config._attn_implementation
    profile = calibrate.calibrate(model, windows, "tiny", seen.append)
    assert model.config._attn_implementation == before
    assert len(lines_of(profile, "layer")) == len(layers) and lines_of(profile, "model") == [["tiny"]]
    cases = len(lines_of(profile, "keys")) + len(lines_of(profile, "values")) + 2 * len(layers)
    assert len(seen) == 2 * (cases + 1) and seen[0] == "exact attention"

    # All layers' values at 2 bits, by the attention of OctaplexCache alone: the sum of the sensitivities of values.
    def divergence(window):
        with torch.no_grad():
            exact = model(window, use_cache=False).logits[0, 131:-1]
            model.set_attn_implementation("octaplex")
            cache = OctaplexCache(model.config, keys="f16", values="trellis:m=2", max_rollback=0)
            found = model(window, **kinds.given(cache)).logits[0, 131:-1]
            model.set_attn_implementation(before)
        p, q = (logits.double().log_softmax(-1) for logits in (exact, found))
        return (p.exp() * (p - q)).sum(-1).mean()

    wanted = float(sum(map(divergence, windows)) / 2)
    found = sum(float(values) for _, _, values in lines_of(profile, "layer"))
    assert abs(found - wanted) < 1e-3 * wanted + 1e-8

    # A cache takes it, and spends its bits on the layers that hold something.
    cache = OctaplexCache(model.config, profile=profile, bits=2.5)
    model.set_attn_implementation("octaplex")
    with torch.no_grad():
        model(windows[0], **kinds.given(cache))
    caches = [group.caches[0] for group in cache._groups.values()]
    config = octaplex.Cache(len(layers), caches[0].kv_heads, caches[0].head_dim, 1000, profile=profile, bits=2.5)
    for each in caches:
        assert [each.specs[layer] for layer in layers] == config.specs


@needs_models
def test_layers_that_change_nothing_get_the_fewest_bits():
    model, _ = tiny("llama")
    model.model.layers[1].self_attn.o_proj.weight.data.zero_()
    profile = calibrate.calibrate(model, [window_of(300)], "tiny")
    assert lines_of(profile, "layer")[1] == ["1", "0", "0"]
    cache = octaplex.Cache(3, 2, 64, 1000, profile=profile, bits=2.5)
    assert cache.specs[1] == ("trellis:m=1", "trellis:m=1") and cache.specs[0] != cache.specs[1] != cache.specs[2]


@needs_models
def test_layers_that_are_not_computed_again_make_no_difference():
    model, _ = tiny("gemma3")
    with calibrate._Model(model) as runs:
        baseline = calibrate._Baseline(runs, [window_of(260)])
        assert baseline.outputs is not None
        options = dict(keys="f16", values="trellis:m=2")
        found = baseline.divergence("layer 2", 2, **options)
        baseline.outputs = None
        assert found == baseline.divergence("layer 2", 2, **options) > 0


@needs_models
@pytest.mark.parametrize(
    "name, words", [("gemma4", "layers of several shapes"), ("bloom", "bloom.*of its own"), ("width", "width 48")]
)
def test_models_that_no_profile_is_for_are_refused(name, words):
    model, _ = tiny(name)
    before = model.config._attn_implementation
    with pytest.raises(octaplex.Error, match=words):
        calibrate.calibrate(model, [window_of(260)], "tiny")
    assert model.config._attn_implementation == before


@needs_models
def test_windows_that_no_page_is_in_are_refused():
    for window, words in [(window_of(132), "at least 256"), (window_of(300).reshape(2, 150), "one sequence")]:
        with pytest.raises(octaplex.Error, match=words):
            calibrate.calibrate(tiny("llama")[0], [window], "tiny")


@needs_models
def test_the_command_goes_on_where_it_was_interrupted(tmp_path, monkeypatch, capsys):
    import tokenizers
    import transformers

    folder = tmp_path / "tiny"
    tiny("llama")[0].save_pretrained(folder)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{number}": number for number in range(120)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    text, out, part = (tmp_path / name for name in ("text.txt", "tiny.octaprofile", "tiny.octaprofile.part"))
    text.write_text(" ".join(f"w{number * number * 7 % 118 + 2}" for number in range(530)))
    arguments = [str(folder), "--text", str(text), "--out", str(out), "--tokens", "256"]

    measured, divergence = [], calibrate._Baseline.divergence

    def until(most):
        def measure(baseline, what, *layer, **options):
            if len(measured) == most:
                raise KeyboardInterrupt
            measured.append(what)
            return divergence(baseline, what, *layer, **options)

        measured.clear()
        monkeypatch.setattr(calibrate._Baseline, "divergence", measure)

    until(5)
    with pytest.raises(KeyboardInterrupt):
        calibrate.main(arguments)
    assert len(part.read_text().splitlines()) == 5 and not out.exists()
    assert json.loads(part.read_text().splitlines()[0])["run"]["measured"] == {"role": "keys", "codec": "trellis:m=1", "layer": None}
    with part.open("a") as file:
        file.write('{"run": {"half')
    until(None)
    assert calibrate.main(arguments) == 0
    assert len(measured) == 17 + 6 - 5 + 2 and not part.exists()
    said = capsys.readouterr().out
    for words in ["tiny (llama): 3 layers of 2 key/value heads of 64", "1 window of 256 tokens; float32 on cpu", "Bits of each layer at 2.5 bits", "Checked at 2.5"]:
        assert words in said, said
    assert f"Next: OctaplexCache(model.config, profile='{out}', bits=2.5)" in said
    assert octaplex.Cache(3, 2, 64, 1000, profile=out, bits=2.5).specs

    # Rounding of the model is said.
    other = tmp_path / "half.octaprofile"
    assert calibrate.main([*arguments[:4], str(other), *arguments[5:], "--dtype", "bfloat16"]) == 0
    said = capsys.readouterr().out
    assert "bfloat16 on cpu" in said and "from rounding to bfloat16 alone" in said
    other.unlink()

    # The same at once; and nothing of another text is taken.
    first = out.read_text()
    until(1)
    with pytest.raises(KeyboardInterrupt):
        calibrate.main([*arguments[:-2], "--tokens", "260"])
    until(None)
    assert calibrate.main(arguments) == 0
    assert len(measured) == 17 + 6 + 2 and out.read_text() == first

    for more, word in [(["--tokens", "300"], "530 tokens, but 600"), (["--tokens", "700"], "more than the 600")]:
        failed = run("calibrate", *arguments[:-2], *more)
        assert failed.returncode == 2 and word in failed.stderr and len(failed.stderr.splitlines()) == 1, failed.stderr
    failed = run("calibrate", tmp_path / "nothing", *arguments[1:])
    assert failed.returncode == 2 and "nothing" in failed.stderr and "Traceback" not in failed.stderr, failed.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt", "tiny", "tiny.octaprofile"]
