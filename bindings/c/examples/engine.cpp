// An engine's loop in C++: grouped heads, a sliding window, bf16 rows as projections write them, rejected drafts, a snapshot.
// The output is the same on every machine.
#include <octaplex.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

constexpr std::size_t layers = 2, kv_heads = 2, query_heads = 8, width = 64;
constexpr std::size_t max_rollback = 64; // drafts that may be rejected

// Turns a status into an exception.
void check(octaplex_status status, const octaplex_error &error) {
    if (status != OCTAPLEX_STATUS_OK) throw std::runtime_error(error.message);
}

struct Free {
    void operator()(octaplex_cache *cache) const { octaplex_cache_free(cache, nullptr); }
};
using Cache = std::unique_ptr<octaplex_cache, Free>;

Cache create() {
    octaplex_error error;
    octaplex_config config;
    check(octaplex_config_init(&config, sizeof config, layers, kv_heads, width, 8192, &error), error);
    config.query_heads = query_heads; // keys and values: the default, graded and trellis
    config.sliding_window = 512;
    config.max_rollback = max_rollback;
    Cache cache(octaplex_cache_create(&config, &error));
    check(error.status, error);
    return cache;
}

// Stands in for a model: rows [tokens][heads][width] in bf16, the upper half of a float.
std::vector<std::uint16_t> rows(std::size_t heads, std::size_t tokens) {
    static std::uint32_t state = 1;
    std::vector<std::uint16_t> values(tokens * heads * width);
    for (auto &value : values) {
        state = state * 1664525u + 1013904223u;
        const float number = (static_cast<float>(state >> 16) - 32768.0f) / 32768.0f;
        std::uint32_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        value = static_cast<std::uint16_t>(bits >> 16);
    }
    return values;
}

octaplex_tensor tensor(const std::vector<std::uint16_t> &rows) {
    return {rows.data(), rows.size(), OCTAPLEX_BF16, width, kv_heads * width}; // the strides of a head and of a token
}

// Runs some tokens through all layers; returns the last layer's output, [query heads][tokens][width].
std::vector<float> step(octaplex_cache *cache, std::size_t tokens) {
    octaplex_error error;
    std::vector<float> queries(query_heads * tokens * width, 0.25f), output(queries.size());
    for (std::size_t layer = 0; layer < layers; layer++) {
        const auto keys = rows(kv_heads, tokens), values = rows(kv_heads, tokens);
        const auto k = tensor(keys), v = tensor(values);
        check(octaplex_cache_append(cache, layer, tokens, &k, &v, &error), error);
        check(octaplex_cache_attend(cache, layer, queries.data(), queries.size(), nullptr, output.data(), output.size(),
                                    &error),
              error);
    }
    return output;
}

} // namespace

int main() try {
    octaplex_error error;
    const Cache cache = create();
    // The prompt, in blocks: the first query of a larger one would see tokens that the last ones push out of the window.
    for (std::size_t left = 1000; left > 0;) {
        const std::size_t block = std::min(left, max_rollback + 1);
        step(cache.get(), block);
        left -= block;
    }
    for (int token = 0; token < 90; token++) step(cache.get(), 1); // generated tokens
    step(cache.get(), 10);                                         // ten drafts at once
    check(octaplex_cache_truncate(cache.get(), 1093, &error), error); // three were right

    std::vector<std::uint8_t> snapshot(octaplex_cache_serialized_length(cache.get(), &error));
    check(octaplex_cache_save_buffer(cache.get(), snapshot.data(), snapshot.size(), nullptr, &error), error);
    const Cache loaded = create(); // a snapshot does not hold query_heads: the configuration does
    check(octaplex_cache_load_buffer(loaded.get(), snapshot.data(), snapshot.size(), &error), error);

    octaplex_stats stats{};
    stats.size = sizeof stats;
    check(octaplex_cache_get_stats(loaded.get(), OCTAPLEX_ALL_LAYERS, &stats, &error), error);
    const auto output = step(loaded.get(), 1);
    std::printf("next position %zu, %zu tokens in sight, %zu bytes, %.2f bits a value (%.2f in pages, which a long context "
                "approaches); the last output begins with %.7g\n",
                stats.next_position, stats.tokens, stats.bytes,
                8.0 * static_cast<double>(stats.bytes) / static_cast<double>(stats.values), stats.page_bits,
                static_cast<double>(output[0]));
} catch (const std::exception &error) {
    std::fprintf(stderr, "octaplex: %s\n", error.what());
    return 1;
}
