// Integers of 2, 3, 5, 6 and 7 bits in two's complement.
//
// A word contains four streams of bits side by side, one in each byte. So the four integers of an operand's word
// are one field of all four streams. Two shifts and two masks move a field to the high bits of its bytes:
//   bits               7  6  5  4  3  2  1  0
//   byte of a word     f2 f2 f1 f1 f1 f0 f0 f0     fields of 3 bits; the rest of f2 is in the next word
//   operand's byte     f0 f0 f0  0  0  0  0  0     2^(8-BITS) times the integer, with its sign
// Units compensate for that factor (`Tables::integers`), and zeros have it too.
//
//   keys      fields 2 j and 2 j + 1 are a thread's halves of product j: coordinates 32 j + 4 t + e, and 16 more.
//             In a last word that is not full, bytes are packed by four bits, or by two.
//   values    fields 2 e and 2 e + 1 are coordinate e of an octet: of its first four tokens, and of its others.

constexpr float sliced_factor(int shape) { return is_sliced(shape) ? 1 << (8 - code_bits(shape)) : 1; }

// Returns field n in the high bits of bytes.
template <int BITS> __device__ __forceinline__ u32 slice(const u32 *w, int n) {
    const int at = n * BITS, by = at & 7, word = at >> 3;
    constexpr u32 ONES = 0x01010101u;
    if (by + BITS <= 8) return w[word] << (8 - BITS - by) & ONES * (0x100 - (1 << (8 - BITS)));
    const int low = 8 - by, high = BITS - low; // bits in each of the two words
    return (w[word] >> (by + BITS - 8) & ONES * (((1 << low) - 1) << (8 - BITS))) | (w[word + 1] << (8 - high) & ONES * (0x100 - (1 << (8 - high))));
}
// Adds four codes, one byte each, as field n of words that are zero there.
template <int BITS> __device__ __forceinline__ void put_slice(u32 *w, int n, u32 codes) {
    const int at = n * BITS, by = at & 7, word = at >> 3;
    constexpr u32 ONES = 0x01010101u;
    codes = (codes ^ ONES << (BITS - 1)) & ONES * ((1 << BITS) - 1);
    w[word] |= (codes & ONES * ((1 << min(BITS, 8 - by)) - 1)) << by;
    if (by + BITS > 8) w[word + 1] |= codes >> (8 - by) & ONES * ((1 << (by + BITS - 8)) - 1);
}

// Packs and unpacks the last word, if it has only 1 to 3 bytes.
template <int BYTES> __device__ __forceinline__ u32 folded(u32 w) {
    const u32 fours = w & 0x0F0F0F0F, twos = (BYTES == 3 ? w >> 4 : w) & 0x03030303;
    const u32 half = (fours | fours >> 12) & 0xFFFF, quarter = (twos | twos >> 6 | twos >> 12 | twos >> 18) & 0xFF;
    return BYTES == 1 ? quarter : BYTES == 2 ? half : half | quarter << 16;
}
template <int BYTES> __device__ __forceinline__ u32 unfolded(u32 kept) {
    const u32 first = kept & 0xFFFF, last = (BYTES == 3 ? kept >> 16 : kept) & 0xFF;
    const u32 fours = (first | first << 12) & 0x0F0F0F0F, twos = (last | last << 6 | last << 12 | last << 18) & 0x03030303;
    return BYTES == 1 ? twos : BYTES == 2 ? fours : fours | twos << 4;
}

// The words of a thread's coordinates of a key.
struct KeySlices {
    u32 words[stream_words(K_STREAM) + 1]; // one more, whose bits are not used
    __device__ __forceinline__ KeySlices(const u8 *slot, int token, int t) {
        load_stream<K_STREAM, K_STREAMS>(words, slot + K_LOW, token * 4 + t);
        if (K_STREAM % 4) words[K_STREAM / 4] = unfolded<K_STREAM % 4>(words[K_STREAM / 4]);
    }
    __device__ __forceinline__ u32 half(int j, int h) const { return slice<code_bits(KEYS)>(words, 2 * j + h); }
};

// Returns bit i of byte `lane` of field n in an item's bytes.
template <int BYTES, int COUNT, int BITS> __device__ __forceinline__ u32 slice_bit(const u8 *from, int item, int n, int lane, int i) {
    const int at = n * BITS + i, last = at - 8 * (BYTES / 4); // bit of the byte's stream, and of the last word
    int byte = 4 * (at >> 3) + lane, bit = at & 7;
    if (last >= 0 && BYTES % 4 >= 2 && last < 4) byte = BYTES / 4 * 4 + (lane & 1), bit = 4 * (lane >> 1) + last;
    else if (last >= 0) byte = BYTES - 1, bit = 2 * lane + (last & 3);
    return (from[stream_at<BYTES, COUNT>(item, byte)] >> bit & 1) ^ (i == BITS - 1);
}
__device__ __forceinline__ u32 slot_key_slice(const u8 *slot, int token, int c, int i) {
    return slice_bit<K_STREAM, K_STREAMS, code_bits(KEYS)>(slot + K_LOW, token * 4 + (c >> 2 & 3), 2 * (c >> 5) + (c >> 4 & 1), c & 3, i);
}
__device__ __forceinline__ u32 slot_value_slice(const u8 *values, int token, int c, int i) {
    const int item = (token / 32 * GROUPS + c / 32) * LANES + c % 32 / 4 * 4 + token % 32 / 8;
    return slice_bit<V_STREAM, V_STREAMS, code_bits(VALUES)>(values + V_LOW, item, 2 * (c & 3) + (token >> 2 & 1), token & 3, i);
}

// Writes a slot. `four(token, c)` returns the codes of four coordinates, one byte each.
template <class Four> __device__ __forceinline__ void pack_key_slices(u8 *slot, Four four) {
    for (int item = threadIdx.x; item < K_STREAMS; item += blockDim.x) {
        u32 words[stream_words(K_STREAM) + 1] = {};
#pragma unroll
        for (int n = 0; n < 2 * PRODUCTS; n++) {
            const int c = 16 * n + 4 * (item & 3);
            put_slice<code_bits(KEYS)>(words, n, c < DIM ? four(item >> 2, c) : 0);
        }
        if (K_STREAM % 4) words[K_STREAM / 4] = folded<K_STREAM % 4>(words[K_STREAM / 4]);
        store_stream<K_STREAM, K_STREAMS>(slot + K_LOW, words, item);
    }
}
template <class Four> __device__ __forceinline__ void pack_value_slices(u8 *values, Four four) {
    for (int item = threadIdx.x; item < V_STREAMS; item += blockDim.x) {
        const int lane = item % LANES, c = item / LANES % GROUPS * 32 + (lane >> 2) * 4;
        const int token = item / LANES / GROUPS * 32 + (lane & 3) * 8;
        u32 of[8] = {}, words[stream_words(V_STREAM) + 1] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 codes = c < DIM ? four(token + i, c) : 0;
#pragma unroll
            for (int e = 0; e < 4; e++) of[2 * e + (i >> 2)] |= (codes >> (8 * e) & 0xFF) << (8 * (i & 3));
        }
#pragma unroll
        for (int n = 0; n < 8; n++) put_slice<code_bits(VALUES)>(words, n, of[n]);
        store_stream<V_STREAM, V_STREAMS>(values + V_LOW, words, item);
    }
}
