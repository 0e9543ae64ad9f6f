"""Makes random calls of an OctaplexCache, and compares logits with those of eager attention without a cache.

Each run takes a small model with random weights, and random options of the cache. Its calls are forward passes
of prompts, blocks and single tokens, crops, reordered batches, copies and resets. Codecs are 8-bit integers,
the most accurate that a GPU supports.

* OCTAPLEX_DEVICE=cuda runs on a GPU, as ci/gpu.sh does. The default is the CPU.
* OCTAPLEX_RUNS is the number of runs.
* OCTAPLEX_SEED is the seed of the first run. Later runs count up from it. A failure names its seed.
"""

import copy
import os
import random

import gpu
import octaplex
import pytest

torch = pytest.importorskip("torch", reason="octaplex.transformers: PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="octaplex.transformers: transformers is not installed")

import kinds
from kinds import given
from octaplex.transformers import OctaplexCache, _cache

DEVICE = os.environ.get("OCTAPLEX_DEVICE", "cpu")
ON_GPU = DEVICE == "cuda" or gpu.STAND_IN
if ON_GPU:
    gpu.need()
if gpu.STAND_IN:  # its GPU reads the memory of this process
    _cache._number_of = lambda device: 0
SEED, RUNS = (int(os.environ.get(name, default)) for name, default in (("OCTAPLEX_SEED", 1), ("OCTAPLEX_RUNS", 4 if gpu.STAND_IN else 40)))
#: Tokens of a sequence.
CAPACITY = 400

COMMON = dict(
    vocab_size=120, hidden_size=128, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    max_position_embeddings=CAPACITY, pad_token_id=0, bos_token_id=1, eos_token_id=None, initializer_range=0.1,
)
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(num_hidden_layers=2, **COMMON),
    "gemma2": lambda: transformers.Gemma2Config(
        num_hidden_layers=3, sliding_window=70, layer_types=LAYERS, query_pre_attn_scalar=50, attn_logit_softcapping=3.0, **COMMON
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(num_hidden_layers=3, sliding_window=40, layer_types=LAYERS, **COMMON),
    "mistral": lambda: transformers.MistralConfig(num_hidden_layers=2, sliding_window=90, **COMMON),  # no full layer
    "gpt_oss": lambda: transformers.GptOssConfig(num_hidden_layers=2, sliding_window=70, num_local_experts=2, num_experts_per_tok=2, **COMMON),
}
KINDS = kinds.configs(COMMON)
#: Layers with states that cannot go back.
NO_CROP = ("qwen3_next", "qwen3_5", "lfm2")
MODELS = {}


def model_of(name):
    """Returns a model without jumps: small errors of the cache change its logits by little.

    So it uses all experts, and its attention scores are small."""
    if name not in MODELS:
        torch.manual_seed(3)
        config = (CONFIGS | KINDS)[name]()
        for experts in ("num_experts", "n_routed_experts"):
            if getattr(config, experts, None):
                config.num_experts_per_tok = getattr(config, experts)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for layer, block in enumerate(model.model.layers):
            attention = getattr(block, "self_attn", None)
            if getattr(attention, "sinks", None) is not None:
                attention.sinks.data = torch.linspace(-1, 3, 4) + layer
            if name in ("gemma3n", "gemma4"):  # whose scores have no other scale
                attention.q_norm.weight.data.fill_(1 / 8)
        model.set_attn_implementation("octaplex")
        MODELS[name] = model.to(DEVICE)
    return MODELS[name]


class Run:
    """A cache and its tokens [batch, tokens]. ``mask`` is 0 for padding."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.name = self.random.choice(sorted({**CONFIGS, **KINDS}))
        self.model, self.said = model_of(self.name), []
        self.options = dict(
            sink_tokens=self.choice(0, 1, 4), recent_window=self.choice(0, 16, 64), max_rollback=self.choice(0, 8, 64), page=self.choice(64, 64, 128),
            center=self.choice("page", "off"),
        )
        self.cache = OctaplexCache(self.model.config, keys="int:bits=8", values="int:bits=8", balance=False, **self.options)
        self.empty(self.random.randint(1, 3))

    def choice(self, *given):
        return self.random.choice(given)

    def empty(self, batch):
        self.tokens = torch.zeros(batch, 0, dtype=torch.int64, device=DEVICE)
        self.mask = self.tokens.clone()

    def forward(self, count=None, compared=True):
        """Calls the model with some tokens, and compares their logits."""
        batch, total = self.tokens.shape
        count = min(count or self.choice(1, 1, 1, 2, 5, self.random.randint(6, 150)), CAPACITY - total)
        if not count:
            return
        generator = torch.Generator().manual_seed(self.random.getrandbits(30))
        new = torch.randint(2, 120, (batch, count), generator=generator).to(DEVICE)
        shown = torch.ones_like(new)
        if total == 0 and self.choice(True, False):  # padding on the left
            for row in shown:
                row[: self.random.choice([0, 0, count - 1, self.random.randint(0, count - 1)])] = 0
        self.said.append(f"forward of {count}, padding {(count - shown.sum(1)).tolist()}")
        self.tokens, self.mask = torch.cat([self.tokens, new], 1), torch.cat([self.mask, shown], 1)
        options = dict(position_ids=(self.mask.cumsum(1) - 1).clamp(0))
        if not bool(self.mask.all()) or self.choice(True, False):
            options["attention_mask"] = self.mask
        now = {key: value[:, total:] if key == "position_ids" else value for key, value in options.items()}
        found = self.model(new, **now, **given(self.cache)).logits
        if not compared:
            return
        self.model.set_attn_implementation("eager")
        wanted = self.model(self.tokens, use_cache=False, **options).logits[:, total:]
        self.model.set_attn_implementation("octaplex")
        assert found.shape == wanted.shape and self.cache.get_seq_length() == self.tokens.shape[1]
        errors = ((found - wanted).norm(dim=-1) / wanted.norm(dim=-1))[shown.bool()]
        assert float(errors.max()) < 0.1, f"errors {errors.tolist()[:8]}"  # a NaN fails too

    def steps(self):
        for _ in range(self.choice(3, 8, 8, 70 if ON_GPU else 12)):
            self.forward(1, self.choice(True, False, False, False))

    def crop(self):
        total = self.tokens.shape[1]
        count = min(total, self.choice(1, 3, 8, 30, total))
        self.said.append(f"crop of {count}")
        try:
            self.cache.crop(-count)
        except octaplex.Error as error:
            said = "cannot be taken back" if self.name in NO_CROP else "max_rollback"
            assert said in str(error), error
            self.said[-1] += ", refused"
        else:
            self.tokens, self.mask = self.tokens[:, : total - count], self.mask[:, : total - count]

    def pick(self):
        batch, where = len(self.tokens), self.choice("cpu", DEVICE)
        how = self.choice("reorder", "repeat", "select", "mask")
        if how == "repeat":
            indices = [number for number in range(batch) for _ in range(2)]
            call = lambda: self.cache.batch_repeat_interleave(2)
        elif how == "mask":
            kept = [self.choice(True, False) for _ in range(batch)]
            kept[self.random.randrange(batch)] = True
            indices = [number for number in range(batch) if kept[number]]
            call = lambda: self.cache.batch_select_indices(torch.tensor(kept, device=where))
        else:
            indices = [self.random.randrange(batch) for _ in range(self.choice(1, batch, batch + 1))]
            selected = torch.tensor(indices, device=where)
            call = lambda: (self.cache.reorder_cache if how == "reorder" else self.cache.batch_select_indices)(selected)
        if len(indices) > 6:
            return
        self.said.append(f"{how} {indices} on {where}")
        call()
        if not self.cache._groups:  # it has no batch yet
            return
        self.tokens, self.mask = self.tokens[indices], self.mask[indices]

    def copied(self):
        """Copies the cache, calls the model with one of the two, and continues with the other."""
        self.said.append("copy")
        other = copy.deepcopy(self.cache)
        if self.choice(True, False):
            self.cache, other = other, self.cache
        if self.tokens.shape[1] and self.tokens.shape[1] < CAPACITY:
            mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], 1)
            self.model(self.tokens[:, -1:], attention_mask=mask, position_ids=(mask.cumsum(1) - 1)[:, -1:], **given(other))

    def reset(self):
        batch = self.random.randint(1, 3)
        self.said.append(f"reset, then a batch of {batch}")
        self.cache.reset()
        assert self.cache.stats().tokens == 0
        self.empty(batch)

    def go(self):
        self.forward()
        for _ in range(self.random.randint(4, 10)):
            self.random.choice([self.forward, self.forward, self.forward, self.steps, self.crop, self.crop, self.pick, self.copied, self.reset])()
        self.forward(1)


@pytest.mark.parametrize("group", range(8))
def test_random_calls(group):
    with torch.no_grad():
        for seed in range(SEED + group, SEED + RUNS, 8):
            run = Run(seed)
            try:
                run.go()
            except Exception as error:
                raise AssertionError(f"OCTAPLEX_SEED={seed} OCTAPLEX_RUNS=1: {run.name}, {run.options}: {'; '.join(run.said)}: {error}") from error
