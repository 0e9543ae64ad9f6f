"""Makes small models with random weights, in GGUF: what is tested on them needs no download and no sense.

usage: made.py KIND OUT.gguf [LAYERS]

KIND: llama    grouped-query attention, heads of width 64
      lame     the same, and the last token has no finite embedding
      llama120 the same with heads of width 120, which octaplex cannot compress
      gemma2   sliding windows in every other layer, soft caps, heads of width 128
      mpt      ALiBi instead of rotary embeddings, heads of width 80
      stablelm rotary embeddings of 24 of a head's 96 channels
      gpt-oss  sink logits, sliding windows in every other layer, two experts
      mamba    recurrent layers only
      jamba    attention in the second of three layers, recurrent others
      qwen15   for speed: LAYERS (4) of the 28 layers of Qwen2.5-1.5B and as large a share of its vocabulary, in Q4_0:
               the work for a token has the proportions of the whole model
      smollm2  for speed: the shape of SmolLM2-135M, in Q4_0
"""

import sys

import gguf
import numpy as np

kind, out = sys.argv[1:3]
layers = int(sys.argv[3]) if len(sys.argv) > 3 else 4
rng = np.random.default_rng(7)
VOCABULARY, LAYERS, TRAINED = {
    "qwen15": (151_936 * layers // 28 // 64 * 64, layers, 131_072),
    "smollm2": (49_152, 30, 131_072),
}.get(kind, (512, 3, 4096))
LARGE = kind in ("qwen15", "smollm2")
heads, groups, width = {
    "llama": (6, 3, 64),
    "lame": (6, 3, 64),
    "llama120": (4, 2, 120),
    "gemma2": (4, 2, 128),
    "mpt": (4, 1, 80),
    "stablelm": (2, 2, 96),
    "gpt-oss": (8, 4, 64),
    "mamba": (3, 3, 64),
    "jamba": (3, 3, 64),
    "qwen15": (12, 6, 128),
    "smollm2": (9, 3, 64),
}[kind]
embedding = heads * width if kind == "mpt" or LARGE else 192
hidden = {"qwen15": 8960, "smollm2": 1536}.get(kind, 2 * embedding)

writer = gguf.GGUFWriter(out, "llama" if LARGE or kind in ("lame", "llama120") else kind)
writer.add_name(f"made {kind}")
writer.add_context_length(TRAINED)
writer.add_embedding_length(embedding)
writer.add_block_count(LAYERS)
writer.add_feed_forward_length(hidden)
writer.add_head_count(0 if kind == "mamba" else heads)
recurrent = {"mamba": range(LAYERS), "jamba": (0, 2)}.get(kind, ())
writer.add_vocab_size(VOCABULARY)
writer.add_tokenizer_model("llama")
tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
tokens += [f"word{number}" for number in range(VOCABULARY - len(tokens))]
kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
writer.add_token_list(tokens)
writer.add_token_scores([0.0] * VOCABULARY)
writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * (VOCABULARY - len(kinds)))
writer.add_bos_token_id(1)
writer.add_eos_token_id(2)
kv_heads = heads // groups
writer.add_head_count_kv([0 if layer in recurrent else kv_heads for layer in range(LAYERS)] if recurrent else kv_heads)
if kind == "mpt":
    writer.add_layer_norm_eps(1e-5)
    writer.add_max_alibi_bias(8.0)
elif kind in ("mamba", "jamba"):
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(2 * embedding)
    writer.add_ssm_state_size(16)
    writer.add_ssm_time_step_rank(12)
else:
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(24 if kind == "stablelm" else width)
if kind == "stablelm":
    writer.add_layer_norm_eps(1e-5)
if kind == "gpt-oss":
    writer.add_expert_count(2)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(hidden)
    writer.add_sliding_window(96)
if kind == "gemma2":
    writer.add_sliding_window(96)
    writer.add_attn_logit_softcapping(20.0)
    writer.add_final_logit_softcapping(30.0)


def tensor(name, *shape, scale=None):
    scale = scale or shape[-1] ** -0.5
    weights = (scale * rng.standard_normal(shape)).astype(np.float32)
    if kind == "lame" and name == "token_embd.weight":
        weights[-1] = np.nan
    if not LARGE:
        return writer.add_tensor(name, weights)
    q4_0 = gguf.GGMLQuantizationType.Q4_0
    writer.add_tensor(name, gguf.quants.quantize(weights, q4_0), raw_dtype=q4_0)


def norm(name):
    writer.add_tensor(name, (1 + 0.1 * rng.standard_normal(embedding)).astype(np.float32))
    if kind == "stablelm":
        tensor(name.replace("weight", "bias"), embedding, scale=0.1)


def state_space(block):
    """A recurrent layer: 16 states of each of twice as many channels."""
    inner = 2 * embedding
    tensor(block + "ssm_in.weight", 2 * inner, embedding)
    tensor(block + "ssm_conv1d.weight", inner, 4)
    tensor(block + "ssm_conv1d.bias", inner, scale=0.1)
    tensor(block + "ssm_x.weight", 12 + 32, inner)
    tensor(block + "ssm_dt.weight", inner, 12)
    tensor(block + "ssm_dt.bias", inner, scale=0.1)
    writer.add_tensor(block + "ssm_a", -np.abs(rng.standard_normal((inner, 16))).astype(np.float32))
    tensor(block + "ssm_d", inner, scale=1.0)
    tensor(block + "ssm_out.weight", embedding, inner)
    if kind == "jamba":
        for name, size in [("dt", 12), ("b", 16), ("c", 16)]:
            writer.add_tensor(f"{block}ssm_{name}_norm.weight", np.ones(size, np.float32))


tensor("token_embd.weight", VOCABULARY, embedding, scale=1.0)
norm("output_norm.weight")
tensor("output.weight", VOCABULARY, embedding, scale=2 * embedding**-0.5) if kind != "gemma2" else None
for layer in range(LAYERS):
    block = f"blk.{layer}."
    norm(block + "attn_norm.weight")
    if layer in recurrent:
        state_space(block)
    if kind == "mamba":
        continue
    norm(block + ("post_attention_norm" if kind == "gpt-oss" else "ffn_norm") + ".weight")
    if kind == "mpt":
        tensor(block + "attn_qkv.weight", 3 * heads * width, embedding)
        tensor(block + "attn_output.weight", embedding, heads * width)
        tensor(block + "ffn_up.weight", hidden, embedding)
        tensor(block + "ffn_down.weight", embedding, hidden)
        continue
    if layer not in recurrent:
        tensor(block + "attn_q.weight", heads * width, embedding)
        tensor(block + "attn_k.weight", kv_heads * width, embedding)
        tensor(block + "attn_v.weight", kv_heads * width, embedding)
        tensor(block + "attn_output.weight", embedding, heads * width)
    if kind == "gemma2":
        norm(block + "post_attention_norm.weight")
        norm(block + "post_ffw_norm.weight")
    if kind == "gpt-oss":
        tensor(block + "attn_output.bias", embedding, scale=0.1)
        tensor(block + "attn_sinks.weight", heads, scale=2.0)
        tensor(block + "ffn_gate_inp.weight", 2, embedding)
        tensor(block + "ffn_gate_inp.bias", 2)
        for name, shape in [("gate", (2, hidden, embedding)), ("up", (2, hidden, embedding)), ("down", (2, embedding, hidden))]:
            tensor(f"{block}ffn_{name}_exps.weight", *shape)
            tensor(f"{block}ffn_{name}_exps.bias", *shape[:2], scale=0.1)
        continue
    for name, shape in [("gate", (hidden, embedding)), ("up", (hidden, embedding)), ("down", (embedding, hidden))]:
        tensor(f"{block}ffn_{name}.weight", *shape)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
