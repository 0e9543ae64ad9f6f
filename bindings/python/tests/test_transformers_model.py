"""OctaplexCache in a real model: what transformers writes on it is what ``octaplex generate`` writes. ``ci/transformers.sh MODEL.gguf``
runs this; OCTAPLEX_MODEL names the model, OCTAPLEX_TOOL the tool with the feature `models`."""

import json
import os
import pathlib
import subprocess

import pytest

MODEL, TOOL = (os.environ.get(name) for name in ("OCTAPLEX_MODEL", "OCTAPLEX_TOOL"))
if not (MODEL and TOOL):
    pytest.skip("OCTAPLEX_MODEL and OCTAPLEX_TOOL name no model and no tool: run ci/transformers.sh MODEL.gguf", allow_module_level=True)

import gguf
import torch
import transformers
from kinds import given
from octaplex.transformers import OctaplexCache

TEXT = pathlib.Path(__file__).parents[3] / "docs/architecture.md"
PROMPT, NEW = 250, 40  # pages of 64 and of 128 close while it writes

#: Options of the tool, and the same of OctaplexCache.
SETTINGS = {
    "f16": (["--k", "f16", "--v", "f16"], dict(keys="f16", values="f16")),
    "turboquant": (["--k", "turboquant", "--v", "turboquant"], dict(keys="turboquant", values="turboquant")),
    "trellis": (
        ["--k", "trellis:seed=7", "--v", "trellis:bits=2", "--page", "128", "--sinks", "2", "--window", "30"],
        dict(keys="trellis:seed=7", values="trellis:bits=2", page=128, sink_tokens=2, recent_window=30),
    ),
    "budget": (["--budget", "3.2", "--boundary", "1"], dict(bits=3.2, boundary_layers=1)),
    "uncentred": (["--center", "off", "--k", "turboquant", "--v", "int"], dict(center="off", balance=False, keys="turboquant", values="int")),
}


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    """The model with its weights decoded to f32. Of quantised ones candle rounds the other factor to 8 bits as well, and transformers
    does not: they are two models, whose tokens part wherever two are almost equally likely."""
    path = tmp_path_factory.mktemp("model") / "f32.gguf"
    source = gguf.GGUFReader(MODEL)
    writer = gguf.GGUFWriter(path, source.fields["general.architecture"].contents())
    for name, field in source.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, inner = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    yield path
    path.unlink()  # two gigabytes of a model of half a billion


@pytest.fixture(scope="module")
def model(decoded):
    options = dict(gguf_file=decoded.name, dtype=torch.float32, attn_implementation="octaplex")
    model = transformers.AutoModelForCausalLM.from_pretrained(decoded.parent, **options).eval()
    model.generation_config.eos_token_id = None  # the tool knows more ends than one: its length counts
    return model


def told(decoded, tmp_path, flags):
    """Returns the tool's figures of bytes read and written, and the bytes that it then holds."""
    what = ["--model", decoded, "--text", TEXT, "--tokens", str(PROMPT), "--new", str(NEW), "--json", tmp_path / "out.json"]
    subprocess.run([TOOL, "generate", *what, *flags], check=True, stdout=subprocess.DEVNULL)
    found = json.loads((tmp_path / "out.json").read_text())
    tokens = found["tokens"]
    assert (len(tokens["prompt"]), len(tokens["written"])) == (PROMPT, NEW)
    return tokens["prompt"], tokens["written"], found["growth"][-1]["kv_bytes"]


@pytest.mark.parametrize("name", ["f16", "defaults", "trellis"])
def test_generate_writes_what_the_tool_writes(decoded, model, tmp_path, name):
    flags, options = SETTINGS[name]
    prompt, written, held = told(decoded, tmp_path, flags)
    cache = OctaplexCache(model.config, max_rollback=0, **options)  # as the tool has it, which drafts nothing
    found = model.generate(torch.tensor([prompt]), **given(cache), do_sample=False, max_new_tokens=NEW + 1)[0, PROMPT:]
    assert found[:NEW].tolist() == written
    assert cache.stats().bytes == held


@pytest.mark.parametrize("name", ["budget", "uncentred"])
def test_what_the_tool_writes_is_likely(decoded, model, tmp_path, name):
    """Rows differ in their last bits, as products are added up in another order, and now and then one gets another code. Where codes
    are coarse that grows through the layers, and of two tokens that are almost equally likely the other one can be taken."""
    flags, options = SETTINGS[name]
    prompt, written, held = told(decoded, tmp_path, flags)
    cache = OctaplexCache(model.config, max_rollback=0, **options)
    other, tokens = 0, prompt
    with torch.no_grad():
        for token in written:
            likely = model(torch.tensor([tokens]), **given(cache)).logits[0, -1].log_softmax(-1)
            assert likely.max() - likely[token] < 0.5
            other, tokens = other + (likely.argmax() != token), [token]
        model(torch.tensor([tokens]), **given(cache))
    assert other <= 3
    assert cache.stats().bytes == held
