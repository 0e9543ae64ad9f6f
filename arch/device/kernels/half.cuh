// One half of the channels of keys that are coded as two halves. The host includes the sources on keys once for
// each half, in the namespaces `fine` and `coarse`.

// Returns the integer product of a thread's part of a query, [PRODUCTS], with a page's centre.
__device__ __forceinline__ float score_centre(const uint4 *q, const u8 *slot, int lane) {
    const int g = lane >> 2, t = lane & 3;
    int c[4] = {};
#pragma unroll
    for (int j = 0; j < PRODUCTS; j++) {
        const uint2 b = g < 2 ? load<uint2>(slot + K_CENTRE + g * K_WIDE + t * EACH + 8 * j) : make_uint2(0, 0);
        product_s8(c, q[j], b.x, b.y);
    }
    const float sum = fmaf((float)(16 * c[0] + c[1]), 256, (float)(16 * c[2] + c[3]));
    return __shfl_sync(~0u, sum, lane & ~3) * from_f16(load<Tail>(slot + TAIL).centre);
}

// Adds scores of a thread's keys, columns 2 t and 2 t + 1, which are tokens `first` and the next. `unit` is the
// unit of a step of norms.
__device__ __forceinline__ float2 score_half(const uint4 *queries, const u8 *slot, int token, int first, int t, const Table &table, const u32 *entries,
                                             float unit) {
    uint4 q[PRODUCTS];
#pragma unroll
    for (int j = 0; j < PRODUCTS; j++) q[j] = queries[j];
    float2 sum;
    if constexpr (is_indexed(KEYS)) {
        sum = score_indexed(q, slot, token, t, entries);
    } else {
        const KeyWords k = load_key(slot, token, t);
        int c[4] = {};
#pragma unroll
        for (int j = 0; j < PRODUCTS; j++) score(c, q[j], k, j, table);
        sum = make_float2((float)(c[0] * 256 + c[2]), (float)(c[1] * 256 + c[3]));
    }
    const u32 steps = load<u32>(slot + K_STEPS + 2 * first);
    return make_float2(sum.x * (unit * (float)(steps & 0xFFFF)), sum.y * (unit * (float)(steps >> 16)));
}

// Returns coordinate c of a page's centre as an integer.
__device__ __forceinline__ float centre_integer(const u8 *slot, int c) {
    const int at = K_CENTRE + centre_byte(c);
    return (float)((int)(i8)slot[at] * 16 + slot[at + K_WIDE]);
}

// Decodes a slot: calls `each` with eight coordinates of a token from a given one on. Called by all 128 threads.
template <class Each> __device__ __forceinline__ void unfold_half(const u8 *slot, const float *centroids, const u32 *entries, Each each) {
    for (int item = threadIdx.x; item < 4 * SLOT_TOKENS; item += 128) {
        const int token = item >> 2, t = item & 3;
        const auto k = key_words<KEYS>(slot, token, t);
#pragma unroll
        for (int d = 0; d < EACH; d += 8) {
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const u32 index = key_index<KEYS>(k, d + i);
                x[i] = is_indexed(KEYS) ? entry_value<KEYS>(entries[index]) : centroids[index];
            }
            each(token, t * EACH + d, x);
        }
    }
}

// Copies rows, norms and centre from the CPU's format to a slot. `part` selects 64 tokens of the page.
__device__ __forceinline__ void upload_half(u8 *slot, const u8 *rows, const u8 *norms, const u8 *centre, const u16 *steps, const i16 *book, int part) {
    pack_keys(slot, [&](int token, int at) { return row_codes<KEYS>(rows + token * row_bytes(KEYS), at); });
    for (int token = threadIdx.x; token < SLOT_TOKENS; token += blockDim.x)
        *key_field(slot, 0, token) = steps[(norms[2] & 3) * 64 + bits_at(norms + NORM_HEAD, 6 * (part * SLOT_TOKENS + token), 6)];
    for (int c = threadIdx.x; CENTRES && c < WIDE; c += blockDim.x) {
        const int value = book[bits_at(centre + 2, 5 * c, 5)];
        slot[K_CENTRE + centre_byte(c)] = (u8)(value >> 4), slot[K_CENTRE + K_WIDE + centre_byte(c)] = (u8)(value & 15);
    }
    if (threadIdx.x > 0) return;
    Tail &tail = *reinterpret_cast<Tail *>(slot + TAIL);
    tail.key_largest = half_at(norms), tail.key_octaves = norms[2], tail.centre = CENTRES ? half_at(centre) : 0;
}

// Copies them back to the CPU's format.
__device__ __forceinline__ void download_half(const u8 *slot, u8 *rows, u8 *norms, u8 *centre, const u16 *all_steps, const i16 *book, int part) {
    for (int at = threadIdx.x; at < SLOT_TOKENS * row_bytes(KEYS); at += blockDim.x) {
        const int token = at / row_bytes(KEYS), plane = at % row_bytes(KEYS) - row_head(KEYS);
        if (is_indexed(KEYS) && plane >= 0) {
            rows[at] = index_byte<KEYS>(plane, [&](int c) { return slot_key_code(slot, token, c); });
            continue;
        }
        u32 out = 0;
        for (int i = 0; i < 8; i++) {
            const int bit = 8 * plane + i, bits = max(1, code_bits(KEYS));
            out |= (plane < 0 ? slot_key_path(slot, token, 8 * (plane + path_bytes(KEYS)) + i) : slot_key_code(slot, token, bit / bits) >> bit % bits & 1) << i;
        }
        rows[at] = out;
    }
    const Tail tail = *reinterpret_cast<const Tail *>(slot + TAIL);
    for (int four = threadIdx.x; four < SLOT_TOKENS / 4; four += blockDim.x) pack_norms(norms, slot + K_STEPS, all_steps + (tail.key_octaves & 3) * 64, part, four);
    if (part > 0) return;
    for (int byte = threadIdx.x; CENTRES && byte < DIM * 5 / 8; byte += blockDim.x) centre[2 + byte] = centre_codes(slot, book, byte);
    if (threadIdx.x > 0) return;
    norms[0] = tail.key_largest, norms[1] = tail.key_largest >> 8, norms[2] = tail.key_octaves;
    if (CENTRES) centre[0] = tail.centre, centre[1] = tail.centre >> 8;
}
