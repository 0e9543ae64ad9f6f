// Replaces the instructions of nvidia.cuh by words of CUDA that hip.cuh has too: shuffles among 32 lanes, and sums
// of products of four bytes. It is slow; integers are the same. With PORTABLE it runs on NVIDIA GPUs, where all
// tests can use it.
#if PORTABLE
__device__ __forceinline__ u32 to_bf16(float x) { // not for NaN
    const u32 bits = __float_as_uint(x);
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
__device__ __forceinline__ u32 two_f16(float low, float high) { return to_f16(low) | to_f16(high) << 16; }
__device__ __forceinline__ float exp2_fast(float x) { return exp2f(x); }

// ---- bits -------------------------------------------------------------------------------------------------------------

// Expands nibbles of 16 bits to bytes.
__device__ __forceinline__ u32 nibbles(u32 s) {
    s = (s | s << 8) & 0x00FF00FF;
    return (s | s << 4) & 0x0F0F0F0F;
}
__device__ __forceinline__ u32 prmt(u32 a, u32 b, u32 s) {
    s &= 0xFFFF;
    const u32 bytes = __byte_perm(a, b, s & 0x7777), of_signs = nibbles(s >> 3 & 0x1111) * 0xFF;
    return (bytes & ~of_signs) | ((bytes >> 7 & 0x01010101) * 0xFF & of_signs);
}
__device__ __forceinline__ u32 and_or(u32 a, u32 b, u32 c) { return (a & b) | c; }
__device__ __forceinline__ u32 low_half(u32 w, u32 plus) { return (w & 0xFFFF) + plus; }
__device__ __forceinline__ u32 high_half(u32 w, u32 plus) { return (w >> 16) + plus; }
__device__ __forceinline__ u32 less_high_half(u32 w, u32 from) { return from - (w >> 16); }
// Returns the low bits of the shifted integer. The bits above them differ from those of a float.
__device__ __forceinline__ u32 shifted(float n, int by) { return __float_as_uint(n) >> by; }

// ---- a warp together --------------------------------------------------------------------------------------------------

__device__ __forceinline__ int all_sum(int x) {
#pragma unroll
    for (int s = 16; s; s /= 2) x += __shfl_xor_sync(~0u, x, s);
    return x;
}

// Sums products of four bytes. For unsigned bytes it multiplies seven bits, and the eighth separately.
__device__ __forceinline__ int dot_s8(u32 a, u32 b, int c) { return __dp4a((int)a, (int)b, c); }
__device__ __forceinline__ int dot_u8_s8(u32 a, u32 b, int c) {
    return dot_s8(a & 0x7F7F7F7F, b, c) + 128 * dot_s8(a >> 7 & 0x01010101, b, 0);
}

// Operands lie as in nvidia.cuh. A lane has four sums. The four lanes of its row hold the rows; four other lanes
// hold each column.
template <class Sum, class Dot> __device__ __forceinline__ void product_of(Sum *c, const u32 *a, u32 b0, u32 b1, Dot dot) {
    const int lane = threadIdx.x % LANES, row = lane & ~3, column = 8 * (lane & 3);
#pragma unroll 1 // a kernel has hundreds of these
    for (int i = 0; i < 4; i++) {
        u32 of_rows[4];
#pragma unroll
        for (int k = 0; k < 4; k++) of_rows[k] = __shfl_sync(~0u, a[k], row + i);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const u32 low = __shfl_sync(~0u, b0, column + 4 * k + i), high = __shfl_sync(~0u, b1, column + 4 * k + i);
            c[k] = dot(of_rows[2], high, dot(of_rows[0], low, c[k]));
            c[2 + k] = dot(of_rows[3], high, dot(of_rows[1], low, c[2 + k]));
        }
    }
}
__device__ __forceinline__ void product_s8(int (&c)[4], uint4 a, u32 b0, u32 b1) {
    const u32 words[4] = {a.x, a.y, a.z, a.w};
    product_of(c, words, b0, b1, [](u32 x, u32 y, int sum) { return dot_s8(x, y, sum); });
}
__device__ __forceinline__ void half_product_s8(int (&c)[4], u32 a0, u32 a1, u32 b) { product_s8(c, make_uint4(a0, a1, 0, 0), b, 0); }
__device__ __forceinline__ void product_u8(int (&c)[4], uint4 a, u32 b0, u32 b1) {
    const u32 words[4] = {a.x, a.y, a.z, a.w};
    product_of(c, words, b0, b1, [](u32 x, u32 y, int sum) { return dot_u8_s8(x, y, sum); });
}
__device__ __forceinline__ void product_s8_u8(int (&c)[4], uint4 a, u32 b0, u32 b1) {
    const u32 words[4] = {a.x, a.y, a.z, a.w};
    product_of(c, words, b0, b1, [](u32 x, u32 y, int sum) { return dot_u8_s8(y, x, sum); });
}
__device__ __forceinline__ void product_f16(float *c, const u32 *a, u32 b0, u32 b1) {
    product_of(c, a, b0, b1, [](u32 x, u32 y, float sum) {
        return fmaf(from_f16(x >> 16), from_f16(y >> 16), fmaf(from_f16(x & 0xFFFF), from_f16(y & 0xFFFF), sum));
    });
}

// ---- shared memory ----------------------------------------------------------------------------------------------------

// Returns an address as a number. Only its alignment has a meaning.
__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)(u64)p; }
// Copies are complete at once. A reader waits for the copying lane, as it does after `await_copies` anyway.
__device__ __forceinline__ void copy_16(void *to, const u8 *from, u32 at) {
    *reinterpret_cast<uint4 *>(static_cast<u8 *>(to) + at) = *reinterpret_cast<const uint4 *>(from + at);
}
__device__ __forceinline__ void end_copies() {}
template <int BUT> __device__ __forceinline__ void await_copies() {}
#endif
