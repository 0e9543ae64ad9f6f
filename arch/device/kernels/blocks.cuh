// Keys of small blocks: 32 codes of 3 bits and their scale. Each block is one matrix product, whose sum is
// multiplied with the block's scale. So no scale has to hold for a whole row. Decoded codes have 16 bits, as
// queries have: high bytes go into one product, low bytes into another.

// Products of two low bytes lose what is below this: 2^-27 of the largest sum.
constexpr int SCORE_UNIT = 256;

// Scores a thread's keys in units, columns 2 t and 2 t + 1, which are tokens `first` and the next. Words 0 and 1 of
// `table` are high bytes, words 2 and 3 low bytes.
template <class Queries>
__device__ __forceinline__ float2 score_blocks(Queries queries, const u8 *slot, int token, int first, int t, const Table &table) {
    const KeyWords k = load_key(slot, token, t);
    float2 sum = {};
#pragma unroll
    for (int j = 0; j < PRODUCTS; j++) {
        const uint2 s = selectors(k, j);
        const uint4 q = queries(j);
        int high[4] = {}, low[4] = {};
        product_s8(high, q, prmt(table.words[0], table.words[1], s.x), prmt(table.words[0], table.words[1], s.y));
        product_s8_u8(low, q, prmt(table.words[2], table.words[3], s.x), prmt(table.words[2], table.words[3], s.y));
        auto whole = [&](int i) { return (float)(high[i] * 256 + high[i + 2] + low[i] + (low[i + 2] >> 8)); };
        const u32 scales = load<u32>(slot + K_STEPS + 2 * (SLOT_TOKENS * j + first));
        sum.x = fmaf(whole(0), from_f16(scales & 0xFFFF), sum.x), sum.y = fmaf(whole(1), from_f16(scales >> 16), sum.y);
    }
    return sum;
}

// Applies Hadamard's transform to each 32 values of a row.
__device__ __forceinline__ void small_hadamard(float (&v)[VEC], int lane) {
    if constexpr (32 % VEC == 0) {
        lane_hadamard(v);
#pragma unroll
        for (int s = 1; s < 32 / VEC; s *= 2)
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float other = __shfl_xor_sync(~0u, v[i], s);
                v[i] = (lane & s) ? other - v[i] : v[i] + other;
            }
        return;
    }
    // Goes by way of coordinate 32 i + lane, so that all lanes hold each block.
    float w[VEC] = {};
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const int c = 32 * i + lane;
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            const float other = __shfl_sync(~0u, v[k], c / VEC);
            if (c % VEC == k) w[i] = other;
        }
#pragma unroll
        for (int s = 1; s < LANES; s *= 2) {
            const float other = __shfl_xor_sync(~0u, w[i], s);
            w[i] = (lane & s) ? other - w[i] : w[i] + other;
        }
    }
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const int c = VEC * lane + i;
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            const float other = __shfl_sync(~0u, w[k], c % 32);
            if (c / 32 == k) v[i] = other;
        }
    }
}

// The factor that keeps lengths in a round of `turn_key` and of its inverse.
#if COARSE_AT
constexpr float TURN_SCALE = fine::INVERSE_SQRT;
#else
constexpr float TURN_SCALE = is_blocks(KEYS) ? BLOCK_SCALE : INVERSE_SQRT;
#endif

// Transforms a row to the basis of the keys' codes.
__device__ __forceinline__ void turn_key(float (&v)[VEC], u32 rounds, const u32 (&signs)[8], int lane) {
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = signed_by(v[i] * TURN_SCALE, signs, VEC * lane + i);
        if constexpr (is_blocks(KEYS)) small_hadamard(v, lane);
        else hadamard<false, COARSE_AT ? 2 : 1>(v, lane);
    }
}
