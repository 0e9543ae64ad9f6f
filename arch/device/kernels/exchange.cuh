// Copies pages between the CPU's format and slots, bit-exact. A block of threads takes a slot and head.

struct Exchange {
    u8 *pages;         // consecutive pages in the CPU's format
    u8 *pool;          // slots, each with its consecutive heads
    const u32 *slots;  // page_tokens / 64 of each page
    const u16 *steps;  // [4][64]: what codes of norms decode to
    const i16 *book;   // [32]: what codes of a centre decode to
    u64 page_bytes;
    u32 kv_heads, page_tokens;
#if OUTLIERS
    const uint4 *outliers; // of each slot's heads
#endif
};

// The part of a page that one slot and head hold.
struct Source {
    u8 *keys, *values, *centre, *key_norms, *value_norms, *header, *slot;
    int part; // selects 64 tokens of the page
};

#if COARSE_AT
static_assert(COARSE_AT == fine::K_PART && OUTLIERS_AT == COARSE_AT + coarse::K_PART, "parts of a slot");

// Calls `of_fine` and `of_coarse` with the places of each half: in the slot, and its rows, norms and centre in the
// CPU's format.
template <class Fine, class Coarse> __device__ __forceinline__ void each_half(const Exchange &x, const Source &s, Fine of_fine, Coarse of_coarse) {
    constexpr int FINE = fine::row_bytes(fine::SHAPE), COARSE = coarse::row_bytes(coarse::SHAPE);
    u8 *rows = s.keys + (u64)x.page_tokens * FINE;
    of_fine(s.slot, s.keys + s.part * SLOT_TOKENS * FINE, s.key_norms, s.centre);
    of_coarse(s.slot + COARSE_AT, rows + s.part * SLOT_TOKENS * COARSE, s.key_norms + norm_bytes(KEYS, x.page_tokens), s.centre + fine::CENTRE_BYTES);
}
#endif

__device__ __forceinline__ Source source(const Exchange &x) {
    const int parts = x.page_tokens / SLOT_TOKENS, page = blockIdx.x / parts, head = blockIdx.y;
#if COARSE_AT
    const u64 k = (u64)x.page_tokens * (fine::row_bytes(fine::SHAPE) + coarse::row_bytes(coarse::SHAPE)), norms = 2 * norm_bytes(KEYS, x.page_tokens);
    constexpr int CENTRE_BYTES = fine::CENTRE_BYTES + coarse::CENTRE_BYTES;
#else
    const u64 k = (u64)x.page_tokens * row_bytes(KEYS), norms = norm_bytes(KEYS, x.page_tokens);
#endif
    const u64 v = (u64)x.page_tokens * row_bytes(VALUES), value_norms = norm_bytes(VALUES, x.page_tokens);
    Source s;
    s.part = blockIdx.x % parts;
    s.header = x.pages + page * x.page_bytes;
    u8 *rows = s.header + PAGE_HEADER + head * (k + v);
    s.keys = rows + (COARSE_AT ? 0 : (u64)s.part * SLOT_TOKENS * row_bytes(KEYS));
    s.values = rows + k + (u64)s.part * SLOT_TOKENS * row_bytes(VALUES);
    s.centre = s.header + PAGE_HEADER + x.kv_heads * (k + v) + head * (CENTRE_BYTES + norms + value_norms);
    s.key_norms = s.centre + CENTRE_BYTES;
    s.value_norms = s.key_norms + norms;
    s.slot = x.pool + ((u64)x.slots[blockIdx.x] * x.kv_heads + head) * SLOT;
    return s;
}

extern "C" __global__ void __launch_bounds__(128) upload(const __grid_constant__ Exchange x) {
    const Source s = source(x);
#if COARSE_AT
    each_half(x, s, [&](u8 *slot, const u8 *rows, const u8 *norms, const u8 *centre) { fine::upload_half(slot, rows, norms, centre, x.steps, x.book, s.part); },
              [&](u8 *slot, const u8 *rows, const u8 *norms, const u8 *centre) { coarse::upload_half(slot, rows, norms, centre, x.steps, x.book, s.part); });
#else
    auto key_scale = [&](int token, int i) { // number i of a row
        return half_at(s.keys + token * row_bytes(KEYS) + (is_blocks(KEYS) ? (i + 1) * BLOCK_BYTES - 2 : 2 * i));
    };
    if constexpr (is_triplets(KEYS)) pack_fields(s.slot, s.keys);
    else if constexpr (is_chunks(KEYS)) pack_chunks(s.slot, [&](int token, int chunk) { return chunk_field(s.keys + token * row_bytes(KEYS), chunk); });
    else pack_keys(s.slot, [&](int token, int at) { return row_codes<KEYS>(s.keys + token * row_bytes(KEYS), at); });
#endif
    pack_values(s.slot, [&](int token, int c) { return row_codes<VALUES>(s.values + token * row_bytes(VALUES), c); });
    for (int token = threadIdx.x; token < SLOT_TOKENS; token += blockDim.x) {
        const int at = 6 * (s.part * SLOT_TOKENS + token);
#if !COARSE_AT
        for (int f = 0; f < fields_of(KEYS); f++)
            *key_field(s.slot, f, token) = in_rows(KEYS) ? key_scale(token, f)
                                                         : x.steps[(s.key_norms[2] & 3) * 64 + bits_at(s.key_norms + NORM_HEAD, at, 6)];
#endif
        for (int f = 0; f < fields_of(VALUES); f++)
            *value_field(s.slot, f, token) = in_rows(VALUES) ? half_at(s.values + token * row_bytes(VALUES) + 2 * f)
                                                             : x.steps[(s.value_norms[2] & 3) * 64 + bits_at(s.value_norms + NORM_HEAD, at, 6)];
    }
#if !COARSE_AT
    if (CENTRES && in_rows(KEYS)) {
        for (int at = threadIdx.x; at < CENTRE_BYTES; at += blockDim.x) s.slot[K_CENTRE + at] = s.centre[at];
    } else if (CENTRES) {
        for (int c = threadIdx.x; c < (is_triplets(KEYS) ? DIM : WIDE); c += blockDim.x) {
            const int value = c < DIM ? x.book[bits_at(s.centre + 2, 5 * c, 5)] : 0;
            s.slot[K_CENTRE + centre_byte(c)] = (u8)(value >> 4);
            s.slot[K_CENTRE + K_WIDE + centre_byte(c)] = (u8)(value & 15);
        }
    }
#endif
    __shared__ u32 bounds[4]; // of keys and values: the largest scale, and a bound that no coordinate reaches
    if (is_grouped(KEYS) || is_grouped(VALUES)) {
        if (threadIdx.x < 4) bounds[threadIdx.x] = 0;
        __syncthreads();
        if constexpr (is_grouped(KEYS)) largest_fields<KEYS>(s.keys, bounds);
        if constexpr (is_grouped(VALUES)) largest_fields<VALUES>(s.values, bounds + 2);
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        Tail tail = {};
#if COARSE_AT
        tail = *reinterpret_cast<const Tail *>(s.slot + TAIL); // this thread wrote the fine half's part
#else
        if (is_grouped(KEYS)) tail.key_largest = bounds[0], tail.key_octaves = octaves_of(bounds[1]);
        else if (is_blocks(KEYS)) tail.key_largest = largest_half(s.keys + BLOCK_BYTES - 2, BLOCK_BYTES, SLOT_TOKENS * fields_of(KEYS));
        else if (in_rows(KEYS)) tail.key_largest = largest_half(s.keys, row_bytes(KEYS), SLOT_TOKENS);
        else tail.key_largest = half_at(s.key_norms), tail.key_octaves = s.key_norms[2];
        if (CENTRES) tail.centre = in_rows(KEYS) ? largest_half(s.centre, 2, DIM) : half_at(s.centre);
#endif
        if (is_grouped(VALUES)) tail.value_largest = bounds[2], tail.value_octaves = octaves_of(bounds[3]);
        else if (in_rows(VALUES)) tail.value_largest = largest_half(s.values, row_bytes(VALUES), SLOT_TOKENS);
        else tail.value_largest = half_at(s.value_norms), tail.value_octaves = s.value_norms[2];
        tail.position = 0;
        for (int i = 0; i < 8; i++) tail.position |= (u64)s.header[i] << (8 * i);
        tail.position += s.part * SLOT_TOKENS;
        *reinterpret_cast<Tail *>(s.slot + TAIL) = tail;
#if OUTLIERS
        *reinterpret_cast<uint4 *>(s.slot + OUTLIERS_AT) = x.outliers[blockIdx.x * x.kv_heads + blockIdx.y];
#endif
    }
}

extern "C" __global__ void __launch_bounds__(128) download(const __grid_constant__ Exchange x) {
    const Source s = source(x);
    const u8 *values = s.slot + K_PART;
#if COARSE_AT
    each_half(x, s, [&](const u8 *slot, u8 *rows, u8 *norms, u8 *centre) { fine::download_half(slot, rows, norms, centre, x.steps, x.book, s.part); },
              [&](const u8 *slot, u8 *rows, u8 *norms, u8 *centre) { coarse::download_half(slot, rows, norms, centre, x.steps, x.book, s.part); });
#else
    for (int at = threadIdx.x; at < SLOT_TOKENS * row_bytes(KEYS); at += blockDim.x) {
        const int token = at / row_bytes(KEYS), byte = at % row_bytes(KEYS), plane = byte - row_head(KEYS);
        if (in_rows(KEYS) && byte < row_head(KEYS) - path_bytes(KEYS)) {
            s.keys[at] = *key_field(s.slot, byte >> 1, token) >> (8 * (byte & 1));
            continue;
        }
        if constexpr (is_chunks(KEYS)) {
            s.keys[at] = chunk_byte(s.slot, token, byte);
            continue;
        }
        u32 out = 0;
        if constexpr (is_blocks(KEYS)) {
            const int block = byte / BLOCK_BYTES, of_block = byte % BLOCK_BYTES;
            auto code = [&](int value) { return slot_key_code(s.slot, token, BLOCK_VALUES * block + value); };
            if (of_block < BLOCK_LOW)
                for (int i = 0; i < 4; i++) out |= (code(4 * of_block + i) & 3) << (2 * i);
            else if (of_block < BLOCK_BYTES - 2)
                for (int i = 0; i < 8; i++) out |= code(8 * (of_block - BLOCK_LOW) + i) >> 2 << i;
            else out = s.slot[K_STEPS + 2 * (SLOT_TOKENS * block + token) + of_block - (BLOCK_BYTES - 2)];
            s.keys[at] = out;
            continue;
        }
        if (is_indexed(KEYS) && plane >= 0) {
            s.keys[at] = index_byte<KEYS>(plane, [&](int c) { return slot_key_code(s.slot, token, c); });
            continue;
        }
        for (int i = 0; i < 8; i++) {
            const int bit = 8 * plane + i, bits = max(1, code_bits(KEYS));
            out |= (is_triplets(KEYS) ? slot_field_bit(s.slot, token, bit)
                    : is_sliced(KEYS) ? slot_key_slice(s.slot, token, bit / bits, bit % bits)
                    : plane < 0       ? slot_key_path(s.slot, token, 8 * (plane + path_bytes(KEYS)) + i)
                                      : slot_key_code(s.slot, token, bit / bits) >> bit % bits & 1) << i;
        }
        s.keys[at] = out;
    }
#endif
    for (int at = threadIdx.x; at < SLOT_TOKENS * row_bytes(VALUES); at += blockDim.x) {
        const int token = at / row_bytes(VALUES), byte = at % row_bytes(VALUES), plane = byte - row_head(VALUES);
        if (in_rows(VALUES) && byte < row_head(VALUES) - path_bytes(VALUES)) {
            s.values[at] = *value_field(s.slot, byte >> 1, token) >> (8 * (byte & 1));
            continue;
        }
        u32 out = 0;
        if (is_indexed(VALUES) && plane >= 0) {
            s.values[at] = index_byte<VALUES>(plane, [&](int c) { return slot_value_code(values, token, c); });
            continue;
        }
        for (int i = 0; i < 8; i++) {
            const int bit = 8 * plane + i, bits = max(1, code_bits(VALUES));
            out |= (is_sliced(VALUES) ? slot_value_slice(values, token, bit / bits, bit % bits)
                    : plane < 0       ? slot_value_path(values, token, 8 * (plane + path_bytes(VALUES)) + i)
                                      : slot_value_code(values, token, bit / bits) >> bit % bits & 1) << i;
        }
        s.values[at] = out;
    }
    const Tail tail = *reinterpret_cast<const Tail *>(s.slot + TAIL);
    for (int item = threadIdx.x; item < SLOT_TOKENS / 2; item += blockDim.x) {
        const bool of_value = item >= SLOT_TOKENS / 4;
        if (of_value ? in_rows(VALUES) : in_rows(KEYS) || COARSE_AT) continue;
        const u16 *steps = x.steps + ((of_value ? tail.value_octaves : tail.key_octaves) & 3) * 64;
        pack_norms(of_value ? s.value_norms : s.key_norms, s.slot + (of_value ? V_STEPS : K_STEPS), steps, s.part, item % (SLOT_TOKENS / 4));
    }
    if (CENTRES && in_rows(KEYS) && s.part == 0) {
        for (int at = threadIdx.x; at < CENTRE_BYTES; at += blockDim.x) s.centre[at] = s.slot[K_CENTRE + at];
    } else if (CENTRES && s.part == 0 && !COARSE_AT) {
        for (int byte = threadIdx.x; byte < DIM * 5 / 8; byte += blockDim.x) s.centre[2 + byte] = centre_codes(s.slot, x.book, byte);
    }
    if (threadIdx.x == 0 && s.part == 0) {
        if (!in_rows(KEYS) && !COARSE_AT) s.key_norms[0] = tail.key_largest, s.key_norms[1] = tail.key_largest >> 8, s.key_norms[2] = tail.key_octaves;
        if (!in_rows(VALUES)) s.value_norms[0] = tail.value_largest, s.value_norms[1] = tail.value_largest >> 8, s.value_norms[2] = tail.value_octaves;
        if (CENTRES && !in_rows(KEYS) && !COARSE_AT) s.centre[0] = tail.centre, s.centre[1] = tail.centre >> 8;
        for (int i = 0; blockIdx.y == 0 && i < 8; i++) s.header[i] = tail.position >> (8 * i);
    }
}
