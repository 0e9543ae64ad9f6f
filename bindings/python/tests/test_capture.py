"""``python -m octaplex.capture``: what it writes is what the model computes; and what it says of mistakes, without PyTorch too."""

import json

import commands
import numpy
import octaplex
import pytest
from commands import needs_models, run
from octaplex import capture


def test_mistakes_are_one_line(tmp_path):
    commands.refused("capture", tmp_path, [])
    commands.refused_arguments("capture", [
        *(([f"--layers={layers}"], "0,12,23") for layers in ["one", "1,", "-"]),
        (["--tokens", "0"], "from 1 on"),
        (["--dtype", "int8"], "int8"),
    ])


def test_layers_that_see_less_are_left_out_or_refused():
    chosen = capture._layers
    assert chosen(None, [None] * 24, 500) == [0, 12, 23]
    assert chosen(None, [None], 500) == [0]
    local = [100, 100, None] * 4
    assert chosen(None, local, 500) == [2, 8, 11]
    assert chosen(None, local, 100) == [0, 6, 11]
    assert chosen([5, 2, 5], local, 500) == [2, 5]
    for layers, words in [([12], "(0..12)"), ([-1], "(0..12)"), ([1], "sees 100 tokens only")]:
        with pytest.raises(octaplex.Error, match=words.replace("(", r"\(").replace(")", r"\)").replace("..", r"\.\.")):
            chosen(layers, local, 500)
    with pytest.raises(octaplex.Error, match="at most 100"):
        chosen(None, [100, 50], 500)


COMMON = dict(
    vocab_size=120, hidden_size=128, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_hidden_layers=3,
    max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=None, initializer_range=0.1,
)


def tiny(name):
    """A model with random weights."""
    import torch
    import transformers

    torch.manual_seed(3)
    local = dict(sliding_window=20, layer_types=["sliding_attention", "full_attention", "full_attention"])
    config = {
        "llama": lambda: transformers.LlamaConfig(**COMMON),
        "qwen3": lambda: transformers.Qwen3Config(**COMMON),
        "gemma2": lambda: transformers.Gemma2Config(attn_logit_softcapping=3.0, **local, **COMMON),
        "gemma3": lambda: transformers.Gemma3TextConfig(query_pre_attn_scalar=50, **local, **COMMON),
    }[name]()
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@needs_models
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_attention_on_what_is_captured_is_the_models(name):
    import torch

    model = tiny(name)
    tokens = torch.randint(2, 120, (1, 70), generator=torch.Generator().manual_seed(5))
    seen = []
    before = model.config._attn_implementation
    tensors, layers = capture.capture(model, tokens, layers=[1, 2], queries=10, progress=seen.append)
    assert (layers, seen, model.config._attn_implementation) == ([1, 2], [0, 1, 2], before)
    assert tensors["k"].shape == tensors["v"].shape == (2, 2, 70, 32) and tensors["q"].shape == (2, 4, 10, 32)
    assert tensors["q_pos"].tolist() == [6, 13, 20, 27, 34, 41, 48, 55, 62, 69]

    # Eager attention gives its weights: those of softmax(q.k / sqrt(width)) on what was captured, as compare takes it.
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(input_ids=tokens, use_cache=False, output_attentions=True).attentions
    for number, layer in enumerate(layers):
        for head in range(4):
            scores = tensors["q"][number, head] @ tensors["k"][number, head // 2].T / numpy.sqrt(32)
            for row, position in zip(scores, tensors["q_pos"]):
                row[position + 1 :] = -numpy.inf
                own = numpy.exp(row - row.max())
                expected = weights[layer][0, head, position].numpy()
                assert numpy.abs(own / own.sum() - expected).max() < 1e-5, (layer, head, position)


@needs_models
def test_bad_requests_are_refused():
    import torch

    model = tiny("gemma3")
    for options, words in [(dict(layers=[0]), "sees 20 tokens only"), (dict(queries=0), "at least 1")]:
        with pytest.raises(octaplex.Error, match=words):
            capture.capture(model, torch.ones(1, 30, dtype=torch.long), **options)
    with pytest.raises(octaplex.Error, match="soft cap"):
        capture.capture(tiny("gemma2"), torch.ones(1, 30, dtype=torch.long))
    with pytest.raises(octaplex.Error, match="one sequence"):
        capture.capture(model, torch.ones(2, 30, dtype=torch.long))


@needs_models
def test_the_command_writes_a_file_that_says_where_it_comes_from(tmp_path):
    import tokenizers
    import transformers
    from safetensors import safe_open

    folder = tmp_path / "tiny"
    tiny("llama").save_pretrained(folder)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{number}": number for number in range(120)}, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    (tmp_path / "text.txt").write_text(" ".join(f"w{number * 7 % 118 + 2}" for number in range(150)))
    out = tmp_path / "kv.safetensors"
    done = run("capture", folder, "--text", tmp_path / "text.txt", "--out", out, "--queries", "8")
    assert done.returncode == 0, done.stderr
    assert "layers 0, 1, 2" in done.stdout and f"Next: octaplex compare --input {out}" in done.stdout
    with safe_open(out, "numpy") as file:
        assert file.metadata() == {"model": str(folder), "text": "text.txt", "layers": "0, 1, 2"}
        assert {name: (list(file.get_tensor(name).shape), file.get_tensor(name).dtype.name) for name in file.keys()} == {
            "k": ([3, 2, 128, 32], "float32"), "v": ([3, 2, 128, 32], "float32"), "q": ([3, 4, 8, 32], "float32"), "q_pos": ([8], "int32"),
        }
    for more, word in [(["--tokens", "151"], "150 tokens, but 151"), (["--tokens", "300"], "256"), (["--layers", "3"], "(0..3)")]:
        failed = run("capture", folder, "--text", tmp_path / "text.txt", "--out", tmp_path / "other", *more)
        assert failed.returncode == 2 and word in failed.stderr, failed.stderr
    failed = run("capture", tmp_path / "nothing", "--text", tmp_path / "text.txt", "--out", tmp_path / "other")
    assert failed.returncode == 2 and "nothing" in failed.stderr and "Traceback" not in failed.stderr, failed.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kv.safetensors", "text.txt", "tiny"]
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 3
