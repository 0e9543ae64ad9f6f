//! The order of lanes, the bit at which each lane's windows and codes begin, and the registers of
//! centroids.

use crate::codes::avx512::codebook;
use crate::codes::avx512::unpack::CHUNK;
use crate::registers::avx512::{IDENTITY, first, load, places};
use crate::trellis::layout::TrellisCodebook;
use core::arch::x86_64::*;

/// For 0 to 4 raw bits, the group of eight coordinates that each quadword lane takes. The order
/// lets each lane find its codes in the quadword that is broadcast to it.
pub(super) static GROUPS: [[u64; 8]; 5] = [
    [0, 1, 2, 3, 4, 5, 6, 7],
    [0, 1, 2, 3, 4, 5, 6, 7],
    [0, 4, 1, 5, 2, 6, 3, 7],
    [0, 1, 2, 3, 4, 5, 6, 7],
    [0, 2, 4, 6, 1, 3, 5, 7],
];

/// The inverse of [`GROUPS`]: the lane that takes each group.
pub(super) static LANES: [[u64; 8]; 5] = [inverse(0), inverse(1), inverse(2), inverse(3), inverse(4)];

const fn inverse(raw: usize) -> [u64; 8] {
    let mut lanes = [0; 8];
    let mut lane = 0;
    while lane < 8 {
        lanes[GROUPS[raw][lane] as usize] = lane as u64;
        lane += 1;
    }
    lanes
}

pub(super) use codebook::FOURS;

/// An order of 64 sums.
pub(super) struct Order {
    /// For each place, the coordinate that it takes.
    pub(super) there: Places,
    /// For each coordinate, its place.
    pub(super) back: Places,
}

/// A byte for each position in a register, see `places!`.
pub(super) type Places = [u8; CHUNK];

impl Order {
    pub(super) const fn new(there: Places) -> Self {
        let mut back = [0; CHUNK];
        let mut i = 0;
        while i < CHUNK {
            back[there[i] as usize] = i as u8;
            i += 1;
        }
        Self { there, back }
    }
}

/// The order of sums of what `interleave` returns, for each order of lanes: lane l of register k has
/// positions 16·l + 4·k and so on.
pub(super) static ORDERS: [Order; 5] = [sums(0), sums(1), sums(2), sums(3), sums(4)];

/// Computes the order of sums for an order of lanes.
const fn sums(order: usize) -> Order {
    Order::new(places!(i => {
        let position = 16 * (i % 16 / 4) + 4 * (i / 16) + i % 4;
        8 * GROUPS[order][position / 8] as usize + position % 8
    }))
}

/// For each number of raw bits: the bit of the lane's quadword at which each byte's window ends
/// (mod 64; the history is not yet subtracted). The lane of the first eight coordinates is shifted
/// by a byte.
pub(super) static PATH_SHIFTS: [[u8; CHUNK]; 5] =
    [path_shifts(0), path_shifts(1), path_shifts(2), path_shifts(3), path_shifts(4)];

/// Computes the shifts of windows.
const fn path_shifts(bits: usize) -> [u8; CHUNK] {
    places!(i => 8 * GROUPS[bits][i / 8] as usize + i % 8 + if i < 8 { 8 } else { 0 })
}

/// The bits at which codes begin. For three bits, the lane's three bytes are brought into its
/// quadword.
pub(super) static RAW_SHIFTS: [[u8; CHUNK]; 5] =
    [[0; CHUNK], raw_shifts(1), raw_shifts(2), places!(i => 3 * (i % 8)), raw_shifts(4)];

/// Computes the shifts of codes.
const fn raw_shifts(bits: usize) -> [u8; CHUNK] {
    places!(i => bits * (8 * GROUPS[bits][i / 8] as usize + i % 8) % 64)
}

/// For each lane, the bytes of eight codes of three bits.
pub(super) static THREES: [u8; CHUNK] = places!(i => 3 * (i / 8) + i % 8 % 3);

/// Bytes k and k + 1 for lane k.
pub(super) static NEIGHBOURS: [u8; CHUNK] = places!(i => i / 8 + i % 2);

/// Like [`PATH_SHIFTS`], if each lane has its own byte of the path plane and the one before.
pub(super) static NEIGHBOUR_SHIFTS: [u8; CHUNK] = places!(i => 8 + i % 8);

/// Writes the centroids, each xored with `flip`. A table that does not fill a register repeats, so
/// bits above an index do not count.
#[inline]
#[target_feature(enable = "avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) fn tables(book: &TrellisCodebook, flip: i8, tables: &mut [__m512i]) {
    for (table, centroids) in tables.iter_mut().zip(book.centroids().chunks(CHUNK)) {
        // SAFETY: the mask has at most `centroids.len()` bits, and a masked load touches nothing whose bit is clear.
        let bytes = unsafe { _mm512_maskz_loadu_epi8(first(centroids.len()), centroids.as_ptr()) };
        *table = _mm512_xor_si512(bytes, _mm512_set1_epi8(flip));
    }
    let count = book.centroids().len();
    if count < CHUNK && count.is_power_of_two() {
        let index = _mm512_and_si512(load(&IDENTITY), _mm512_set1_epi8(count as i8 - 1));
        tables[0] = _mm512_permutexvar_epi8(index, tables[0]);
    }
}
