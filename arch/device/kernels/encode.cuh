// Encodes rows as pages: balance, prefix, centre, rotation, codes, norms.
//
// All float operations are the CPU's, in its order, so that the bytes are bit-exact. The specifications are
// vectors/scalar.rs, codes/scalar.rs, affine/scalar.rs, trellis/scalar.rs, triplets/scalar.rs, blocks/scalar.rs,
// quaternions/scalar.rs, and the cache's norms.rs. So this source is compiled without fused multiply-add, and with
// roots and quotients rounded as in IEEE 754.
//
// A block of threads takes a page and head; keys and values have separate blocks. Eight lanes share a row. Of the
// sixteen lanes of the CPU's sums, lane l here has lanes 2 l and 2 l + 1:
//   coordinate   0  1 │ 2  3 │ … │ 14 15 │ 16 17 │ …
//   lane           0  │   1  │ … │   7   │   0   │ …

// Thresholds by cells: see `found_in`.
struct Cells {
    float slope, offset;
    u32 cells[64];
};

struct Encode {
    const u16 *rows;                // f16 [tokens][kv heads][keys, values][DIM]
    u8 *pool;
    const u32 *slots;               // page_tokens / 64 of each page
    const u16 *steps;               // [4][64]: what codes of norms decode to
    const i16 *book;                // [32]: what codes of a centre decode to
    const float *book_thresholds;   // [31]: its thresholds
    const float *front;             // [kv heads][balance, prefix][WHOLE]
    u32 *refused;                   // the first row that its codec cannot hold: see `refuse`
    u32 *lost;                      // null, or two words for each slot: all bits of one with such a row
    const u32 *search;              // triplets: see `Search`; chunks: the set's members; codes with look-ups: thresholds, then
                                    // centroids, as many as their bits count; `Path`s: centroids by code and window
    u64 position;                   // of the first token; ~0: 64 times the number of each slot
    u32 kv_heads, page_tokens, rounds, gain; // gain: of small blocks the last code
    float unit;                     // an integer of a centroid, of a rotated unit vector
    float kappa;                    // trellis: integers to a standard deviation
    float book_unit;
    u32 signs[8];
    float centroids[128];           // by code; of a trellis by code · 16 + window; of small blocks eight, then thresholds
    Cells cells;                    // plain codes
};

#ifndef WHOLE // an encoder of all channels
#define WHOLE DIM
#define HALF_AT 0
#endif
constexpr int ROW_LANES = 8, MINE = DIM / ROW_LANES, MOST_TOKENS = 256, STATES = 8, WINDOWS = 16;
constexpr float SMALLEST_NORM = 9.31322574615478515625e-10f; // 2^-30
enum { MSE, UNBIASED, NORM };

// Returns the position of a slot's first token.
__device__ __forceinline__ u64 position_of(const Encode &p, const u32 *slots, int part) {
    return p.position == ~0ull ? (u64)SLOT_TOKENS * slots[part] : p.position + (u64)blockIdx.x * p.page_tokens + part * SLOT_TOKENS;
}

constexpr int encode_threads(int shape) { return is_trellis(shape) ? 64 : 256; }
constexpr int encode_blocks(int shape) { return DIM > 128 ? 2 : is_trellis(shape) ? 5 : has_path(shape) ? 2 : is_indexed(shape) ? 3 : 4; } // blocks that a multiprocessor should hold

// Returns the coordinate of a lane's value i: consecutive pairs, sixteen apart.
__device__ __forceinline__ int mine(int lane, int i) { return 16 * (i >> 1) + 2 * (lane & 7) + (i & 1); }

// Sums in all eight lanes as the CPU does: sixteen lanes, then halves.
__device__ __forceinline__ float dot(const float (&a)[MINE], const float (&b)[MINE]) {
    float even = 0, odd = 0;
#pragma unroll
    for (int i = 0; i < MINE; i += 2) even += a[i] * b[i], odd += a[i + 1] * b[i + 1];
#pragma unroll
    for (int s = 4; s; s /= 2) even += __shfl_xor_sync(~0u, even, s), odd += __shfl_xor_sync(~0u, odd, s);
    return even + odd;
}

// Multiplies with the base of a rotation. Values move through `row`, memory for DIM values that these eight lanes
// may overwrite, to MINE consecutive coordinates in a lane. The products of the base come in the order of its
// columns, then steps, then the way back.
template <bool TRANSPOSE> __device__ __forceinline__ void transform_by_rows(float (&v)[MINE], int lane, float *row) {
    const int l = lane & 7;
    constexpr int RUNS = MINE > BASE ? MINE / BASE : 1, LANES_EACH = BASE > MINE ? BASE / MINE : 1, OF_RUN = MINE / RUNS;
    static_assert(LANES_EACH <= 2, "lanes of a run");
#pragma unroll
    for (int i = 0; i < MINE; i++) row[mine(lane, i)] = v[i];
    __syncwarp();
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
        const float *from = row + (RUNS * l / LANES_EACH + run) * BASE;
        // If two lanes share a run, the second's signs equal the first's or are all opposite.
        float x[BASE], second[BASE];
#pragma unroll
        for (int c = 0; c < BASE; c++) x[c] = from[c], second[c] = l % LANES_EACH ? -x[c] : x[c];
#pragma unroll
        for (int k = 0; k < OF_RUN; k++) {
            const u32 signs = (TRANSPOSE ? SIGNS.columns : SIGNS.rows)[k], others = (TRANSPOSE ? SIGNS.columns : SIGNS.rows)[BASE - OF_RUN + k];
            float sum = 0;
#pragma unroll
            for (int c = 0; c < BASE; c++) {
                const float term = (signs ^ others) >> c & 1 ? second[c] : x[c], y = signs >> c & 1 ? -term : term;
                sum = c ? sum + y : y;
            }
            v[run * OF_RUN + k] = sum;
        }
    }
#pragma unroll
    for (int s = 1; s < RUNS; s *= 2)
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (!(i / BASE & s)) {
                const float a = v[i], b = v[(i + BASE * s) % MINE];
                v[i] = a + b, v[(i + BASE * s) % MINE] = a - b;
            }
#pragma unroll
    for (int s = LANES_EACH; s < ROW_LANES; s *= 2) {
        const float sign = lane & s ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const float other = __shfl_xor_sync(~0u, v[i], s);
            v[i] = __fmaf_rn(v[i], sign, other);
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < MINE; i++) row[MINE * l + i] = v[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < MINE; i++) v[i] = row[mine(lane, i)];
    __syncwarp();
}

// Steps with distances of 1 to 8 · COUNT / 2 on each COUNT of a lane's values.
template <int COUNT> __device__ __forceinline__ void transform_steps(float (&v)[MINE], int lane) {
#pragma unroll
    for (int i = 0; i < MINE; i += 2) {
        const float a = v[i], b = v[i + 1];
        v[i] = a + b, v[i + 1] = a - b;
    }
#pragma unroll
    for (int s = 1; s < ROW_LANES; s *= 2) {
        const float sign = lane & s ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const float other = __shfl_xor_sync(~0u, v[i], s);
            v[i] = __fmaf_rn(v[i], sign, other); // a sum or a difference: the product is exact
        }
    }
#pragma unroll
    for (int s = 2; s < COUNT; s *= 2)
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (!(i & s)) {
                const float a = v[i], b = v[i | s];
                v[i] = a + b, v[i | s] = a - b;
            }
}

template <bool TRANSPOSE> __device__ __forceinline__ void transform(float (&v)[MINE], int lane, float *row) {
    if constexpr (BASE > 1) transform_by_rows<TRANSPOSE>(v, lane, row);
    else transform_steps<MINE>(v, lane);
}

// A lane's signs: bit i of value i.
__device__ __forceinline__ u32 signs_of(const Encode &p, int lane) {
    u32 signs = 0;
#pragma unroll
    for (int i = 0; i < MINE; i++) signs |= (p.signs[i >> 2] >> (mine(lane, i) & 31) & 1) << i;
    return signs;
}
__device__ __forceinline__ void flip(float (&v)[MINE], u32 signs) {
#pragma unroll
    for (int i = 0; i < MINE; i++) v[i] = __uint_as_float(__float_as_uint(v[i]) ^ (signs << (31 - i) & 0x80000000u));
}

// Rotates rows. The caller has already flipped the signs of round 1, when it loaded the rows. This is correct, because
// balance, prefix and centre commute with a flip. `scaled`: multiplies the last round by 1/√D too.
__device__ __forceinline__ void rotate(const Encode &p, float (&v)[MINE], u32 signs, int lane, bool scaled, float *row) {
    for (u32 round = 1; round <= p.rounds; round++) {
        if (round > 1) flip(v, signs);
        transform<false>(v, lane, row);
        if (scaled || round < p.rounds)
#pragma unroll
            for (int i = 0; i < MINE; i++) v[i] *= INVERSE_SQRT;
    }
}
__device__ __forceinline__ void rotate_back(const Encode &p, float (&v)[MINE], u32 signs, int lane, float *row) {
    for (u32 round = 0; round < p.rounds; round++) {
        transform<true>(v, lane, row);
#pragma unroll
        for (int i = 0; i < MINE; i++) v[i] *= INVERSE_SQRT;
        if (round + 1 < p.rounds) flip(v, signs);
    }
}

// Returns x / y rounded as in IEEE 754, from 1 / y rounded likewise (Markstein). x and y come from f16, so the
// quotient and the remainder are normal floats. For x = -0 the result is 0, which gives the same code.
__device__ __forceinline__ float quotient(float x, float y, float inverse) {
    const float q = x * inverse;
    return __fmaf_rn(__fmaf_rn(-y, q, x), inverse, q);
}

__device__ __forceinline__ bool is_finite_f16(u32 bits) { return (bits & 0x7C00) != 0x7C00; }

// [page][head][keys, values][257]: 0 for the centre, which is computed before the rows, or the row plus 1.
__device__ __forceinline__ void refuse(const Encode &p, bool of_keys, u32 row) {
    atomicMin(p.refused, ((blockIdx.x * p.kv_heads + blockIdx.y) * 2 + (of_keys ? 0 : 1)) * (MOST_TOKENS + 1) + row);
    if (p.lost) atomicOr(p.lost + 2 * p.slots[blockIdx.x], ~0u), atomicOr(p.lost + 2 * p.slots[blockIdx.x] + 1, ~0u);
}

__device__ __forceinline__ float stored_norm(const Encode &p, float norm, float correlation, float energy) {
    if (p.gain == MSE && energy > 0) return norm * (correlation / energy);
    if (p.gain == UNBIASED && correlation >= 0.125f) return norm / correlation;
    return norm;
}

// Returns four times the number of ascending thresholds that do not exceed y; COUNT is a power of two minus one.
// The first two steps use registers.
template <int COUNT> __device__ __forceinline__ int cell(float y, const float *thresholds) {
    constexpr int HALF = (COUNT + 1) / 2, QUARTER = HALF / 2;
    const bool upper = y >= thresholds[HALF - 1];
    int four = upper ? 4 * HALF : 0;
    if (y >= (upper ? thresholds[HALF + QUARTER - 1] : thresholds[QUARTER - 1])) four += 4 * QUARTER;
#pragma unroll
    for (int step = QUARTER / 2; step; step /= 2)
        if (y >= *reinterpret_cast<const float *>(reinterpret_cast<const u8 *>(thresholds + step - 1) + four)) four += 4 * step;
    return four;
}

// Finds a code with one look-up. A line from the first threshold to the last has 32 cells, with at most one
// threshold each, and rounding keeps the order. A value in a threshold's cell is compared with it; in other cells
// its side is known. A cell has its threshold, then code and centroid + 128 below it, and 16 bits higher those from
// it on (tables.rs).
__device__ __forceinline__ u32 found_in(const uint2 *cells, float y, float slope, float offset) {
    const int at = __float_as_uint(__fmaf_rn(__saturatef(__fmaf_rn(y, slope, offset)), 255, 8388608)) & 0xF8;
    const uint2 it = *reinterpret_cast<const uint2 *>(reinterpret_cast<const u8 *>(cells) + at);
    return y >= __uint_as_float(it.x) ? it.y >> 16 : it.y;
}

// ---- norms of a page --------------------------------------------------------------------------------------------------

constexpr int SCALES = 4, LEVELS = 64, TOP = 32767;

struct NormMemory {
    float terms[SCALES][MOST_TOKENS];
    float loss[SCALES];
    u32 below[SCALES], largest;
    u8 codes[SCALES][MOST_TOKENS];
};

__device__ __forceinline__ int norm_step(const u16 *steps, float scaled) {
    int code = 0;
#pragma unroll
    for (int step = LEVELS / 2; step; step /= 2) {
        const int next = code + step;
        const float threshold = 0.5f * (float)(steps[next - 1] + steps[next]);
        code = scaled >= threshold ? next : code;
    }
    return code;
}

// Encodes norms, which f16 holds. Called by all threads.
template <bool OF_KEYS> __device__ __forceinline__ void encode_norms(const Encode &p, NormMemory &m, const u16 *all_steps, const u32 *slots, const float *norms) {
    if (threadIdx.x < SCALES) m.below[threadIdx.x] = 0;
    if (threadIdx.x == 0) m.largest = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < p.page_tokens; i += blockDim.x) // bits of floats that are not negative ascend with them
        if (norms[i] > 0) atomicMax(&m.largest, __float_as_uint(norms[i]));
    __syncthreads();
    const float largest = __uint_as_float(m.largest), unit = largest / TOP, factor = TOP / largest;
    for (u32 i = threadIdx.x; i < SCALES * p.page_tokens; i += blockDim.x) {
        const int scale = i % SCALES, token = i / SCALES;
        const u16 *steps = all_steps + scale * LEVELS;
        const float norm = norms[token];
        float term = 0;
        int code = 0;
        if (norm > 0) {
            code = norm_step(steps, norm * factor);
            const float error = norm - (float)steps[code] * unit;
            term = error * error / norm;
            if (norm < (float)steps[1] * unit) atomicOr(&m.below[scale], 1);
        }
        m.terms[scale][token] = term, m.codes[scale][token] = code;
    }
    __syncthreads();
    if (threadIdx.x < SCALES) {
        float loss = 0;
        for (u32 i = 0; i < p.page_tokens; i += 16) { // all sixteen are requested before the first is added
            float terms[16];
#pragma unroll
            for (int k = 0; k < 16; k++) terms[k] = m.terms[threadIdx.x][i + k];
#pragma unroll
            for (int k = 0; k < 16; k++) loss += terms[k];
        }
        m.loss[threadIdx.x] = loss;
    }
    __syncthreads();
    int chosen = 0;
    for (int scale = 1; scale < SCALES && m.below[scale - 1]; scale++) // a wider scale has this one's steps, further apart
        if (m.loss[scale] < m.loss[chosen]) chosen = scale;
    if (m.largest == 0) chosen = 0;
    const int parts = p.page_tokens / SLOT_TOKENS;
    auto slot = [&](int part) { return p.pool + ((u64)slots[part] * p.kv_heads + blockIdx.y) * SLOT; };
    for (u32 i = threadIdx.x; i < p.page_tokens; i += blockDim.x) {
        const u16 step = all_steps[chosen * LEVELS + m.codes[chosen][i]];
        reinterpret_cast<u16 *>(slot(i / SLOT_TOKENS) + (OF_KEYS ? K_STEPS : V_STEPS))[i % SLOT_TOKENS] = step;
    }
    for (int part = threadIdx.x; part < parts; part += blockDim.x) {
        Tail &tail = *reinterpret_cast<Tail *>(slot(part) + TAIL);
        if (OF_KEYS) {
            tail.key_largest = to_f16(largest), tail.key_octaves = chosen;
            tail.position = position_of(p, slots, part);
        } else {
            tail.value_largest = to_f16(largest), tail.value_octaves = chosen;
        }
    }
}

// Stores scales of integers and norms of blocks, which f16 holds, one for each row. Called by all threads, for all
// parts of the page.
template <bool OF_KEYS> __device__ __forceinline__ void encode_scales(const Encode &p, const u32 *slots, const float *scales) {
    constexpr bool THERE = OF_KEYS && is_blocks(KEYS); // the slot already has all but the largest
    for (u32 part = threadIdx.x / LANES; part < p.page_tokens / SLOT_TOKENS; part += blockDim.x / LANES) { // a warp for each slot
        u8 *slot = p.pool + ((u64)slots[part] * p.kv_heads + blockIdx.y) * SLOT;
        float largest = 0;
        for (int token = threadIdx.x % LANES; token < SLOT_TOKENS; token += LANES) {
            const float scale = scales[part * SLOT_TOKENS + token];
            if (!THERE) reinterpret_cast<u16 *>(slot + (OF_KEYS ? K_STEPS : V_STEPS))[token] = (u16)to_f16(scale);
            largest = fmaxf(largest, scale);
        }
#pragma unroll
        for (int s = LANES / 2; s; s /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
        if (threadIdx.x % LANES) continue;
        Tail &tail = *reinterpret_cast<Tail *>(slot + TAIL);
        if (OF_KEYS) {
            tail.key_largest = to_f16(largest), tail.key_octaves = 0;
            tail.position = position_of(p, slots, part);
        } else {
            tail.value_largest = to_f16(largest), tail.value_octaves = 0;
        }
    }
}

// ---- small blocks -----------------------------------------------------------------------------------------------------

// Encodes a row of small blocks that eight lanes hold. Each 32 values are rotated separately. Codes are bytes in
// the order of threads; the third bit belongs to the plane. Scales go to the slot. Returns the largest scale.
__device__ __forceinline__ float quantize_blocks(const Encode &p, float (&v)[MINE], u8 *row, u8 *slot, int token, int lane) {
    transform_steps<4>(v, lane);
    float most = 0;
    __syncwarp(); // codes overwrite values that other lanes have read
#pragma unroll
    for (int block = 0; block < DIM / BLOCK_VALUES; block++) {
        float largest = 0;
#pragma unroll
        for (int i = 4 * block; i < 4 * block + 4; i++) v[i] *= BLOCK_SCALE, largest = fmaxf(largest, fabsf(v[i]));
#pragma unroll
        for (int s = 4; s; s /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
        const float scale = largest / p.centroids[p.gain], inverse = scale > 0 ? 1.0f / scale : 0;
        const u32 stored = to_f16(scale);
#pragma unroll
        for (int i = 4 * block; i < 4 * block + 4; i++) {
            const float y = v[i] * inverse;
            u32 code = 0; // counted so that NaN gets the last code
#pragma unroll
            for (int k = 0; k < 7; k++) code += !(y < p.centroids[8 + k]);
            code = min(code, p.gain);
            if (p.gain == 3) code |= (v[i] - scale * p.centroids[code] >= 0) << 2;
            row[own_order(mine(lane, i))] = (u8)code;
        }
        if ((lane & 7) == 0) reinterpret_cast<u16 *>(slot + K_STEPS)[SLOT_TOKENS * block + token] = (u16)stored;
        most = fmaxf(most, is_finite_f16(stored) ? from_f16(stored) : __int_as_float(0x7f800000));
    }
    return most;
}

// Writes scales, and zeros, of a row's groups to the slot, and codes to `row`; returns whether f16 holds them.
// `bounds`: the slot's largest scale, f16, and the bits of a bound that no coordinate reaches.
template <int SHAPE, bool OF_KEYS>
__device__ __forceinline__ bool encode_groups(const float (&v)[MINE], u8 *slot, int token, u8 *row, u32 *bounds, int lane) {
    constexpr int EACH_GROUP = group_of(SHAPE) / ROW_LANES, LAST = (1 << code_bits(SHAPE)) - 1, LARGEST = LAST / 2;
    bool holds = true;
    float largest = 0, bound = 0;
    u32 stored[fields_of(SHAPE)], codes[MINE / 2];
#pragma unroll
    for (int first = 0; first < MINE; first += EACH_GROUP) {
        float zero = 0, unit;
        u32 of_zero = 0;
        if (has_zeros(SHAPE)) {
            // Of two zeros, the one of the lower of sixteen lanes counts, because f16 keeps its sign.
            float least[2] = {v[first], v[first + 1]}, most = fmaxf(v[first], v[first + 1]);
#pragma unroll
            for (int i = first + 2; i < first + EACH_GROUP; i++) {
                if (v[i] < least[i & 1]) least[i & 1] = v[i];
                most = fmaxf(most, v[i]);
            }
            float low = least[1] < least[0] ? least[1] : least[0];
#pragma unroll
            for (int s = 1; s < ROW_LANES; s *= 2) {
                const float other = __shfl_xor_sync(~0u, low, s), lower = lane & s ? other : low, higher = lane & s ? low : other;
                low = higher < lower ? higher : lower;
                most = fmaxf(most, __shfl_xor_sync(~0u, most, s));
            }
            of_zero = to_f16(low), zero = from_f16(of_zero), unit = (most - low) / LAST;
            holds = holds && is_finite_f16(of_zero);
        } else {
            float most = 0;
#pragma unroll
            for (int i = first; i < first + EACH_GROUP; i++) most = fmaxf(most, fabsf(v[i]));
#pragma unroll
            for (int s = 1; s < ROW_LANES; s *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, s));
            unit = most / LARGEST;
        }
        const u32 of_scale = to_f16(unit);
        holds = holds && is_finite_f16(of_scale);
        const int field = first / EACH_GROUP * (has_zeros(SHAPE) ? 2 : 1);
        stored[field] = of_scale;
        if (has_zeros(SHAPE)) stored[field + (has_zeros(SHAPE) ? 1 : 0)] = of_zero;
        const float scale = from_f16(of_scale), inverse = 1.0f / scale;
        largest = fmaxf(largest, scale), bound = fmaxf(bound, bound_of<SHAPE>(scale, zero));
#pragma unroll
        for (int i = first; i < first + EACH_GROUP; i += 2) {
            u32 two[2];
#pragma unroll
            for (int k = 0; k < 2; k++) { // where the quotient is wrong, it is so small that the code is 0 either way
                const float x = has_zeros(SHAPE) ? v[i + k] - zero : v[i + k];
                const float y = fminf(fmaxf(quotient(x, scale, inverse), has_zeros(SHAPE) ? 0 : -LARGEST), has_zeros(SHAPE) ? LAST : LARGEST);
                two[k] = __float_as_uint(y + 12582912.0f) + (has_zeros(SHAPE) ? 0 : LARGEST + 1) & 0xFF;
            }
            codes[i / 2] = of_scale ? two[0] | two[1] << 8 : 0;
        }
    }
    __syncwarp(); // codes overwrite values that other lanes have read
#pragma unroll
    for (int i = 0; i < MINE; i += 2) *reinterpret_cast<u16 *>(row + mine(lane, i)) = (u16)codes[i / 2];
    if ((lane & 7) == 0) {
        for (int f = 0; f < fields_of(SHAPE); f++) *(OF_KEYS ? key_field(slot, f, token) : value_field(slot, f, token)) = (u16)stored[f];
        atomicMax(&bounds[0], to_f16(largest)), atomicMax(&bounds[1], __float_as_uint(bound));
    }
    return holds;
}

// Writes the bounds of fields to the tails of slots.
template <bool OF_KEYS> __device__ __forceinline__ void encode_bounds(const Encode &p, const u32 *slots, const u32 (*bounds)[2]) {
    const int part = threadIdx.x;
    if (part >= p.page_tokens / SLOT_TOKENS) return;
    Tail &tail = *reinterpret_cast<Tail *>(p.pool + ((u64)slots[part] * p.kv_heads + blockIdx.y) * SLOT + TAIL);
    if (OF_KEYS) {
        tail.key_largest = bounds[part][0], tail.key_octaves = octaves_of(bounds[part][1]);
        tail.position = position_of(p, slots, part);
    } else {
        tail.value_largest = bounds[part][0], tail.value_octaves = octaves_of(bounds[part][1]);
    }
}

// ---- a page's centre --------------------------------------------------------------------------------------------------

struct Centre {
    float balance[DIM], inverse[DIM], prefix[DIM];
    float values[DIM];  // the mean, then what was stored of it; with the first round's signs, like the prefix
    float row[DIM];
    float thresholds[31];
    short book[32], integers[DIM];
    u32 norm;           // f16; for integers, the largest coordinate
};

// Returns a channel's mean in f16, as stored with integers. The value without the first round's signs decides: a
// mean of 0 is +0.
__device__ __forceinline__ void store_mean(const Encode &p, Centre &centre, int c, float mean) {
    const u32 half = to_f16(mean), sign = mean == 0 ? 0 : (p.signs[c >> 5] >> (c & 31)) << 15 & 0x8000;
    if (!is_finite_f16(half)) refuse(p, true, 0);
    centre.values[c] = from_f16(half), centre.integers[c] = (short)(half ^ sign);
    atomicMax(&centre.norm, half & 0x7FFF);
}

// Encodes a page's centre with one warp, whose four groups of eight lanes do the same.
__device__ __forceinline__ void encode_centre(const Encode &p, Centre &centre, u32 signs, int lane) {
    float v[MINE], decoded[MINE];
    int codes[MINE];
#pragma unroll
    for (int i = 0; i < MINE; i++) v[i] = centre.values[mine(lane, i)], codes[i] = 0;
    const float norm = sqrtf(dot(v, v));
    u32 stored = 0;
    if (norm >= SMALLEST_NORM) {
        rotate(p, v, signs, lane, true, centre.row);
        const float inverse = 1.0f / norm;
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            codes[i] = cell<31>(v[i] * inverse, centre.thresholds) / 4;
            decoded[i] = (float)centre.book[codes[i]] * p.book_unit;
        }
        stored = to_f16(dot(v, decoded) / fmaxf(dot(decoded, decoded), 1.17549435e-38f));
        if (!is_finite_f16(stored) && lane == 0) refuse(p, true, 0);
    }
    const float scale = from_f16(stored) * p.book_unit;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const short integer = centre.book[codes[i]];
        if (lane < ROW_LANES) centre.integers[mine(lane, i)] = integer;
        v[i] = (float)integer * scale;
    }
    rotate_back(p, v, signs, lane, centre.row);
    if (lane < ROW_LANES)
#pragma unroll
        for (int i = 0; i < MINE; i++) centre.values[mine(lane, i)] = v[i];
    if (lane == 0) centre.norm = stored;
}

// ---- trellis ----------------------------------------------------------------------------------------------------------

// Puts the bits of a state and a new bit into a window. The newest bit is the lowest.
__device__ constexpr int window_of(int bits) { return (bits & 1) << 3 | (bits & 2) << 1 | (bits & 4) >> 1 | (bits & 8) >> 3; }

// Returns the squared distance to the nearest centroid of a window. It equals that of the code chosen by
// thresholds, because rounding is monotone.
template <int SHAPE> __device__ __forceinline__ float distance(const Encode &p, float y, int window) {
    float least = fabsf(y - p.centroids[window]);
#pragma unroll
    for (int code = 1; code < 1 << code_bits(SHAPE); code++) least = fminf(least, fabsf(y - p.centroids[code * WINDOWS + window]));
    return least * least;
}

// Encodes a thread's row: finds the best path, writes its codes in place of the row's first bytes, and returns the
// norm.
template <int SHAPE>
__device__ __forceinline__ float search(const Encode &p, float *z, float scale, float norm, u32 (*decisions)[SLOT_TOKENS],
                                        const float *centroids) {
    float costs[STATES];
#pragma unroll
    for (int n = 0; n < STATES; n++) costs[n] = n ? __int_as_float(0x7f800000) : 0;
#pragma unroll 1
    for (int four = 0; four < DIM / 4; four++) {
        u32 decided = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const float y = z[4 * four + t] * scale;
            float next[STATES];
#pragma unroll
            for (int n = 0; n < STATES; n++) {
                const float low = costs[n >> 1] + distance<SHAPE>(p, y, window_of(n));
                const float high = costs[n >> 1 | STATES / 2] + distance<SHAPE>(p, y, window_of(n | STATES));
                if (high < low) decided |= 1u << (8 * t + n);
                next[n] = fminf(high, low);
            }
#pragma unroll
            for (int n = 0; n < STATES; n++) costs[n] = next[n];
        }
        decisions[four][threadIdx.x] = decided;
    }
    u32 state = 0;
    float least = costs[0];
#pragma unroll
    for (int n = 1; n < STATES; n++)
        if (costs[n] < least) least = costs[n], state = n;
    u32 path[WIDE / 32];
#pragma unroll
    for (int word = WIDE / 32 - 1; word >= 0; word--) {
        path[word] = 0;
        for (int four = min(8, DIM / 4 - 8 * word) - 1; four >= 0; four--) {
            const u32 decided = decisions[8 * word + four][threadIdx.x];
#pragma unroll
            for (int t = 3; t >= 0; t--) {
                path[word] |= (state & 1) << (4 * four + t);
                state = state >> 1 | (decided >> (8 * t + state) & 1) << 2;
            }
        }
    }
    float lanes[16] = {};
    int energy = 0;
    u32 window = 0;
    u32 *codes = reinterpret_cast<u32 *>(z);
    constexpr int COUNT = 1 << code_bits(SHAPE);
#pragma unroll
    for (int word = 0; word < WIDE / 32; word++) {
        u32 bits = path[word];
#pragma unroll 1
        for (int half = 0; half < min(2, DIM / 16 - 2 * word); half++) {
            u32 packed[4] = {0, 0, 0, 0};
#pragma unroll
            for (int t = 0; t < 16; t++, bits >>= 1) {
                window = window >> 1 | (bits & 1) << 3;
                const float y = z[32 * word + 16 * half + t] * scale;
                const float *mine = centroids + window;
                u32 code = 0;
#pragma unroll
                for (int step = COUNT / 2; step; step /= 2) {
                    const u32 next = code + step;
                    code = y + y >= mine[(next - 1) * WINDOWS] + mine[next * WINDOWS] ? next : code;
                }
                const float centroid = mine[code * WINDOWS];
                lanes[t] += y * centroid;
                energy += (int)centroid * (int)centroid;
                packed[t >> 2] |= (code | (bits & 1) << 7) << (8 * (t & 3));
            }
#pragma unroll
            for (int i = 0; i < 4; i++) codes[8 * word + 4 * half + i] = packed[i];
        }
    }
#pragma unroll
    for (int width = 8; width; width /= 2)
#pragma unroll
        for (int lane = 0; lane < width; lane++) lanes[lane] += lanes[lane + width];
    const float square = p.unit * p.unit;
    return stored_norm(p, norm, lanes[0] * square, (float)energy * square);
}

// ---- a page of one head -----------------------------------------------------------------------------------------------

template <int SHAPE, bool OF_KEYS> __device__ __forceinline__ void encode(const Encode &p) {
    constexpr bool TRELLIS = has_path(SHAPE), PATHS = TRELLIS && is_indexed(SHAPE), INTEGERS = is_int(SHAPE), IN_THREES = is_triplets(SHAPE), HAS_CENTRE = OF_KEYS && CENTRES;
    constexpr bool BLOCKS = is_blocks(SHAPE), CHUNKS = is_chunks(SHAPE), HALF_CENTRE = in_rows(SHAPE);
    // Words of a row in shared memory: its values, later its codes, one byte each. One word more makes a column use
    // all banks; eight more do that for threes of four rows.
    constexpr int THREADS = encode_threads(SHAPE), ROWS = THREADS / ROW_LANES; // rows at once: a number that all threads continue with
    constexpr int STRIDE = IN_THREES || CHUNKS ? DIM + 8 : TRELLIS || HAS_CENTRE || BASE > 1 ? DIM + 1 : DIM / 4 + 1;
    extern __shared__ u32 memory[]; // [SLOT_TOKENS][STRIDE]
    __shared__ union {
        u32 decisions[TRELLIS && !PATHS ? DIM / 4 : 1][SLOT_TOKENS];
        PathMemory<SHAPE, PATHS> paths;
        Fields fields[IN_THREES ? SLOT_TOKENS : 1];
        NormMemory norms;
    } work;
    __shared__ float norms[MOST_TOKENS], scales[TRELLIS ? SLOT_TOKENS : 1];
    __shared__ float2 products[TRELLIS ? 1 : SLOT_TOKENS]; // products of rows with their decoded codes, and of these with themselves
    __shared__ float centroids[TRELLIS ? 128 : 1];
    __shared__ Centre centre;
    __shared__ uint2 cells[TRELLIS ? 1 : 32];
    constexpr int SEARCHED = IN_THREES ? sizeof(Search) / 4 : is_indexed(SHAPE) && !PATHS ? 2 << index_bits(SHAPE) : 0;
    __shared__ u32 searched[SEARCHED > 0 ? SEARCHED : 1];
    __shared__ float4 members[CHUNKS ? SET_MEMBERS : 1];
    const Search &tables = *reinterpret_cast<const Search *>(searched);
    __shared__ u16 steps[SCALES * LEVELS];
    __shared__ u32 slots[MOST_TOKENS / SLOT_TOKENS];
    __shared__ u32 bounds[is_grouped(SHAPE) ? MOST_TOKENS / SLOT_TOKENS : 1][2];
    const int lane = threadIdx.x % LANES, parts = p.page_tokens / SLOT_TOKENS;
    const u32 signs = signs_of(p, lane);
    const u32 stride = p.kv_heads * 2 * WHOLE; // from token to token
    const u16 *rows = p.rows + (u64)blockIdx.x * p.page_tokens * stride + blockIdx.y * 2 * WHOLE + (OF_KEYS ? 0 : WHOLE);
#if OF_HALF
    // The channels of a half: those whose balance is above 0, or the others, in their order.
    __shared__ u16 channels_of[DIM];
    if (threadIdx.x < LANES) {
        const float *balance = p.front + blockIdx.y * 2 * WHOLE;
        int before = 0;
        for (int first = 0; first < WHOLE; first += LANES) {
            const bool mine = (balance[first + threadIdx.x] > 0) == (HALF_AT == 0);
            const u32 all = __ballot_sync(~0u, mine);
            const int at = before + __popc(all & ((1u << threadIdx.x) - 1));
            if (mine && at < DIM) channels_of[at] = first + threadIdx.x;
            before += __popc(all);
        }
    }
    __syncthreads();
#endif
    // Data in memory is requested before any waiting, the first rows of each thread too.
    auto fetch = [&](int token, u32 (&words)[MINE / 2]) {
#if OF_HALF
        const u16 *row = rows + (u64)token * stride;
#pragma unroll
        for (int i = 0; i < MINE; i += 2) words[i / 2] = row[channels_of[mine(lane, i)]] | row[channels_of[mine(lane, i + 1)]] << 16;
#else
        const u32 *row = reinterpret_cast<const u32 *>(rows + (u64)token * stride) + (lane & 7);
#pragma unroll
        for (int i = 0; i < MINE / 2; i++) words[i] = row[8 * i];
#endif
    };
    u32 ahead[MINE / 2];
    fetch(threadIdx.x / ROW_LANES, ahead);
    for (int i = threadIdx.x; i < SCALES * LEVELS; i += blockDim.x) steps[i] = p.steps[i];
    if (is_grouped(SHAPE) && threadIdx.x < 2 * parts) bounds[is_grouped(SHAPE) ? threadIdx.x / 2 : 0][threadIdx.x % 2] = 0;
    if (threadIdx.x < parts) slots[threadIdx.x] = p.slots[blockIdx.x * parts + threadIdx.x];
    if (TRELLIS && !PATHS)
        for (int i = threadIdx.x; i < 128; i += blockDim.x) centroids[i] = p.centroids[i];
    else if (SEARCHED > 0)
        for (int i = threadIdx.x; i < SEARCHED; i += blockDim.x) searched[i] = p.search[i];
    else if (CHUNKS)
        for (int i = threadIdx.x; i < SET_MEMBERS; i += blockDim.x) members[i] = reinterpret_cast<const float4 *>(p.search)[i];
    else if (!TRELLIS && threadIdx.x < 32) cells[threadIdx.x] = make_uint2(p.cells.cells[2 * threadIdx.x], p.cells.cells[2 * threadIdx.x + 1]);
    if (OF_KEYS) {
        const float *front = p.front + blockIdx.y * 2 * WHOLE;
        for (int c = threadIdx.x; c < DIM; c += blockDim.x) {
#if OF_HALF
            const int channel = channels_of[c];
#else
            const int channel = c;
#endif
            centre.balance[c] = front[channel], centre.inverse[c] = 1.0f / front[channel];
            centre.prefix[c] = __uint_as_float(__float_as_uint(front[WHOLE + HALF_AT + c]) ^ p.signs[c >> 5] >> (c & 31) << 31);
        }
        if (threadIdx.x == 0) centre.norm = 0;
        if (threadIdx.x < 32) centre.book[threadIdx.x] = p.book[threadIdx.x];
        if (threadIdx.x < 31) centre.thresholds[threadIdx.x] = p.book_thresholds[threadIdx.x];
    }
    __syncthreads();
    auto unpack = [&](const u32(&words)[MINE / 2], float(&v)[MINE]) {
#pragma unroll
        for (int i = 0; i < MINE; i += 2) {
            const u32 two = words[i / 2] ^ ((signs >> i & 1) << 15 | (signs >> i & 2) << 30);
            v[i] = from_f16(two & 0xFFFF), v[i + 1] = from_f16(two >> 16);
        }
        if (OF_KEYS)
#pragma unroll
            for (int i = 0; i < MINE; i++) {
                const int c = mine(lane, i);
                // With zeros, the sign of a zero counts.
                v[i] = (has_zeros(KEYS) ? v[i] / centre.balance[c] : quotient(v[i], centre.balance[c], centre.inverse[c])) - centre.prefix[c];
            }
    };
    float *z = reinterpret_cast<float *>(memory);
    if (HAS_CENTRE) {
        constexpr int CHANNELS = (DIM + THREADS - 1) / THREADS;
        const int channels = DIM % THREADS == 0 ? CHANNELS : (DIM - (int)threadIdx.x + THREADS - 1) / THREADS; // of this thread
        float sums[CHANNELS] = {};
        for (int part = 0; part < parts; part++) {
            for (int turn = 0; turn < SLOT_TOKENS; turn += ROWS) {
                const int r = turn + threadIdx.x / ROW_LANES;
                float v[MINE];
                unpack(ahead, v);
                const int next = part * SLOT_TOKENS + r + ROWS;
                if (next < (int)p.page_tokens || parts > 1) fetch(next < (int)p.page_tokens ? next : r % ROWS, ahead);
#pragma unroll
                for (int i = 0; i < MINE; i++) z[r * STRIDE + mine(lane, i)] = v[i];
            }
            __syncthreads();
            if (threadIdx.x < DIM)
#pragma unroll 16
                for (int r = 0; r < SLOT_TOKENS; r++)
#pragma unroll
                    for (int k = 0; k < CHANNELS; k++)
                        if (k < channels) sums[k] += z[r * STRIDE + threadIdx.x + k * THREADS];
            if (part + 1 < parts) __syncthreads();
        }
        if (threadIdx.x < DIM)
#pragma unroll
            for (int k = 0; k < CHANNELS; k++)
                if (k < channels) {
                    const int c = threadIdx.x + k * THREADS;
                    const float mean = sums[k] / (float)p.page_tokens;
                    if (HALF_CENTRE) store_mean(p, centre, c, mean);
                    else centre.values[c] = mean;
                }
        __syncthreads();
        if (!HALF_CENTRE && threadIdx.x < LANES) encode_centre(p, centre, signs, lane);
    }
    __syncthreads();
    for (int part = 0; part < parts; part++) {
#pragma unroll 1
        for (int turn = 0; turn < SLOT_TOKENS; turn += ROWS) {
            const int r = turn + threadIdx.x / ROW_LANES;
            const int token = part * SLOT_TOKENS + r;
            float v[MINE];
            if (HAS_CENTRE && parts == 1) {
#pragma unroll
                for (int i = 0; i < MINE; i++) v[i] = z[r * STRIDE + mine(lane, i)];
            } else {
                unpack(ahead, v);
                if (token + ROWS < (int)p.page_tokens) fetch(token + ROWS, ahead);
            }
            if (HAS_CENTRE)
#pragma unroll
                for (int i = 0; i < MINE; i++) v[i] -= centre.values[mine(lane, i)];
            if constexpr (BLOCKS) {
                u8 *slot = p.pool + ((u64)slots[part] * p.kv_heads + blockIdx.y) * SLOT;
                const float largest = quantize_blocks(p, v, reinterpret_cast<u8 *>(memory + r * STRIDE), slot, r, lane);
                if ((lane & 7) == 0) norms[token] = largest;
                continue;
            }
            if constexpr (CHUNKS) {
                float *row = z + r * STRIDE;
                if (p.rounds > 0) rotate(p, v, signs, lane, true, row);
                __syncwarp();
#pragma unroll
                for (int i = 0; i < MINE; i++) row[mine(lane, i)] = v[i];
                __syncwarp();
                const float largest = largest_chunk(row, lane), scale = from_f16(to_f16(largest));
                search_chunks(row, scale, members, lane);
                if ((lane & 7) == 0) norms[token] = scale;
                continue;
            }
            const float norm = INTEGERS ? 0 : sqrtf(dot(v, v));
            rotate(p, v, signs, lane, !TRELLIS, z + r * STRIDE);
            if constexpr (IN_THREES) {
                float *row = z + r * STRIDE, c[MINE];
                __syncwarp();
#pragma unroll
                for (int i = 0; i < MINE; i++) row[mine(lane, i)] = v[i];
                __syncwarp();
                if (tables.before == 1 && tables.behind == 0) search_row<true>(tables, row, 1.0f / norm, work.fields[r], lane);
                else search_row<false>(tables, row, 1.0f / norm, work.fields[r], lane);
                __syncwarp();
#pragma unroll
                for (int i = 0; i < MINE; i++) c[i] = row[mine(lane, i)];
                const float correlation = dot(v, c), energy = dot(c, c);
                if ((lane & 7) == 0) norms[token] = norm, products[r] = make_float2(correlation, energy);
            } else if constexpr (is_grouped(SHAPE)) {
                u8 *slot = p.pool + ((u64)slots[part] * p.kv_heads + blockIdx.y) * SLOT;
                const bool held = encode_groups<SHAPE, OF_KEYS>(v, slot, r, reinterpret_cast<u8 *>(memory + r * STRIDE), bounds[part], lane);
                if ((lane & 7) == 0) norms[token] = held ? 0 : __int_as_float(0x7f800000);
            } else if constexpr (INTEGERS) {
                constexpr int LARGEST = (1 << (code_bits(SHAPE) - 1)) - 1;
                float largest = 0;
#pragma unroll
                for (int i = 0; i < MINE; i++) largest = fmaxf(largest, fabsf(v[i]));
#pragma unroll
                for (int s = 4; s; s /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, s));
                const float unit = largest / LARGEST, scale = from_f16(to_f16(unit)), inverse = 1.0f / scale;
                u8 *row = reinterpret_cast<u8 *>(memory + r * STRIDE);
                __syncwarp(); // codes overwrite values that other lanes have read
#pragma unroll
                for (int i = 0; i < MINE; i += 2) {
                    u32 two[2];
#pragma unroll
                    for (int k = 0; k < 2; k++) { // where the quotient is wrong, it is so small that the code is 0 either way
                        const float y = fminf(fmaxf(quotient(v[i + k], scale, inverse), -LARGEST), LARGEST);
                        two[k] = __float_as_uint(y + 12582912.0f) + LARGEST + 1 & 0xFF;
                    }
                    *reinterpret_cast<u16 *>(row + mine(lane, i)) = (u16)(two[0] | two[1] << 8);
                }
                if ((lane & 7) == 0) norms[token] = unit;
            } else if constexpr (TRELLIS) {
#pragma unroll
                for (int i = 0; i < MINE; i++) z[r * STRIDE + mine(lane, i)] = v[i];
                if ((lane & 7) == 0) norms[token] = norm, scales[r] = norm < SMALLEST_NORM ? 0 : p.kappa / norm;
            } else if constexpr (is_indexed(SHAPE) && !PATHS) {
                constexpr int BITS = index_bits(SHAPE);
                const float inverse = 1.0f / norm, *thresholds = reinterpret_cast<const float *>(searched);
                float c[MINE];
                u32 codes[MINE / 2];
#pragma unroll
                for (int i = 0; i < MINE; i += 2) {
                    const u32 found[2] = {count_below<BITS>(v[i] * inverse, thresholds), count_below<BITS>(v[i + 1] * inverse, thresholds)};
                    c[i] = thresholds[(1 << BITS) + found[0]], c[i + 1] = thresholds[(1 << BITS) + found[1]];
                    codes[i / 2] = found[0] | found[1] << 8;
                }
                const float correlation = dot(v, c), energy = dot(c, c);
                u8 *row = reinterpret_cast<u8 *>(memory + r * STRIDE);
                __syncwarp(); // codes overwrite values that other lanes have read
#pragma unroll
                for (int i = 0; i < MINE; i += 2) *reinterpret_cast<u16 *>(row + mine(lane, i)) = codes[i / 2];
                if ((lane & 7) == 0) norms[token] = norm, products[r] = make_float2(correlation, energy);
            } else {
                const float inverse = 1.0f / norm;
                float c[MINE], energy = 0; // exact: sums of squares of integers below 2^24
                u32 codes[MINE / 2];
#pragma unroll
                for (int i = 0; i < MINE; i += 2) {
                    u32 found[2];
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        found[k] = found_in(cells, v[i + k] * inverse, p.cells.slope, p.cells.offset);
                        c[i + k] = __uint_as_float(__byte_perm(found[k], 0x4B000000, 0x7441)) - (8388608.0f + 128);
                        energy = __fmaf_rn(c[i + k], c[i + k], energy);
                    }
                    codes[i / 2] = __byte_perm(found[0], found[1], 0x0040);
                }
                const float correlation = dot(v, c);
#pragma unroll
                for (int s = 4; s; s /= 2) energy += __shfl_xor_sync(~0u, energy, s);
                u8 *row = reinterpret_cast<u8 *>(memory + r * STRIDE);
                __syncwarp(); // codes overwrite values that other lanes have read
#pragma unroll
                for (int i = 0; i < MINE; i += 2) *reinterpret_cast<u16 *>(row + mine(lane, i)) = codes[i / 2];
                if ((lane & 7) == 0) norms[token] = norm, products[r] = make_float2(correlation, energy);
            }
        }
        __syncthreads();
        if constexpr (PATHS) {
            search_paths<SHAPE>(z, STRIDE, scales, reinterpret_cast<const float *>(p.search), work.paths);
            __syncthreads();
        }
        if ((BLOCKS || CHUNKS) && threadIdx.x < SLOT_TOKENS && !(norms[part * SLOT_TOKENS + threadIdx.x] <= 65504)) refuse(p, OF_KEYS, 1 + part * SLOT_TOKENS + threadIdx.x);
        if (!BLOCKS && !CHUNKS && threadIdx.x < SLOT_TOKENS) { // a thread for each row
            const int r = threadIdx.x, token = part * SLOT_TOKENS + r;
            const float norm = norms[token];
            float found;
            if constexpr (INTEGERS) found = norm;
            else if constexpr (IN_THREES) found = stored_norm(p, norm, products[r].x / norm, products[r].y);
            else if constexpr (PATHS) found = stored_norm(p, norm, work.paths.fits[r].x * (p.unit * p.unit), work.paths.fits[r].y * (p.unit * p.unit));
            else if constexpr (TRELLIS) found = search<SHAPE>(p, z + r * STRIDE, scales[r], norm, work.decisions, centroids);
            else found = stored_norm(p, norm, products[r].x / norm * p.unit, products[r].y * p.unit * p.unit);
            const u32 stored = !INTEGERS && norm < SMALLEST_NORM ? 0 : to_f16(found);
            if (!is_finite_f16(stored)) refuse(p, OF_KEYS, 1 + token);
            if (IN_THREES && (stored & 0x7FFF) == 0) // for negative zero too
                for (int i = 0; i < FIELDS; i++) work.fields[r][i] = 0;
            else if (stored == 0 && !is_grouped(SHAPE))
                for (int i = 0; i < DIM / 4; i++) memory[r * STRIDE + i] = 0;
            norms[token] = from_f16(stored);
        }
        __syncthreads();
        u8 *slot = p.pool + ((u64)slots[part] * p.kv_heads + blockIdx.y) * SLOT;
        auto four = [&](int token, int c) { return memory[token * STRIDE + c / 4]; };
        if constexpr (IN_THREES) pack_found(slot, work.fields);
        else if constexpr (CHUNKS) pack_chunks(slot, [&](int token, int chunk) { return memory[token * STRIDE + 4 * chunk]; });
        else if constexpr (OF_KEYS) pack_keys(slot, four);
        else pack_values(slot, four);
        if (HAS_CENTRE && HALF_CENTRE) {
            for (int c = threadIdx.x; c < DIM; c += blockDim.x) reinterpret_cast<u16 *>(slot + K_CENTRE)[c] = (u16)centre.integers[c];
        } else if (HAS_CENTRE) {
            for (int c = threadIdx.x; c < (IN_THREES ? DIM : WIDE); c += blockDim.x) {
                const int integer = c < DIM ? centre.integers[c] : 0;
                slot[K_CENTRE + centre_byte(c)] = (u8)(integer >> 4);
                slot[K_CENTRE + K_WIDE + centre_byte(c)] = (u8)(integer & 15);
            }
        }
        if (OF_KEYS && threadIdx.x == 0) reinterpret_cast<Tail *>(slot + TAIL)->centre = HAS_CENTRE ? centre.norm : 0;
        __syncthreads();
    }
    if constexpr (is_grouped(SHAPE)) encode_bounds<OF_KEYS>(p, slots, bounds);
    else if constexpr (HALF_CENTRE) encode_scales<OF_KEYS>(p, slots, norms);
    else encode_norms<OF_KEYS>(p, work.norms, steps, slots, norms);
}

#if !COARSE_AT
extern "C" __global__ void __launch_bounds__(encode_threads(KEYS), encode_blocks(KEYS)) encode_keys(const __grid_constant__ Encode p) { encode<KEYS, true>(p); }
#endif
#if !OF_HALF
extern "C" __global__ void __launch_bounds__(encode_threads(VALUES), encode_blocks(VALUES))
    encode_values(const __grid_constant__ Encode p) {
    encode<VALUES, false>(p);
}
#endif
