// Attention of the newest tokens on one key/value head, for query heads that share it: octaplex and ggml, in turns, on one
// thread.
//
// heads BACKEND WIDTH TOKENS QUERY_HEADS QUERIES SECONDS KEYS,VALUES...
//
// Prints a line of CSV for each cache: backend, width, tokens, query heads, queries of each head, cache, nanoseconds a token and
// query, share of ggml's f16. heads.sh builds and runs it.
#include "src/ggml.c"
#include "octaplex.h"
#include <stdio.h>

enum { PEERS = 3, MOST = 8, ROWS = 4096 };

static octaplex_error error;

static void check(octaplex_status status) {
    if (status != OCTAPLEX_STATUS_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

// Returns a random number of about standard deviation 1.
static float gaussian(void) {
    float sum = -6.0f;
    for (int i = 0; i < 12; i++) {
        sum += (float) rand() / (float) RAND_MAX;
    }
    return sum;
}

static float *gaussians(size_t count) {
    float *values = malloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = gaussian();
    }
    return values;
}

// Creates a cache of one layer and head, and appends the rows until it has this many tokens.
static octaplex_cache *cache(const char *backend, char *codecs, size_t width, size_t tokens, size_t heads, const float *rows) {
    octaplex_config config;
    check(octaplex_config_init(&config, sizeof config, 1, 1, width, tokens + ROWS, &error));
    char *comma = strchr(codecs, ',');
    if (!comma) {
        fprintf(stderr, "%s: codecs of keys and values, with a comma between them\n", codecs);
        exit(2);
    }
    *comma = 0;
    config.keys = codecs;
    config.values = comma + 1;
    config.backend = backend;
    config.query_heads = heads;
    octaplex_cache *cache = octaplex_cache_create(&config, &error);
    if (!cache) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    octaplex_tensor tensor = { rows, ROWS * width, OCTAPLEX_F32, ROWS * width, width };
    for (size_t token = 0; token < tokens; token += ROWS) {
        check(octaplex_cache_append(cache, 0, ROWS, &tensor, &tensor, &error));
    }
    return cache;
}

int main(int count, char **arguments) {
    if (count < 8 || count > 7 + MOST) {
        fprintf(stderr, "usage: heads BACKEND WIDTH TOKENS QUERY_HEADS QUERIES SECONDS KEYS,VALUES...\n");
        return 2;
    }
    const char *backend = arguments[1];
    size_t width = strtoul(arguments[2], NULL, 10), tokens = strtoul(arguments[3], NULL, 10), heads = strtoul(arguments[4], NULL, 10);
    size_t block = strtoul(arguments[5], NULL, 10), values_of_all = heads * block * width;
    double seconds = strtod(arguments[6], NULL);
    int caches = count - 7;
    srand(1);
    peer_init();
    float *rows = gaussians(ROWS * width), *queries = gaussians(values_of_all), *output = malloc(values_of_all * sizeof *output);
    octaplex_attend options = { .size = sizeof options, .queries = block };
    octaplex_cache *ours[MOST];
    struct peer_flash *theirs[PEERS];
    double best[PEERS + MOST];
    for (int i = 0; i < caches; i++) {
        ours[i] = cache(backend, arguments[7 + i], width, tokens, heads, rows);
    }
    for (int i = 0; i < PEERS; i++) {
        theirs[i] = peer_flash_new(i, rows, queries, tokens, block, heads, width);
        if (!theirs[i]) {
            fprintf(stderr, "no memory\n");
            return 1;
        }
    }
    double end = peer_nanoseconds() + seconds * 1e9;
    for (int turn = 0; turn < 3 || peer_nanoseconds() < end; turn++) {
        for (int i = 0; i < PEERS + caches; i++) {
            double time = peer_nanoseconds();
            if (i >= PEERS) {
                check(octaplex_cache_attend(ours[i - PEERS], 0, queries, values_of_all, &options, output, values_of_all, &error));
            } else if (!peer_flash_run(theirs[i])) {
                fprintf(stderr, "ggml could not compute\n");
                return 1;
            }
            time = (peer_nanoseconds() - time) / (double) (tokens * heads * block);
            best[i] = turn == 0 || time < best[i] ? time : best[i];
        }
    }
    const char *names[PEERS] = { "ggml f16", "ggml q8_0", "ggml q4_0" };
    for (int i = 0; i < PEERS + caches; i++) {
        const char *keys = i < PEERS ? names[i] : arguments[4 + i];
        const char *values = i < PEERS ? "" : keys + strlen(keys) + 1;
        printf("%s,%zu,%zu,%zu,%zu,%s%s%s,%.1f,%.2f\n", backend, width, tokens, heads, block, keys, *values ? " / " : "", values, best[i], best[i] / best[0]);
    }
    return 0;
}
