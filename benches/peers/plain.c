// Attention on f16 rows in plain loops, by F16C and FMA, or by AVX-512 if it is compiled for that: the yardstick of heads.c.
//
// Sums are in f32. A page of 64 tokens is scored, then its values are summed, so that rows lie in the first-level cache for all
// query heads. While keys are scored, values of the page are prefetched, and then keys of the next page.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#ifdef __AVX512F__
typedef __m512 lanes;
typedef __m512i words;
#define halves(x) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (x)))
#define load(x) _mm512_loadu_ps(x)
#define store(x, y) _mm512_storeu_ps(x, y)
#define all(x) _mm512_set1_ps(x)
#define fused(x, y, z) _mm512_fmadd_ps(x, y, z)
#define most(x, y) _mm512_max_ps(x, y)
#define fold(x) _mm256_add_ps(_mm512_castps512_ps256(x), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)))
#define power(x) _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(x), 23), _mm512_set1_epi32(127 << 23)))
#else
typedef __m256 lanes;
#define halves(x) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (x)))
#define load(x) _mm256_loadu_ps(x)
#define store(x, y) _mm256_storeu_ps(x, y)
#define all(x) _mm256_set1_ps(x)
#define fused(x, y, z) _mm256_fmadd_ps(x, y, z)
#define most(x, y) _mm256_max_ps(x, y)
#define fold(x) (x)
#define power(x) _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(x), 23), _mm256_set1_epi32(127 << 23)))
#endif

enum { LANES = sizeof(lanes) / 4, PAGE = 64, REGISTERS = 8, WIDEST = 256 };

// The state of one query: the largest logit, the sum of weights and the weighted sum of values.
struct plain {
    float largest, total, sum[WIDEST];
};

static inline void prefetch_row(const uint16_t *row, size_t width) {
    for (size_t i = 0; i < width; i += 32) {
        _mm_prefetch((const char *) (row + i), _MM_HINT_T0);
    }
}

// Products of four rows with a query: their lanes are added in pairs.
static inline __m128 four_scores(const uint16_t *rows, size_t width, const float *query) {
    lanes sums[4] = { all(0), all(0), all(0), all(0) };
    for (size_t i = 0; i < width; i += LANES) {
        for (int row = 0; row < 4; row++) {
            sums[row] = fused(halves(rows + row * width + i), load(query + i), sums[row]);
        }
    }
    __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(fold(sums[0]), fold(sums[1])), _mm256_hadd_ps(fold(sums[2]), fold(sums[3])));
    return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

// e^x for x <= 0, with a relative error below 3e-6. From -87 down it stays the same.
static inline lanes exponential(lanes x) {
    x = most(x, all(-87.0f));
    lanes shifted = fused(x, all(1.44269504f), all(12582912.0f)), whole = shifted - all(12582912.0f);
    lanes rest = fused(whole, all(-0.693147181f), x), sum = all(1.0f / 120);
    const float factors[] = { 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f };
    for (int i = 0; i < 5; i++) {
        sum = fused(sum, rest, all(factors[i]));
    }
    return sum * power(shifted);
}

// Adds one page of one query. `next` has the keys of the next page, or is null.
__attribute__((always_inline)) static inline void plain_page(struct plain *state, const uint16_t *keys, const uint16_t *values, const uint16_t *next, size_t width, const float *query) {
    float weights[PAGE], scale = 1.0f / sqrtf((float) width), before = state->largest;
    lanes largest = all(before), total = all(0);
    for (int row = 0; row < PAGE; row += 4) {
        for (int ahead = row; ahead < row + 4; ahead++) {
            prefetch_row(values + ahead * width, width);
        }
        _mm_storeu_ps(weights + row, _mm_mul_ps(four_scores(keys + row * width, width, query), _mm_set1_ps(scale)));
    }
    for (int i = 0; i < PAGE; i += LANES) {
        largest = most(largest, load(weights + i));
    }
    for (int i = 0; i < LANES; i++) {
        state->largest = largest[i] > state->largest ? largest[i] : state->largest;
    }
    for (int i = 0; i < PAGE; i += LANES) {
        lanes x = exponential(load(weights + i) - all(state->largest));
        store(weights + i, x);
        total += x;
    }
    float shrink = expf(before - state->largest);
    state->total *= shrink;
    for (int i = 0; i < LANES; i++) {
        state->total += total[i];
    }
    size_t part = width < REGISTERS * LANES ? width : REGISTERS * LANES;
    for (size_t from = 0; from < width; from += part) {
        lanes sums[REGISTERS];
        for (int i = 0; i < REGISTERS; i++) {
            sums[i] = load(state->sum + from + i * LANES) * all(shrink);
        }
        for (int row = 0; row < PAGE; row++) {
            if (next) {
                prefetch_row(next + row * width + from, part);
            }
            for (int i = 0; i < REGISTERS; i++) {
                if (i * LANES < (int) part) {
                    sums[i] = fused(halves(values + row * width + from + i * LANES), all(weights[row]), sums[i]);
                }
            }
        }
        for (int i = 0; i < REGISTERS; i++) {
            store(state->sum + from + i * LANES, sums[i]);
        }
    }
}

// Writes the output of each query, [heads][width]. `tokens` is a multiple of 64, and `width` 64 or 128.
static void plain_attend(const uint16_t *keys, const uint16_t *values, size_t tokens, size_t heads, size_t width, const float *queries, float *output) {
    static struct plain states[64];
    for (size_t head = 0; head < heads; head++) {
        states[head] = (struct plain) { .largest = -1e30f };
    }
    for (size_t token = 0; token < tokens; token += PAGE) {
        size_t at = token * width;
        for (size_t head = 0; head < heads; head++) {
            const uint16_t *next = token + PAGE < tokens && head + 1 == heads ? keys + at + PAGE * width : NULL;
            const float *query = queries + head * width;
            if (width == 128) {
                plain_page(&states[head], keys + at, values + at, next, 128, query);
            } else {
                plain_page(&states[head], keys + at, values + at, next, 64, query);
            }
        }
    }
    for (size_t i = 0; i < heads * width; i++) {
        output[i] = states[i / width].sum[i % width] / states[i / width].total;
    }
}
