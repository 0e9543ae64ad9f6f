// Rows in cells: f16 rows of open pages in places, and f16 rows of all cells in a scratch area.
//
//   write     a caller's f32 rows ──► places                 show     a caller's mask ──► biases by position
//   stash     scratch ──► places                             recall   places ──► scratch
//   gather    scratch ──► the rows of pages to encode
//
//   place     f16 [kv heads][keys, values][dim]
//   scratch   keys f16 [cells][kv heads][dim], then values likewise

struct Cells {
    const void *rows[2];   // write: f32 rows of keys, and of values
    const void *indices;   // write: the cell of each row
    const int *places;     // write: the first place of each page of 64 cells, or -1
    u16 *exact;            // rows in places
    u16 *scratch[2];       // keys and values of all cells
    const int *cell_of;    // recall, show: the cell in each place, or -1. stash: pairs of a cell and a place
    const u32 *pages;      // gather: the first cell of each page
    const u64 *coded;      // gather: the cells of each page that are coded
    u16 *out;              // gather: f16 [pages][64][kv heads][keys, values][dim]
    const u16 *mask;       // show: f16 [queries][mask_stride], or null
    const u64 *hidden;     // show: cells of each page that closed pages must not show
    float *bias;           // show: [queries][bias_stride]
    u32 *lost;             // write, stash, gather: cells of each page with a value that is not finite, two words each
    u64 row_stride[2];     // write: in floats
    u64 mask_stride, bias_stride;
    u64 first, cells, seen; // first: write, show: number of the first cell. cells: number of cells. seen: cells that a query may see
    u32 count;             // of rows, places or pairs
    u32 kv_heads, dim, side, wide; // side: the first that is written. wide: 1: indices have 64 bits
};

// Notes a cell with a value that is not finite.
__device__ __forceinline__ void check(const Cells &c, u64 cell, u32 bits) {
    if ((bits & 0x7C00) == 0x7C00) atomicOr(c.lost + cell / 32, 1u << (cell % 32));
}

// A thread for each value. Its load does not wait for those of the cell and of its page.
extern "C" __global__ void __launch_bounds__(128) write(const __grid_constant__ Cells c) {
#if BULK_COPIES
    let_next_kernel_begin(); // attention waits before it reads places
#endif
    const u32 row = blockIdx.x, side = c.side + blockIdx.y, i = blockIdx.z * blockDim.x + threadIdx.x;
    if (i >= c.kv_heads * c.dim) return;
    const float x = static_cast<const float *>(c.rows[side])[row * c.row_stride[side] + i];
    const long long index = c.wide ? static_cast<const long long *>(c.indices)[row] : static_cast<const int *>(c.indices)[row];
    if (index < 0 || (u64)index >= c.cells) return;
    const u64 cell = c.first + (u64)index;
    const int page = c.places[cell / 64];
    if (page < 0) return;
    const u16 value = (u16)to_f16(x);
    c.exact[(((u64)page + cell % 64) * c.kv_heads + i / c.dim) * 2 * c.dim + side * c.dim + i % c.dim] = value;
    check(c, cell, value);
}

// A thread for each position of a query: cells, then places.
extern "C" __global__ void __launch_bounds__(256) show(const __grid_constant__ Cells c) {
    const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x, pages = (c.seen + 63) / 64 * 64;
    if (at >= pages + c.count) return;
    long long cell = at;
    if (at >= pages) {
        cell = c.cell_of[at - pages] - (long long)c.first;
        if (c.cell_of[at - pages] < 0) cell = -1;
    } else if (c.hidden[(c.first + at) / 64] >> (at % 64) & 1) {
        cell = -1;
    }
    const bool seen = cell >= 0 && (u64)cell < c.seen;
    const float bias = !seen ? __int_as_float(0xff800000) : c.mask ? from_f16(c.mask[blockIdx.y * c.mask_stride + cell]) : 0.0f;
    c.bias[blockIdx.y * c.bias_stride + (at < pages ? at : c.cells + at - pages)] = bias;
}

// Copies a row of all heads between a place and a cell of the scratch area.
__device__ __forceinline__ u16 *at_place(const Cells &c, u64 place, u32 i, u32 side) {
    return c.exact + (place * c.kv_heads + i / c.dim) * 2 * c.dim + side * c.dim + i % c.dim;
}
extern "C" __global__ void __launch_bounds__(128) stash(const __grid_constant__ Cells c) {
    const int cell = c.cell_of[2 * blockIdx.x], place = c.cell_of[2 * blockIdx.x + 1];
    const u64 width = (u64)c.kv_heads * c.dim, row = (u64)cell * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x)
        for (u32 side = 0; side < 2; side++) {
            const u16 value = c.scratch[side][row + i];
            *at_place(c, place, i, side) = value;
            check(c, cell, value);
        }
}
extern "C" __global__ void __launch_bounds__(128) recall(const __grid_constant__ Cells c) {
    const int cell = c.cell_of[blockIdx.x];
    if (cell < 0 || (u64)cell >= c.seen) return;
    const u64 width = (u64)c.kv_heads * c.dim, row = (u64)cell * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x)
        for (u32 side = 0; side < 2; side++) c.scratch[side][row + i] = *at_place(c, blockIdx.x, i, side);
}

// A block of threads for each page, head and side, and a thread for each channel. Keys that are not coded become the mean of
// the others, so that they do not move the page's centre. Such values become zeros. So do values that are not finite, because
// their cells are lost.
extern "C" __global__ void __launch_bounds__(128) gather(const __grid_constant__ Cells c) {
    const u32 page = blockIdx.x, head = blockIdx.y, side = blockIdx.z;
    const u64 coded = c.coded[page], width = (u64)c.kv_heads * c.dim;
    for (u32 i = threadIdx.x; i < c.dim; i += blockDim.x) {
        const u16 *from = c.scratch[side] + (u64)c.pages[page] * width + head * c.dim + i;
        u16 bits[64]; // all loads are under way at once
#pragma unroll
        for (u32 token = 0; token < 64; token++) bits[token] = from[token * width];
        float sum = 0;
        u64 usable = coded;
#pragma unroll
        for (u32 token = 0; token < 64; token++) {
            if (!(coded >> token & 1)) continue;
            if ((bits[token] & 0x7C00) == 0x7C00) {
                check(c, c.pages[page] + token, bits[token]);
                usable &= ~(1ull << token);
            } else {
                sum += from_f16(bits[token]);
            }
        }
        const u16 mean = side == 0 && usable ? (u16)to_f16(sum / (float)__popcll(usable)) : 0;
        u16 *to = c.out + (((u64)page * 64 * c.kv_heads + head) * 2 + side) * c.dim + i;
#pragma unroll
        for (u32 token = 0; token < 64; token++) to[token * width * 2] = usable >> token & 1 ? bits[token] : mean;
    }
}
