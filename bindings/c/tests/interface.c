/* Every call of octaplex.h, and what each refuses. Compiled by gcc and clang, run under AddressSanitizer and for ARM: see
 * ci/c.sh. `interface freed` uses handles after they were freed, which builds with debug assertions refuse. */
#include <fenv.h>
#include <math.h>
#include <octaplex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static int failures;
static octaplex_error error;

#define CHECK(what)                                                                  \
    do {                                                                             \
        if (!(what)) {                                                               \
            failures++;                                                              \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, error.message); \
        }                                                                            \
    } while (0)
/* A call that must go well, and one that must fail so, in words that hold these. */
#define WELL(call) CHECK((call) == OCTAPLEX_STATUS_OK && error.status == OCTAPLEX_STATUS_OK && error.message[0] == 0)
#define FAILS(call, kind, words) CHECK((call) == OCTAPLEX_STATUS_##kind && says(OCTAPLEX_STATUS_##kind, words))
#define NOTHING(call, kind, words) CHECK((call) == 0 && says(OCTAPLEX_STATUS_##kind, words))

static int says(octaplex_status status, const char *words) {
    return error.status == status && strstr(error.message, words) != NULL
        && memchr(error.message, 0, sizeof error.message) != NULL;
}

enum { WIDTH = 64, HEADS = 2, TOKENS = 300, ALL = HEADS * TOKENS * WIDTH, GROUP = 3, QUERIES = HEADS * GROUP * WIDTH };

static float keys[ALL], values[ALL], queries[2 * QUERIES], output[2 * QUERIES], expected[2 * QUERIES];
static uint32_t state = 7;

static void fill(float *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = ((float)(state >> 16) - 32768.0f) / 32768.0f;
    }
}

static octaplex_config config_of(const char *spec) {
    octaplex_config config;
    WELL(octaplex_config_init(&config, sizeof config, 1, HEADS, WIDTH, 4096, &error));
    config.keys = config.values = spec;
    config.query_heads = HEADS * GROUP;
    return config;
}

/* Of two layers. Lines of comments say nothing, and are left out here. */
static const char PROFILE[] =
    "octaplex-profile 1\n"
    "model a model\n"
    "layers 2\n"
    "kv_heads 2\n"
    "key_dim 64\n"
    "value_dim 64\n"
    "keys graded:fine=4,coarse=1 1\n"
    "keys graded 0.25\n"
    "values trellis:m=2 1\n"
    "values trellis 0.25\n"
    "layer 0 0.01 0.002\n"
    "layer 1 0.001 0.0005\n"
    "digest 57e16435\n";

static octaplex_tensor packed(const float *data, size_t tokens) {
    octaplex_tensor tensor = {data, HEADS * tokens * WIDTH, OCTAPLEX_F32, 0, 0};
    return tensor;
}

static octaplex_cache *filled(const char *spec) {
    octaplex_config config = config_of(spec);
    octaplex_cache *cache = octaplex_cache_create(&config, &error);
    octaplex_tensor key = packed(keys, TOKENS), value = packed(values, TOKENS);
    CHECK(cache != NULL);
    WELL(octaplex_cache_append(cache, 0, TOKENS, &key, &value, &error));
    return cache;
}

static void attend(const octaplex_cache *cache, float *to) {
    WELL(octaplex_cache_attend(cache, 0, queries, QUERIES, NULL, to, QUERIES, &error));
}

static int same(const float *a, const float *b, size_t count) { return memcmp(a, b, count * sizeof *a) == 0; }

static void library(void) {
    uint32_t all = 0, one = 0;
    CHECK(strcmp(octaplex_version(), "0.1.0") == 0);
    CHECK(strcmp(octaplex_hardware_acceleration(), octaplex_backend_name(0)) == 0);
    CHECK(octaplex_backend_name(1000) == NULL);
    WELL(octaplex_verify(NULL, NULL, &all, &error));
    WELL(octaplex_verify("turboquant", "scalar", &one, &error));
    CHECK(all != 0 && one != 0 && all != one);
    FAILS(octaplex_verify("turbo", NULL, NULL, &error), TEXT, "turboquant");
    FAILS(octaplex_verify(NULL, "sse9", NULL, &error), TEXT, "octaplex_backend_name");
    printf("all            %08x\n", all);
}

/* A program that rounds down and flushes denormals, as -ffast-math links it, gets the bits of all others, and keeps its settings. */
static void floats(void) {
    uint32_t usual = 0, found = 0;
    volatile float tiny = 1.2e-38f, three = 3.0f, one = 1.0f; /* the compiler knows nothing of settings */
    volatile float before = one / three, after;
    WELL(octaplex_verify("polarquant", NULL, &usual, &error));
    CHECK(fesetround(FE_DOWNWARD) == 0);
#if defined(__x86_64__)
    unsigned word = _mm_getcsr();
    _mm_setcsr(word | 0x8040);
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    WELL(octaplex_verify("polarquant", NULL, &found, &error));
    CHECK(found == usual);
#else /* nothing sets what other CPUs have: checksums say so */
    CHECK(octaplex_verify("polarquant", NULL, &found, &error) != OCTAPLEX_STATUS_OK && strstr(error.message, "nearest"));
    CHECK(usual != 0);
#endif
    FAILS(octaplex_verify("turbo", NULL, NULL, &error), TEXT, "turboquant"); /* a call that fails restores them as well */
    after = one / three;
    CHECK(fegetround() == FE_DOWNWARD && after != before);
#if defined(__x86_64__)
    after = tiny / three;
    CHECK(after == 0);
    _mm_setcsr(word);
#endif
    CHECK(fesetround(FE_TONEAREST) == 0 && tiny > 0);
}

static void codecs(void) {
    octaplex_codec *codec = octaplex_codec_create("turboquant:bits=8", WIDTH, NULL, NULL, &error);
    octaplex_codec *other;
    octaplex_codec_sizes sizes = {.size = sizeof sizes};
    octaplex_head_id id = {3, 0, 1};
    unsigned char page[64 * 80], second[64 * 80];
    float rows[10 * WIDTH], words[10 * 2 * WIDTH], scores[10 * 10], sums[2 * WIDTH];
    size_t used = 0;
    CHECK(codec != NULL && error.status == OCTAPLEX_STATUS_OK);
    WELL(octaplex_codec_get_sizes(codec, &sizes, &error));
    CHECK(sizes.dim == WIDTH && sizes.block_bytes == 66 && sizes.bits_per_value == 8.25 && sizes.size == sizeof sizes);
    CHECK(octaplex_codec_page_bytes_max(codec, 10, &error) == 660);

    WELL(octaplex_codec_encode(codec, keys, 10 * WIDTH, page, sizeof page, &used, &error));
    CHECK(used == 660);
    WELL(octaplex_codec_decode(codec, page, used, rows, 10 * WIDTH, &error));
    for (int i = 0; i < 10 * WIDTH; i++) CHECK(fabsf(rows[i] - keys[i]) < 0.05f);
    for (size_t q = 0; q < 10; q++)
        WELL(octaplex_codec_prepare_query(codec, queries + q * 32, WIDTH, words + q * sizes.query_words,
                                          sizes.query_words, &error));
    WELL(octaplex_codec_score(codec, words, 10 * sizes.query_words, page, used, scores, 100, &error));
    for (int q = 0; q < 10; q++)
        for (int row = 0; row < 10; row++) {
            double dot = 0;
            for (int i = 0; i < WIDTH; i++) dot += (double)queries[q * 32 + i] * (double)rows[row * WIDTH + i];
            CHECK(fabs(dot - (double)scores[q * 10 + row]) < 0.05);
        }
    memset(sums, 0, sizeof sums);
    WELL(octaplex_codec_accumulate(codec, scores, 20, page, used, sums, 2 * WIDTH, &error));
    WELL(octaplex_codec_finish(codec, sums, 2 * WIDTH, &error));
    for (int i = 0; i < WIDTH; i++) {
        double sum = 0;
        for (int row = 0; row < 10; row++) sum += (double)scores[10 + row] * (double)rows[row * WIDTH + i];
        CHECK(fabs(sum - (double)sums[WIDTH + i]) < 0.2);
    }
    /* Another id rotates otherwise; another backend does not. */
    other = octaplex_codec_create("turboquant:bits=8", WIDTH, &id, "scalar", &error);
    WELL(octaplex_codec_encode(other, keys, 10 * WIDTH, second, sizeof second, NULL, &error));
    CHECK(memcmp(page, second, used) != 0);
    WELL(octaplex_codec_free(other, &error));
    other = octaplex_codec_create("turboquant:bits=8", WIDTH, NULL, "scalar", &error);
    WELL(octaplex_codec_encode(other, keys, 10 * WIDTH, second, sizeof second, NULL, &error));
    CHECK(memcmp(page, second, used) == 0);
    WELL(octaplex_codec_free(other, &error));

    /* Bad input: the outputs stay. */
    memcpy(second, page, sizeof page);
    rows[77] = NAN;
    FAILS(octaplex_codec_encode(codec, rows, 10 * WIDTH, page, sizeof page, NULL, &error), VALUE, "value 77 is NaN");
    FAILS(octaplex_codec_encode(codec, keys, 10 * WIDTH, page, 659, NULL, &error), LENGTH, "660");
    FAILS(octaplex_codec_encode(codec, keys, 10 * WIDTH + 1, page, sizeof page, NULL, &error), LENGTH, "");
    FAILS(octaplex_codec_encode(codec, NULL, WIDTH, page, sizeof page, NULL, &error), POINTER, "null");
    FAILS(octaplex_codec_encode(codec, (const float *)((const char *)keys + 1), WIDTH, page, sizeof page, NULL, &error),
          POINTER, "aligned");
    FAILS(octaplex_codec_encode(codec, keys, SIZE_MAX / 2, page, sizeof page, NULL, &error), LENGTH, "overflow");
    CHECK(memcmp(second, page, sizeof page) == 0);
    FAILS(octaplex_codec_decode(codec, page, 659, rows, 10 * WIDTH, &error), LENGTH, "");
    FAILS(octaplex_codec_score(codec, words, 7, page, used, scores, 100, &error), LENGTH, "query_words");
    FAILS(octaplex_codec_score(codec, words, sizes.query_words, page, used, scores, 9, &error), LENGTH, "");
    FAILS(octaplex_codec_score(codec, words, sizes.query_words, page, used, scores, 0, &error), LENGTH, "");
    FAILS(octaplex_codec_score(codec, words, 0, page, used, scores, 10, &error), LENGTH, "queries");
    FAILS(octaplex_codec_finish(codec, sums, WIDTH + 1, &error), LENGTH, "multiple of 64");
    memset(page, 0xff, sizeof page);
    FAILS(octaplex_codec_decode(codec, page, used, rows, 10 * WIDTH, &error), CORRUPT, "block 0");
    NOTHING(octaplex_codec_page_bytes_max(codec, SIZE_MAX / 4, &error), LENGTH, "overflow");
    sizes.size = 3;
    FAILS(octaplex_codec_get_sizes(codec, &sizes, &error), STRUCT, "sizeof");
    CHECK(octaplex_codec_get_sizes(codec, &sizes, NULL) == OCTAPLEX_STATUS_STRUCT);
    WELL(octaplex_codec_free(codec, &error));
    WELL(octaplex_codec_free(NULL, &error));

    NOTHING(octaplex_codec_create("turbo", WIDTH, NULL, NULL, &error), TEXT, "turboquant");
    NOTHING(octaplex_codec_create("octopus:nothing=1", WIDTH, NULL, NULL, &error), TEXT, "no such key");
    NOTHING(octaplex_codec_create("int", 65, NULL, NULL, &error), UNSUPPORTED, "width 65");
    NOTHING(octaplex_codec_create(NULL, WIDTH, NULL, NULL, &error), POINTER, "spec");
    NOTHING(octaplex_codec_create("\xff", WIDTH, NULL, NULL, &error), TEXT, "UTF-8");
    NOTHING(octaplex_codec_create("int", WIDTH, NULL, "sse9", &error), TEXT, "backend");
    const octaplex_head_id stranger = {.role = 2};
    NOTHING(octaplex_codec_create("int", WIDTH, &stranger, NULL, &error), UNSUPPORTED, "role");
}

static void lives(void) {
    octaplex_cache *cache = filled("turboquant:bits=8"), *fork;
    octaplex_stats stats = {.size = sizeof stats};
    octaplex_tensor key = packed(keys, 1), value = packed(values, 1);
    static float scores[HEADS * TOKENS * 2], weights[TOKENS];
    unsigned char *snapshot;
    size_t length, used = 0, dropped = 0;

    WELL(octaplex_cache_reserve(cache, HEADS * GROUP, &error));
    attend(cache, expected);
    WELL(octaplex_cache_get_stats(cache, 0, &stats, &error));
    CHECK(stats.tokens == TOKENS && stats.next_position == TOKENS && stats.capacity == 4096 && stats.bytes > 0);
    CHECK(stats.values == (size_t)2 * ALL && stats.shared_bytes == 0);
    CHECK(stats.paged_tokens == 192 && stats.page_bits == 8.0 * (double)stats.paged_bytes / (2 * HEADS * WIDTH * 192));

    /* A softmax of one's own gives nearly the same. */
    WELL(octaplex_cache_score(cache, 0, 0, queries, WIDTH, scores, TOKENS, &error));
    double most = -1e30, sum = 0;
    for (int t = 0; t < TOKENS; t++) most = fmax(most, (double)scores[t] / 8);
    for (int t = 0; t < TOKENS; t++) sum += exp((double)scores[t] / 8 - most);
    for (int t = 0; t < TOKENS; t++) weights[t] = (float)(exp((double)scores[t] / 8 - most) / sum);
    WELL(octaplex_cache_accumulate(cache, 0, 0, weights, TOKENS, output, WIDTH, &error));
    for (int i = 0; i < WIDTH; i++) CHECK(fabsf(output[i] - expected[i]) < 0.01f);

    /* A fork goes its own way and shares pages; what is taken back leaves no trace. */
    fork = octaplex_cache_fork(cache, &error);
    CHECK(fork != NULL);
    WELL(octaplex_cache_get_stats(fork, OCTAPLEX_ALL_LAYERS, &stats, &error));
    CHECK(stats.shared_bytes > 0);
    WELL(octaplex_cache_append(fork, 0, 1, &key, &value, &error));
    attend(fork, output);
    CHECK(!same(output, expected, QUERIES));
    WELL(octaplex_cache_truncate(fork, TOKENS, &error));
    attend(fork, output);
    CHECK(same(output, expected, QUERIES));

    /* A snapshot brings it all back, and damage does not. */
    length = octaplex_cache_serialized_length(cache, &error);
    CHECK(length > 1000);
    snapshot = malloc(length);
    FAILS(octaplex_cache_save_buffer(cache, snapshot, length - 1, &used, &error), LENGTH, "serialized_length");
    WELL(octaplex_cache_save_buffer(cache, snapshot, length, &used, &error));
    CHECK(used == length);
    WELL(octaplex_cache_clear(fork, &error));
    FAILS(octaplex_cache_attend(fork, 0, queries, QUERIES, NULL, output, QUERIES, &error), EMPTY, "no tokens");
    for (size_t cut = 0; cut < length; cut += length / 50)
        CHECK(octaplex_cache_load_buffer(fork, snapshot, cut, &error) != OCTAPLEX_STATUS_OK);
    snapshot[length / 2] ^= 1;
    FAILS(octaplex_cache_load_buffer(fork, snapshot, length, &error), CORRUPT, "snapshot");
    snapshot[length / 2] ^= 1;
    WELL(octaplex_cache_load_buffer(fork, snapshot, length, &error));
    attend(fork, output);
    CHECK(same(output, expected, QUERIES));
    free(snapshot);

    WELL(octaplex_cache_evict(fork, 0, 200, &dropped, &error));
    CHECK(dropped == 192);
    WELL(octaplex_cache_get_stats(fork, 0, &stats, &error));
    CHECK(stats.tokens == TOKENS - 192 && stats.evicted_tokens == 192);
    WELL(octaplex_cache_free(fork, &error));
    WELL(octaplex_cache_free(cache, &error));
    WELL(octaplex_cache_free(NULL, &error));
}

/* Rows of other types and strides are the same tokens. */
static void tensors(void) {
    octaplex_cache *cache = filled("turboquant:bits=8"), *other;
    octaplex_config config = config_of("turboquant:bits=8");
    static float turned[2][ALL];
    static uint16_t halves[2][ALL];
    static const uint32_t types[] = {OCTAPLEX_F16, OCTAPLEX_BF16};
    const float *rows[2] = {keys, values};
    attend(cache, expected);
    other = octaplex_cache_create(&config, &error);
    for (int side = 0; side < 2; side++)
        for (int h = 0; h < HEADS; h++)
            for (int t = 0; t < TOKENS; t++)
                memcpy(turned[side] + (t * HEADS + h) * WIDTH, rows[side] + (h * TOKENS + t) * WIDTH,
                       WIDTH * sizeof(float));
    octaplex_tensor key = {turned[0], ALL, OCTAPLEX_F32, WIDTH, HEADS * WIDTH};
    octaplex_tensor value = {turned[1], ALL, OCTAPLEX_F32, WIDTH, HEADS * WIDTH};
    WELL(octaplex_cache_append(other, 0, TOKENS, &key, &value, &error));
    attend(other, output);
    CHECK(same(output, expected, QUERIES));

    /* Bad input: the cache stays as it was. */
    key.length--;
    FAILS(octaplex_cache_append(other, 0, TOKENS, &key, &value, &error), LENGTH, "38400");
    key.length++;
    key.head_stride = SIZE_MAX / 2;
    FAILS(octaplex_cache_append(other, 0, TOKENS, &key, &value, &error), LENGTH, "");
    key.head_stride = 0;
    FAILS(octaplex_cache_append(other, 0, SIZE_MAX / 4, &key, &value, &error), LENGTH, "overflow");
    key.dtype = 9;
    FAILS(octaplex_cache_append(other, 0, 1, &key, &value, &error), UNSUPPORTED, "OCTAPLEX_BF16");
    key = packed(keys, TOKENS);
    FAILS(octaplex_cache_append(other, 1, 1, &key, &value, &error), MISSING, "layer 1");
    FAILS(octaplex_cache_append(other, 0, 1, NULL, &value, &error), POINTER, "null");
    turned[1][5] = INFINITY;
    FAILS(octaplex_cache_append(other, 0, TOKENS, &key, &value, &error), VALUE, "values: head 0, row 0, value 5");
    attend(other, output);
    CHECK(same(output, expected, QUERIES));
    WELL(octaplex_cache_free(other, &error));

    /* Ones, in 16 bits. */
    for (int type = 0; type < 2; type++) {
        for (int i = 0; i < ALL; i++) halves[0][i] = halves[1][i] = type == 0 ? 0x3c00 : 0x3f80;
        other = octaplex_cache_create(&config, &error);
        octaplex_tensor ones = {halves[0], ALL, types[type], 0, 0};
        WELL(octaplex_cache_append(other, 0, TOKENS, &ones, &ones, &error));
        attend(other, output);
        for (int i = 0; i < QUERIES; i++) CHECK(fabsf(output[i] - 1.0f) < 0.02f);
        WELL(octaplex_cache_free(other, &error));
    }
    WELL(octaplex_cache_free(cache, &error));
}

static void options(void) {
    octaplex_cache *cache = filled("turboquant");
    static float bias[TOKENS], logits[HEADS * GROUP];
    octaplex_attend each[] = {
        {.size = sizeof *each, .scale = 0.5f},
        {.size = sizeof *each, .soft_cap = 0.5f},
        {.size = sizeof *each, .window = 50},
        {.size = sizeof *each, .window = 50, .keep_sinks = 1},
        {.size = sizeof *each, .has_position = 1, .position = 100},
        {.size = sizeof *each, .sink_logits = logits, .sink_logits_length = HEADS * GROUP},
        {.size = sizeof *each, .bias = bias, .bias_length = TOKENS},
    };
    float seen[8][QUERIES];
    octaplex_attend option = {.size = sizeof option};
    bias[7] = 3.0f;
    attend(cache, seen[7]);
    WELL(octaplex_cache_attend(cache, 0, queries, QUERIES, &option, output, QUERIES, &error));
    CHECK(same(output, seen[7], QUERIES));
    for (int i = 0; i < 7; i++) {
        WELL(octaplex_cache_attend(cache, 0, queries, QUERIES, &each[i], seen[i], QUERIES, &error));
        for (int j = 0; j < i; j++) CHECK(!same(seen[i], seen[j], QUERIES));
        CHECK(!same(seen[i], seen[7], QUERIES));
    }
    /* A block of two: its last query sees all. */
    option.queries = 2;
    for (int head = 0; head < HEADS * GROUP; head++)
        for (int q = 0; q < 2; q++)
            memcpy(expected + (2 * head + q) * WIDTH, queries + head * WIDTH, WIDTH * sizeof(float));
    WELL(octaplex_cache_attend(cache, 0, expected, 2 * QUERIES, &option, output, 2 * QUERIES, &error));
    for (int head = 0; head < HEADS * GROUP; head++)
        CHECK(same(output + (2 * head + 1) * WIDTH, seen[7] + head * WIDTH, WIDTH));

    /* Head by head, as threads would: the same bits, with logits and biases of all heads. */
    for (int i = 0; i < 7; i++) {
        for (int head = 0; head < HEADS; head++) {
            const int first = head * GROUP * WIDTH;
            each[i].first_head = (size_t)head;
            each[i].heads = 1;
            WELL(octaplex_cache_attend(cache, 0, queries + first, GROUP * WIDTH, &each[i], output + first, GROUP * WIDTH, &error));
        }
        CHECK(same(output, seen[i], QUERIES));
    }
    each[1].heads = 0; /* all from the first on */
    WELL(octaplex_cache_attend(cache, 0, queries + QUERIES - GROUP * WIDTH, GROUP * WIDTH, &each[1], output, GROUP * WIDTH, &error));
    CHECK(same(output, seen[1] + QUERIES - GROUP * WIDTH, GROUP * WIDTH));
    each[1].heads = 2;
    FAILS(octaplex_cache_attend(cache, 0, queries, QUERIES, &each[1], output, QUERIES, &error), MISSING, "key/value head");
    FAILS(octaplex_cache_attend(cache, 0, queries, QUERIES, NULL, output, QUERIES - 1, &error), LENGTH, "output");
    FAILS(octaplex_cache_attend(cache, 0, queries, WIDTH, NULL, output, WIDTH, &error), LENGTH, "6 heads of width 64");
    FAILS(octaplex_cache_attend(cache, 9, queries, QUERIES, NULL, output, QUERIES, &error), MISSING, "layer 9");
    FAILS(octaplex_cache_attend(NULL, 0, queries, QUERIES, NULL, output, QUERIES, &error), POINTER, "null");
    each[0].scale = NAN;
    CHECK(octaplex_cache_attend(cache, 0, queries, QUERIES, &each[0], output, QUERIES, &error) != OCTAPLEX_STATUS_OK);
    option.size = 8;
    FAILS(octaplex_cache_attend(cache, 0, queries, QUERIES, &option, output, QUERIES, &error), STRUCT, "size");
    queries[1] = NAN;
    FAILS(octaplex_cache_attend(cache, 0, queries, QUERIES, NULL, output, QUERIES, &error), VALUE, "queries: head 0");
    queries[1] = 0.5f;
    WELL(octaplex_cache_free(cache, &error));
}

/* Two queries of each head are not twice as many heads. */
static void query_heads(void) {
    octaplex_config config = config_of("turboquant:bits=8");
    octaplex_cache *cache = octaplex_cache_create(&config, &error), *loaded;
    octaplex_tensor key = packed(keys, TOKENS), value = packed(values, TOKENS);
    octaplex_attend options = {.size = sizeof options};
    WELL(octaplex_cache_append(cache, 0, TOKENS, &key, &value, &error));
    options.queries = 2;
    WELL(octaplex_cache_attend(cache, 0, queries, 2 * QUERIES, &options, expected, 2 * QUERIES, &error));
    WELL(octaplex_cache_attend(cache, 0, queries, 2 * QUERIES, NULL, output, 2 * QUERIES, &error));
    CHECK(same(output, expected, 2 * QUERIES));
    FAILS(octaplex_cache_attend(cache, 0, queries, QUERIES / 2, NULL, output, QUERIES / 2, &error), LENGTH, "6 heads");
    FAILS(octaplex_cache_attend(cache, 0, queries, QUERIES, &options, output, QUERIES, &error), LENGTH, "6 heads");

    /* A snapshot does not hold them: those of the cache stay. */
    size_t length = octaplex_cache_serialized_length(cache, &error);
    unsigned char *snapshot = malloc(length);
    WELL(octaplex_cache_save_buffer(cache, snapshot, length, NULL, &error));
    WELL(octaplex_cache_load_buffer(cache, snapshot, length, &error));
    WELL(octaplex_cache_attend(cache, 0, queries, 2 * QUERIES, NULL, output, 2 * QUERIES, &error));
    CHECK(same(output, expected, 2 * QUERIES));

    /* If the configuration does not have the number of query heads, the call has it. */
    config.query_heads = 0;
    loaded = octaplex_cache_create(&config, &error);
    WELL(octaplex_cache_load_buffer(loaded, snapshot, length, &error));
    FAILS(octaplex_cache_attend(loaded, 0, queries, QUERIES, NULL, output, QUERIES, &error), UNSUPPORTED, "query_heads");
    WELL(octaplex_cache_attend(loaded, 0, queries, 2 * QUERIES, &options, output, 2 * QUERIES, &error));
    CHECK(same(output, expected, 2 * QUERIES));
    options.queries = 1;
    WELL(octaplex_cache_attend(loaded, 0, queries, QUERIES, &options, output, QUERIES, &error));
    config.query_heads = HEADS + 1;
    NOTHING(octaplex_cache_create(&config, &error), LENGTH, "3 query heads");
    free(snapshot);
    WELL(octaplex_cache_free(cache, &error));
    WELL(octaplex_cache_free(loaded, &error));
}

static void configurations(void) {
    struct {
        octaplex_config config;
        size_t more[2];
    } newer;
    memset(&newer, 0, sizeof newer);
    octaplex_config config = config_of("trellis"), wrong;
    octaplex_cache *cache;
    octaplex_tensor key = packed(keys, 40), value = packed(values, 40);

    /* A program of a later header: what it leaves alone does no harm, what it asks for is refused. */
    WELL(octaplex_config_init(&newer.config, sizeof newer, 1, HEADS, WIDTH, 4096, &error));
    cache = octaplex_cache_create(&newer.config, &error);
    CHECK(cache != NULL);
    WELL(octaplex_cache_calibrate(cache, 0, keys, HEADS * 40 * WIDTH, queries, QUERIES, &error));
    FAILS(octaplex_cache_calibrate(cache, 0, keys, 7, queries, QUERIES, &error), LENGTH, "keys");
    WELL(octaplex_cache_append(cache, 0, 40, &key, &value, &error));
    WELL(octaplex_cache_free(cache, &error));
    newer.more[1] = 1;
    NOTHING(octaplex_cache_create(&newer.config, &error), STRUCT, "older");
    FAILS(octaplex_config_init(&wrong, 16, 1, HEADS, WIDTH, 4096, &error), STRUCT, "sizeof");
    /* A size between two fields is a program of an earlier header; one in the middle of a field is no struct's. */
    for (size_t size = offsetof(octaplex_config, query_heads); size <= sizeof newer; size++) {
        octaplex_status status = octaplex_config_init(&newer.config, size, 1, HEADS, WIDTH, 4096, &error);
        CHECK(size % sizeof(size_t) == 0 ? status == OCTAPLEX_STATUS_OK : status == OCTAPLEX_STATUS_STRUCT);
        newer.config = config;
        newer.config.size = size;
        newer.more[0] = newer.more[1] = 0;
        cache = octaplex_cache_create(&newer.config, &error);
        if (size % sizeof(size_t) == 0) CHECK(cache != NULL);
        else CHECK(cache == NULL && says(OCTAPLEX_STATUS_STRUCT, "sizeof"));
        WELL(octaplex_cache_free(cache, &error));
    }
    FAILS(octaplex_config_init(NULL, sizeof wrong, 1, HEADS, WIDTH, 4096, &error), POINTER, "null");

#define REFUSED(field, what, kind, words)                         \
    do {                                                          \
        wrong = config;                                           \
        wrong.field = what;                                       \
        NOTHING(octaplex_cache_create(&wrong, &error), kind, words); \
    } while (0)
    REFUSED(size, 0, STRUCT, "size");
    REFUSED(size, SIZE_MAX, STRUCT, "size");
    REFUSED(layers, 0, UNSUPPORTED, "layers");
    REFUSED(layers, SIZE_MAX, UNSUPPORTED, "layers");
    REFUSED(kv_heads, 0, UNSUPPORTED, "heads");
    REFUSED(kv_heads, SIZE_MAX, UNSUPPORTED, "heads");
    REFUSED(key_dim, 65, UNSUPPORTED, "width 65");
    REFUSED(value_dim, SIZE_MAX, UNSUPPORTED, "width");
    REFUSED(capacity, 0, UNSUPPORTED, "capacity");
    REFUSED(page, 65, UNSUPPORTED, "a page must have");
    REFUSED(recent_window, SIZE_MAX, UNSUPPORTED, "recent");
    REFUSED(max_rollback, SIZE_MAX, UNSUPPORTED, "rollbacks");
    REFUSED(center, 3, UNSUPPORTED, "OCTAPLEX_CENTER_OFF");
    REFUSED(keys, "trellis:bits=99", TEXT, "bits");
    REFUSED(values, "nothing", TEXT, "codecs");
    REFUSED(backend, "sse9", TEXT, "backend");
    NOTHING(octaplex_cache_create(NULL, &error), POINTER, "octaplex_config_init");

    /* Numbers at the limits, in every field that counts something. */
    static const size_t limits[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX / 64, SIZE_MAX / 512};
    static const size_t counts[] = {
        offsetof(octaplex_config, layers), offsetof(octaplex_config, kv_heads), offsetof(octaplex_config, key_dim),
        offsetof(octaplex_config, value_dim), offsetof(octaplex_config, capacity), offsetof(octaplex_config, page),
        offsetof(octaplex_config, sink_tokens), offsetof(octaplex_config, recent_window),
        offsetof(octaplex_config, max_rollback), offsetof(octaplex_config, query_heads),
    };
    for (size_t field = 0; field < sizeof counts / sizeof *counts; field++)
        for (size_t limit = 0; limit < sizeof limits / sizeof *limits; limit++) {
            wrong = config;
            memcpy((char *)&wrong + counts[field], &limits[limit], sizeof *limits);
            CHECK(octaplex_cache_create(&wrong, &error) == NULL && error.status != OCTAPLEX_STATUS_INTERNAL);
            CHECK(octaplex_cache_memory_needed(&wrong, 1, &error) == 0 && error.status != OCTAPLEX_STATUS_INTERNAL);
        }
    cache = filled("trellis");
    for (size_t limit = 0; limit < sizeof limits / sizeof *limits; limit++) {
        const size_t many = limits[limit];
        octaplex_codec *codec = octaplex_codec_create("trellis", WIDTH, NULL, NULL, &error);
        unsigned char page[64];
        octaplex_attend block = {.size = sizeof block, .queries = many};
        NOTHING(octaplex_codec_create("trellis", many, NULL, NULL, &error), UNSUPPORTED, "width");
        NOTHING(octaplex_codec_page_bytes_max(codec, many, &error), LENGTH, "overflow");
        FAILS(octaplex_codec_encode(codec, keys, many, page, sizeof page, NULL, &error), LENGTH, "");
        WELL(octaplex_codec_free(codec, &error));
        FAILS(octaplex_cache_reserve(cache, many, &error), LENGTH, "2^24");
        FAILS(octaplex_cache_append(cache, 0, many, &key, &value, &error), LENGTH, "");
        FAILS(octaplex_cache_append(cache, many, 40, &key, &value, &error), MISSING, "layer");
        FAILS(octaplex_cache_attend(cache, 0, queries, QUERIES, &block, output, QUERIES, &error), LENGTH, "");
        block.queries = 1, block.heads = many;
        FAILS(octaplex_cache_attend(cache, 0, queries, QUERIES, &block, output, QUERIES, &error), MISSING, "head");
        block.heads = 0, block.first_head = many;
        FAILS(octaplex_cache_attend(cache, 0, queries, QUERIES, &block, output, QUERIES, &error), MISSING, "head");
        FAILS(octaplex_cache_score(cache, 0, many, queries, WIDTH, output, TOKENS, &error), MISSING, "head");
        FAILS(octaplex_cache_score(cache, many, 0, queries, WIDTH, output, TOKENS, &error), MISSING, "layer");
    }
    WELL(octaplex_cache_free(cache, &error));

    /* Bits, and a profile that spends them; nothing is created by one of another model. */
    REFUSED(bits, 3.2, UNSUPPORTED, "not both");
    REFUSED(profile, PROFILE, UNSUPPORTED, "not both");
    wrong = config_of(NULL);
    wrong.profile = PROFILE;
    NOTHING(octaplex_cache_create(&wrong, &error), UNSUPPORTED, "bits as well");
    wrong.profile = NULL;
    wrong.bits = 3.2;
    cache = octaplex_cache_create(&wrong, &error);
    CHECK(cache != NULL);
    WELL(octaplex_cache_free(cache, &error));
    wrong.profile = "octaplex-profile 1\n";
    NOTHING(octaplex_cache_create(&wrong, &error), TEXT, "line 2: the text ends here");
    wrong.profile = PROFILE;
    NOTHING(octaplex_cache_create(&wrong, &error), LENGTH, "another model: it has 2 layers");
    NOTHING(octaplex_cache_memory_needed(&wrong, 1, &error), UNSUPPORTED, "a profile is of all");
    wrong.layers = 2;
    wrong.kv_heads = 2, wrong.key_dim = wrong.value_dim = 64, wrong.query_heads = 0;
    wrong.bits = HUGE_VAL;
    NOTHING(octaplex_cache_create(&wrong, &error), UNSUPPORTED, "finite");
    wrong.bits = 2.4;
    cache = octaplex_cache_create(&wrong, &error);
    CHECK(cache != NULL);
    WELL(octaplex_cache_free(cache, &error));

    config.layers = 3;
    config.boundary_layers = 1;
    config.sliding_window = 100;
    config.max_rollback = 0;
    cache = octaplex_cache_create(&config, &error);
    key = packed(keys, TOKENS), value = packed(values, TOKENS);
    for (size_t layer = 0; layer < 3; layer++) WELL(octaplex_cache_append(cache, layer, TOKENS, &key, &value, &error));
    FAILS(octaplex_cache_truncate(cache, 150, &error), DROPPED, "max_rollback");
    octaplex_stats all = {.size = sizeof all}, outer = {.size = sizeof outer}, inner = {.size = sizeof inner};
    WELL(octaplex_cache_get_stats(cache, OCTAPLEX_ALL_LAYERS, &all, &error));
    WELL(octaplex_cache_get_stats(cache, 0, &outer, &error));
    WELL(octaplex_cache_get_stats(cache, 1, &inner, &error));
    CHECK(outer.page_bits > 16 && outer.page_bits < 16.1 && inner.page_bits > 3.1 && inner.page_bits < 3.2);
    CHECK(fabs(all.page_bits - (2 * outer.page_bits + inner.page_bits) / 3) < 1e-9);
    WELL(octaplex_cache_free(cache, &error));
    config = config_of("f16");
    config.capacity = 200;
    cache = octaplex_cache_create(&config, &error);
    FAILS(octaplex_cache_append(cache, 0, TOKENS, &key, &value, &error), FULL, "200 tokens");
    WELL(octaplex_cache_free(cache, &error));
}

/* A layer in memory of ours, at any address. */
static void brought(void) {
    octaplex_config config = config_of("turboquant:bits=8");
    size_t needed = octaplex_cache_memory_needed(&config, HEADS * GROUP, &error), length;
    char *memory = malloc(needed + 1);
    octaplex_tensor key = packed(keys, TOKENS), value = packed(values, TOKENS);
    octaplex_cache *heap = filled("turboquant:bits=8"), *cache;
    octaplex_stats stats = {.size = sizeof stats};
    unsigned char *snapshot;
    CHECK(needed > 0);
    NOTHING(octaplex_cache_create_in(&config, HEADS * GROUP, memory, needed - 1, &error), LENGTH, "memory_needed");
    NOTHING(octaplex_cache_create_in(&config, HEADS * GROUP, NULL, needed, &error), POINTER, "null");
    for (int offset = 0; offset < 2; offset++) {
        cache = octaplex_cache_create_in(&config, HEADS * GROUP, memory + offset, needed, &error);
        CHECK(cache != NULL);
        WELL(octaplex_cache_append(cache, 0, TOKENS, &key, &value, &error));
        attend(heap, expected);
        attend(cache, output);
        CHECK(same(output, expected, QUERIES));
        octaplex_attend block = {.size = sizeof block, .queries = 2};
        FAILS(octaplex_cache_attend(cache, 0, queries, 2 * QUERIES, &block, output, 2 * QUERIES, &error), LENGTH, "scratch");
        FAILS(octaplex_cache_reserve(cache, 100, &error), LENGTH, "create_in");
        FAILS(octaplex_cache_append(cache, 1, TOKENS, &key, &value, &error), MISSING, "layer 1");
        NOTHING(octaplex_cache_fork(cache, &error), UNSUPPORTED, "load");
        key.token_stride = HEADS * WIDTH, key.head_stride = WIDTH;
        FAILS(octaplex_cache_append(cache, 0, TOKENS, &key, &value, &error), UNSUPPORTED, "strides");
        key = packed(keys, TOKENS);
        length = octaplex_cache_serialized_length(cache, &error);
        snapshot = malloc(length);
        WELL(octaplex_cache_save_buffer(cache, snapshot, length, NULL, &error));
        WELL(octaplex_cache_truncate(cache, 10, &error));
        WELL(octaplex_cache_load_buffer(cache, snapshot, length, &error));
        FAILS(octaplex_cache_load_buffer(cache, snapshot, length - 1, &error), CORRUPT, "snapshot");
        free(snapshot);
        attend(cache, output);
        CHECK(same(output, expected, QUERIES));
        WELL(octaplex_cache_evict(cache, 0, 200, NULL, &error));
        WELL(octaplex_cache_get_stats(cache, OCTAPLEX_ALL_LAYERS, &stats, &error));
        CHECK(stats.tokens == TOKENS - 192);
        WELL(octaplex_cache_clear(cache, &error));
        WELL(octaplex_cache_free(cache, &error));
        /* The memory is still ours: what was there is refused. */
        FAILS(octaplex_cache_clear(cache, &error), HANDLE, "freed");
    }
    config.layers = 2;
    NOTHING(octaplex_cache_memory_needed(&config, 1, &error), UNSUPPORTED, "first_layer");
    config.layers = 1;
    config.capacity = SIZE_MAX / 8;
    NOTHING(octaplex_cache_memory_needed(&config, 1, &error), UNSUPPORTED, "capacity");
    WELL(octaplex_cache_free(heap, &error));
    free(memory);
}

/* An infinite scale in any row is found, on each backend, with one query and with many. A compiler could remove such a check. */
static void scales(void) {
    enum { ROWS = 37, MANY = 33 };
    static const char *const specs[] = {"turboquant:bits=2", "turboquant:bits=3", "turboquant", "turboquant:bits=8", "int", "trellis", "trellis:m=8"};
    static const size_t counts[] = {1, 3, 8, MANY};
    static unsigned char page[ROWS * 80];
    static float words[MANY * 2 * WIDTH], scores[MANY * ROWS];
    const char *name;
    for (size_t b = 0; (name = octaplex_backend_name(b)) != NULL; b++)
        for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
            octaplex_codec *codec = octaplex_codec_create(specs[s], WIDTH, NULL, name, &error);
            octaplex_codec_sizes sizes = {.size = sizeof sizes};
            size_t used = 0;
            CHECK(codec != NULL);
            WELL(octaplex_codec_get_sizes(codec, &sizes, &error));
            WELL(octaplex_codec_encode(codec, keys, ROWS * WIDTH, page, sizeof page, &used, &error));
            for (size_t q = 0; q < MANY; q++)
                WELL(octaplex_codec_prepare_query(codec, queries, WIDTH, words + q * sizes.query_words, sizes.query_words, &error));
            for (size_t row = 0; row < ROWS; row++)
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                    unsigned char *high = page + row * sizes.block_bytes + 1, before = *high; /* of the scale, in f16 */
                    size_t all = counts[c] * ROWS;
                    char block[32];
                    snprintf(block, sizeof block, "block %zu", row);
                    *high = 0x7c;
                    FAILS(octaplex_codec_score(codec, words, counts[c] * sizes.query_words, page, used, scores, all, &error), CORRUPT, block);
                    *high = before;
                }
            WELL(octaplex_codec_score(codec, words, sizes.query_words, page, used, scores, ROWS, &error));
            WELL(octaplex_codec_free(codec, &error));
        }
}

/* Handles that are none. */
static void handles(void) {
    octaplex_codec *codec = octaplex_codec_create("int", WIDTH, NULL, NULL, &error);
    static uint64_t nothing[256];
    FAILS(octaplex_cache_clear((octaplex_cache *)codec, &error), HANDLE, "kind");
    FAILS(octaplex_cache_clear((octaplex_cache *)nothing, &error), HANDLE, "kind");
    FAILS(octaplex_codec_free((octaplex_codec *)nothing, &error), HANDLE, "kind");
    FAILS(octaplex_codec_free((octaplex_codec *)((char *)nothing + 1), &error), POINTER, "aligned");
    WELL(octaplex_codec_free(codec, &error));
}

static void freed(void) {
    octaplex_codec *codec = octaplex_codec_create("int", WIDTH, NULL, NULL, &error);
    octaplex_cache *cache = filled("int");
    unsigned char page[256];
    WELL(octaplex_codec_free(codec, &error));
    FAILS(octaplex_codec_encode(codec, keys, WIDTH, page, sizeof page, NULL, &error), HANDLE, "freed");
    FAILS(octaplex_codec_free(codec, &error), HANDLE, "freed");
    WELL(octaplex_cache_free(cache, &error));
    FAILS(octaplex_cache_attend(cache, 0, queries, QUERIES, NULL, output, QUERIES, &error), HANDLE, "freed");
    FAILS(octaplex_cache_free(cache, &error), HANDLE, "freed");
}

// The checksum of all codecs on each backend.
static void verify(void) {
    const char *name;
    for (size_t i = 0; (name = octaplex_backend_name(i)) != NULL; i++) {
        uint32_t all = 0;
        WELL(octaplex_verify(NULL, name, &all, &error));
        printf("%-14s all %08x\n", name, all);
    }
}

int main(int count, char **words) {
    fill(keys, ALL);
    fill(values, ALL);
    fill(queries, 2 * QUERIES);
    if (count > 1 && strcmp(words[1], "freed") == 0) {
        freed();
    } else if (count > 1 && strcmp(words[1], "verify") == 0) {
        verify();
    } else {
        library();
        floats();
        codecs();
        scales();
        lives();
        tensors();
        options();
        query_heads();
        configurations();
        brought();
        handles();
    }
    if (failures > 0) fprintf(stderr, "%d checks failed\n", failures);
    return failures > 0;
}
