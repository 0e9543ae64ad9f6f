// Shared by the kernels of attention: sequences, copies to shared memory, rows that a warp holds.

struct Sequence {
    u32 slots, exact, sinks, place; // place: of the window's first token in the ring
    u64 next, window_start; // positions of the next token, and of the window's first
};

// Returns the place of an exact token. Sinks lie after the ring:
//   tokens   sinks 0 .. │ window ..            places   ring: window, from `place` on, wraps │ sinks
__device__ __forceinline__ u32 exact_place(const Sequence &s, u32 ring, u32 number) {
    if (number < s.sinks) return ring + number;
    const u32 at = s.place + number - s.sinks;
    return at < ring ? at : at - ring;
}

// Biases, which are added to logits.
struct Bias {
    const float *values; // [rows][positions] of each sequence
    const u64 *starts;   // the first value of each sequence
    u64 of_heads;        // 1: a row for each query head; 0: one row
};
constexpr float LOG2E = 1.4426950408889634f;
__device__ __forceinline__ const float *biases_of(const Bias &bias, const Sequence &s, int sequence, u32 heads, u32 head) {
#if OPTIONS > 1
    return bias.values + bias.starts[sequence] + (bias.of_heads ? head * s.next : 0);
#else
    return nullptr;
#endif
}

constexpr float NOTHING = -1e30f;
#define HIDDEN __int_as_float(0xff800000)

#if !BULK_COPIES
// Copies with a warp. Each call makes one group, even if it copies nothing.
__device__ __forceinline__ void warp_copy(void *to, const u8 *from, u32 bytes, int lane) {
    for (u32 at = 16 * lane; at < bytes; at += 16 * LANES)
        copy_16(to, from, at);
    end_copies();
}
#endif

// A lane of a warp holds VEC coordinates of a row, from VEC · lane on. Lanes beyond the row hold zeros. A run of
// BASE coordinates belongs to several lanes.
constexpr int VEC = BASE == 20 ? 4 : DIM / LANES, HOLDING = DIM / VEC;
// Checks whether a lane holds coordinates, only where some lanes do not.
__device__ __forceinline__ bool holds(int lane) { return HOLDING == LANES || lane < HOLDING; }

// Multiplies each run of BASE coordinates with the matrix of order BASE, or with its transpose.
template <bool TRANSPOSE> __device__ __forceinline__ void base_product(float (&v)[VEC], int lane) {
    constexpr int MEMBERS = BASE > 1 ? BASE / VEC : 1;
    const int first = lane / MEMBERS * MEMBERS;
    u32 rows[VEC];
    float sum[VEC] = {};
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const int row = (lane - first) * VEC + i;
        rows[i] = TRANSPOSE ? SIGNS.columns[row] : SIGNS.rows[row];
    }
#pragma unroll
    for (int c = 0; c < BASE; c++) {
        const float x = __shfl_sync(~0u, v[c % VEC], first + c / VEC);
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[i] += __uint_as_float(__float_as_uint(x) ^ (rows[i] << (31 - c) & 0x80000000u));
    }
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = sum[i];
}

// Applies Hadamard's transform to a power of two of values in one lane.
__device__ __forceinline__ void lane_hadamard(float (&v)[VEC]) {
#pragma unroll
    for (int s = 1; s < VEC; s *= 2)
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (!(i & s)) {
                const float a = v[i], b = v[i | s];
                v[i] = a + b, v[i | s] = a - b;
            }
}
// Applies Hadamard's transform to DIM values, or to each of several parts of them. TRANSPOSE selects the inverse.
template <bool TRANSPOSE = false, int PARTS = 1> __device__ __forceinline__ void hadamard(float (&v)[VEC], int lane) {
    if constexpr (BASE > 1) {
        constexpr int MEMBERS = BASE > 1 ? BASE / VEC : 1;
        base_product<TRANSPOSE>(v, lane);
        const int run = lane / MEMBERS;
#pragma unroll
        for (int s = 1; s < DIM / BASE / PARTS; s *= 2)
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float other = __shfl_sync(~0u, v[i], (run ^ s) * MEMBERS + lane % MEMBERS);
                v[i] = (run & s) ? other - v[i] : v[i] + other;
            }
        if (!holds(lane))
#pragma unroll
            for (int i = 0; i < VEC; i++) v[i] = 0;
        return;
    }
    lane_hadamard(v);
#pragma unroll
    for (int s = 1; s < LANES / PARTS; s *= 2)
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const float other = __shfl_xor_sync(~0u, v[i], s);
            v[i] = (lane & s) ? other - v[i] : v[i] + other;
        }
}

// Finds the channels with a balance below 0: `below` has a bit for each of this lane, `before` is the number in earlier lanes.
__device__ __forceinline__ void count_coarse(const float (&balance)[VEC], int lane, u32 &below, u32 &before) {
    below = before = 0;
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const bool coarse = balance[i] < 0;
        before += __popc(__ballot_sync(~0u, coarse) & ((1u << lane) - 1));
        below |= (u32)coarse << i;
    }
}

// Sorts the channels of keys with halves: those with a balance above 0 come first, then the others, in their order.
// `row` is memory for DIM values that only this warp uses.
__device__ __forceinline__ void sort_channels(float (&v)[VEC], const float (&balance)[VEC], float *row, int lane) {
    if (!COARSE_AT) return;
    u32 below, before;
    count_coarse(balance, lane, below, before);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        row[below >> i & 1 ? DIM / 2 + before : VEC * lane + i - before] = v[i];
        before += below >> i & 1;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = row[VEC * lane + i];
    __syncwarp();
}

// Returns x with the sign of its coordinate.
__device__ __forceinline__ float signed_by(float x, const u32 (&signs)[8], int c) {
    return __uint_as_float(__float_as_uint(x) ^ (signs[c >> 5] >> (c & 31)) << 31);
}

// Loads a lane's coordinates of a row.
__device__ __forceinline__ void load_lane(float (&v)[VEC], const float *row, int lane) {
    u32 words[VEC] = {};
    if (holds(lane)) load_words<4 * VEC>(words, reinterpret_cast<const u8 *>(row + VEC * lane));
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = __uint_as_float(words[i]);
}

// Loads a caller's floats: f32, f16 or bf16.
enum Floats : u32 { F32, F16, BF16 };
__device__ __forceinline__ float from_half(u32 bits, u32 type) { return type == BF16 ? __uint_as_float(bits << 16) : from_f16(bits); }
__device__ __forceinline__ u32 to_half(float x, u32 type) { return type == BF16 ? to_bf16(x) : to_f16(x); }
// Loads a lane's coordinates of row `number`.
__device__ __forceinline__ void load_given(float (&v)[VEC], const void *rows, u64 number, u32 type, int lane) {
    if (type == F32) return load_lane(v, static_cast<const float *>(rows) + number * DIM, lane);
    u32 words[(VEC + 1) / 2] = {};
    if (holds(lane)) load_words<2 * VEC>(words, reinterpret_cast<const u8 *>(static_cast<const u16 *>(rows) + number * DIM + VEC * lane));
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = from_half(words[i >> 1] >> (16 * (i & 1)) & 0xFFFF, type);
}
__device__ __forceinline__ void store_given(void *rows, u64 number, u32 type, const float (&v)[VEC], int lane) {
    const u64 at = number * DIM + VEC * lane;
#pragma unroll
    for (int i = 0; i < VEC && holds(lane); i++) {
        if (type == F32) static_cast<float *>(rows)[at + i] = v[i];
        else static_cast<u16 *>(rows)[at + i] = (u16)to_half(v[i], type);
    }
}
