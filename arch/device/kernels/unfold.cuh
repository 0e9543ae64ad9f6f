// Attention of blocks of queries: a prompt's, or a few drafts'.
//
//   measure   how large keys and values are, so that they fit f16, and roughly the keys' mean
//   ask       balances and rotates queries, to f16, and multiplies them with that mean. A row is one query of one head;
//             heads of a key/value head are side by side
//   unfold    decodes some of a sequence's tokens to tiles of 64 in f16, in the order in which matrix products read shared
//             memory: keys by rows, minus their mean; values by columns; both rotated. Exact tokens too
//   block     multiplies 128 rows with these tiles and adds earlier sums: products of f16, sums of f32
//   finish    adds the splits and rotates back
//
// Each token is decoded once, whatever the number of queries.

constexpr int TILE = SLOT_TOKENS, TILES_AT_ONCE = 512, ROWS = 128, ROW_WARPS = 8;
// Coordinates of a row in tiles, products and sums. Widths of 80 and 96 have 128. Queries are zero beyond DIM, so
// that tiles do not matter there.
constexpr int ROW = (DIM + 63) / 64 * 64;
constexpr int BLOCK_THREADS = 32 * ROW_WARPS, TILE_BYTES = TILE * ROW * 2;
// Registers hold sums of 128 columns. For wider rows, two blocks of threads each take half of the columns, with the
// same scores.
constexpr int SIDES = ROW > 128 ? 2 : 1, COLUMNS = ROW / SIDES, VALUE_BYTES = TILE * COLUMNS * 2;
constexpr int STAGE_BYTES = 2 * TILE_BYTES + 2 * VALUE_BYTES; // of two tiles
static_assert(COLUMNS <= 128, "registers");
// Hopper's products of four warps, which read shared memory directly.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// With three stages, tiles are requested when nobody can still read the old ones, without waiting for the other
// four warps. The widest rows have space for two stages. Their values come last, and are requested after the
// previous values were summed.
constexpr int STAGES = ROW > 192 ? 2 : 3, AHEAD = 1;
#else
constexpr int STAGES = 1;
#endif

// Consecutive tokens.
struct Tile {
    u64 position;
    u32 count, sinks; // sinks: whether the tokens are sinks
};

struct Block {
    const void *queries;       // [sequences][query heads][queries][DIM]
    void *output;              // likewise
    const u8 *pool;
    const u32 *table;          // [sequences][table_stride]: slots of a sequence
    const Sequence *sequences;
    const u16 *exact;          // f16 [sequences][a ring, then sinks: exact_stride][kv heads][keys, values][DIM]
    const float *fronts;       // [sequences][kv heads][balance, prefix][DIM]
    const float *sink_logits;  // [query heads], or null
    u8 *tokens;                // f16 [sequences][kv heads][at_once][keys, values][TILE_BYTES]
    Tile *tiles;               // [sequences][at_once]
    u16 *query_rows;           // f16 [sequences][kv heads][padded][ROW]
    float2 *units;             // [sequences][kv heads][padded]: unit of a product, and its offset; in log2
    float2 *scales;            // [sequences][kv heads]: factors of keys and of values
    float *means;              // [sequences][kv heads][DIM]: the mean that tiles' keys lack, rotated
    float *parts;              // [splits][sequences][kv heads][padded][ROW]
    float2 *sums;              // [SIDES][splits][sequences][kv heads][padded]: maximum of log2, sum
    const u32 *entries;        // what fields of keys decode to: FieldTable; what codes decode to: Entries
    u64 window, position;      // window 0: all is visible; position: of the first query, ~0: the last query is at the newest token
    u32 query_heads, kv_heads, table_stride, exact_stride, queries_each, padded, splits, first_tile, keep_sinks, key_rounds, value_rounds;
    u32 at_once;               // maximum of tiles at a time, at most TILES_AT_ONCE
    u32 ring;                  // places of exact tokens before those of sinks
    u32 query_type, output_type; // of floats
    float logit_unit;          // scale · log2 e
    float key_unit, centre_unit, value_unit; // of a centroid's integer; key and value for the steps of norms
    float soft_cap;            // times log2 e; 0: no cap
    u32 key_signs[8], value_signs[8];
    float key_centroids[128], value_centroids[128]; // by code; of a trellis by code · 16 + window
    Bias bias;
#if COARSE_AT
    float coarse_centroids[128], coarse_unit; // as key_centroids and key_unit, which then are the fine half's
#endif
};

// The tiles of a sequence: slots, sinks, window.
__device__ __forceinline__ u32 sink_tiles(const Sequence &s) { return (s.sinks + TILE - 1) / TILE; }
__device__ __forceinline__ u32 tiles_of(const Sequence &s) { return s.slots + sink_tiles(s) + (s.exact - s.sinks + TILE - 1) / TILE; }

// Returns the byte of half c (of 64) in row r. Chunks of 16 bytes are exchanged, so that eight rows use all banks.
__device__ __forceinline__ int swizzled(int r, int c) { return r * 128 + (((c >> 3) ^ (r & 7)) << 4) + (c & 7) * 2; }
// The same for coordinate c of a token's key, and for a token of coordinate c.
__device__ __forceinline__ int key_byte(int token, int c) { return (c >> 6) * (TILE * 128) + swizzled(token, c & 63); }
__device__ __forceinline__ int value_byte(int token, int c) { return swizzled(c, token); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int s = 16; s; s /= 2) x += __shfl_xor_sync(~0u, x, s);
    return x;
}
__device__ __forceinline__ void turn(float (&v)[VEC], u32 rounds, const u32 (&signs)[8], int lane) {
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = signed_by(v[i] * INVERSE_SQRT, signs, VEC * lane + i);
        hadamard(v, lane);
    }
}
// Loads a lane's coordinates of an exact row.
__device__ __forceinline__ void exact_lane(float (&v)[VEC], const u16 *row, int lane) {
    u32 words[(VEC + 1) / 2] = {};
    if (holds(lane)) load_words<2 * VEC>(words, reinterpret_cast<const u8 *>(row + VEC * lane));
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = from_f16(words[i >> 1] >> (16 * (i & 1)) & 0xFFFF);
}
// see sort_channels
__device__ __forceinline__ void exact_key(float (&v)[VEC], const u16 *row, const float *front, float *sorted, int lane) {
    float balance[VEC], prefix[VEC];
    exact_lane(v, row, lane), load_lane(balance, front, lane), load_lane(prefix, front + DIM, lane);
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = holds(lane) ? v[i] / balance[i] : 0;
    sort_channels(v, balance, sorted, lane);
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = holds(lane) ? v[i] - prefix[i] : 0;
}
__device__ __forceinline__ const u16 *exact_row(const Block &p, const Sequence &seq, int sequence, int kv_head, u32 number) {
    return p.exact + (((u64)sequence * p.exact_stride + exact_place(seq, p.ring, number)) * p.kv_heads + kv_head) * 2 * DIM;
}

// Returns a power of two that moves the largest coordinate to 2^13. Then no coordinate leaves f16, and the loss of
// small ones is negligible.
__device__ __forceinline__ float fitting(float largest) {
    const int exponent = (int)(__float_as_uint(largest) >> 23) - 127;
    return largest > 0 ? __uint_as_float((u32)(127 + max(-100, min(100, 13 - exponent))) << 23) : 1;
}

// Bounds the norm of a row whose scale is 1; for small blocks, bounds more than a coordinate.
constexpr float of_largest(int shape) { return is_int(shape) ? (1 << (code_bits(shape) - 1)) / INVERSE_SQRT : is_blocks(shape) ? 4 : 1; }
template <int SHAPE> __device__ __forceinline__ float largest_norm(u32 largest, u32 octaves) {
    return is_grouped(SHAPE) ? __uint_as_float(octaves << 23) / INVERSE_SQRT : of_largest(SHAPE) * from_f16(largest);
}

// Returns coordinate c of a page's centre, if it is coded in the basis of the keys' codes.
__device__ __forceinline__ float coded_centre(const Block &p, const u8 *slot, u32 norm, int c) {
#if COARSE_AT
    if (c >= DIM / 2) return coarse::centre_integer(slot + COARSE_AT, c - DIM / 2) * (from_f16(load<Tail>(slot + COARSE_TAIL).centre) * p.centre_unit);
    return fine::centre_integer(slot, c) * (from_f16(norm) * p.centre_unit);
#else
    const int at = K_CENTRE + centre_byte(c);
    return (float)((int)(i8)slot[at] * 16 + slot[at + K_WIDE]) * (from_f16(norm) * p.centre_unit);
#endif
}

// Large common parts of all keys would take the bits of f16 that tell keys apart. So tiles contain keys minus a
// mean, and queries are multiplied with the mean in f32. The mean is that of some pages' centres, if there are any.
// Otherwise it is that of a few exact keys after the sinks.
constexpr u32 CENTRES_READ = 16, FEWEST_KEYS = 8;

extern "C" __global__ void __launch_bounds__(256) measure(const __grid_constant__ Block p) {
    __shared__ float largest[2][8];
    __shared__ __align__(16) float sums[8][DIM];
    __shared__ float sorted[8][COARSE_AT ? DIM : 1];
    const int head = blockIdx.x, sequence = blockIdx.y, warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const Sequence seq = p.sequences[sequence];
    const float *front = p.fronts + ((u64)sequence * p.kv_heads + head) * 2 * DIM;
    float key = 0, value = 0;
    for (u32 i = threadIdx.x; i < seq.slots; i += blockDim.x) {
        const u8 *slot = p.pool + ((u64)p.table[(u64)sequence * p.table_stride + i] * p.kv_heads + head) * SLOT;
        const Tail tail = load<Tail>(slot + TAIL);
        float of_key = largest_norm<KEYS>(tail.key_largest, tail.key_octaves), of_value = largest_norm<VALUES>(tail.value_largest, tail.value_octaves);
#if OUTLIERS
        // No coordinate exceeds the sum of its code's, its outlier's and its centre's.
        const Outliers list = load<Outliers>(slot + OUTLIERS_AT);
        of_key += from_f16(list.key_largest), of_value += from_f16(list.value_largest);
#endif
#if COARSE_AT
        const Tail coarse = load<Tail>(slot + COARSE_TAIL);
        of_key += from_f16(coarse.key_largest) + fabsf(from_f16(coarse.centre));
#endif
        key = fmaxf(key, of_key + (CENTRES ? (in_rows(KEYS) ? 1 / INVERSE_SQRT : 1) * fabsf(from_f16(tail.centre)) : 0));
        value = fmaxf(value, of_value);
    }
    // For exact rows, the largest coordinate, as if all coordinates were as large.
    float of_key = 0, of_value = 0, sum[VEC] = {};
#pragma unroll 4
    for (u32 i = warp; i < seq.exact; i += 8) {
        const u16 *row = exact_row(p, seq, sequence, head, i);
        float v[VEC], k[VEC];
        exact_key(k, row, front, sorted[warp], lane), exact_lane(v, row + DIM, lane);
#pragma unroll
        for (int j = 0; j < VEC; j++) of_key = fmaxf(of_key, fabsf(k[j])), of_value = fmaxf(of_value, fabsf(v[j])), sum[j] += i < seq.sinks ? 0 : k[j];
    }
    key = fmaxf(key, of_key * (1 / INVERSE_SQRT)), value = fmaxf(value, of_value * (1 / INVERSE_SQRT));
    for (int s = 16; s; s /= 2) key = fmaxf(key, __shfl_xor_sync(~0u, key, s)), value = fmaxf(value, __shfl_xor_sync(~0u, value, s));
    if (lane == 0) largest[0][warp] = key, largest[1][warp] = value;
    const bool centred = CENTRES && seq.slots > 0;
    if (centred) {
        for (int c = threadIdx.x; c < DIM; c += 256) {
            float of_centres = 0;
#pragma unroll
            for (u32 i = 0; i < CENTRES_READ; i++) {
                const u32 number = (u64)seq.slots * i / CENTRES_READ;
                const u8 *slot = p.pool + ((u64)p.table[(u64)sequence * p.table_stride + number] * p.kv_heads + head) * SLOT;
                of_centres += in_rows(KEYS) ? from_f16(reinterpret_cast<const u16 *>(slot + K_CENTRE)[c]) : coded_centre(p, slot, load<Tail>(slot + TAIL).centre, c);
            }
            sums[0][c] = of_centres * (1.0f / CENTRES_READ);
        }
    } else if (holds(lane)) {
#pragma unroll
        for (int i = 0; i < VEC; i++) sums[warp][VEC * lane + i] = sum[i];
    }
    __syncthreads();
    if (warp > 0) return;
    const u64 unit = (u64)sequence * p.kv_heads + head;
    float mean[VEC];
    load_lane(mean, sums[0], lane);
    if (!centred) {
        const u32 count = seq.exact - seq.sinks;
        const float share = count < FEWEST_KEYS ? 0 : 1 / (float)count;
        for (int w = 1; w < 8; w++) {
            float more[VEC];
            load_lane(more, sums[w], lane);
#pragma unroll
            for (int i = 0; i < VEC; i++) mean[i] += more[i];
        }
#pragma unroll
        for (int i = 0; i < VEC; i++) mean[i] *= share;
    }
    if (!centred || in_rows(KEYS)) turn_key(mean, p.key_rounds, p.key_signs, lane);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if (holds(lane)) p.means[unit * DIM + VEC * lane + i] = mean[i];
    if (lane > 0) return;
    for (int w = 0; w < 8; w++) key = fmaxf(key, largest[0][w]), value = fmaxf(value, largest[1][w]);
    p.scales[unit] = make_float2(fitting(key), fitting(value));
}

extern "C" __global__ void __launch_bounds__(128) ask(const __grid_constant__ Block p) {
    const int lane = threadIdx.x % LANES, head = blockIdx.y, sequence = blockIdx.z;
    const u32 group = p.query_heads / p.kv_heads, row = blockIdx.x * 4 + threadIdx.x / LANES;
    const u64 unit = (u64)sequence * p.kv_heads + head, at = unit * p.padded + row;
    float v[VEC] = {}, base = 0, top = 0;
    __shared__ float sorted[4][COARSE_AT ? DIM : 1];
    if (row < p.queries_each * group) {
        const u64 query = ((u64)sequence * p.query_heads + head * group + row % group) * p.queries_each + row / group;
        const float *front = p.fronts + unit * 2 * DIM;
        float balance[VEC], prefix[VEC];
        load_given(v, p.queries, query, p.query_type, lane), load_lane(balance, front, lane), load_lane(prefix, front + DIM, lane);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] *= balance[i];
        sort_channels(v, balance, sorted[threadIdx.x / LANES], lane);
#pragma unroll
        for (int i = 0; i < VEC; i++) base = fmaf(v[i], prefix[i], base);
        turn_key(v, p.key_rounds, p.key_signs, lane);
        float mean[VEC];
        load_lane(mean, p.means + unit * DIM, lane);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            base = fmaf(v[i], mean[i], base);
            top = fmaxf(top, fabsf(v[i]));
        }
#pragma unroll
        for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
        base = warp_sum(base);
    }
    // At most 1 for a coordinate; units are positive, so that the maximum of products is the maximum of logits. A
    // query that is almost zero counts as zero, because its inverse would be infinite.
    const float inverse = top > 1e-30f ? (p.logit_unit < 0 ? -1 : 1) / top : 0;
    u16 *to = p.query_rows + at * ROW;
    for (int i = 0; i < ROW - DIM; i += LANES)
        if (i + lane < ROW - DIM) to[DIM + i + lane] = 0;
    u32 words[(VEC + 1) / 2];
#pragma unroll
    for (int i = 0; i < VEC; i += 2) words[i >> 1] = two_f16(v[i] * inverse, i + 1 < VEC ? v[(i + 1) % VEC] * inverse : 0);
    if (holds(lane)) store_words<2 * VEC>(reinterpret_cast<u8 *>(to + VEC * lane), words);
    if (lane == 0) p.units[at] = make_float2(fmaxf(fabsf(p.logit_unit) * top / p.scales[unit].x, 1e-30f), base * p.logit_unit);
}

// The unit of a slot's integers.
template <int SHAPE> __device__ __forceinline__ float integer(u32 bits) {
    return code_bits(SHAPE) == 8 || is_sliced(SHAPE) ? (float)(i8)bits : (float)((int)bits - 8);
}

// Small blocks, eight coordinates of a block at once.
__device__ __forceinline__ void unfold_blocks(const u8 *slot, u8 *keys, float unit, const float *centroids, const float *centre) {
    for (int item = threadIdx.x; item < 4 * TILE; item += 128) {
        const int token = item >> 2, t = item & 3;
        const KeyWords k = load_key(slot, token, t);
#pragma unroll
        for (int j = 0; j < PRODUCTS; j++) {
            const float scale = unit * from_f16(load<u16>(slot + K_STEPS + 2 * (SLOT_TOKENS * j + token)));
            const int c = 32 * j + 8 * t;
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] = fmaf(centroids[key_index<KEYS>(k, own_order(c + i) % EACH)], scale, centre[c + i]);
            *reinterpret_cast<uint4 *>(keys + key_byte(token, c)) =
                make_uint4(two_f16(x[0], x[1]), two_f16(x[2], x[3]), two_f16(x[4], x[5]), two_f16(x[6], x[7]));
        }
    }
}

// Chunks, one by one.
__device__ __forceinline__ void unfold_chunks(const Block &p, const u8 *slot, u8 *keys, const float *centre, const float *norms) {
    __shared__ Chunks chunks;
    for (int i = threadIdx.x; i < TABLE_WORDS; i += 128) reinterpret_cast<u32 *>(&chunks)[i] = p.entries[i];
    __syncthreads();
    for (int item = threadIdx.x; item < 4 * TILE; item += 128) {
        const int token = item >> 2, t = item & 3;
        u32 words[FIELD_WORDS];
        load_words<4 * FIELD_WORDS>(words, slot + item * 4 * FIELD_WORDS);
        auto store = [&](int c, const float (&x)[4]) {
            *reinterpret_cast<uint2 *>(keys + key_byte(token, c)) = make_uint2(two_f16(x[0], x[1]), two_f16(x[2], x[3]));
        };
#pragma unroll
        for (int d = 0; d < EACH_FIELDS; d++) {
            int n[4];
            float x[4];
            chunk(n, words, d, chunks);
            const int c = 4 * (t * EACH_FIELDS + d);
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = fmaf((float)(n[e] >> 16), norms[token], centre[c + e]);
            store(c, x);
        }
        for (int c = DIM + 4 * t; c < WIDE; c += 16) store(c, {0, 0, 0, 0});
    }
}

// Triplets end in the middle of words, so rows meet in shared memory first.
__device__ __forceinline__ void unfold_triplets(const Block &p, const u8 *slot, u8 *keys, const float *centre, const float *norms) {
    __shared__ Triplets triplets;
    __shared__ __align__(16) u16 rows[TILE][WIDE + 8];
    const int thread = threadIdx.x;
    for (int i = thread; i < TABLE_WORDS; i += 128) reinterpret_cast<u32 *>(&triplets)[i] = p.entries[i];
    __syncthreads();
    for (int item = thread; item < 4 * TILE; item += 128) {
        const int token = item >> 2, t = item & 3;
        u32 words[FIELD_WORDS];
        load_words<4 * FIELD_WORDS>(words, slot + item * 4 * FIELD_WORDS);
#pragma unroll
        for (int d = 0; d < EACH_FIELDS; d++) {
            int x[3];
            triplet(x, words, d, has_rest(t), triplets);
            for (int e = 0; e < 3; e++) {
                const int c = 3 * (t * EACH_FIELDS + d) + e;
                if (c < DIM) rows[token][c] = (u16)two_f16(fmaf((float)(x[e] >> 8), norms[token], centre[c]), 0);
            }
        }
        for (int c = DIM + t; c < WIDE; c += 4) rows[token][c] = 0;
    }
    __syncthreads();
    for (int item = thread; item < TILE * WIDE / 8; item += 128) {
        const int token = item / (WIDE / 8), c = item % (WIDE / 8) * 8;
        *reinterpret_cast<uint4 *>(keys + key_byte(token, c)) = *reinterpret_cast<const uint4 *>(&rows[token][c]);
    }
}

// Keys with groups: eight coordinates of one group at a time.
__device__ __forceinline__ void unfold_groups(const u8 *slot, u8 *keys, const float *centre, float unit) {
    for (int item = threadIdx.x; item < TILE * WIDE / 8; item += 128) {
        const int token = item / (WIDE / 8), c = item % (WIDE / 8) * 8, field = min(c, DIM - 1) / K_GROUP * K_EACH;
        auto half = [&](int of) { return from_f16(load<u16>(slot + K_STEPS + 2 * (of * SLOT_TOKENS + token))); };
        const float scale = half(field), zero = has_zeros(KEYS) ? fmaf(half_of_codes(KEYS), scale, half(field + 1)) : 0;
        u32 words[4] = {};
#pragma unroll
        for (int i = 0; i < 8 && c < DIM; i += 4) {
            int shift;
            u32 four = load<u32>(group_word(slot, token, c + i, shift));
            if (code_bits(KEYS) == 4) four = less_eight(four >> shift & 0x0F0F0F0F);
            float x[4];
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = fmaf(fmaf((float)((int)(four << (24 - 8 * e)) >> 24), scale, zero), unit, centre[c + i + e]);
            words[i / 2] = two_f16(x[0], x[1]), words[i / 2 + 1] = two_f16(x[2], x[3]);
        }
        *reinterpret_cast<uint4 *>(keys + key_byte(token, c)) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// Keys of slices: four coordinates of one group at a time.
__device__ __forceinline__ void unfold_slices(const u8 *slot, u8 *keys, const float *centre, float unit) {
    for (int item = threadIdx.x; item < 4 * TILE; item += 128) {
        const int token = item >> 2, t = item & 3;
        const KeySlices k(slot, token, t);
        auto half = [&](int of) { return from_f16(load<u16>(slot + K_STEPS + 2 * (of * SLOT_TOKENS + token))); };
#pragma unroll
        for (int n = 0; n < 2 * PRODUCTS; n++) {
            const int c = 16 * n + 4 * t, field = min(c, DIM - 1) / K_GROUP * K_EACH;
            const float scale = half(field), zero = has_zeros(KEYS) ? fmaf(half_of_codes(KEYS), scale, half(field + 1) * sliced_factor(KEYS)) : 0;
            const u32 four = k.half(n >> 1, n & 1);
            float x[4];
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = c < DIM ? fmaf(fmaf((float)((int)(four << (24 - 8 * e)) >> 24), scale, zero), unit, centre[c + e]) : 0;
            *reinterpret_cast<uint2 *>(keys + key_byte(token, c)) = make_uint2(two_f16(x[0], x[1]), two_f16(x[2], x[3]));
        }
    }
}

#if OUTLIERS
// Outliers. Their codes decode to 0, so the rounded key is the centre minus the mean. An outlier is added before
// rounding.
__device__ __forceinline__ void unfold_outliers(const u8 *slot, u8 *keys, u8 *values, float2 scale, const float *centre) {
    const Outliers list = load<Outliers>(slot + OUTLIERS_AT);
    for (int at = threadIdx.x; at < list.keys; at += 128) {
        const Outlier o = outlier_at(list.records, at, list.keys);
        const int c = 4 * o.chunk();
        uint2 *to = reinterpret_cast<uint2 *>(keys + key_byte(o.token(), c));
        const u32 words[2] = {to->x, to->y};
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float code = from_f16(words[e >> 1] >> (16 * (e & 1)) & 0xFFFF) - from_f16(two_f16(centre[c + e], 0) & 0xFFFF);
            x[e] = fmaf(o.value(e), scale.x, code + centre[c + e]);
        }
        *to = make_uint2(two_f16(x[0], x[1]), two_f16(x[2], x[3]));
    }
    for (int at = threadIdx.x; at < list.values; at += 128) {
        const Outlier o = outlier_at(value_records(list), at, list.values);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u16 *to = reinterpret_cast<u16 *>(values + value_byte(o.token(), 4 * o.chunk() + e));
            *to = (u16)two_f16(fmaf(o.value(e), scale.y, from_f16(*to)), 0);
        }
    }
}
#endif

// Decodes a page's keys: the codes plus the centre minus the mean.
__device__ __forceinline__ void unfold_slot(const Block &p, const u8 *slot, u8 *keys, u8 *values, float2 scale, const float *mean) {
    __shared__ float centroids[2][128], centre[WIDE], norms[2][TILE];
    const Tail tail = load<Tail>(slot + TAIL);
    const int thread = threadIdx.x, lane = thread % LANES;
    centroids[0][thread] = p.key_centroids[thread], centroids[1][thread] = p.value_centroids[thread];
    if (CENTRES && in_rows(KEYS)) {
        if (thread < LANES) {
            float v[VEC], of_all[VEC];
            exact_lane(v, reinterpret_cast<const u16 *>(slot + K_CENTRE), lane), load_lane(of_all, mean, lane);
            turn_key(v, p.key_rounds, p.key_signs, lane);
            for (int i = 0; i < VEC; i++)
                if (VEC * lane + i < WIDE) centre[VEC * lane + i] = (v[i] - of_all[i]) * scale.x;
        }
    } else {
        for (int c = thread; c < WIDE; c += 128)
            centre[c] = c < DIM ? ((CENTRES ? coded_centre(p, slot, tail.centre, c) : 0) - mean[c]) * scale.x : 0;
    }
    {
        const int token = thread % TILE;
        const bool of_value = thread >= TILE;
        // Integers with groups do not use it.
        const u32 norm = reinterpret_cast<const u16 *>(slot + (of_value && !is_grouped(VALUES) ? V_STEPS : K_STEPS))[token];
        const float unit = of_value ? p.value_unit * scale.y : p.key_unit * scale.x, largest = from_f16(of_value ? tail.value_largest : tail.key_largest);
        norms[of_value][token] = unit * ((of_value ? in_rows(VALUES) : in_rows(KEYS)) ? from_f16(norm) : largest * (of_value ? 1 / 32767.0f : 1) * (float)norm);
    }
    __syncthreads();
#if COARSE_AT
    __shared__ float coarse_centroids[128];
    coarse_centroids[thread] = p.coarse_centroids[thread];
    __syncthreads();
    auto store = [&](int token, int c, const float (&x)[8], float unit, const u8 *steps) {
        const float norm = unit * (float)load<u16>(steps + 2 * token);
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = fmaf(x[i], norm, centre[c + i]);
        *reinterpret_cast<uint4 *>(keys + key_byte(token, c)) = make_uint4(two_f16(y[0], y[1]), two_f16(y[2], y[3]), two_f16(y[4], y[5]), two_f16(y[6], y[7]));
    };
    const float fine_unit = p.key_unit * scale.x * from_f16(tail.key_largest);
    const float coarse_unit = p.coarse_unit * scale.x * from_f16(load<Tail>(slot + COARSE_TAIL).key_largest);
    fine::unfold_half(slot, centroids[0], p.entries, [&](int token, int c, const float (&x)[8]) { store(token, c, x, fine_unit, slot + fine::K_STEPS); });
    coarse::unfold_half(slot + COARSE_AT, coarse_centroids, p.entries + fine::KeyEntries::COUNT,
                        [&](int token, int c, const float (&x)[8]) { store(token, DIM / 2 + c, x, coarse_unit, slot + COARSE_AT + coarse::K_STEPS); });
#endif
    for (int item = thread; item < 4 * TILE && !COARSE_AT && !is_fields(KEYS) && !is_blocks(KEYS) && !is_grouped(KEYS) && !is_sliced(KEYS); item += 128) {
        const int token = item >> 2, t = item & 3;
        const float norm = norms[0][token];
        const auto k = key_words<KEYS>(slot, token, t);
#pragma unroll
        for (int d = 0; d < EACH; d += 8) {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float of_centre = centre[t * EACH + d + i + e];
                    const u32 index = key_index<KEYS>(k, d + i + e);
                    if constexpr (is_indexed(KEYS)) x[e] = fmaf(entry_value<KEYS>(p.entries[index]), norm, of_centre);
                    else x[e] = fmaf(is_int(KEYS) ? integer<KEYS>(index) : centroids[0][index], norm, of_centre);
                }
                words[i >> 1] = two_f16(x[0], x[1]);
            }
            *reinterpret_cast<uint4 *>(keys + key_byte(token, t * EACH + d)) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
    for (int item = thread; item < TILE * (ROW - WIDE) / 8; item += 128)
        *reinterpret_cast<uint4 *>(keys + key_byte(item % TILE, WIDE + item / TILE * 8)) = make_uint4(0, 0, 0, 0);
    if constexpr (is_sliced(KEYS)) unfold_slices(slot, keys, centre, p.key_unit * scale.x);
    else if constexpr (is_grouped(KEYS)) unfold_groups(slot, keys, centre, p.key_unit * scale.x);
    if constexpr (is_triplets(KEYS)) unfold_triplets(p, slot, keys, centre, norms[0]);
    if constexpr (is_chunks(KEYS)) unfold_chunks(p, slot, keys, centre, norms[0]);
    if constexpr (is_blocks(KEYS)) unfold_blocks(slot, keys, scale.x, centroids[0], centre);
    const u8 *from = slot + K_PART;
    for (int item = thread; item < 2 * GROUPS * LANES; item += 128) { // eight tokens of four coordinates
        const int group = item / LANES % GROUPS, c = group * 32 + (lane >> 2) * 4, token = item / LANES / GROUPS * 32 + (lane & 3) * 8;
        u32 low[is_byte(VALUES) ? 8 : 4], high = 0, windows[4];
        load_words<4 * low_bits(VALUES)>(low, from + V_LOW + item * 4 * low_bits(VALUES));
        if (code_bits(VALUES) == 3) high = load<u32>(from + V_HIGH + item * 4);
        float of_group[2][8] = {}; // scales, and zeros
        if constexpr (is_grouped(VALUES)) {
            const int field = min(c, DIM - 1) / V_GROUP * V_EACH;
            load_field(of_group[0], from + V_FIELDS, field, token);
            if (has_zeros(VALUES)) load_field(of_group[1], from + V_FIELDS, field + 1, token);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                of_group[1][i] = fmaf(half_of_codes(VALUES), of_group[0][i], of_group[1][i] * sliced_factor(VALUES)) * (p.value_unit * scale.y);
                of_group[0][i] *= p.value_unit * scale.y;
            }
        }
        if (is_trellis(VALUES)) {
            const u32 *paths = reinterpret_cast<const u32 *>(from);
            const u32 own = paths[item], before = lane >= 4 || group > 0 ? paths[item - 4] : 0;
            windows[0] = pick(own << 3, before >> 1, 0x88888888u), windows[1] = pick(own << 2, before >> 2, 0xCCCCCCCCu);
            windows[2] = pick(own << 1, before >> 3, 0xEEEEEEEEu), windows[3] = own;
        }
        const IndexedValues v(from, token >> 5, group, lane);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u32 words[4];
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 index;
                if constexpr (is_indexed(VALUES)) {
                    x[i] = entry_value<VALUES>(p.entries[VALUES_FROM + v.index(e, i)]) * norms[1][token + i];
                    continue;
                }
                if constexpr (is_int(VALUES)) {
                    index = is_sliced(VALUES) ? slice<code_bits(VALUES)>(v.codes, 2 * e + (i >> 2)) >> (8 * (i & 3)) & 0xFF
                            : is_byte(VALUES) ? low[(2 * e + (i >> 2)) % (is_byte(VALUES) ? 8 : 4)] >> (8 * (i & 3)) & 0xFF : low[e] >> (8 * (i & 3) + (i & 4)) & 15;
                    x[i] = is_grouped(VALUES) ? fmaf(integer<VALUES>(index), of_group[0][i], of_group[1][i]) : integer<VALUES>(index) * norms[1][token + i];
                    continue;
                }
                if (low_bits(VALUES) == 4) index = low[e] >> (4 * i) & 15;
                else if (low_bits(VALUES) == 2) index = low[e >> 1] >> (4 * i + 2 * (e & 1)) & 3;
                else index = low[0] >> (4 * i + e) & 1;
                if (code_bits(VALUES) == 3) index |= (high >> (4 * i + e) & 1) << 2;
                if (is_trellis(VALUES)) index = index * 16 + (windows[e] >> (4 * i) & 15);
                x[i] = centroids[1][index] * norms[1][token + i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++) words[i] = two_f16(x[2 * i], x[2 * i + 1]);
            *reinterpret_cast<uint4 *>(values + value_byte(token, c + e)) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
#if OUTLIERS
    __syncthreads();
    unfold_outliers(slot, keys, values, scale, centre);
#endif
}

__device__ __forceinline__ void unfold_exact(const Block &p, const Sequence &seq, int sequence, int head, u32 first, u32 count, u8 *keys, u8 *values, float2 scale,
                                             const float *mean) {
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const float *front = p.fronts + ((u64)sequence * p.kv_heads + head) * 2 * DIM;
    __shared__ float sorted[4][COARSE_AT ? DIM : 1];
    float of_all[VEC];
    load_lane(of_all, mean, lane);
    for (int token = warp; token < TILE; token += 4) {
        float k[VEC] = {}, v[VEC] = {};
        if (token < count) {
            const u16 *row = exact_row(p, seq, sequence, head, first + token);
            exact_key(k, row, front, sorted[warp], lane), exact_lane(v, row + DIM, lane);
            turn_key(k, p.key_rounds, p.key_signs, lane), turn(v, p.value_rounds, p.value_signs, lane);
        }
        for (int c = DIM + lane; c < ROW; c += LANES) *reinterpret_cast<u16 *>(keys + key_byte(token, c)) = 0;
        if (!holds(lane)) continue;
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const int c = VEC * lane + i;
            const u32 two = two_f16((k[i] - of_all[i]) * scale.x, v[i] * scale.y);
            *reinterpret_cast<u16 *>(keys + key_byte(token, c)) = (u16)two;
            *reinterpret_cast<u16 *>(values + value_byte(token, c)) = (u16)(two >> 16);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) unfold(const __grid_constant__ Block p) {
    const int head = blockIdx.y, sequence = blockIdx.z;
    const Sequence seq = p.sequences[sequence];
    const u32 number = p.first_tile + blockIdx.x;
    if (number >= tiles_of(seq)) return;
    const u64 unit = (u64)sequence * p.kv_heads + head;
    u8 *keys = p.tokens + (unit * p.at_once + blockIdx.x) * 2 * TILE_BYTES, *values = keys + TILE_BYTES;
    const float2 scale = p.scales[unit];
    const float *mean = p.means + unit * DIM;
    Tile tile;
    if (number < seq.slots) {
        const u8 *slot = p.pool + ((u64)p.table[(u64)sequence * p.table_stride + number] * p.kv_heads + head) * SLOT;
        unfold_slot(p, slot, keys, values, scale, mean);
        tile.position = load<Tail>(slot + TAIL).position, tile.count = TILE, tile.sinks = 0;
    } else {
        const u32 of_exact = number - seq.slots, before = sink_tiles(seq);
        tile.sinks = of_exact < before;
        const u32 first = tile.sinks ? of_exact * TILE : seq.sinks + (of_exact - before) * TILE;
        tile.count = min((u32)TILE, (tile.sinks ? seq.sinks : seq.exact) - first);
        tile.position = tile.sinks ? first : seq.window_start + first - seq.sinks;
        unfold_exact(p, seq, sequence, head, first, tile.count, keys, values, scale, mean);
    }
    if (head == 0 && threadIdx.x == 0) p.tiles[(u64)sequence * p.at_once + blockIdx.x] = tile;
}
