// Keys and values in a caller's memory on the GPU. A warp takes one row.

struct Given {
    const void *sides[2];         // keys, values: the coordinates of a row are consecutive
    u16 *rows;                    // f16 [count][kv heads][keys, values][dim]
    float *wide;                  // f32 [keys, values][kv heads][count][dim]
    u32 *doubtful;                // 1: the host must check a row
    u64 token_stride, head_stride; // in values
    u32 first, count, kv_heads, dim;
    u32 floats;                   // their type: 0 f32, 1 f16, 2 bf16
    float bounds[2];              // squared norms of keys and of values that every codec accepts are below these
};

__device__ __forceinline__ float at(const void *values, u64 index, u32 type) {
    if (type == 0) return static_cast<const float *>(values)[index];
    const u32 bits = static_cast<const u16 *>(values)[index];
    return type == 2 ? __uint_as_float(bits << 16) : from_f16(bits);
}

// Finds a warp's row; returns false beyond the last one.
struct Row {
    u32 side, head, token;
    u64 from;
};
__device__ __forceinline__ bool row_of(const Given &g, Row &row) {
    const u64 number = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    row.side = number % 2, row.head = number / 2 % g.kv_heads;
    const u64 token = number / 2 / g.kv_heads;
    row.token = (u32)token, row.from = (g.first + token) * g.token_stride + row.head * g.head_stride;
    return token < g.count;
}

// Checks that all rows are surely accepted: f16 holds the values, and all codecs hold the norms.
extern "C" __global__ void check(const __grid_constant__ Given g) {
    Row row;
    if (!row_of(g, row)) return;
    float squares = 0;
    bool fit = true;
    for (u32 c = threadIdx.x % 32; c < g.dim; c += 32) {
        const float x = at(g.sides[row.side], row.from + c, g.floats);
        fit &= fabsf(x) < 65520.0f; // NaN does not fit
        squares = fmaf(x, x, squares);
    }
    for (int s = 16; s; s /= 2) squares += __shfl_xor_sync(~0u, squares, s);
    if (!fit || !(squares < g.bounds[row.side])) *g.doubtful = 1;
}

extern "C" __global__ void take(const __grid_constant__ Given g) {
    Row row;
    if (!row_of(g, row)) return;
    u16 *to = g.rows + (((u64)row.token * g.kv_heads + row.head) * 2 + row.side) * g.dim;
    for (u32 c = threadIdx.x % 32; c < g.dim; c += 32) to[c] = (u16)to_f16(at(g.sides[row.side], row.from + c, g.floats));
}

extern "C" __global__ void widen(const __grid_constant__ Given g) {
    Row row;
    if (!row_of(g, row)) return;
    float *to = g.wide + (((u64)row.side * g.kv_heads + row.head) * g.count + row.token) * g.dim;
    for (u32 c = threadIdx.x % 32; c < g.dim; c += 32) to[c] = at(g.sides[row.side], row.from + c, g.floats);
}

// Appends one token to each sequence, which counts it itself. So a graph can be launched repeatedly.
struct Steps {
    const void *sides[2];           // keys, values
    u16 *exact;                     // f16 [sequences][a ring, then sinks: exact_stride][kv heads][keys, values][dim]
    u32 *sequences;                 // eight words each: slots, exact, sinks, place, next, …
    u32 *flags;                     // why each sequence stopped: 1: the host must check a row, 2: the window is full
    u64 token_stride, head_stride;  // in values; one token for each sequence
    u32 exact_stride, ring, most;   // most: tokens of a full window
    u32 kv_heads, dim, floats;
    float bounds[2];                // for squared norms, as above
};

// A block of threads for each sequence. A token that is not accepted changes nothing, and neither do later ones.
extern "C" __global__ void __launch_bounds__(256) step(const __grid_constant__ Steps g) {
    __shared__ u32 refused;
    const u32 lane = threadIdx.x % 32, rows = 2 * g.kv_heads;
    u32 *words = g.sequences + 8 * blockIdx.x;
    const u32 window = words[1] - words[2], at_ring = words[3] + window;
    if (threadIdx.x == 0) refused = g.flags[blockIdx.x] ? g.flags[blockIdx.x] : window >= g.most ? 2 : 0;
    __syncthreads();
    const u64 token = blockIdx.x * g.token_stride;
    for (u32 row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
        float squares = 0;
        bool fit = true;
        for (u32 c = lane; c < g.dim; c += 32) {
            const float x = at(g.sides[row % 2], token + row / 2 * g.head_stride + c, g.floats);
            fit &= fabsf(x) < 65520.0f; // NaN does not fit
            squares = fmaf(x, x, squares);
        }
        for (int s = 16; s; s /= 2) squares += __shfl_xor_sync(~0u, squares, s);
        if ((!fit || !(squares < g.bounds[row % 2])) && refused == 0) refused = 1;
    }
    __syncthreads();
    if (refused) {
        if (threadIdx.x == 0) g.flags[blockIdx.x] = refused;
        return;
    }
    const u32 place = at_ring < g.ring ? at_ring : at_ring - g.ring;
    u16 *to = g.exact + ((u64)blockIdx.x * g.exact_stride + place) * rows * g.dim;
    for (u32 row = threadIdx.x / 32; row < rows; row += blockDim.x / 32)
        for (u32 c = lane; c < g.dim; c += 32) to[row * g.dim + c] = (u16)to_f16(at(g.sides[row % 2], token + row / 2 * g.head_stride + c, g.floats));
    if (threadIdx.x == 0) {
        words[1]++;
        if (++words[4] == 0) words[5]++;
    }
}
