// Runs a model's graph, with ggml's own attention.
#pragma once

#include "model.h"

#include <algorithm>
#include <chrono>

// K and V in tensors and ggml_flash_attn_ext, as in llama.cpp. octaplex replaces this cache.
class ggml_attention {
  public:
    ggml_attention(const model & m, int64_t capacity, ggml_type type = GGML_TYPE_F16) {
        const size_t bytes = capacity * m.kv_heads * ggml_row_size(type, m.head_dim) + ggml_tensor_overhead() + 64;
        ctx = ggml_init({ 2 * m.blocks.size() * bytes, nullptr, false });
        for (size_t i = 0; i < 2 * m.blocks.size(); i++)
            caches.push_back(ggml_new_tensor_3d(ctx, type, m.head_dim, m.kv_heads, capacity));
    }
    ~ggml_attention() { ggml_free(ctx); }
    ggml_attention(const ggml_attention &) = delete;

    int64_t past = 0;            // tokens in the cache
    ggml_tensor * mask = nullptr; // [tokens that are there, new tokens]

    // The first tokens' keys or values of every layer become copies of these rows, [tokens][heads][width], one block after another.
    void fill(const std::vector<float> & rows, int64_t tokens) {
        const int64_t width = caches[0]->ne[0] * caches[0]->ne[1], block = rows.size() / width;
        std::vector<char> encoded(block * caches[0]->nb[2]);
        ggml_quantize_chunk(caches[0]->type, rows.data(), encoded.data(), 0, block * caches[0]->ne[1], caches[0]->ne[0], nullptr);
        for (ggml_tensor * cache : caches)
            for (int64_t t = 0; t < tokens; t += block)
                memcpy(static_cast<char *>(cache->data) + t * cache->nb[2], encoded.data(), std::min(block, tokens - t) * cache->nb[2]);
    }

    ggml_tensor * attention(ggml_context * ctx, ggml_cgraph * graph, int il, ggml_tensor * q, ggml_tensor * k,
                            ggml_tensor * v, float scale) const {
        auto store = [&](ggml_tensor * cache, ggml_tensor * rows) {
            ggml_tensor * place = ggml_view_3d(ctx, cache, rows->ne[0], rows->ne[1], rows->ne[2], cache->nb[1],
                                               cache->nb[2], past * cache->nb[2]);
            ggml_build_forward_expand(graph, ggml_cpy(ctx, rows, place));
            ggml_tensor * all = ggml_view_3d(ctx, cache, rows->ne[0], rows->ne[1], past + rows->ne[2], cache->nb[1],
                                             cache->nb[2], 0);
            return ggml_permute(ctx, all, 0, 2, 1, 3); // [width, tokens, heads]
        };
        ggml_tensor * keys = store(caches[2 * il], k);
        ggml_tensor * values = store(caches[2 * il + 1], v);
        return ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), keys, values, mask, scale, 0.0f, 0.0f);
    }

  private:
    ggml_context * ctx;
    std::vector<ggml_tensor *> caches;
};

// Builds a graph for one batch and computes it. Returns the logits, [tokens][vocabulary]; `seconds` is the time of the
// computation.
class runner {
  public:
    explicit runner(int threads) : backend(ggml_backend_cpu_init()), allocator(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {
        ggml_backend_cpu_set_n_threads(backend, threads);
    }
    ~runner() {
        ggml_gallocr_free(allocator);
        ggml_backend_free(backend);
    }

    double seconds = 0;

    std::vector<float> run(const model & m, const std::vector<int32_t> & ids, int64_t past, ggml_attention * own,
                           const model::attention & attend) {
        const size_t nodes = 64 * (m.blocks.size() + 1);
        ggml_context * ctx = ggml_init({ nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false), nullptr, true });
        ggml_cgraph * graph = ggml_new_graph_custom(ctx, nodes, false);
        const int64_t tokens = ids.size();
        ggml_tensor * input = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, tokens);
        ggml_tensor * positions = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, tokens);
        ggml_set_input(input);
        ggml_set_input(positions);
        if (own != nullptr) {
            own->past = past;
            own->mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, past + tokens, tokens);
            ggml_set_input(own->mask);
        }
        ggml_tensor * logits = m.build(ctx, graph, input, positions, attend);
        ggml_build_forward_expand(graph, logits);
        if (!ggml_gallocr_alloc_graph(allocator, graph)) throw std::runtime_error("no memory for the graph");
        memcpy(input->data, ids.data(), ids.size() * sizeof(int32_t));
        for (int64_t t = 0; t < tokens; t++) static_cast<int32_t *>(positions->data)[t] = static_cast<int32_t>(past + t);
        if (own != nullptr) {
            auto * mask = static_cast<ggml_fp16_t *>(own->mask->data);
            for (int64_t t = 0; t < tokens; t++)
                for (int64_t seen = 0; seen < past + tokens; seen++)
                    *mask++ = ggml_fp32_to_fp16(seen <= past + t ? 0.0f : -INFINITY);
        }
        const auto start = std::chrono::steady_clock::now();
        const bool computed = ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS;
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (!computed) throw std::runtime_error("ggml failed");
        const float * found = static_cast<const float *>(logits->data);
        std::vector<float> copy(found, found + ggml_nelements(logits));
        ggml_free(ctx);
        return copy;
    }

  private:
    ggml_backend_t backend;
    ggml_gallocr_t allocator;
};
