// What the kernels of attention share: a sequence, copies to shared memory, rows that a warp holds.

struct Sequence {
    u32 slots, exact, sinks, place; // place: in the ring, of the first token in the exact window
    u64 next, window_start; // positions: of the next token, of the first in the exact window
};

// Where an exact token of a sequence is, by its number: sinks lie behind the ring.
__device__ __forceinline__ u32 exact_place(const Sequence &s, u32 ring, u32 number) {
    if (number < s.sinks) return ring + number;
    const u32 at = s.place + number - s.sinks;
    return at < ring ? at : at - ring;
}

// What is added to logits, if anything.
struct Bias {
    const float *values; // of each sequence [rows][positions]
    const u64 *starts;   // of each sequence, its first value
    u64 of_heads;        // 1: a row each query head; 0: one row
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
// A warp copies; one group a call, whether there is anything to copy or not.
__device__ __forceinline__ void warp_copy(void *to, const u8 *from, u32 bytes, int lane) {
    for (u32 at = 16 * lane; at < bytes; at += 16 * LANES)
        copy_16(to, from, at);
    end_copies();
}
#endif

// Coordinates of a row that a lane of a warp holds, from VEC · lane on: some lanes' may be none, and are zeros. Rows of BASE
// coordinates are some lanes'.
constexpr int VEC = BASE == 20 ? 4 : DIM / LANES, HOLDING = DIM / VEC;
// Told apart only where it matters: a lane that holds coordinates.
__device__ __forceinline__ bool holds(int lane) { return HOLDING == LANES || lane < HOLDING; }

// The matrix of order BASE, or its transpose, on each BASE coordinates.
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

// Hadamard's transform of the values that a lane holds, a power of two of them.
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
// Hadamard's transform of DIM values, or of each of so many parts of them; its inverse is `TRANSPOSE`'s.
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

// Keys of halves: channels whose balance is above 0 come first, then the others, in their order. By way of `row`, memory of DIM values that
// this warp alone has.
__device__ __forceinline__ void sort_channels(float (&v)[VEC], const float (&balance)[VEC], float *row, int lane) {
    if (!COARSE_AT) return;
    u32 below = 0, before = 0; // of channels below 0: of this lane's, of the lanes before
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const bool coarse = balance[i] < 0;
        before += __popc(__ballot_sync(~0u, coarse) & ((1u << lane) - 1));
        below |= (u32)coarse << i;
    }
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

// x with the sign of its coordinate.
__device__ __forceinline__ float signed_by(float x, const u32 (&signs)[8], int c) {
    return __uint_as_float(__float_as_uint(x) ^ (signs[c >> 5] >> (c & 31)) << 31);
}

// A lane's coordinates of a row.
__device__ __forceinline__ void load_lane(float (&v)[VEC], const float *row, int lane) {
    u32 words[VEC] = {};
    if (holds(lane)) load_words<4 * VEC>(words, reinterpret_cast<const u8 *>(row + VEC * lane));
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = __uint_as_float(words[i]);
}

// Floats of a caller's: f32, f16 or bf16.
enum Floats : u32 { F32, F16, BF16 };
__device__ __forceinline__ float from_half(u32 bits, u32 type) { return type == BF16 ? __uint_as_float(bits << 16) : from_f16(bits); }
__device__ __forceinline__ u32 to_half(float x, u32 type) { return type == BF16 ? to_bf16(x) : to_f16(x); }
// A lane's coordinates of row `number` of them.
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
