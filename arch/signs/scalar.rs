//! The specification of planes of signs: one bit a coordinate, 1 = not negative, scored with
//! integer queries.

use crate::codes::scalar::{PAGE, finish_sums, quantize_products};
use crate::{SignQuery, SignRows};

/// The largest integer weight of [`accumulate_signs`]. Sums over a page stay below 2²³, and are
/// exact in `f32`.
pub(crate) const SIGN_WEIGHT_LIMIT: i16 = 32767;

/// Packs signs: bit = x ≥ 0, so -0 is positive. Least significant bit first.
#[inline(always)]
pub(crate) fn pack_signs(x: &[f32], plane: &mut [u8]) {
    for (x, byte) in x.as_chunks::<8>().0.iter().zip(plane) {
        let mut bits = 0;
        for (lane, x) in x.iter().enumerate() {
            bits |= u8::from(*x >= 0.0) << lane;
        }
        *byte = bits;
    }
}

/// Unpacks signs: out = scale where the bit is set, and -scale elsewhere. It only changes the sign
/// bit.
#[inline(always)]
pub(crate) fn unpack_signs(plane: &[u8], scale: f32, out: &mut [f32]) {
    for (out, byte) in out.as_chunks_mut::<8>().0.iter_mut().zip(plane) {
        for (lane, out) in out.iter_mut().enumerate() {
            let minus = (!u32::from(*byte) >> lane) & 1;
            *out = f32::from_bits(scale.to_bits() ^ (minus << 31));
        }
    }
}

/// Adds (f32(Σ ±q) · (query scale · table scale)) · row scale to the scores. The sum is an exact
/// integer.
///
/// Σ ±q = 2·(Σ q at set bits) - Σ q, so only set bits are added.
#[inline(always)]
pub(crate) fn score_signs(rows: &SignRows, scale: f32, queries: &[SignQuery], scores: &mut [f32]) {
    let count = rows.count();
    for (q, query) in queries.iter().enumerate() {
        let total: i32 = query.values.iter().map(|v| i32::from(*v)).sum();
        let unit = query.scale * scale;
        for (r, row) in rows.iter().enumerate() {
            let mut positive = 0i32;
            for (values, byte) in query.values.as_chunks::<8>().0.iter().zip(rows.plane(row)) {
                for (lane, value) in values.iter().enumerate() {
                    positive += i32::from(*value) & -((i32::from(*byte) >> lane) & 1);
                }
            }
            scores[q * count + r] += ((2 * positive - total) as f32 * unit) * rows.scale(row);
        }
    }
}

/// Adds Σ ±weight·row scale·`scale` to `acc`, in integers.
///
/// For each run of [`PAGE`] rows, the products weight·row scale are quantised against the largest
/// of them. Sums over rows are then exact in `i32`. One `f32` multiplication and addition a
/// coordinate ends the run. A run whose largest product is below 2⁻¹⁰⁰ adds nothing.
#[inline(always)]
pub(crate) fn accumulate_signs(rows: &SignRows, scale: f32, weights: &[f32], acc: &mut [f32]) {
    let (count, dim) = (rows.count(), rows.dim);
    for (weights, acc) in weights.chunks_exact(count.max(1)).zip(acc.chunks_exact_mut(dim)) {
        for (page, weights) in rows.bytes.chunks(PAGE * rows.stride).zip(weights.chunks(PAGE)) {
            let page = SignRows { bytes: page, ..*rows };
            let mut ints = [0; PAGE];
            let Some(unit) = quantize_sign_weights(&page, weights, &mut ints) else { continue };
            let mut sums = [0i32; crate::MAX_DIM];
            for (row, weight) in page.iter().zip(ints) {
                let weight = i32::from(weight);
                for (sums, byte) in sums.as_chunks_mut::<8>().0.iter_mut().zip(page.plane(row)) {
                    for (lane, sum) in sums.iter_mut().enumerate() {
                        *sum += weight & -((i32::from(*byte) >> lane) & 1);
                    }
                }
            }
            finish_signs(&mut sums[..dim], &ints, unit * scale, acc);
        }
    }
}

/// Quantises the weights of a run of rows. Returns the value of one integer step, or `None` if the
/// run adds nothing.
#[inline(always)]
pub(crate) fn quantize_sign_weights(page: &SignRows, weights: &[f32], ints: &mut [i16; PAGE]) -> Option<f32> {
    let mut products = [0.0; PAGE];
    for ((product, weight), row) in products.iter_mut().zip(weights).zip(page.iter()) {
        *product = weight * page.scale(row);
    }
    quantize_products(&products[..weights.len()], SIGN_WEIGHT_LIMIT, ints)
}

/// Turns sums over set bits into sums with signs, and adds them to `acc`: Σ ±w = 2·(Σ of the
/// positive ones) - Σ w.
#[inline(always)]
pub(crate) fn finish_signs(sums: &mut [i32], ints: &[i16; PAGE], factor: f32, acc: &mut [f32]) {
    let total: i32 = ints.iter().map(|w| i32::from(*w)).sum();
    for sum in sums.iter_mut() {
        *sum = 2 * *sum - total;
    }
    finish_sums(sums, factor, acc);
}
