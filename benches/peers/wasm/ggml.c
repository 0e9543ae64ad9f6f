// ggml's q4_0 as its attention on a CPU calls it, for a host that has WebAssembly alone: rows and a query that the host writes.
#define GGML_COMMON_DECL_C
#include "ggml-common.h"
#include "ggml-cpu-impl.h"
#include "ggml-quants.h"
#include "quants.h"
#include "simd-mappings.h"

enum { DIM = 128, KEYS = 4096, BLOCKS = DIM / QK4_0 };

static float rows_[KEYS][DIM], scores_[KEYS];
static block_q4_0 keys_[KEYS][BLOCKS];

// As ggml_cpu_init sets it, without ggml's other tables.
float ggml_table_f32_f16[1 << 16];

// Returns the address where the host writes the rows.
float *rows(void) {
    return rows_[0];
}

// Returns the address where the host reads the scores.
const float *scores(void) {
    return scores_;
}

// Encodes the rows (no times), or scores the first of them with the first `keys` keys, `times` times over.
int score(int keys, int times) {
    if (times == 0) {
        for (int i = 0; i < 1 << 16; i++) {
            ggml_table_f32_f16[i] = GGML_COMPUTE_FP16_TO_FP32((ggml_fp16_t) i);
        }
        for (int i = 0; i < keys; i++) {
            quantize_row_q4_0_ref(rows_[i], keys_[i], DIM);
        }
    }
    for (; times > 0; times--) {
        block_q8_0 query[BLOCKS];
        quantize_row_q8_0(rows_[0], query, DIM);
        for (int i = 0; i < keys; i++) {
            ggml_vec_dot_q4_0_q8_0(DIM, &scores_[i], 0, keys_[i], 0, query, 0, 1);
        }
    }
    return 0;
}
