// Tokens a second of a whole model, with ggml's own caches and with octaplex, which take turns: the weights' part is the
// same code for all of them.
//
//     octaplex-ggml-speed MODEL.gguf [--depth TOKENS] [--batch TOKENS] [--threads N] [--times N] [KEYS/VALUES...]
//
// The tokens of the depth are random rows, not read: reading 32,768 of them takes an hour with some caches.
#include "engine.h"
#include "octaplex-attention.h"

#include <cstdio>
#include <random>
#include <thread>

// One cache: its name, its bytes a token of the model, and a batch behind the depth.
struct contender {
    std::string name;
    double bytes;
    std::function<void(const std::vector<int32_t> & ids)> run;
    double step = INFINITY, batch = INFINITY; // seconds, the least of all turns
};

static int run(const std::vector<std::string> & arguments) {
    std::vector<std::string> given;
    size_t depth = 4096, batch = 512, times = 10;
    int threads = std::max(1u, std::thread::hardware_concurrency());
    for (size_t i = 0; i < arguments.size(); i++) {
        const std::string & name = arguments[i];
        auto value = [&] {
            if (++i == arguments.size()) throw std::runtime_error(name + ": a value is missing");
            return std::stoul(arguments[i]);
        };
        if (name == "--depth") depth = value();
        else if (name == "--batch") batch = value();
        else if (name == "--times") times = value();
        else if (name == "--threads") threads = static_cast<int>(value());
        else given.push_back(name);
    }
    if (given.empty() || threads < 1 || depth == 0 || batch == 0 || times == 0)
        throw std::runtime_error("usage: octaplex-ggml-speed MODEL.gguf [--depth TOKENS] [--batch TOKENS] [--threads N] [--times N] [KEYS/VALUES...]");
    const model m(given[0], false);
    given.erase(given.begin());
    if (given.empty()) given = { "turboquant/turboquant", "trellis/trellis", "trellis:bits=2/trellis:bits=2" };

    // The rows of all tokens, [tokens][heads][width] for ggml and [heads][tokens][width] for octaplex.
    const size_t block = std::min<size_t>(depth, 1024);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> rows(block * m.kv_heads * m.head_dim);
    for (float & x : rows) x = normal(random);

    runner runner(threads);
    std::vector<contender> all;
    const double values = 2.0 * m.blocks.size() * m.kv_heads * m.head_dim;
    using namespace std::placeholders;
    auto own = [&](const std::string & name, ggml_type type, size_t past) {
        auto cache = std::make_shared<ggml_attention>(m, past + batch, type);
        if (past > 0) cache->fill(rows, past);
        const double bytes = values * ggml_row_size(type, m.head_dim) / m.head_dim;
        all.push_back({ name, bytes, [&m, &runner, cache, past](const std::vector<int32_t> & ids) {
            runner.run(m, ids, past, cache.get(), std::bind(&ggml_attention::attention, cache.get(), _1, _2, _3, _4, _5, _6, _7));
        } });
    };
    own("nothing cached", GGML_TYPE_F16, 0); // the weights, and a batch's own tokens
    own("ggml f16", GGML_TYPE_F16, depth);
    own("ggml q8_0", GGML_TYPE_Q8_0, depth);
    own("ggml q4_0", GGML_TYPE_Q4_0, depth);
    for (const std::string & pair : given) {
        const size_t slash = pair.find('/');
        if (slash == std::string::npos) throw std::runtime_error(pair + ": give specs of keys and values, as in trellis/turboquant");
        const std::string k = pair.substr(0, slash), v = pair.substr(slash + 1);
        octaplex_config config;
        octaplex_error error;
        if (octaplex_config_init(&config, sizeof config, m.blocks.size(), m.kv_heads, m.head_dim, depth + batch, &error) != OCTAPLEX_STATUS_OK)
            throw std::runtime_error(error.message);
        config.keys = k.c_str();
        config.values = v.c_str();
        config.max_rollback = 0;
        auto cache = std::make_shared<octaplex_attention>(config);
        for (size_t past = 0; past < depth; past += block) {
            const size_t tokens = std::min(block, depth - past);
            cache->append({ rows.begin(), rows.begin() + tokens * m.kv_heads * m.head_dim }, tokens);
        }
        const octaplex_stats stats = cache->stats();
        all.push_back({ "octaplex " + pair, static_cast<double>(stats.bytes) / stats.values * values, [&m, &runner, cache, depth](const std::vector<int32_t> & ids) {
            const auto fork = cache->fork(); // the next turn finds the depth again
            runner.run(m, ids, depth, nullptr, [&](ggml_context * ctx, ggml_cgraph *, int il, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v,
                                                   float scale) { return fork->attention(ctx, il, q, k, v, scale); });
            fork->check();
        } });
    }

    const std::vector<int32_t> one(1, 1), many(batch, 1);
    for (size_t turn = 0; turn < times; turn++)
        for (contender & each : all) {
            each.run(one);
            each.step = std::min(each.step, runner.seconds);
            if (turn >= 2) continue; // batches take long
            each.run(many);
            each.batch = std::min(each.batch, runner.seconds);
        }
    const contender & weights = all[0], & f16 = all[1];
    printf("%zu tokens cached, %d threads: milliseconds, the least of %zu turns (of %zu for the batch)\n\n", depth, threads, times, std::min<size_t>(times, 2));
    printf("| cache | KiB a token | a token | tokens a second | attention's share | beside f16's attention | a batch of %zu | attention beside f16's |\n", batch);
    printf("| :-- | --: | --: | --: | --: | --: | --: | --: |\n");
    for (const contender & each : all) {
        const double step = each.step - weights.step, of_batch = each.batch - weights.batch;
        printf("| %s | %.1f | %.1f | %.1f | %.2f | %.2f | %.0f | %.2f |\n", each.name.c_str(), each.bytes / 1024, 1e3 * each.step, 1 / each.step,
               step / each.step, step / (f16.step - weights.step), 1e3 * each.batch, of_batch / (f16.batch - weights.batch));
    }
    return 0;
}

int main(int argc, char ** argv) {
    try {
        return run({ argv + 1, argv + argc });
    } catch (const std::exception & error) {
        fprintf(stderr, "octaplex-ggml-speed: %s\n", error.what());
        return 1;
    }
}
