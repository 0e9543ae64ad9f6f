// Chunks of four values in the CPU's rows, and their fields on the GPU.
//
//   field    direction of 12 · SET_MEMBERS │ radius │ sign
// Each unit has an opposite. The field has the direction of the first of both, and the sign of the radius tells
// them apart.

// Reads at most 24 bits, little-endian, least significant first.
__device__ __forceinline__ u32 wide_bits(const u8 *bytes, int at, int count) {
    u32 out = 0;
    for (int i = at / 8; i <= (at + count - 1) / 8; i++) {
        const int by = 8 * i - at;
        out |= by < 0 ? (u32)bytes[i] >> -by : (u32)bytes[i] << by;
    }
    return out & ((1u << count) - 1);
}

// Creates the field of a code and a radius.
__device__ __forceinline__ u32 direction_field(u32 code, u32 radius) {
    const u32 unit = code / SET_MEMBERS;
    const bool opposite = unit < 8 ? unit & 1 : unit >= 16;
    const u32 first = unit < 8 ? unit >> 1 : unit < 16 ? unit - 4 : 27 - unit;
    const u32 direction = first * SET_MEMBERS + code % SET_MEMBERS;
    return direction | ((opposite ? 0 - radius : radius) & ((2u << CHUNK_RADIUS) - 1)) << DIRECTION_FIELD;
}

// Reads the field of a chunk in a row.
__device__ __forceinline__ u32 chunk_field(const u8 *row, int chunk) {
    u32 code = wide_bits(row + 2, chunk * RAW_BITS, RAW_BITS);
    if (RADIX) {
        u32 digits = 0;
        for (int j = 2 * chunk + 1; j >= 2 * chunk; j--) {
            u32 digit = row[DIGITS_AT + j / 5];
            for (int i = 0; i < j % 5; i++) digit /= 3;
            digits = 3 * digits + digit % 3;
        }
        code |= digits << RAW_BITS;
    }
    code = min(code, 24u * SET_MEMBERS - 1);
    return direction_field(code, wide_bits(row + RADII_AT, chunk * CHUNK_RADIUS, CHUNK_RADIUS));
}

// Writes a slot's chunks from `field(token, chunk)`, each to its thread.
template <class Field> __device__ __forceinline__ void pack_chunks(u8 *slot, Field field_of) {
    for (int item = threadIdx.x; item < SLOT_TOKENS * 4; item += blockDim.x) {
        u32 words[FIELD_WORDS + 1] = {};
        for (int d = 0; d < EACH_FIELDS; d++) {
            const u32 field = field_of(item >> 2, (item & 3) * EACH_FIELDS + d);
            const int bit = d * FIELD_BITS;
            words[bit >> 5] |= field << (bit & 31);
            if ((bit & 31) + FIELD_BITS > 32) words[(bit >> 5) + 1] |= field >> (32 - (bit & 31));
        }
        store_words<4 * FIELD_WORDS>(slot + item * 4 * FIELD_WORDS, words);
    }
}

// Reads code and radius of a chunk in a slot.
struct Chunk {
    u32 code, radius;
};
__device__ __forceinline__ Chunk slot_chunk(const u8 *slot, int token, int chunk) {
    const u8 *own = slot + (token * 4 + chunk / EACH_FIELDS) * 4 * FIELD_WORDS;
    const u32 field = wide_bits(own, chunk % EACH_FIELDS * FIELD_BITS, FIELD_BITS), direction = field & ((1u << DIRECTION_FIELD) - 1);
    const int radius = (int)(field << (32 - FIELD_BITS)) >> (31 - CHUNK_RADIUS);
    const u32 first = direction / SET_MEMBERS, opposite = radius < 0;
    const u32 unit = first < 4 ? 2 * first + opposite : opposite ? 27 - first : first + 4;
    return {unit * SET_MEMBERS + direction % SET_MEMBERS, (u32)(opposite ? -radius : radius)};
}

// Returns a byte of a CPU row after its scale.
__device__ __forceinline__ u32 chunk_byte(const u8 *slot, int token, int byte) {
    u32 out = 0;
    if (byte < DIGITS_AT) {
        for (int i = 0; i < 8; i++) {
            const int bit = 8 * (byte - 2) + i;
            if (bit < FIELDS * RAW_BITS) out |= (slot_chunk(slot, token, bit / RAW_BITS).code >> bit % RAW_BITS & 1) << i;
        }
    } else if (byte < RADII_AT) {
        for (int i = 4; i >= 0; i--) {
            const int j = 5 * (byte - DIGITS_AT) + i;
            u32 digits = j < 2 * FIELDS ? slot_chunk(slot, token, j / 2).code >> RAW_BITS : 0;
            out = 3 * out + (j & 1 ? digits / 3 : digits) % 3;
        }
    } else {
        for (int i = 0; i < 8; i++) {
            const int bit = 8 * (byte - RADII_AT) + i;
            if (bit < FIELDS * CHUNK_RADIUS) out |= (slot_chunk(slot, token, bit / CHUNK_RADIUS).radius >> bit % CHUNK_RADIUS & 1) << i;
        }
    }
    return out;
}
