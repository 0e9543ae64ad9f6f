// The layout of a page on the GPU, and definitions that all kernels share. The host compiles the sources at run time,
// with these numbers defined:
//   DIM         width of a key and of a value: 64, 80, 96, 128, 192 or 256
//   KEYS        the shape of keys; VALUES likewise: see `shape_of`
//   TRIPLETS    of triplets: 256 for each bit of ξ and of η, 16 for each bit of a radius, 1 for each bit of a left-over
//               coordinate; of chunks: 256 for each member, 16 for each bit of a radius, 1 for codes in mixed radix
//   CENTRES     1: pages have a centre
//   OPTIONS     1: logits are capped or hidden; 2: biases are added
//   OUTLIERS    1: some chunks of keys are exact; 2: of values; 3: of both; otherwise 0
//   COARSE_AT   keys are two trellis codes of half the width, and the coarse one's part of a slot starts here; otherwise 0
//   KEY_BYTES   bytes of both parts. compile.rs then includes the sources on keys in the namespaces `fine` and `coarse` as
//               well, with DIM and KEYS of a half and OF_HALF 1
//   SLOT_BYTES  bytes of a whole slot, for an encoder of one half. WHOLE: channels of a whole key, HALF_AT: the half's first
//
// A slot has 64 tokens of one head. A page of 128 or 256 tokens takes several slots. Data that a warp needs
// together lies together, aligned to 16 bytes. A row has WIDE coordinates here, the next multiple of 32; nothing
// uses those beyond DIM:
//
//   keys      planes of rows: 64 x path bits, 64 x low bits of codes, 64 x high bits of codes of 3 bits. Triplets and
//             chunks: each thread's fields in words of its own
//   centre    the high bytes of its integers, then their low four bits, in the order of the query's bytes. With norms in
//             the keys' rows: f16, in the keys' own basis
//   norms     64 u16 of keys, 64 of values: the steps that the page's codes of 6 bits decode to. Integers, chunks and codes
//             of more than 4.5 bits: f16. Small blocks: 64 f16 of each row's first block, then 64 of its second, and so on.
//             Groups: 64 f16 for each field of a row, [scale, zero][group]; those of values lie after their planes
//   tail      the rest of the page: see Tail. With OUTLIERS: where its exact chunks are
//   values    planes by octets of tokens, below
//
// With halves, a slot starts with keys, centre, norms and tail of the fine half; norms of values and tail are the
// slot's. Those of the coarse half follow.
//
// A slot contains all of a page: `download` writes the bytes that `upload` has read.
//
// Values: octets of a tile of 32 tokens, with 4 coordinates in a word. Words are [tile][coordinate / 32][lane]. Lane
// 4 g + t covers coordinates 4 g + e (e < 4) of these 32, and tokens 8 t + i (i < 8) of the tile.
//   1 bit     u32, bit e of nibble i
//   2 bits    two u32, word e / 2, bits 2 (e % 2) and up of nibble i
//   4 bits    four u32, word e, nibble i; of integers nibble 2 (i % 4) + i / 4
//   8 bits    eight u32, word 2 e + i / 4, byte i % 4: codes less 128
constexpr int SLOT_TOKENS = 64, HEADS = 8, WARPS = 4, LANES = 32;
#ifndef TRIPLETS
#define TRIPLETS 0
#endif
#ifndef OUTLIERS
#define OUTLIERS 0
#endif
#ifndef COARSE_AT
#define COARSE_AT 0
#endif
#ifndef OF_HALF
#define OF_HALF 0
#endif
#ifndef VALUE_STEPS // bytes of the norms of values after those of keys
#define VALUE_STEPS (is_grouped(VALUES) ? 0 : 2 * SLOT_TOKENS)
#endif
enum class Kind {
    Codes,    // of 2 to 4 bits, looked up in registers
    Indexed,  // looked up in shared memory (streams.cuh): codes of 1 and 5 to 8 bits, with digits, or of other trellises
    Trellis,  // of 8 states with codes of 1 to 3 bits, in registers
    Integers, // with a scale for each row
    Groups,   // integers with a scale for each group, or a scale and a zero
    Triplets,
    Blocks,   // small ones of 32 codes of 3 bits, each with a scale
    Chunks,   // of four values
};
// The shape of a row's codes, as CodeShape::number in arch/device/tables/shape.rs packs it. `bits`: of a code here. `history`:
// bits of a path in addition to the newest. `radix`: of digits, or 1. `octaves`: log2 of a group's values, 0: the whole row.
constexpr int shape_of(Kind kind, int bits, int history = 0, int radix = 1, int octaves = 0, int zeros = 0) {
    return (int)kind << 20 | zeros << 16 | octaves << 12 | radix << 8 | history << 4 | bits;
}
constexpr Kind kind_of(int shape) { return (Kind)(shape >> 20); }
constexpr bool has_zeros(int shape) { return shape >> 16 & 1; }
constexpr int group_octaves(int shape) { return shape >> 12 & 15; }
constexpr int radix(int shape) { return shape >> 8 & 15; }
constexpr int history(int shape) { return shape >> 4 & 15; }
constexpr int bits_of(int shape) { return shape & 15; }
constexpr int codes_of(int bits) { return shape_of(Kind::Codes, bits); }
constexpr int trellis_of(int bits) { return shape_of(Kind::Trellis, bits); }
constexpr int integers_of(int bits) { return shape_of(Kind::Integers, bits); }

constexpr int SHAPE = KEYS;
constexpr bool is_triplets(int shape) { return kind_of(shape) == Kind::Triplets; }
constexpr bool is_trellis(int shape) { return kind_of(shape) == Kind::Trellis; }
constexpr bool is_grouped(int shape) { return kind_of(shape) == Kind::Groups; }
constexpr bool is_int(int shape) { return kind_of(shape) == Kind::Integers || is_grouped(shape); }
constexpr bool is_byte(int shape) { return is_int(shape) && bits_of(shape) == 8; }
constexpr bool is_sliced(int shape) { return is_int(shape) && bits_of(shape) != 4 && !is_byte(shape); } // integers of other bits than 4 and 8
constexpr bool is_blocks(int shape) { return kind_of(shape) == Kind::Blocks; }
constexpr float BLOCK_SCALE = 0.17677669f; // for blocks of 32 values: 1/√32
constexpr bool is_chunks(int shape) { return kind_of(shape) == Kind::Chunks; }
constexpr int group_of(int shape) { return group_octaves(shape) ? 1 << group_octaves(shape) : is_blocks(shape) ? 32 : DIM; }
// Fields of a row, 16 bits each.
constexpr int fields_of(int shape) { return DIM / group_of(shape) * (has_zeros(shape) ? 2 : 1); }
constexpr bool is_fields(int shape) { return is_triplets(shape) || is_chunks(shape); }
constexpr bool is_indexed(int shape) { return kind_of(shape) == Kind::Indexed; }
constexpr int code_bits(int shape) { return is_indexed(shape) ? 0 : bits_of(shape); } // of codes with look-ups in registers
constexpr int index_bits(int shape) { return is_indexed(shape) ? bits_of(shape) : 0; } // of codes with look-ups in shared memory
// Whether rows contain f16 scales or norms, and a centre is f16 in the keys' own basis. Codes of more than 4.5 bits
// contain norms.
constexpr bool is_coded_in_rows(int shape) { return is_int(shape) || is_blocks(shape) || is_chunks(shape) || index_bits(shape) >= (history(shape) > 0 ? 4 : 5); }
// Keys of two halves have all norms together.
constexpr bool in_rows(int shape) { return !OF_HALF && is_coded_in_rows(shape); }
constexpr bool has_path(int shape) { return is_trellis(shape) || history(shape) > 0; }
constexpr int path_bytes(int shape) { return has_path(shape) ? DIM / 8 : 0; }

constexpr int bits_for(int count) { return count > 1 ? 1 + bits_for((count + 1) / 2) : 0; }
constexpr int raised(int number, int power) { return power > 0 ? number * raised(number, power - 1) : 1; }
constexpr int trailing_zeros(int number) { return number % 2 ? 0 : 1 + trailing_zeros(number / 2); }

// Codes of a CPU row: low bits, digits of a group, bits of a group, and bits of all groups. The last group may be short.
constexpr int raw_bits(int shape) { return index_bits(shape) - bits_for(radix(shape)); }
constexpr int each_digits(int shape) { return radix(shape) == 5 ? 3 : 5; }
constexpr int group_bits(int shape) { return bits_for(raised(radix(shape), each_digits(shape))); }
constexpr int digit_bits(int shape) { return DIM / each_digits(shape) * group_bits(shape) + bits_for(raised(radix(shape), DIM % each_digits(shape))); }

constexpr int TRIPLET_BITS = is_triplets(KEYS) ? TRIPLETS : 0;
constexpr int DIRECTION_BITS = TRIPLET_BITS >> 8, RADIUS_BITS = TRIPLET_BITS >> 4 & 15, REST_BITS = TRIPLET_BITS & 15;
// Chunks: members, and bits of a radius. In the CPU's row: bits of a code in the raw plane, and where the planes of
// digits and of radii begin.
constexpr int SET_MEMBERS = is_chunks(KEYS) ? TRIPLETS >> 8 : 1, CHUNK_RADIUS = is_chunks(KEYS) ? TRIPLETS >> 4 & 15 : 1;
constexpr bool RADIX = is_chunks(KEYS) && TRIPLETS & 1;
constexpr int RAW_BITS = RADIX ? trailing_zeros(24 * SET_MEMBERS) : bits_for(24 * SET_MEMBERS);
constexpr int DIGITS_AT = 2 + (DIM / 4 * RAW_BITS + 7) / 8, RADII_AT = DIGITS_AT + (RADIX ? (DIM / 2 + 4) / 5 : 0);
// A chunk on the GPU: the bits of its direction, then those of a radius with a sign.
constexpr int DIRECTION_FIELD = bits_for(12 * SET_MEMBERS);

constexpr int FIELD_BITS = is_chunks(KEYS) ? DIRECTION_FIELD + CHUNK_RADIUS + 1 : is_triplets(KEYS) ? 2 * DIRECTION_BITS + RADIUS_BITS : 1;
constexpr int FIELD_VALUES = is_chunks(KEYS) ? 4 : 3;
constexpr int FIELDS = (DIM + FIELD_VALUES - 1) / FIELD_VALUES, EACH_FIELDS = (FIELDS + 3) / 4; // of a row; of one of four threads
constexpr int FIELD_WORDS = is_fields(KEYS) ? (EACH_FIELDS * FIELD_BITS + 31) / 32 : 1;

constexpr int WIDE = (DIM + 31) / 32 * 32;
// Matrix products of a key. A field is four bytes; the last byte of a triplet is unused.
constexpr int PRODUCTS = is_fields(KEYS) ? (EACH_FIELDS + 1) / 2 : WIDE / 32;
constexpr int EACH = 8 * PRODUCTS;   // coordinates of a key that one of four threads holds
constexpr int K_WIDE = 4 * EACH;
constexpr int BIT_WORDS = (EACH + 31) / 32; // of one bit for each coordinate
constexpr int CODE_WORDS = EACH / (code_bits(KEYS) == 8 ? 4 : 8); // of their codes at most
constexpr int GROUPS = WIDE / 32;    // of 32 coordinates of a value

// Small blocks on the CPU: values, bytes, and bytes of the low bits of codes, which come before the high bits and
// the scale.
constexpr int BLOCK_VALUES = 32, BLOCK_BYTES = 14, BLOCK_LOW = 8;

// A CPU row: the bytes before its codes, and all bytes.
constexpr int row_head(int shape) { return (in_rows(shape) && !is_blocks(shape) ? 2 * fields_of(shape) : 0) + path_bytes(shape); }
constexpr int row_bytes(int shape) {
    if (is_chunks(shape)) return RADII_AT + (DIM / 4 * CHUNK_RADIUS + 7) / 8;
    if (is_blocks(shape)) return DIM / BLOCK_VALUES * BLOCK_BYTES;
    if (is_triplets(shape)) return (FIELDS * FIELD_BITS + 7) / 8;
    return row_head(shape) + DIM * (code_bits(shape) + raw_bits(shape)) / 8 + (digit_bits(shape) + 7) / 8;
}
// The last thread of a row's fields also has the padding of the stream.
static_assert(!is_triplets(KEYS) || 8 * row_bytes(KEYS) - 3 * EACH_FIELDS * FIELD_BITS <= 32 * FIELD_WORDS, "a row's last bits");
// Codes of 3 bits have planes of 2 bits and of 1. Other codes have one plane; slices have their own order.
constexpr int low_bits(int shape) { return is_sliced(shape) ? 0 : code_bits(shape) == 3 ? 2 : code_bits(shape); }

// Bytes of a slot's planes with `bits` bits for each coordinate.
constexpr int planes(int bits) { return SLOT_TOKENS * WIDE / 8 * bits; }
constexpr int K_LOW = planes(has_path(KEYS));
constexpr int K_HIGH = K_LOW + planes(low_bits(KEYS));
constexpr int K_CENTRE = is_fields(KEYS) ? SLOT_TOKENS * 16 * FIELD_WORDS : K_LOW + planes(code_bits(KEYS) + index_bits(KEYS));
constexpr int K_STEPS = K_CENTRE + (CENTRES ? 2 * K_WIDE : 0);
#if COARSE_AT
constexpr int TAIL = COARSE_AT - 16, V_STEPS = TAIL - VALUE_STEPS, OUTLIERS_AT = KEY_BYTES - (OUTLIERS ? 16 : 0), COARSE_TAIL = OUTLIERS_AT - 16;
#else
constexpr int V_STEPS = K_STEPS + 2 * SLOT_TOKENS * fields_of(KEYS);
constexpr int TAIL = V_STEPS + VALUE_STEPS;
constexpr int OUTLIERS_AT = TAIL + 16;
#endif
constexpr int K_PART = OUTLIERS_AT + (OUTLIERS ? 16 : 0);
constexpr int V_LOW = planes(has_path(VALUES));
constexpr int V_HIGH = V_LOW + planes(low_bits(VALUES));
constexpr int V_FIELDS = V_LOW + planes(code_bits(VALUES) + index_bits(VALUES));
constexpr int V_PART = V_FIELDS + (is_grouped(VALUES) ? 2 * SLOT_TOKENS * fields_of(VALUES) : 0);
#ifdef SLOT_BYTES
constexpr int SLOT = SLOT_BYTES;
#else
constexpr int SLOT = (K_PART + V_PART + 31) / 32 * 32;
#endif

struct Tail {
    u16 key_largest; // f16; of rows with norms of their own the largest
    u8 key_octaves, value_octaves; // for groups: exponent + 127 of a power of two that no coordinate reaches
    u16 value_largest, centre; // f16; the centre's norm, or the largest coordinate of a centre in f16
    u64 position; // of the slot's first token
};
static_assert(sizeof(Tail) == 16, "the tail of a slot");
// The places of a slot's exact chunks: see outliers.cuh.
struct Outliers {
    const u32 *records;
    u16 keys, values;               // their number
    u16 key_largest, value_largest; // f16, in magnitude
};
static_assert(sizeof(Outliers) == 16, "behind the tail");

// Returns where coordinate c of a key is in the order of the threads, which hold EACH coordinates each. A small
// block is a product of its own, and each thread holds eight of its coordinates. `coordinate` is the inverse.
__device__ __forceinline__ int own_order(int c) {
    if (!is_blocks(KEYS)) return c;
    const int product = c / 32, nibble = c & 7;
    return (c % 32 >> 3) * EACH + (PRODUCTS % 2 && product == PRODUCTS - 1 ? 8 * product + nibble : 16 * (product >> 1) + 2 * nibble + (product & 1));
}
__device__ __forceinline__ int coordinate(int at) {
    if (!is_blocks(KEYS)) return at;
    const int thread = at / EACH, d = at % EACH;
    if (d >= EACH / 16 * 16) return d / 8 * 32 + 8 * thread + d % 8;
    return (2 * (d >> 4) + (d & 1)) * 32 + 8 * thread + ((d & 15) >> 1);
}

// Returns where coordinate c of a key is among operands: which of four threads, matrix product, half and byte.
__device__ __forceinline__ void place(int c, int &thread, int &product, int &half, int &byte) {
    if (is_fields(KEYS)) {
        const int field = c / FIELD_VALUES % EACH_FIELDS;
        thread = c / FIELD_VALUES / EACH_FIELDS, product = field >> 1, half = field & 1, byte = c % FIELD_VALUES;
        return;
    }
    if (is_grouped(KEYS) || is_sliced(KEYS)) {
        thread = c >> 2 & 3, product = c >> 5, half = c >> 4 & 1, byte = c & 3;
        return;
    }
    c = own_order(c);
    const int d = c % EACH;
    thread = c / EACH;
    constexpr bool by_fours = KEYS == codes_of(4) || KEYS == integers_of(8) || is_indexed(KEYS);
    if (is_trellis(KEYS) || KEYS == integers_of(4) || (!by_fours && d >= EACH / 16 * 16)) {
        product = d >> 3, half = d & 1, byte = d >> 1 & 3;
    } else if (by_fours) {
        product = d >> 3, half = d >> 2 & 1, byte = d & 3;
    } else {
        const int nibble = (d & 15) >> 1;
        product = 2 * (d >> 4) + (d & 1), half = nibble >> 2, byte = nibble & 3;
    }
}

// Returns where the single bit of a code lies among the bits of a thread's coordinates:
//   codes of 3 bits   in the order of selector nibbles, four products in a word; two products left over take 16 bits
//   codes of 1 bit    in the order of selector pairs, two products in 16 bits
//   one last product  by bytes: see `spread`
//   with path windows in the order of coordinates
__device__ __forceinline__ int single_bit(int d) {
    int thread, product, half, byte;
    place(coordinate(d), thread, product, half, byte);
    if (KEYS != codes_of(3) && KEYS != trellis_of(1) && !is_blocks(KEYS)) return d;
    if (PRODUCTS % 2 && product == PRODUCTS - 1) return 8 * product + 2 * byte + half;
    if (KEYS == trellis_of(1)) return 16 * (product >> 1) + 4 * byte + 2 * (product & 1) + half;
    const int nibble = 4 * half + byte, four = product & ~3;
    return 8 * four + (product & 3) + (four + 4 > PRODUCTS ? 4 * (nibble & 3) + 2 * (nibble >> 2) : 4 * nibble);
}
// Integers with groups: returns the word with the codes of coordinate c and the next three. Codes of 4 bits are in
// the nibbles from `shift` on.
__device__ __forceinline__ const u8 *group_word(const u8 *slot, int token, int c, int &shift) {
    constexpr int BITS = code_bits(KEYS);
    const int half = c >> 4 & 1;
    shift = BITS == 8 ? 0 : 4 * half;
    return slot + K_LOW + (token * 4 + (c >> 2 & 3)) * (EACH * BITS / 8) + BITS * (c >> 5) + (BITS == 8 ? 4 * half : 0);
}
__device__ __forceinline__ int centre_byte(int c) {
    int thread, product, half, byte;
    place(c, thread, product, half, byte);
    return thread * EACH + 8 * product + 4 * half + byte;
}

// H = Sylvester's matrix ⊗ a matrix of order BASE: 1, or Paley's first construction of order 12 and 20, as in
// arch/vectors/hadamard.rs.
constexpr int BASE = DIM % 5 == 0 ? 20 : DIM % 3 == 0 ? 12 : 1;
// Bit c of row r is set where the matrix has -1.
struct Signs {
    u32 rows[BASE], columns[BASE];
};
constexpr bool is_square(int value, int q) {
    for (int root = 1; root < q; root++)
        if (root * root % q == value) return true;
    return false;
}
constexpr Signs paley() {
    Signs signs = {};
    constexpr int Q = BASE > 1 ? BASE - 1 : 1;
    for (int r = 1; r < BASE; r++)
        for (int c = 0; c < BASE; c++)
            if (c == 0 || (r != c && !is_square((r - c + Q) % Q, Q)))
                signs.rows[r] |= 1u << c, signs.columns[c] |= 1u << r;
    return signs;
}
constexpr Signs SIGNS = paley();
constexpr float INVERSE_SQRT = DIM == 32    ? 0.17677669529663687f
                               : DIM == 64  ? 0.125f
                               : DIM == 80  ? 0.11180339887498948482f
                               : DIM == 96  ? 0.10206207261596575409f
                               : DIM == 128 ? 0.08838834764831844055f
                               : DIM == 192 ? 0.07216878364870322981f
                                            : 0.0625f;

// Returns where a slot has a field of a token: f16, or steps of norms.
__device__ __forceinline__ u16 *key_field(u8 *slot, int field, int token) { return reinterpret_cast<u16 *>(slot + K_STEPS) + field * SLOT_TOKENS + token; }
__device__ __forceinline__ u16 *value_field(u8 *slot, int field, int token) {
    return reinterpret_cast<u16 *>(slot + (is_grouped(VALUES) ? K_PART + V_FIELDS : V_STEPS)) + field * SLOT_TOKENS + token;
}
// Returns a bound that no integer of a group with these fields reaches.
template <int SHAPE> __device__ __forceinline__ float bound_of(float scale, float zero) {
    return scale * (1 << (has_zeros(SHAPE) ? code_bits(SHAPE) : code_bits(SHAPE) - 1)) + (zero < 0 ? -zero : zero);
}
// Rounds such a bound up to the exponent in a tail.
__device__ __forceinline__ u8 octaves_of(u32 float_bits) { return (u8)min(255u, (float_bits >> 23) + 1); }

template <class T> __device__ __forceinline__ T load(const u8 *bytes) { return *reinterpret_cast<const T *>(bytes); }

// The size of the largest pieces that divide BYTES.
template <int BYTES> struct Piece {
    static constexpr int SIZE = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : BYTES % 4 == 0 ? 4 : BYTES % 2 == 0 ? 2 : 1;
};
template <int BYTES> __device__ __forceinline__ void load_words(u32 *w, const u8 *from) {
    constexpr int SIZE = Piece<BYTES>::SIZE;
    if (SIZE < 4)
        for (int i = 0; i < (BYTES + 3) / 4; i++) w[i] = 0;
#pragma unroll
    for (int at = 0; at < BYTES; at += SIZE) {
        u32 *to = w + at / 4;
        if (SIZE == 16) {
            const uint4 x = load<uint4>(from + at);
            to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
        } else if (SIZE == 8) {
            const uint2 x = load<uint2>(from + at);
            to[0] = x.x, to[1] = x.y;
        } else if (SIZE == 4) {
            to[0] = load<u32>(from + at);
        } else if (SIZE == 2) {
            to[0] |= (u32)load<u16>(from + at) << (8 * (at & 3));
        } else {
            to[0] |= (u32)from[at] << (8 * (at & 3));
        }
    }
}
template <int BYTES> __device__ __forceinline__ void store_words(u8 *to, const u32 *w) {
    constexpr int SIZE = Piece<BYTES>::SIZE;
#pragma unroll
    for (int at = 0; at < BYTES; at += SIZE) {
        const u32 *x = w + at / 4;
        if (SIZE == 16) *reinterpret_cast<uint4 *>(to + at) = make_uint4(x[0], x[1], x[2], x[3]);
        else if (SIZE == 8) *reinterpret_cast<uint2 *>(to + at) = make_uint2(x[0], x[1]);
        else if (SIZE == 4) *reinterpret_cast<u32 *>(to + at) = x[0];
        else if (SIZE == 2) *reinterpret_cast<u16 *>(to + at) = (u16)(x[0] >> (8 * (at & 3)));
        else to[at] = (u8)(x[0] >> (8 * (at & 3)));
    }
}
