// ggml's own functions on rows of D values, called like its attention on a CPU; one thread.
#define _POSIX_C_SOURCE 200809L
#include "ggml.h"
#include "ggml-cpu.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { F16, Q8_0, Q4_0 };

static enum ggml_type type_of(int type) {
    return type == F16 ? GGML_TYPE_F16 : type == Q8_0 ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_0;
}

// Returns the processor time of this thread. Time of other programs does not count.
double peer_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double) now.tv_sec * 1e9 + (double) now.tv_nsec;
}

void peer_init(void) {
    ggml_cpu_init();
}

size_t peer_row_bytes(int type, size_t dim) {
    return ggml_row_size(type_of(type), (int64_t) dim);
}

// Bytes of a query in the form of the dot product.
size_t peer_query_bytes(int type, size_t dim) {
    return ggml_row_size(ggml_get_type_traits_cpu(type_of(type))->vec_dot_type, (int64_t) dim);
}

void peer_quantise(int type, const float *x, void *row, size_t dim) {
    ggml_get_type_traits_cpu(type_of(type))->from_float(x, row, (int64_t) dim);
}

void peer_decode(int type, const void *row, float *x, size_t dim) {
    ggml_get_type_traits(type_of(type))->to_float(row, x, (int64_t) dim);
}

void peer_prepare(int type, const float *query, void *prepared, size_t dim) {
    enum ggml_type dot = ggml_get_type_traits_cpu(type_of(type))->vec_dot_type;
    ggml_get_type_traits_cpu(dot)->from_float(query, prepared, (int64_t) dim);
}

// score[row] = query · row.
void peer_score(int type, const void *prepared, const char *rows, size_t count, size_t dim, float *scores) {
    const struct ggml_type_traits_cpu *traits = ggml_get_type_traits_cpu(type_of(type));
    size_t bytes = peer_row_bytes(type, dim);
    for (size_t i = 0; i < count; i++) {
        traits->vec_dot((int) dim, scores + i, 0, rows + i * bytes, 0, prepared, 0, 1);
    }
}

// The path of quantised values in flash attention for one query: decodes each row, and adds it times its weight in f32.
void peer_accumulate(int type, const float *weights, const char *rows, size_t count, size_t dim, float *row, float *acc) {
    ggml_to_float_t decode = ggml_get_type_traits(type_of(type))->to_float;
    size_t bytes = peer_row_bytes(type, dim);
    for (size_t i = 0; i < count; i++) {
        decode(rows + i * bytes, row, (int64_t) dim);
        for (size_t j = 0; j < dim; j++) {
            acc[j] += weights[i] * row[j];
        }
    }
}

// Flash attention through a graph: one key/value head, a block of queries at the end, causal.
struct peer_flash {
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    struct ggml_cplan plan;
    struct ggml_tensor *queries, *output;
};

void peer_flash_free(struct peer_flash *flash) {
    free(flash->plan.work_data);
    ggml_free(flash->context);
    free(flash);
}

// Returns null if memory runs out.
struct peer_flash *peer_flash_new(int type, const float *rows, const float *queries, size_t tokens, size_t block, size_t heads, size_t dim) {
    struct peer_flash *flash = calloc(1, sizeof *flash);
    if (!flash) {
        return NULL;
    }
    size_t row = peer_row_bytes(type, dim), bytes = 2 * tokens * row + 2 * block * heads * dim * 4 + tokens * block * 2 + (1 << 20);
    struct ggml_init_params params = { .mem_size = bytes, .mem_buffer = NULL, .no_alloc = false };
    flash->context = ggml_init(params);
    if (!flash->context) {
        free(flash);
        return NULL;
    }
    struct ggml_context *c = flash->context;
    struct ggml_tensor *k = ggml_new_tensor_3d(c, type_of(type), dim, tokens, 1), *v = ggml_new_tensor_3d(c, type_of(type), dim, tokens, 1);
    struct ggml_tensor *q = ggml_new_tensor_3d(c, GGML_TYPE_F32, dim, block, heads), *mask = NULL;
    for (size_t i = 0; i < tokens; i++) {
        peer_quantise(type, rows + i % 4096 * dim, (char *) k->data + i * row, dim);
    }
    memcpy(v->data, k->data, tokens * row);
    memcpy(q->data, queries, block * heads * dim * 4);
    if (block > 1) {
        mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, tokens, block);
        ggml_fp16_t *m = mask->data, hidden = ggml_fp32_to_fp16(-1.0f / 0.0f), seen = ggml_fp32_to_fp16(0.0f);
        for (size_t i = 0; i < block; i++) {
            for (size_t t = 0; t < tokens; t++) {
                m[i * tokens + t] = t + block > tokens + i ? hidden : seen;
            }
        }
    }
    float scale = 1.0f;
    for (size_t d = dim; d > 1; d /= 4) {
        scale *= d == 2 ? 0.70710678f : 0.5f;
    }
    flash->queries = q;
    flash->output = ggml_flash_attn_ext(c, q, k, v, mask, scale, 0.0f, 0.0f);
    flash->graph = ggml_new_graph(c);
    ggml_build_forward_expand(flash->graph, flash->output);
    flash->plan = ggml_graph_plan(flash->graph, 1, NULL);
    flash->plan.work_data = malloc(flash->plan.work_size + 1);
    if (!flash->plan.work_data) {
        peer_flash_free(flash);
        return NULL;
    }
    return flash;
}

// Returns the output, [block][heads][dim]; null if ggml could not compute it.
const float *peer_flash_run(struct peer_flash *flash) {
    enum ggml_status status = ggml_graph_compute(flash->graph, &flash->plan);
    return status == GGML_STATUS_SUCCESS ? flash->output->data : NULL;
}
