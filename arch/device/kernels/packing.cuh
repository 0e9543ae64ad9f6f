// Copies rows of codes between the CPU's format and a slot.

constexpr int PAGE_HEADER = 8, NORM_HEAD = 3;
constexpr int CENTRE_BYTES = !CENTRES ? 0 : in_rows(KEYS) ? 2 * DIM : 2 + DIM * 5 / 8;
constexpr int norm_bytes(int shape, int tokens) { return in_rows(shape) ? 0 : NORM_HEAD + tokens * 6 / 8; }

__device__ __forceinline__ u16 half_at(const u8 *bytes) { return (u16)(bytes[0] | bytes[1] << 8); }
// Returns the largest magnitude of n f16 values.
__device__ __forceinline__ u16 largest_half(const u8 *bytes, int stride, int count) {
    u16 largest = 0;
    for (int i = 0; i < count; i++) largest = max(largest, (u16)(half_at(bytes + i * stride) & 0x7FFF));
    return largest;
}

// Returns the path bit and the code of a coordinate in a row.
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

// Integers with groups: packs the words of both halves of product j. Codes of 4 bits share one word, with the first
// half in the low nibbles.
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

// Splits a row's stream of fields among threads: each gets the bits from thread · EACH_FIELDS · FIELD_BITS on.
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
        u32 path = 0, low[is_byte(VALUES) ? 8 : 4] = {}, high = 0, pairs[4] = {0, 0, 0, 0}; // of tokens, side by side
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
        if (VALUES == codes_of(4)) {
            const u32 t[4] = {__byte_perm(pairs[0], pairs[1], 0x5140), __byte_perm(pairs[2], pairs[3], 0x5140),
                              __byte_perm(pairs[0], pairs[1], 0x7362), __byte_perm(pairs[2], pairs[3], 0x7362)};
#pragma unroll
            for (int e = 0; e < 4; e++) low[e] = __byte_perm(t[e & 2], t[(e & 2) + 1], e & 1 ? 0x7632 : 0x5410);
        } else if (low_bits(VALUES) == 2) {
            // The low four bits of bytes 0 and 2 count, and after a shift by four the high ones.
            const u32 t[2] = {__byte_perm(pairs[0], pairs[1], 0x6240), __byte_perm(pairs[2], pairs[3], 0x6240)};
            low[0] = __byte_perm(t[0], t[1], 0x5410), low[1] = __byte_perm(t[0], t[1], 0x7632);
        }
        if (is_trellis(VALUES)) reinterpret_cast<u32 *>(values)[item] = path;
        store_words<4 * low_bits(VALUES)>(values + V_LOW + 4 * item * low_bits(VALUES), low);
        if (code_bits(VALUES) == 3) reinterpret_cast<u32 *>(values + V_HIGH)[item] = high;
    }
}

// Returns a CPU row from a coordinate on, or from a place in the order of threads.
template <int SHAPE> __device__ __forceinline__ u32 row_codes(const u8 *row, int c) {
    u32 codes = 0;
    for (int e = 0; e < 4; e++) {
        codes |= row_code<SHAPE>(row, is_blocks(SHAPE) ? coordinate(c + e) : c + e) << (8 * e);
        if (has_path(SHAPE) && row_path<SHAPE>(row, c + e)) codes |= PATH_BIT << (8 * e);
    }
    return codes;
}

// Computes the largest scale of 64 rows, f16, and the bits of a bound that no coordinate reaches. Called by all
// threads.
template <int SHAPE> __device__ __forceinline__ void largest_fields(const u8 *rows, u32 *bounds) {
    constexpr int EACH_GROUP = has_zeros(SHAPE) ? 2 : 1, COUNT = fields_of(SHAPE) / EACH_GROUP;
    for (int i = threadIdx.x; i < SLOT_TOKENS * COUNT; i += blockDim.x) {
        const u8 *fields = rows + i / COUNT * row_bytes(SHAPE) + 2 * EACH_GROUP * (i % COUNT);
        const u32 scale = half_at(fields) & 0x7FFF;
        const float zero = has_zeros(SHAPE) ? from_f16(half_at(fields + 2)) : 0;
        atomicMax(&bounds[0], scale), atomicMax(&bounds[1], __float_as_uint(bound_of<SHAPE>(from_f16(scale), zero)));
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

// Returns the code of a norm. Steps ascend.
__device__ __forceinline__ u32 norm_code(const u16 *steps, u32 step) {
    u32 code = 0;
    while (code < 63 && steps[code] < step) code++;
    return code;
}

// Packs four norms of a slot into three bytes.
__device__ __forceinline__ void pack_norms(u8 *norms, const u8 *from, const u16 *steps, int part, int four) {
    const u16 *mine = reinterpret_cast<const u16 *>(from) + 4 * four;
    u32 word = 0;
    for (int i = 0; i < 4; i++) word |= norm_code(steps, mine[i]) << (6 * i);
    u8 *out = norms + NORM_HEAD + part * SLOT_TOKENS * 6 / 8 + 3 * four;
    out[0] = word, out[1] = word >> 8, out[2] = word >> 16;
}

// Returns byte `byte` of the codes of a slot's centre.
__device__ __forceinline__ u8 centre_codes(const u8 *slot, const i16 *book, int byte) {
    u32 out = 0;
    for (int i = 0; i < 8; i++) {
        const int bit = 8 * byte + i, at = centre_byte(bit / 5);
        const int value = (int)(i8)slot[K_CENTRE + at] * 16 + slot[K_CENTRE + K_WIDE + at];
        u32 code = 0;
        while (code < 31 && book[code] < value) code++;
        out |= (code >> bit % 5 & 1) << i;
    }
    return (u8)out;
}
