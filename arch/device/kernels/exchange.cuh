// Pages as the CPU writes them to slots and back, the same bytes. A block of threads a slot and head.

struct Exchange {
    u8 *pages;         // as the CPU has them, one after the other
    u8 *pool;          // slots, each with its heads one after the other
    const u32 *slots;  // of each page, page_tokens / 64 of them
    const u16 *steps;  // [4][64]: what codes of norms stand for
    const i16 *book;   // [32]: what codes of a centre stand for
    u64 page_bytes;
    u32 kv_heads, page_tokens;
#if OUTLIERS
    const uint4 *outliers; // of each slot its heads'
#endif
};

constexpr int PAGE_HEADER = 8, NORM_HEAD = 3;
constexpr int CENTRE_BYTES = !CENTRES ? 0 : in_rows(KEYS) ? 2 * DIM : 2 + DIM * 5 / 8;
constexpr int norm_bytes(int shape, int tokens) { return in_rows(shape) ? 0 : NORM_HEAD + tokens * 6 / 8; }

__device__ __forceinline__ u16 half_at(const u8 *bytes) { return (u16)(bytes[0] | bytes[1] << 8); }
// The largest magnitude of so many f16.
__device__ __forceinline__ u16 largest_half(const u8 *bytes, int stride, int count) {
    u16 largest = 0;
    for (int i = 0; i < count; i++) largest = max(largest, (u16)(half_at(bytes + i * stride) & 0x7FFF));
    return largest;
}

// What of a page one slot and head are.
struct Source {
    u8 *keys, *values, *centre, *key_norms, *value_norms, *header, *slot;
    int part; // which 64 tokens of the page
};

__device__ __forceinline__ Source source(const Exchange &x) {
    const int parts = x.page_tokens / SLOT_TOKENS, page = blockIdx.x / parts, head = blockIdx.y;
    const u64 k = (u64)x.page_tokens * row_bytes(KEYS), v = (u64)x.page_tokens * row_bytes(VALUES);
    const u64 norms = norm_bytes(KEYS, x.page_tokens), value_norms = norm_bytes(VALUES, x.page_tokens);
    Source s;
    s.part = blockIdx.x % parts;
    s.header = x.pages + page * x.page_bytes;
    u8 *rows = s.header + PAGE_HEADER + head * (k + v);
    s.keys = rows + (u64)s.part * SLOT_TOKENS * row_bytes(KEYS);
    s.values = rows + k + (u64)s.part * SLOT_TOKENS * row_bytes(VALUES);
    s.centre = s.header + PAGE_HEADER + x.kv_heads * (k + v) + head * (CENTRE_BYTES + norms + value_norms);
    s.key_norms = s.centre + CENTRE_BYTES;
    s.value_norms = s.key_norms + norms;
    s.slot = x.pool + ((u64)x.slots[blockIdx.x] * x.kv_heads + head) * SLOT;
    return s;
}

// The path bit and the code of a coordinate in a row.
template <int SHAPE> __device__ __forceinline__ u32 row_path(const u8 *row, int c) { return bits_at(row + row_head(SHAPE) - path_bytes(SHAPE), c, 1); }
template <int SHAPE> __device__ __forceinline__ u32 row_code(const u8 *row, int c) {
    if constexpr (is_blocks(SHAPE)) {
        const u8 *block = row + c / BLOCK_VALUES * BLOCK_BYTES;
        return bits_at(block, c % BLOCK_VALUES * 2, 2) | bits_at(block + BLOCK_LOW, c % BLOCK_VALUES, 1) << 2;
    }
    if constexpr (is_indexed(SHAPE)) return row_index<SHAPE>(row + row_head(SHAPE), c);
    return bits_at(row + row_head(SHAPE), c * code_bits(SHAPE), code_bits(SHAPE));
}

constexpr int SINGLE_AT = code_bits(KEYS) == 3 ? K_HIGH : K_LOW;

// Integers with groups: of product j the words of both halves, or of codes of 4 bits one, the first half's in the low nibbles.
template <class Four> __device__ __forceinline__ void pack_group_keys(u8 *slot, Four four) {
    constexpr int BITS = code_bits(KEYS);
    for (int item = threadIdx.x; item < SLOT_TOKENS * 4; item += blockDim.x) {
        u32 low[CODE_WORDS];
#pragma unroll
        for (int j = 0; j < PRODUCTS; j++) {
            const int c = 32 * j + 4 * (item & 3);
            const u32 first = c < DIM ? four(item >> 2, c) : 0, second = c + 16 < DIM ? four(item >> 2, c + 16) : 0;
            if (BITS == 8) low[2 * j] = first ^ 0x80808080, low[(2 * j + 1) % CODE_WORDS] = second ^ 0x80808080;
            else low[j] = first | second << 4;
        }
        store_words<EACH * BITS / 8>(slot + K_LOW + item * (EACH * BITS / 8), low);
    }
}

template <class Four> __device__ __forceinline__ void pack_keys(u8 *slot, Four four) {
    if constexpr (is_indexed(KEYS)) return pack_key_streams(slot, four);
    if constexpr (is_sliced(KEYS)) return pack_key_slices(slot, four);
    if constexpr (is_grouped(KEYS)) return pack_group_keys(slot, four);
    for (int item = threadIdx.x; item < SLOT_TOKENS * 4; item += blockDim.x) { // a thread's coordinates of a row
        constexpr int BITS = low_bits(KEYS);
        u32 path[BIT_WORDS] = {}, single[BIT_WORDS] = {}, low[CODE_WORDS] = {};
#pragma unroll
        for (int d = 0; d < EACH; d += 4) {
            const int c = (item & 3) * EACH + d, at = d * BITS;
            const u32 codes = c < DIM ? four(item >> 2, c) : 0;
            if (BITS == 8) {
                low[at >> 5] = codes ^ 0x80808080;
            } else if (BITS == 4) {
                const u32 pairs = codes | codes >> 4;
                low[at >> 5] |= __byte_perm(pairs, 0, at & 16 ? 0x2044 : 0x4420);
            } else if (BITS == 2) {
                const u32 pairs = (codes & 0x03030303) | (codes & 0x03030303) >> 6;
                low[at >> 5] |= ((pairs | pairs >> 12) & 0xFF) << (at & 31);
            }
            if (is_trellis(KEYS)) path[d >> 5] |= of_bytes(codes, 7) << (d & 31);
#pragma unroll
            for (int e = 0; e < 4 && code_bits(KEYS) % 2; e++) {
                const int bit = single_bit(d + e);
                single[bit >> 5] |= (codes >> (8 * e + (code_bits(KEYS) == 3 ? 2 : 0)) & 1) << (bit & 31);
            }
        }
        if (is_trellis(KEYS)) store_words<EACH / 8>(slot + item * (EACH / 8), path);
        if (BITS > 1) store_words<EACH * BITS / 8>(slot + K_LOW + item * (EACH * BITS / 8), low);
        if (code_bits(KEYS) & 1) store_words<EACH / 8>(slot + SINGLE_AT + item * (EACH / 8), single);
    }
}

// A row's stream of fields, to each thread its own: the bits from thread · EACH_FIELDS · FIELD_BITS on.
__device__ __forceinline__ void pack_fields(u8 *slot, const u8 *rows) {
    for (int item = threadIdx.x; item < SLOT_TOKENS * 4; item += blockDim.x) {
        const int t = item & 3, first = t * EACH_FIELDS * FIELD_BITS;
        const int count = (t < 3 ? EACH_FIELDS * FIELD_BITS : 8 * row_bytes(KEYS) - first);
        u32 words[FIELD_WORDS] = {};
        for (int at = 0; at < count; at += 8)
            words[at >> 5] |= bits_at(rows + (item >> 2) * row_bytes(KEYS), first + at, min(8, count - at)) << (at & 31);
        store_words<4 * FIELD_WORDS>(slot + item * 4 * FIELD_WORDS, words);
    }
}
__device__ __forceinline__ u32 slot_field_bit(const u8 *slot, int token, int bit) {
    const int t = min(3, bit / max(1, EACH_FIELDS * FIELD_BITS));
    return bits_at(slot + (token * 4 + t) * 4 * FIELD_WORDS, bit - t * EACH_FIELDS * FIELD_BITS, 1);
}

template <class Four> __device__ __forceinline__ void pack_values(u8 *slot, Four four) {
    u8 *values = slot + K_PART;
    if constexpr (is_indexed(VALUES)) return pack_value_streams(values, four);
    if constexpr (is_sliced(VALUES)) return pack_value_slices(values, four);
    for (int item = threadIdx.x; item < 2 * GROUPS * LANES; item += blockDim.x) { // a word of octets
        const int lane = item % LANES, first = item / LANES % GROUPS * 32 + (lane >> 2) * 4;
        const int token = item / LANES / GROUPS * 32 + (lane & 3) * 8;
        u32 path = 0, low[is_byte(VALUES) ? 8 : 4] = {}, high = 0, pairs[4] = {0, 0, 0, 0}; // of tokens, beside each other
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 codes = first < DIM ? four(token + i, first) : 0;
            if (is_trellis(VALUES)) path |= of_bytes(codes, 7) << (4 * i);
            if constexpr (is_int(VALUES)) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const u32 code = codes >> (8 * e) & 0xFF;
                    if constexpr (is_byte(VALUES)) low[2 * e + (i >> 2)] |= (code ^ 0x80) << (8 * (i & 3));
                    else low[e] |= code << (8 * (i & 3) + (i & 4));
                }
                continue;
            }
            if (low_bits(VALUES) == 4) pairs[i >> 1] |= codes << (4 * (i & 1));
            if (low_bits(VALUES) == 2) pairs[i >> 1] |= ((codes & 0x03030303) | (codes & 0x03030303) >> 6) << (4 * (i & 1));
            if (low_bits(VALUES) == 1) low[0] |= of_bytes(codes, 0) << (4 * i);
            if (code_bits(VALUES) == 3) high |= of_bytes(codes, 2) << (4 * i);
        }
        if (VALUES == 4) {
            const u32 t[4] = {__byte_perm(pairs[0], pairs[1], 0x5140), __byte_perm(pairs[2], pairs[3], 0x5140),
                              __byte_perm(pairs[0], pairs[1], 0x7362), __byte_perm(pairs[2], pairs[3], 0x7362)};
#pragma unroll
            for (int e = 0; e < 4; e++) low[e] = __byte_perm(t[e & 2], t[(e & 2) + 1], e & 1 ? 0x7632 : 0x5410);
        } else if (low_bits(VALUES) == 2) {
            // Of bytes 0 and 2 the low four bits count, and of those shifted by four the high ones.
            const u32 t[2] = {__byte_perm(pairs[0], pairs[1], 0x6240), __byte_perm(pairs[2], pairs[3], 0x6240)};
            low[0] = __byte_perm(t[0], t[1], 0x5410), low[1] = __byte_perm(t[0], t[1], 0x7632);
        }
        if (is_trellis(VALUES)) reinterpret_cast<u32 *>(values)[item] = path;
        store_words<4 * low_bits(VALUES)>(values + V_LOW + 4 * item * low_bits(VALUES), low);
        if (code_bits(VALUES) == 3) reinterpret_cast<u32 *>(values + V_HIGH)[item] = high;
    }
}

// Of a row as the CPU has it, from a coordinate on, or from a place in the order of threads' own.
template <int SHAPE> __device__ __forceinline__ u32 row_codes(const u8 *row, int c) {
    u32 codes = 0;
    for (int e = 0; e < 4; e++) {
        codes |= row_code<SHAPE>(row, is_blocks(SHAPE) ? coordinate(c + e) : c + e) << (8 * e);
        if (has_path(SHAPE) && row_path<SHAPE>(row, c + e)) codes |= PATH_BIT << (8 * e);
    }
    return codes;
}

// Of 64 rows the largest scale, f16, and the bits of what no coordinate reaches. All threads.
template <int SHAPE> __device__ __forceinline__ void largest_fields(const u8 *rows, u32 *bounds) {
    constexpr int EACH_GROUP = has_zeros(SHAPE) ? 2 : 1, COUNT = fields_of(SHAPE) / EACH_GROUP;
    for (int i = threadIdx.x; i < SLOT_TOKENS * COUNT; i += blockDim.x) {
        const u8 *fields = rows + i / COUNT * row_bytes(SHAPE) + 2 * EACH_GROUP * (i % COUNT);
        const u32 scale = half_at(fields) & 0x7FFF;
        const float zero = has_zeros(SHAPE) ? from_f16(half_at(fields + 2)) : 0;
        atomicMax(&bounds[0], scale), atomicMax(&bounds[1], __float_as_uint(bound_of<SHAPE>(from_f16(scale), zero)));
    }
}

extern "C" __global__ void __launch_bounds__(128) upload(const __grid_constant__ Exchange x) {
    const Source s = source(x);
    auto key_scale = [&](int token, int i) { // number i of a row
        return half_at(s.keys + token * row_bytes(KEYS) + (is_blocks(KEYS) ? (i + 1) * BLOCK_BYTES - 2 : 2 * i));
    };
    if constexpr (is_triplets(KEYS)) pack_fields(s.slot, s.keys);
    else if constexpr (is_chunks(KEYS)) pack_chunks(s.slot, [&](int token, int chunk) { return chunk_field(s.keys + token * row_bytes(KEYS), chunk); });
    else pack_keys(s.slot, [&](int token, int at) { return row_codes<KEYS>(s.keys + token * row_bytes(KEYS), at); });
    pack_values(s.slot, [&](int token, int c) { return row_codes<VALUES>(s.values + token * row_bytes(VALUES), c); });
    for (int token = threadIdx.x; token < SLOT_TOKENS; token += blockDim.x) {
        const int at = 6 * (s.part * SLOT_TOKENS + token);
        for (int f = 0; f < fields_of(KEYS); f++)
            *key_field(s.slot, f, token) = in_rows(KEYS) ? key_scale(token, f)
                                                         : x.steps[(s.key_norms[2] & 3) * 64 + bits_at(s.key_norms + NORM_HEAD, at, 6)];
        for (int f = 0; f < fields_of(VALUES); f++)
            *value_field(s.slot, f, token) = in_rows(VALUES) ? half_at(s.values + token * row_bytes(VALUES) + 2 * f)
                                                             : x.steps[(s.value_norms[2] & 3) * 64 + bits_at(s.value_norms + NORM_HEAD, at, 6)];
    }
    if (CENTRES && in_rows(KEYS)) {
        for (int at = threadIdx.x; at < CENTRE_BYTES; at += blockDim.x) s.slot[K_CENTRE + at] = s.centre[at];
    } else if (CENTRES) {
        for (int c = threadIdx.x; c < (is_triplets(KEYS) ? DIM : WIDE); c += blockDim.x) {
            const int value = c < DIM ? x.book[bits_at(s.centre + 2, 5 * c, 5)] : 0;
            s.slot[K_CENTRE + centre_byte(c)] = (u8)(value >> 4);
            s.slot[K_CENTRE + K_WIDE + centre_byte(c)] = (u8)(value & 15);
        }
    }
    __shared__ u32 bounds[4]; // of keys and values: the largest scale, and what no coordinate reaches
    if (is_grouped(KEYS) || is_grouped(VALUES)) {
        if (threadIdx.x < 4) bounds[threadIdx.x] = 0;
        __syncthreads();
        if constexpr (is_grouped(KEYS)) largest_fields<KEYS>(s.keys, bounds);
        if constexpr (is_grouped(VALUES)) largest_fields<VALUES>(s.values, bounds + 2);
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        Tail tail = {};
        if (is_grouped(KEYS)) tail.key_largest = bounds[0], tail.key_octaves = octaves_of(bounds[1]);
        else if (is_blocks(KEYS)) tail.key_largest = largest_half(s.keys + BLOCK_BYTES - 2, BLOCK_BYTES, SLOT_TOKENS * fields_of(KEYS));
        else if (in_rows(KEYS)) tail.key_largest = largest_half(s.keys, row_bytes(KEYS), SLOT_TOKENS);
        else tail.key_largest = half_at(s.key_norms), tail.key_octaves = s.key_norms[2];
        if (is_grouped(VALUES)) tail.value_largest = bounds[2], tail.value_octaves = octaves_of(bounds[3]);
        else if (in_rows(VALUES)) tail.value_largest = largest_half(s.values, row_bytes(VALUES), SLOT_TOKENS);
        else tail.value_largest = half_at(s.value_norms), tail.value_octaves = s.value_norms[2];
        if (CENTRES) tail.centre = in_rows(KEYS) ? largest_half(s.centre, 2, DIM) : half_at(s.centre);
        tail.position = 0;
        for (int i = 0; i < 8; i++) tail.position |= (u64)s.header[i] << (8 * i);
        tail.position += s.part * SLOT_TOKENS;
        *reinterpret_cast<Tail *>(s.slot + TAIL) = tail;
#if OUTLIERS
        *reinterpret_cast<uint4 *>(s.slot + OUTLIERS_AT) = x.outliers[blockIdx.x * x.kv_heads + blockIdx.y];
#endif
    }
}

// ---- back -------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 slot_key_path(const u8 *slot, int token, int c) {
    return bits_at(slot + (token * 4 + c / EACH) * (EACH / 8), c % EACH, 1);
}
__device__ __forceinline__ u32 slot_key_code(const u8 *slot, int token, int c) {
    if (is_grouped(KEYS)) {
        int shift;
        const u8 code = group_word(slot, token, c, shift)[c & 3];
        return code_bits(KEYS) == 8 ? code ^ 0x80 : code >> shift & 15;
    }
    if (is_indexed(KEYS)) return stream_bits<K_STREAM, K_STREAMS>(slot + K_LOW, token * 4 + c / EACH, c % EACH * index_bits(KEYS), index_bits(KEYS));
    c = own_order(c);
    const int item = token * 4 + c / EACH, d = c % EACH, bits = low_bits(KEYS);
    const u32 single = bits_at(slot + SINGLE_AT + item * (EACH / 8), single_bit(d), 1);
    if (bits == 1) return single;
    const u32 low = bits_at(slot + K_LOW + item * (EACH * bits / 8), d * bits, bits);
    if (bits == 8) return low ^ 0x80;
    return code_bits(KEYS) == 3 ? low | single << 2 : low;
}
__device__ __forceinline__ int octet(int token, int c) {
    return (token / 32 * GROUPS + c / 32) * LANES + c % 32 / 4 * 4 + token % 32 / 8;
}
__device__ __forceinline__ u32 slot_value_path(const u8 *values, int token, int c) {
    return reinterpret_cast<const u32 *>(values)[octet(token, c)] >> (4 * (token & 7) + (c & 3)) & 1;
}
__device__ __forceinline__ u32 slot_value_code(const u8 *values, int token, int c) {
    if (is_indexed(VALUES))
        return stream_bits<V_STREAM, V_STREAMS>(values + V_LOW, octet(token, c), (8 * (c & 3) + (token & 7)) * index_bits(VALUES), index_bits(VALUES));
    const int item = octet(token, c), i = 4 * (token & 7), e = c & 3, bits = low_bits(VALUES);
    const u32 *low = reinterpret_cast<const u32 *>(values + V_LOW) + item * bits;
    if (is_byte(VALUES)) return (low[2 * e + (token >> 2 & 1)] >> (8 * (token & 3)) & 0xFF) ^ 0x80;
    if (is_int(VALUES)) return low[e] >> (8 * (token & 3) + (token & 4)) & 15;
    if (bits == 4) return low[e] >> i & 15;
    if (bits == 1) return low[0] >> (i + e) & 1;
    const u32 code = low[e >> 1] >> (i + 2 * (e & 1)) & 3;
    return code_bits(VALUES) == 3 ? code | (reinterpret_cast<const u32 *>(values + V_HIGH)[item] >> (i + e) & 1) << 2 : code;
}

// The code of a norm: steps ascend.
__device__ __forceinline__ u32 norm_code(const u16 *steps, u32 step) {
    u32 code = 0;
    while (code < 63 && steps[code] < step) code++;
    return code;
}

extern "C" __global__ void __launch_bounds__(128) download(const __grid_constant__ Exchange x) {
    const Source s = source(x);
    const u8 *values = s.slot + K_PART;
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
    // Four norms are three bytes.
    for (int item = threadIdx.x; item < SLOT_TOKENS / 2; item += blockDim.x) {
        const bool of_value = item >= SLOT_TOKENS / 4;
        if (of_value ? in_rows(VALUES) : in_rows(KEYS)) continue;
        const int four = item % (SLOT_TOKENS / 4);
        const u16 *mine = reinterpret_cast<const u16 *>(s.slot + (of_value ? V_STEPS : K_STEPS)) + 4 * four;
        const u16 *steps = x.steps + ((of_value ? tail.value_octaves : tail.key_octaves) & 3) * 64;
        u32 word = 0;
        for (int i = 0; i < 4; i++) word |= norm_code(steps, mine[i]) << (6 * i);
        u8 *out = (of_value ? s.value_norms : s.key_norms) + NORM_HEAD + s.part * SLOT_TOKENS * 6 / 8 + 3 * four;
        out[0] = word, out[1] = word >> 8, out[2] = word >> 16;
    }
    if (CENTRES && in_rows(KEYS) && s.part == 0) {
        for (int at = threadIdx.x; at < CENTRE_BYTES; at += blockDim.x) s.centre[at] = s.slot[K_CENTRE + at];
    } else if (CENTRES && s.part == 0) {
        for (int byte = threadIdx.x; byte < DIM * 5 / 8; byte += blockDim.x) {
            u32 out = 0;
            for (int i = 0; i < 8; i++) {
                const int bit = 8 * byte + i, at = centre_byte(bit / 5);
                const int value = (int)(i8)s.slot[K_CENTRE + at] * 16 + s.slot[K_CENTRE + K_WIDE + at];
                u32 code = 0;
                while (code < 31 && x.book[code] < value) code++;
                out |= (code >> bit % 5 & 1) << i;
            }
            s.centre[2 + byte] = out;
        }
    }
    if (threadIdx.x == 0 && s.part == 0) {
        if (!in_rows(KEYS)) s.key_norms[0] = tail.key_largest, s.key_norms[1] = tail.key_largest >> 8, s.key_norms[2] = tail.key_octaves;
        if (!in_rows(VALUES)) s.value_norms[0] = tail.value_largest, s.value_norms[1] = tail.value_largest >> 8, s.value_norms[2] = tail.value_octaves;
        if (CENTRES && !in_rows(KEYS)) s.centre[0] = tail.centre, s.centre[1] = tail.centre >> 8;
        for (int i = 0; blockIdx.y == 0 && i < 8; i++) s.header[i] = tail.position >> (8 * i);
    }
}
