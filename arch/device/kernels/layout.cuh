// How a page lies on the card, and what every kernel shares. Compiled at run time with these numbers given:
//   DIM         width of a key and of a value, 64 or 128
//   KEYS        the shape of a key: codes of 4, 3 or 2 bits (4, 3, 2), or a trellis of 8 states with codes of 1, 2 or 3
//               bits (11, 12, 13)                VALUES  likewise
//   CENTRES     1: pages have a centre          OPTIONS 1: logits are capped or hidden
//
// A slot has 64 tokens of one head; a page of 128 or 256 tokens takes several. All that a warp needs at once lies together, and
// 16 bytes are aligned:
//
//   keys      planes of rows: 64 x path bits, 64 x low bits of codes, 64 x high bits of codes of 3 bits
//   centre    its integers' high bytes, then their low four bits, in the order of the query's bytes
//   norms     64 u16 of the keys, 64 of the values: the steps that the page's codes of 6 bits stand for
//   tail      what else the page says: see Tail
//   values    planes by octets of tokens, below
//
// Nothing of a page is lost: `download` writes the bytes that `upload` has read.
//
// Values: the octets of a tile of 32 tokens, 4 coordinates a word: word (tile, coordinate / 32, lane) is of coordinates
// 4 g + e (e < 4) of these 32 and of tokens 8 t + i (i < 8) of the tile, where lane = 4 g + t.
//   1 bit     u32, bit e of nibble i
//   2 bits    two u32, word e / 2, bits 2 (e % 2) and up of nibble i
//   4 bits    four u32, word e, nibble i
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int SLOT_TOKENS = 64, HEADS = 8, WARPS = 4, LANES = 32;
constexpr int VEC = DIM / LANES;    // coordinates of a vector that a lane of a warp holds
constexpr int EACH = DIM / 4;       // coordinates of a key that a thread of four holds
constexpr int PRODUCTS = DIM / 32;  // matrix products a key
constexpr int GROUPS = DIM / 32;    // groups of 32 coordinates of a value

constexpr bool is_trellis(int shape) { return shape > 10; }
constexpr int code_bits(int shape) { return shape % 10; }
constexpr int path_bytes(int shape) { return is_trellis(shape) ? DIM / 8 : 0; }
constexpr int row_bytes(int shape) { return path_bytes(shape) + DIM * code_bits(shape) / 8; }
// Codes of 3 bits are planes of 2 and of 1; the others one plane.
constexpr int low_bits(int shape) { return code_bits(shape) == 3 ? 2 : code_bits(shape); }

constexpr int K_LOW = SLOT_TOKENS * path_bytes(KEYS);
constexpr int K_HIGH = K_LOW + SLOT_TOKENS * DIM * low_bits(KEYS) / 8;
constexpr int K_CENTRE = SLOT_TOKENS * row_bytes(KEYS);
constexpr int K_STEPS = K_CENTRE + (CENTRES ? 2 * DIM : 0);
constexpr int V_STEPS = K_STEPS + 2 * SLOT_TOKENS;
constexpr int TAIL = V_STEPS + 2 * SLOT_TOKENS;
constexpr int K_PART = TAIL + 16;
constexpr int V_LOW = SLOT_TOKENS * path_bytes(VALUES);
constexpr int V_HIGH = V_LOW + SLOT_TOKENS * DIM * low_bits(VALUES) / 8;
constexpr int V_PART = SLOT_TOKENS * row_bytes(VALUES);
constexpr int SLOT = (K_PART + V_PART + 31) / 32 * 32;

struct Tail {
    u16 key_largest; // f16
    u8 key_octaves, value_octaves;
    u16 value_largest, centre; // f16
    u64 position; // of the slot's first token
};
static_assert(sizeof(Tail) == 16, "the tail of a slot");

// Where coordinate d, of the EACH that a thread holds of a key, stands among its operands: matrix product, half, byte.
__device__ __forceinline__ void place(int d, int &product, int &half, int &byte) {
    if (is_trellis(KEYS)) {
        product = d >> 3, half = d & 1, byte = d >> 1 & 3;
    } else if (KEYS == 4) {
        product = d >> 3, half = d >> 2 & 1, byte = d & 3;
    } else {
        const int nibble = (d & 15) >> 1;
        product = 2 * (d >> 4) + (d & 1), half = nibble >> 2, byte = nibble & 3;
    }
}

// Where the single bit of a code lies among those of a thread's coordinates: codes of 3 bits as selectors of nibbles want
// it, codes of 1 bit as selectors of pairs; beside windows of a path in the order of coordinates.
__device__ __forceinline__ int single_bit(int d) {
    int product, half, byte;
    place(d, product, half, byte);
    if (KEYS == 3) {
        const int nibble = 4 * half + byte;
        return DIM == 64 ? 4 * (nibble & 3) + 2 * (nibble >> 2) + product : 4 * nibble + product;
    }
    if (KEYS == 11) return 16 * (product >> 1) + 4 * byte + 2 * (product & 1) + half;
    return d;
}
__device__ __forceinline__ int centre_byte(int c) {
    int product, half, byte;
    place(c % EACH, product, half, byte);
    return c / EACH * EACH + 8 * product + 4 * half + byte;
}

__device__ __forceinline__ float from_f16(u32 bits) {
    float x;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(bits));
    return x;
}

template <class T> __device__ __forceinline__ T load(const u8 *bytes) { return *reinterpret_cast<const T *>(bytes); }
