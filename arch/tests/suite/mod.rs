//! Every kernel of a backend against the specification, bit for bit.
//!
//! One text for all machines: `equivalence.rs` runs it natively and under emulators, `ci/portable` runs it in
//! WebAssembly. It needs `alloc`, and the including crate declares that.

mod paint;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Arguments;
use octaplex_arch::{
    Affine, AngleTree, Angles, BLOCK_BYTES, Backend, BlockBook, Float, IntQuery, MAX_WEIGHT, Packing, Rows,
    SignQuery, SignRows,
};
use paint::{Painter, STYLES, Style};

/// The first mismatch, in words.
pub(crate) type Outcome = Result<(), String>;

/// Compares a backend with the specification on the edge inputs of one kernel.
pub(crate) type Check = fn(Backend) -> Outcome;

/// Every kernel by the name of its method, and its check.
pub(crate) const KERNELS: &[(&str, Check)] = &[
    ("dot", dot),
    ("max_abs", max_abs),
    ("min_max", min_max),
    ("rotate", rotate),
    ("rotate_inverse", rotate_inverse),
    ("multiply_columns", multiply_columns),
    ("quantize", quantize),
    ("lookup", lookup),
    ("pack", pack),
    ("unpack", unpack),
    ("quantize_query", quantize_query),
    ("score_codes", score_codes),
    ("accumulate_codes", accumulate_codes),
    ("decode_floats", decode_floats),
    ("encode_floats", encode_floats),
    ("score_floats", score_floats),
    ("accumulate_floats", accumulate_floats),
    ("quantize_affine", quantize_affine),
    ("decode_affine", decode_affine),
    ("score_affine", score_affine),
    ("accumulate_affine", accumulate_affine),
    ("pack_signs", pack_signs),
    ("unpack_signs", unpack_signs),
    ("score_signs", score_signs),
    ("accumulate_signs", accumulate_signs),
    ("quantize_blocks", quantize_blocks),
    ("blocks_are_finite", blocks_are_finite),
    ("decode_blocks", decode_blocks),
    ("score_blocks", score_blocks),
    ("accumulate_blocks", accumulate_blocks),
    ("quantize_angles", quantize_angles),
    ("decode_angles", decode_angles),
    ("score_angles", score_angles),
    ("accumulate_angles", accumulate_angles),
];

const WIDTHS: [usize; 11] = [32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576];
const ODD_LENGTHS: [usize; 10] = [0, 1, 2, 7, 15, 16, 17, 31, 33, 63];
const ROW_COUNTS: [usize; 10] = [0, 1, 2, 3, 15, 16, 17, 64, 257, 300];
const QUERY_COUNTS: [usize; 6] = [0, 1, 2, 3, 8, 9];

fn lengths() -> impl Iterator<Item = usize> {
    ODD_LENGTHS.into_iter().chain(WIDTHS)
}

fn packings() -> impl Iterator<Item = Packing> {
    (2..=256).filter_map(Packing::for_levels)
}

trait Bits: Copy {
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

impl Bits for u8 {
    fn bits(self) -> u32 {
        u32::from(self)
    }
    fn from_paint(paint: u64) -> Self {
        paint as u8
    }
}

impl Bits for i16 {
    fn bits(self) -> u32 {
        self as u32
    }
    fn from_paint(paint: u64) -> Self {
        paint as i16
    }
}

/// Moves values off their allocation's alignment: use `[1..]`.
fn shifted<T: Bits>(values: &[T]) -> Vec<T> {
    let mut shifted = vec![T::from_paint(0)];
    shifted.extend_from_slice(values);
    shifted
}

/// Runs a kernel that writes `count` outputs, on both backends, into buffers that hold different rubbish.
fn same_outputs<T: Bits>(
    backend: Backend,
    case: Arguments,
    count: usize,
    run: impl Fn(Backend, &mut [T]),
) -> Outcome {
    let mut painter = Painter::new(&[count]);
    let mut rubbish = || (0..count).map(|_| T::from_paint(painter.next())).collect::<Vec<T>>();
    same(backend, case, &rubbish(), &rubbish(), run)
}

/// Runs a kernel that changes `start`, on both backends.
fn same_changes<T: Bits>(
    backend: Backend,
    case: Arguments,
    start: &[T],
    run: impl Fn(Backend, &mut [T]),
) -> Outcome {
    same(backend, case, start, start, run)
}

/// The outputs lie off alignment, between guards that must survive.
fn same<T: Bits>(
    backend: Backend,
    case: Arguments,
    expected: &[T],
    actual: &[T],
    run: impl Fn(Backend, &mut [T]),
) -> Outcome {
    const GUARD: usize = 65;
    let guard: Vec<T> = (0..GUARD as u64).map(|i| T::from_paint(173 * i + 5)).collect();
    let guarded = |values: &[T]| [&guard, values, &guard].concat();
    let (mut expected, mut actual) = (guarded(expected), guarded(actual));
    let inner = GUARD..expected.len() - GUARD;
    run(Backend::SCALAR, &mut expected[inner.clone()]);
    run(backend, &mut actual[inner]);
    match expected.iter().zip(&actual).position(|(e, a)| e.bits() != a.bits()) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{case}: element {} is {:#x}, the specification says {:#x}",
            at as isize - GUARD as isize,
            actual[at].bits(),
            expected[at].bits()
        )),
    }
}

fn dot(backend: Backend) -> Outcome {
    for n in lengths() {
        for style in STYLES {
            let mut painter = Painter::new(&[n]);
            let (a, b) = (shifted(&painter.floats(style, n)), painter.floats(Style::Wide, n));
            same_outputs(backend, format_args!("{n} values, {style:?}"), 1, |backend, out| {
                out[0] = backend.dot(&a[1..], &b);
            })?;
        }
    }
    Ok(())
}

fn max_abs(backend: Backend) -> Outcome {
    for n in lengths() {
        for style in STYLES {
            let x = shifted(&Painter::new(&[n]).floats(style, n));
            same_outputs(backend, format_args!("{n} values, {style:?}"), 1, |backend, out| {
                out[0] = backend.max_abs(&x[1..]);
            })?;
        }
    }
    Ok(())
}

fn min_max(backend: Backend) -> Outcome {
    for n in lengths() {
        for style in STYLES {
            for seed in 0..4 {
                let x = shifted(&Painter::new(&[n, seed]).floats(style, n));
                let case = format_args!("{n} values, {style:?}, seed {seed}");
                same_outputs(backend, case, 2, |backend, out| {
                    (out[0], out[1]) = backend.min_max(&x[1..]);
                })?;
            }
        }
    }
    Ok(())
}

fn rotate(backend: Backend) -> Outcome {
    rotations(backend, Backend::rotate)
}

fn rotate_inverse(backend: Backend) -> Outcome {
    rotations(backend, Backend::rotate_inverse)
}

fn rotations(backend: Backend, kernel: fn(Backend, &mut [f32], &[u32], f32)) -> Outcome {
    const SMALL: [usize; 20] =
        [1, 2, 4, 8, 12, 16, 20, 24, 28, 40, 48, 56, 144, 224, 288, 320, 384, 448, 640, 1024];
    for n in SMALL.into_iter().chain(WIDTHS) {
        for style in STYLES {
            let mut painter = Painter::new(&[n]);
            let x = painter.floats(style, n);
            let signs: Vec<u32> = (0..=n).map(|_| painter.next() as u32 & 0x8000_0000).collect();
            for scale in [1.0, 0.088_388_35, -3.7] {
                let case = format_args!("width {n}, {style:?}, scale {scale}");
                same_changes(backend, case, &x, |backend, x| kernel(backend, x, &signs[1..], scale))?;
            }
        }
    }
    Ok(())
}

fn multiply_columns(backend: Backend) -> Outcome {
    for n in [1, 2, 7, 15, 16, 17, 31, 33, 64, 80, 128, 192] {
        for style in STYLES {
            let mut painter = Painter::new(&[n]);
            let (columns, x) =
                (shifted(&painter.floats(Style::Wide, n * n)), shifted(&painter.floats(style, n)));
            same_outputs(backend, format_args!("width {n}, {style:?}"), n, |backend, y| {
                backend.multiply_columns(&columns[1..], &x[1..], y);
            })?;
        }
    }
    Ok(())
}

fn quantize(backend: Backend) -> Outcome {
    for count in [0i32, 1, 2, 3, 4, 5, 7, 8, 9, 11, 15, 16, 17, 19, 23, 31, 35, 63, 71, 127, 143, 255] {
        let mut painter = Painter::new(&[count as usize]);
        // Ascending, with zeros of both signs and equal neighbours among them.
        let mut thresholds: Vec<f32> = (0..count).map(|i| ((i - count / 2) / 2) as f32 / 8.0).collect();
        if let Some(zero) = thresholds.iter().position(|t| *t == 0.0) {
            thresholds[zero] = -0.0;
        }
        let thresholds = shifted(&thresholds);
        let thresholds = &thresholds[1..];
        for n in lengths() {
            for style in STYLES {
                let mut x = painter.floats(style, n);
                for (i, x) in x.iter_mut().enumerate().filter(|(i, _)| i % 3 == 0 && count > 0) {
                    // On a threshold, or one step to either side.
                    let t = thresholds[painter.below(thresholds.len())];
                    *x = [t, t.next_down(), t.next_up(), -t][i % 4];
                }
                let x = shifted(&x);
                for scale in [1.0, 17.3, 0.0, 1e-20] {
                    let case = format_args!("{n} values, {style:?}, {count} thresholds, scale {scale}");
                    same_outputs(backend, case, n, |backend, codes| {
                        backend.quantize(&x[1..], scale, thresholds, codes);
                    })?;
                }
            }
        }
    }
    Ok(())
}

fn lookup(backend: Backend) -> Outcome {
    for levels in [1, 2, 3, 4, 5, 8, 9, 12, 15, 16, 17, 20, 31, 32, 33, 48, 64, 65, 127, 128, 129, 255, 256] {
        for n in lengths() {
            let mut painter = Painter::new(&[levels, n]);
            let codes = shifted(&painter.bytes(n));
            let centroids = shifted(&painter.integers(i16::MAX, levels));
            for scale in [1.0, 0.003_1, -0.0, 1e-42] {
                let case = format_args!("{n} codes of {levels} levels, scale {scale}");
                same_outputs(backend, case, n, |backend, out| {
                    backend.lookup(&codes[1..], &centroids[1..], scale, out);
                })?;
            }
        }
    }
    Ok(())
}

fn pack(backend: Backend) -> Outcome {
    for packing in packings() {
        for n in lengths() {
            let mut painter = Painter::new(&[packing.levels(), n]);
            let random: Vec<u8> = (0..n).map(|_| painter.below(packing.levels()) as u8).collect();
            let highest = vec![(packing.levels() - 1) as u8; n];
            for codes in [random, highest] {
                let codes = shifted(&codes);
                let case = format_args!("{n} codes of {} levels", packing.levels());
                same_outputs(backend, case, packing.bytes(n), |backend, bytes| {
                    backend.pack(packing, &codes[1..], bytes);
                })?;
            }
        }
    }
    Ok(())
}

fn unpack(backend: Backend) -> Outcome {
    for packing in packings() {
        for n in lengths() {
            let hostile = Painter::new(&[packing.levels(), n]).bytes(packing.bytes(n));
            for bytes in [hostile, vec![0xff; packing.bytes(n)]] {
                let bytes = shifted(&bytes);
                let case = format_args!("{n} codes of {} levels", packing.levels());
                same_outputs(backend, case, n, |backend, codes| {
                    backend.unpack(packing, &bytes[1..], codes);
                })?;
            }
        }
    }
    Ok(())
}

fn quantize_query(backend: Backend) -> Outcome {
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
                let x = shifted(&x);
                let case = format_args!("{n} values, {style:?}, limit {limit}");
                same_outputs(backend, case, 1, |backend, unit| {
                    unit[0] = backend.quantize_query(&x[1..], limit, &mut vec![0; n]);
                })?;
                same_outputs(backend, case, n, |backend, out| {
                    backend.quantize_query(&x[1..], limit, out);
                })?;
            }
        }
    }
    Ok(())
}

/// Rows of hostile bytes with finite scales, and a codebook for them.
struct Page {
    bytes: Vec<u8>,
    stride: usize,
    dim: usize,
    packing: Packing,
    centroids: Vec<i16>,
}

impl Page {
    fn new(painter: &mut Painter, packing: Packing, dim: usize, count: usize) -> Self {
        let stride = 2 + packing.bytes(dim) + [0, 1, 6, 37][painter.below(4)];
        let mut bytes = painter.bytes(1 + stride * count);
        for row in bytes[1..].chunks_exact_mut(stride) {
            row[..2].copy_from_slice(&painter.finite_f16());
            match painter.below(8) {
                0 => row[2..].fill(0xff),
                1 => row[..2].fill(0),
                _ => {}
            }
        }
        let limit = if packing.levels() <= 16 { 127 } else { 2047 };
        let mut centroids = painter.integers(limit, packing.levels());
        // The extremes: with them, sums come as near to the end of i32 as the contract allows.
        (centroids[0], centroids[packing.levels() - 1]) = (-limit, limit);
        Self { bytes, stride, dim, packing, centroids: shifted(&centroids) }
    }

    fn rows(&self) -> Rows<'_> {
        Rows { bytes: &self.bytes[1..], stride: self.stride, dim: self.dim, packing: self.packing }
    }

    fn centroids(&self) -> &[i16] {
        &self.centroids[1..]
    }
}

/// (packing, dim, rows, queries): every packing and width with a few rows, then every count for some of them.
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
    few.chain(many)
}

fn score_codes(backend: Backend) -> Outcome {
    for (packing, dim, count, queries) in page_shapes() {
        let mut painter = Painter::new(&[packing.levels(), dim, count, queries]);
        let page = Page::new(&mut painter, packing, dim, count);
        let limit = if packing.levels() <= 16 { 127 } else { 1023 };
        let values: Vec<Vec<i16>> = (0..queries)
            .map(|_| match painter.below(6) {
                0 => vec![limit; dim + 1],
                1 => vec![-limit; dim + 1],
                _ => painter.integers(limit, dim + 1),
            })
            .collect();
        let queries: Vec<IntQuery> = values
            .iter()
            .map(|values| IntQuery { values: &values[1..], scale: painter.float() / 100.0 })
            .collect();
        let case =
            format_args!("{} levels, dim {dim}, {count} rows, {} queries", packing.levels(), queries.len());
        same_outputs(backend, case, queries.len() * count, |backend, scores| {
            backend.score_codes(&page.rows(), page.centroids(), 0.007_3, &queries, scores);
        })?;
    }
    Ok(())
}

fn accumulate_codes(backend: Backend) -> Outcome {
    for (packing, dim, count, queries) in page_shapes() {
        let mut painter = Painter::new(&[packing.levels(), dim, count, queries]);
        let page = Page::new(&mut painter, packing, dim, count);
        let mut weights = Vec::with_capacity(1 + queries * count);
        weights.push(0.0);
        for _ in 0..queries {
            match painter.below(6) {
                0 => weights.extend(painter.floats(Style::Wide, count).iter().map(|w| w / 256.0)),
                1 => weights.extend(painter.floats(Style::Zeros, count)),
                2 => weights.extend(painter.floats(Style::Random, count).iter().map(|w| w * MAX_WEIGHT)),
                // Products around 2⁻¹⁰⁰, below which a run adds nothing.
                3 => weights.extend(painter.floats(Style::Random, count).iter().map(|w| w * 1e-34)),
                _ => weights.extend(painter.floats(Style::Random, count)),
            }
        }
        let acc = painter.floats(Style::Random, queries * dim);
        let case = format_args!("{} levels, dim {dim}, {count} rows, {queries} queries", packing.levels());
        same_changes(backend, case, &acc, |backend, acc| {
            backend.accumulate_codes(&page.rows(), page.centroids(), 0.007_3, &weights[1..], acc);
        })?;
    }
    Ok(())
}

const FORMATS: [Float; 3] = [Float::F16, Float::Bf16, Float::F32];

/// Finite floats of a format, small enough that no sum of products overflows.
fn float_bytes(painter: &mut Painter, format: Float, count: usize) -> Vec<u8> {
    let mut bytes = vec![0];
    for _ in 0..count {
        let value = painter.floats(Style::Wide, 1)[0];
        match format {
            Float::F16 => bytes.extend(painter.finite_f16()),
            Float::Bf16 => bytes.extend(&value.to_le_bytes()[2..]),
            Float::F32 => bytes.extend(value.to_le_bytes()),
        }
    }
    bytes
}

fn decode_floats(backend: Backend) -> Outcome {
    for format in FORMATS {
        for n in lengths() {
            let bytes = float_bytes(&mut Painter::new(&[n]), format, n);
            same_outputs(backend, format_args!("{n} of {format:?}"), n, |backend, out| {
                backend.decode_floats(format, &bytes[1..], out);
            })?;
        }
    }
    // Every finite value of both short formats.
    for (format, exponent) in [(Float::F16, 0x7c00), (Float::Bf16, 0x7f80)] {
        let all: Vec<u8> = (0..=u16::MAX)
            .filter(|bits| bits & exponent != exponent)
            .flat_map(|bits| bits.to_le_bytes())
            .collect();
        same_outputs(backend, format_args!("all of {format:?}"), all.len() / 2, |backend, out| {
            backend.decode_floats(format, &all, out);
        })?;
    }
    Ok(())
}

fn encode_floats(backend: Backend) -> Outcome {
    for format in FORMATS {
        for n in lengths() {
            for style in STYLES {
                let x = shifted(&Painter::new(&[n]).floats(style, n));
                let case = format_args!("{n} values to {format:?}, {style:?}");
                same_outputs(backend, case, n * format.bytes(), |backend, bytes| {
                    backend.encode_floats(format, &x[1..], bytes);
                })?;
            }
        }
        // Around every finite value of the short formats: on it, on the tie above it, a step to either side of both.
        for shift in [13, 16] {
            let mut x = Vec::new();
            for bits in (0..u32::MAX >> shift).step_by(if shift == 13 { 7 } else { 1 }) {
                for offset in [0, 1, (1 << (shift - 1)) - 1, 1 << (shift - 1), (1 << (shift - 1)) + 1] {
                    let value = f32::from_bits((bits << shift) + offset);
                    x.extend(value.is_finite().then_some(value));
                }
                if x.len() > 4000 {
                    let case = format_args!("ties of {shift} bits to {format:?}, up to {bits}");
                    same_outputs(backend, case, x.len() * format.bytes(), |backend, bytes| {
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

fn slices(values: &[Vec<f32>]) -> Vec<&[f32]> {
    values.iter().map(|values| &values[1..]).collect()
}

fn score_floats(backend: Backend) -> Outcome {
    for format in FORMATS {
        for (dim, count, queries) in float_shapes() {
            let mut painter = Painter::new(&[dim, count, queries]);
            let bytes = float_bytes(&mut painter, format, dim * count);
            let queries: Vec<Vec<f32>> = (0..queries).map(|_| painter.floats(Style::Wide, dim + 1)).collect();
            let queries = slices(&queries);
            let case = format_args!("{format:?}, dim {dim}, {count} rows, {} queries", queries.len());
            same_outputs(backend, case, queries.len() * count, |backend, scores| {
                backend.score_floats(format, dim, &bytes[1..], &queries, scores);
            })?;
        }
    }
    Ok(())
}

fn accumulate_floats(backend: Backend) -> Outcome {
    for format in FORMATS {
        for (dim, count, queries) in float_shapes() {
            let mut painter = Painter::new(&[dim, count, queries]);
            let bytes = float_bytes(&mut painter, format, dim * count);
            let weights = painter.floats(Style::Random, 1 + queries * count);
            let acc = painter.floats(Style::Wide, queries * dim);
            let case = format_args!("{format:?}, dim {dim}, {count} rows, {queries} queries");
            same_changes(backend, case, &acc, |backend, acc| {
                backend.accumulate_floats(format, dim, &bytes[1..], &weights[1..], acc);
            })?;
        }
    }
    Ok(())
}

fn quantize_affine(backend: Backend) -> Outcome {
    for (range, offset) in [((0, 3), 0), ((0, 15), 0), ((-8, 7), 8), ((-127, 127), 128), ((100, 200), 0)] {
        for n in lengths() {
            for style in STYLES {
                let x = shifted(&Painter::new(&[n]).floats(style, n));
                for (zero, scale) in [(0.0, 0.125), (-0.37, 0.013), (0.0, 0.0), (1.0, 1e-40), (0.5, -0.01)] {
                    let case = format_args!(
                        "{n} values, {style:?}, {range:?} + {offset}, zero {zero}, scale {scale}"
                    );
                    same_outputs(backend, case, n, |backend, codes| {
                        backend.quantize_affine(&x[1..], zero, scale, offset, range, codes);
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
fn affine_bytes(painter: &mut Painter, layout: &Affine, count: usize) -> Vec<u8> {
    let mut bytes = painter.bytes(1 + count * layout.row_bytes());
    for row in bytes[1..].chunks_exact_mut(layout.row_bytes()) {
        for scale in row[..layout.header_bytes()].as_chunks_mut::<2>().0 {
            *scale = painter.finite_f16();
        }
    }
    bytes
}

fn decode_affine(backend: Backend) -> Outcome {
    for layout in affine_layouts() {
        let row = affine_bytes(&mut Painter::new(&[layout.dim, layout.group]), &layout, 1);
        same_outputs(backend, format_args!("{layout:?}"), layout.dim, |backend, out| {
            backend.decode_affine(&layout, &row[1..], out);
        })?;
    }
    Ok(())
}

/// Few rows and queries for every layout, every count for two of them.
fn affine_shapes() -> impl Iterator<Item = (Affine, usize, usize)> {
    let few = affine_layouts().map(|layout| (layout, 3, 2));
    let many =
        affine_layouts().filter(|layout| layout.dim == 80 && layout.bits % 4 == 0).flat_map(|layout| {
            ROW_COUNTS
                .into_iter()
                .flat_map(move |rows| QUERY_COUNTS.into_iter().map(move |queries| (layout, rows, queries)))
        });
    few.chain(many)
}

fn score_affine(backend: Backend) -> Outcome {
    for (layout, count, queries) in affine_shapes() {
        let mut painter = Painter::new(&[layout.dim, layout.group, count, queries]);
        let bytes = affine_bytes(&mut painter, &layout, count);
        let queries: Vec<Vec<f32>> =
            (0..queries).map(|_| painter.floats(Style::Wide, layout.dim + 1)).collect();
        let queries = slices(&queries);
        let case = format_args!("{layout:?}, {count} rows, {} queries", queries.len());
        same_outputs(backend, case, queries.len() * count, |backend, scores| {
            backend.score_affine(&layout, &bytes[1..], &queries, scores);
        })?;
    }
    Ok(())
}

fn accumulate_affine(backend: Backend) -> Outcome {
    for (layout, count, queries) in affine_shapes() {
        let mut painter = Painter::new(&[layout.dim, layout.group, count, queries]);
        let bytes = affine_bytes(&mut painter, &layout, count);
        let weights = painter.floats(Style::Random, 1 + queries * count);
        let acc = painter.floats(Style::Wide, queries * layout.dim);
        let case = format_args!("{layout:?}, {count} rows, {queries} queries");
        same_changes(backend, case, &acc, |backend, acc| {
            backend.accumulate_affine(&layout, &bytes[1..], &weights[1..], acc);
        })?;
    }
    Ok(())
}

fn pack_signs(backend: Backend) -> Outcome {
    for n in (0..20).map(|n| 8 * n).chain(WIDTHS) {
        for style in STYLES {
            let x = shifted(&Painter::new(&[n]).floats(style, n));
            same_outputs(backend, format_args!("{n} values, {style:?}"), n / 8, |backend, plane| {
                backend.pack_signs(&x[1..], plane);
            })?;
        }
    }
    Ok(())
}

fn unpack_signs(backend: Backend) -> Outcome {
    for n in (0..20).map(|n| 8 * n).chain(WIDTHS) {
        let plane = shifted(&Painter::new(&[n]).bytes(n / 8));
        for scale in [1.0, -0.003_1, -0.0, 1e-42] {
            same_outputs(backend, format_args!("{n} values, scale {scale}"), n, |backend, out| {
                backend.unpack_signs(&plane[1..], scale, out);
            })?;
        }
    }
    Ok(())
}

/// Calls `run` with rows of signs of every shape, and a number of queries.
fn sign_rows(mut run: impl FnMut(&SignRows, usize, &mut Painter) -> Outcome) -> Outcome {
    let widths = WIDTHS.into_iter().chain([8, 16, 24, 40, 72, 136]).map(|dim| (dim, 3, 1 + dim / 8 % 3));
    let many = [40, 80, 128].into_iter().flat_map(|dim| {
        ROW_COUNTS.into_iter().flat_map(move |rows| QUERY_COUNTS.into_iter().map(move |q| (dim, rows, q)))
    });
    for (dim, count, queries) in widths.chain(many) {
        for outer in [None, Some(Float::F16), Some(Float::F32)] {
            let mut painter = Painter::new(&[dim, count, queries, outer.map_or(0, Float::bytes)]);
            let at = outer.map_or(0, Float::bytes) + [0, 1, 7, 32][painter.below(4)];
            let stride = at + 2 + dim / 8 + [0, 1, 6, 37][painter.below(4)];
            let mut bytes = painter.bytes(1 + stride * count);
            for row in bytes[1..].chunks_exact_mut(stride) {
                match outer {
                    Some(Float::F32) => row[..4].copy_from_slice(&(painter.float() * 100.0).to_le_bytes()),
                    Some(_) => row[..2].copy_from_slice(&painter.finite_f16()),
                    None => {}
                }
                row[at..at + 2].copy_from_slice(&painter.finite_f16());
                match painter.below(8) {
                    0 => row[at + 2..].fill(0xff),
                    1 => row[at..].fill(0),
                    _ => {}
                }
            }
            run(&SignRows { bytes: &bytes[1..], stride, dim, at, outer }, queries, &mut painter)?;
        }
    }
    Ok(())
}

fn score_signs(backend: Backend) -> Outcome {
    sign_rows(|rows, queries, painter| {
        let values: Vec<Vec<i8>> = (0..queries)
            .map(|_| match painter.below(6) {
                0 => vec![127; rows.dim + 1],
                1 => vec![-127; rows.dim + 1],
                _ => painter.integers(127, rows.dim + 1).into_iter().map(|v| v as i8).collect(),
            })
            .collect();
        let queries: Vec<SignQuery> = values
            .iter()
            .map(|values| SignQuery { values: &values[1..], scale: painter.float() / 100.0 })
            .collect();
        let count = rows.count();
        let start = painter.floats(Style::Wide, queries.len() * count);
        let case = format_args!("dim {}, {count} rows, {} queries", rows.dim, queries.len());
        same_changes(backend, case, &start, |backend, scores| {
            backend.score_signs(rows, 0.007_3, &queries, scores);
        })
    })
}

fn accumulate_signs(backend: Backend) -> Outcome {
    sign_rows(|rows, queries, painter| {
        let count = rows.count();
        let weights: Vec<f32> = match painter.below(4) {
            0 => vec![MAX_WEIGHT; queries * count],
            1 => vec![1e-35; queries * count],
            _ => painter.floats(Style::Random, queries * count),
        };
        let start = painter.floats(Style::Random, queries * rows.dim);
        let case = format_args!("dim {}, {count} rows, {queries} queries", rows.dim);
        same_changes(backend, case, &start, |backend, acc| {
            backend.accumulate_signs(rows, 0.007_3, &weights, acc);
        })
    })
}

const BOOKS: [BlockBook; 2] = [
    BlockBook::TwoBits { centroids: [-1.51, -0.4528, 0.4528, 1.51], thresholds: [-0.9814, 0.0, 0.9814] },
    BlockBook::ThreeBits {
        centroids: [-2.25, -1.5, -0.75, -0.25, 0.125, 0.5, 1.0, 2.0],
        thresholds: [-1.75, -1.0, -0.5, 0.0, 0.5, 1.0, 1.75],
    },
];

fn quantize_blocks(backend: Backend) -> Outcome {
    for book in &BOOKS {
        for blocks in [0, 1, 2, 3, 4, 5, 16, 18] {
            for style in STYLES {
                let mut painter = Painter::new(&[blocks]);
                let mut x = painter.floats(style, 32 * blocks);
                for (i, x) in x.iter_mut().enumerate() {
                    match (style, i / 32 % 4) {
                        (Style::Wide, 0) => *x = (*x).clamp(-6e4, 6e4),
                        (Style::Wide | Style::Huge, _) => *x *= 2f32.powi_exact(-60),
                        // Ties, and coordinates of the largest magnitude.
                        (Style::Random, 1) => *x = (*x * 8.0) as i32 as f32,
                        _ => {}
                    }
                }
                let x = shifted(&x);
                let case = format_args!("{} levels, {blocks} blocks, {style:?}", book.largest());
                same_outputs(backend, case, BLOCK_BYTES * blocks, |backend, bytes| {
                    backend.quantize_blocks(book, &x[1..], bytes);
                })?;
            }
        }
    }
    Ok(())
}

/// Powers of two without std.
trait PowiExact {
    fn powi_exact(self, exponent: i32) -> f32;
}

impl PowiExact for f32 {
    fn powi_exact(self, exponent: i32) -> f32 {
        f32::from_bits(((exponent + 127) as u32) << 23)
    }
}

/// Blocks of hostile bytes with finite scales.
fn small_blocks(painter: &mut Painter, blocks: usize) -> Vec<u8> {
    let mut bytes = painter.bytes(1 + BLOCK_BYTES * blocks);
    for block in bytes[1..].chunks_exact_mut(BLOCK_BYTES) {
        block[12..].copy_from_slice(&painter.finite_f16());
    }
    bytes
}

/// One scale that is not finite, anywhere; and other bytes that only look like it.
fn blocks_are_finite(backend: Backend) -> Outcome {
    for blocks in [0, 1, 2, 31, 32, 33, 64, 100] {
        let clean = small_blocks(&mut Painter::new(&[blocks]), blocks);
        let mut check = |bytes: &[u8], finite: bool, at: usize| match backend.blocks_are_finite(bytes) {
            found if found == finite => Ok(()),
            found => Err(format!("{blocks} blocks, scale {at}: {found}")),
        };
        check(&clean[1..], true, blocks)?;
        for at in 0..blocks {
            for high in [0x7c, 0x7f, 0xfc, 0xff] {
                let mut bytes = clean.clone();
                bytes[1 + at * BLOCK_BYTES + 13] = high;
                check(&bytes[1..], false, at)?;
            }
        }
    }
    Ok(())
}

fn decode_blocks(backend: Backend) -> Outcome {
    for book in &BOOKS {
        for blocks in [0, 1, 2, 3, 4, 5, 16, 18] {
            let bytes = small_blocks(&mut Painter::new(&[blocks]), blocks);
            same_outputs(backend, format_args!("{blocks} blocks"), 32 * blocks, |backend, out| {
                backend.decode_blocks(book, &bytes[1..], out);
            })?;
        }
    }
    Ok(())
}

fn block_shapes() -> impl Iterator<Item = (&'static BlockBook, usize, usize, usize)> {
    let few = (1..=18).map(|blocks| (32 * blocks, 3, 1 + blocks % 3));
    let many = [32, 96, 128].into_iter().flat_map(|dim| {
        ROW_COUNTS.into_iter().flat_map(move |rows| QUERY_COUNTS.into_iter().map(move |q| (dim, rows, q)))
    });
    few.chain(many).flat_map(|(dim, rows, queries)| BOOKS.iter().map(move |book| (book, dim, rows, queries)))
}

fn score_blocks(backend: Backend) -> Outcome {
    for (book, dim, count, queries) in block_shapes() {
        let mut painter = Painter::new(&[dim, count, queries]);
        let bytes = small_blocks(&mut painter, dim / 32 * count);
        let rows: Vec<Vec<f32>> = (0..queries).map(|_| painter.floats(Style::Wide, dim + 1)).collect();
        let rows: Vec<&[f32]> = rows.iter().map(|row| &row[1..]).collect();
        let case = format_args!("dim {dim}, {count} rows, {queries} queries, {}", book.largest());
        same_outputs(backend, case, queries * count, |backend, scores| {
            backend.score_blocks(book, dim, &bytes[1..], &rows, scores);
        })?;
    }
    Ok(())
}

fn accumulate_blocks(backend: Backend) -> Outcome {
    for (book, dim, count, queries) in block_shapes() {
        let mut painter = Painter::new(&[dim, count, queries]);
        let bytes = small_blocks(&mut painter, dim / 32 * count);
        let weights = painter.floats(Style::Random, queries * count);
        let start = painter.floats(Style::Wide, queries * dim);
        let case = format_args!("dim {dim}, {count} rows, {queries} queries, {}", book.largest());
        same_changes(backend, case, &start, |backend, acc| {
            backend.accumulate_blocks(book, dim, &bytes[1..], &weights, acc);
        })?;
    }
    Ok(())
}

/// Codebooks of some bits for each level, of numbers that need not be cosines.
struct Tree {
    dim: usize,
    books: Vec<(u8, Vec<f32>, Vec<f32>, Vec<f32>)>,
}

impl Tree {
    fn new(painter: &mut Painter, dim: usize, bits: &[u8]) -> Self {
        let book = |(level, &bits): (usize, &u8)| {
            let codes = 1usize << bits;
            let tangents = if level == 0 { (codes / 4).max(1) } else { codes } - 1;
            let tangents = (1..=tangents).map(|k| k as f32 / (tangents + 1 - k) as f32).collect();
            (bits, painter.floats(Style::Random, codes), painter.floats(Style::Random, codes), tangents)
        };
        Self { dim, books: bits.iter().enumerate().map(book).collect() }
    }

    fn run<T>(&self, run: impl FnOnce(&AngleTree) -> T) -> T {
        let levels: Vec<Angles> = self
            .books
            .iter()
            .map(|(bits, cos, sin, tangents)| Angles { bits: *bits, cos, sin, tangents })
            .collect();
        run(&AngleTree { dim: self.dim, levels: &levels })
    }
}

fn trees() -> impl Iterator<Item = (usize, Vec<u8>)> {
    let full = [32, 64, 128, 256, 512]
        .into_iter()
        .flat_map(|dim: usize| (1..=8).map(move |bits| (dim, vec![bits; dim.trailing_zeros() as usize])));
    let four = (1..=36).map(|roots| (16 * roots, vec![4, 2, 2, 2]));
    let other = [(8, vec![3]), (24, vec![5, 5, 1]), (64, vec![1, 2, 3, 4, 5]), (512, vec![8])];
    full.chain(four).chain(other)
}

fn quantize_angles(backend: Backend) -> Outcome {
    for (dim, bits) in trees() {
        let mut painter = Painter::new(&[dim, usize::from(bits[0])]);
        let tree = Tree::new(&mut painter, dim, &bits);
        for style in STYLES {
            let mut x = painter.floats(style, dim);
            // On thresholds and axes, in all quadrants.
            if style == Style::Random {
                x.iter_mut().step_by(2).for_each(|x| *x = (*x * 4.0) as i32 as f32);
                x.iter_mut().skip(1).step_by(4).for_each(|x| *x = (*x * 4.0) as i32 as f32 * -1.0);
            }
            // Squares of a page's values fit f32.
            x.iter_mut().for_each(|x| *x = (*x).clamp(-1e15, 1e15));
            tree.run(|tree| {
                let case = format_args!("dim {dim}, bits {bits:?}, {style:?}");
                same_outputs(backend, case, tree.codes(), |backend, codes| {
                    backend.quantize_angles(tree, &mut x.clone(), codes);
                })?;
                same_outputs(backend, case, tree.roots(), |backend, roots| {
                    let mut x = x.clone();
                    backend.quantize_angles(tree, &mut x, &mut vec![0; tree.codes()]);
                    roots.copy_from_slice(&x[..roots.len()]);
                })
            })?;
        }
    }
    Ok(())
}

/// Rows of hostile bytes with finite roots.
fn angle_rows(painter: &mut Painter, tree: &AngleTree, count: usize) -> Vec<u8> {
    let mut bytes = painter.bytes(1 + tree.row_bytes() * count);
    for row in bytes[1..].chunks_exact_mut(tree.row_bytes()) {
        for root in row[..2 * tree.roots()].chunks_exact_mut(2) {
            root.copy_from_slice(&painter.finite_f16());
        }
    }
    bytes
}

fn decode_angles(backend: Backend) -> Outcome {
    for (dim, bits) in trees() {
        let mut painter = Painter::new(&[dim, usize::from(bits[0])]);
        Tree::new(&mut painter, dim, &bits).run(|tree| {
            let bytes = angle_rows(&mut painter, tree, 1);
            same_outputs(backend, format_args!("dim {dim}, bits {bits:?}"), dim, |backend, out| {
                backend.decode_angles(tree, &bytes[1..], out);
            })
        })?;
    }
    Ok(())
}

fn angle_shapes() -> impl Iterator<Item = (usize, Vec<u8>, usize, usize)> {
    let few = trees().map(|(dim, bits)| (dim, bits, 3, 1 + dim / 16 % 3));
    let many =
        [(64, vec![4; 6]), (128, vec![3; 7]), (96, vec![4, 2, 2, 2])].into_iter().flat_map(|(dim, bits)| {
            [0, 1, 2, 15, 16, 17, 33].into_iter().flat_map(move |rows| {
                let bits = bits.clone();
                QUERY_COUNTS.into_iter().map(move |queries| (dim, bits.clone(), rows, queries))
            })
        });
    few.chain(many)
}

fn score_angles(backend: Backend) -> Outcome {
    for (dim, bits, count, queries) in angle_shapes() {
        let mut painter = Painter::new(&[dim, count, queries]);
        Tree::new(&mut painter, dim, &bits).run(|tree| {
            let bytes = angle_rows(&mut painter, tree, count);
            let rows: Vec<Vec<f32>> = (0..queries).map(|_| painter.floats(Style::Wide, dim + 1)).collect();
            let rows: Vec<&[f32]> = rows.iter().map(|row| &row[1..]).collect();
            let case = format_args!("dim {dim}, bits {bits:?}, {count} rows, {queries} queries");
            same_outputs(backend, case, queries * count, |backend, scores| {
                backend.score_angles(tree, &bytes[1..], &rows, scores);
            })
        })?;
    }
    Ok(())
}

fn accumulate_angles(backend: Backend) -> Outcome {
    for (dim, bits, count, queries) in angle_shapes() {
        let mut painter = Painter::new(&[dim, count, queries]);
        Tree::new(&mut painter, dim, &bits).run(|tree| {
            let bytes = angle_rows(&mut painter, tree, count);
            let weights = painter.floats(Style::Random, queries * count);
            let start = painter.floats(Style::Wide, queries * dim);
            let case = format_args!("dim {dim}, bits {bits:?}, {count} rows, {queries} queries");
            same_changes(backend, case, &start, |backend, acc| {
                backend.accumulate_angles(tree, &bytes[1..], &weights, acc);
            })
        })?;
    }
    Ok(())
}
