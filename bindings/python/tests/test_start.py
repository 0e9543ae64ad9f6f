"""The program for transformers in docs/start.md, on a small model with random weights. ``ci/transformers.sh`` runs it."""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ROOT = pathlib.Path(__file__).parents[3]
NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


def save_model(folder):
    """A model of two layers, whose tokens are bytes."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    size = dict(vocab_size=256, hidden_size=128, intermediate_size=128, max_position_embeddings=8192, eos_token_id=None)
    heads = dict(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=64)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, **heads)).save_pretrained(folder)


def test_the_first_program(tmp_path):
    (program,) = re.findall(r"```python transformers\n(.*?)```", (ROOT / "docs/start.md").read_text(), re.S)
    assert NAME in program
    save_model(tmp_path)
    run = [sys.executable, "-c", program.replace(NAME, str(tmp_path))]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tokens, bits = re.fullmatch(r"(\d+) tokens, ([\d.]+) bits a value", done.stdout.splitlines()[-1]).groups()
    assert tokens == "4011" and 3.2 < float(bits) < 4.5  # 4,000 of the prompt, whose tokens are bytes here, and 12 without the newest
