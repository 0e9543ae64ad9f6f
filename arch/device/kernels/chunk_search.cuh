// Encodes chunks of four values as a code and a radius. All float operations are those of quaternions/scalar.rs, in
// its order. It tries all members; the CPU's index does not change codes.

// Finds the largest inner product with a unit, and its unit. An axis wins ties, then the lowest number.
__device__ __forceinline__ float nearest_unit(const float (&y)[4], u32 &unit) {
    float axis = fabsf(y[0]);
    const float half = ((axis + fabsf(y[1])) + (fabsf(y[2]) + fabsf(y[3]))) * 0.5f;
    u32 at = y[0] < 0;
#pragma unroll
    for (int c = 1; c < 4; c++)
        if (fabsf(y[c]) > axis) axis = fabsf(y[c]), at = 2 * c + (y[c] < 0);
    unit = axis >= half ? at : 8 + (y[0] < 0) + 2 * (y[1] < 0) + 4 * (y[2] < 0) + 8 * (y[3] < 0);
    return axis >= half ? axis : half;
}

// Returns the code of the largest inner product; the lowest code wins ties.
__device__ __forceinline__ u32 best_code(float4 u, const float4 *members) {
    float best = -1;
    u32 code = ~0u;
#pragma unroll 2
    for (u32 s = 0; s < SET_MEMBERS; s++) {
        const float4 q = members[s];
        const float y[4] = {(u.x * q.x + u.y * q.y) + (u.z * q.z + u.w * q.w), (u.y * q.x - u.x * q.y) + (u.w * q.z - u.z * q.w),
                            (u.z * q.x - u.x * q.z) + (u.y * q.w - u.w * q.y), (u.w * q.x - u.x * q.w) + (u.z * q.y - u.y * q.z)};
        u32 unit;
        const float product = nearest_unit(y, unit);
        const u32 candidate = unit * SET_MEMBERS + s;
        if (product > best || (product == best && candidate < code)) best = product, code = candidate;
    }
    return code;
}

// A row in shared memory that eight lanes work on.
__device__ __forceinline__ float4 row_chunk(const float *row, int chunk) {
    const float *u = row + 4 * chunk;
    return make_float4(u[0], u[1], u[2], u[3]);
}
__device__ __forceinline__ float chunk_norm(float4 u) { return sqrtf((u.x * u.x + u.y * u.y) + (u.z * u.z + u.w * u.w)); }

// Returns the largest norm of a row's chunks.
__device__ __forceinline__ float largest_chunk(const float *row, int lane) {
    float largest = 0;
#pragma unroll 1
    for (int chunk = lane & 7; chunk < FIELDS; chunk += 8) largest = fmaxf(largest, chunk_norm(row_chunk(row, chunk)));
#pragma unroll
    for (int s = 4; s; s /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
    return largest;
}

// Encodes chunks to fields. A field replaces the first value of its chunk.
__device__ __forceinline__ void search_chunks(float *row, float scale, const float4 *members, int lane) {
    constexpr int LIMIT = (1 << CHUNK_RADIUS) - 1;
    const float factor = LIMIT / scale;
#pragma unroll 1
    for (int chunk = lane & 7; chunk < FIELDS; chunk += 8) {
        const float4 u = row_chunk(row, chunk);
        const float steps = chunk_norm(u) * factor + 0.5f;
        const u32 radius = scale > 0 ? (u32)(steps < LIMIT ? steps : LIMIT) : 0;
        reinterpret_cast<u32 *>(row)[4 * chunk] = radius > 0 ? direction_field(best_code(u, members), radius) : 0;
    }
}
