"""Models whose layers are not all of one kind, or share keys and values, or have values narrower than keys: small, with random weights."""

import inspect

import transformers

#: The name of a model's argument for a cache: "cache", and "past_key_values" before transformers 5.24.
CACHE = "cache" if "cache" in inspect.signature(transformers.LlamaForCausalLM.forward).parameters else "past_key_values"
SHARED = dict(num_hidden_layers=6, num_kv_shared_layers=2, sliding_window=70, layer_types=["sliding_attention", "full_attention"] * 3)
LINEAR = dict(num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32)
INPUTS = dict(vocab_size_per_layer_input=120, hidden_size_per_layer_input=16)


def given(cache):
    """A cache as a model's argument."""
    return {CACHE: cache}


def configs(common):
    """Of each name what makes a config, where this version of transformers has that model."""
    common = {**common, "head_dim": 64}
    plain = {key: value for key, value in common.items() if key != "head_dim"}
    all_of_them = {
        # Layers at the end read the keys and values of layers before them.
        "gemma3n": ("Gemma3nTextConfig", dict(**SHARED, **INPUTS, altup_num_inputs=2, laurel_rank=8, activation_sparsity_pattern=[0.0] * 6, **common)),
        "gemma4": ("Gemma4TextConfig", dict(global_head_dim=128, **SHARED, **INPUTS, **common)),
        # Attention is in some layers; the others have states that transformers holds.
        "qwen3_next": ("Qwen3NextConfig", dict(**LINEAR, **EXPERTS, **common)),
        "qwen3_5": ("Qwen3_5TextConfig", dict(**LINEAR, **common)),
        "lfm2": ("Lfm2Config", dict(num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2, **{**plain, "hidden_size": 256})),
        # Values have another width than keys.
        "mimo": ("MiMoV2FlashConfig", dict(num_hidden_layers=2, v_head_dim=32, **common)),
    }
    found = {}
    for name, (kind, options) in all_of_them.items():
        if hasattr(transformers, kind):
            found[name] = lambda kind=kind, options=options: getattr(transformers, kind)(**options)
    return found
