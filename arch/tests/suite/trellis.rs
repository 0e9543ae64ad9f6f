//! Trellis codes: every number of states and levels.

use super::rows::Painted;
use super::{
    Bits, Outcome, Painter, QUERY_COUNTS, ROW_COUNTS, Style, WIDTHS, filled, same, same_changes, same_outputs,
};
use crate::buffer::Buffer;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Arguments;
use octaplex_arch::{Backend, Fit, Float, IntQuery, TrellisCodebook};

const HISTORIES: [u32; 5] = [2, 3, 4, 5, 6];
const LEVELS: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// Codebooks of random centroids, including extremes and equal ones.
fn codebook(painter: &mut Painter, history: u32, levels: usize) -> Buffer<i8> {
    let windows = 2 << history;
    let mut centroids = filled(0, windows * levels);
    for window in 0..windows {
        let mut row: Buffer<i8> = painter
            .integers(if window % 3 == 0 { 12 } else { 127 }, levels)
            .iter()
            .map(|c| *c as i8)
            .collect();
        row.sort_unstable();
        for (code, centroid) in row.iter().enumerate() {
            centroids[code * windows + window] = *centroid;
        }
    }
    centroids[0] = -127;
    centroids[windows * levels - 1] = 127;
    centroids
}

fn books(dims: &[usize], mut check: impl FnMut(&TrellisCodebook, usize, &mut Painter) -> Outcome) -> Outcome {
    for history in HISTORIES {
        for levels in LEVELS {
            for &dim in dims {
                let mut painter = Painter::new(&[history as usize, levels, dim]);
                let centroids = codebook(&mut painter, history, levels);
                check(&TrellisCodebook::new(history, levels, &centroids), dim, &mut painter)?;
            }
        }
    }
    Ok(())
}

pub(super) fn decode_trellis(backends: &[Backend]) -> Outcome {
    books(&WIDTHS, |book, dim, painter| {
        let rows = painter.bytes(3 * book.row_bytes(dim));
        for (row, scale) in rows.chunks_exact(book.row_bytes(dim)).zip([1.0, 0.003_1, -0.0]) {
            let case = format_args!("{} states, {} levels, dim {dim}", book.states(), book.levels());
            same_outputs(backends, case, dim, |backend, out| backend.decode_trellis(book, row, scale, out))?;
        }
        Ok(())
    })
}

/// Every book with a few rows, and every count of rows and queries for some books.
///
/// Rows of 32, 64 and whole units of 128 coordinates have separate kernels. They also run with one
/// query, and a full and a partial block.
fn pages(mut check: impl FnMut(&TrellisCodebook, usize, usize, usize, &mut Painter) -> Outcome) -> Outcome {
    books(&WIDTHS, |book, dim, painter| check(book, dim, 3, 1 + dim % 3, painter))?;
    books(&[32, 64, 128, 256, 512], |book, dim, painter| check(book, dim, 19, 1, painter))?;
    books(&[32, 64, 80, 128], |book, dim, painter| {
        if !matches!(book.states(), 8 | 16) {
            return Ok(());
        }
        for count in ROW_COUNTS {
            for queries in QUERY_COUNTS {
                check(book, dim, count, queries, painter)?;
            }
        }
        Ok(())
    })
}

pub(super) fn score_trellis(backends: &[Backend]) -> Outcome {
    pages(|book, dim, count, queries, painter| {
        let rows = Painted::new(painter, (book.row_bytes(dim), dim), Float::F16, count);
        let values: Vec<Buffer<i16>> = (0..queries).map(|_| painter.integers(127, dim)).collect();
        let queries: Vec<IntQuery> =
            values.iter().map(|values| IntQuery { values, scale: painter.float() }).collect();
        let case = format_args!(
            "{} states, {} levels, dim {dim}, {count} rows, {} queries",
            book.states(),
            book.levels(),
            queries.len()
        );
        same_outputs(backends, case, queries.len() * count, |backend, scores| {
            backend.score_trellis(book, &rows.pages(), 0.013, &queries, scores);
        })
    })
}

pub(super) fn accumulate_trellis(backends: &[Backend]) -> Outcome {
    pages(|book, dim, count, queries, painter| {
        let rows = Painted::new(painter, (book.row_bytes(dim), dim), Float::F16, count);
        let mut weights = painter.floats(Style::Random, queries * count);
        if queries > 1 {
            weights[..count].fill(0.0); // a query to which nothing is added
        }
        // Like weights of attention: of all queries, or of the later ones.
        let signed = [0, count * (queries / 2), queries * count][painter.below(3)];
        weights[signed..].iter_mut().for_each(|weight| *weight = weight.abs());
        rows.leave_out_a_page(painter, &mut weights);
        let mut acc = painter.floats(Style::Wide, queries * dim);
        acc.iter_mut().take(dim).for_each(|a| *a = -0.0);
        let case = format_args!(
            "{} states, {} levels, dim {dim}, {count} rows, {queries} queries",
            book.states(),
            book.levels()
        );
        same_changes(backends, case, &acc, |backend, acc| {
            backend.accumulate_trellis(book, &rows.pages(), 0.013, &weights, acc);
        })
    })
}

/// One vector of z, in units of integer centroids.
fn vector(painter: &mut Painter, kind: usize, dim: usize) -> Buffer<f32> {
    match kind {
        // Ties: halves and integers lie on thresholds and midway between paths.
        0 => painter.integers(254, dim).iter().map(|y| f32::from(*y) / 2.0).collect(),
        1 => filled(0.0, dim),
        2 => painter.floats(Style::OneHot, dim).iter().map(|y| y * 1000.0).collect(),
        3 => painter.floats(Style::Constant, dim).iter().map(|y| y * 40.0).collect(),
        4 => painter.floats(Style::Zeros, dim),
        5 => painter.floats(Style::Subnormal, dim),
        6 => filled(f32::from(painter.integer(127)), dim),
        _ => {
            // Nearly Gaussian.
            (0..dim).map(|_| (0..6).map(|_| painter.float()).sum::<f32>() * 28.0).collect()
        }
    }
}

fn same_paths(
    backends: &[Backend],
    book: &TrellisCodebook,
    dim: usize,
    z: &[f32],
    scales: &[f32],
    case: Arguments,
) -> Outcome {
    let (z, scales) = (Buffer::new(z), Buffer::new(scales));
    let run = |backend: Backend, bytes: &mut [u8], fits: &mut [Fit]| {
        backend.viterbi_encode(book, dim, &z, &scales, bytes, fits);
    };
    let (count, bytes) = (scales.len(), scales.len() * book.row_bytes(dim));
    let mut scratch = filled(0, bytes);
    same(
        backends,
        case,
        &filled(f32::from_paint(3), 2 * count),
        &filled(f32::from_paint(9), 2 * count),
        |backend, out| {
            let mut fits = vec![Fit::default(); count];
            run(backend, &mut scratch.clone(), &mut fits);
            for (out, fit) in out.as_chunks_mut::<2>().0.iter_mut().zip(fits) {
                *out = [fit.correlation, fit.energy];
            }
        },
    )?;
    // The bytes of the scales do not change. The others do not depend on their previous values.
    let mut other = filled(0xff, bytes);
    for (row, other) in
        scratch.chunks_exact_mut(book.row_bytes(dim)).zip(other.chunks_exact_mut(book.row_bytes(dim)))
    {
        row[..2].fill(0x5a);
        other[..2].fill(0x5a);
    }
    same(backends, case, &scratch, &other, |backend, bytes| {
        run(backend, bytes, &mut vec![Fit::default(); count]);
    })
}

pub(super) fn viterbi_encode(backends: &[Backend]) -> Outcome {
    books(&[32, 80, 128, 576], |book, dim, painter| {
        // Every count with one codebook. With the others, one vector, and one full and one partial
        // batch.
        let counts: &[usize] = match (book.states(), book.levels(), dim) {
            (8, 4, 80 | 128) => &[0, 1, 2, 5, 6, 7, 8, 9, 15, 16, 17, 33],
            (_, _, 32) => &[3, 25],
            (..=8, ..) => &[1, 17],
            _ => &[2],
        };
        for &count in counts {
            let mut z = Vec::new();
            let mut scales = Vec::new();
            for _ in 0..count {
                let kind = painter.below(12);
                let scale = [1.0, 0.25, 1.7][painter.below(3)];
                z.extend(vector(painter, kind, dim).iter().map(|y| y / scale));
                scales.push(scale);
            }
            let case = format_args!(
                "{} states, {} levels, dim {dim}, {count} vectors",
                book.states(),
                book.levels()
            );
            same_paths(backends, book, dim, &z, &scales, case)?;
        }
        Ok(())
    })
}
