// Searches the path of a trellis that does not fit the registers of one thread. All float operations are those of
// trellis/scalar.rs. A warp takes rows at once, with one or two states in a lane.

template <int SHAPE> struct Path {
    static constexpr int HISTORY = history(SHAPE) > 0 ? history(SHAPE) : 1, STATES = 1 << HISTORY, WINDOWS = 2 * STATES;
    static constexpr int LEVELS = radix(SHAPE) << raw_bits(SHAPE);
    static constexpr int EACH_LANE = STATES > LANES ? 2 : 1, OF_ROW = STATES / EACH_LANE, ROWS_AT_ONCE = LANES / OF_ROW; // lanes of a row, rows of a warp
    // How the bits of a window lie in a state and a new bit. The newest bit is the lowest.
    static __device__ __forceinline__ int window(int bits) {
        int out = 0;
        for (int i = 0; i <= HISTORY; i++) out |= (bits >> i & 1) << (HISTORY - i);
        return out;
    }
};
constexpr int PATH_WARPS = 8;
template <int SHAPE, bool USED = true> struct PathMemory {};
template <int SHAPE> struct PathMemory<SHAPE, true> {
    u32 decisions[PATH_WARPS][DIM][Path<SHAPE>::EACH_LANE], paths[SLOT_TOKENS][DIM / 16 + 1]; // paths: 16 bits in each word, above 16 zero bits
    float2 fits[SLOT_TOKENS];                                                                   // Σ y · centroid, Σ centroid²
};

// Encodes rows z, `stride` apart: codes of one byte, with the path in the highest bit. `centroids` are by code and
// window. Called by all threads.
template <int SHAPE>
__device__ __forceinline__ void search_paths(float *z, int stride, const float *scales, const float *centroids, PathMemory<SHAPE> &m) {
    using P = Path<SHAPE>;
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, own = lane % P::OF_ROW, of_row = lane / P::OF_ROW;
    // For each state of a lane, the centroids of the two ways into it.
    float mine[P::EACH_LANE][2][P::LEVELS];
#pragma unroll
    for (int e = 0; e < P::EACH_LANE; e++)
#pragma unroll
        for (int way = 0; way < 2; way++)
#pragma unroll
            for (int code = 0; code < P::LEVELS; code++)
                mine[e][way][code] = centroids[code * P::WINDOWS + P::window(own + LANES * e + way * P::STATES)];
#pragma unroll 1
    for (int first = warp * P::ROWS_AT_ONCE; first < SLOT_TOKENS; first += PATH_WARPS * P::ROWS_AT_ONCE) {
        const int r = first + of_row;
        const float *row = z + r * stride, scale = scales[r];
        float costs[P::EACH_LANE];
#pragma unroll
        for (int e = 0; e < P::EACH_LANE; e++) costs[e] = own + e == 0 ? 0 : __int_as_float(0x7f800000);
#pragma unroll 1
        for (int c = 0; c < DIM; c++) {
            const float y = row[c] * scale;
            float next[P::EACH_LANE];
#pragma unroll
            for (int e = 0; e < P::EACH_LANE; e++) {
                // The previous state, lower and higher. With two states in a lane, these are its first and second.
                const int before = (own + LANES * e) >> 1, from = of_row * P::OF_ROW + before;
                float ways[2];
                ways[0] = __shfl_sync(~0u, costs[0], from);
                ways[1] = __shfl_sync(~0u, costs[P::EACH_LANE - 1], P::EACH_LANE > 1 ? from : from + P::STATES / 2);
#pragma unroll
                for (int way = 0; way < 2; way++) {
                    float least = fabsf(y - mine[e][way][0]); // the nearest centroid's: rounding is monotone
#pragma unroll
                    for (int code = 1; code < P::LEVELS; code++) least = fminf(least, fabsf(y - mine[e][way][code]));
                    ways[way] += least * least;
                }
                const bool high = ways[1] < ways[0];
                const u32 decided = __ballot_sync(~0u, high);
                if (lane == 0) m.decisions[warp][c][e] = decided;
                next[e] = high ? ways[1] : ways[0];
            }
#pragma unroll
            for (int e = 0; e < P::EACH_LANE; e++) costs[e] = next[e];
        }
        // The lowest of the cheapest states.
        int state = own;
        float least = costs[0];
        if (P::EACH_LANE > 1 && costs[P::EACH_LANE - 1] < least) least = costs[P::EACH_LANE - 1], state = own + LANES;
#pragma unroll
        for (int s = P::OF_ROW / 2; s; s /= 2) {
            const float other = __shfl_sync(~0u, least, lane ^ s);
            const int of_other = __shfl_sync(~0u, state, lane ^ s);
            if (other < least || (other == least && of_other < state)) least = other, state = of_other;
        }
        __syncwarp();
        if (own == 0) {
            m.paths[r][0] = 0;
#pragma unroll 1
            for (int word = DIM / 16 - 1; word >= 0; word--) {
                u32 bits = 0;
                for (int c = 16 * word + 15; c >= 16 * word; c--) {
                    bits |= (state & 1) << (c & 15);
                    const u32 high = m.decisions[warp][c][state / LANES % P::EACH_LANE] >> (of_row * P::OF_ROW + state % LANES) & 1;
                    state = state >> 1 | high << (P::HISTORY - 1);
                }
                m.paths[r][word + 1] = bits;
            }
        }
        __syncwarp();
        // Sixteen lanes compute the codes of a row, as many as the lanes of the CPU's sums.
#pragma unroll 1
        for (int pair = 0; pair < P::ROWS_AT_ONCE; pair += 2) {
            const int row_number = first + pair + (P::ROWS_AT_ONCE > 1 ? lane / 16 : 0), of_sums = lane % 16;
            const float *from = z + row_number * stride, by = scales[row_number];
            float correlation = 0, energy = 0; // exact: below 2^24
            for (int c = of_sums; c < DIM; c += 16) {
                const u32 path = m.paths[row_number][c / 16] | m.paths[row_number][c / 16 + 1] << 16;
                const u32 window = path >> (of_sums + 16 - P::HISTORY) & (P::WINDOWS - 1);
                const float y = from[c] * by;
                float centroid = centroids[window];
                u32 code = 0;
#pragma unroll 1
                while (code + 1 < P::LEVELS) {
                    const float above = centroids[(code + 1) * P::WINDOWS + window];
                    if (!(y + y >= centroid + above)) break;
                    centroid = above, code++;
                }
                correlation += y * centroid, energy += centroid * centroid;
                __syncwarp(); // codes overwrite values that other lanes have read
                reinterpret_cast<u8 *>(z + row_number * stride)[c] = (u8)(code | (window >> P::HISTORY) << 7);
            }
#pragma unroll
            for (int s = 8; s; s /= 2) correlation += __shfl_xor_sync(~0u, correlation, s), energy += __shfl_xor_sync(~0u, energy, s);
            if (of_sums == 0) m.fits[row_number] = make_float2(correlation, energy);
        }
        __syncwarp();
    }
}
