"""Compares OctaplexCache with transformers' own cache and eager attention, on small models with random weights."""

import copy
import os
import subprocess
import sys

import octaplex
import pytest

torch = pytest.importorskip("torch", reason="octaplex.transformers: PyTorch is not installed; ci/transformers.sh installs it")
transformers = pytest.importorskip("transformers", reason="octaplex.transformers: transformers is not installed; ci/transformers.sh installs it")

import kinds
from kinds import given
from octaplex.transformers import OctaplexCache

COMMON = dict(
    vocab_size=120, hidden_size=128, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    max_position_embeddings=1024, pad_token_id=0, bos_token_id=1, eos_token_id=None, initializer_range=0.1,
)
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(num_hidden_layers=3, **COMMON),
    "gemma2": lambda: transformers.Gemma2Config(  # soft cap, scaling of its own
        num_hidden_layers=3, sliding_window=70, layer_types=LAYERS, query_pre_attn_scalar=50, attn_logit_softcapping=3.0, **COMMON
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(num_hidden_layers=3, sliding_window=70, layer_types=LAYERS, **COMMON),
    "mistral": lambda: transformers.MistralConfig(num_hidden_layers=2, sliding_window=90, **COMMON),  # no full layer
    "gpt_oss": lambda: transformers.GptOssConfig(  # sinks' logits
        num_hidden_layers=2, sliding_window=70, num_local_experts=2, num_experts_per_tok=2, **COMMON
    ),
}


KINDS = kinds.configs(COMMON)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def model_of(name, dtype=torch.float32, implementation="octaplex"):
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config((CONFIGS | KINDS)[name](), dtype=dtype).eval()
    for layer, block in enumerate(model.model.layers):
        if getattr(getattr(block, "self_attn", None), "sinks", None) is not None:
            block.self_attn.sinks.data = torch.linspace(-1, 3, 4) + layer
    model.set_attn_implementation(implementation)
    return model


def tokens_of(batch, count, seed=5):
    return torch.randint(2, 120, (batch, count), generator=torch.Generator().manual_seed(seed))


def eager(model, *arguments, **options):
    """The same with transformers' own attention and cache."""
    model.set_attn_implementation("eager")
    try:
        return model(*arguments, **options)
    finally:
        model.set_attn_implementation("octaplex")


def exact(model, **options):
    """Exact up to f16 in the window."""
    return OctaplexCache(model.config, keys="f32", values="f32", **options)


def generate(model, tokens, cache, **options):
    return model.generate(tokens, **given(cache), max_new_tokens=8, do_sample=False, use_cache=True, **options)


def eager_generate(model, tokens, **options):
    model.set_attn_implementation("eager")
    found = model.generate(tokens, max_new_tokens=8, do_sample=False, **options)
    model.set_attn_implementation("octaplex")
    return found


def assert_close(found, wanted, tolerance=1e-3):
    assert found.shape == wanted.shape
    assert float((found - wanted).norm() / wanted.norm()) < tolerance


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("codec", ["f32", "f16"])
def test_logits_are_those_of_eager_attention(name, codec):
    model, tokens = model_of(name), tokens_of(1, 314)
    cache = OctaplexCache(model.config, keys=codec, values=codec)
    found = [model(tokens[:, part], **given(cache)).logits for part in (slice(0, 300), slice(300, 310))]
    found += [model(tokens[:, i : i + 1], **given(cache)).logits for i in range(310, 314)]
    assert_close(torch.cat(found, 1), eager(model, tokens, use_cache=False).logits)
    assert cache.get_seq_length() == 314 and cache.stats().paged_tokens > 0


@pytest.mark.parametrize("sinks", [0, 4])
def test_generation_from_one_token(sinks):
    model, tokens = model_of("llama"), tokens_of(2, 1)
    cache = exact(model, sink_tokens=sinks)
    assert torch.equal(generate(model, tokens, cache), eager_generate(model, tokens))
    cache.crop(-cache.get_seq_length())
    assert torch.equal(generate(model, tokens, copy.deepcopy(cache)), eager_generate(model, tokens))


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_generation_gives_the_same_tokens(name):
    model, tokens = model_of(name), tokens_of(1, 280)
    assert torch.equal(generate(model, tokens, exact(model)), eager_generate(model, tokens))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_batch_with_left_padding(name):
    model, tokens = model_of(name), tokens_of(3, 260)
    mask = torch.ones_like(tokens)
    mask[0, :130] = 0
    mask[2, :1] = 0
    wanted = eager_generate(model, tokens, attention_mask=mask)
    assert torch.equal(generate(model, tokens, exact(model), attention_mask=mask), wanted)
    positions = (mask.cumsum(1) - 1).clamp(0)
    options = dict(attention_mask=mask, position_ids=positions)
    found, wanted = model(tokens, **given(exact(model)), **options).logits, eager(model, tokens, use_cache=False, **options).logits
    assert_close(found[mask.bool()], wanted[mask.bool()])


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_beam_search_reorders(name):
    model, tokens = model_of(name), tokens_of(2, 150)
    options = dict(num_beams=3, num_return_sequences=2)
    assert torch.equal(generate(model, tokens, exact(model), **options), eager_generate(model, tokens, **options))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_crop_leaves_no_trace(name):
    model, tokens, other = model_of(name), tokens_of(2, 300), tokens_of(2, 40, seed=6)
    cache, straight = (OctaplexCache(model.config) for _ in range(2))
    model(tokens, **given(cache))
    model(other, **given(cache))
    cache.crop(-40)
    model(tokens, **given(straight))
    assert cache.get_seq_length() == 300
    found, wanted = (model(other[:, :7], **given(each)).logits for each in (cache, straight))
    assert torch.equal(found, wanted)
    with pytest.raises(octaplex.Error, match="negative"):
        cache.crop(5)
    if name == "gemma3":
        with pytest.raises(octaplex.Error, match="max_rollback"):
            cache.crop(-200)
        assert cache.get_seq_length() == 307
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.stats().tokens == 0
    assert torch.equal(model(tokens, **given(cache)).logits[:, -1], model(tokens, **given(OctaplexCache(model.config))).logits[:, -1])


def test_sequences_are_picked_repeated_and_copied():
    model, tokens = model_of("gemma3"), tokens_of(2, 200)
    cache = exact(model)
    model(tokens, **given(cache))
    copied = copy.deepcopy(cache)
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    cache.batch_select_indices(torch.tensor([3, 0]))
    cache.reorder_cache(torch.tensor([1, 0, 0]))
    after = tokens_of(1, 5, seed=9)
    order = torch.tensor([0, 1, 1])
    wanted = eager(model, torch.cat([tokens[order], after.expand(3, -1)], 1), use_cache=False).logits[:, -5:]
    assert_close(model(after.expand(3, -1), **given(cache)).logits, wanted)
    wanted = eager(model, torch.cat([tokens, after.expand(2, -1)], 1), use_cache=False).logits[:, -5:]
    assert_close(model(after.expand(2, -1), **given(copied)).logits, wanted)


@pytest.mark.parametrize("name", KINDS)
def test_layers_of_several_kinds(name):
    model, tokens = model_of(name), tokens_of(2, 314)
    cache = exact(model)
    found = [model(tokens[:, part], **given(cache)).logits for part in (slice(0, 300), slice(300, 310))]
    found += [model(tokens[:, i : i + 1], **given(cache)).logits for i in range(310, 314)]
    found, wanted = torch.cat(found, 1), eager(model, tokens, use_cache=False).logits
    # Rows in f16 and queries of 8 bits: what Gemma's layers, whose scores are not scaled, make of that is more. Where two experts are
    # almost equal, the other one may be taken: a few tokens are not near.
    errors = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert float(errors.quantile(0.95)) < (0.05 if name.startswith("gemma") else 2e-3)
    assert cache.get_seq_length() == 314 and cache.stats().paged_tokens > 0


@pytest.mark.parametrize("name", KINDS)
def test_layers_of_several_kinds_in_batches(name):
    model, tokens = model_of(name), tokens_of(2, 200)
    cache = exact(model)
    model(tokens, **given(cache))
    copied = copy.deepcopy(cache)
    cache.reorder_cache(torch.tensor([1, 0, 1]))
    after = tokens_of(1, 5, seed=9)
    tolerance = 0.05 if name.startswith("gemma") else 2e-3
    for each, order in ((cache, torch.tensor([1, 0, 1])), (copied, torch.tensor([0, 1]))):
        whole = torch.cat([tokens[order], after.expand(len(order), -1)], 1)
        wanted = eager(model, whole, use_cache=False).logits[:, -5:]
        found = model(after.expand(len(order), -1), **given(each)).logits
        assert float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).median()) < tolerance
    if name in ("qwen3_next", "qwen3_5", "lfm2"):
        with pytest.raises(octaplex.Error, match="cannot be taken back"):
            cache.crop(-3)
        assert cache.get_seq_length() == 205
        cache.crop(0)
    for batch in (1, 2):  # another number of sequences than before, and a step after the prompt
        cache.reset()
        model(tokens[:batch], **given(cache))
        found = model(after.expand(batch, -1)[:, :1], **given(cache)).logits
        wanted = eager(model, torch.cat([tokens[:batch], after.expand(batch, -1)[:, :1]], 1), use_cache=False).logits[:, -1:]
        assert cache.get_seq_length() == 201
        assert float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).median()) < tolerance


def test_convolutions_that_record_their_past_go_back():
    model, tokens = model_of("lfm2"), tokens_of(2, 60)
    cache = exact(model)
    for _ in range(2):
        cache.activate_past_recording()
        model(tokens, **given(cache))
        cache.crop(-20)
        found = model(tokens[:, 40:45], **given(cache)).logits
        assert_close(found, eager(model, tokens[:, :45], use_cache=False).logits[:, -5:], 5e-3)
        cache.reset()


def test_shared_keys_with_left_padding():
    model, tokens = model_of("gemma4" if "gemma4" in KINDS else "gemma3n"), tokens_of(2, 260)
    mask = torch.ones_like(tokens)
    mask[0, :130] = 0
    positions = (mask.cumsum(1) - 1).clamp(0)
    options = dict(attention_mask=mask, position_ids=positions)
    found, wanted = model(tokens, **given(exact(model)), **options).logits, eager(model, tokens, use_cache=False, **options).logits
    assert_close(found[mask.bool()], wanted[mask.bool()], 0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves(dtype):
    model, tokens = model_of("llama", dtype), tokens_of(1, 200)
    found = model(tokens, **given(exact(model))).logits
    assert found.dtype == dtype
    assert_close(found.float(), eager(model, tokens, use_cache=False).logits.float(), 0.05)


@pytest.mark.parametrize("options", [dict(bits=4.2), dict(keys="trellis", values="turboquant"), dict(keys="turboquant", values="turboquant", boundary_layers=1)])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_compressed_caches_stay_near(name, options):
    model, tokens = model_of(name), tokens_of(1, 400)
    cache = OctaplexCache(model.config, recent_window=0, **options)
    found, wanted = model(tokens, **given(cache)).logits, eager(model, tokens, use_cache=False).logits
    assert 1e-4 < float((found - wanted).norm() / wanted.norm()) < 0.5  # compressed, and near
    stepwise = OctaplexCache(model.config, recent_window=0, balance=False, **options)
    at_once = OctaplexCache(model.config, recent_window=0, balance=False, **options)
    found = [model(tokens[:, part], **given(stepwise)).logits for part in (slice(0, 1), slice(1, 333), slice(333, 400))]
    assert_close(torch.cat(found, 1), model(tokens, **given(at_once)).logits, 1e-4)  # blocks do not matter
    assert stepwise.stats().bytes == at_once.stats().bytes


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_compiled_models_give_the_same_logits(name):
    model, tokens = model_of(name), tokens_of(2, 318)
    compiled = torch.compile(model.forward, backend="aot_eager")
    mask = torch.ones(2, 400, dtype=torch.int64)  # wider than the tokens, so that every step's mask has the same strides
    mask[0, :13] = 0

    def logits(forward):
        found, graphs, cache = [], 0, OctaplexCache(model.config)
        for part in (slice(0, 300), *(slice(i, i + 1) for i in range(300, 318))):
            positions = (mask.cumsum(1) - 1).clamp(0)[:, part]
            found.append(forward(tokens[:, part], attention_mask=mask[:, : part.stop], position_ids=positions, **given(cache)).logits)
            if part.stop == 302:
                cache = copy.deepcopy(cache)  # compiled code finds the copy, not the original
            graphs = graphs if part.stop > 310 else torch._dynamo.utils.counters["stats"]["unique_graphs"]
        assert cache.get_seq_length() == 318
        assert graphs == torch._dynamo.utils.counters["stats"]["unique_graphs"], "steps are compiled again and again"
        return torch.cat(found, 1)

    wanted = logits(model.forward)
    torch._dynamo.reset()
    assert_close(logits(compiled), wanted, 1e-5)
    refused = OctaplexCache(model.config, capacity=140)
    with pytest.raises(octaplex.Error, match="capacity|full"):
        compiled(tokens, **given(refused))


def test_mistakes_are_said():
    model, tokens = model_of("llama"), tokens_of(2, 20)

    def refused(match, call):
        with pytest.raises(octaplex.Error, match=match):
            call()

    refused("cache=OctaplexCache.*past_key_values= before", lambda: model(tokens))
    refused("cache=OctaplexCache.*LlamaAttention", lambda: model(tokens, use_cache=False))
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        refused("set_attn_implementation", lambda: model(tokens, **given(OctaplexCache(model.config))))
    model.set_attn_implementation("octaplex")
    right = torch.ones_like(tokens)
    right[0, 15:] = 0
    refused("padding_side='left'", lambda: model(tokens, attention_mask=right, **given(OctaplexCache(model.config))))
    refused("4 dimensions", lambda: model(tokens, attention_mask=torch.ones(2, 1, 20, 20), **given(OctaplexCache(model.config))))
    cache = OctaplexCache(model.config)
    model(tokens, **given(cache))
    refused("batch of 1", lambda: model(tokens[:1, :1], **given(cache)))
    late = torch.ones(2, 21)
    late[0, :3] = 0
    refused("has 20 tokens", lambda: model(tokens[:, :1], attention_mask=late, **given(cache)))
    refused("float32, float16 or bfloat16", lambda: model_of("llama", torch.float64)(tokens, **given(OctaplexCache(model.config))))
    refused("on meta", lambda: OctaplexCache(model.config).update(*[torch.empty(1, 2, 3, 32, device="meta")] * 2, 0))
    refused("sliding window of 90", lambda: model_of("mistral")(tokens, **given(OctaplexCache(model.config))))
    refused("no option", lambda: OctaplexCache(model.config, sliding_window=3))
    only = transformers.LlamaConfig(num_hidden_layers=1, layer_types=["linear_attention"])
    refused("llama.*no layer of attention", lambda: OctaplexCache(only))
    chunked = transformers.LlamaConfig(num_hidden_layers=1, layer_types=["chunked_attention"], attention_chunk_size=64)
    refused("llama.*layers of chunked_attention", lambda: OctaplexCache(chunked))
    refused("cache is full", lambda: model(tokens.repeat(1, 10), **given(OctaplexCache(model.config, capacity=140))))
    with torch.enable_grad():
        refused("no_grad", lambda: model(tokens, **given(OctaplexCache(model.config))))


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(keys="trelis"), "trelis"), (dict(values="int:bits=99"), "bits"), (dict(bits=1), "bits"), (dict(bits=float("nan")), "bits is nan"),
        (dict(capacity=100), "capacity"), (dict(capacity=-1), "capacity is -1"), (dict(capacity=1.5), "capacity is 1.5"),
        (dict(page=100), "page"), (dict(center="x"), "center"), (dict(balance=1), "balance"), (dict(bits=3, keys="int"), "either"),
        (dict(sink_tokens=2**62), "sink"), (dict(profile="octaplex-profile 1", bits=3), "profile"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3_5"])
def test_wrong_options_are_refused_at_once(name, options, said):
    if name not in CONFIGS | KINDS:
        pytest.skip(f"this version of transformers has no {name}")
    with pytest.raises(octaplex.Error, match=said):
        OctaplexCache((CONFIGS | KINDS)[name](), **options)


def whisper():
    return transformers.WhisperConfig(
        vocab_size=120, d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=50, max_target_positions=448, decoder_start_token_id=1, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


@pytest.mark.parametrize("config", [whisper, lambda: transformers.T5Config(vocab_size=120, d_model=128, num_layers=2)])
@pytest.mark.parametrize("capacity", [None, 448])
def test_encoders_with_decoders_are_refused(config, capacity):
    with pytest.raises(octaplex.Error, match="(whisper|t5).*an encoder and a decoder"):
        OctaplexCache(config(), capacity=capacity)


@pytest.mark.parametrize("implementation", ["octaplex", {"text_config": "octaplex"}])
def test_images_with_text(implementation):
    """The image encoder has no cache: it gets PyTorch's attention."""
    config = transformers.LlavaConfig(
        text_config=CONFIGS["llama"](), image_token_index=110, image_token_id=110, vision_feature_layer=-1,
        vision_config=transformers.CLIPVisionConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14),
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    tokens, pixels = tokens_of(1, 40) % 100 + 2, torch.randn(1, 3, 28, 28)
    tokens[:, 5:9] = 110
    wanted = model(input_ids=tokens, pixel_values=pixels, use_cache=False).logits
    model.set_attn_implementation(implementation)
    cache = exact(model)
    assert_close(model(input_ids=tokens, pixel_values=pixels, **given(cache)).logits, wanted)
    assert cache.get_seq_length() == 40
    with pytest.raises(octaplex.Error, match="text_config"):
        model(input_ids=tokens, pixel_values=pixels)


def test_an_encoder_alone_has_pytorchs_attention():
    config = transformers.BertConfig(vocab_size=120, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    torch.manual_seed(3)
    model, tokens = transformers.BertModel(config).eval(), tokens_of(2, 20)
    mask = torch.ones_like(tokens)
    mask[0, 15:] = 0
    wanted = model(tokens, attention_mask=mask).last_hidden_state
    model.set_attn_implementation("octaplex")
    assert_close(model(tokens, attention_mask=mask).last_hidden_state[mask.bool()], wanted[mask.bool()])


def test_masks_of_other_shapes_are_refused():
    from octaplex.transformers._attention import mask
    from transformers.masking_utils import bidirectional_mask_function, chunked_causal_mask_function

    sizes = dict(batch_size=1, q_length=600, kv_length=600)
    assert mask(**sizes) is None
    for function, window in ((bidirectional_mask_function, 100), (chunked_causal_mask_function(100, torch.zeros(1, dtype=int)), 100)):
        with pytest.raises(octaplex.Error, match="neither causal"):
            mask(**sizes, mask_function=function, local_size=window)


def test_the_package_itself_needs_neither_and_another_version_is_said(tmp_path):
    code = "import sys, octaplex; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers/__init__.py").write_text("__version__ = '9.1'")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    found = subprocess.run([sys.executable, "-c", "import octaplex.transformers"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert "octaplex.Error" in found.stderr and "transformers 9.1" in found.stderr and "5.24" in found.stderr


@pytest.mark.parametrize("capacity", [None, 1024])
def test_models_that_cannot_be_served_are_refused_by_name(capacity):
    bloom = transformers.BloomConfig(vocab_size=97, hidden_size=128, n_head=4, n_layer=2)
    with pytest.raises(octaplex.Error, match="bloom.*transformers' attention functions" if capacity else "bloom.*pass capacity"):
        model = transformers.AutoModelForCausalLM.from_config(bloom, attn_implementation="octaplex").eval()
        model(torch.arange(2, 90)[None], **given(OctaplexCache(model.config, capacity=capacity)))
    falcon = transformers.FalconConfig(vocab_size=97, hidden_size=128, num_attention_heads=4, num_hidden_layers=2)
    with pytest.raises(octaplex.Error, match="If you did, the model has attention of its own"):
        model = transformers.AutoModelForCausalLM.from_config(falcon).eval()
        model.set_attn_implementation("octaplex")  # transformers logs that it cannot
        model(torch.arange(2, 90)[None], **given(OctaplexCache(model.config, capacity=capacity)))
    latent = transformers.DeepseekV3Config(vocab_size=97, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, kv_lora_rank=32)
    with pytest.raises(octaplex.Error, match=r"deepseek_v3.*\(MLA\)"):
        OctaplexCache(latent, capacity=capacity)
