// Attention of the newest tokens on one key/value head, for query heads that share it: octaplex and ggml, in turns, on one
// thread.
//
// heads BACKEND WIDTH TOKENS QUERY_HEADS QUERIES SECONDS KEYS,VALUES...
//
// Prints a line of CSV for each cache: backend, width, tokens, query heads, queries of each head, cache, nanoseconds a token and
// query, share of ggml's f16. For one query of each head it also times plain loops on f16 rows, and checks their output. TOKENS is
// a multiple of 4096. heads.sh builds and runs it.
#include "src/ggml.c"
#include "octaplex.h"
#include "plain.c"
#include <stdio.h>

enum { PEERS = 3, PLAIN = PEERS, MOST = 8, ROWS = 4096 };

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

// Fails unless the difference of two outputs is at most this share of the second's norm.
static void agree(const char *name, const float *output, const float *exact, size_t count, double share) {
    if (!exact) {
        fprintf(stderr, "ggml could not compute\n");
        exit(1);
    }
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < count; i++) {
        difference += (output[i] - exact[i]) * (output[i] - exact[i]);
        norm += exact[i] * exact[i];
    }
    if (!(sqrt(difference) <= share * sqrt(norm))) {
        fprintf(stderr, "plain f16 and %s: outputs differ by %.1e of their norm, more than %.1e\n", name, sqrt(difference / norm), share);
        exit(1);
    }
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
    double best[PEERS + 1 + MOST];
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
    int plain = block == 1;
    size_t stored = tokens * width;
    uint16_t *f16_keys = NULL, *f16_values = NULL;
    if (plain) {
        f16_keys = aligned_alloc(64, stored * sizeof *f16_keys);
        f16_values = aligned_alloc(64, stored * sizeof *f16_values);
        for (size_t from = 0; from < stored; from += ROWS * width) {
            peer_quantise(F16, rows, f16_keys + from, ROWS * width);
        }
        memcpy(f16_values, f16_keys, stored * sizeof *f16_values);
        plain_attend(f16_keys, f16_values, tokens, heads, width, queries, output);
        // ggml adds values up in f16, so its error grows with their number. Its q8_0 is added up in f32.
        agree("ggml f16", output, peer_flash_run(theirs[F16]), values_of_all, 0.02 + 2e-6 * (double) tokens);
        agree("ggml q8_0", output, peer_flash_run(theirs[Q8_0]), values_of_all, 0.02);
    }
    double end = peer_nanoseconds() + seconds * 1e9;
    for (int turn = 0; turn < 3 || peer_nanoseconds() < end; turn++) {
        for (int i = 0; i < PEERS + 1 + caches; i++) {
            double time = peer_nanoseconds();
            if (i > PLAIN) {
                check(octaplex_cache_attend(ours[i - PLAIN - 1], 0, queries, values_of_all, &options, output, values_of_all, &error));
            } else if (i == PLAIN && plain) {
                plain_attend(f16_keys, f16_values, tokens, heads, width, queries, output);
            } else if (i < PEERS && !peer_flash_run(theirs[i])) {
                fprintf(stderr, "ggml could not compute\n");
                return 1;
            }
            time = (peer_nanoseconds() - time) / (double) (tokens * heads * block);
            best[i] = turn == 0 || time < best[i] ? time : best[i];
        }
    }
    const char *names[PEERS + 1] = { "ggml f16", "ggml q8_0", "ggml q4_0", "plain f16" };
    for (int i = 0; i < PEERS + 1 + caches; i++) {
        if (i == PLAIN && !plain) {
            continue;
        }
        const char *keys = i <= PLAIN ? names[i] : arguments[7 + i - PLAIN - 1];
        const char *values = i <= PLAIN ? "" : keys + strlen(keys) + 1;
        printf("%s,%zu,%zu,%zu,%zu,%s%s%s,%.1f,%.2f\n", backend, width, tokens, heads, block, keys, *values ? " / " : "", values, best[i], best[i] / best[0]);
    }
    return 0;
}
