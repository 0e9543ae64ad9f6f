//! Every constant and tie of the specification that decides a bit.
//!
//! Values lie just below, at and just above it, on every backend. Expected results are literals, or
//! follow from the contract.

use super::{Bits, Check, Outcome, filled};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use octaplex_arch::quaternion::{
    ChunkLayout, INDEX_CELLS, INDEX_GRID, INDEX_PADDING, QuaternionIndex, QuaternionSet, RadiusSteps, UNITS,
};
use octaplex_arch::{
    AngleTree, Angles, BLOCK_BYTES, Backend, BlockBook, Float, Packing, Rows, Search, SignRows,
    TrellisCodebook, TripletLayout,
};

pub(crate) const CONSTANTS: &[(&str, Check)] = &[
    ("sums have 16 lanes and are halved", |backends| each(backends, lanes)),
    ("accumulated weights are integers of a run", |backends| each(backends, integer_weights)),
    ("a query too small for its integers", |backends| each(backends, smallest_query)),
    ("rounding is to even", |backends| each(backends, rounding)),
    ("exp's cut-off and polynomial", |backends| each(backends, exponential)),
    ("the smallest triplet", |backends| each(backends, smallest_triplet)),
    ("the nearest unit quaternion", |backends| each(backends, nearest_unit)),
    ("the radius of a chunk", |backends| each(backends, radius)),
    ("a chunk of a query too small for its integers", |backends| each(backends, smallest_chunk)),
    ("thresholds belong to the upper cell", |backends| each(backends, thresholds)),
    ("blocks with the smallest scales", |backends| each(backends, small_blocks)),
    ("axes belong to the quadrant that they begin", |backends| each(backends, axes)),
    ("the cell of a direction", |backends| each(backends, cells)),
    ("what all backends take from the specification", |backends| each(backends, shared)),
];

fn each(backends: &[Backend], check: fn(Backend) -> Outcome) -> Outcome {
    let named = |backend: &Backend| check(*backend).map_err(|words| format!("{}, {words}", backend.name()));
    backends.iter().try_for_each(named)
}

/// Returns 2^exponent.
fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

fn expect<T: Bits>(case: impl core::fmt::Debug, actual: &[T], expected: &[T]) -> Outcome {
    let bits = |values: &[T]| values.iter().map(|value| value.bits()).collect::<Vec<_>>();
    if bits(actual) == bits(expected) {
        return Ok(());
    }
    Err(format!("{case:?}: {:x?}, not {:x?}", bits(actual), bits(expected)))
}

fn lanes(backend: Backend) -> Outcome {
    // 1 + 2⁻²⁴ is 1, but 2⁻²⁴ + 2⁻²⁴ + 1 is more: two small values count only where they are added
    // before the 1.
    for (a, b, meet) in [(8, 24, true), (16, 48, false), (1, 17, true), (1, 9, true), (2, 3, false)] {
        let mut x = [0.0; 64];
        (x[0], x[a], x[b]) = (1.0, power(-24), power(-24));
        let sum = if meet { 1.0 + power(-23) } else { 1.0 };
        expect((a, b), &[backend.dot(&x, &[1.0; 64])], &[sum])?;
        let row: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut score = [0.0];
        backend.score_floats(Float::F32, 64, &row, &[&[1.0; 64]], &mut score);
        expect((a, b), &score, &[sum])?;
    }
    Ok(())
}

/// Rows of scale 1 whose codes all mean 127, or, with infinite levels, whose signs are all
/// positive.
///
/// It returns the sum for one weight a row, and the largest integer weight.
fn sum_rows(backend: Backend, kind: &str, dim: usize, weights: &[f32], acc: &mut [f32]) -> f32 {
    let count = weights.len() * dim / acc.len();
    let rows = |stride: usize, fill: u8| {
        let mut bytes = vec![fill; stride * count];
        bytes.chunks_exact_mut(stride).for_each(|row| row[..2].copy_from_slice(&0x3c00u16.to_le_bytes()));
        bytes
    };
    match kind {
        "signs" => {
            let stride = 2 + dim / 8;
            let rows = SignRows { bytes: &rows(stride, 0xff), stride, dim, at: 0, outer: None };
            backend.accumulate_signs(&rows, 127.0, weights, acc);
            32767.0
        }
        "trellis" => {
            let book = TrellisCodebook::new(3, 4, &[127; 64]);
            let len = book.row_bytes(dim);
            let rows = Rows { bytes: &rows(len, 0xff), stride: len, len, dim, scales: None, ahead: &[] };
            backend.accumulate_trellis(&book, &[rows], 1.0, weights, acc);
            32767.0
        }
        levels => {
            let levels = levels.parse().unwrap_or_default();
            let packing = Packing::for_levels(levels).unwrap_or(Packing::bits(1));
            let len = 2 + packing.bytes(dim);
            let rows = Rows { bytes: &rows(len, 0), stride: len, len, dim, scales: None, ahead: &[] };
            backend.accumulate_codes(packing, &[rows], &vec![127; levels], 1.0, weights, acc);
            if levels <= 16 { 32767.0 } else { 4095.0 }
        }
    }
}

/// Runs of 256 rows. A run is skipped if all its weights are below 2⁻¹⁰⁰. Integer weights are at
/// most ±32767, or ±4095 from 17 levels on.
fn integer_weights(backend: Backend) -> Outcome {
    let smallest = power(-100);
    let mut cases: Vec<Vec<f32>> = [smallest.next_down(), smallest, smallest.next_up(), -smallest, 0.0]
        .map(|weight| vec![0.0, weight])
        .to_vec();
    // Relative to the largest weight, the others are half a unit or a little more. 256 rows share a
    // unit, and the next has its own.
    cases.extend([0.5, 0.500_1, 1.5].map(|unit| vec![1.0, unit / 32767.0, unit / 4095.0, -unit / 4095.0]));
    for count in [255, 256, 257, 513] {
        for heavy in [0, 254, 255, 256, 511, 512] {
            cases.extend((heavy < count).then(|| {
                let mut weights = vec![1e-6; count];
                weights[heavy] = 1.0;
                weights
            }));
        }
    }
    for kind in ["signs", "trellis", "2", "3", "4", "8", "16", "20", "32", "256"] {
        for (dim, queries, weights) in
            cases.iter().flat_map(|weights| [(32, 1, weights), (128, 1, weights), (128, 3, weights)])
        {
            let all = weights.repeat(queries);
            let mut acc = vec![0.0; dim * queries];
            let limit = sum_rows(backend, kind, dim, &all, &mut acc);
            let mut sum = 0.0f32;
            for run in weights.chunks(256) {
                let max = run.iter().fold(0.0f32, |max, weight| max.max(weight.abs()));
                if max >= smallest {
                    let ints = run.iter().map(|weight| rint(weight * (limit / max)) as i32 * 127);
                    let scale = if kind == "signs" { max / limit * 127.0 } else { max / limit };
                    let ints: i32 = ints.sum();
                    sum += if kind == "signs" { ints / 127 } else { ints } as f32 * scale;
                }
            }
            let case = format!("{kind}, dim {dim}, {queries} queries, {} rows, {sum}", weights.len());
            expect(case, &acc, &vec![sum; dim * queries])?;
        }
    }
    Ok(())
}

/// Rounds to the nearest integer, ties to even.
fn rint(x: f32) -> f32 {
    let below = x as i32 as f32 - f32::from(x < 0.0 && x != x as i32 as f32);
    let (rest, is_odd) = (x - below, below as i32 & 1 == 1);
    below + f32::from(rest > 0.5 || (rest == 0.5 && is_odd))
}

/// Returns the smallest x with a finite limit/x.
fn smallest_divisor(limit: f32) -> f32 {
    let mut x = limit / f32::MAX;
    while (limit / x.next_down()).is_finite() {
        x = x.next_down();
    }
    while (limit / x).is_infinite() {
        x = x.next_up();
    }
    x
}

fn smallest_query(backend: Backend) -> Outcome {
    for limit in [1, 127, 1023] {
        let smallest = smallest_divisor(limit.into());
        for (max, fits) in [(smallest.next_down(), false), (smallest, true), (smallest.next_up(), true)] {
            let mut ints = [7; 33];
            let unit = backend.quantize_query(&[max; 33], limit, &mut ints);
            expect(limit, &ints, &[if fits { limit } else { 0 }; 33])?;
            expect(limit, &[unit], &[if fits { max / f32::from(limit) } else { 0.0 }])?;
        }
    }
    Ok(())
}

fn rounding(backend: Backend) -> Outcome {
    let x = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.500_000_06, 1.499_999_9, -126.5];
    let mut ints = [0; 10];
    let _ = backend.quantize_query(&x, 127, &mut ints);
    expect("query", &ints, &[127, 0, 2, 2, 0, -2, -2, 1, 1, -126])?;
    let x = [-9.0, -0.500_1, -0.5, 0.5, 0.500_1, 1.5, 2.5, 14.5, 15.4, 15.6, 1e9];
    for (scale, codes) in [(1.0, [0, 0, 0, 0, 1, 2, 2, 14, 15, 15, 15]), (0.0, [0; 11])] {
        let mut actual = [9; 11];
        backend.quantize_affine(&x, 0.0, scale, 0, (0, 15), &mut actual);
        expect(scale, &actual, &codes)?;
    }
    Ok(())
}

fn exponential(backend: Backend) -> Outcome {
    for (x, bits) in [
        ((-87.0f32).next_down(), 0),
        (-87.0, 0),
        ((-87.0f32).next_up(), 0x00b3_36e0),
        (f32::NEG_INFINITY, 0),
        (-0.0, 0x3f80_0000),
        (-1.0, 0x3ebc_5ab2),
    ] {
        let mut all = [x; 37];
        let _ = backend.exp_weights(&mut all, 0.0);
        expect(x, &all, &[f32::from_bits(bits); 37])?;
    }
    let hash = |values: &[f32]| {
        values.iter().fold(0x811c_9dc5u32, |hash, x| (hash ^ x.to_bits()).wrapping_mul(0x0100_0193))
    };
    let mut x: Vec<f32> = (0..4096).map(|i| i as f32 * -0.021_3).collect();
    let mut capped = x.clone();
    let sum = backend.exp_weights(&mut x, 0.0);
    expect("exp", &[hash(&x), sum.to_bits()], &[0x574f_2577, 0x423d_ccef])?;
    backend.soft_cap(&mut capped, 30.0);
    expect("soft cap", &[hash(&capped)], &[0xea60_b8c5])
}

/// ```text
/// x|+|y|+|z| below 2⁻¹⁰⁰ counts as zero, with the octahedral coordinates (0, 0).
/// ```
fn smallest_triplet(backend: Backend) -> Outcome {
    let plane = [128; 128];
    let layout = TripletLayout {
        dim: 99,
        scale: Float::F16,
        direction_bits: 2,
        radius_bits: 0,
        rest_bits: 0,
        coordinates: &[-0.75, -0.25, 0.25, 0.75],
        lengths: &[1.632_993, 1.264_911, 1.264_911, 1.632_993],
        directions: &[[0; 4]; 16],
        planes: [&plane; 3],
        radii: &[1.0],
        rest: &[],
        rest_scale: 0.0,
    };
    let smallest = power(-100);
    let nearest = [(smallest.next_down(), 2), (smallest, 3), (smallest.next_up(), 3)];
    for (x, xi) in nearest.into_iter().chain(nearest.map(|(x, xi)| (-x, 3 - xi))) {
        // η is 0, on the threshold between codes 1 and 2. Of two equal projections the lower code
        // wins.
        for (search, eta) in [(Search::Nearest, 2), (Search::Bracket, 1)] {
            let mut stream = [0; 17];
            backend.encode_triplets(&layout, search, &[x, 0.0, 0.0].repeat(33), 1.0, &mut stream);
            let code = xi | eta << 2;
            let mut expected = [code | code << 4; 17];
            expected[16] = code;
            expect((x, search), &stream, &expected)?;
        }
    }
    // A radius on a threshold takes the upper code. This triplet also shows that squares are added
    // in the order of the coordinates.
    let [x, y, z] = [7053.0f32, 14297.0, 8503.0].map(|c| c / 4096.0);
    let root = backend.sqrt((x * x + y * y) + z * z);
    for (radius, bit) in [(root, 1), (root.next_up(), 0)] {
        let radii = &[0.0, 2.0 * radius];
        let layout = TripletLayout { radius_bits: 1, radii, ..layout };
        let mut stream = [0; 21];
        backend.encode_triplets(&layout, Search::Nearest, &[x, y, z].repeat(33), 1.0, &mut stream);
        let codes: Vec<u8> = (0..33).map(|i| 5 * i + 4).map(|at| stream[at / 8] >> (at % 8) & 1).collect();
        expect(radius, &codes, &[bit; 33])?;
    }
    // A coordinate left over that lies on a threshold takes the upper code.
    let rest = TripletLayout { dim: 100, rest_bits: 2, rest: &[-3, -1, 1, 3], rest_scale: 1.0, ..layout };
    for (x, code) in [(0.0, 2), (-1e-45, 1), (2.0, 3), (2.0f32.next_down(), 2)] {
        let mut values = [0.5; 100];
        values[99] = x;
        let mut stream = [0; 17];
        backend.encode_triplets(&rest, Search::Nearest, &values, 1.0, &mut stream);
        expect(x, &[stream[16] >> 4], &[code])?;
    }
    Ok(())
}

/// Encodes 21 equal chunks with 1 as the only member, and returns codes and radii.
fn encode_chunks(backend: Backend, chunk: [f32; 4], factor: f32) -> (Vec<u16>, Vec<u8>) {
    let set = QuaternionSet { members: &[[1.0, 0.0, 0.0, 0.0]], ints: &[[127, 0, 0, 0]], index: None };
    let (mut norms, mut codes, mut radii) = ([0.0; 21], vec![0; 21], vec![0; 21]);
    let x = chunk.repeat(21);
    backend.chunk_norms(&x, &mut norms);
    let steps = RadiusSteps { factor, limit: 15 };
    backend.encode_quaternions(&set, &x, &norms, steps, &mut codes, &mut radii);
    (codes, radii)
}

fn nearest_unit(backend: Backend) -> Outcome {
    for (chunk, code) in [
        // An axis equal to half the sum wins, and of several axes the lowest.
        ([1.0, 1.0, 0.0, 0.0], 0),
        ([0.0, -1.0, 1.0, 0.0], 3),
        ([0.0, 0.0, -1.0, -1.0], 5),
        ([-0.0, 1.0, 1.0, 0.0], 2),
        ([1.0, 1.0f32.next_up(), 0.0, 0.0], 2),
        ([1.0, 0.5, -0.25, 0.25], 0),
        // Half the sum is 1, then 1 + 2⁻²³.
        ([1.0, 1.0, power(-24), 0.0], 0),
        ([1.0, 1.0, power(-22), 0.0], 8),
        // Negative components, and -0, which is not negative.
        ([1.0, 1.0, 1.0, -0.0], 8),
        ([-1.0, 1.0, 1.0, 1.0], 9),
        ([1.0, 1.0, 1.0, -1.0], 16),
    ] {
        expect(chunk, &encode_chunks(backend, chunk, 10.0).0, &[code; 21])?;
    }
    // Of equal products the lowest code wins, whether its member is the first or the last: code =
    // unit · 2 + member.
    let one = [1.0, 0.0, 0.0, 0.0];
    for (first, code) in [(one, 0), (one.map(|c: f32| -c), 1)] {
        let set = QuaternionSet { members: &[first, one], ints: &[[127, 0, 0, 0]; 2], index: None };
        let (x, mut codes) = ([1.0, 0.5, -0.25, 0.25].repeat(21), [9; 21]);
        let steps = RadiusSteps { factor: 1.0, limit: 15 };
        backend.encode_quaternions(&set, &x, &[1.0; 21], steps, &mut codes, &mut [0; 21]);
        expect(first, &codes, &[code; 21])?;
    }
    Ok(())
}

fn radius(backend: Backend) -> Outcome {
    for (norm, radius) in [
        (0.499_999_94, 0),
        (0.5, 1),
        (1.499_999_9, 1),
        (1.5, 2),
        (14.499_999, 14),
        (14.5, 15),
        (15.5, 15),
        (1e15, 15),
    ] {
        let (codes, radii) = encode_chunks(backend, [0.0, -norm, 0.0, 0.0], 1.0);
        expect(norm, &radii, &[radius; 21])?;
        expect(norm, &codes, &[if radius > 0 { 3 } else { 0 }; 21])?;
    }
    Ok(())
}

fn smallest_chunk(backend: Backend) -> Outcome {
    // Rows of fewer than six chunks have a separate implementation.
    let layout = ChunkLayout { chunks: 21, members: 1, radius_bits: 4, radix: false, flags: false };
    let set = QuaternionSet { members: &[[1.0, 0.0, 0.0, 0.0]], ints: &[[127, 0, 0, 0]], index: None };
    let mut row = vec![0; layout.row_bytes()];
    row[..2].copy_from_slice(&0x3c00u16.to_le_bytes());
    row[layout.radii_at()..].fill(0xff);
    let smallest = smallest_divisor(127.0);
    for (w, fits) in [(smallest.next_down(), false), (smallest, true), (smallest.next_up(), true)] {
        let mut query = [0.0; 84];
        query[80] = w;
        let mut scores = [7.0; 70];
        backend.score_quaternions(&layout, &set, &row.repeat(70), &[&query], &mut scores);
        let score = (127 * 127 * 15) as f32 * ((w / 127.0) / 127.0) * (1.0 / 15.0);
        expect(w, &scores, &[if fits { score } else { 0.0 }; 70])?;
    }
    Ok(())
}

fn thresholds(backend: Backend) -> Outcome {
    let x = [-0.5f32.next_up(), -0.5, -0.25, -0.0, 0.0, 0.25, 0.5f32.next_down(), 0.5];
    let cells = [0, 1, 1, 2, 2, 2, 2, 3];
    let mut codes = [0; 8];
    backend.quantize(&x, 1.0, &[-0.5, 0.0, 0.5], &mut codes);
    expect("codes", &codes, &cells)?;
    let mut plane = [0];
    backend.pack_signs(&[-0.0, 0.0, -1e-45, 1e-45, 1.0, -1.0, 2.0, -2.0], &mut plane);
    expect("signs", &plane, &[0b0101_1011])?;

    // The largest value makes the scale 1, so quotients equal values.
    let mut values = [0.0; 32];
    values[..8].copy_from_slice(&x);
    values[31] = 2.0;
    let book = BlockBook::TwoBits { centroids: [-2.0, -0.25, 0.25, 2.0], thresholds: [-0.5, 0.0, 0.5] };
    let mut block = [0; BLOCK_BYTES];
    backend.quantize_blocks(&book, &values, &mut block);
    let codes: Vec<u8> = (0..8).map(|j| block[j / 4] >> (2 * (j % 4)) & 3).collect();
    expect("block", &codes, &cells)?;
    expect("residuals: x - centroid ≥ 0", &block[8..9], &[0b0110_0101])?;
    expect("scale", &block[12..], &0x3c00u16.to_le_bytes())
}

/// From 2⁻¹²⁸ down 1/scale is infinite, and zeros take the last code. The caller must refuse scales
/// from 65520 on.
fn small_blocks(backend: Backend) -> Outcome {
    let smallest = f32::from_bits(0x0020_0000);
    for (scale, code) in [(0.0, 2), (smallest.next_down(), 3), (smallest, 3), (smallest.next_up(), 2)] {
        let mut x = [0.0; 64];
        (x[5], x[37]) = (2.0 * scale, 2.0 * scale);
        let book = BlockBook::TwoBits { centroids: [-2.0, -0.25, 0.25, 2.0], thresholds: [-0.5, 0.0, 0.5] };
        let mut blocks = [0; 2 * BLOCK_BYTES];
        backend.quantize_blocks(&book, &x, &mut blocks);
        expect(scale, &[blocks[0], blocks[BLOCK_BYTES]], &[code * 0x55; 2])?;
    }
    for (exponent, finite) in [(0x7b, true), (0x7c, false), (0xfb, true), (0xfc, false)] {
        let mut blocks = filled(0xff, 33 * BLOCK_BYTES);
        blocks.chunks_exact_mut(BLOCK_BYTES).for_each(|block| block[13] = exponent);
        expect(exponent, &[u8::from(backend.blocks_are_finite(&blocks))], &[u8::from(finite)])?;
    }
    Ok(())
}

fn axes(backend: Backend) -> Outcome {
    let just = 1.0f32.next_down();
    let pairs = [
        ([1.0, 0.0], 0),
        ([1.0, -0.0], 0),
        ([1.0, just], 0),
        ([1.0, 1.0], 1),
        ([just, 1.0], 1),
        ([0.0, 1.0], 2),
        ([-0.0, 1.0], 2),
        ([-1.0, 1.0], 3),
        ([-1.0, 0.0], 4),
        ([-1.0, -0.0], 4),
        ([-1.0, -1.0], 5),
        ([0.0, -1.0], 6),
        ([-0.0, -1.0], 6),
        ([1.0, -1.0], 7),
        ([0.0, 0.0], 1),
        ([-0.0, -0.0], 1),
    ];
    let mut x: Vec<f32> = pairs.iter().flat_map(|(pair, _)| *pair).collect();
    let angles = Angles { bits: 3, directions: &[[0.0; 2]; 8], tangents: &[1.0] };
    let mut codes = [9; 16];
    backend.quantize_angles(&AngleTree { dim: 32, levels: &[angles] }, &mut x, &mut codes);
    expect("first level", &codes, &pairs.map(|(_, code)| code))?;

    // Radii of pairs on the first axis are their coordinates.
    let radii = [(1.0, just, 0), (1.0, 1.0, 1), (1.0, 2.0f32.next_down(), 1), (1.0, 2.0, 2), (0.0, 1.0, 2)];
    let first = Angles { bits: 1, directions: &[[0.0; 2]; 2], tangents: &[] };
    let second = Angles { bits: 2, directions: &[[0.0; 2]; 4], tangents: &[1.0, 2.0, f32::MAX] };
    for (a, b, code) in radii {
        let mut x = [a, 0.0, b, 0.0].repeat(8);
        let mut codes = [9; 24];
        backend.quantize_angles(&AngleTree { dim: 32, levels: &[first, second] }, &mut x, &mut codes);
        expect((a, b), &codes[16..], &[code + u8::from(a == 0.0); 8])?;
    }
    Ok(())
}

/// An index whose cells each have one candidate: their step on one axis. The candidate is one of 16
/// members that are all 1.
fn cells(backend: Backend) -> Outcome {
    let (one, ints) = ([[1.0, 0.0, 0.0, 0.0]; INDEX_GRID], [[127, 0, 0, 0]; INDEX_GRID]);
    let lists: Vec<u8> = (0..INDEX_GRID + INDEX_PADDING).map(|i| (i % INDEX_GRID) as u8).collect();
    for axis in 0..3 {
        let mut cells = [0; INDEX_CELLS];
        for (i, cell) in cells.iter_mut().enumerate() {
            let step = i / INDEX_GRID.pow(2 - axis) % INDEX_GRID;
            *cell = (step as u32) << 8 | 1;
        }
        let index = QuaternionIndex::new(INDEX_GRID, &cells, &lists);
        let set = QuaternionSet { members: &one, ints: &ints, index: Some(index) };
        // The middles of cells inside the octahedron, turned by every unit.
        for steps in [[8, 8, 8], [1, 8, 7], [7, 14, 8], [8, 7, 1], [11, 6, 5], [5, 10, 9], [10, 4, 8]] {
            let [x, y, z] = steps.map(|step| (step as f32 + 0.5) / 8.0 - 1.0);
            for (p, [a, b, c, d]) in UNITS.into_iter().enumerate() {
                let chunk = [
                    a - b * x - c * y - d * z,
                    a * x + b + c * z - d * y,
                    a * y - b * z + c + d * x,
                    a * z + b * y - c * x + d,
                ];
                let mut codes = [0; 17];
                let steps_of = RadiusSteps { factor: 1.0, limit: 15 };
                let radii = &mut [0; 17];
                backend.encode_quaternions(&set, &chunk.repeat(17), &[1.0; 17], steps_of, &mut codes, radii);
                let code = p * INDEX_GRID + steps[axis as usize];
                expect((axis, steps, p), &codes, &[code as u16; 17])?;
            }
        }
    }
    // Next to each other, a list with one candidate and a longer list whose next candidate is the
    // best for both.
    let mut cells = [1; INDEX_CELLS];
    cells[(5 * INDEX_GRID + 10) * INDEX_GRID + 9] = 2;
    let index = Some(QuaternionIndex::new(2, &cells, [[0, 1]; INDEX_PADDING].as_flattened()));
    let set = QuaternionSet { members: &[[0.8, 0.6, 0.0, 0.0], one[0]], ints: &[[0; 4]; 2], index };
    let (chunks, mut codes) = ([[1.0, 0.0625, 0.0625, 0.0625], [1.0, -0.3125, 0.3125, 0.1875]], [9; 34]);
    let steps = RadiusSteps { factor: 1.0, limit: 15 };
    let x = chunks.as_flattened().repeat(17);
    backend.encode_quaternions(&set, &x, &[1.0; 34], steps, &mut codes, &mut [0; 34]);
    expect("lists", &codes, [[0, 1]; 17].as_flattened())
}

/// Kernels with one implementation for all backends: comparing backends does not test them.
fn shared(backend: Backend) -> Outcome {
    // Signs do not count, and a NaN is beyond infinity.
    for (format, bytes, largest) in [
        (Float::F16, [0x00, 0xbe, 0x00, 0x34, 0x00, 0x80, 0x01, 0x3e], 0x3e01),
        (Float::Bf16, [0xc0, 0xbf, 0x80, 0x3f, 0x00, 0x80, 0x00, 0xff], 0x7f00),
        (Float::F32, [0x00, 0x00, 0xc0, 0xbf, 0x00, 0x00, 0xa0, 0x3f], 0x3fc0_0000),
        (Float::F32, [0x01, 0x00, 0x80, 0xff, 0x00, 0x00, 0x80, 0x7f], 0x7f80_0001),
    ] {
        expect(format, &[backend.largest_bits(format, &bytes)], &[largest])?;
    }
    // Added, rounded, then multiplied.
    let mut logits = [1.0; 17];
    let largest = backend.scale_logits(&mut logits, power(-24), 3.0);
    expect("logits", &logits, &[3.0; 17])?;
    expect("the largest", &[largest], &[3.0])?;
    // Two weights of e⁻¹⁷ count only where they are added before the 1: in lane 1, the second after
    // the last 16.
    let mut x = [f32::NEG_INFINITY; 18];
    (x[0], x[1], x[17]) = (0.0, -17.0, -17.0);
    expect("a sum of weights", &[backend.exp_weights(&mut x, 0.0)], &[1.0 + power(-23)])?;
    // Right triangles.
    let mut x = [[3.0, 4.0], [-12.0, 5.0], [8.0, -15.0], [-0.0, -7.0]].as_flattened().repeat(4);
    let angles = Angles { bits: 2, directions: &[[0.0; 2]; 4], tangents: &[] };
    backend.quantize_angles(&AngleTree { dim: 32, levels: &[angles] }, &mut x, &mut [0; 16]);
    expect("radii", &x[..16], &[5.0, 13.0, 17.0, 7.0].repeat(4))
}
