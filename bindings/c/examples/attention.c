/* An attention layer's loop. A prompt goes into the cache, then one token after the other. Each token attends to all tokens
 * before it. The cache stays compressed throughout. The output is the same on every machine. */
#include <octaplex.h>
#include <stdio.h>
#include <stdlib.h>

enum { KV_HEADS = 2, QUERY_HEADS = 8, WIDTH = 64, PROMPT = 300, GENERATED = 200 };

/* Stands in for a model: random numbers with a fixed seed. */
static float number(void) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return ((float)(state >> 16) - 32768.0f) / 32768.0f;
}

static void fill(float *values, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = number();
}

static void check(octaplex_status status, const octaplex_error *error) {
    if (status != OCTAPLEX_STATUS_OK) {
        fprintf(stderr, "octaplex: %s\n", error->message);
        exit(1);
    }
}

int main(void) {
    static float keys[KV_HEADS * PROMPT * WIDTH], values[KV_HEADS * PROMPT * WIDTH];
    static float queries[QUERY_HEADS * WIDTH], output[QUERY_HEADS * WIDTH];
    octaplex_error error;
    octaplex_config config;
    check(octaplex_config_init(&config, sizeof config, 1, KV_HEADS, WIDTH, 4096, &error), &error);
    config.keys = config.values = "trellis:m=4";
    config.query_heads = QUERY_HEADS;
    octaplex_cache *cache = octaplex_cache_create(&config, &error);
    check(error.status, &error);

    /* The prompt is [tokens][heads][width], as projections write it. Strides say so, and nothing is copied. */
    fill(keys, KV_HEADS * PROMPT * WIDTH);
    fill(values, KV_HEADS * PROMPT * WIDTH);
    octaplex_tensor key = {keys, KV_HEADS * PROMPT * WIDTH, OCTAPLEX_F32, WIDTH, KV_HEADS * WIDTH};
    octaplex_tensor value = {values, KV_HEADS * PROMPT * WIDTH, OCTAPLEX_F32, WIDTH, KV_HEADS * WIDTH};
    check(octaplex_cache_append(cache, 0, PROMPT, &key, &value, &error), &error);

    for (int token = 0; token < GENERATED; token++) {
        fill(keys, KV_HEADS * WIDTH);
        fill(values, KV_HEADS * WIDTH);
        fill(queries, QUERY_HEADS * WIDTH);
        check(octaplex_cache_append(cache, 0, 1, &key, &value, &error), &error);
        check(octaplex_cache_attend(cache, 0, queries, QUERY_HEADS * WIDTH, NULL, output, QUERY_HEADS * WIDTH, &error),
              &error);
    }

    octaplex_stats stats = {.size = sizeof stats};
    check(octaplex_cache_get_stats(cache, OCTAPLEX_ALL_LAYERS, &stats, &error), &error);
    printf("%zu tokens in %zu bytes, %.2f bits a value (%.2f in pages, which a long context approaches); the last output begins "
           "with %.7g\n", stats.tokens, stats.bytes, 8.0 * (double)stats.bytes / (double)stats.values, stats.page_bits,
           (double)output[0]);
    check(octaplex_cache_free(cache, &error), &error);
    return 0;
}
