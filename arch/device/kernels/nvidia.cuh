// NVIDIA's instructions, each in a function. hip.cuh has equivalents of words that are CUDA's only. With
// PORTABLE, portable.cuh replaces all of this except conversions, which hip.cuh has too.
#ifndef __HIP__
__device__ __forceinline__ float from_f16(u32 bits) {
    float x;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(bits));
    return x;
}
// Rounds to nearest, ties to even.
__device__ __forceinline__ u32 to_f16(float x) {
    u32 bits;
    asm("{.reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h;}" : "=r"(bits) : "f"(x));
    return bits;
}
#endif

#if !PORTABLE
__device__ __forceinline__ u32 to_bf16(float x) {
    u32 bits;
    asm("{.reg .b16 h; cvt.rn.bf16.f32 h, %1; cvt.u32.u16 %0, h;}" : "=r"(bits) : "f"(x));
    return bits;
}
__device__ __forceinline__ u32 two_f16(float low, float high) {
    u32 two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- bits -------------------------------------------------------------------------------------------------------------

// Each selector nibble of s takes a byte of a (0-3) or of b (4-7). With its highest bit set, it takes eight copies
// of that byte's sign bit.
__device__ __forceinline__ u32 prmt(u32 a, u32 b, u32 s) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(s));
    return d;
}
// Computes (a & b) | c in one instruction. Left alone, the compiler uses two if two operands are constants.
__device__ __forceinline__ u32 and_or(u32 a, u32 b, u32 c) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
// Returns the low half of a word plus `plus`, the high half plus `plus`, and `from` minus the high half. These use the
// multiplier's pipe, because the pipe of logic is full.
__device__ __forceinline__ u32 low_half(u32 w, u32 plus) {
    u32 d;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(w), "r"(1), "r"(plus));
    return d;
}
__device__ __forceinline__ u32 high_half(u32 w, u32 plus) {
    u32 d;
    asm("dp2a.hi.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(w), "r"(0x01000000), "r"(plus));
    return d;
}
__device__ __forceinline__ u32 less_high_half(u32 w, u32 from) {
    u32 d;
    asm("dp2a.hi.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(w), "r"(0xFF000000), "r"(from));
    return d;
}
// Returns bits `by` and up of a float that is 2^23 plus an integer n, on otherwise idle pipes. The sum
// 2^23 + (2^23 + n) / 2^by, rounded down, has n >> by in the low bits of its mantissa. For `by` up to 15, the lowest
// eight bits contain nothing else.
__device__ __forceinline__ u32 shifted(float n, int by) {
    return __float_as_uint(by ? __fmaf_rd(n, __uint_as_float((u32)(127 - by) << 23), 8388608.0f) : n);
}

// ---- a warp together --------------------------------------------------------------------------------------------------

__device__ __forceinline__ int all_sum(int x) { return __reduce_add_sync(~0u, x); }

// m16n8k32. Lane 4 g + t holds:
//   A (16 x 32 bytes)   row g (a0: bytes 4 t + b, a2: 16 + 4 t + b), and row g + 8 (a1, a3)
//   B (32 x 8 bytes)    column g (b0 and b1 alike)
//   sums (16 x 8)       columns 2 t and 2 t + 1 of row g (c0, c1) and of row g + 8 (c2, c3)
__device__ __forceinline__ void product_s8(int (&c)[4], uint4 a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// Uses 16 bytes: one half of a product.
__device__ __forceinline__ void half_product_s8(int (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ void product_u8(int (&c)[4], uint4 a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void product_s8_u8(int (&c)[4], uint4 a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// m16n8k16: the same with two values where bytes have four.
__device__ __forceinline__ void product_f16(float *c, const u32 *a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- shared memory ----------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copies 16 bytes from `from + at` to `to + at` asynchronously. Copies form groups; waiting leaves at most a given
// number of groups on their way.
__device__ __forceinline__ void copy_16(void *to, const u8 *from, u32 at) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + at), "l"(from + at) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int BUT> __device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(BUT) : "memory"); }

#if __CUDA_ARCH__ >= 900
#define BULK_COPIES 1
__device__ __forceinline__ void barrier_init(u64 *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}
__device__ __forceinline__ void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_wait(u64 *bar, u32 phase) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(
                     shared_address(bar)),
                 "r"(phase)
                 : "memory");
}
// Arrives, and expects a number of bytes.
__device__ __forceinline__ void expect(u64 *bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
// Starts a bulk copy of some of the expected bytes.
__device__ __forceinline__ void bulk_copy_more(void *to, const u8 *from, u32 bytes, u64 *bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar))
                 : "memory");
}
__device__ __forceinline__ void bulk_copy(void *to, const u8 *from, u32 bytes, u64 *bar) {
    expect(bar, bytes);
    bulk_copy_more(to, from, bytes, bar);
}
__device__ __forceinline__ void arrive(u64 *bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
// Orders writes of this thread before later bulk copies to the same place.
__device__ __forceinline__ void before_bulk_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Waits for the kernel before this one, whose results can be read from here on. The kernel after this one may
// start.
__device__ __forceinline__ void await_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
#endif
#endif
