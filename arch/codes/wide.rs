//! Rows of codes for registers. This file has the kernels on one vector: quantise, look up, pack
//! and unpack.

mod accumulate;
pub(crate) mod score;
pub(crate) mod unpack;
pub(crate) mod woven;

pub(crate) use accumulate::accumulate_codes;
#[cfg(target_arch = "x86_64")]
pub(crate) use accumulate::accumulate_some;
pub(crate) use score::score_codes;
#[cfg(target_arch = "x86_64")]
pub(crate) use score::score_some;

use super::scalar;
use crate::registers::Registers;
use crate::{MAX_DIM, Packing};
use unpack::{Codes, MARGIN, Words, kind};

/// With more thresholds than this, a binary search is faster than comparing with all.
pub(crate) const COMPARED: usize = 24;

/// Implements `scalar::quantize`.
#[inline(always)]
pub(crate) fn quantize<L: Registers>(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
    if thresholds.len() > COMPARED {
        for (x, code) in x.iter().zip(codes) {
            let y = x * scale;
            *code = thresholds.partition_point(|&t| y >= t) as u8;
        }
        return;
    }
    let ((chunks, x), (code_chunks, codes)) = (x.as_chunks::<16>(), codes.as_chunks_mut::<16>());
    for (x, codes) in chunks.iter().zip(code_chunks) {
        let x = x.as_chunks().0;
        let y = [0, 1, 2, 3].map(|i| L::multiply_floats(L::load_floats(&x[i]), L::splat_float(scale)));
        let mut counts = [L::splat(0); 4];
        for t in thresholds {
            let t = L::splat_float(*t);
            for (count, y) in counts.iter_mut().zip(y) {
                *count = L::count_at_least(*count, y, t);
            }
        }
        let mut lanes = [[0; 4]; 4];
        for (lanes, count) in lanes.iter_mut().zip(counts) {
            L::store_sums(lanes, count);
        }
        for (code, count) in codes.iter_mut().zip(lanes.as_flattened()) {
            *code = *count as u8;
        }
    }
    scalar::quantize(x, scale, thresholds, codes);
}

/// Implements `scalar::lookup`, for codebooks that fit into table registers.
#[inline(always)]
pub(crate) fn lookup<L: Registers>(codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]) {
    if centroids.len() > L::TABLE {
        return scalar::lookup(codes, centroids, scale, out);
    }
    let table = Words::<L>::new(centroids);
    let last = L::splat((centroids.len() - 1) as u8);
    let ((chunks, codes), (out_chunks, out)) = (codes.as_chunks::<16>(), out.as_chunks_mut::<16>());
    for (codes, out) in chunks.iter().zip(out_chunks) {
        let mut words = [[0; 8]; 2];
        let [looked_up] = table.lookup([L::min_bytes(L::load(codes), last)]);
        for (words, looked_up) in words.iter_mut().zip(looked_up) {
            L::store_words(words, looked_up);
        }
        for (word, out) in words.as_flattened().iter().zip(out) {
            *out = f32::from(*word) * scale;
        }
    }
    scalar::lookup(codes, centroids, scale, out);
}

/// Implements `scalar::unpack`. The row is copied, so that reads beyond its end are valid.
#[inline(always)]
pub(crate) fn unpack<L: Registers>(packing: Packing, bytes: &[u8], codes: &mut [u8]) {
    let dim = codes.len();
    if dim == 0 || dim > MAX_DIM {
        return scalar::unpack(packing, bytes, codes);
    }
    let way = Codes::<L>::new(kind::ORDERED, packing, dim, 0);
    let mut row = [0; MAX_DIM + MARGIN];
    row[..bytes.len()].copy_from_slice(bytes);
    let (chunks, rest) = codes.as_chunks_mut();
    for (register, codes) in chunks.iter_mut().enumerate() {
        let [sixteen] = way.get::<{ kind::ORDERED }, 1>([&row], register);
        L::store(codes, sixteen);
    }
    if !rest.is_empty() {
        let mut last = [0; 16];
        let [sixteen] = way.get::<{ kind::ORDERED }, 1>([&row], chunks.len());
        L::store(&mut last, sixteen);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Implements `scalar::pack`. Eight codes at a time are packed in a word of 64 bits, which any of
/// these machines has.
#[inline(always)]
pub(crate) fn pack<L: Registers>(packing: Packing, codes: &[u8], bytes: &mut [u8]) {
    let (raw, digits) = bytes.split_at_mut(packing.raw_bytes(codes.len()));
    let bits = packing.raw_bits();
    if bits > 0 {
        let (eights, rest) = codes.as_chunks();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let mut at = 0;
        for eight in eights.iter().chain((!rest.is_empty()).then_some(&last)) {
            let packed = pack_eight(u64::from_le_bytes(*eight), bits).to_le_bytes();
            // All eight bytes are written. The next ones overwrite those that are too many.
            match raw[at..].first_chunk_mut() {
                Some(raw) => *raw = packed,
                None => raw[at..].iter_mut().zip(packed).for_each(|(raw, byte)| *raw = byte),
            }
            at += bits as usize;
        }
    }
    match packing.radix() {
        1 => {}
        3 => {
            // A group of five digits is a byte.
            let (groups, rest) = codes.as_chunks::<5>();
            let digit = |code: u8| u32::from(code) >> bits;
            for (group, byte) in groups.iter().zip(digits.iter_mut()) {
                *byte = group.iter().rev().fold(0, |value, code| value * 3 + digit(*code)) as u8;
            }
            if let Some(byte) = digits.get_mut(groups.len()) {
                *byte = rest.iter().rev().fold(0, |value, code| value * 3 + digit(*code)) as u8;
            }
        }
        _ => scalar::pack_digits(packing, codes, digits),
    }
}

/// Packs the low `bits` bits of eight bytes side by side.
///
/// ```text
/// bytes    .......c₁ .......c₀ …           fields of `bits` bits at distance 8
/// 8        …… c₃c₂ …… c₁c₀                  pairs at distance 16
/// 16       … c₃c₂c₁c₀                       fours at distance 32
/// 32       c₇ … c₀
/// ```
#[inline(always)]
pub(crate) fn pack_eight(bytes: u64, bits: u32) -> u64 {
    let mut x = bytes & (0x0101_0101_0101_0101 * ((1 << bits) - 1));
    let mut have = bits;
    for width in [8, 16, 32] {
        // Every second field moves down, next to its neighbour.
        let low = u64::MAX / ((1 << width) + 1);
        x = (x & low) | ((x >> width) & low) << have;
        have *= 2;
    }
    x
}
