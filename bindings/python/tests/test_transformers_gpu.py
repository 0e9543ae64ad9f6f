"""Compares OctaplexCache on a GPU with eager attention and with OctaplexCache on the CPU, on small models
with random weights."""

import copy

import gpu
import octaplex
import pytest

gpu.need()
torch = pytest.importorskip("torch", reason="octaplex.transformers: PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="octaplex.transformers: transformers is not installed")

import kinds
from kinds import given
from octaplex.transformers import OctaplexCache, _cache

DEVICE = "cpu" if gpu.STAND_IN else "cuda"
if gpu.STAND_IN:  # its GPU reads the memory of this process
    _cache._number_of = lambda device: 0

COMMON = dict(
    vocab_size=120, hidden_size=128, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=None, initializer_range=0.1,
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
#: The most exact codecs that GPUs have.
FINE = dict(keys="int:bits=8", values="int:bits=8", balance=False)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def model_of(name, dtype=torch.float32):
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config((CONFIGS | KINDS)[name](), dtype=dtype).eval()
    for layer, block in enumerate(model.model.layers):
        if getattr(getattr(block, "self_attn", None), "sinks", None) is not None:
            block.self_attn.sinks.data = torch.linspace(-1, 3, 4).to(dtype) + layer
    model.set_attn_implementation("octaplex")
    return model.to(DEVICE)


def tokens_of(batch, count, seed=5):
    return torch.randint(2, 120, (batch, count), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def eager(model, *arguments, **options):
    model.set_attn_implementation("eager")
    try:
        return model(*arguments, **options)
    finally:
        model.set_attn_implementation("octaplex")


def assert_close(found, wanted, tolerance=0.03):
    assert found.shape == wanted.shape
    error = float((found - wanted).norm() / wanted.norm())
    assert error < tolerance, error


def in_pieces(model, tokens, cache):
    """Logits of 314 tokens: a prompt, a block, and steps."""
    pieces = [slice(0, 300), slice(300, 310), *(slice(i, i + 1) for i in range(310, 314))]
    return torch.cat([model(tokens[:, piece], **given(cache)).logits for piece in pieces], 1)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_near_those_of_eager_attention(name):
    model, tokens = model_of(name), tokens_of(1, 314)
    cache = OctaplexCache(model.config, **FINE)
    assert_close(in_pieces(model, tokens, cache), eager(model, tokens, use_cache=False).logits)
    assert cache.get_seq_length() == 314 and cache.stats().paged_tokens > 0
    assert all(isinstance(layer.sequences, _cache.GpuSequences) for layer in cache.layers)


@pytest.mark.parametrize("name", KINDS)
def test_layers_of_several_kinds(name):
    model, tokens = model_of(name), tokens_of(2, 314)
    cache = OctaplexCache(model.config, **FINE)
    found, wanted = in_pieces(model, tokens, cache), eager(model, tokens, use_cache=False).logits
    errors = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    print(name, "median", float(errors.median()), "largest", float(errors.max()))
    # Gemma's scores are not scaled: what 8 bits change of a key is more there. Where two experts are almost
    # equal, the other one may be taken.
    assert float(errors.median()) < (0.2 if name.startswith("gemma") else 0.03)
    assert cache.get_seq_length() == 314 and cache.stats().paged_tokens > 0
    assert all(isinstance(layer.sequences, _cache.GpuSequences) for layer in cache.ours)


@pytest.mark.parametrize("name", ["gemma4", "qwen3_next"])
def test_attention_of_several_kinds_is_that_of_the_cpu(name):
    if name not in KINDS:
        pytest.skip(f"this transformers has no {name}")
    model, tokens = model_of(name), tokens_of(2, 400)
    logits = []
    for on_cpu in (False, True):
        if on_cpu and gpu.STAND_IN:
            pytest.skip("the stand-in takes tensors of the CPU for its own")
        here, ids = (model.to("cpu"), tokens.cpu()) if on_cpu else (model, tokens)
        cache = OctaplexCache(model.config, keys="turboquant:bits=8", values="turboquant:bits=8", balance=False)
        logits.append(torch.cat([here(ids[:, part], **given(cache)).logits.cpu() for part in (slice(0, 330), slice(330, 331))], 1))
    # A prompt's block sees its pages as they are stored; on the CPU the newest tokens are exact meanwhile.
    assert_close(*logits, 0.3 if name.startswith("gemma") else 0.1)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_prompts_longer_than_a_block(name):
    model, tokens = model_of(name), tokens_of(1, 2500 if gpu.STAND_IN else 3500)
    cache = OctaplexCache(model.config, **FINE)
    found = model(tokens, **given(cache)).logits
    assert_close(found, eager(model, tokens, use_cache=False).logits)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_batch_with_left_padding(name):
    model, tokens = model_of(name), tokens_of(3, 260)
    mask = torch.ones_like(tokens)
    mask[0, :130] = 0
    mask[2, :1] = 0
    positions = (mask.cumsum(1) - 1).clamp(0)
    cache = OctaplexCache(model.config, **FINE)
    options = dict(attention_mask=mask, position_ids=positions)
    found, wanted = model(tokens, **given(cache), **options).logits, eager(model, tokens, use_cache=False, **options).logits
    assert_close(found[mask.bool()], wanted[mask.bool()])
    for step in range(2):  # all of the batch at once
        tokens = torch.cat([tokens, tokens_of(3, 1, seed=step)], 1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
        positions = (mask.cumsum(1) - 1).clamp(0)
        found = model(tokens[:, -1:], attention_mask=mask, position_ids=positions[:, -1:], **given(cache)).logits
        wanted = eager(model, tokens, use_cache=False, attention_mask=mask, position_ids=positions).logits[:, -1:]
        assert_close(found, wanted)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_generation_and_beams(name):
    model, tokens = model_of(name), tokens_of(2, 150)
    for options in (dict(), dict(num_beams=3, num_return_sequences=2)):
        options = dict(max_new_tokens=6, do_sample=False, **options)
        found = model.generate(tokens, **given(OctaplexCache(model.config, **FINE)), **options)
        model.set_attn_implementation("eager")
        wanted = model.generate(tokens, **options)
        model.set_attn_implementation("octaplex")
        assert found.shape == wanted.shape and float((found == wanted).float().mean()) > 0.95


@pytest.mark.parametrize("sinks", [0, 4])
def test_a_step_begins_with_nothing(sinks):
    model, tokens = model_of("llama"), tokens_of(2, 5)
    wanted = eager(model, tokens, use_cache=False).logits
    cache = OctaplexCache(model.config, sink_tokens=sinks, **FINE)

    def steps(cache):
        found = [model(tokens[:, i : i + 1], **given(cache)).logits for i in range(5)]
        assert_close(torch.cat(found, 1), wanted)

    steps(cache)
    cache.crop(-5)
    copied = copy.deepcopy(cache)
    steps(cache)
    steps(copied)
    cache.reset()
    steps(cache)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0], device=DEVICE))
    cache.batch_select_indices(torch.tensor([True, True], device=DEVICE))
    cache.crop(-3)
    assert_close(model(tokens.flip(0)[:, 2:], **given(cache)).logits, wanted.flip(0)[:, 2:])


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
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.stats().tokens == 0


def test_sequences_are_picked_repeated_and_copied():
    model, tokens = model_of("gemma3"), tokens_of(2, 200)
    cache = OctaplexCache(model.config, **FINE)
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves(dtype):
    model, tokens = model_of("llama", dtype), tokens_of(1, 200)
    found = model(tokens, **given(OctaplexCache(model.config, **FINE))).logits
    assert found.dtype == dtype
    assert_close(found.float(), eager(model, tokens, use_cache=False).logits.float(), 0.06)


@pytest.mark.parametrize("options", [dict(bits=4.2), dict(keys="trellis", values="turboquant"), dict()])
def test_compressed_caches_stay_near(options):
    model, tokens = model_of("llama"), tokens_of(1, 400)
    cache = OctaplexCache(model.config, recent_window=0, **options)
    found, wanted = model(tokens, **given(cache)).logits, eager(model, tokens, use_cache=False).logits
    assert 1e-4 < float((found - wanted).norm() / wanted.norm()) < 0.5
    assert cache.stats().bits_per_value < 9


def test_steps_are_near_the_cpus():
    model, tokens = model_of("llama"), tokens_of(1, 420)
    cache = OctaplexCache(model.config, **FINE)
    model(tokens[:, :-1], **given(cache))
    found = model(tokens[:, -1:], **given(cache)).logits
    assert_close(found, eager(model, tokens, use_cache=False).logits[:, -1:])
    if not gpu.STAND_IN:
        model = model.cpu()
        cache = OctaplexCache(model.config, **FINE)
        wanted = model(tokens.cpu(), **given(cache)).logits[:, -1:]
        assert_close(found.cpu(), wanted)


@pytest.mark.skipif(gpu.STAND_IN, reason="the stand-in is one device")
def test_mistakes_are_said():
    model, tokens = model_of("llama"), tokens_of(2, 20)
    cache = OctaplexCache(model.config)
    model(tokens, **given(cache))
    with pytest.raises(octaplex.Error, match="on cpu"):
        model.cpu()(tokens.cpu()[:, :1], **given(cache))
    model = model.cuda()
    with pytest.raises(octaplex.Error, match="take"):
        model(tokens, **given(OctaplexCache(model.config, keys="f16", values="f16")))
    cache = OctaplexCache(model.config, capacity=140)
    with pytest.raises(octaplex.Error, match="full|room"):
        model(tokens.repeat(1, 10), **given(cache))


@pytest.mark.skipif(gpu.STAND_IN or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_layers_on_several_gpus():
    model, tokens = model_of("llama"), tokens_of(1, 300)
    wanted = eager(model, tokens, use_cache=False).logits
    import accelerate

    model = accelerate.dispatch_model(
        model.cpu(), {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1, "model.layers.2": 1, "model.norm": 1, "model.rotary_emb": 0, "lm_head": 1}
    )
    assert_close(model(tokens, **given(OctaplexCache(model.config, **FINE))).logits.cpu(), wanted.cpu())


def test_steps_wait_for_nothing_and_pages_close():
    model, tokens = model_of("gemma3"), tokens_of(2, 330)
    at_once, stepwise = (OctaplexCache(model.config, **FINE) for _ in range(2))
    model(tokens[:, :200], **given(stepwise))
    found = [model(tokens[:, i : i + 1], **given(stepwise)).logits for i in range(200, 330)]
    model(tokens, **given(at_once))
    assert at_once.stats() == stepwise.stats()
    assert_close(torch.cat(found, 1), eager(model, tokens, use_cache=False).logits[:, 200:])
    stepwise.crop(-20)
    at_once.crop(-20)
    after = tokens_of(2, 1, seed=9)
    assert_close(*(model(after, **given(cache)).logits for cache in (at_once, stepwise)))


def test_a_step_closes_a_page_of_each_sequence():
    """The memory for pages grows by less than all of them at once."""
    model, tokens = model_of("mistral"), tokens_of(6, 200)
    cache = OctaplexCache(model.config, capacity=400, sink_tokens=1, recent_window=0, max_rollback=0, **FINE)
    model(tokens[:, :190], **given(cache))
    found = [model(tokens[:, i : i + 1], **given(cache)).logits for i in range(190, 200)]
    assert_close(torch.cat(found, 1), eager(model, tokens, use_cache=False).logits[:, 190:])


@pytest.mark.skipif(gpu.STAND_IN, reason="the stand-in has no graphs of PyTorch")
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_compiled_models_in_graphs_of_pytorch(name):
    from octaplex.transformers import DecodeGraph

    model, tokens = model_of(name), tokens_of(2, 400)
    caches = [OctaplexCache(model.config, capacity=600, **FINE) for _ in range(3)]
    forwards = model.forward, torch.compile(model.forward, mode="reduce-overhead"), torch.compile(model.forward)
    for cache in caches:
        model(tokens[:, :250], **given(cache))
    # The last one stands in one graph, with our calls.
    steps = [lambda ids, f=f, c=c: f(ids, **given(c)).logits for f, c in zip(forwards[:2], caches)] + [DecodeGraph(forwards[2], caches[2])]
    for i in range(250, 400):
        found = [step(tokens[:, i : i + 1]).clone() for step in steps]
        assert_close(found[1], found[0], 1e-2)
        assert_close(found[2], found[0], 1e-2)
    assert caches[0].stats() == caches[1].stats() == caches[2].stats()


@pytest.mark.skipif(gpu.STAND_IN, reason="the stand-in has no graphs of PyTorch")
@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral"])
def test_a_graph_of_steps(name):
    from octaplex.transformers import DecodeGraph

    model, tokens = model_of(name), tokens_of(2, 500)
    cache, other = (OctaplexCache(model.config, capacity=700, **FINE) for _ in range(2))
    for each in (cache, other):
        model(tokens[:, :250], **given(each))
    step = DecodeGraph(model, cache)
    for i in range(250, 450):
        found, wanted = step(tokens[:, i : i + 1]), model(tokens[:, i : i + 1], **given(other)).logits
        assert_close(found, wanted, 1e-3)
    assert cache.get_seq_length() == other.get_seq_length() == 450 and cache.stats() == other.stats()
    for each in (cache, other):
        each.crop(-30)
        model(tokens[:, 420:440], **given(each))
    found, wanted = step(tokens[:, 440:441]), model(tokens[:, 440:441], **given(other)).logits
    assert_close(found, wanted, 1e-3)
    cache.reset()
    model(tokens[:, :250], **given(cache))
    with pytest.raises(octaplex.Error, match="another DecodeGraph"):
        step(tokens[:, :1])


@pytest.mark.skipif(gpu.STAND_IN, reason="the stand-in has no graphs of PyTorch")
def test_a_graph_of_padded_sequences():
    from octaplex.transformers import DecodeGraph

    model, tokens = model_of("llama"), tokens_of(2, 300)
    mask = torch.ones_like(tokens[:, :250])
    mask[0, :37] = 0
    positions = (mask.cumsum(1) - 1).clamp(0)
    cache = OctaplexCache(model.config, capacity=600, **FINE)
    model(tokens[:, :250], attention_mask=mask, position_ids=positions, **given(cache))
    step = DecodeGraph(model, cache)
    found = torch.cat([step(tokens[:, i : i + 1]).clone() for i in range(250, 300)], 1)
    mask = torch.cat([mask, torch.ones_like(tokens[:, 250:])], 1)
    positions = (mask.cumsum(1) - 1).clamp(0)
    wanted = eager(model, tokens, use_cache=False, attention_mask=mask, position_ids=positions).logits[:, 250:]
    assert_close(found, wanted)
