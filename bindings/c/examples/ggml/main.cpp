// A language model reads a text twice in step: with ggml's own flash attention on an f16 cache, and with octaplex in its
// place. How far the two next-token distributions are apart is what the compression costs.
//
//     octaplex-ggml MODEL.gguf TOKENS.txt [--k SPEC] [--v SPEC] [--tokens N] [--threads N] [--f32]
#include "model.h"
#include "octaplex-attention.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

// K and V in f16 tensors and ggml_flash_attn_ext, as in llama.cpp: what octaplex replaces.
class ggml_attention {
  public:
    ggml_attention(const model & m, int64_t capacity) {
        const size_t bytes = capacity * m.kv_heads * m.head_dim * sizeof(ggml_fp16_t) + ggml_tensor_overhead() + 64;
        ctx = ggml_init({ 2 * m.blocks.size() * bytes, nullptr, false });
        for (size_t i = 0; i < 2 * m.blocks.size(); i++)
            caches.push_back(ggml_new_tensor_3d(ctx, GGML_TYPE_F16, m.head_dim, m.kv_heads, capacity));
    }
    ~ggml_attention() { ggml_free(ctx); }

    int64_t past = 0;            // tokens in the cache
    ggml_tensor * mask = nullptr; // [tokens that are there, new tokens]

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

// Builds a graph for one batch and computes it: the logits, [tokens][vocabulary].
class runner {
  public:
    explicit runner(int threads) : backend(ggml_backend_cpu_init()), allocator(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {
        ggml_backend_cpu_set_n_threads(backend, threads);
    }
    ~runner() {
        ggml_gallocr_free(allocator);
        ggml_backend_free(backend);
    }

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
        if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) throw std::runtime_error("ggml failed");
        const float * found = static_cast<const float *>(logits->data);
        std::vector<float> copy(found, found + ggml_nelements(logits));
        ggml_free(ctx);
        return copy;
    }

  private:
    ggml_backend_t backend;
    ggml_gallocr_t allocator;
};

// Logits become ln p, in place.
static void log_softmax(std::vector<double> & row) {
    const double most = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double x : row) sum += std::exp(x - most);
    for (double & x : row) x -= most + std::log(sum);
}

static int run(const std::vector<std::string> & arguments) {
    std::vector<std::string> files;
    std::string k = "trellis", v = "trellis";
    size_t most = 1024;
    int threads = std::max(1u, std::thread::hardware_concurrency());
    bool f32 = false;
    for (size_t i = 0; i < arguments.size(); i++) {
        const std::string & name = arguments[i];
        auto value = [&] {
            if (++i == arguments.size()) throw std::runtime_error(name + ": a value is missing");
            return arguments[i];
        };
        if (name == "--k") k = value();
        else if (name == "--v") v = value();
        else if (name == "--tokens") most = std::stoul(value());
        else if (name == "--threads") threads = std::stoi(value());
        else if (name == "--f32") f32 = true;
        else files.push_back(name);
    }
    if (files.size() != 2 || threads < 1)
        throw std::runtime_error("usage: octaplex-ggml MODEL.gguf TOKENS.txt [--k SPEC] [--v SPEC] [--tokens N] [--threads N] [--f32]");
    const model m(files[0], f32);
    std::vector<int32_t> ids;
    std::ifstream text(files[1]);
    for (int32_t id; ids.size() < most && text >> id;) {
        if (id < 0 || id >= m.vocabulary) throw std::runtime_error(files[1] + ": " + std::to_string(id) + " is no token of the model");
        ids.push_back(id);
    }
    if (ids.size() < 2) throw std::runtime_error(files[1] + ": at least two numbers of tokens are needed");

    octaplex_config config;
    octaplex_error error;
    uint32_t verified; // of bytes and results of all codecs, the same on every machine
    if (octaplex_verify(nullptr, nullptr, &verified, &error) != OCTAPLEX_STATUS_OK) throw std::runtime_error(error.message);
    if (octaplex_config_init(&config, sizeof config, m.blocks.size(), m.kv_heads, m.head_dim, 0, &error) != OCTAPLEX_STATUS_OK)
        throw std::runtime_error(error.message);
    config.keys = k.c_str();
    config.values = v.c_str();
    config.max_rollback = 0; // nothing here takes tokens back
    config.capacity = std::max(ids.size(), config.sink_tokens + config.recent_window) + config.page;
    octaplex_attention cache(config);
    ggml_attention own(m, ids.size());
    runner runner(threads);

    double loss = 0, loss_f16 = 0, divergence = 0;
    size_t agreed = 0;
    uint64_t checksum = 0xcbf29ce484222325; // of octaplex's logits, as FNV-1a over words
    std::vector<double> p(m.vocabulary), reference(m.vocabulary);
    for (size_t past = 0, tokens; past < ids.size(); past += tokens) {
        // A batch ends where a page closes: then every query sees what it would see in decoding, token by token. Other
        // batches are as good for an engine; their queries see some tokens compressed a little earlier.
        const size_t first = config.sink_tokens + config.recent_window + config.page - 1;
        tokens = std::min(past == 0 ? first : config.page, ids.size() - past);
        const std::vector<int32_t> batch(ids.begin() + past, ids.begin() + past + tokens);
        using namespace std::placeholders;
        auto f16 = runner.run(m, batch, past, &own, std::bind(&ggml_attention::attention, &own, _1, _2, _3, _4, _5, _6, _7));
        auto logits = runner.run(m, batch, past, nullptr, [&](ggml_context * ctx, ggml_cgraph *, int il, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                     float scale) { return cache.attention(ctx, il, q, k, v, scale); });
        cache.check();
        for (size_t t = 0; t < tokens; t++) {
            const size_t at = t * m.vocabulary;
            for (int64_t i = 0; i < m.vocabulary; i++) {
                uint32_t bits;
                memcpy(&bits, &logits[at + i], sizeof bits);
                checksum = (checksum ^ bits) * 0x100000001b3;
            }
            if (past + t + 1 == ids.size()) break; // what comes next is not known
            p.assign(logits.begin() + at, logits.begin() + at + m.vocabulary);
            reference.assign(f16.begin() + at, f16.begin() + at + m.vocabulary);
            log_softmax(p);
            log_softmax(reference);
            const int32_t next = ids[past + t + 1];
            loss -= p[next];
            loss_f16 -= reference[next];
            for (int64_t i = 0; i < m.vocabulary; i++) divergence += std::exp(reference[i]) * (reference[i] - p[i]);
            agreed += std::max_element(p.begin(), p.end()) - p.begin() ==
                      std::max_element(reference.begin(), reference.end()) - reference.begin();
        }
    }
    const double predicted = static_cast<double>(ids.size() - 1);
    const octaplex_stats stats = cache.stats();
    printf("tokens            %zu\n", ids.size());
    printf("perplexity_ggml   %.6f   # ggml_flash_attn_ext, K and V in f16\n", std::exp(loss_f16 / predicted));
    printf("perplexity        %.6f   # octaplex in its place, keys %s, values %s\n", std::exp(loss / predicted), k.c_str(), v.c_str());
    printf("kl_mean           %.3e   # nats, of the next token's distribution\n", divergence / predicted);
    printf("top1_agreement    %.4f\n", agreed / predicted);
    printf("kv_bytes          %zu   # %.2f bits a value\n", stats.bytes, 8.0 * stats.bytes / stats.values);
    printf("logits_checksum   %016llx\n", static_cast<unsigned long long>(checksum));
    printf("octaplex_verify   %08x   # what `octaplex verify` prints for all codecs\n", verified);
    return 0;
}

int main(int argc, char ** argv) {
    try {
        return run({ argv + 1, argv + argc });
    } catch (const std::exception & error) {
        fprintf(stderr, "octaplex-ggml: %s\n", error.what());
        return 1;
    }
}
