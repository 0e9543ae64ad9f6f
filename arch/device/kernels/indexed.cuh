// Codes that are looked up in shared memory, one coordinate at a time. A code selects an entry; in a trellis, code
// and window of the path do.
//
// An entry is a centroid's low byte. Without a path, codes of 5 to 8 bits have entries of 12 bits in two products:
//   bits 23 .. 16   high, signed        bits 3 .. 0   low        centroid = 16 · high + low
// The entries are copied side by side as often as 8 KiB allow, at most once for each lane. Then fewer lanes meet on
// a bank.
template <int SHAPE> struct Entries {
    static constexpr int BITS = index_bits(SHAPE), HISTORY = history(SHAPE), WINDOW = has_path(SHAPE) ? HISTORY + 1 : 0;
    static constexpr bool TWO = is_indexed(SHAPE) && !has_path(SHAPE) && BITS > 4;
    static constexpr int COUNT = is_indexed(SHAPE) ? 1 << (BITS + WINDOW) : 0, COPIES = COUNT == 0 ? 1 : COUNT > 64 ? 2048 / COUNT : 32;
    static constexpr int WORDS = COUNT * COPIES;
};
using KeyEntries = Entries<KEYS>;
using ValueEntries = Entries<VALUES>;
// Entries of keys, then of values. If both sides have the same shape, they share the codebook, which is stored
// once.
#if COARSE_AT
constexpr int VALUES_FROM = fine::KeyEntries::COUNT + coarse::KeyEntries::COUNT;
#else
constexpr int VALUES_FROM = is_fields(KEYS) ? TABLE_WORDS : KeyEntries::COUNT;
#endif
constexpr bool ONE_TABLE = KEYS == VALUES;
constexpr int ENTRY_WORDS = KeyEntries::WORDS + (ONE_TABLE ? 0 : ValueEntries::WORDS);

__device__ __forceinline__ void load_entries(u32 *to, const u32 *from, int threads) {
    for (int i = threadIdx.x; i < KeyEntries::WORDS; i += threads) to[i] = from[i / KeyEntries::COPIES];
    for (int i = threadIdx.x; i < ENTRY_WORDS - KeyEntries::WORDS; i += threads) to[KeyEntries::WORDS + i] = from[VALUES_FROM + i / ValueEntries::COPIES];
}
// Returns a lane's copy of an entry.
__device__ __forceinline__ const u32 *key_entries(const u32 *all, int lane) { return all + lane % KeyEntries::COPIES; }
__device__ __forceinline__ const u32 *value_entries(const u32 *all, int lane) {
    return all + (ONE_TABLE ? 0 : KeyEntries::WORDS) + lane % ValueEntries::COPIES;
}
// Returns a centroid.
template <int SHAPE> __device__ __forceinline__ float entry_value(u32 entry) {
    return (float)(Entries<SHAPE>::TWO ? (int)(i8)(entry >> 16) * 16 + (int)(entry & 0xFF) : (int)(i8)entry);
}

// The words of a thread's coordinates of a key. All lanes of a warp create theirs together, because a path
// continues from the thread before.
struct IndexedKey {
    u32 codes[stream_words(K_STREAM)], path[BIT_WORDS + 1]; // path: from HISTORY bits before the first coordinate on
    __device__ __forceinline__ IndexedKey(const u8 *slot, int token, int t) {
        const int item = token * 4 + t;
        load_stream<K_STREAM, K_STREAMS>(codes, slot + K_LOW, item);
        if constexpr (has_path(KEYS) && is_indexed(KEYS)) {
            constexpr int HISTORY = KeyEntries::HISTORY, LAST = (EACH - 1) % 32;
            u32 own[BIT_WORDS];
            load_words<EACH / 8>(own, slot + item * (EACH / 8));
            const u32 before = __shfl_up_sync(~0u, own[BIT_WORDS - 1], 1) >> (LAST + 1 - HISTORY);
            path[0] = own[0] << HISTORY | (t == 0 ? 0 : before & ((1u << HISTORY) - 1));
#pragma unroll
            for (int i = 1; i <= BIT_WORDS; i++) path[i] = (i < BIT_WORDS ? own[i % BIT_WORDS] << HISTORY : 0) | own[i - 1] >> (32 - HISTORY);
        }
    }
    __device__ __forceinline__ u32 index(int d) const {
        const u32 code = code_at<index_bits(KEYS)>(codes, d);
        if constexpr (!has_path(KEYS)) return code;
        const u32 window = d % 32 ? path[d >> 5] >> (d & 31) | path[(d >> 5) + 1] << (32 - (d & 31)) : path[d >> 5];
        return code << KeyEntries::WINDOW | (window & ((1u << KeyEntries::WINDOW) - 1));
    }
};

// Returns the low bytes of four entries, and their high bytes.
__device__ __forceinline__ uint2 of_entries(u32 a, u32 b, u32 c, u32 d) {
    const u32 first = a | b << 8, second = c | d << 8;
    return make_uint2(prmt(first, second, 0x5410), prmt(first, second, 0x7632));
}

// Adds both products of a thread's keys, columns 2 t and 2 t + 1, with queries.
__device__ __forceinline__ float2 score_indexed(const uint4 (&q)[PRODUCTS], const u8 *slot, int token, int t, const u32 *entries) {
    const IndexedKey k(slot, token, t);
    int high[4] = {}, low[4] = {};
#pragma unroll
    for (int j = 0; j < PRODUCTS; j++) {
        uint2 both[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 x[4];
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = entries[k.index(8 * j + 4 * half + e) * KeyEntries::COPIES];
            both[half] = of_entries(x[0], x[1], x[2], x[3]);
        }
        product_s8(low, q[j], both[0].x, both[1].x);
        if (KeyEntries::TWO) product_s8(high, q[j], both[0].y, both[1].y);
    }
    auto sum = [&](int i) { return fmaf((float)(16 * high[i] + low[i]), 256, (float)(16 * high[i + 2] + low[i + 2])); };
    return make_float2(sum(0), sum(1));
}

// The words of an octet of values: eight tokens of four coordinates.
struct IndexedValues {
    u32 codes[stream_words(V_STREAM)], path[3]; // path: of these four coordinates, of the four before, and of the four before those
    __device__ __forceinline__ IndexedValues(const u8 *values, int tile, int group, int lane) {
        const int item = (tile * GROUPS + group) * LANES + lane;
        load_stream<V_STREAM, V_STREAMS>(codes, values + V_LOW, item);
        if constexpr (has_path(VALUES) && is_indexed(VALUES)) {
            const u32 *paths = reinterpret_cast<const u32 *>(values);
#pragma unroll
            for (int back = 0; back < 3; back++) path[back] = group * LANES + lane >= 4 * back ? paths[item - 4 * back] : 0;
        }
    }
    // Returns the index of coordinate e and token i.
    __device__ __forceinline__ u32 index(int e, int i) const {
        const u32 code = code_at<index_bits(VALUES)>(codes, 8 * e + i);
        if constexpr (!has_path(VALUES)) return code;
        const u32 bits = (path[0] >> (4 * i) & 15) << 8 | (path[1] >> (4 * i) & 15) << 4 | (path[2] >> (4 * i) & 15);
        return code << ValueEntries::WINDOW | (bits >> (8 + e - ValueEntries::HISTORY) & ((1u << ValueEntries::WINDOW) - 1));
    }
};

// Adds four products as `add_values` does: of entries' low bytes, and of their high bytes.
__device__ __forceinline__ void add_indexed(int (&low)[4][4], int (&high)[4][4], uint4 weights, const u8 *values, int tile, int group, int lane,
                                            const u32 *entries) {
    const IndexedValues v(values, tile, group, lane);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        uint2 both[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = entries[v.index(e, 4 * half + i) * ValueEntries::COPIES];
            both[half] = of_entries(x[0], x[1], x[2], x[3]);
        }
        product_u8(low[e], weights, both[0].x, both[1].x);
        if (ValueEntries::TWO) product_u8(high[e], weights, both[0].y, both[1].y);
    }
}

// Returns the code of coordinate d of a thread's key, with its window.
template <int SHAPE> __device__ __forceinline__ u32 key_index(const KeyWords &k, int d) {
    constexpr int BITS = low_bits(SHAPE);
    u32 code = 0;
    if (BITS > 1) code = k.low[d * BITS >> 5] >> (d * BITS & 31) & ((1 << BITS) - 1);
    const int at = single_bit(d);
    const u32 single = k.single[at >> 5] >> (at & 31) & 1;
    if (code_bits(SHAPE) == 3) code |= single << 2;
    if (code_bits(SHAPE) == 1) code = single;
    return is_trellis(SHAPE) ? code * 16 + (window_at(k, d) & 15) : code;
}

// Returns a thread's words of a key, and the index of coordinate d.
template <int SHAPE> __device__ __forceinline__ auto key_words(const u8 *slot, int token, int t) {
    if constexpr (is_indexed(SHAPE)) return IndexedKey(slot, token, t);
    else return load_key(slot, token, t);
}
template <int SHAPE> __device__ __forceinline__ u32 key_index(const IndexedKey &k, int d) { return k.index(d); }
