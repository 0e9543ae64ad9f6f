// The inner loops of ggml's CPU code for ARM, written anew for comparison: `ggml KERNEL` calls one on 256 rows of 128 between two
// calls of `mark`. `f16` is as with f16 arithmetic (sums in f16, ARMv8.2), `f16-f32` as without, with sums in
// registers, which is faster than ggml's own. Other sums of f16 add a row at a time to memory.
#include <arm_neon.h>
#include <string.h>

enum { D = 128, ROWS = 256, BLOCK = 32 };
typedef struct { float16_t d; int8_t q[BLOCK]; } q8_0;
typedef struct { float16_t d; uint8_t q[BLOCK / 2]; } q4_0;

float16_t halves[ROWS * D], query[D], acc[D], weights[ROWS];
float query32[D], acc32[D], decoded[D], weights32[ROWS], out[ROWS];
q8_0 rows8[ROWS * D / BLOCK], query8[D / BLOCK];
q4_0 rows4[ROWS * D / BLOCK];

__attribute__((noinline)) void mark(void) { __asm__ volatile("" ::: "memory"); }

static void score_f16(void) {
  for (int r = 0; r < ROWS; r++) {
    float16x8_t s[4] = {vdupq_n_f16(0), vdupq_n_f16(0), vdupq_n_f16(0), vdupq_n_f16(0)};
    for (int i = 0; i < D; i += 32)
      for (int j = 0; j < 4; j++) s[j] = vfmaq_f16(s[j], vld1q_f16(halves + r * D + i + 8 * j), vld1q_f16(query + i + 8 * j));
    float16x8_t all = vaddq_f16(vaddq_f16(s[0], s[1]), vaddq_f16(s[2], s[3]));
    out[r] = vaddvq_f32(vaddq_f32(vcvt_f32_f16(vget_low_f16(all)), vcvt_high_f32_f16(all)));
  }
}

static void sum_f16(void) {
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < D; i += 8) vst1q_f16(acc + i, vfmaq_n_f16(vld1q_f16(acc + i), vld1q_f16(halves + r * D + i), weights[r]));
}

static void score_f16_f32(void) {
  for (int r = 0; r < ROWS; r++) {
    float32x4_t s[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int i = 0; i < D; i += 16)
      for (int j = 0; j < 4; j++) s[j] = vfmaq_f32(s[j], vcvt_f32_f16(vld1_f16(halves + r * D + i + 4 * j)), vld1q_f32(query32 + i + 4 * j));
    out[r] = vaddvq_f32(vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[2], s[3])));
  }
}

static void sum_f16_f32(void) {
  for (int half = 0; half < D; half += D / 2) {
    float32x4_t s[D / 8];
    for (int i = 0; i < D / 8; i++) s[i] = vdupq_n_f32(0);
    for (int r = 0; r < ROWS; r++)
      for (int i = 0; i < D / 8; i++)
        s[i] = vfmaq_n_f32(s[i], vcvt_f32_f16(vld1_f16(halves + r * D + half + 4 * i)), weights32[r]);
    for (int i = 0; i < D / 8; i++) vst1q_f32(acc32 + half + 4 * i, s[i]);
  }
}

static void score_q8_0(void) {
  for (int r = 0; r < ROWS; r++) {
    float32x4_t s[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int b = 0; b < D / BLOCK; b++) {
      const q8_0 *x = rows8 + r * (D / BLOCK) + b, *y = query8 + b;
      int32x4_t p = vdotq_s32(vdupq_n_s32(0), vld1q_s8(x->q), vld1q_s8(y->q));
      p = vaddq_s32(p, vdotq_s32(vdupq_n_s32(0), vld1q_s8(x->q + 16), vld1q_s8(y->q + 16)));
      s[b % 2] = vmlaq_n_f32(s[b % 2], vcvtq_f32_s32(p), (float)x->d * (float)y->d);
    }
    out[r] = vaddvq_f32(s[0]) + vaddvq_f32(s[1]);
  }
}

static void score_q4_0(void) {
  for (int r = 0; r < ROWS; r++) {
    float32x4_t s[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int b = 0; b < D / BLOCK; b++) {
      const q4_0 *x = rows4 + r * (D / BLOCK) + b;
      const q8_0 *y = query8 + b;
      uint8x16_t v = vld1q_u8(x->q);
      int8x16_t low = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15))), vdupq_n_s8(8));
      int8x16_t high = vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(v, 4)), vdupq_n_s8(8));
      int32x4_t p = vdotq_s32(vdotq_s32(vdupq_n_s32(0), low, vld1q_s8(y->q)), high, vld1q_s8(y->q + 16));
      s[b % 2] = vmlaq_n_f32(s[b % 2], vcvtq_f32_s32(p), (float)x->d * (float)y->d);
    }
    out[r] = vaddvq_f32(s[0]) + vaddvq_f32(s[1]);
  }
}

// Sums of quantised rows: ggml decodes a row to memory, in plain C, and adds it in f32.
static void add_row(int r) {
  for (int i = 0; i < D; i++) acc32[i] += decoded[i] * weights32[r];
}

static void sum_q8_0(void) {
  for (int r = 0; r < ROWS; r++) {
    const q8_0 *x = rows8 + r * (D / BLOCK);
    for (int b = 0; b < D / BLOCK; b++)
      for (int i = 0; i < BLOCK; i++) decoded[b * BLOCK + i] = x[b].q[i] * (float)x[b].d;
    add_row(r);
  }
}

static void sum_q4_0(void) {
  for (int r = 0; r < ROWS; r++) {
    const q4_0 *x = rows4 + r * (D / BLOCK);
    for (int b = 0; b < D / BLOCK; b++)
      for (int i = 0; i < BLOCK / 2; i++) {
        decoded[b * BLOCK + i] = ((x[b].q[i] & 15) - 8) * (float)x[b].d;
        decoded[b * BLOCK + i + BLOCK / 2] = ((x[b].q[i] >> 4) - 8) * (float)x[b].d;
      }
    add_row(r);
  }
}

int main(int count, char **words) {
  const struct { const char *name; void (*run)(void); } kernels[] = {
    {"score-f16", score_f16}, {"sum-f16", sum_f16}, {"score-f16-f32", score_f16_f32}, {"sum-f16-f32", sum_f16_f32},
    {"score-q8_0", score_q8_0}, {"score-q4_0", score_q4_0}, {"sum-q8_0", sum_q8_0}, {"sum-q4_0", sum_q4_0},
  };
  for (unsigned i = 0; i < sizeof kernels / sizeof *kernels; i++)
    if (count > 1 && !strcmp(words[1], kernels[i].name)) {
      mark();
      kernels[i].run();
      mark();
      return 0;
    }
  return 1;
}
