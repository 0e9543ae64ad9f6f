// Attention of one query for each head on pages.
//
// A block of threads takes up to eight query heads of one key/value head. It also takes a split: some of a
// sequence's slots, or of its exact tokens, or of both. `combine` adds the splits.
//
//   slot -> shared memory       bulk copies where the GPU has them (sm_90), else asynchronous copies
//   scores                      products of bytes: a query's 16 bits are two rows, high bytes and low bytes
//   weights                     2^(logit - m). m is the first maximum, rounded to a whole number; a higher one shifts the sums
//   values                      products of bytes: a weight times its norm has 16 bits, two rows again
//
// A warp scores its own slot, four warps at once. Then each warp sums its share of the coordinates, 32 of 128, of
// all four slots:
//
//              slot 0   slot 1   slot 2   slot 3
//   scores     warp 0   warp 1   warp 2   warp 3
//   values     warp 0: coordinates 0 .. 31 of all four, warp 1: 32 .. 63, …

struct Params {
    const void *queries;       // [sequences][query heads][DIM]
    void *output;              // likewise
    const u8 *pool;
    const u32 *table;          // [sequences][table_stride]: slots of a sequence
    const Sequence *sequences;
    const u16 *exact;          // f16 [sequences][a ring, then sinks: exact_stride][kv heads][keys, values][DIM]
    const float *fronts;       // [sequences][kv heads][balance, prefix][DIM]
    const float *sink_logits;  // [query heads], or null
    float *parts;              // [sequences][units][splits of both kinds][HEADS][DIM]
    float2 *sums;              // [sequences][units][splits of both kinds][HEADS]: maximum of log2, sum
    const u32 *entries;        // what fields of keys decode to: FieldTable; what codes decode to: Entries
    u64 window;                // 0: all positions are visible
    u32 query_heads, kv_heads, table_stride, exact_stride, splits, exact_splits, keep_sinks, key_rounds, value_rounds;
    u32 several;  // 1: most blocks of threads have several rounds of slots
    u32 ring;     // places of exact tokens before those of sinks
    u32 query_type, output_type; // of floats
    u32 zero;     // is 0, which the compiler does not know
    u32 together; // 1: the first splits of pages take exact tokens too; 0: exact tokens have their own blocks, before those of pages
    u32 one_front; // 1: all sequences have the first one's front
    float logit_unit;          // scale · log2 e
    float key_unit, centre_unit, value_unit; // of a centroid's integer; key and value for the steps of norms
    float soft_cap;            // times log2 e; 0: no cap
    u32 key_signs[8], value_signs[8], key_table[32], value_table[32];
    Bias bias;
#if COARSE_AT
    u32 coarse_table[32];
    float coarse_unit;         // as key_unit, which then is the fine half's
#endif
};

// Multiplies x with one of two steps of norms, rounded once: 2^23 plus a step is a float, and 2^23 times x is
// exact.
__device__ __forceinline__ float times_step(float x, u32 two, int which) {
    return fmaf(__uint_as_float(which ? high_half(two, 0x4B000000) : low_half(two, 0x4B000000)), x, -8388608.0f * x);
}

// Multiplies x with a slot's norm.
template <int SHAPE> __device__ __forceinline__ float times_norm(float x, u32 two, int which) {
    if (is_blocks(SHAPE)) return x; // contains its scales
    return in_rows(SHAPE) ? x * from_f16(which ? two >> 16 : two & 0xFFFF) : times_step(x, two, which);
}
// Whether the sum of the codes' factors counts, and how often.
constexpr bool is_summed(int shape) { return shape == codes_of(4) || shape == integers_of(4); }
constexpr int SUMMED_KEYS = KEYS == integers_of(4) ? -8 : 1, SUMMED_VALUES = VALUES == integers_of(4) ? -8 : 1;
constexpr bool FLOAT_CENTRES = CENTRES && in_rows(KEYS);

constexpr int EXACT_TOKENS = 32;

// A warp's keys and values, in addition to `Shared`: [WARPS][K_PART], then [WARPS][V_PART].
constexpr int V_FROM = (WARPS * K_PART + 127) / 128 * 128;
// Code that runs once must come from memory first. A trellis has much of it, so its loops are unrolled less: 13.7 instead of 15.3
// microseconds for 2,048 tokens on an H200, and the same for 32,768.
constexpr int SCORE_UNROLL = is_trellis(KEYS) ? 2 : 8, SUM_UNROLL = is_trellis(VALUES) ? 2 : 8;
// Groups of a value's coordinates that a warp sums, and warps that share a group, each with some tokens.
constexpr int OWN = (GROUPS + WARPS - 1) / WARPS, SHARING = GROUPS < WARPS ? WARPS / GROUPS : 1;

struct Shared {
    uint4 weights[2 * WARPS][is_grouped(VALUES) ? 2 : 1][LANES]; // with groups still f32
    uint4 queries[PRODUCTS][LANES];
    float unit[COARSE_AT ? 2 : 1][HEADS], base[HEADS]; // unit: of each half
    float top[HEADS][WARPS], sum[WARPS][HEADS];
    float weighed[WARPS][HEADS];
    int2 bytes[HEADS]; // sums of a query's high bytes, and of its low bytes
    u32 largest[WARPS];
    u64 key_bars[WARPS], value_bar, exact_bar;
    float balanced[FLOAT_CENTRES ? HEADS : 1][FLOAT_CENTRES ? DIM + 4 : 1]; // queries before their rotation
    int sums[has_zeros(KEYS) ? HEADS : 1][has_zeros(KEYS) ? K_GROUPS : 1]; // of a query's integers
};

// Prepares queries: multiplies with the balance, rotates, and rounds to 16 bits. A warp takes two heads. `fetch`
// runs after queries are requested, because a query requested after pages arrives microseconds later.
template <class Fetch>
__device__ __forceinline__ void prepare(const Params &p, Shared &sh, u8 *exactly, int batch, int kv_head, int first_head, int heads, int warp, int lane,
                                        Fetch fetch) {
    float queries[HEADS / WARPS][VEC] = {}, balance[VEC], prefix[VEC];
    if (is_fields(KEYS)) { // bytes without a coordinate
        for (int i = threadIdx.x; i < PRODUCTS * LANES; i += WARPS * LANES) sh.queries[i / LANES][i % LANES] = uint4{};
        __syncthreads();
    }
    if (has_zeros(KEYS)) {
        for (int i = threadIdx.x; i < HEADS * K_GROUPS; i += WARPS * LANES) sh.sums[i / K_GROUPS][i % K_GROUPS] = 0;
        __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < HEADS / WARPS; k++) {
        const int h = warp + WARPS * k;
        if (h < heads) load_given(queries[k], p.queries, (u64)batch * p.query_heads + first_head + h, p.query_type, lane);
    }
    const float *front = p.fronts + ((u64)(p.one_front ? 0 : batch) * p.kv_heads + kv_head) * 2 * DIM;
    load_lane(balance, front, lane);
    load_lane(prefix, front + DIM, lane);
    fetch();
#pragma unroll
    for (int k = 0; k < HEADS / WARPS; k++) {
        const int h = warp + WARPS * k;
        float v[VEC], base = 0, top = 0;
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            v[i] = queries[k][i] * balance[i];
            if (COARSE_AT) continue;
            base = fmaf(v[i], prefix[i], base);
            if constexpr (FLOAT_CENTRES)
                if (holds(lane)) sh.balanced[h][VEC * lane + i] = v[i];
        }
        if (WARPS * k < heads) { // others are zeros
            if (COARSE_AT) { // weights come later
                sort_channels(v, balance, reinterpret_cast<float *>(sh.weights) + warp * DIM, lane);
#pragma unroll
                for (int i = 0; i < VEC; i++) base = fmaf(v[i], prefix[i], base);
            }
            turn_key(v, p.key_rounds, p.key_signs, lane);
        }
#if OUTLIERS & 1
        for (int i = 0; i < VEC && holds(lane); i++) exact_queries(*reinterpret_cast<Exactly *>(exactly))[h][VEC * lane + i] = v[i] * p.logit_unit;
#endif
#pragma unroll
        for (int i = 0; i < VEC; i++) top = fmaxf(top, fabsf(v[i]));
#pragma unroll
        for (int s = 16; s; s /= 2) {
            if (!COARSE_AT || s < 16) top = fmaxf(top, __shfl_xor_sync(~0u, top, s)); // half of the lanes hold a half of the channels
            base += __shfl_xor_sync(~0u, base, s);
        }
        const float lift = top < 1e-30f ? 1.2676506e30f : 1; // 2^100: for a smaller top, 127 over it is no float
        const float inverse = top > 0 ? 127 / (top * lift) : 0;
        i8 *bytes = reinterpret_cast<i8 *>(sh.queries);
        int2 of_bytes = {};
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const float exact = v[i] * lift * inverse;
            const int high = __float2int_rn(exact), low = min(__float2int_rn((exact - high) * 256), 127);
            int thread, product, half, byte;
            const u32 c = VEC * lane + i;
            if (HOLDING < LANES && c >= (is_fields(KEYS) ? DIM : WIDE)) break;
#if COARSE_AT
            if (c < DIM / 2) fine::place(c, thread, product, half, byte);
            else coarse::place(c - DIM / 2, thread, product, half, byte), product += fine::PRODUCTS;
#else
            place(c, thread, product, half, byte);
#endif
            const int at = ((product * LANES + (h << 2 | thread)) * 4 + 2 * half) * 4 + byte;
            bytes[at] = (i8)high, bytes[at + 4] = (i8)low;
            of_bytes.x += high, of_bytes.y += low;
            if (has_zeros(KEYS) && c < DIM) atomicAdd(&sh.sums[h][c / K_GROUP], 256 * high + low);
        }
        if (is_summed(KEYS)) {
            of_bytes.x = all_sum(of_bytes.x), of_bytes.y = all_sum(of_bytes.y);
            if (lane == 0) sh.bytes[h] = make_int2(SUMMED_KEYS * of_bytes.x, SUMMED_KEYS * of_bytes.y);
        }
        if (lane == 0) sh.base[h] = base * p.logit_unit;
        if (lane % (COARSE_AT ? LANES / 2 : LANES) == 0) sh.unit[COARSE_AT ? lane / (LANES / 2) : 0][h] = top * (1 / (127 * 256.0f));
    }
}

// Applies the soft cap to logits in log2. The loop is not unrolled, because most models have none: its code would fill the
// instruction cache.
template <int COUNT> __device__ __forceinline__ void cap(const Params &p, float (&x)[COUNT]) {
#if OPTIONS
    if (p.soft_cap > 0) {
#pragma unroll 1
        for (int n = 0; n < COUNT; n++) {
            const float capped = p.soft_cap * tanhf(x[0] / p.soft_cap);
#pragma unroll
            for (int i = 1; i < COUNT; i++) x[i - 1] = x[i];
            x[COUNT - 1] = capped;
        }
    }
#endif
}
// Applies bias and hiding to a capped logit.
__device__ __forceinline__ float logit_of(const Params &p, float x, u64 position, u64 start, float bias) {
#if OPTIONS
#if OPTIONS > 1
    x = fmaf(bias, LOG2E, x);
#endif
    if (position < start) x = HIDDEN;
#endif
    return x;
}
__device__ __forceinline__ u64 first_seen(const Params &p, const Sequence &s) {
    return p.window != 0 && s.next > p.window ? s.next - p.window : 0;
}

// Exact tokens in a block's shared memory, where values of pages come later: rows of keys and values, then queries.
// They are requested with the first pages, since each trip to memory takes microseconds.
constexpr int EXACT_ROW = 4 * DIM + 16; // bytes of a token's key and value; 16 more, so that a column uses all banks
constexpr int EXACT_QUERIES = EXACT_TOKENS * EXACT_ROW, EXACT_PART = EXACT_QUERIES + HEADS * DIM * 4;
// The table of fields comes last: with the largest sets it exceeds a kernel's static shared memory.
constexpr int EXACTLY_FROM = V_FROM + ((WARPS * V_PART > EXACT_PART ? WARPS * V_PART : EXACT_PART) + 15) / 16 * 16;
#if OUTLIERS
constexpr int FIELDS_FROM = EXACTLY_FROM + sizeof(Exactly);
#else
constexpr int FIELDS_FROM = EXACTLY_FROM;
#endif

__device__ __forceinline__ void fetch_exact(const Params &p, Shared &sh, u8 *memory, const Sequence &seq, int count, int batch, int kv_head) {
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const u64 stride = (u64)p.kv_heads * 2 * DIM; // from token to token
    const u16 *rows = p.exact + (u64)batch * p.exact_stride * stride + kv_head * 2 * DIM;
    auto row = [&](int token) { return reinterpret_cast<const u8 *>(rows + exact_place(seq, p.ring, blockIdx.x * EXACT_TOKENS + token) * stride); };
#if BULK_COPIES
    if (warp > 0) return;
    if (lane == 0) expect(&sh.exact_bar, max(count, 0) * 4 * DIM);
    __syncwarp();
    if (lane < count) bulk_copy_more(memory + lane * EXACT_ROW, row(lane), 4 * DIM, &sh.exact_bar);
#else
    for (int token = warp; token < EXACT_TOKENS; token += WARPS)
        warp_copy(memory + token * EXACT_ROW, token < count ? row(token) : p.pool, token < count ? 4 * DIM : 0, lane);
#endif
}

// A thread scores one token and head; then a thread sums one coordinate. All in f32.
__device__ __forceinline__ void exact_split(const Params &p, Shared &sh, u8 *memory, const Sequence &seq, int count, int batch, int first_head, int heads,
                                            float *part, float2 *sums) {
    float *queries = reinterpret_cast<float *>(memory + EXACT_QUERIES); // [HEADS][DIM]
    float *weights = reinterpret_cast<float *>(sh.weights);             // [EXACT_TOKENS][HEADS]
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const u64 number = blockIdx.x * EXACT_TOKENS + lane;
    const u64 position = number < seq.sinks ? number : seq.window_start + number - seq.sinks;
    auto await_rows = [&] {
#if BULK_COPIES
        barrier_wait(&sh.exact_bar, 0);
#else
        await_copies<0>();
#endif
    };
#if OPTIONS > 1
    const bool seen = p.bias.of_heads || (lane < count && biases_of(p.bias, seq, batch, p.query_heads, first_head)[position] != HIDDEN);
    if (!__any_sync(~0u, seen)) { // as often in cells, most of whose places are free
        for (int i = threadIdx.x; i < HEADS * DIM / 4; i += blockDim.x) reinterpret_cast<float4 *>(part)[i] = float4{};
        if (threadIdx.x < HEADS) sums[threadIdx.x] = make_float2(NOTHING, 0);
        return await_rows();
    }
#endif
    for (int i = threadIdx.x; i < HEADS * DIM / 4; i += blockDim.x) {
        const u64 from = ((u64)batch * p.query_heads + first_head) * (DIM / 4) + i;
        float4 four = {};
        if (i < heads * DIM / 4 && p.query_type == F32) {
            four = static_cast<const float4 *>(p.queries)[from];
        } else if (i < heads * DIM / 4) {
            const uint2 w = static_cast<const uint2 *>(p.queries)[from];
            four = make_float4(from_half(w.x & 0xFFFF, p.query_type), from_half(w.x >> 16, p.query_type),
                               from_half(w.y & 0xFFFF, p.query_type), from_half(w.y >> 16, p.query_type));
        }
        reinterpret_cast<float4 *>(queries)[i] = four;
    }
    await_rows();
    __syncthreads();
    float dot[HEADS / WARPS][2] = {};
    if (lane < count) {
#pragma unroll 4
        for (int c = 0; c < DIM / 8; c++) {
            const uint4 w = load<uint4>(memory + lane * EXACT_ROW + 16 * c);
            const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float key = from_f16(words[i >> 1] >> (16 * (i & 1)) & 0xFFFF);
#pragma unroll
                for (int k = 0; k < HEADS / WARPS; k++) dot[k][i & 1] = fmaf(queries[(warp + WARPS * k) * DIM + 8 * c + i], key, dot[k][i & 1]);
            }
        }
    }
    const u64 start = number < seq.sinks && p.keep_sinks ? 0 : first_seen(p, seq);
    float logits[HEADS / WARPS];
#pragma unroll
    for (int k = 0; k < HEADS / WARPS; k++) logits[k] = (dot[k][0] + dot[k][1]) * p.logit_unit;
    cap(p, logits);
#pragma unroll
    for (int k = 0; k < HEADS / WARPS; k++) {
        const int h = warp + WARPS * k;
        const float *biases = biases_of(p.bias, seq, batch, p.query_heads, first_head + min(h, heads - 1));
        const float bias = OPTIONS > 1 && lane < count ? biases[position] : 0;
        float x = lane < count ? logit_of(p, logits[k], position, start, bias) : HIDDEN;
        if (bias == HIDDEN) x = HIDDEN; // a row that is not finite must not show where it is hidden
        float top = x;
#pragma unroll
        for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
        top = fmaxf(top, NOTHING);
        x = exp2_fast(x - top);
        weights[lane * HEADS + h] = x;
#pragma unroll
        for (int s = 16; s; s /= 2) x += __shfl_xor_sync(~0u, x, s);
        if (lane == 0) sums[h] = make_float2(top, x);
    }
    __syncthreads();
    // A thread takes two coordinates of half of the heads.
    constexpr int HALF = HEADS / 2;
    for (int i = threadIdx.x; i < DIM; i += LANES * WARPS) {
        const int c = i % (DIM / 2) * 2, h0 = i / (DIM / 2) * HALF;
        float sum[HALF][2] = {};
#pragma unroll 8
        for (int token = 0; token < EXACT_TOKENS; token++) {
            const float4 four = load<float4>(reinterpret_cast<const u8 *>(weights + token * HEADS + h0));
#if OPTIONS > 1 // 0 times infinity is NaN
            const bool seen = token < count && four.x + four.y + four.z + four.w != 0;
#else
            const bool seen = token < count;
#endif
            const u32 two = seen ? load<u32>(memory + token * EXACT_ROW + 2 * DIM + 2 * c) : 0;
            const float of[HALF] = {four.x, four.y, four.z, four.w}, low = from_f16(two & 0xFFFF), high = from_f16(two >> 16);
#pragma unroll
            for (int h = 0; h < HALF; h++) sum[h][0] = fmaf(of[h], low, sum[h][0]), sum[h][1] = fmaf(of[h], high, sum[h][1]);
        }
#pragma unroll
        for (int h = 0; h < HALF; h++) *reinterpret_cast<float2 *>(part + (h0 + h) * DIM + c) = make_float2(sum[h][0], sum[h][1]);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, DIM > 128 ? 2 : 4) attend(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) u8 pages[];
    __shared__ Shared sh;
    FieldTable &fields = *reinterpret_cast<FieldTable *>(pages + FIELDS_FROM); // unused with other keys
    __shared__ u32 entries[ENTRY_WORDS > 0 ? ENTRY_WORDS : 1];
#if COARSE_AT
    static_assert(fine::PRODUCTS + coarse::PRODUCTS == PRODUCTS && sizeof(sh.weights) >= WARPS * DIM * sizeof(float), "queries");
    __shared__ u32 fine_entries[fine::ENTRY_WORDS > 0 ? fine::ENTRY_WORDS : 1], coarse_entries[coarse::ENTRY_WORDS > 0 ? coarse::ENTRY_WORDS : 1];
#endif
    u8 *const my_keys = pages + (threadIdx.x / LANES) * K_PART, *const all_values = pages + V_FROM;
    u8 *const my_values = all_values + (threadIdx.x / LANES) * V_PART;
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, g = lane >> 2, t = lane & 3;
    const int group = p.query_heads / p.kv_heads, chunks = (group + HEADS - 1) / HEADS;
    const int batch = blockIdx.z, kv_head = blockIdx.y / chunks, chunk = blockIdx.y % chunks;
    const int first_head = kv_head * group + chunk * HEADS, heads = min(HEADS, group - chunk * HEADS);
    const Sequence seq = p.sequences[batch];
    // Rows of results: splits of exact tokens, then splits of pages.
    auto rows = [&](int of) { return (((u64)batch * gridDim.y + blockIdx.y) * (p.splits + p.exact_splits) + of) * HEADS; };
    const bool of_exact = blockIdx.x < p.exact_splits, of_pages = p.together || !of_exact;
    // Splits with four slots fewer come first, because they may also take exact tokens.
    const int count = min(EXACT_TOKENS, (int)seq.exact - (int)blockIdx.x * EXACT_TOKENS); // of its exact tokens
    const int slots = seq.slots, fours = (slots + WARPS - 1) / WARPS, split = p.together ? blockIdx.x : blockIdx.x - p.exact_splits;
    const int each = fours / (int)p.splits, fewer = (int)p.splits - fours % (int)p.splits;
    const int first = (split * each + max(0, split - fewer)) * WARPS, last = min(slots, first + (each + (split >= fewer)) * WARPS);
    const u32 *table = p.table + (u64)batch * p.table_stride;
    auto slot_of = [&](int page) { return p.pool + ((u64)table[page] * p.kv_heads + kv_head) * SLOT; };
    auto load_fields = [&] {
        load_entries(entries, p.entries, WARPS * LANES);
#if COARSE_AT
        fine::load_entries(fine_entries, p.entries, WARPS * LANES);
        coarse::load_entries(coarse_entries, p.entries + fine::KeyEntries::COUNT, WARPS * LANES);
#endif
        for (int i = threadIdx.x; is_fields(KEYS) && i < TABLE_WORDS; i += WARPS * LANES) reinterpret_cast<u32 *>(&fields)[i] = p.entries[i];
    };
#if BULK_COPIES
    auto fetch_keys = [&](int page) {
        if (lane == 0 && page < last) bulk_copy(my_keys, slot_of(page), K_PART, &sh.key_bars[warp]);
    };
    auto fetch_values = [&](int page) {
        if (lane != 0) return;
        if (page < last) bulk_copy(my_values, slot_of(page) + K_PART, V_PART, &sh.value_bar);
        else arrive(&sh.value_bar);
    };
    auto wait_keys = [&](u32 phase) { barrier_wait(&sh.key_bars[warp], phase); };
    auto wait_values = [&](u32 phase) { barrier_wait(&sh.value_bar, phase); };
    if (lane == 0) {
        barrier_init(&sh.key_bars[warp], 1);
        if (warp == 0) barrier_init(&sh.value_bar, WARPS), barrier_init(&sh.exact_bar, 1);
        barriers_made();
        if (of_pages) fetch_keys(first + warp);
    }
    load_fields();
    __syncthreads();
#else
    auto fetch_keys = [&](int page) { warp_copy(my_keys, page < last ? slot_of(page) : p.pool, page < last ? K_PART : 0, lane); };
    auto fetch_values = [&](int page) {
        warp_copy(my_values, page < last ? slot_of(page) + K_PART : p.pool, page < last ? V_PART : 0, lane);
    };
    // Keys and values are requested in turns, so that one group may stay on its way.
    auto wait_keys = [&](u32) {
        await_copies<1>();
        __syncwarp();
    };
    auto wait_values = [&](u32) { await_copies<1>(); };
    if (of_pages) fetch_keys(first + warp);
    load_fields();
    if (of_exact) fetch_exact(p, sh, all_values, seq, count, batch, kv_head);
#endif
#if BULK_COPIES
    // Pages were written before the previous kernel began. It may not have ended; its results, exact tokens among them, are
    // read only from here on.
    await_kernel_before();
    if (of_exact) fetch_exact(p, sh, all_values, seq, count, batch, kv_head);
#endif
    if (of_exact) { // in the place of values, while keys are on their way
        exact_split(p, sh, all_values, seq, count, batch, first_head, heads, p.parts + rows(blockIdx.x) * DIM, p.sums + rows(blockIdx.x));
        if (!of_pages) return;
#if BULK_COPIES
        before_bulk_copies();
#endif
        __syncthreads();
    }
    prepare(p, sh, pages + EXACTLY_FROM, batch, kv_head, first_head, heads, warp, lane, [&] { fetch_values(first + warp); });
#if COARSE_AT
    const fine::Table fine_keys = fine::table_of<fine::SHAPE>(p.key_table, lane, p.zero);
    const coarse::Table coarse_keys = coarse::table_of<coarse::SHAPE>(p.coarse_table, lane, p.zero);
#else
    const Table keys = table_of<KEYS>(p.key_table, lane, p.zero);
#endif
    const Table of_values = table_of<VALUES>(p.value_table, lane, p.zero);
    __syncthreads();
    uint4 q[PRODUCTS];
#pragma unroll
    for (int j = 0; j < PRODUCTS; j++) q[j] = sh.queries[j][lane];
    const float unit = sh.unit[0][g] * p.logit_unit, base = sh.base[g];
#if COARSE_AT
    const float of_coarse = sh.unit[1][g] * p.logit_unit;
#endif
    const float *biases = biases_of(p.bias, seq, batch, p.query_heads, first_head + min(g, heads - 1));
    const int2 none = is_summed(KEYS) ? sh.bytes[g] : int2{};

    int acc[OWN][4][4] = {};
    int high_acc[ValueEntries::TWO ? OWN : 1][4][4] = {}; // of entries' high bytes
    float weighed = 0; // sum of the integers of weights
    float zeros[OWN][V_SHARED] = {}; // sums of weights times zeros of groups
    float m = NOTHING, l = 0;
    float norm = 0, step_unit = 0;
    u32 phase = 0;
#if OUTLIERS
    Exactly &exactly = *reinterpret_cast<Exactly *>(pages + EXACTLY_FROM);
#if OUTLIERS & 2
    for (int c = warp; c < DIM / 4; c += WARPS) *own_sum(exactly, c, lane) = 0;
#endif
#endif
    for (int at = first; at < last; at += WARPS, phase ^= 1) {
        const int page = at + warp;
        const u8 *slot = my_keys;
#if BULK_COPIES
        // The last of several rounds starts here. Meanwhile the sum of the splits arrives.
        if (p.several && at + WARPS >= last) let_next_kernel_begin();
#endif
        float x[16], top = HIDDEN;
        uint4 v_steps[2] = {};
        u32 largest = 0;
#if OUTLIERS
        Outliers list = {};
#endif
        if (page < last) {
            wait_keys(phase);
            const Tail tail = load<Tail>(slot + TAIL);
#if OUTLIERS
            list = load<Outliers>(slot + OUTLIERS_AT);
#if OUTLIERS & 1
            const Outlier first_keys = outlier_at(list.records, lane, list.keys);
#endif
#endif
            float bias[16] = {}; // on their way while keys are scored
#if OPTIONS > 1
#pragma unroll
            for (int i = 0; i < 16; i++) bias[i] = biases[tail.position + 32 * (i >> 3) + 8 * t + (i & 7)];
#endif
            float centre = base;
#if COARSE_AT
            if (CENTRES) {
                centre = fmaf(fine::score_centre(q, slot, lane) * unit, p.centre_unit, centre);
                centre = fmaf(coarse::score_centre(q + fine::PRODUCTS, slot + COARSE_AT, lane) * of_coarse, p.centre_unit, centre);
            }
            const float fine_unit = from_f16(tail.key_largest) * p.key_unit * unit;
            const float coarse_unit = from_f16(load<Tail>(slot + COARSE_TAIL).key_largest) * p.coarse_unit * of_coarse;
#else
            if constexpr (FLOAT_CENTRES) {
                float sum = 0;
#pragma unroll 8
                for (int c = t; c < DIM; c += 4) sum = fmaf(sh.balanced[g][c], from_f16(load<u16>(slot + K_CENTRE + 2 * c)), sum);
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                centre = fmaf(sum, p.logit_unit, centre);
            } else if (CENTRES) {
                int c[4] = {};
#pragma unroll
                for (int j = 0; j < PRODUCTS; j++) {
                    const uint2 b = g < 2 ? load<uint2>(slot + K_CENTRE + g * K_WIDE + t * EACH + 8 * j) : make_uint2(0, 0);
                    product_s8(c, q[j], b.x, b.y);
                }
                float sum = fmaf((float)(16 * c[0] + c[1]), 256, (float)(16 * c[2] + c[3]));
                sum = __shfl_sync(~0u, sum, lane & ~3);
                centre = fmaf(sum * unit, from_f16(tail.centre) * p.centre_unit, centre);
            }
#endif
            // Octet t of a tile of 32 has columns 2 t and 2 t + 1 of four products: those of a thread's weights.
            auto score_tile = [&](int tile) {
                const int token = 32 * (tile >> 2) + 8 * (g >> 1) + 2 * (tile & 3) + (g & 1);
                const int tokens = 32 * (tile >> 2) + 8 * t + 2 * (tile & 3);
#if COARSE_AT
                const float2 a = fine::score_half(q, slot, token, tokens, t, fine_keys, fine_entries + lane % fine::KeyEntries::COPIES, fine_unit);
                const float2 b = coarse::score_half(q + fine::PRODUCTS, slot + COARSE_AT, token, tokens, t, coarse_keys,
                                                    coarse_entries + lane % coarse::KeyEntries::COPIES, coarse_unit);
                return make_float2(a.x + b.x, a.y + b.y);
#else
                if constexpr (is_indexed(KEYS)) {
                    return score_indexed(q, slot, token, t, key_entries(entries, lane));
                } else if constexpr (is_fields(KEYS)) {
                    return score_fields([&](int j) { return q[j]; }, slot, token, t, fields);
                } else if constexpr (is_blocks(KEYS)) {
                    return score_blocks([&](int j) { return q[j]; }, slot, token, tokens, t, keys);
                } else if constexpr (is_grouped(KEYS)) {
                    return score_groups(q, slot, token, tokens, t, sh.sums[has_zeros(KEYS) ? g : 0]);
                } else if constexpr (is_sliced(KEYS)) {
                    return score_slices(q, slot, token, t);
                } else {
                    const KeyWords k = load_key(slot, token, t);
                    int c[4] = {none.x, none.x, none.y, none.y};
#pragma unroll
                    for (int j = 0; j < PRODUCTS; j++) score(c, q[j], k, j, keys);
                    return make_float2((float)(c[0] * 256 + c[2]), (float)(c[1] * 256 + c[3]));
                }
#endif
            };
#pragma unroll SCORE_UNROLL
            for (int tile = 0; tile < 8; tile++) {
                const float2 two = score_tile(tile);
#pragma unroll
                for (int i = 0; i < 14; i++) x[i] = x[i + 2]; // so that the loop need not be unrolled
                x[14] = two.x, x[15] = two.y;
            }
#if OUTLIERS & 1
            if (list.keys > 0) score_outliers(exactly, list, first_keys, warp, lane);
#endif
            const float of_norm = (is_blocks(KEYS) ? SCORE_UNIT : in_rows(KEYS) ? 1 : from_f16(tail.key_largest)) * p.key_unit * unit;
#pragma unroll
            for (int tile = 0; tile < 2; tile++) {
                const uint4 k4 = COARSE_AT ? uint4{} : load<uint4>(slot + K_STEPS + 64 * tile + 16 * t);
                if (!is_grouped(VALUES)) v_steps[tile] = load<uint4>(slot + V_STEPS + 64 * tile + 16 * t);
                const u32 steps[4] = {k4.x, k4.y, k4.z, k4.w};
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float &y = x[8 * tile + i];
#if OUTLIERS & 1
                    const float more = list.keys > 0 ? centre + exactly.weights[warp][g][32 * tile + 8 * t + i] : centre;
#else
                    const float more = centre;
#endif
                    const float by = COARSE_AT ? 1 : is_grouped(KEYS) ? of_norm : times_norm<KEYS>(of_norm, steps[i >> 1], i & 1);
                    y = fmaf(y, by, more);
                }
            }
            cap(p, x);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                x[i] = logit_of(p, x[i], tail.position + 32 * (i >> 3) + 8 * t + (i & 7), first_seen(p, seq), bias[i]);
                top = fmaxf(top, x[i]);
            }
            largest = tail.value_largest;
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        } else {
#pragma unroll
            for (int i = 0; i < 16; i++) x[i] = HIDDEN;
        }
        __syncwarp();
        fetch_keys(page + WARPS);
        if (t == 0) sh.top[g][warp] = top;
        if (lane == 0) sh.largest[warp] = largest;
#if OUTLIERS & 2
        if (lane == 0) exactly.lists[warp] = list;
#endif
        __syncthreads();
#if OUTLIERS & 2
        Outlier first_values[WARPS]; // on their way while weights are computed
#pragma unroll
        for (int s = 0; s < WARPS; s++) first_values[s] = outlier_at(value_records(exactly.lists[s]), lane, exactly.lists[s].values);
#endif
        {
            const float4 tops = load<float4>(reinterpret_cast<const u8 *>(sh.top[g]));
            const uint4 all = load<uint4>(reinterpret_cast<const u8 *>(sh.largest));
            const float highest = fmaxf(fmaxf(tops.x, tops.y), fmaxf(tops.z, tops.w));
            const float longest = from_f16(max(max(all.x, all.y), max(all.z, all.w)));
            // The first slot sets both scales, so that weights use all bits. Later the scales grow by powers of
            // two.
            float m_new = m, norm_new = norm;
            int by = 0;
            if (m == NOTHING) {
                m_new = fmaxf(m, highest);
            } else if (highest > m) {
                by = (int)fminf(ceilf(highest - m), 31);
                m_new = m + ceilf(highest - m);
#if OPTIONS > 1
                m_new = fmaxf(m_new, highest); // beyond 2^23 logits are whole numbers, and the sum may be slightly less
#endif
            }
            if (norm == 0) {
                norm_new = longest;
            } else if (longest > norm) {
                const int more = max((int)((__float_as_uint(__fdividef(longest, norm)) + 0x7FFFFF) >> 23) - 127, 1); // log2, rounded up
                by = min(31, by + more);
                norm_new = __uint_as_float(__float_as_uint(norm) + ((u32)more << 23));
            }
            if (__any_sync(~0u, by)) {
                const int half = 1u << by >> 1;
#pragma unroll
                for (int i = 0; i < OWN * 16; i++) {
                    acc[i / 16][i / 4 % 4][i % 4] = (acc[i / 16][i / 4 % 4][i % 4] + half) >> by;
                    if (ValueEntries::TWO) high_acc[i / 16][i / 4 % 4][i % 4] = (high_acc[i / 16][i / 4 % 4][i % 4] + half) >> by;
                }
                weighed *= __uint_as_float((u32)(127 - by) << 23);
                l *= exp2_fast(m - m_new);
#if OUTLIERS & 2
                scale_outliers(exactly, exp2_fast(m - m_new), warp, lane);
#endif
                if (has_zeros(VALUES))
                    for (int i = 0; i < OWN * V_SHARED; i++) zeros[i / V_SHARED][i % V_SHARED] *= exp2_fast(m - m_new);
            }
            if (norm_new != norm) step_unit = norm_new > 0 ? __fdividef(65535 / 32767.0f, norm_new) : 0;
            m = m_new, norm = norm_new;
        }
        const float of_step = (in_rows(VALUES) ? 32767 : from_f16(largest)) * step_unit;
        u32 high_bytes = 0, low_bytes = 0;
#pragma unroll
        for (int tile = 0; tile < 2; tile++) {
            const u32 steps[4] = {v_steps[tile].x, v_steps[tile].y, v_steps[tile].z, v_steps[tile].w};
            u32 w[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float weight = exp2_fast(x[8 * tile + i] - m);
                l += weight;
#if OUTLIERS & 2
                if (list.values > 0) exactly.weights[warp][g][32 * tile + 8 * t + i] = weight;
#endif
                if (is_grouped(VALUES)) {
                    w[i] = __float_as_uint(weight);
                    continue;
                }
                w[i] = __float_as_uint(fmaf(weight, times_norm<VALUES>(of_step, steps[i >> 1], i & 1), 8388608.0f)); // the low 16 bits are the integer
            }
            if constexpr (is_grouped(VALUES)) {
                for (int h = 0; h < 2; h++) sh.weights[2 * warp + tile][h][lane] = make_uint4(w[4 * h], w[4 * h + 1], w[4 * h + 2], w[4 * h + 3]);
                continue;
            }
            u32 a[4];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                four_bytes(a + 2 * h, w + 4 * h);
                if (is_summed(VALUES)) {
                    high_bytes = __dp4a(a[2 * h], 0x01010101u, high_bytes);
                    low_bytes = __dp4a(a[2 * h + 1], 0x01010101u, low_bytes);
                }
            }
            sh.weights[2 * warp + tile][0][lane] = make_uint4(a[0], a[1], a[2], a[3]);
        }
        if (is_summed(VALUES)) weighed += fmaf((float)high_bytes, 256, (float)low_bytes);
        wait_values(phase);
        __syncthreads();
#if OUTLIERS & 2
#pragma unroll
        for (int s = 0; s < WARPS; s++)
            if (exactly.lists[s].values > 0) sum_outliers(exactly, s, first_values[s], warp, lane);
#endif
#pragma unroll SUM_UNROLL
        for (int step = 0; step < 2 * WARPS; step += SHARING) {
            const int mine = step + (SHARING > 1 ? warp / GROUPS : 0);
            const u8 *values = all_values + (mine >> 1) * V_PART;
            if (is_grouped(VALUES) && at + (mine >> 1) >= last) continue; // scales of no slot
#pragma unroll
            for (int k = 0; k < OWN; k++) {
                const int group = SHARING > 1 ? warp % GROUPS : warp + k * WARPS;
                if (GROUPS % WARPS == 0 || SHARING > 1 || group < GROUPS) {
                    if constexpr (is_grouped(VALUES)) {
                        const uint4 *own = &sh.weights[mine][0][lane];
                        const uint4 w[2] = {own[0], own[LANES]};
                        const float weights[8] = {__uint_as_float(w[0].x), __uint_as_float(w[0].y), __uint_as_float(w[0].z), __uint_as_float(w[0].w),
                                                  __uint_as_float(w[1].x), __uint_as_float(w[1].y), __uint_as_float(w[1].z), __uint_as_float(w[1].w)};
                        add_groups(acc[k], zeros[k], weights, 32767 * step_unit, values, mine & 1, group, lane);
                    } else if constexpr (is_indexed(VALUES)) {
                        add_indexed(acc[k], high_acc[ValueEntries::TWO ? k : 0], sh.weights[mine][0][lane], values, mine & 1, group, lane, value_entries(entries, lane));
                    } else {
                        add_values(acc[k], sh.weights[mine][0][lane], values, mine & 1, group, lane, of_values);
                    }
                }
            }
        }
        __syncthreads();
        fetch_values(page + WARPS);
    }
#if BULK_COPIES
    let_next_kernel_begin();
#endif
    l += __shfl_xor_sync(~0u, l, 1);
    l += __shfl_xor_sync(~0u, l, 2);
    weighed += __shfl_xor_sync(~0u, weighed, 1);
    weighed += __shfl_xor_sync(~0u, weighed, 2);
    if (t == 0) sh.sum[warp][g] = l, sh.weighed[warp][g] = weighed;
    const float scale = norm * (1 / 65535.0f) * p.value_unit;
    const u64 results = rows(p.exact_splits + split);
    float *part = p.parts + results * DIM;
    __syncthreads();
    // Once for all tokens, even if warps share coordinates.
    weighed = SHARING > 1 && warp >= GROUPS ? 0 : SUMMED_VALUES * (sh.weighed[0][g] + sh.weighed[1][g] + sh.weighed[2][g] + sh.weighed[3][g]);
    float *other = reinterpret_cast<float *>(sh.weights); // [HEADS][DIM]: sums over parts of the tokens meet here
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        float out[8];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            out[e] = scale * (fmaf((float)acc[k][e][0], 256, (float)acc[k][e][2]) + weighed);
            out[4 + e] = scale * (fmaf((float)acc[k][e][1], 256, (float)acc[k][e][3]) + weighed);
            if (ValueEntries::TWO)
#pragma unroll
                for (int i = 0; i < 2; i++) out[4 * i + e] += scale * 16 * fmaf((float)high_acc[k][e][i], 256, (float)high_acc[k][e][2 + i]);
        }
        if (has_zeros(VALUES)) {
            float of[V_SHARED];
#pragma unroll
            for (int s = 0; s < V_SHARED; s++) {
                of[s] = zeros[k][s];
                of[s] += __shfl_xor_sync(~0u, of[s], 1);
                of[s] += __shfl_xor_sync(~0u, of[s], 2);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] = fmaf(of[V_SHARED > 1 && t >> 1], p.value_unit, out[i]);
        }
        const int c = 32 * (SHARING > 1 ? warp % GROUPS : warp + k * WARPS) + 8 * t, at = g * DIM + c;
        if (SHARING > 1 && warp >= GROUPS)
            for (int i = 0; i < 8; i++) other[at + i] = out[i];
        if (SHARING > 1) __syncthreads();
        if (c >= DIM || (SHARING > 1 && warp >= GROUPS)) continue;
        if (SHARING > 1)
            for (int i = 0; i < 8; i++) out[i] += other[at + i];
#if OUTLIERS & 2
        for (int i = 0; i < 8; i++) out[i] += exact_sums(exactly)[g][c + i];
#endif
        reinterpret_cast<float4 *>(part + at)[0] = make_float4(out[0], out[1], out[2], out[3]);
        reinterpret_cast<float4 *>(part + at)[1] = make_float4(out[4], out[5], out[6], out[7]);
    }
    if (warp == 0 && t == 0) p.sums[results + g] = make_float2(m, sh.sum[0][g] + sh.sum[1][g] + sh.sum[2][g] + sh.sum[3][g]);
}

constexpr int AHEAD = DIM > 128 ? 5 : 9; // splits of a warp that are on their way at once

// Adds all splits of a query head: those of pages are rotated back, then exact ones are added. Divides by the sum
// of weights.
template <int COMBINE_WARPS> __device__ __forceinline__ void combine_splits(const Params &p) {
    __shared__ float tops[COMBINE_WARPS], totals[COMBINE_WARPS], rows[2][COMBINE_WARPS][DIM];
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int head = blockIdx.x, batch = blockIdx.y, group = p.query_heads / p.kv_heads, chunks = (group + HEADS - 1) / HEADS;
    const int of_group = head % group, splits = p.splits + p.exact_splits;
    const u64 unit = ((u64)batch * p.kv_heads + head / group) * chunks + of_group / HEADS;
    const float2 *sums = p.sums + unit * splits * HEADS + of_group % HEADS;
    const float *parts = p.parts + (unit * splits * HEADS + of_group % HEADS) * DIM;
    const float sink = p.sink_logits ? p.sink_logits[head] * LOG2E : HIDDEN;
#if BULK_COPIES
    // The next kernel may request its pages now; it waits before it writes.
    let_next_kernel_begin();
    await_kernel_before();
#endif
    // The first splits of a warp are requested before the maximum is known.
    float ahead[AHEAD][VEC];
    float2 of_ahead[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int s = warp + k * COMBINE_WARPS;
        if (s < splits) {
            of_ahead[k] = sums[s * HEADS];
            load_lane(ahead[k], parts + (u64)s * HEADS * DIM, lane);
        }
    }
    float top = fmaxf(sink, NOTHING);
    for (int s = threadIdx.x; s < splits; s += blockDim.x) top = fmaxf(top, sums[s * HEADS].x);
#pragma unroll
    for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
    if (lane == 0) tops[warp] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < COMBINE_WARPS; w++) top = fmaxf(top, tops[w]);
    float total = 0, sum[2][VEC] = {};
    auto add = [&](int s, float2 ml, const float (&part)[VEC]) {
        const float weight = exp2_fast(ml.x - top), of_exact = s < p.exact_splits ? weight : 0, of_pages = s < p.exact_splits ? 0 : weight;
        total = fmaf(ml.y, weight, total);
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[0][i] = fmaf(part[i], of_exact, sum[0][i]), sum[1][i] = fmaf(part[i], of_pages, sum[1][i]);
    };
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (warp + k * COMBINE_WARPS < splits) add(warp + k * COMBINE_WARPS, of_ahead[k], ahead[k]);
#pragma unroll 4
    for (int s = warp + AHEAD * COMBINE_WARPS; s < splits; s += COMBINE_WARPS) {
        float part[VEC];
        load_lane(part, parts + (u64)s * HEADS * DIM, lane);
        add(s, sums[s * HEADS], part);
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (holds(lane)) rows[k][warp][VEC * lane + i] = sum[k][i];
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    if (warp > 0) return;
    total = exp2_fast(sink - top);
    for (int w = 0; w < COMBINE_WARPS; w++) total += totals[w];
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        sum[0][i] = sum[1][i] = 0;
        for (int w = 0; w < COMBINE_WARPS && holds(lane); w++) sum[0][i] += rows[0][w][VEC * lane + i], sum[1][i] += rows[1][w][VEC * lane + i];
    }
    for (u32 round = 0; round < p.value_rounds; round++) {
        hadamard<true>(sum[1], lane);
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[1][i] = signed_by(sum[1][i] * INVERSE_SQRT, p.value_signs, VEC * lane + i);
    }
    const float inverse = total > 0 ? 1 / total : 0; // zeros if nothing is visible
#pragma unroll
    for (int i = 0; i < VEC; i++) sum[0][i] = (sum[0][i] + sum[1][i]) * inverse;
    store_given(p.output, (u64)batch * p.query_heads + head, p.output_type, sum[0], lane);
}

extern "C" __global__ void __launch_bounds__(32 * 16) combine(const __grid_constant__ Params p) { combine_splits<16>(p); }
// For a small number of splits: more query heads on a multiprocessor at once.
extern "C" __global__ void __launch_bounds__(32 * 5) combine_few(const __grid_constant__ Params p) { combine_splits<5>(p); }
