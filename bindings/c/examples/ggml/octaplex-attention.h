// Puts octaplex in the place of ggml_flash_attn_ext. An engine on ggml needs only this file; the rest of the example is a
// model to show it on.
//
// An engine on ggml keeps K and V in tensors of its own, copies the new tokens' rows there (ggml_cpy, ggml_set_rows), and
// gives views of them to ggml_flash_attn_ext with a mask. Here the cache is octaplex's, so that the three become one call:
//
//     ggml_tensor * out = cache.attention(ctx, layer, q, k, v, scale);     // [width, heads, tokens], as flash attention's
//
// The arguments of ggml_flash_attn_ext, and their places here:
//
//     q, k, v         f32, [width, heads, tokens], with the RoPE applied: new tokens only, the old ones are in the cache
//     scale           the same
//     mask            none: causal, and octaplex_config.sliding_window for layers with a window. One cache is one sequence:
//                     an engine that serves several has a cache for each (octaplex_cache_fork shares a common prompt)
//     logit_softcap   octaplex_attend.soft_cap
//     max_bias        octaplex_attend.bias
//     sinks           octaplex_attend.sink_logits
//
// Custom ops run on ggml's CPU backend, where ggml_backend_sched puts them by itself.
#pragma once

#include <ggml.h>
#include <octaplex.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

class octaplex_attention {
  public:
    // Texts of the config are read here only.
    explicit octaplex_attention(const octaplex_config & config) {
        octaplex_error error;
        cache = octaplex_cache_create(&config, &error);
        if (cache == nullptr) throw std::runtime_error(std::string("octaplex: ") + error.message);
        layers.resize(config.layers);
        for (size_t i = 0; i < config.layers; i++) layers[i] = { this, i, config.key_dim, config.kv_heads, 0, 0.0f };
    }
    ~octaplex_attention() { octaplex_cache_free(cache, nullptr); }
    octaplex_attention(const octaplex_attention &) = delete; // graphs point here

    // The same tokens for another sequence, or to try something: pages are shared.
    std::unique_ptr<octaplex_attention> fork() const {
        octaplex_error error;
        octaplex_cache * copy = octaplex_cache_fork(cache, &error);
        if (copy == nullptr) throw std::runtime_error(std::string("octaplex: ") + error.message);
        return std::unique_ptr<octaplex_attention>(new octaplex_attention(copy, layers));
    }

    // Tokens that no graph computed: rows of all layers, [heads][tokens][width].
    void append(const std::vector<float> & rows, size_t tokens) {
        octaplex_tensor given = {};
        given.data = rows.data();
        given.length = rows.size();
        given.dtype = OCTAPLEX_F32;
        for (layer & each : layers) append(each, tokens, given, given);
        check();
    }

    // Adds two nodes to a graph: the first appends the new tokens to the cache, the second computes attention on it. As in
    // llama.cpp, a graph is built for one batch and computed once.
    ggml_tensor * attention(ggml_context * ctx, int il, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v, float scale) {
        layers[il].scale = scale;
        // Two ops, since all threads must see the cache with the new tokens: ggml waits for all threads between ops.
        ggml_tensor * appended = ggml_map_custom2_inplace(ctx, k, v, append, 1, &layers[il]);
        return ggml_map_custom2(ctx, q, appended, attend, GGML_N_TASKS_MAX, &layers[il]); // the shape is q's
    }

    // Call it after each graph: a custom op cannot fail, so errors are stored until this call.
    void check() {
        if (!failure.empty()) throw std::runtime_error("octaplex: " + failure);
    }

    octaplex_stats stats() const {
        octaplex_stats stats = {};
        stats.size = sizeof stats;
        octaplex_cache_get_stats(cache, OCTAPLEX_ALL_LAYERS, &stats, nullptr);
        return stats;
    }

  private:
    struct layer {
        octaplex_attention * owner;
        size_t number;
        size_t width;
        size_t heads;  // of keys and values
        size_t tokens; // in the cache: the next one's position
        float scale;
    };

    octaplex_attention(octaplex_cache * cache, std::vector<layer> layers) : cache(cache), layers(std::move(layers)) {
        for (layer & each : this->layers) each.owner = this;
    }

    octaplex_cache * cache;
    std::vector<layer> layers; // never grows: graphs point to its elements
    std::mutex lock;
    std::string failure;

    void fail(const octaplex_error & error) {
        std::lock_guard<std::mutex> held(lock);
        if (failure.empty()) failure = error.message;
    }

    // ggml calls with every thread whatever the op's n_tasks, which is a hint: the first alone appends.
    static void append(ggml_tensor *, const ggml_tensor * k, const ggml_tensor * v, int ith, int, void * userdata) {
        if (ith != 0) return;
        layer & self = *static_cast<layer *>(userdata);
        append(self, k->ne[2], tensor(k), tensor(v));
    }

    static void append(layer & self, size_t tokens, const octaplex_tensor & keys, const octaplex_tensor & values) {
        octaplex_error error;
        if (octaplex_cache_append(self.owner->cache, self.number, tokens, &keys, &values, &error) != OCTAPLEX_STATUS_OK) {
            self.owner->fail(error);
            return;
        }
        self.tokens += tokens;
    }

    // Rows stay where ggml has them: strides say so, in values.
    static octaplex_tensor tensor(const ggml_tensor * t) {
        octaplex_tensor rows = {};
        rows.data = t->data;
        rows.length = ggml_nbytes(t) / sizeof(float);
        rows.dtype = OCTAPLEX_F32;
        rows.head_stride = t->nb[1] / sizeof(float);
        rows.token_stride = t->nb[2] / sizeof(float);
        return rows;
    }

    // Calls that only read may run at once: each thread answers its share of the batch's queries, and of fewer tokens than
    // threads and heads its share of the heads.
    static void attend(ggml_tensor * dst, const ggml_tensor * q, const ggml_tensor *, int ith, int nth, void * userdata) {
        layer & self = *static_cast<layer *>(userdata);
        const size_t all_tokens = q->ne[2], group = q->ne[1] / self.heads;
        if (self.tokens < all_tokens) return; // the append failed
        const bool by_head = all_tokens < std::min(self.heads, static_cast<size_t>(nth));
        const size_t all = by_head ? self.heads : all_tokens;
        const size_t first = all * ith / nth, count = all * (ith + 1) / nth - first;
        if (count == 0) return;
        const size_t first_head = by_head ? first : 0, first_token = by_head ? 0 : first;
        const size_t heads = (by_head ? count : self.heads) * group, tokens = by_head ? all_tokens : count;
        // ggml has [tokens][heads][width], octaplex [heads][tokens][width].
        std::vector<float> queries(heads * tokens * self.width), output(queries.size());
        auto each_row = [&](auto copy) {
            for (size_t h = 0; h < heads; h++)
                for (size_t t = 0; t < tokens; t++) copy((h * tokens + t) * self.width, first_head * group + h, first_token + t);
        };
        auto at = [](const ggml_tensor * t, size_t head, size_t token) {
            return reinterpret_cast<float *>(static_cast<char *>(t->data) + head * t->nb[1] + token * t->nb[2]);
        };
        const size_t row_bytes = self.width * sizeof(float);
        each_row([&](size_t row, size_t h, size_t t) { std::memcpy(&queries[row], at(q, h, t), row_bytes); });
        octaplex_attend options = {};
        options.size = sizeof options;
        options.queries = tokens;
        options.scale = self.scale;
        options.has_position = 1;
        options.position = self.tokens - all_tokens + first_token; // a query sees the tokens up to its own
        options.first_head = first_head;
        options.heads = heads / group;
        octaplex_error error;
        if (octaplex_cache_attend(self.owner->cache, self.number, queries.data(), queries.size(), &options, output.data(),
                                  output.size(), &error) != OCTAPLEX_STATUS_OK) {
            self.owner->fail(error);
            return;
        }
        each_row([&](size_t row, size_t h, size_t t) { std::memcpy(at(dst, h, t), &output[row], row_bytes); });
    }
};
