//! One vector at a time: rotate, quantize, look up, pack and unpack.

use super::Lanes;
use super::codes::{Codes, SPARE_BYTES, Words, kind};
use crate::scalar::{apply_signs, butterflies};
use crate::{MAX_DIM, Packing, Rows, hadamard, scalar};

#[inline(always)]
pub(crate) fn rotate<L: Lanes>(x: &mut [f32], signs: &[u32], scale: f32) {
    apply_signs(x, signs);
    transform::<L>(x, false);
    for x in x {
        *x *= scale;
    }
}

#[inline(always)]
pub(crate) fn rotate_inverse<L: Lanes>(x: &mut [f32], signs: &[u32], scale: f32) {
    transform::<L>(x, true);
    for (x, sign) in x.iter_mut().zip(signs) {
        *x = f32::from_bits((*x * scale).to_bits() ^ sign);
    }
}

/// As in the specification; butterflies within 16 coordinates stay in registers.
#[inline(always)]
fn transform<L: Lanes>(x: &mut [f32], transpose: bool) {
    if x.len() % 16 != 0 || !x.len().is_power_of_two() {
        let base = hadamard::base_pass(x, transpose);
        return butterflies(x, base);
    }
    for block in x.as_chunks_mut::<16>().0 {
        let rows = block.as_chunks_mut::<4>().0;
        let [a, b] = within_eight::<L>(L::load_floats(&rows[0]), L::load_floats(&rows[1]));
        let [c, d] = within_eight::<L>(L::load_floats(&rows[2]), L::load_floats(&rows[3]));
        let ([a, b], [c, d]) = (butterfly::<L>(a, b), butterfly::<L>(c, d));
        let ([a, c], [b, d]) = (butterfly::<L>(a, c), butterfly::<L>(b, d));
        for (row, x) in rows.iter_mut().zip([a, b, c, d]) {
            L::store_floats(row, x);
        }
    }
    butterflies(x, 16);
}

/// Steps 1 and 2 on two registers.
#[inline(always)]
fn within_eight<L: Lanes>(a: L::V, b: L::V) -> [L::V; 2] {
    let [even, odd] = L::unzip_floats(a, b);
    let [sum, difference] = butterfly::<L>(even, odd);
    let [first, second] = L::unzip_floats(sum, difference);
    let [sum, difference] = butterfly::<L>(first, second);
    L::unzip_floats(sum, difference)
}

#[inline(always)]
fn butterfly<L: Lanes>(a: L::V, b: L::V) -> [L::V; 2] {
    [L::add_floats(a, b), L::sub_floats(a, b)]
}

/// More thresholds than this are searched by halves.
const COMPARED: usize = 24;

/// Compilers turn both forms into what one would write by hand.
#[inline(always)]
pub(crate) fn quantize(x: &[f32], scale: f32, thresholds: &[f32], codes: &mut [u8]) {
    if thresholds.len() > COMPARED {
        for (x, code) in x.iter().zip(codes) {
            let y = x * scale;
            *code = thresholds.partition_point(|&t| y >= t) as u8;
        }
        return;
    }
    let ((chunks, x), (code_chunks, codes)) = (x.as_chunks::<16>(), codes.as_chunks_mut::<16>());
    for (x, codes) in chunks.iter().zip(code_chunks) {
        let y = x.map(|x| x * scale);
        let mut counts = [0u32; 16];
        for t in thresholds {
            for lane in 0..16 {
                counts[lane] += u32::from(y[lane] >= *t);
            }
        }
        *codes = counts.map(|count| count as u8);
    }
    scalar::quantize(x, scale, thresholds, codes);
}

#[inline(always)]
pub(crate) fn lookup<L: Lanes>(codes: &[u8], centroids: &[i16], scale: f32, out: &mut [f32]) {
    let table = Words::<L>::new(centroids);
    let last = L::splat((centroids.len() - 1) as u8);
    let ((chunks, codes), (out_chunks, out)) = (codes.as_chunks::<16>(), out.as_chunks_mut::<16>());
    for (codes, out) in chunks.iter().zip(out_chunks) {
        let mut words = [[0; 8]; 2];
        for (words, looked_up) in words.iter_mut().zip(table.lookup(L::min_bytes(L::load(codes), last))) {
            L::store_words(words, looked_up);
        }
        for (word, out) in words.as_flattened().iter().zip(out) {
            *out = f32::from(*word) * scale;
        }
    }
    scalar::lookup(codes, centroids, scale, out);
}

#[inline(always)]
pub(crate) fn unpack<L: Lanes>(packing: Packing, bytes: &[u8], codes: &mut [u8]) {
    let dim = codes.len();
    if dim == 0 || dim > MAX_DIM {
        return scalar::unpack(packing, bytes, codes);
    }
    let way = Codes::<L>::new(kind::ORDERED, packing, dim, 0);
    let mut spare = SPARE_BYTES;
    let row = Rows { bytes, stride: bytes.len(), dim, packing };
    let [_, copy] = way.with_margin(&row, &mut spare);
    for (register, codes) in codes.chunks_mut(16).enumerate() {
        let mut sixteen = [0; 16];
        L::store(&mut sixteen, way.get::<{ kind::ORDERED }>(copy.row(0), register));
        codes.copy_from_slice(&sixteen[..codes.len()]);
    }
}

/// Eight codes at a time in a word of 64 bits, which any of these machines has.
#[inline(always)]
pub(crate) fn pack(packing: Packing, codes: &[u8], bytes: &mut [u8]) {
    let (raw, digits) = bytes.split_at_mut(packing.raw_bytes(codes.len()));
    let bits = packing.raw_bits();
    if bits > 0 {
        for (codes, raw) in codes.chunks(8).zip(raw.chunks_mut(bits as usize)) {
            let mut eight = [0; 8];
            eight[..codes.len()].copy_from_slice(codes);
            let packed = pack_eight(u64::from_le_bytes(eight), bits).to_le_bytes();
            raw.copy_from_slice(&packed[..raw.len()]);
        }
    }
    match packing.radix() {
        1 => {}
        3 => {
            // A group is a byte.
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

/// The low `bits` bits of eight bytes, side by side.
#[inline(always)]
fn pack_eight(bytes: u64, bits: u32) -> u64 {
    let mut x = bytes & (0x0101_0101_0101_0101 * ((1 << bits) - 1));
    let mut have = bits;
    for width in [8, 16, 32] {
        // Every second field moves down to its neighbour.
        let low = u64::MAX / ((1 << width) + 1);
        x = (x & low) | ((x >> width) & low) << have;
        have *= 2;
    }
    x
}
