//! Planes of signs for registers. Each bit becomes a byte of 0 or 1, which is multiplied by the
//! query's byte.

use crate::registers::Registers;
use crate::{MAX_DIM, SignQuery, SignRows};

/// Signs in a register of bytes.
const CHUNK: usize = 16;

/// Indices that repeat each of a plane's two bytes eight times.
const SPREAD: [u8; CHUNK] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// Implements `scalar::score_signs`.
#[inline(always)]
pub(crate) fn score_signs<L: Registers>(
    rows: &SignRows,
    scale: f32,
    queries: &[SignQuery],
    scores: &mut [f32],
) {
    let count = rows.count();
    for (query, scores) in queries.iter().zip(scores.chunks_exact_mut(count.max(1))) {
        // Zeros behind the end of the row.
        let mut values = [[0u8; CHUNK]; MAX_DIM / CHUNK];
        for (byte, value) in values.as_flattened_mut().iter_mut().zip(query.values) {
            *byte = *value as u8;
        }
        let total: i32 = query.values.iter().map(|value| i32::from(*value)).sum();
        let unit = query.scale * scale;
        for (row, score) in rows.iter().zip(scores) {
            let positive = sum_positive::<L>(rows.plane(row), &values);
            *score += ((2 * positive - total) as f32 * unit) * rows.scale(row);
        }
    }
}

/// Returns the sum of the query's bytes where the bit is set.
#[inline(always)]
fn sum_positive<L: Registers>(plane: &[u8], query: &[[u8; CHUNK]; MAX_DIM / CHUNK]) -> i32 {
    let spread = L::load(&SPREAD);
    let bit = L::load(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]);
    let mut sums = [L::splat(0); 2];
    for (i, (bytes, query)) in plane.chunks(2).zip(query).enumerate() {
        let bits = u16::from_le_bytes([bytes[0], bytes.get(1).copied().unwrap_or(0)]);
        let bits = L::lookup(L::splat_word(bits), spread);
        let ones = L::min_bytes(L::and(bits, bit), L::splat(1));
        sums[i % 2] = L::dot_bytes(sums[i % 2], ones, L::load(query));
    }
    L::sum(sums[0]) + L::sum(sums[1])
}
