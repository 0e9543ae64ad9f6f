// Integers with a scale, and possibly a zero, for each group or row: x = scale · integer + zero.
//
// Integers are signed here: the code minus half of all codes. So a zero of unsigned codes also contains the scale
// times that half. Integers of slices.cuh are larger by a power of two, and so are all terms that are added to
// them.
//
//   keys      product j covers coordinates 32 j to 32 j + 31, in halves of sixteen. No group is smaller than a half.
//             Products of a group are summed as integers, groups in f32.
//   values    weights times the scales of a group are operands of their own; zeros are summed with weights in f32.

constexpr int K_GROUP = group_of(KEYS), V_GROUP = group_of(VALUES);
constexpr int K_GROUPS = DIM / K_GROUP, V_GROUPS = DIM / V_GROUP;
constexpr int K_EACH = has_zeros(KEYS) ? 2 : 1, V_EACH = has_zeros(VALUES) ? 2 : 1; // fields of a group
constexpr int V_SHARED = V_GROUP < 32 ? 2 : 1; // groups that share 32 coordinates of a value
constexpr float half_of_codes(int shape) { return has_zeros(shape) ? is_sliced(shape) ? 128 : 1 << (code_bits(shape) - 1) : 0; }

// Expands nibbles to bytes, minus 8.
__device__ __forceinline__ u32 less_eight(u32 nibbles) { return ((nibbles | 0x80808080u) - 0x08080808u) ^ 0x80808080u; }

// Returns a word of an operand: half h of product j of a thread's coordinates of a key.
__device__ __forceinline__ u32 key_half(const KeyWords &k, int j, int h) {
    return code_bits(KEYS) == 8 ? k.low[(2 * j + h) % CODE_WORDS] : less_eight(k.low[j] >> (4 * h) & 0x0F0F0F0F);
}
__device__ __forceinline__ u32 key_half(const KeySlices &k, int j, int h) { return k.half(j, h); }
template <int SHAPE> __device__ __forceinline__ auto key_integers(const u8 *slot, int token, int t) {
    if constexpr (is_sliced(SHAPE)) return KeySlices(slot, token, t);
    else return load_key(slot, token, t);
}

// Scores the same columns as below, for integers with one scale for a row.
__device__ __forceinline__ float2 score_slices(const uint4 (&q)[PRODUCTS], const u8 *slot, int token, int t) {
    const KeySlices k(slot, token, t);
    int c[4] = {};
#pragma unroll
    for (int j = 0; j < PRODUCTS; j++) product_s8(c, q[j], k.half(j, 0), k.half(j, 1));
    return make_float2((float)(c[0] * 256 + c[2]), (float)(c[1] * 256 + c[3]));
}

// Scores columns 2 t and 2 t + 1 of a tile of keys: `tokens` and the next, in the query's integers. `sums` are the
// sums of the query's groups.
__device__ __forceinline__ float2 score_groups(const uint4 (&q)[PRODUCTS], const u8 *slot, int token, int tokens, int t, const int *sums) {
    const auto k = key_integers<KEYS>(slot, token, t);
    auto halves = [&](int field) { return load<u32>(slot + K_STEPS + 2 * (field * SLOT_TOKENS + tokens)); };
    float2 both = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < K_GROUPS; i++) {
        int c[4] = {};
        if (K_GROUP < 32) half_product_s8(c, i & 1 ? q[i >> 1].z : q[i >> 1].x, i & 1 ? q[i >> 1].w : q[i >> 1].y, key_half(k, i >> 1, i & 1));
        else
            for (int j = i * K_GROUP / 32; j < ((i + 1) * K_GROUP + 31) / 32; j++) product_s8(c, q[j], key_half(k, j, 0), key_half(k, j, 1));
        const u32 scales = halves(K_EACH * i);
        const float low = from_f16(scales & 0xFFFF), high = from_f16(scales >> 16);
        both.x = fmaf((float)(c[0] * 256 + c[2]), low, both.x), both.y = fmaf((float)(c[1] * 256 + c[3]), high, both.y);
        if (has_zeros(KEYS)) {
            const u32 zeros = halves(K_EACH * i + 1);
            both.x = fmaf((float)sums[i], fmaf(half_of_codes(KEYS), low, from_f16(zeros & 0xFFFF) * sliced_factor(KEYS)), both.x);
            both.y = fmaf((float)sums[i], fmaf(half_of_codes(KEYS), high, from_f16(zeros >> 16) * sliced_factor(KEYS)), both.y);
        }
    }
    return both;
}

// Returns one field of eight tokens as floats.
__device__ __forceinline__ void load_field(float (&x)[8], const u8 *fields, int field, int token) {
    const uint4 four = load<uint4>(fields + 2 * (field * SLOT_TOKENS + token));
    const u32 words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = from_f16(words[i >> 1] >> (16 * (i & 1)) & 0xFFFF);
}

// Adds four products of a tile of 32 tokens, as `add_values` does. `weights` belong to a lane's eight tokens;
// `of_step` makes integers of them.
__device__ __forceinline__ void add_groups(int (&c)[4][4], float (&zero)[V_SHARED], const float (&weights)[8], float of_step, const u8 *values,
                                           int tile, int group, int lane) {
    constexpr bool SLICED = is_sliced(VALUES);
    constexpr int BITS = SLICED ? code_bits(VALUES) : is_byte(VALUES) ? 8 : 4;
    const int item = (tile * GROUPS + group) * LANES + lane;
    u32 words[SLICED ? stream_words(V_STREAM) + 1 : BITS];
    if (SLICED) load_stream<V_STREAM, V_STREAMS>(words, values + V_LOW, item);
    else load_words<4 * BITS>(words, values + item * 4 * BITS);
#pragma unroll
    for (int s = 0; s < V_SHARED; s++) {
        const int of = 32 * group / V_GROUP + s;
        if (of >= V_GROUPS) continue;
        float scale[8], zeros[8];
        load_field(scale, values + V_FIELDS, V_EACH * of, 32 * tile + 8 * (lane & 3));
        if (has_zeros(VALUES)) load_field(zeros, values + V_FIELDS, V_EACH * of + 1, 32 * tile + 8 * (lane & 3));
        u32 w[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            w[i] = __float_as_uint(fmaf(weights[i], of_step * scale[i], 8388608.0f)); // the low 16 bits are the integer
            if (has_zeros(VALUES)) zero[s] = fmaf(weights[i], fmaf(half_of_codes(VALUES), scale[i], zeros[i] * sliced_factor(VALUES)), zero[s]);
        }
        u32 bytes[4];
        four_bytes(bytes, w), four_bytes(bytes + 2, w + 4);
        const uint4 a = make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]);
        const u32 mine = V_SHARED == 1 || lane >> 4 == s ? ~0u : 0; // columns of the other group are 0
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const u32 low = SLICED ? slice<BITS>(words, 2 * e) : BITS == 8 ? words[2 * e % BITS] : less_eight(words[e] & 0x0F0F0F0F);
            const u32 high = SLICED ? slice<BITS>(words, 2 * e + 1) : BITS == 8 ? words[(2 * e + 1) % BITS] : less_eight(words[e] >> 4 & 0x0F0F0F0F);
            product_u8(c[e], a, low & mine, high & mine);
        }
    }
}
