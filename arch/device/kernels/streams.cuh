// Codes that are looked up in shared memory: of 1 and 5 to 8 bits, of levels that are no power of two, and of
// trellises whose centroids do not fit registers (indexed.cuh).
//
// Each stream of codes has its own words. A key has a stream for each thread, with its coordinates in order. A
// value has a stream for each octet: eight tokens of each of four coordinates. The streams of a slot are
// interleaved in pieces, so that a warp reads consecutive memory:
//   16 bytes of stream 0 │ 16 of stream 1 │ … │ the next 16 of stream 0 │ … │ rests of 8, 4, 2 and 1 bytes

constexpr int stream_piece(int left) { return left >= 16 ? 16 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1; }

// Returns where a byte of stream `item` lies, for COUNT streams of BYTES.
template <int BYTES, int COUNT> __device__ __forceinline__ int stream_at(int item, int byte) {
    int from = 0, left = BYTES;
    while (byte >= stream_piece(left)) {
        const int size = stream_piece(left);
        byte -= size, left -= size, from += COUNT * size;
    }
    return from + item * stream_piece(left) + byte;
}
template <int BYTES, int COUNT> __device__ __forceinline__ u32 stream_bits(const u8 *from, int item, int bit, int count) {
    if (count == 0) return 0;
    const u32 low = from[stream_at<BYTES, COUNT>(item, bit >> 3)];
    const u32 high = (bit & 7) + count > 8 ? from[stream_at<BYTES, COUNT>(item, (bit >> 3) + 1)] : 0;
    return (low | high << 8) >> (bit & 7) & ((1u << count) - 1);
}
template <int BYTES, int COUNT, int AT = 0> __device__ __forceinline__ void load_stream(u32 *w, const u8 *from, int item) {
    if constexpr (AT < BYTES) {
        constexpr int SIZE = stream_piece(BYTES - AT);
        u32 piece[4];
        load_words<SIZE>(piece, from + item * SIZE);
#pragma unroll
        for (int i = 0; i < (SIZE + 3) / 4; i++) w[AT / 4 + i] = AT % 4 ? w[AT / 4] | piece[0] << (8 * (AT % 4)) : piece[i];
        load_stream<BYTES, COUNT, AT + SIZE>(w, from + COUNT * SIZE, item);
    }
}
template <int BYTES, int COUNT, int AT = 0> __device__ __forceinline__ void store_stream(u8 *to, const u32 *w, int item) {
    if constexpr (AT < BYTES) {
        constexpr int SIZE = stream_piece(BYTES - AT);
        u32 piece[4];
#pragma unroll
        for (int i = 0; i < (SIZE + 3) / 4; i++) piece[i] = w[AT / 4 + i] >> (8 * (AT % 4));
        store_words<SIZE>(to + item * SIZE, piece);
        store_stream<BYTES, COUNT, AT + SIZE>(to + COUNT * SIZE, w, item);
    }
}

// Returns code n of a stream's words.
template <int BITS> __device__ __forceinline__ u32 code_at(const u32 *w, int n) {
    if constexpr (BITS == 0) return 0;
    const int bit = n * BITS, by = bit & 31;
    const u32 code = by + BITS > 32 ? w[bit >> 5] >> by | w[(bit >> 5) + 1] << (32 - by) : w[bit >> 5] >> by;
    return code & ((1u << BITS) - 1);
}
template <int BITS> __device__ __forceinline__ void put_code(u32 *w, int n, u32 code) {
    if constexpr (BITS > 0) {
        const int bit = n * BITS, by = bit & 31;
        w[bit >> 5] |= code << by;
        if (by + BITS > 32) w[(bit >> 5) + 1] |= code >> (32 - by);
    }
}

constexpr int stream_bits_of(int shape) { return is_sliced(shape) ? code_bits(shape) : index_bits(shape); }
constexpr int K_STREAM = EACH * stream_bits_of(KEYS) / 8, V_STREAM = 4 * stream_bits_of(VALUES); // in bytes
constexpr int K_STREAMS = 4 * SLOT_TOKENS, V_STREAMS = 2 * GROUPS * LANES;
constexpr int stream_words(int bytes) { return bytes > 4 ? (bytes + 3) / 4 : 1; }

// Packs both sides of a slot. `four(token, c)` returns the codes of coordinates c to c + 3, one byte each, with the
// path in the highest bit.
constexpr u32 PATH_BIT = 0x80;

// Collects bit `at` of each byte as four bits.
__device__ __forceinline__ u32 of_bytes(u32 codes, int at) { return (codes >> at & 0x01010101) * 0x01020408u >> 24 & 15; }

template <class Four> __device__ __forceinline__ void pack_key_streams(u8 *slot, Four four) {
    constexpr int BITS = index_bits(KEYS);
    for (int item = threadIdx.x; item < K_STREAMS; item += blockDim.x) {
        u32 path[BIT_WORDS] = {}, words[stream_words(K_STREAM)] = {};
#pragma unroll
        for (int d = 0; d < EACH; d += 4) {
            const int c = (item & 3) * EACH + d;
            const u32 codes = c < DIM ? four(item >> 2, c) : 0;
            if (has_path(KEYS)) path[d >> 5] |= of_bytes(codes, 7) << (d & 31);
#pragma unroll
            for (int e = 0; e < 4; e++) put_code<BITS>(words, d + e, codes >> (8 * e) & ((1 << BITS) - 1));
        }
        if (has_path(KEYS)) store_words<EACH / 8>(slot + item * (EACH / 8), path);
        store_stream<K_STREAM, K_STREAMS>(slot + K_LOW, words, item);
    }
}
template <class Four> __device__ __forceinline__ void pack_value_streams(u8 *values, Four four) {
    constexpr int BITS = index_bits(VALUES);
    for (int item = threadIdx.x; item < V_STREAMS; item += blockDim.x) {
        const int lane = item % LANES, c = item / LANES % GROUPS * 32 + (lane >> 2) * 4;
        const int token = item / LANES / GROUPS * 32 + (lane & 3) * 8;
        u32 path = 0, words[stream_words(V_STREAM)] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 codes = c < DIM ? four(token + i, c) : 0;
            if (has_path(VALUES)) path |= of_bytes(codes, 7) << (4 * i);
#pragma unroll
            for (int e = 0; e < 4; e++) put_code<BITS>(words, 8 * e + i, codes >> (8 * e) & ((1 << BITS) - 1));
        }
        if (has_path(VALUES)) reinterpret_cast<u32 *>(values)[item] = path;
        store_stream<V_STREAM, V_STREAMS>(values + V_LOW, words, item);
    }
}

// Reads at most 8 bits, little-endian, least significant first.
__device__ __forceinline__ u32 bits_at(const u8 *bytes, int at, int count) {
    const u32 low = bytes[at >> 3], high = (at & 7) + count > 8 ? bytes[(at >> 3) + 1] : 0;
    return ((low | high << 8) >> (at & 7)) & ((1u << count) - 1);
}

// Reads a code of a CPU row after its path: low bits of codes, then digits. Five digits of radix 3 take a byte;
// three of radix 5 take 7 bits.
constexpr int raw_bytes(int shape) { return DIM * raw_bits(shape) / 8; }
template <int SHAPE> __device__ __forceinline__ u32 row_index(const u8 *codes, int c) {
    constexpr int RAW = raw_bits(SHAPE), RADIX_OF = radix(SHAPE), GROUP = each_digits(SHAPE), BITS = group_bits(SHAPE);
    u32 code = RAW > 0 ? bits_at(codes, c * RAW, RAW) : 0;
    if (RADIX_OF > 1) {
        const int bit = c / GROUP * BITS; // a short last group is followed by the next row, or by zeros
        u32 digits = bits_at(codes + raw_bytes(SHAPE), bit, BITS == 8 ? 8 : min(BITS, digit_bits(SHAPE) - bit));
        for (int i = c % GROUP; i; i--) digits /= RADIX_OF;
        code |= digits % RADIX_OF << RAW;
    }
    return code;
}
// Returns byte `at` of such a row from `code(c)`.
template <int SHAPE, class Code> __device__ __forceinline__ u32 index_byte(int at, Code code) {
    constexpr int RAW = raw_bits(SHAPE), EACH_RAW = RAW > 0 ? RAW : 1, RADIX_OF = radix(SHAPE), GROUP = each_digits(SHAPE), BITS = group_bits(SHAPE);
    u32 out = 0;
    if (at < raw_bytes(SHAPE)) {
        for (int bit = 8 * at; bit < 8 * at + 8; bit++) out |= (code(bit / EACH_RAW) >> bit % EACH_RAW & 1) << (bit & 7);
        return out;
    }
    if constexpr (RADIX_OF > 1) {
        const int bit = 8 * (at - raw_bytes(SHAPE)); // with 7 bits, two groups share a byte
        for (int group = bit / BITS; BITS == 8 || (group * BITS < bit + 8 && group * GROUP < DIM); group++) {
            u32 digits = 0;
            for (int c = min(group * GROUP + GROUP - 1, DIM - 1); c >= group * GROUP; c--) digits = RADIX_OF * digits + (code(c) >> RAW);
            if (BITS == 8) return digits;
            out |= digits << 7 >> (7 + bit - group * BITS);
        }
    }
    return out;
}
