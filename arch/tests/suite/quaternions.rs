//! Chunks as products of quaternions.

use super::paint::{Painter, STYLES, Style};
use super::{Outcome, QUERY_COUNTS, ROW_COUNTS, filled, same_changes, same_outputs, slices};
use crate::buffer::Buffer;
use alloc::vec::Vec;
use octaplex_arch::Backend;
use octaplex_arch::quaternion::{
    ChunkLayout, INDEX_CELLS, INDEX_PADDING, QuaternionIndex, QuaternionSet, RadiusSteps, UNITS,
    quaternion_ints,
};

const CHUNKS: [usize; 15] = [1, 2, 3, 4, 5, 8, 12, 15, 16, 17, 20, 32, 33, 48, 144];
const MEMBERS: [usize; 11] = [1, 2, 3, 5, 24, 48, 64, 65, 96, 192, 255];

pub(super) fn chunk_norms(backends: &[Backend]) -> Outcome {
    for chunks in CHUNKS {
        for style in STYLES {
            let x = Painter::new(&[chunks]).floats(style, 4 * chunks);
            same_outputs(backends, format_args!("{chunks} chunks, {style:?}"), chunks, |backend, norms| {
                backend.chunk_norms(&x, norms);
            })?;
        }
    }
    Ok(())
}

/// Unit quaternions (to f32's precision). Equal ones, opposites and neighbours in the group give
/// ties.
struct Set {
    members: Buffer<[f32; 4]>,
    ints: Buffer<[i8; 4]>,
}

impl Set {
    fn new(painter: &mut Painter, count: usize) -> Self {
        let mut members: Vec<[f32; 4]> = Vec::new();
        while members.len() < count {
            let mut q = [0.0; 4].map(|_: f32| painter.float());
            let square: f32 = q.iter().map(|c| c * c).sum();
            if !(0.01..=1.0).contains(&square) {
                continue;
            }
            // Newton's step for 1/sqrt: core has no square root.
            let mut scale = 1.0;
            for _ in 0..12 {
                scale *= 1.5 - 0.5 * square * scale * scale;
            }
            q = q.map(|c| c * scale);
            if let Some(last) = members.last().filter(|_| painter.below(8) == 0) {
                q = [
                    *last,
                    last.map(|c| -c),
                    UNITS[painter.below(24)],
                    [last[1], -last[0], last[3], -last[2]],
                ][painter.below(4)];
            }
            members.push(q);
        }
        Self { ints: members.iter().map(|q| quaternion_ints(*q)).collect(), members: Buffer::new(&members) }
    }

    fn view(&self) -> QuaternionSet<'_> {
        QuaternionSet { members: &self.members, ints: &self.ints, index: None }
    }

    /// Lists of an index that excludes nothing: every cell has all members.
    fn every_member(&self) -> Buffer<u8> {
        let all = (0..self.members.len()).map(|s| s as u8);
        all.chain([0; INDEX_PADDING]).collect()
    }
}

pub(super) fn encode_quaternions(backends: &[Backend]) -> Outcome {
    for members in MEMBERS {
        let mut painter = Painter::new(&[members]);
        let set = Set::new(&mut painter, members);
        let (cells, lists) = ([members as u32; INDEX_CELLS], set.every_member());
        let index = QuaternionIndex::new(members, &cells, &lists);
        for chunks in CHUNKS {
            for (style, index) in STYLES.into_iter().zip([None, Some(index)].into_iter().cycle()) {
                let mut x = painter.floats(style, 4 * chunks);
                for chunk in x.as_chunks_mut::<4>().0 {
                    // A product itself, the middle of two members, a plane of symmetry, or zeros.
                    let (a, b) = (set.members[painter.below(members)], set.members[painter.below(members)]);
                    match painter.below(12) {
                        0 => *chunk = a,
                        1 => *chunk = core::array::from_fn(|i| a[i] + b[i]),
                        2 => *chunk = [chunk[0], chunk[0], -chunk[0], chunk[3]],
                        3 => *chunk = [chunk[0], 0.0, -0.0, 0.0],
                        4 => *chunk = [0.0; 4],
                        _ => {}
                    }
                }
                let mut norms = filled(0.0, chunks);
                Backend::SCALAR.chunk_norms(&x, &mut norms);
                if chunks > 2 {
                    norms[painter.below(chunks)] = 0.0;
                }
                let norms = &norms;
                let max = norms.iter().fold(0.0, |max: f32, norm| max.max(*norm));
                for limit in [3, 15, 63, 255] {
                    let factor = if max > 1e-30 { f32::from(limit) / max } else { 1.0 };
                    let case = format_args!("{members} members, {chunks} chunks, {style:?}, limit {limit}");
                    let encode = |backend: Backend, codes: &mut [u16], radii: &mut [u8]| {
                        backend.encode_quaternions(
                            &QuaternionSet { index, ..set.view() },
                            &x,
                            norms,
                            RadiusSteps { factor, limit },
                            codes,
                            radii,
                        );
                    };
                    same_outputs(backends, case, chunks, |backend, codes| {
                        encode(backend, codes, &mut filled(0, chunks));
                    })?;
                    same_outputs(backends, case, chunks, |backend, radii| {
                        encode(backend, &mut filled(0, chunks), radii);
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// All kinds of member counts, every packing and radius with a few chunks, and every number of
/// chunks for some.
fn layouts() -> impl Iterator<Item = ChunkLayout> {
    let all = MEMBERS.into_iter().flat_map(|members| {
        [5, 17, 32].into_iter().flat_map(move |chunks| {
            (2..=6).flat_map(move |radius_bits| {
                [false, true].map(move |radix| ChunkLayout {
                    chunks,
                    members: members as u8,
                    radius_bits,
                    radix,
                    flags: radius_bits % 2 == 1,
                })
            })
        })
    });
    let more =
        CHUNKS.into_iter().flat_map(|chunks| {
            [(24, true), (96, true), (96, false), (192, true), (192, false)]
                .map(|(members, radix)| ChunkLayout { chunks, members, radius_bits: 4, radix, flags: false })
        });
    all.chain(more).filter(ChunkLayout::is_valid)
}

pub(super) fn pack_chunks(backends: &[Backend]) -> Outcome {
    for layout in layouts() {
        let mut painter = Painter::new(&[layout.chunks, layout.members.into()]);
        let random: Buffer<u16> =
            (0..layout.chunks).map(|_| painter.below(layout.codes() as usize) as u16).collect();
        let highest = filled((layout.codes() - 1) as u16, layout.chunks);
        for codes in [random, highest] {
            let radii: Buffer<u8> =
                painter.bytes(layout.chunks).iter().map(|radius| radius & layout.radius_limit()).collect();
            let start = painter.bytes(layout.row_bytes());
            same_changes(backends, format_args!("{layout:?}"), &start, |backend, row| {
                backend.pack_chunks(&layout, &codes, &radii, row);
            })?;
        }
    }
    Ok(())
}

/// Rows of hostile bytes with finite scales.
fn rows(painter: &mut Painter, layout: &ChunkLayout, count: usize) -> Buffer<u8> {
    let mut bytes = painter.bytes(count * layout.row_bytes());
    for row in bytes.chunks_exact_mut(layout.row_bytes()) {
        row[..2].copy_from_slice(&painter.finite_f16());
        match painter.below(8) {
            0 => row[2..].fill(0xff),
            1 => row[2..].fill(0),
            _ => {}
        }
    }
    bytes
}

pub(super) fn decode_quaternions(backends: &[Backend]) -> Outcome {
    for layout in layouts() {
        let mut painter = Painter::new(&[layout.chunks, layout.members.into()]);
        let set = Set::new(&mut painter, layout.members.into());
        let bytes = rows(&mut painter, &layout, 3);
        for row in bytes.chunks_exact(layout.row_bytes()) {
            same_outputs(backends, format_args!("{layout:?}"), 4 * layout.chunks, |backend, out| {
                backend.decode_quaternions(&layout, &set.view(), row, out);
            })?;
        }
    }
    Ok(())
}

/// A few rows and queries for every layout, every count for some.
fn shapes() -> impl Iterator<Item = (ChunkLayout, usize, usize)> {
    let few = layouts().map(|layout| (layout, 3, 2));
    let many = layouts().filter(|layout| layout.chunks == 20 && layout.radius_bits == 4).flat_map(|layout| {
        ROW_COUNTS
            .into_iter()
            .flat_map(move |rows| QUERY_COUNTS.into_iter().map(move |queries| (layout, rows, queries)))
    });
    let tails = layouts().filter(|layout| layout.chunks == 32 && layout.radius_bits == 4);
    few.chain(many).chain(tails.flat_map(|layout| [63, 65, 130].map(|rows| (layout, rows, 2))))
}

pub(super) fn score_quaternions(backends: &[Backend]) -> Outcome {
    for (layout, count, queries) in shapes() {
        let mut painter = Painter::new(&[layout.chunks, layout.members.into(), count, queries]);
        let set = Set::new(&mut painter, layout.members.into());
        let bytes = rows(&mut painter, &layout, count);
        let width = 4 * layout.chunks;
        let queries: Vec<Buffer<f32>> = (0..queries)
            .map(|i| {
                painter.floats([Style::Random, Style::Wide, Style::Subnormal, Style::OneHot][i % 4], width)
            })
            .collect();
        let queries = slices(&queries);
        let case = format_args!("{layout:?}, {count} rows, {} queries", queries.len());
        same_outputs(backends, case, queries.len() * count, |backend, scores| {
            backend.score_quaternions(&layout, &set.view(), &bytes, &queries, scores);
        })?;
    }
    Ok(())
}

pub(super) fn accumulate_quaternions(backends: &[Backend]) -> Outcome {
    for (layout, count, queries) in shapes() {
        let mut painter = Painter::new(&[layout.chunks, layout.members.into(), count, queries]);
        let set = Set::new(&mut painter, layout.members.into());
        let bytes = rows(&mut painter, &layout, count);
        let weights = painter.floats(Style::Random, queries * count);
        let acc = painter.floats(Style::Wide, queries * 4 * layout.chunks);
        let case = format_args!("{layout:?}, {count} rows, {queries} queries");
        same_changes(backends, case, &acc, |backend, acc| {
            backend.accumulate_quaternions(&layout, &set.view(), &bytes, &weights, acc);
        })?;
    }
    Ok(())
}
