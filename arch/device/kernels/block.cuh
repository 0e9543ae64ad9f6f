// ---- products ---------------------------------------------------------------------------------------------------------

// Sums of columns 8 j + 2 t and the next: row g in [4 j] and [4 j + 1], row g + 8 in [4 j + 2] and [4 j + 3]. Two
// tiles at a time.
constexpr int SCORES = TILE / 2, OUTPUTS = COLUMNS / 2, BOTH = 2 * SCORES;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define R4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define R16(x, i) R4(x, i), R4(x, i + 4), R4(x, i + 8), R4(x, i + 12)
// Returns where a tile of rows of 128 bytes, exchanged as above, begins. Eight rows are 1,024 bytes.
__device__ __forceinline__ u64 described(u32 address) { return (u64)(address >> 4 & 0x3FFF) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
__device__ __forceinline__ void group_product(float (&c)[32], const u32 *a, u64 b, int add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
        : R16(c, 0), R16(c, 16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void group_product(float (&c)[48], const u32 *a, u64 b, int add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %53, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "
        "{%48,%49,%50,%51}, %52, p, 1, 1, 0;}"
        : R16(c, 0), R16(c, 16), R16(c, 32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void group_product(float (&c)[64], const u32 *a, u64 b, int add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "{%64,%65,%66,%67}, %68, p, 1, 1, 0;}"
        : R16(c, 0), R16(c, 16), R16(c, 32), R16(c, 48)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// Keeps the compiler from moving registers of products that are on their way.
template <int N> __device__ __forceinline__ void hold(float (&c)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}
__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ void score_tiles(float (&c)[2][SCORES], const u32 (&q)[ROW / 4], const u8 *keys, const u8 *next) {
    hold(c[0]), hold(c[1]);
    begin();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int k = 0; k < ROW / 16; k++)
            group_product(c[i], q + 4 * k, described(shared_address(i ? next : keys) + k / 4 * (TILE * 128) + k % 4 * 32), k > 0);
    commit();
}
__device__ __forceinline__ void sum_tiles(float (&c)[OUTPUTS], const u32 (&w)[2][TILE / 4], const u8 *values, const u8 *next) {
    hold(c);
    begin();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) group_product(c, w[i] + 4 * k, described(shared_address(i ? next : values) + k * 32), 1);
    commit();
}
#else
// Products with both, or with one.
template <int FIRST = 0, int END = 2> __device__ __forceinline__ void score_tiles(float (&c)[2][SCORES], const u32 (&q)[ROW / 4], const u8 *keys, const u8 *next) {
    const int g = threadIdx.x % LANES >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int i = FIRST; i < END; i++)
#pragma unroll
        for (int j = 0; j < TILE / 8; j++) {
            const u8 *tile = i ? next : keys;
            float *sums = c[i] + 4 * j;
            sums[0] = sums[1] = sums[2] = sums[3] = 0;
#pragma unroll
            for (int k = 0; k < ROW / 16; k++)
                product_f16(sums, q + 4 * k, load<u32>(tile + key_byte(8 * j + g, 16 * k + 2 * t)), load<u32>(tile + key_byte(8 * j + g, 16 * k + 8 + 2 * t)));
        }
}
__device__ __forceinline__ void sum_tiles(float (&c)[OUTPUTS], const u32 (&w)[2][TILE / 4], const u8 *values, const u8 *next) {
    const int g = threadIdx.x % LANES >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
            for (int k = 0; k < TILE / 16; k++) {
                const u8 *tile = i ? next : values;
                product_f16(c + 4 * j, w[i] + 4 * k, load<u32>(tile + value_byte(16 * k + 2 * t, 8 * j + g)), load<u32>(tile + value_byte(16 * k + 8 + 2 * t, 8 * j + g)));
            }
}
#endif

// ---- softmax ----------------------------------------------------------------------------------------------------------

// A tile relative to the block's first query: position of its first token, number of tokens, and whether they are
// visible from everywhere.
struct Seen {
    int number, relative;
    short count, always;
#if OPTIONS > 1
    u32 position; // of its first token, for biases; below 2^32
#endif
};

// A thread's two rows.
struct Softmax {
    float unit[2], base[2], m[2], l[2];
    int query[2], first, last; // of the rows; of the warp's first and last
    int window;
#if OPTIONS > 1
    const float *biases[2];
#endif
};

// The maximum is raised only if logits exceed it by 2^8 or more. So sums are seldom shifted, and weights fit f16
// well.
constexpr float SLACK = 8;

// Turns products into weights. `shift` is the factor for earlier sums.
__device__ __forceinline__ void weigh(const Block &p, float (&x)[2][SCORES], Softmax &s, const Seen *tiles, float (&shift)[2]) {
    const int t = threadIdx.x & 3;
    float unit[2] = {s.unit[0], s.unit[1]}, base[2] = {s.base[0], s.base[1]};
#if OPTIONS
    if (p.soft_cap > 0) {
#pragma unroll
        for (int i = 0; i < BOTH; i++) {
            float &y = x[i / SCORES][i % SCORES];
            y = p.soft_cap * tanhf(fmaf(y, unit[i >> 1 & 1], base[i >> 1 & 1]) / p.soft_cap);
        }
        unit[0] = unit[1] = 1, base[0] = base[1] = 0;
    }
#if OPTIONS > 1
#pragma unroll
    for (int i = 0; i < BOTH; i++) {
        const Seen &tile = tiles[i / SCORES];
        const int r = i >> 1 & 1, token = 8 * (i % SCORES >> 2) + 2 * t + (i & 1);
        const float bias = token < tile.count ? s.biases[r][tile.position + token] : 0;
        float &y = x[i / SCORES][i % SCORES];
        y = fmaf(bias, LOG2E, fmaf(y, unit[r], base[r]));
    }
    unit[0] = unit[1] = 1, base[0] = base[1] = 0;
#endif
#endif
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const Seen tile = tiles[k];
        if (tile.count < TILE || tile.relative + TILE - 1 > s.first || (!tile.always && tile.relative <= s.last - s.window)) {
#pragma unroll
            for (int i = 0; i < SCORES; i++) {
                const int token = 8 * (i >> 2) + 2 * t + (i & 1), at = tile.relative + token, query = s.query[i >> 1 & 1];
                if (token >= tile.count || at > query || (!tile.always && at <= query - s.window)) x[k][i] = HIDDEN;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float tops[4] = {HIDDEN, HIDDEN, HIDDEN, HIDDEN}, sums[4] = {};
#pragma unroll
        for (int i = 0; i < SCORES; i += 4)
#pragma unroll
            for (int k = 0; k < 4; k++) tops[k] = fmaxf(tops[k], x[k >> 1][i + 2 * r + (k & 1)]);
        float top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        top = fmaf(top, unit[r], base[r]);
        const float m = top > s.m[r] + SLACK ? top : s.m[r];
        shift[r] = exp2_fast(s.m[r] - m);
        s.m[r] = m;
        const float less = base[r] - m;
#pragma unroll
        for (int i = 0; i < SCORES; i += 4)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float &y = x[k >> 1][i + 2 * r + (k & 1)];
                y = exp2_fast(fmaf(y, unit[r], less)), sums[k] += y;
            }
        s.l[r] = fmaf(s.l[r], shift[r], (sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
}
__device__ __forceinline__ void shift_sums(float (&o)[OUTPUTS], const float (&shift)[2]) {
    if (!__any_sync(~0u, shift[0] != 1 || shift[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) o[i] *= shift[i >> 1 & 1];
}
__device__ __forceinline__ void to_operands(u32 (&w)[2][TILE / 4], const float (&x)[2][SCORES]) {
#pragma unroll
    for (int i = 0; i < BOTH / 2; i++) w[i / (TILE / 4)][i % (TILE / 4)] = two_f16(x[i / (TILE / 4)][2 * i % SCORES], x[i / (TILE / 4)][2 * i % SCORES + 1]);
}

// ---- 128 rows ---------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) block(const __grid_constant__ Block p) {
    extern __shared__ u8 whole[]; // [STAGES][two of keys, two of values], aligned to 1,024
    u8 *memory = whole + (1024 - shared_address(whole) % 1024) % 1024;
    __shared__ Seen list[TILES_AT_ONCE + 1];
    __shared__ int listed;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ u64 keys_here[STAGES], values_here[STAGES], keys_free[STAGES], values_free[STAGES];
#endif
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, g = lane >> 2, t = lane & 3;
    const int side = blockIdx.x % SIDES, number = blockIdx.x / SIDES, blocks = gridDim.x / SIDES;
    const int split = number % p.splits, first_row = (blocks / p.splits - 1 - number / p.splits) * ROWS;
    const int head = blockIdx.y, sequence = blockIdx.z, group = p.query_heads / p.kv_heads;
    const u64 unit = (u64)sequence * p.kv_heads + head;
    const Sequence seq = p.sequences[sequence];
    const u64 begins = p.position == ~0ull ? seq.next - p.queries_each : p.position;
    const int window = p.window == 0 || p.window > 1 << 30 ? 1 << 30 : (int)p.window;
    const u32 all = tiles_of(seq);
    const int tiles = all > p.first_tile ? (int)min(all - p.first_tile, p.at_once) : 0;
    // Tiles that are visible from some row.
    if (warp == 0) {
        const int from = first_row / group, to = min((int)p.queries_each - 1, (first_row + ROWS - 1) / group);
        int count = 0;
        for (int at = 0; at < tiles; at += LANES) {
            Seen seen;
            bool mine = false;
            if (at + lane < tiles) {
                const Tile tile = p.tiles[(u64)sequence * p.at_once + at + lane];
                const long long away = (long long)(tile.position - begins);
                seen.number = at + lane, seen.relative = (int)max(-(1ll << 30), min(1ll << 30, away));
#if OPTIONS > 1
                seen.position = (u32)tile.position;
#endif
                seen.count = tile.count, seen.always = tile.sinks && p.keep_sinks || window == 1 << 30;
                mine = seen.relative <= to && (seen.always || seen.relative + (int)tile.count - 1 > from - window);
            }
            const u32 those = __ballot_sync(~0u, mine);
            if (mine) list[count + __popc(those & ((1u << lane) - 1))] = seen;
            count += __popc(those);
        }
        __syncwarp();
        // Two tiles at a time. An odd last tile is paired with itself, and the copy is invisible.
        if (lane == 0 && count & 1) list[count] = list[count - 1], list[count].count = 0;
        if (lane == 0) listed = (count + 1) / 2;
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(&keys_here[s], 2), barrier_init(&values_here[s], 2);
            barrier_init(&keys_free[s], ROW_WARPS), barrier_init(&values_free[s], ROW_WARPS);
        }
        barriers_made();
    }
#endif
    __syncthreads();
    const int first = listed * split / (int)p.splits, count = listed * (split + 1) / (int)p.splits - first;
    if (count == 0 && p.first_tile > 0) return;
    const u8 *tokens = p.tokens + unit * p.at_once * 2 * TILE_BYTES;
    const Seen *pairs = list + 2 * first;
    auto source = [&](int tile) { return tokens + (u64)pairs[tile].number * 2 * TILE_BYTES; };
    auto values_source = [&](int tile) { return source(tile) + TILE_BYTES + side * VALUE_BYTES; };
    auto keys_of = [&](int k, int second) { return memory + k % STAGES * STAGE_BYTES + second * TILE_BYTES; };
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr bool IN_TURN = false;
#elif PORTABLE
    constexpr bool IN_TURN = true; // AMD's multiprocessors have 64 KB: a tile of keys, the next one, then values
#else
    constexpr bool IN_TURN = SIDES > 1; // values overwrite keys where both do not fit
#endif
    auto values_of = [&](int k, int second) { return keys_of(k, 0) + (IN_TURN ? 0 : 2 * TILE_BYTES) + second * VALUE_BYTES; };
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    auto bring_keys = [&](int k) {
        if (threadIdx.x > 0 || k >= count) return;
        if (k >= STAGES) barrier_wait(&keys_free[k % STAGES], (k / STAGES - 1) & 1);
        for (int i = 0; i < 2; i++) bulk_copy(keys_of(k, i), source(2 * k + i), TILE_BYTES, &keys_here[k % STAGES]);
    };
    auto bring_values = [&](int k) {
        if (threadIdx.x > 0 || k >= count) return;
        if (k >= STAGES) barrier_wait(&values_free[k % STAGES], (k / STAGES - 1) & 1);
        for (int i = 0; i < 2; i++) bulk_copy(values_of(k, i), values_source(2 * k + i), VALUE_BYTES, &values_here[k % STAGES]);
    };
    for (int k = 0; k <= AHEAD; k++) bring_keys(k), bring_values(k);
#endif
    const int row = first_row + warp * 16 + g;
    const u64 rows = unit * p.padded + row, stride = (u64)gridDim.z * p.kv_heads * p.padded, part = split * stride + rows;
    // Both sides have their own sums, with the same bits, because one may write before the other has read.
    float2 *own_sums = p.sums + side * p.splits * stride + part;
    float *own_parts = p.parts + part * ROW + side * COLUMNS;
    u32 q[ROW / 4];
#pragma unroll
    for (int i = 0; i < ROW / 4; i++)
        q[i] = *reinterpret_cast<const u32 *>(p.query_rows + (rows + (i & 1 ? 8 : 0)) * ROW + 16 * (i >> 2) + (i & 2 ? 8 : 0) + 2 * t);
    Softmax s;
    float o[OUTPUTS];
    s.window = window;
    s.first = (row - g) / group, s.last = (row - g + 15) / group;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 units = p.units[rows + 8 * r];
        s.unit[r] = units.x, s.base[r] = units.y, s.query[r] = (row + 8 * r) / group;
        const float2 sums = p.first_tile > 0 ? own_sums[8 * r] : make_float2(NOTHING, 0);
        s.m[r] = sums.x, s.l[r] = t == 0 ? sums.y : 0;
#if OPTIONS > 1
        s.biases[r] = biases_of(p.bias, seq, sequence, p.query_heads, head * group + (row + 8 * r) % group);
#endif
    }
#pragma unroll
    for (int i = 0; i < OUTPUTS; i += 2) {
        const float2 two = p.first_tile > 0
            ? *reinterpret_cast<const float2 *>(own_parts + (i & 2 ? 8 : 0) * ROW + 8 * (i >> 2) + 2 * t)
            : make_float2(0, 0);
        o[i] = two.x, o[i + 1] = two.y;
    }
    float x[2][SCORES], shift[2];
    u32 w[2][TILE / 4];
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (count > 0) {
        barrier_wait(&keys_here[0], 0);
        score_tiles(x, q, keys_of(0, 0), keys_of(0, 1));
        wait<0>();
        hold(x[0]), hold(x[1]);
        if (lane == 0) arrive(&keys_free[0]);
        weigh(p, x, s, pairs, shift);
        shift_sums(o, shift);
        to_operands(w, x);
        // The scores of two tiles are computed while the two tiles before are summed.
        for (int k = 1; k < count; k++) {
            barrier_wait(&keys_here[k % STAGES], k / STAGES & 1);
            score_tiles(x, q, keys_of(k, 0), keys_of(k, 1));
            barrier_wait(&values_here[(k - 1) % STAGES], (k - 1) / STAGES & 1);
            sum_tiles(o, w, values_of(k - 1, 0), values_of(k - 1, 1));
            bring_keys(k + AHEAD);
            if (STAGES > 2) bring_values(k + AHEAD);
            __syncwarp();
            wait<1>();
            hold(x[0]), hold(x[1]);
            if (lane == 0) arrive(&keys_free[k % STAGES]);
            weigh(p, x, s, pairs + 2 * k, shift);
            wait<0>();
            hold(o);
            if (lane == 0) arrive(&values_free[(k - 1) % STAGES]);
            if (STAGES == 2) {
                bring_values(k + AHEAD);
                __syncwarp();
            }
            shift_sums(o, shift);
            to_operands(w, x);
        }
        barrier_wait(&values_here[(count - 1) % STAGES], (count - 1) / STAGES & 1);
        sum_tiles(o, w, values_of(count - 1, 0), values_of(count - 1, 1));
        wait<0>();
        hold(o);
    }
#else
    for (int k = 0; k < count; k++) {
        auto copy = [](u8 *to, const u8 *from, int bytes) {
            for (int at = 16 * threadIdx.x; at < bytes; at += 16 * BLOCK_THREADS)
                copy_16(to, from, at);
        };
        auto copied = [] {
            end_copies();
            await_copies<0>();
            __syncthreads();
        };
#if PORTABLE
        u8 *keys = keys_of(k, 0);
        copy(keys, source(2 * k), TILE_BYTES);
        copied();
        score_tiles<0, 1>(x, q, keys, keys);
        __syncthreads();
        copy(keys, source(2 * k + 1), TILE_BYTES);
        copied();
        score_tiles<1, 2>(x, q, keys, keys);
#else
        for (int i = 0; i < 2; i++) {
            copy(keys_of(k, i), source(2 * k + i), TILE_BYTES);
            if (!IN_TURN) copy(values_of(k, i), values_source(2 * k + i), VALUE_BYTES);
        }
        copied();
        score_tiles(x, q, keys_of(k, 0), keys_of(k, 1));
#endif
        weigh(p, x, s, pairs + 2 * k, shift);
        shift_sums(o, shift);
        to_operands(w, x);
        if (IN_TURN) {
            __syncthreads();
            for (int i = 0; i < 2; i++) copy(values_of(k, i), values_source(2 * k + i), VALUE_BYTES);
            copied();
        }
        sum_tiles(o, w, values_of(k, 0), values_of(k, 1));
        __syncthreads();
    }
#endif
#pragma unroll
    for (int i = 0; i < OUTPUTS; i += 2)
        *reinterpret_cast<float2 *>(own_parts + (i & 2 ? 8 : 0) * ROW + 8 * (i >> 2) + 2 * t) = make_float2(o[i], o[i + 1]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float l = s.l[r];
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        if (t == 0) own_sums[8 * r] = make_float2(s.m[r], l);
    }
}

extern "C" __global__ void __launch_bounds__(128) finish(const __grid_constant__ Block p) {
    const int lane = threadIdx.x % LANES, head = blockIdx.y, sequence = blockIdx.z;
    const u32 group = p.query_heads / p.kv_heads, row = blockIdx.x * 4 + threadIdx.x / LANES;
    if (row >= p.queries_each * group) return;
    const u64 unit = (u64)sequence * p.kv_heads + head, at = unit * p.padded + row, stride = (u64)gridDim.z * p.kv_heads * p.padded;
    const u32 query_head = head * group + row % group;
    const float sink = p.sink_logits ? p.sink_logits[query_head] * LOG2E : HIDDEN;
    float top = fmaxf(sink, NOTHING), sum[VEC] = {};
    for (u32 s = 0; s < p.splits; s++) top = fmaxf(top, p.sums[s * stride + at].x);
    float total = exp2_fast(sink - top);
    for (u32 s = 0; s < p.splits; s++) {
        const float2 ml = p.sums[s * stride + at];
        const float weight = exp2_fast(ml.x - top);
        float part[VEC];
        load_lane(part, p.parts + (s * stride + at) * ROW, lane);
        total = fmaf(ml.y, weight, total);
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[i] = fmaf(part[i], weight, sum[i]);
    }
    for (u32 round = 0; round < p.value_rounds; round++) {
        hadamard<true>(sum, lane);
#pragma unroll
        for (int i = 0; i < VEC; i++) sum[i] = signed_by(sum[i] * INVERSE_SQRT, p.value_signs, VEC * lane + i);
    }
    const float inverse = total > 0 ? 1 / (total * p.scales[unit].y) : 0; // zeros if nothing is visible
#pragma unroll
    for (int i = 0; i < VEC; i++) sum[i] *= inverse;
    store_given(p.output, ((u64)sequence * p.query_heads + query_head) * p.queries_each + row / group, p.output_type, sum, lane);
}
