// Encodes triplets of coordinates as fields. All float operations are those of triplets/scalar.rs, in its order.

// The tables of a search, as created in tables/triplets.rs.
struct Search {
    static constexpr int CODES = 1 << DIRECTION_BITS, CELLS = 64;
    int before, behind;                    // codes to try below and above the one found
    u32 own;                               // 1: the triplet's own radius
    float cells[CELLS];                    // of -1 to 1: the threshold in each
    u32 counts[CELLS];                     // thresholds before each cell
    float coordinates[CODES];              // of ξ and η, ascending
    float lengths[CODES * CODES];          // reciprocals, by codes of η (major) and ξ
    u32 directions[CODES * CODES];         // a byte for each coordinate: 127 times it, plus 128
    float radii[1 << RADIUS_BITS], radius_thresholds[1 << RADIUS_BITS];
    float rest[1 << REST_BITS], rest_thresholds[1 << REST_BITS];
};
// Fields of a row.
using Fields = u16[FIELDS + 1];

constexpr float SMALLEST_SUM = 7.888609052210118e-31f; // 2^-100

// Counts how many of 2^BITS - 1 ascending thresholds do not exceed y.
template <int BITS> __device__ __forceinline__ u32 count_below(float y, const float *thresholds) {
    u32 count = 0;
#pragma unroll
    for (int step = (1 << BITS) / 2; step; step /= 2) count = y >= thresholds[count + step - 1] ? count + step : count;
    return count;
}

// A code of ξ or of η.
struct Coordinate {
    int code;
    float value, rest, sign; // rest: 1 - |value|
};

// Replaces the coordinates of a triplet by what its field decodes to. BRACKET tries the codes on either side of a
// coordinate; this is the usual search.
template <bool BRACKET> __device__ __forceinline__ u32 search_triplet(const Search &s, float (&t)[3]) {
    const float x = t[0], y = t[1], z = t[2];
    const float sum = (fabsf(x) + fabsf(y)) + fabsf(z);
    const float inverse = 1.0f / (sum >= SMALLEST_SUM ? sum : 1.0f);
    float xi = x * inverse, eta = y * inverse;
    if (z < 0) {
        const float p = 1.0f - fabsf(eta), q = 1.0f - fabsf(xi);
        xi = xi < 0 ? -p : p, eta = eta < 0 ? -q : q;
    }
    auto found = [&](float v) {
        const u32 at = __float_as_uint(__fmaf_rn(__saturatef(__fmaf_rn(v, 0.5f, 0.5f)), 255, 8388608)) & 0xFC;
        return (int)(s.counts[at / 4] + (v >= s.cells[at / 4]));
    };
    auto coordinate = [&](int code) {
        Coordinate c;
        c.code = code, c.value = s.coordinates[code], c.rest = 1.0f - fabsf(c.value);
        c.sign = __uint_as_float((__float_as_uint(c.value) & 0x80000000) | 0x3F800000);
        return c;
    };
    float best = __int_as_float(0xff800000);
    u32 code = 0;
    auto attempt = [&](const Coordinate &column, const Coordinate &row, bool first) {
        const u32 both = column.code | row.code << DIRECTION_BITS;
        const float length = s.lengths[both];
        const float c = column.rest - fabsf(row.value);
        const float a = c < 0 ? row.rest * column.sign : column.value; // exact: of a positive number
        const float b = c < 0 ? column.rest * row.sign : row.value;
        const float projection = (x * (a * length) + y * (b * length)) + z * (c * length);
        if (first || projection > best) best = projection, code = both;
    };
    const int i = found(xi), j = found(eta);
    const int before = BRACKET ? 1 : s.before, behind = BRACKET ? 0 : s.behind;
    const int left = max(i - before, 0), right = min(i + behind, Search::CODES - 1);
    const int low = max(j - before, 0), high = min(j + behind, Search::CODES - 1);
    if (BRACKET) {
        const Coordinate columns[2] = {coordinate(left), coordinate(right)}, rows[2] = {coordinate(low), coordinate(high)};
        attempt(columns[0], rows[0], true), attempt(columns[1], rows[0], false);
        attempt(columns[0], rows[1], false), attempt(columns[1], rows[1], false);
    } else {
#pragma unroll 1
        for (int row = low; row <= high; row++)
#pragma unroll 1
            for (int column = left; column <= right; column++) attempt(coordinate(column), coordinate(row), false);
    }
    if (!BRACKET && s.own) code = i | j << DIRECTION_BITS, best = sqrtf((x * x + y * y) + z * z);
    const u32 radius = count_below<RADIUS_BITS>(best, s.radius_thresholds);
    const u32 n = s.directions[code];
    const float length = s.radii[radius];
#pragma unroll
    for (int e = 0; e < 3; e++) t[e] = length * (__uint_as_float(__byte_perm(n, 0x4B000000, 0x7440 + e)) - (8388608.0f + 128)) * (1.0f / 127);
    return code | radius << (2 * DIRECTION_BITS);
}

// Encodes the rotated coordinates of a row, which eight lanes hold, and leaves what the fields decode to.
template <bool BRACKET> __device__ __forceinline__ void search_row(const Search &s, float *row, float scale, u16 *fields, int lane) {
#pragma unroll 1
    for (int field = lane & 7; field < FIELDS; field += 8) {
        float *own = row + 3 * field;
        const bool whole = DIM % 3 == 0 || field < FIELDS - 1;
        u32 bits = 0;
        if (whole || REST_BITS == 0) {
            float t[3];
#pragma unroll
            for (int e = 0; e < 3; e++) t[e] = whole || e < DIM % 3 ? own[e] * scale : 0;
            bits = search_triplet<BRACKET>(s, t);
#pragma unroll
            for (int e = 0; e < 3; e++)
                if (whole || e < DIM % 3) own[e] = t[e];
        } else {
#pragma unroll
            for (int e = 0; e < DIM % 3; e++) {
                const u32 code = count_below<REST_BITS>(own[e] * scale, s.rest_thresholds);
                bits |= code << (e * REST_BITS), own[e] = s.rest[code];
            }
        }
        fields[field] = (u16)bits;
    }
}

// Splits the fields of all rows among threads: see `pack_fields`.
__device__ __forceinline__ void pack_found(u8 *slot, const Fields *fields) {
    for (int item = threadIdx.x; item < SLOT_TOKENS * 4; item += blockDim.x) {
        u32 words[FIELD_WORDS] = {};
#pragma unroll
        for (int d = 0; d < EACH_FIELDS; d++) {
            const int number = (item & 3) * EACH_FIELDS + d, bit = d * FIELD_BITS;
            const u32 field = number < FIELDS ? fields[item >> 2][number] : 0;
            words[bit >> 5] |= field << (bit & 31);
            if ((bit & 31) + FIELD_BITS > 32) words[(bit >> 5) + 1] |= field >> (32 - (bit & 31));
        }
        store_words<4 * FIELD_WORDS>(slot + item * 4 * FIELD_WORDS, words);
    }
}
