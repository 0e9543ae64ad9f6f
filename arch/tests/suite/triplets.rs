//! Checks of the kernels for octahedral directions.

use super::paint::{Painter, STYLES, Style};
use super::rows::Painted;
use super::{Outcome, QUERY_COUNTS, ROW_COUNTS, WIDTHS, filled, same_changes, same_outputs};
use crate::buffer::Buffer;
use alloc::format;
use alloc::vec::Vec;
use octaplex_arch::{Backend, Float, IntQuery, MAX_WEIGHT, Search, TripletLayout};

/// A codebook of random centroids, and the tables that follow from it.
struct Codebook {
    dim: usize,
    scale: Float,
    bits: (u8, u8, u8),
    coordinates: Buffer<f32>,
    lengths: Buffer<f32>,
    directions: Buffer<[i8; 4]>,
    planes: [Buffer<u8>; 3],
    radii: Buffer<f32>,
    rest: Buffer<i16>,
}

impl Codebook {
    fn new(painter: &mut Painter, dim: usize, direction_bits: u8, radius_bits: u8) -> Self {
        let half = 1usize << (direction_bits - 1);
        // One in each of `half` equal parts of (0, 1), multiples of 2⁻¹⁵.
        let part = 32768 / half;
        let upper: Vec<f32> =
            (0..half).map(|k| (k * part + 1 + painter.below(part - 1)) as f32 / 32768.0).collect();
        let coordinates: Buffer<f32> = upper.iter().rev().map(|c| -c).chain(upper.iter().copied()).collect();
        let unfold = |xi: f32, eta: f32| {
            let z = (1.0 - xi.abs()) - eta.abs();
            let folded = [(1.0 - eta.abs()).copysign(xi), (1.0 - xi.abs()).copysign(eta), z];
            if z < 0.0 { folded } else { [xi, eta, z] }
        };
        // 1/√(x² + y² + z²) by Newton's method, approximately. It only has to be the same for all
        // backends.
        let length = |[x, y, z]: [f32; 3]| {
            (0..6).fold(1.3f32, |length, _| {
                length * (1.5 - 0.5 * ((x * x + y * y) + z * z) * (length * length))
            })
        };
        let lengths = (0..half * half).map(|k| length(unfold(upper[k % half], upper[k / half]))).collect();
        let codes = if direction_bits <= 5 { 4 * half * half } else { 0 };
        let directions: Buffer<[i8; 4]> = (0..codes)
            .map(|code| {
                let point = unfold(coordinates[code % (2 * half)], coordinates[code / (2 * half)]);
                let [x, y, z] = point.map(|c| (c * length(point) * 127.0) as i8);
                [x, y, z, 0]
            })
            .collect();
        let code_of = |k: usize| match direction_bits {
            5 => (k / 16 + 16) * 32 + k % 16 + 16,
            4 => 128 + k,
            _ => k % codes,
        };
        let entries = [128, 256, 0][usize::from(direction_bits.saturating_sub(4)).min(2)];
        let planes = [0, 1, 2].map(|c| {
            (0..entries).map(|k| (i16::from(directions[code_of(k)][c]) + 128) as u8).collect::<Buffer<_>>()
        });
        let count = 1usize << radius_bits;
        let radii = (0..count).map(|k| (k as f32 + 0.5 + painter.float() * 0.4) / count as f32).collect();
        let field_bits = 2 * direction_bits + radius_bits;
        let rest_bits = if painter.below(3) == 0 { 0 } else { field_bits.div_ceil(3) };
        let rest = match rest_bits {
            0 => filled(0, 0),
            bits => {
                let mut rest = painter.integers(if bits <= 4 { 127 } else { 2047 }, 1 << bits);
                rest.sort_unstable();
                rest
            }
        };
        let scale = if painter.below(4) == 0 { Float::F32 } else { Float::F16 };
        let bits = (direction_bits, radius_bits, rest_bits);
        Self { dim, scale, bits, coordinates, lengths, directions, planes, radii, rest }
    }

    fn layout(&self) -> TripletLayout<'_> {
        let [x, y, z] = &self.planes;
        TripletLayout {
            dim: self.dim,
            scale: self.scale,
            direction_bits: self.bits.0,
            radius_bits: self.bits.1,
            rest_bits: self.bits.2,
            coordinates: &self.coordinates,
            lengths: &self.lengths,
            directions: &self.directions,
            planes: [x, y, z],
            radii: &self.radii,
            rest: &self.rest,
            rest_scale: 0.003_7,
        }
    }

    fn name(&self) -> alloc::string::String {
        format!("dim {}, bits {:?}", self.dim, self.bits)
    }

    fn page(&self, painter: &mut Painter, count: usize) -> Painted {
        let len = self.layout().header_bytes() + self.layout().stream_bytes();
        Painted::new(painter, (len, self.dim), self.scale, count)
    }
}

fn all_bits() -> impl Iterator<Item = (u8, u8)> {
    (1..=7).flat_map(|direction| (0..=6).map(move |radius| (direction, radius)))
}

fn dims() -> impl Iterator<Item = usize> {
    [1, 2, 3, 4, 5, 16, 33, 47, 49, 63].into_iter().chain(WIDTHS)
}

pub(super) fn encode_triplets(backends: &[Backend]) -> Outcome {
    for (direction, radius) in all_bits() {
        for dim in dims() {
            let mut painter = Painter::new(&[direction.into(), radius.into(), dim]);
            let book = Codebook::new(&mut painter, dim, direction, radius);
            let layout = book.layout();
            for style in STYLES {
                for search in [Search::Nearest, Search::Bracket, Search::Neighbours, Search::All] {
                    if search == Search::All && (dim > 48 || direction > 3) {
                        continue;
                    }
                    let mut x = painter.floats(style, dim);
                    // On a centroid or a threshold, on the fold, on the edges of the octants.
                    for t in x.chunks_exact_mut(3).step_by(3) {
                        let c = layout.coordinates[painter.below(layout.coordinates.len())];
                        let d = layout.coordinates[painter.below(layout.coordinates.len())];
                        match painter.below(6) {
                            0 => t.copy_from_slice(&[c, d, 1.0 - c.abs() - d.abs()]),
                            1 => t.copy_from_slice(&[c, 1.0 - c.abs(), -0.0]),
                            2 => t.copy_from_slice(&[-0.0, d, -1.0]),
                            3 => t.copy_from_slice(&[c, c, d]),
                            4 => t.copy_from_slice(&[c, -0.0, 0.0]),
                            _ => t.fill(0.0),
                        }
                    }
                    let scale = [1.0, 0.731][painter.below(2)];
                    let case = format!("{}, {style:?}, {search:?}", book.name());
                    same_outputs(
                        backends,
                        format_args!("{case}"),
                        layout.stream_bytes(),
                        |backend, stream| {
                            backend.encode_triplets(&layout, search, &x, scale, stream);
                        },
                    )?;
                }
            }
        }
    }
    Ok(())
}

pub(super) fn decode_triplets(backends: &[Backend]) -> Outcome {
    for (direction, radius) in all_bits() {
        for dim in dims() {
            let mut painter = Painter::new(&[direction.into(), radius.into(), dim]);
            let book = Codebook::new(&mut painter, dim, direction, radius);
            let layout = book.layout();
            for bytes in [painter.bytes(layout.stream_bytes()), filled(0xff, layout.stream_bytes())] {
                for scale in [1.0, -7.3e-5, 3e12] {
                    let case = format!("{}, scale {scale}", book.name());
                    same_outputs(backends, format_args!("{case}"), dim, |backend, out| {
                        backend.decode_triplets(&layout, &bytes, scale, out);
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// (direction bits, radius bits, dim, rows, queries): all bits and widths with a few rows, then
/// every count for some.
fn shapes(highest: u8) -> impl Iterator<Item = (u8, u8, usize, usize, usize)> {
    let bits = move || all_bits().filter(move |(direction, _)| *direction <= highest);
    let few = bits()
        .flat_map(|(direction, radius)| dims().map(move |dim| (direction, radius, dim, 3, 1 + dim % 3)));
    let many =
        bits().filter(|(direction, radius)| direction % 2 == radius % 2).flat_map(|(direction, radius)| {
            ROW_COUNTS.into_iter().flat_map(move |rows| {
                QUERY_COUNTS
                    .into_iter()
                    .map(move |queries| (direction, radius, [80, 128][rows % 2], rows, queries))
            })
        });
    few.chain(many)
}

pub(super) fn score_triplets(backends: &[Backend]) -> Outcome {
    for (direction, radius, dim, count, queries) in shapes(5) {
        let mut painter = Painter::new(&[direction.into(), radius.into(), dim, count, queries]);
        let book = Codebook::new(&mut painter, dim, direction, radius);
        let page = book.page(&mut painter, count);
        let values: Vec<Buffer<i16>> = (0..queries)
            .map(|_| match painter.below(6) {
                0 => filled(127, dim),
                1 => filled(-127, dim),
                _ => painter.integers(127, dim),
            })
            .collect();
        let queries: Vec<IntQuery> =
            values.iter().map(|values| IntQuery { values, scale: painter.float() / 100.0 }).collect();
        let case = format!("{}, {count} rows, {} queries", book.name(), queries.len());
        same_outputs(backends, format_args!("{case}"), queries.len() * count, |backend, scores| {
            backend.score_triplets(&book.layout(), &page.rows(), &queries, scores);
        })?;
    }
    Ok(())
}

pub(super) fn score_triplets_floats(backends: &[Backend]) -> Outcome {
    for (direction, radius, dim, count, queries) in shapes(7) {
        let mut painter = Painter::new(&[direction.into(), radius.into(), dim, count, queries]);
        let book = Codebook::new(&mut painter, dim, direction, radius);
        let page = book.page(&mut painter, count);
        let style = STYLES[painter.below(STYLES.len())];
        let queries: Vec<Buffer<f32>> = (0..queries).map(|_| painter.floats(style, dim)).collect();
        let queries: Vec<&[f32]> = queries.iter().map(|query| &query[..]).collect();
        let case = format!("{}, {count} rows, {} queries, {style:?}", book.name(), queries.len());
        same_outputs(backends, format_args!("{case}"), queries.len() * count, |backend, scores| {
            backend.score_triplets_floats(&book.layout(), &page.rows(), &queries, scores);
        })?;
    }
    Ok(())
}

pub(super) fn accumulate_triplets(backends: &[Backend]) -> Outcome {
    for (direction, radius, dim, count, queries) in shapes(7) {
        let mut painter = Painter::new(&[direction.into(), radius.into(), dim, count, queries]);
        let book = Codebook::new(&mut painter, dim, direction, radius);
        let page = book.page(&mut painter, count);
        let mut weights = Vec::with_capacity(queries * count);
        for _ in 0..queries {
            match painter.below(4) {
                0 => weights.extend_from_slice(&painter.floats(Style::Zeros, count)),
                1 => weights.extend(painter.floats(Style::Random, count).iter().map(|w| w * MAX_WEIGHT)),
                _ => weights.extend_from_slice(&painter.floats(Style::Random, count)),
            }
        }
        let weights = Buffer::new(&weights);
        let acc = painter.floats(Style::Random, queries * dim);
        let case = format!("{}, {count} rows, {queries} queries", book.name());
        same_changes(backends, format_args!("{case}"), &acc, |backend, acc| {
            backend.accumulate_triplets(&book.layout(), &page.rows(), &weights, acc);
        })?;
    }
    Ok(())
}
