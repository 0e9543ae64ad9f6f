// A language model of the architectures llama and qwen2 from a GGUF file, and its graph. Only
// the line that computes attention depends on octaplex.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <gguf.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct model {
    struct block {
        ggml_tensor *attn_norm, *q, *k, *v, *q_bias, *k_bias, *v_bias, *out, *ffn_norm, *gate, *up, *down;
    };
    int64_t width, heads, kv_heads, head_dim, vocabulary;
    int rope_type, rope_dims;
    float rope_base, epsilon;
    ggml_tensor *embedding, *norm, *output, *rope_factors;
    std::vector<block> blocks;

    // `f32`: weights are decoded, so that products are those of floats and not of ggml's 8-bit activations.
    model(const std::string & path, bool f32) {
        gguf.reset(gguf_init_from_file(path.c_str(), { false, &weights }));
        if (!gguf) throw std::runtime_error(path + ": not a GGUF file, or a damaged one");
        const int64_t name = find("general.architecture");
        const std::string arch = name < 0 ? "" : gguf_get_val_str(gguf.get(), name);
        if (arch != "llama" && arch != "qwen2")
            throw std::runtime_error(path + ": the architecture is \"" + arch + "\"; llama and qwen2 are built here");
        if (f32) decode();
        auto count = [&](const char * key, int64_t otherwise) {
            const int64_t at = find(arch + "." + key);
            return at < 0 ? otherwise : static_cast<int64_t>(gguf_get_val_u32(gguf.get(), at));
        };
        auto number = [&](const char * key, float otherwise) {
            const int64_t at = find(arch + "." + key);
            return at < 0 ? otherwise : gguf_get_val_f32(gguf.get(), at);
        };
        embedding = tensor("token_embd.weight");
        width = embedding->ne[0], vocabulary = embedding->ne[1];
        heads = count("attention.head_count", 1);
        kv_heads = count("attention.head_count_kv", heads);
        head_dim = count("attention.key_length", width / heads);
        epsilon = number("attention.layer_norm_rms_epsilon", 1e-5f);
        rope_type = arch == "llama" ? GGML_ROPE_TYPE_NORMAL : GGML_ROPE_TYPE_NEOX;
        rope_dims = static_cast<int>(count("rope.dimension_count", head_dim));
        rope_base = number("rope.freq_base", 10000.0f);
        rope_factors = ggml_get_tensor(weights, "rope_freqs.weight"); // or null
        norm = tensor("output_norm.weight");
        output = ggml_get_tensor(weights, "output.weight");
        if (output == nullptr) output = embedding; // tied
        for (int64_t il = 0; il < count("block_count", 0); il++) {
            const std::string at = "blk." + std::to_string(il) + ".";
            auto weight = [&](const char * part) { return tensor(at + part + ".weight"); };
            auto bias = [&](const char * part) { return ggml_get_tensor(weights, (at + part + ".bias").c_str()); };
            blocks.push_back({ weight("attn_norm"), weight("attn_q"), weight("attn_k"), weight("attn_v"), bias("attn_q"),
                               bias("attn_k"), bias("attn_v"), weight("attn_output"), weight("ffn_norm"),
                               weight("ffn_gate"), weight("ffn_up"), weight("ffn_down") });
        }
    }
    ~model() { ggml_free(weights); }
    model(const model &) = delete;

    // Computes the attention of a layer's queries: q, k and v are [head_dim, heads, tokens] of the new tokens, after the
    // RoPE. The result is [head_dim, heads, tokens] too.
    using attention = std::function<ggml_tensor *(ggml_context *, ggml_cgraph *, int il, ggml_tensor * q, ggml_tensor * k,
                                                  ggml_tensor * v, float scale)>;

    // The logits of the tokens, [vocabulary, tokens]. `ids` and `positions` are the graph's inputs.
    ggml_tensor * build(ggml_context * ctx, ggml_cgraph * graph, ggml_tensor * ids, ggml_tensor * positions,
                        const attention & attend) const {
        const int64_t tokens = ids->ne[0];
        auto rms = [&](ggml_tensor * x, ggml_tensor * w) { return ggml_mul(ctx, ggml_rms_norm(ctx, x, epsilon), w); };
        auto heads_of = [&](ggml_tensor * w, ggml_tensor * bias, ggml_tensor * x, int64_t count) {
            ggml_tensor * rows = ggml_mul_mat(ctx, w, x);
            if (bias != nullptr) rows = ggml_add(ctx, rows, bias);
            return ggml_reshape_3d(ctx, rows, head_dim, count, tokens);
        };
        auto rope = [&](ggml_tensor * rows) {
            return ggml_rope_ext(ctx, rows, positions, rope_factors, rope_dims, rope_type, 0, rope_base, 1, 0, 1, 32, 1);
        };
        ggml_tensor * x = ggml_get_rows(ctx, embedding, ids);
        for (size_t il = 0; il < blocks.size(); il++) {
            const block & w = blocks[il];
            ggml_tensor * normed = rms(x, w.attn_norm);
            ggml_tensor * q = rope(heads_of(w.q, w.q_bias, normed, heads));
            ggml_tensor * k = rope(heads_of(w.k, w.k_bias, normed, kv_heads));
            ggml_tensor * v = heads_of(w.v, w.v_bias, normed, kv_heads);
            const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
            ggml_tensor * mixed = attend(ctx, graph, static_cast<int>(il), q, k, v, scale);
            x = ggml_add(ctx, x, ggml_mul_mat(ctx, w.out, ggml_reshape_2d(ctx, mixed, head_dim * heads, tokens)));
            normed = rms(x, w.ffn_norm);
            ggml_tensor * gate = ggml_silu(ctx, ggml_mul_mat(ctx, w.gate, normed));
            gate = ggml_mul(ctx, gate, ggml_mul_mat(ctx, w.up, normed));
            x = ggml_add(ctx, x, ggml_mul_mat(ctx, w.down, gate));
        }
        return ggml_mul_mat(ctx, output, rms(x, norm));
    }

  private:
    struct closer {
        void operator()(gguf_context * gguf) const { gguf_free(gguf); }
    };
    std::unique_ptr<gguf_context, closer> gguf;
    ggml_context * weights = nullptr;

    int64_t find(const std::string & key) const { return gguf_find_key(gguf.get(), key.c_str()); }

    ggml_tensor * tensor(const std::string & name) const {
        ggml_tensor * found = ggml_get_tensor(weights, name.c_str());
        if (found == nullptr) throw std::runtime_error("no tensor " + name + " in the GGUF file");
        return found;
    }

    void decode() {
        size_t bytes = 0;
        for (int64_t i = 0; i < gguf_get_n_tensors(gguf.get()); i++)
            bytes += ggml_nelements(named(i)) * sizeof(float) + ggml_tensor_overhead() + GGML_MEM_ALIGN;
        ggml_context * floats = ggml_init({ bytes, nullptr, false });
        for (int64_t i = 0; i < gguf_get_n_tensors(gguf.get()); i++) {
            ggml_tensor * t = named(i);
            ggml_tensor * decoded = ggml_new_tensor(floats, GGML_TYPE_F32, ggml_n_dims(t), t->ne);
            ggml_set_name(decoded, t->name);
            if (t->type == GGML_TYPE_F32) {
                memcpy(decoded->data, t->data, ggml_nbytes(t));
            } else {
                ggml_get_type_traits(t->type)->to_float(t->data, static_cast<float *>(decoded->data), ggml_nelements(t));
            }
        }
        ggml_free(weights);
        weights = floats;
    }

    ggml_tensor * named(int64_t number) const { return tensor(gguf_get_tensor_name(gguf.get(), number)); }
};
