// CUDA's words for AMD GPUs. HIP's compiler gets this file before the other sources; portable.cuh builds on it.
//
// A warp has 32 lanes here on every GPU: its lanes are in one wave, and shuffles stay among them. A namespace
// encloses all sources, so that their names differ from those of ROCm's headers, which hipRTC adds. A compiler that
// knows CUDA's words needs only the first line. This has never run on an AMD GPU; ci/hip.sh compiles it.
#define PORTABLE 1
#ifdef __HIP__
#undef __device__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#undef threadIdx
#undef blockIdx
#undef gridDim
#undef blockDim
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads, ...) __attribute__((launch_bounds(threads)))
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Index {
    unsigned x, y, z;
};
#define threadIdx (Index{__builtin_amdgcn_workitem_id_x(), 0, 0})
#define blockIdx (Index{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()})
#define gridDim (Index{__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(), \
                       __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z()})
#define blockDim (Index{__builtin_amdgcn_workgroup_size_x(), 1, 1})

struct alignas(8) float2 {
    float x, y;
};
__device__ __forceinline__ float2 make_float2(float x, float y) { return {x, y}; }
struct alignas(16) float4 {
    float x, y, z, w;
};
__device__ __forceinline__ float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct alignas(8) int2 {
    int x, y;
};
__device__ __forceinline__ int2 make_int2(int x, int y) { return {x, y}; }
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
__device__ __forceinline__ float ceilf(float x) { return __builtin_ceilf(x); }
__device__ __forceinline__ float exp2f(float x) { return __builtin_exp2f(x); }
// Accurate to 10^-7 absolutely, not to the last bits of small values. It is used for logits over their cap.
__device__ __forceinline__ float tanhf(float x) { return 1 - 2 / (1 + exp2f(x * 2.885390081777927f)); }
__device__ __forceinline__ float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ __forceinline__ float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ __forceinline__ unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
__device__ __forceinline__ float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
__device__ __forceinline__ float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
__device__ __forceinline__ float __fdividef(float a, float b) { return a / b; }
__device__ __forceinline__ int __float2int_rn(float x) { return (int)__builtin_rintf(x); }
__device__ __forceinline__ float from_f16(unsigned bits) { return (float)__builtin_bit_cast(_Float16, (unsigned short)bits); }
__device__ __forceinline__ unsigned to_f16(float x) { return __builtin_bit_cast(unsigned short, (_Float16)x); } // rounds to nearest, ties to even
__device__ __forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__device__ __forceinline__ int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__device__ __forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
// Returns c plus the sum of four products of bytes.
__device__ __forceinline__ int __dp4a(int a, int b, int c) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx942__) || defined(__gfx1030__)
    return __builtin_amdgcn_sdot4(a, b, c, false);
#else
    for (int i = 0; i < 32; i += 8) c += (a << (24 - i) >> 24) * (b << (24 - i) >> 24);
    return c;
#endif
}
__device__ __forceinline__ unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 0xFF) * (b >> i & 0xFF);
    return c;
}
__device__ __forceinline__ float __saturatef(float x) { return fminf(fmaxf(x, 0), 1); }
// Selects bytes of eight: each nibble of the selector takes one. v_perm_b32 has a byte of selector for each, and
// counts its first operand's bytes above the other's.
__device__ __forceinline__ unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    selector &= 0x7777;
    selector = (selector | selector << 8) & 0x00FF00FF;
    return __builtin_amdgcn_perm(b, a, (selector | selector << 4) & 0x0F0F0F0F);
}

__device__ __forceinline__ int wave_lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
// Returns the value of lane `from` of the same 32 lanes.
template <class T> __device__ __forceinline__ T __shfl_sync(unsigned, T x, int from) {
    static_assert(sizeof(T) == 4, "a register");
    const int lane = (wave_lane() & ~31) | (from & 31);
    return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(lane * 4, __builtin_bit_cast(int, x)));
}
template <class T> __device__ __forceinline__ T __shfl_xor_sync(unsigned all, T x, int by) { return __shfl_sync(all, x, wave_lane() ^ by); }
template <class T> __device__ __forceinline__ T __shfl_up_sync(unsigned all, T x, int by) {
    const int lane = wave_lane() & 31;
    return __shfl_sync(all, x, lane < by ? lane : lane - by);
}
__device__ __forceinline__ unsigned __ballot_sync(unsigned all, int x) {
    unsigned those = (unsigned)(x != 0) << (wave_lane() & 31);
    for (int s = 16; s; s /= 2) those |= __shfl_xor_sync(all, those, s);
    return those;
}
__device__ __forceinline__ bool __any_sync(unsigned all, int x) { return __ballot_sync(all, x) != 0; }
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
__device__ __forceinline__ int atomicAdd(int *to, int x) { return __atomic_fetch_add(to, x, __ATOMIC_RELAXED); }
__device__ __forceinline__ unsigned atomicMin(unsigned *to, unsigned x) { return __atomic_fetch_min(to, x, __ATOMIC_RELAXED); }
__device__ __forceinline__ unsigned atomicMax(unsigned *to, unsigned x) { return __atomic_fetch_max(to, x, __ATOMIC_RELAXED); }
__device__ __forceinline__ unsigned atomicOr(unsigned *to, unsigned x) { return __atomic_fetch_or(to, x, __ATOMIC_RELAXED); }
#endif
