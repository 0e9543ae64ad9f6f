// What the kernels of attention share: a sequence, copies to shared memory, rows that a warp holds.

struct Sequence {
    u32 slots, exact, sinks, zero;
    u64 next, window_start; // positions: of the next token, of the first in the exact window
};

constexpr float NOTHING = -1e30f;
#define HIDDEN __int_as_float(0xff800000)

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void barrier_init(u64 *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_wait(u64 *bar, u32 phase) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(
                     shared_address(bar)),
                 "r"(phase)
                 : "memory");
}
__device__ __forceinline__ void bulk_copy(void *to, const u8 *from, u32 bytes, u64 *bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar))
                 : "memory");
}
__device__ __forceinline__ void arrive(u64 *bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
#else
// A warp copies; one group a call, whether there is anything to copy or not.
__device__ __forceinline__ void warp_copy(void *to, const u8 *from, u32 bytes, int lane) {
    for (u32 at = 16 * lane; at < bytes; at += 16 * LANES)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + at), "l"(from + at) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}
#endif

// Walsh-Hadamard over DIM values, VEC a lane (index VEC · lane + i), steps 1, 2, 4 ...
__device__ __forceinline__ void hadamard(float (&v)[VEC], int lane) {
#pragma unroll
    for (int s = 1; s < VEC; s *= 2)
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (!(i & s)) {
                const float a = v[i], b = v[i | s];
                v[i] = a + b, v[i | s] = a - b;
            }
#pragma unroll
    for (int s = 1; s < LANES; s *= 2)
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const float other = __shfl_xor_sync(~0u, v[i], s);
            v[i] = (lane & s) ? other - v[i] : v[i] + other;
        }
}
constexpr float INVERSE_SQRT = DIM == 64 ? 0.125f : 0.08838834764831845f;

// x with the sign of its coordinate.
__device__ __forceinline__ float signed_by(float x, const u32 (&signs)[4], int c) {
    return __uint_as_float(__float_as_uint(x) ^ (signs[c >> 5] >> (c & 31)) << 31);
}

// A lane's coordinates of a row.
__device__ __forceinline__ void load_lane(float (&v)[VEC], const float *row, int lane) {
    u32 words[4];
    load_words<4 * VEC>(words, reinterpret_cast<const u8 *>(row + VEC * lane));
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = __uint_as_float(words[i]);
}
