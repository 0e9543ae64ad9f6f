// What HIP's compiler is given before `layout.cuh`, `exchange.cuh` and `encode.cuh`, without ROCm's headers: CUDA's words for AMD's
// cards. Warps are 32 lanes here whatever the card's are: lanes of one are in one wave, and shuffles stay among them.
// It has never run on a card: ci/hip.sh compiles it.
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads, ...) __attribute__((launch_bounds(threads)))
#define __grid_constant__

struct Index {
    unsigned x, y, z;
};
#define threadIdx (Index{__builtin_amdgcn_workitem_id_x(), 0, 0})
#define blockIdx (Index{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()})
#define blockDim (Index{__builtin_amdgcn_workgroup_size_x(), 1, 1})

struct alignas(8) float2 {
    float x, y;
};
__device__ __forceinline__ float2 make_float2(float x, float y) { return {x, y}; }
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
__device__ __forceinline__ uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
__device__ __forceinline__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class T> __device__ __forceinline__ T min(T a, T b) { return b < a ? b : a; }
template <class T> __device__ __forceinline__ T max(T a, T b) { return a < b ? b : a; }
__device__ __forceinline__ float fabsf(float x) { return __builtin_fabsf(x); }
__device__ __forceinline__ float fminf(float a, float b) { return __builtin_fminf(a, b); }
__device__ __forceinline__ float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
__device__ __forceinline__ float sqrtf(float x) { return __builtin_sqrtf(x); }
__device__ __forceinline__ float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ __forceinline__ unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
__device__ __forceinline__ float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
__device__ __forceinline__ float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
__device__ __forceinline__ float __saturatef(float x) { return fminf(fmaxf(x, 0), 1); }
__device__ __forceinline__ unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(both >> (8 * (selector >> (4 * i) & 7)) & 0xFF) << (8 * i);
    return out;
}

__device__ __forceinline__ int wave_lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
__device__ __forceinline__ float __shfl_xor_sync(unsigned, float x, int by) {
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((wave_lane() ^ by) * 4, __builtin_bit_cast(int, x)));
}
__device__ __forceinline__ float __shfl_sync(unsigned, float x, int lane) {
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(((wave_lane() & ~31) + lane) * 4, __builtin_bit_cast(int, x)));
}
__device__ __forceinline__ unsigned __ballot_sync(unsigned, bool x) { // of 32 lanes, whatever a wave has
    unsigned bits = (unsigned)x << (wave_lane() & 31);
    for (int by = 16; by; by /= 2) bits |= (unsigned)__builtin_amdgcn_ds_bpermute((wave_lane() ^ by) * 4, (int)bits);
    return bits;
}
__device__ __forceinline__ void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ __forceinline__ void __syncwarp() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
__device__ __forceinline__ unsigned atomicMin(unsigned *to, unsigned x) { return __atomic_fetch_min(to, x, __ATOMIC_RELAXED); }
__device__ __forceinline__ unsigned atomicMax(unsigned *to, unsigned x) { return __atomic_fetch_max(to, x, __ATOMIC_RELAXED); }
__device__ __forceinline__ unsigned atomicOr(unsigned *to, unsigned x) { return __atomic_fetch_or(to, x, __ATOMIC_RELAXED); }
