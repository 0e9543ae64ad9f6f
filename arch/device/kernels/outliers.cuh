// Outliers: chunks of four values that a page keeps exactly (`med` of specs). Their codes decode to 0. Attention
// adds their values in the basis of the codes.
//
// A slot's outliers are consecutive: those of keys by token, then those of values by chunk. Each has three words:
//   token of the slot + 256 · chunk │ f16, f16 │ f16, f16
#if OUTLIERS
struct Outlier {
    u32 where, low, high;
    __device__ __forceinline__ int token() const { return where & 0xFF; }
    __device__ __forceinline__ int chunk() const { return where >> 8; }
    __device__ __forceinline__ float value(int e) const { return from_f16((e & 2 ? high : low) >> (16 * (e & 1)) & 0xFFFF); }
};
// Loads outlier `at` of a list; zeros beyond its end.
__device__ __forceinline__ Outlier outlier_at(const u32 *records, int at, int count) {
    Outlier o = {};
    if (at < count) o.where = records[3 * at], o.low = records[3 * at + 1], o.high = records[3 * at + 2];
    return o;
}
__device__ __forceinline__ Outlier of_lane(const Outlier &o, int lane) {
    return {__shfl_sync(~0u, o.where, lane), __shfl_sync(~0u, o.low, lane), __shfl_sync(~0u, o.high, lane)};
}
__device__ __forceinline__ const u32 *value_records(const Outliers &list) { return list.records + 3 * list.keys; }

// Memory of a step's block of threads for outliers.
struct Exactly {
    float weights[WARPS][HEADS][SLOT_TOKENS + 4]; // of a warp's slot: terms of logits, then weights
    float rows[OUTLIERS == 3 ? 2 : 1][HEADS][DIM + 4]; // queries, rotated and in the unit of logits; sums of values
    Outliers lists[WARPS];
};
static_assert(sizeof(Exactly) % 16 == 0, "what follows is aligned");
__device__ __forceinline__ float (&exact_queries(Exactly &all))[HEADS][DIM + 4] { return all.rows[0]; }
__device__ __forceinline__ float (&exact_sums(Exactly &all))[HEADS][DIM + 4] { return all.rows[OUTLIERS == 3]; }

// Computes with a warp what a slot's keys add to logits. `first` are the first outliers of each lane. Each of four
// threads takes every fourth outlier, for its query. Outliers of one token are added in turns.
__device__ __forceinline__ void score_outliers(Exactly &all, const Outliers &list, Outlier first, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3;
    float *sums = all.weights[warp][g];
#pragma unroll
    for (int i = 0; i < SLOT_TOKENS / 4; i += 4) *reinterpret_cast<float4 *>(sums + SLOT_TOKENS / 4 * t + i) = make_float4(0, 0, 0, 0);
    __syncwarp();
    for (int from = 0; from < list.keys; from += LANES) {
        const Outlier next = outlier_at(list.records, from + LANES + lane, list.keys);
        const int count = min(LANES, list.keys - from);
        for (int i = 0; i < count; i += 4) {
            const Outlier o = of_lane(first, i + t);
            const float4 q = load<float4>(reinterpret_cast<const u8 *>(exact_queries(all)[g] + 4 * o.chunk()));
            const float dot = fmaf(q.x, o.value(0), q.y * o.value(1)) + fmaf(q.z, o.value(2), q.w * o.value(3));
#pragma unroll
            for (int turn = 0; turn < 4; turn++) {
                if (t == turn && i + t < count) sums[o.token()] += dot;
                __syncwarp();
            }
        }
        first = next;
    }
}

// Sums values. A warp takes every fourth chunk; a lane takes a coordinate of it for one query.
__device__ __forceinline__ float *own_sum(Exactly &all, int chunk, int lane) { return exact_sums(all)[lane >> 2] + 4 * chunk + (lane & 3); }
__device__ __forceinline__ void scale_outliers(Exactly &all, float by, int warp, int lane) {
    for (int chunk = warp; chunk < DIM / 4; chunk += WARPS) *own_sum(all, chunk, lane) *= by;
}
// Adds weights times the values of slot number `slot` of these. `first` are the first outliers of each lane.
__device__ __forceinline__ void sum_outliers(Exactly &all, int slot, Outlier first, int warp, int lane) {
    const Outliers list = all.lists[slot];
    const float *weights = all.weights[slot][lane >> 2];
    int chunk = warp;
    float sum = *own_sum(all, chunk, lane);
    for (int from = 0; from < list.values; from += LANES) {
        const Outlier next = outlier_at(value_records(list), from + LANES + lane, list.values);
        u32 mine = __ballot_sync(~0u, from + lane < list.values && first.chunk() % WARPS == warp);
        for (; mine; mine &= mine - 1) {
            const Outlier o = of_lane(first, __popc((mine & (0 - mine)) - 1));
            if (o.chunk() != chunk) {
                *own_sum(all, chunk, lane) = sum;
                chunk = o.chunk(), sum = *own_sum(all, chunk, lane);
            }
            sum = fmaf(weights[o.token()], o.value(lane & 3), sum);
        }
        first = next;
    }
    *own_sum(all, chunk, lane) = sum;
}
#endif
