//! Every kernel of a backend against the specification, bit for bit.
//!
//! All machines run the same suite. `equivalence.rs` runs it natively and under emulators, and
//! `ci/portable` in WebAssembly. It needs `alloc`, which the including crate must declare.

mod angles;
mod blocks;
mod constants;
mod paint;
mod quaternions;
mod rows;
mod scaled;
mod signs;
mod softmax;
mod trellis;
mod triplets;
mod vectors;

use crate::buffer::Buffer;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
pub(crate) use constants::CONSTANTS;
use core::fmt::Arguments;
use octaplex_arch::{Affine, Backend, Float, IntQuery, MAX_WEIGHT, Packing};
use paint::{Painter, STYLES, Style};
use rows::Painted;

/// The first mismatch, as a message.
pub(crate) type Outcome = Result<(), String>;

/// Compares backends with the specification on the edge inputs of one kernel.
pub(crate) type Check = fn(&[Backend]) -> Outcome;

/// Every kernel by the name of its method, with its check.
pub(crate) const KERNELS: &[(&str, Check)] = &[
    ("dot", vectors::dot),
    ("sqrt", softmax::sqrt),
    ("add", vectors::add),
    ("max_abs", vectors::max_abs),
    ("min_max", vectors::min_max),
    ("rotate", vectors::rotate),
    ("rotate_inverse", vectors::rotate_inverse),
    ("multiply_columns", vectors::multiply_columns),
    ("quantize", quantize),
    ("lookup", lookup),
    ("lookup_packed", lookup_packed),
    ("pack", pack),
    ("unpack", unpack),
    ("quantize_query", quantize_query),
    ("score_codes", score_codes),
    ("accumulate_codes", accumulate_codes),
    ("decode_trellis", trellis::decode_trellis),
    ("score_trellis", trellis::score_trellis),
    ("accumulate_trellis", trellis::accumulate_trellis),
    ("viterbi_encode", trellis::viterbi_encode),
    ("decode_floats", decode_floats),
    ("largest_bits", softmax::largest_bits),
    ("encode_floats", encode_floats),
    ("score_floats", score_floats),
    ("accumulate_floats", accumulate_floats),
    ("quantize_affine", quantize_affine),
    ("decode_affine", decode_affine),
    ("scale_logits", softmax::scale_logits),
    ("soft_cap", softmax::soft_cap),
    ("exp_weights", softmax::exp_weights),
    ("encode_triplets", triplets::encode_triplets),
    ("decode_triplets", triplets::decode_triplets),
    ("score_triplets", triplets::score_triplets),
    ("score_triplets_floats", triplets::score_triplets_floats),
    ("accumulate_triplets", triplets::accumulate_triplets),
    ("pack_signs", signs::pack_signs),
    ("unpack_signs", signs::unpack_signs),
    ("score_signs", signs::score_signs),
    ("accumulate_signs", signs::accumulate_signs),
    ("quantize_blocks", blocks::quantize_blocks),
    ("blocks_are_finite", blocks::blocks_are_finite),
    ("decode_blocks", blocks::decode_blocks),
    ("score_blocks", blocks::score_blocks),
    ("accumulate_blocks", blocks::accumulate_blocks),
    ("quantize_scaled", scaled::quantize_scaled),
    ("decode_scaled", scaled::decode_scaled),
    ("quantize_angles", angles::quantize_angles),
    ("decode_angles", angles::decode_angles),
    ("score_angles", angles::score_angles),
    ("accumulate_angles", angles::accumulate_angles),
    ("chunk_norms", quaternions::chunk_norms),
    ("encode_quaternions", quaternions::encode_quaternions),
    ("pack_chunks", quaternions::pack_chunks),
    ("decode_quaternions", quaternions::decode_quaternions),
    ("score_quaternions", quaternions::score_quaternions),
    ("accumulate_quaternions", quaternions::accumulate_quaternions),
];

/// Checks every kernel and every constant.
pub(crate) fn checks() -> impl Iterator<Item = &'static (&'static str, Check)> {
    KERNELS.iter().chain(CONSTANTS)
}

const WIDTHS: [usize; 11] = [32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576];
const ODD_LENGTHS: [usize; 10] = [0, 1, 2, 7, 15, 16, 17, 31, 33, 63];
const ROW_COUNTS: [usize; 10] = [0, 1, 2, 3, 15, 16, 17, 64, 257, 300];
const QUERY_COUNTS: [usize; 6] = [0, 1, 2, 3, 13, 71];

fn lengths() -> impl Iterator<Item = usize> {
    ODD_LENGTHS.into_iter().chain(WIDTHS)
}

fn packings() -> impl Iterator<Item = Packing> {
    (2..=256).filter_map(Packing::for_levels)
}

/// Element types of buffers.
pub(crate) trait Bits: Copy {
    fn bits(self) -> u32;
    fn from_paint(paint: u64) -> Self;
}

impl Bits for f32 {
    fn bits(self) -> u32 {
        self.to_bits()
    }
    fn from_paint(paint: u64) -> Self {
        f32::from(paint as u16)
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Bits for $integer {
            fn bits(self) -> u32 {
                self as u32
            }
            fn from_paint(paint: u64) -> Self {
                paint as $integer
            }
        }
    )*};
}
integers!(u8, i8, u16, i16, u32);

impl<const N: usize, T: Bits> Bits for [T; N] {
    fn bits(self) -> u32 {
        self.iter().fold(0, |bits: u32, value| bits.rotate_left(8) ^ value.bits())
    }
    fn from_paint(paint: u64) -> Self {
        [T::from_paint(paint); N]
    }
}

impl<T: Bits> FromIterator<T> for Buffer<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self::new(&values.into_iter().collect::<Vec<T>>())
    }
}

impl<T: Bits> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        Self::new(self)
    }
}

fn filled<T: Bits>(value: T, count: usize) -> Buffer<T> {
    (0..count).map(|_| value).collect()
}

/// Runs a kernel that writes `count` outputs. The buffers of different backends start with
/// different values.
fn same_outputs<T: Bits>(
    backends: &[Backend],
    case: Arguments,
    count: usize,
    run: impl Fn(Backend, &mut [T]),
) -> Outcome {
    let mut painter = Painter::new(&[count]);
    let mut rubbish = || (0..count).map(|_| T::from_paint(painter.next())).collect::<Vec<T>>();
    same(backends, case, &rubbish(), &rubbish(), run)
}

/// Runs a kernel that changes `start`.
fn same_changes<T: Bits>(
    backends: &[Backend],
    case: Arguments,
    start: &[T],
    run: impl Fn(Backend, &mut [T]),
) -> Outcome {
    same(backends, case, start, start, run)
}

/// Runs the specification once, then every backend. Without backends, the specification is compared
/// with itself. Memory next to the outputs must not change.
fn same<T: Bits>(
    backends: &[Backend],
    case: Arguments,
    expected: &[T],
    actual: &[T],
    run: impl Fn(Backend, &mut [T]),
) -> Outcome {
    let result_of = |backend: Backend, start: &[T]| {
        let mut buffer = Buffer::new(start);
        run(backend, &mut buffer);
        let beside = || format!("{}, {case}: something was written beside the output", backend.name());
        buffer.is_intact().then_some(buffer).ok_or_else(beside)
    };
    let expected = result_of(Backend::SCALAR, expected)?;
    for backend in backends.iter().filter(|backend| **backend != Backend::SCALAR || backends.len() == 1) {
        let actual = result_of(*backend, actual)?;
        if let Some(at) = expected.iter().zip(actual.iter()).position(|(e, a)| e.bits() != a.bits()) {
            return Err(format!(
                "{}, {case}: element {at} is {:#x}, the specification says {:#x}",
                backend.name(),
                actual[at].bits(),
                expected[at].bits()
            ));
        }
    }
    Ok(())
}

fn quantize(backends: &[Backend]) -> Outcome {
    for count in [0i32, 1, 2, 3, 4, 5, 7, 8, 9, 11, 15, 16, 17, 19, 23, 31, 35, 63, 71, 127, 143, 255] {
        let mut painter = Painter::new(&[count as usize]);
        // Ascending, including zeros of both signs and equal neighbours.
        let mut thresholds: Buffer<f32> = (0..count).map(|i| ((i - count / 2) / 2) as f32 / 8.0).collect();
        if let Some(zero) = thresholds.iter().position(|t| *t == 0.0) {
            thresholds[zero] = -0.0;
        }
        let thresholds = &thresholds;
        for n in lengths() {
            for style in STYLES {
                let mut x = painter.floats(style, n);
                for (i, x) in x.iter_mut().enumerate().filter(|(i, _)| i % 3 == 0 && count > 0) {
                    // On a threshold, or one step to either side.
                    let t = thresholds[painter.below(thresholds.len())];
                    *x = [t, t.next_down(), t.next_up(), -t][i % 4];
                }
                for scale in [1.0, 17.3, 0.0, 1e-20] {
                    let case = format_args!("{n} values, {style:?}, {count} thresholds, scale {scale}");
                    same_outputs(backends, case, n, |backend, codes| {
                        backend.quantize(&x, scale, thresholds, codes);
                    })?;
                }
            }
        }
    }
    Ok(())
}

fn lookup(backends: &[Backend]) -> Outcome {
    for levels in [1, 2, 3, 4, 5, 8, 9, 12, 15, 16, 17, 20, 31, 32, 33, 48, 64, 65, 127, 128, 129, 255, 256] {
        for n in lengths() {
            let mut painter = Painter::new(&[levels, n]);
            let codes = painter.bytes(n);
            let centroids = painter.integers(i16::MAX, levels);
            for scale in [1.0, 0.003_1, -0.0, 1e-42] {
                let case = format_args!("{n} codes of {levels} levels, scale {scale}");
                same_outputs(backends, case, n, |backend, out| {
                    backend.lookup(&codes, &centroids, scale, out);
                })?;
            }
        }
    }
    Ok(())
}

fn lookup_packed(backends: &[Backend]) -> Outcome {
    for packing in packings() {
        // A page may have more norms than a row has coordinates.
        for n in lengths().chain((packing.radix() == 1).then_some(1300)) {
            let mut painter = Painter::new(&[packing.levels(), n]);
            let codes: Buffer<u8> = (0..n).map(|_| painter.below(packing.levels()) as u8).collect();
            let mut packed = filled(0u8, packing.bytes(n));
            Backend::SCALAR.pack(packing, &codes, &mut packed);
            for bytes in [packed, painter.bytes(packing.bytes(n))] {
                let centroids = painter.integers(i16::MAX, packing.levels());
                for scale in [1.0, 0.003_1, -0.0, 1e-42] {
                    let case = format_args!("{n} codes of {packing:?}, scale {scale}");
                    same_outputs(backends, case, n, |backend, out| {
                        backend.lookup_packed(packing, &bytes, &centroids, scale, out);
                    })?;
                }
            }
        }
    }
    Ok(())
}

fn pack(backends: &[Backend]) -> Outcome {
    for packing in packings() {
        for n in lengths() {
            let mut painter = Painter::new(&[packing.levels(), n]);
            let random: Buffer<u8> = (0..n).map(|_| painter.below(packing.levels()) as u8).collect();
            let highest = filled((packing.levels() - 1) as u8, n);
            for codes in [random, highest] {
                let case = format_args!("{n} codes of {} levels", packing.levels());
                same_outputs(backends, case, packing.bytes(n), |backend, bytes| {
                    backend.pack(packing, &codes, bytes);
                })?;
            }
        }
    }
    Ok(())
}

fn unpack(backends: &[Backend]) -> Outcome {
    for packing in packings() {
        for n in lengths() {
            let hostile = Painter::new(&[packing.levels(), n]).bytes(packing.bytes(n));
            for bytes in [hostile, filled(0xff, packing.bytes(n))] {
                let case = format_args!("{n} codes of {} levels", packing.levels());
                same_outputs(backends, case, n, |backend, codes| {
                    backend.unpack(packing, &bytes, codes);
                })?;
            }
        }
    }
    Ok(())
}

fn quantize_query(backends: &[Backend]) -> Outcome {
    for n in lengths() {
        for style in STYLES {
            for limit in [1, 127, 1023] {
                let mut x = Painter::new(&[n]).floats(style, n);
                if style == Style::Random {
                    // The factor becomes 1, and every second value a tie.
                    x.iter_mut()
                        .step_by(2)
                        .enumerate()
                        .for_each(|(i, x)| *x = (i as i16 % limit) as f32 - 0.5);
                    x.iter_mut().take(1).for_each(|x| *x = f32::from(limit));
                }
                let case = format_args!("{n} values, {style:?}, limit {limit}");
                same_outputs(backends, case, 1, |backend, unit| {
                    unit[0] = backend.quantize_query(&x, limit, &mut filled(0, n));
                })?;
                same_outputs(backends, case, n, |backend, out| {
                    backend.quantize_query(&x, limit, out);
                })?;
            }
        }
    }
    Ok(())
}

/// Rows of codes, and a codebook for them.
struct Page {
    rows: Painted,
    packing: Packing,
    centroids: Buffer<i16>,
}

impl Page {
    fn new(painter: &mut Painter, packing: Packing, dim: usize, count: usize) -> Self {
        let rows = Painted::new(painter, (2 + packing.bytes(dim), dim), Float::F16, count);
        let limit = if packing.levels() <= 16 { 127 } else { 2047 };
        let mut centroids = painter.integers(limit, packing.levels());
        // Extreme values bring sums as near to the limit of i32 as the contract allows.
        (centroids[0], centroids[packing.levels() - 1]) = (-limit, limit);
        // Values of the codes themselves, or minus half their number. Some kernels compute these
        // without a lookup.
        match painter.below(6) {
            half @ 0..2 => {
                let offset = half as i16 * (packing.levels() / 2) as i16;
                centroids.iter_mut().zip(0..).for_each(|(centroid, code)| *centroid = code - offset);
            }
            // The upper half mirrors the lower: some kernels apply a query's signs to the codes.
            2..4 => {
                let half = packing.levels() / 2;
                let (lower, upper) = centroids.split_at_mut(half);
                lower.iter().zip(upper.iter_mut().rev()).for_each(|(lower, upper)| *upper = -lower);
            }
            _ => {}
        }
        Self { rows, packing, centroids }
    }
}

/// (packing, dim, rows, queries): every packing and width with a few rows, then every count for
/// some of them.
fn page_shapes() -> impl Iterator<Item = (Packing, usize, usize, usize)> {
    let few = packings()
        .flat_map(|packing| lengths().filter(|dim| *dim > 0).map(move |dim| (packing, dim, 3, 1 + dim % 3)));
    let many =
        [2, 4, 5, 8, 12, 16, 20, 32, 256].into_iter().filter_map(Packing::for_levels).flat_map(|packing| {
            [33, 80, 128].into_iter().flat_map(move |dim| {
                ROW_COUNTS.into_iter().flat_map(move |rows| {
                    QUERY_COUNTS.into_iter().map(move |queries| (packing, dim, rows, queries))
                })
            })
        });
    // One query, for which separate kernels exist, at other widths of whole registers.
    let one = [4, 8, 16].into_iter().filter_map(Packing::for_levels);
    few.chain(many).chain(one.flat_map(|packing| [64, 256, 512].map(|dim| (packing, dim, 19, 1))))
}

fn score_codes(backends: &[Backend]) -> Outcome {
    for (packing, dim, count, queries) in page_shapes() {
        let mut painter = Painter::new(&[packing.levels(), dim, count, queries]);
        let page = Page::new(&mut painter, packing, dim, count);
        let limit = if packing.levels() <= 16 { 127 } else { 1023 };
        let values: Vec<Buffer<i16>> = (0..queries)
            .map(|_| match painter.below(6) {
                0 => filled(limit, dim),
                1 => filled(-limit, dim),
                _ => painter.integers(limit, dim),
            })
            .collect();
        let queries: Vec<IntQuery> =
            values.iter().map(|values| IntQuery { values, scale: painter.float() / 100.0 }).collect();
        let case =
            format_args!("{} levels, dim {dim}, {count} rows, {} queries", packing.levels(), queries.len());
        same_outputs(backends, case, queries.len() * count, |backend, scores| {
            backend.score_codes(page.packing, &page.rows.pages(), &page.centroids, 0.007_3, &queries, scores);
        })?;
    }
    Ok(())
}

fn accumulate_codes(backends: &[Backend]) -> Outcome {
    for (packing, dim, count, queries) in page_shapes() {
        let mut painter = Painter::new(&[packing.levels(), dim, count, queries]);
        let page = Page::new(&mut painter, packing, dim, count);
        let mut weights = Vec::with_capacity(queries * count);
        for _ in 0..queries {
            match painter.below(6) {
                0 => weights.extend(painter.floats(Style::Wide, count).iter().map(|w| w / 256.0)),
                1 => weights.extend_from_slice(&painter.floats(Style::Zeros, count)),
                2 => weights.extend(painter.floats(Style::Random, count).iter().map(|w| w * MAX_WEIGHT)),
                // Products around 2⁻¹⁰⁰, below which a run adds nothing.
                3 => weights.extend(painter.floats(Style::Random, count).iter().map(|w| w * 1e-34)),
                // Like weights of attention: of some queries, of all of them, or of none.
                4 => weights.extend(painter.floats(Style::Random, count).iter().map(|w| w.abs())),
                _ => weights.extend_from_slice(&painter.floats(Style::Random, count)),
            }
        }
        if painter.below(2) == 0 {
            weights.iter_mut().for_each(|weight| *weight = weight.abs());
        }
        page.rows.leave_out_a_page(&mut painter, &mut weights);
        let weights = Buffer::new(&weights);
        let acc = painter.floats(Style::Random, queries * dim);
        let case = format_args!("{} levels, dim {dim}, {count} rows, {queries} queries", packing.levels());
        same_changes(backends, case, &acc, |backend, acc| {
            backend.accumulate_codes(
                page.packing,
                &page.rows.pages(),
                &page.centroids,
                0.007_3,
                &weights,
                acc,
            );
        })?;
    }
    Ok(())
}

const FORMATS: [Float; 3] = [Float::F16, Float::Bf16, Float::F32];

/// Finite floats of a format, so small that no sum of products overflows.
fn float_bytes(painter: &mut Painter, format: Float, count: usize) -> Buffer<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let value = painter.floats(Style::Wide, 1)[0];
        match format {
            Float::F16 => bytes.extend(painter.finite_f16()),
            Float::Bf16 => bytes.extend(&value.to_le_bytes()[2..]),
            Float::F32 => bytes.extend(value.to_le_bytes()),
        }
    }
    Buffer::new(&bytes)
}

fn decode_floats(backends: &[Backend]) -> Outcome {
    for format in FORMATS {
        for n in lengths() {
            let bytes = float_bytes(&mut Painter::new(&[n]), format, n);
            same_outputs(backends, format_args!("{n} of {format:?}"), n, |backend, out| {
                backend.decode_floats(format, &bytes, out);
            })?;
        }
    }
    // Every value of both short formats, subnormals and infinities included.
    for (format, infinity) in [(Float::F16, 0x7c00), (Float::Bf16, 0x7f80)] {
        let is_nan = |bits: &u16| bits & 0x7fff > infinity;
        let bytes = |bits: u16| bits.to_le_bytes();
        let all: Buffer<u8> = (0..=u16::MAX).filter(|bits| !is_nan(bits)).flat_map(bytes).collect();
        same_outputs(backends, format_args!("all of {format:?}"), all.len() / 2, |backend, out| {
            backend.decode_floats(format, &all, out);
        })?;
        let nans: Buffer<u8> = (0..=u16::MAX).filter(is_nan).flat_map(bytes).collect();
        let mut out = vec![0.0; nans.len() / 2];
        for backend in backends {
            out.fill(0.0);
            backend.decode_floats(format, &nans, &mut out);
            if let Some(n) = out.iter().position(|x| !x.is_nan()) {
                return Err(format!("NaN {n} of {format:?} is {} on {}", out[n], backend.name()));
            }
        }
    }
    Ok(())
}

fn encode_floats(backends: &[Backend]) -> Outcome {
    for format in FORMATS {
        for n in lengths() {
            for style in STYLES {
                let x = Painter::new(&[n]).floats(style, n);
                let case = format_args!("{n} values to {format:?}, {style:?}");
                same_outputs(backends, case, n * format.bytes(), |backend, bytes| {
                    backend.encode_floats(format, &x, bytes);
                })?;
            }
        }
        // Infinities, what rounds to one, what ends up subnormal, and NaN.
        let x = [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 65519.9, -65520.0, 6e-8, 2.9e-8, 1e-40, -0.0];
        let x: Vec<f32> = x.iter().copied().cycle().take(61).collect();
        let case = format_args!("extremes to {format:?}");
        same_outputs(backends, case, x.len() * format.bytes(), |backend, bytes| {
            backend.encode_floats(format, &x, bytes);
        })?;
        for backend in backends {
            let (mut bytes, mut back) = (vec![0; 37 * format.bytes()], [0.0; 37]);
            backend.encode_floats(format, &[f32::NAN; 37], &mut bytes);
            backend.decode_floats(format, &bytes, &mut back);
            if !back.iter().all(|x| x.is_nan()) {
                return Err(format!("NaN to {format:?} is none on {}", backend.name()));
            }
        }
        // Around every finite value of the short formats: on it, on the tie above it, and one step
        // to either side of both.
        for shift in [13, 16] {
            let mut x = Vec::new();
            for bits in (0..u32::MAX >> shift).step_by(if shift == 13 { 7 } else { 1 }) {
                for offset in [0, 1, (1 << (shift - 1)) - 1, 1 << (shift - 1), (1 << (shift - 1)) + 1] {
                    let value = f32::from_bits((bits << shift) + offset);
                    x.extend(value.is_finite().then_some(value));
                }
                if x.len() > 4000 {
                    let case = format_args!("ties of {shift} bits to {format:?}, up to {bits}");
                    same_outputs(backends, case, x.len() * format.bytes(), |backend, bytes| {
                        backend.encode_floats(format, &x, bytes);
                    })?;
                    x.clear();
                }
            }
        }
    }
    Ok(())
}

/// (dim, rows, queries).
fn float_shapes() -> impl Iterator<Item = (usize, usize, usize)> {
    let few = lengths().filter(|dim| *dim > 0).map(|dim| (dim, 3, 2));
    let many = ROW_COUNTS
        .into_iter()
        .flat_map(|rows| QUERY_COUNTS.into_iter().map(move |queries| (80, rows, queries)));
    few.chain(many)
}

fn slices(values: &[Buffer<f32>]) -> Vec<&[f32]> {
    values.iter().map(|values| &values[..]).collect()
}

fn score_floats(backends: &[Backend]) -> Outcome {
    for format in FORMATS {
        for (dim, count, queries) in float_shapes() {
            let mut painter = Painter::new(&[dim, count, queries]);
            let bytes = float_bytes(&mut painter, format, dim * count);
            let queries: Vec<Buffer<f32>> = (0..queries).map(|_| painter.floats(Style::Wide, dim)).collect();
            let queries = slices(&queries);
            let case = format_args!("{format:?}, dim {dim}, {count} rows, {} queries", queries.len());
            same_outputs(backends, case, queries.len() * count, |backend, scores| {
                backend.score_floats(format, dim, &bytes, &queries, scores);
            })?;
        }
    }
    Ok(())
}

fn accumulate_floats(backends: &[Backend]) -> Outcome {
    for format in FORMATS {
        for (dim, count, queries) in float_shapes() {
            let mut painter = Painter::new(&[dim, count, queries]);
            let bytes = float_bytes(&mut painter, format, dim * count);
            let weights = painter.floats(Style::Random, queries * count);
            let acc = painter.floats(Style::Wide, queries * dim);
            let case = format_args!("{format:?}, dim {dim}, {count} rows, {queries} queries");
            same_changes(backends, case, &acc, |backend, acc| {
                backend.accumulate_floats(format, dim, &bytes, &weights, acc);
            })?;
        }
    }
    Ok(())
}

fn quantize_affine(backends: &[Backend]) -> Outcome {
    for (range, offset) in [((0, 3), 0), ((0, 15), 0), ((-8, 7), 8), ((-127, 127), 128), ((100, 200), 0)] {
        for n in lengths() {
            for style in STYLES {
                let x = Painter::new(&[n]).floats(style, n);
                for (zero, scale) in [(0.0, 0.125), (-0.37, 0.013), (0.0, 0.0), (1.0, 1e-40), (0.5, -0.01)] {
                    let case = format_args!(
                        "{n} values, {style:?}, {range:?} + {offset}, zero {zero}, scale {scale}"
                    );
                    same_outputs(backends, case, n, |backend, codes| {
                        backend.quantize_affine(&x, zero, scale, offset, range, codes);
                    })?;
                }
            }
        }
    }
    Ok(())
}

fn affine_layouts() -> impl Iterator<Item = Affine> {
    [(32, 32), (64, 16), (80, 16), (96, 48), (128, 32), (128, 64), (160, 160), (576, 64)]
        .into_iter()
        .flat_map(|(dim, group)| {
            (2..=8).flat_map(move |bits| {
                [(false, 1 << (bits - 1)), (true, 0)].map(|(asymmetric, offset)| Affine {
                    dim,
                    group,
                    bits,
                    asymmetric,
                    offset,
                })
            })
        })
}

/// Rows of hostile codes with finite scales and zeros.
fn affine_bytes(painter: &mut Painter, layout: &Affine, count: usize) -> Buffer<u8> {
    let mut bytes = painter.bytes(count * layout.row_bytes());
    for row in bytes.chunks_exact_mut(layout.row_bytes()) {
        for scale in row[..layout.header_bytes()].as_chunks_mut::<2>().0 {
            *scale = painter.finite_f16();
        }
    }
    Buffer::new(&bytes)
}

fn decode_affine(backends: &[Backend]) -> Outcome {
    for layout in affine_layouts() {
        let row = affine_bytes(&mut Painter::new(&[layout.dim, layout.group]), &layout, 1);
        same_outputs(backends, format_args!("{layout:?}"), layout.dim, |backend, out| {
            backend.decode_affine(&layout, &row, out);
        })?;
    }
    Ok(())
}
