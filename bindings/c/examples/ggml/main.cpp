// A language model reads a text twice in step: with ggml's own flash attention on an f16 cache, and with octaplex in its
// place. The cost of compression is the divergence between the two distributions of the next token.
//
//     octaplex-ggml MODEL.gguf TOKENS.txt [--k SPEC] [--v SPEC] [--tokens N] [--threads N] [--f32]
#include "engine.h"
#include "octaplex-attention.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

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
    printf("kv_bytes          %zu   # %.2f bits a value, %.2f in pages\n", stats.bytes, 8.0 * stats.bytes / stats.values, stats.page_bits);
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
