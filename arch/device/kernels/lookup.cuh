// Turns codes into operands of matrix products.
//
// nvidia.cuh says which operands and sums lane 4 g + t holds. The 32 bytes of a product may have any order that
// both sides share, so no code needs a shuffle.

// Returns the bits of a where `mask` is set, else those of b.
__device__ __forceinline__ u32 pick(u32 a, u32 b, u32 mask) { return (a & mask) | (b & ~mask); }

// Tables in registers. For plain codes, every lane holds the whole table. For a trellis, lane l holds the centroids
// of a window, by the highest bit of a code of 3 bits. For codes of 1 bit, it holds those of two consecutive
// coordinates. For codes of 2 bits, `second` holds those of the next coordinate.
struct Table {
    u32 words[4], row, second;
};
template <int SHAPE> __device__ __forceinline__ Table table_of(const u32 (&words)[32], int lane, u32 zero) {
    Table t;
    // If the compiler sees that all lanes hold the same value, it keeps it in uniform registers and copies it at
    // each use: 140 instructions a page. It does not know that `zero` is 0.
    for (int i = 0; i < 4; i++) t.words[i] = words[i] + (lane & zero);
    t.row = words[lane], t.second = words[lane >> 1];
    return t;
}

__device__ __forceinline__ u32 row_of(const Table &t, u32 window) { return __shfl_sync(~0u, t.row, (int)window); }

// Operates on a float that is 2^23 plus an integer: see `shifted`.
constexpr u32 SHIFTED = 0x4B000000;

// Takes one byte of each of four rows, by the nibbles of a selector: 0 to 3 in the even nibbles, 4 to 7 in the odd
// ones.
__device__ __forceinline__ u32 of_rows(u32 r0, u32 r1, u32 r2, u32 r3, u32 selector) {
    return prmt(prmt(r0, r1, selector), prmt(r2, r3, selector), 0x7610);
}
constexpr u32 ODD = 0x40404040;

// Codes of 4 bits have antisymmetric centroids, but a byte permutation sees only eight bytes. So there are two
// operands:
//   negative    the negative centroids minus 1; the sign is the -1 of the other codes
//   positive    the positive centroids, and zeros elsewhere
// They add up to centroids minus 1. The sum of the other factor compensates for the 1. The complement of a code is
// the code of the opposite centroid.
struct Halves {
    u32 n0, n1, p0, p1;
    __device__ __forceinline__ Halves(u32 w, const Table &t) {
        n0 = prmt(t.words[0], t.words[1], w), n1 = prmt(t.words[0], t.words[1], high_half(w, 0));
        p0 = prmt(t.words[2], t.words[3], ~w), p1 = prmt(t.words[2], t.words[3], less_high_half(w, 0xFFFF));
    }
};

// ---- keys -------------------------------------------------------------------------------------------------------------

// The words of a thread's coordinates of a key.
struct KeyWords {
    u32 low[CODE_WORDS], single[BIT_WORDS];
    float path[(EACH + 15) / 16]; // bits 16 i to 16 i + 18
};

// Moves a byte of bits from order 2 byte + half to 4 byte + half: from the order of one product to that of two.
__device__ __forceinline__ u32 spread(u32 bits) {
    bits = (bits | bits << 4) & 0x0F0F;
    return (bits | bits << 2) & 0x3333;
}
// Returns the bits of product j for selectors. Codes of 3 bits have the operands of even and of odd nibbles in one
// word; a single last product has them by halves. Codes of 1 bit come as pairs.
__device__ __forceinline__ u32 single_bits(const KeyWords &k, int j) {
    const u32 word = k.single[j >> 2];
    if (PRODUCTS % 2 && j == PRODUCTS - 1) return spread(word >> (8 * (j & 3)) & 0xFF);
    if (KEYS == trellis_of(1)) return word >> (16 * (j >> 1 & 1) + 2 * (j & 1));
    return ((j & ~3) + 4 > PRODUCTS ? (word & 0xFFFF) | word << 14 : word) >> (j & 3);
}

// Called by all lanes of a warp together, because a path continues from the thread before.
__device__ __forceinline__ KeyWords load_key(const u8 *slot, int token, int t) {
    KeyWords k;
    const int item = token * 4 + t;
    if (low_bits(KEYS) > 1) load_words<EACH * low_bits(KEYS) / 8>(k.low, slot + K_LOW + item * (EACH * low_bits(KEYS) / 8));
    if (code_bits(KEYS) & 1) load_words<EACH / 8>(k.single, slot + (code_bits(KEYS) == 3 ? K_HIGH : K_LOW) + item * (EACH / 8));
    if (is_trellis(KEYS)) {
        u32 own[BIT_WORDS];
        load_words<EACH / 8>(own, slot + item * (EACH / 8));
        u32 before = __shfl_up_sync(~0u, own[BIT_WORDS - 1], 1) >> ((EACH - 1) % 32 - 2);
        if (t == 0) before = 0;
        // Bit d is where the window of coordinate d begins.
#pragma unroll
        for (int i = 0; i < (EACH + 15) / 16; i++) {
            const u32 word = own[i >> 1], less = i == 0 ? before : i & 1 ? 0 : own[(i >> 1) - 1] >> 29;
            k.path[i] = __uint_as_float(i & 1 ? word >> 13 | SHIFTED : and_or(word << 3 | less, 0x7FFFF, SHIFTED));
        }
    }
    return k;
}

// Returns bits d and up of a path. Four count, and a fifth if d is even.
__device__ __forceinline__ u32 window_at(const KeyWords &k, int d) { return shifted(k.path[d >> 4], d & 15); }

// Returns selectors of product j's bytes, for codes of 2 and 3 bits: of the first four, and of the others.
__device__ __forceinline__ uint2 selectors(const KeyWords &k, int j) {
    const bool alone = PRODUCTS % 2 && j == PRODUCTS - 1;
    u32 s = (alone ? k.low[j >> 1] : k.low[j >> 1] >> (2 * (j & 1))) & 0x33333333u;
    if (code_bits(KEYS) == 3) s |= (single_bits(k, j) & 0x11111111u) << 2;
    u32 other = s >> 16;
    if (alone) {
        other = k.low[j >> 1] >> 2 & 0x3333;
        if (code_bits(KEYS) == 3) other |= (single_bits(k, j) >> 1 & 0x1111) << 2;
    }
    return make_uint2(s, other);
}

// Adds product j of a key with the queries.
__device__ __forceinline__ void score(int (&c)[4], uint4 q, const KeyWords &k, int j, const Table &t) {
    if (KEYS == codes_of(4)) {
        const Halves h(k.low[j], t);
        product_s8(c, q, h.n0, h.n1);
        product_s8(c, q, h.p0, h.p1);
    } else if (KEYS == integers_of(4)) { // codes instead of integers: the sum of the other factor compensates
        product_s8_u8(c, q, k.low[j] & 0x0F0F0F0F, k.low[j] >> 4 & 0x0F0F0F0F);
    } else if (KEYS == integers_of(8)) {
        product_s8(c, q, k.low[2 * j % CODE_WORDS], k.low[(2 * j + 1) % CODE_WORDS]);
    } else if (KEYS == codes_of(2) || KEYS == codes_of(3)) {
        const uint2 s = selectors(k, j);
        product_s8(c, q, prmt(t.words[0], t.words[KEYS == codes_of(3)], s.x), prmt(t.words[0], t.words[KEYS == codes_of(3)], s.y));
    } else if (KEYS == trellis_of(1)) {
        u32 r[4];
        for (int i = 0; i < 4; i++) r[i] = row_of(t, window_at(k, 8 * j + 2 * i));
        const u32 digits = single_bits(k, j);
        const u32 even = and_or(digits, 0x1111, 0x4040), odd = and_or(digits >> 1, 0x1111, 0x6262);
        product_s8(c, q, of_rows(r[0], r[1], r[2], r[3], even), of_rows(r[0], r[1], r[2], r[3], odd));
    } else {
        u32 r[8];
        if (KEYS == trellis_of(2)) {
            for (int i = 0; i < 8; i += 2) { // a window and the next take five bits
                const u32 w = window_at(k, 8 * j + i);
                r[i] = row_of(t, w), r[i + 1] = __shfl_sync(~0u, t.second, (int)w);
            }
        } else {
            for (int i = 0; i < 8; i++) {
                const int by = (8 * j + i) % 32 - 4;
                const u32 single = k.single[(8 * j + i) / 32];
                r[i] = row_of(t, pick(window_at(k, 8 * j + i), by < 0 ? single << -by : single >> by, 15));
            }
        }
        const u32 digits = k.low[j >> 1] >> (16 * (j & 1));
        const u32 even = and_or(digits, 0x3333, 0x4040), odd = and_or(digits >> 2, 0x3333, 0x4040);
        product_s8(c, q, of_rows(r[0], r[2], r[4], r[6], even), of_rows(r[1], r[3], r[5], r[7], odd));
    }
}

// ---- keys of triplets -------------------------------------------------------------------------------------------------

// The values of fields. Directions have a length of 127, in three bytes. Radii and left-over coordinates are
// integers of 16 bits, times 256.
struct Triplets {
    u32 directions[1 << 2 * DIRECTION_BITS], radii[1 << RADIUS_BITS], rest[1 << REST_BITS];
};

// Returns field d of a thread, and the bits after it.
__device__ __forceinline__ u32 field_at(const u32 (&words)[FIELD_WORDS], int d) {
    const int bit = d * FIELD_BITS;
    u32 field = words[bit >> 5] >> (bit & 31);
    if ((bit & 31) + FIELD_BITS > 32) field = __funnelshift_r(words[bit >> 5], words[min(FIELD_WORDS - 1, (bit >> 5) + 1)], bit & 31);
    return field;
}

// Returns triplet d of a thread as integers of 16 bits, times 256. `last`: this thread has the left-over
// coordinates.
__device__ __forceinline__ void triplet(int (&x)[3], const u32 (&words)[FIELD_WORDS], int d, bool last, const Triplets &of) {
    constexpr int OWN = 2 * DIRECTION_BITS;
    const u32 field = field_at(words, d) & ((1u << FIELD_BITS) - 1);
    const int n = of.directions[field & ((1 << OWN) - 1)], radius = of.radii[field >> OWN];
#pragma unroll
    for (int e = 0; e < 3; e++) x[e] = (n << (24 - 8 * e) >> 24) * radius + 128;
    if (REST_BITS > 0 && d == (FIELDS - 1) % EACH_FIELDS && last)
        for (int e = 0; e < DIM % 3; e++) x[e] = of.rest[field >> (e * REST_BITS) & ((1 << REST_BITS) - 1)];
}
__device__ __forceinline__ bool has_rest(int t) { return t == (FIELDS - 1) / EACH_FIELDS; }

// Returns the high and low bytes of field d of a thread.
__device__ __forceinline__ uint2 field_bytes(const u32 (&words)[FIELD_WORDS], int d, bool last, const Triplets &of) {
    int x[3];
    triplet(x, words, d, last, of);
    return make_uint2(prmt(prmt(x[0], x[1], 0x0062), x[2], 0x0610), prmt(prmt(x[0], x[1], 0x0051), x[2], 0x0510));
}

// Adds both products of a thread's keys, columns 2 t and 2 t + 1, with queries: signed high bytes, then low bytes.
template <class Queries, class Fields>
__device__ __forceinline__ float2 score_fields(Queries queries, const u8 *slot, int token, int t, const Fields &of) {
    u32 words[FIELD_WORDS];
    load_words<4 * FIELD_WORDS>(words, slot + (token * 4 + t) * 4 * FIELD_WORDS);
    int high[4] = {}, low[4] = {};
#pragma unroll
    for (int j = 0; j < PRODUCTS; j++) {
        u32 h[2] = {}, l[2] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (2 * j + half >= EACH_FIELDS) continue;
            const uint2 bytes = field_bytes(words, 2 * j + half, has_rest(t), of);
            h[half] = bytes.x, l[half] = bytes.y;
        }
        const uint4 q = queries(j);
        product_s8(high, q, h[0], h[1]);
        product_s8_u8(low, q, l[0], l[1]);
    }
    auto sum = [&](int i) {
        return fmaf(fmaf((float)high[i], 256, (float)high[i + 2]), 256, fmaf((float)low[i], 256, (float)low[i + 2]));
    };
    return make_float2(sum(0), sum(1));
}

// Returns four weights as operands: high bytes and low bytes. Their integers are the low 16 bits of words.
__device__ __forceinline__ void four_bytes(u32 *a, const u32 *w) {
    const u32 low = prmt(w[0], w[1], 0x5140), high = prmt(w[2], w[3], 0x5140);
    a[0] = prmt(low, high, 0x7632), a[1] = prmt(low, high, 0x5410);
}

// ---- values -----------------------------------------------------------------------------------------------------------

// Adds four products: coordinate e of each four, over the 32 tokens of a tile.
__device__ __forceinline__ void add_values(int (&c)[4][4], uint4 weights, const u8 *values, int tile, int group,
                                           int lane, const Table &t) {
    const int item = (tile * GROUPS + group) * LANES + lane;
    if constexpr (is_sliced(VALUES)) {
        u32 words[stream_words(V_STREAM) + 1];
        load_stream<V_STREAM, V_STREAMS>(words, values + V_LOW, item);
#pragma unroll
        for (int e = 0; e < 4; e++) product_u8(c[e], weights, slice<code_bits(VALUES)>(words, 2 * e), slice<code_bits(VALUES)>(words, 2 * e + 1));
        return;
    }
    u32 low[is_byte(VALUES) ? 8 : 4], high = 0;
    load_words<4 * low_bits(VALUES)>(low, values + V_LOW + item * 4 * low_bits(VALUES));
    if (code_bits(VALUES) == 3) high = load<u32>(values + V_HIGH + item * 4);
    if (VALUES == codes_of(4)) {
        const Halves h[4] = {{low[0], t}, {low[1], t}, {low[2], t}, {low[3], t}};
#pragma unroll
        for (int e = 0; e < 4; e++) product_u8(c[e], weights, h[e].n0, h[e].n1);
#pragma unroll
        for (int e = 0; e < 4; e++) product_u8(c[e], weights, h[e].p0, h[e].p1);
    } else if (VALUES == integers_of(4)) {
#pragma unroll
        for (int e = 0; e < 4; e++) product_u8(c[e], weights, low[e] & 0x0F0F0F0F, low[e] >> 4 & 0x0F0F0F0F);
    } else if constexpr (VALUES == integers_of(8)) {
#pragma unroll
        for (int e = 0; e < 4; e++) product_u8(c[e], weights, low[2 * e], low[2 * e + 1]);
    } else if (VALUES == codes_of(2) || VALUES == codes_of(3)) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u32 s = low[e >> 1] >> (2 * (e & 1)) & 0x33333333u;
            if (VALUES == codes_of(3)) s |= (high >> e & 0x11111111u) << 2;
            product_u8(c[e], weights, prmt(t.words[0], t.words[VALUES == codes_of(3)], s), prmt(t.words[0], t.words[VALUES == codes_of(3)], s >> 16));
        }
    } else {
        const u32 *paths = reinterpret_cast<const u32 *>(values);
        const u32 own = paths[item];
        // The four coordinates before: another lane's, or in the last eight lanes of the group before.
        const u32 before = lane >= 4 ? paths[item - 4] : group > 0 ? paths[item - 4] : 0;
        const u32 windows[4] = {pick(own << 3, before >> 1, 0x88888888u), pick(own << 2, before >> 2, 0xCCCCCCCCu),
                                pick(own << 1, before >> 3, 0xEEEEEEEEu), own};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float halves[2] = {__uint_as_float(prmt(windows[e], SHIFTED >> 16, 0x5410)), __uint_as_float(prmt(windows[e], SHIFTED >> 16, 0x5432))};
            u32 r[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 w = shifted(halves[i >> 2], 4 * (i & 3));
                if (VALUES == trellis_of(3)) {
                    const int by = 4 * i + e - 4;
                    w = pick(w, by < 0 ? high << -by : high >> by, 15);
                }
                r[i] = row_of(t, w);
            }
            const u32 s = VALUES == trellis_of(1) ? and_or(low[0] >> e, 0x11111111, ODD) : and_or(low[e >> 1] >> (2 * (e & 1)), 0x33333333, ODD);
            product_u8(c[e], weights, of_rows(r[0], r[1], r[2], r[3], s), of_rows(r[4], r[5], r[6], r[7], s >> 16));
        }
    }
}
