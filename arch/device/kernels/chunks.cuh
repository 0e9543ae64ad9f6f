// Keys of chunks. A direction of four coordinates times a radius has 16 bits for each coordinate. The high bytes go
// into one matrix product, the low bytes into another; a chunk is four bytes of both.

// Directions as integers of 16 bits.
struct Chunks {
    uint2 directions[12 * SET_MEMBERS];
};

template <bool FIRST, class A, class B> struct Choice {
    using Type = A;
};
template <class A, class B> struct Choice<false, A, B> {
    using Type = B;
};
// The table of fields.
using FieldTable = Choice<is_chunks(KEYS), Chunks, Triplets>::Type;
constexpr int TABLE_WORDS = sizeof(FieldTable) / 4;

// Returns chunk d of a thread as integers of 32 bits. Only their high 16 bits count.
__device__ __forceinline__ void chunk(int (&x)[4], const u32 (&words)[FIELD_WORDS], int d, const Chunks &of) {
    constexpr int STEP = 65535 / ((1 << CHUNK_RADIUS) - 1);
    const u32 field = field_at(words, d);
    const uint2 n = of.directions[field & ((1u << DIRECTION_FIELD) - 1)];
    const int radius = ((int)(field << (32 - FIELD_BITS)) >> (31 - CHUNK_RADIUS)) * STEP;
    x[0] = ((int)(n.x << 16) >> 16) * radius + 32768, x[1] = ((int)n.x >> 16) * radius + 32768;
    x[2] = ((int)(n.y << 16) >> 16) * radius + 32768, x[3] = ((int)n.y >> 16) * radius + 32768;
}

// Returns the high and low bytes of field d of a thread.
__device__ __forceinline__ uint2 field_bytes(const u32 (&words)[FIELD_WORDS], int d, bool, const Chunks &of) {
    int x[4];
    chunk(x, words, d, of);
    return make_uint2(prmt(prmt(x[0], x[1], 0x0073), prmt(x[2], x[3], 0x0073), 0x5410), prmt(prmt(x[0], x[1], 0x0062), prmt(x[2], x[3], 0x0062), 0x5410));
}
