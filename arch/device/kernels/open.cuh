// Decodes pages to f16 rows in the keys' and values' own basis. A block of threads takes a slot and head.

struct Open {
    u16 *keys;         // f16 [cells][kv heads][DIM]
    u16 *values;
    Block block;       // what `unfold_slot` reads; `table`: the slots to decode. It ends early without halves
};

constexpr float MOST_F16 = 65504.0f;

// Returns a key to its own basis: the inverse of `turn_key`.
__device__ __forceinline__ void turn_back(float (&v)[VEC], u32 rounds, const u32 (&signs)[8], int lane) {
    for (u32 round = 0; round < rounds; round++) {
        if constexpr (is_blocks(KEYS)) small_hadamard(v, lane);
        else hadamard<true, COARSE_AT ? 2 : 1>(v, lane);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = signed_by(v[i] * TURN_SCALE, signs, VEC * lane + i);
    }
}

// The inverse of `sort_channels`.
__device__ __forceinline__ void restore_channels(float (&v)[VEC], const float (&balance)[VEC], float *row, int lane) {
    if (!COARSE_AT) return;
    u32 below, before;
    count_coarse(balance, lane, below, before);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < VEC; i++) row[VEC * lane + i] = v[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        v[i] = row[below >> i & 1 ? DIM / 2 + before : VEC * lane + i - before];
        before += below >> i & 1;
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(128) open(const __grid_constant__ Open o) {
    extern __shared__ __align__(128) u8 tile[];
    __shared__ float sorted[4][COARSE_AT ? DIM : 1];
    const Block &p = o.block;
    const int head = blockIdx.y, warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const u32 number = p.table[blockIdx.x];
    const u8 *slot = p.pool + ((u64)number * p.kv_heads + head) * SLOT;
    u8 *keys = tile, *values = tile + TILE_BYTES;
    unfold_slot(p, slot, keys, values, make_float2(1, 1), p.means);
    __syncthreads();
    const float *front = p.fronts + (u64)head * 2 * DIM;
    float balance[VEC], prefix[VEC];
    load_lane(balance, front, lane), load_lane(prefix, front + DIM, lane);
    for (int token = warp; token < TILE; token += 4) {
        float k[VEC] = {}, v[VEC] = {};
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            if (!holds(lane)) continue;
            k[i] = from_f16(load<u16>(keys + key_byte(token, VEC * lane + i)));
            v[i] = from_f16(load<u16>(values + value_byte(token, VEC * lane + i)));
        }
        turn_back(k, p.key_rounds, p.key_signs, lane);
#pragma unroll
        for (int i = 0; i < VEC; i++) k[i] += prefix[i];
        restore_channels(k, balance, sorted[warp], lane);
        for (u32 round = 0; round < p.value_rounds; round++) {
            hadamard<true>(v, lane);
#pragma unroll
            for (int i = 0; i < VEC; i++) v[i] = signed_by(v[i] * INVERSE_SQRT, p.value_signs, VEC * lane + i);
        }
        const u64 row = (((u64)number * SLOT_TOKENS + token) * p.kv_heads + head) * DIM + VEC * lane;
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            if (!holds(lane)) continue;
            o.keys[row + i] = (u16)to_f16(fminf(fmaxf(k[i] * balance[i], -MOST_F16), MOST_F16));
            o.values[row + i] = (u16)to_f16(fminf(fmaxf(v[i], -MOST_F16), MOST_F16));
        }
    }
}
