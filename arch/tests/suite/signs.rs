//! Planes of signs.

use super::paint::{Painter, STYLES, Style};
use super::{Outcome, QUERY_COUNTS, ROW_COUNTS, WIDTHS, filled, same_changes, same_outputs};
use crate::buffer::Buffer;
use alloc::vec::Vec;
use octaplex_arch::{Backend, Float, MAX_WEIGHT, SignQuery, SignRows};

pub(super) fn pack_signs(backends: &[Backend]) -> Outcome {
    for n in (0..20).map(|n| 8 * n).chain(WIDTHS) {
        for style in STYLES {
            let x = Painter::new(&[n]).floats(style, n);
            same_outputs(backends, format_args!("{n} values, {style:?}"), n / 8, |backend, plane| {
                backend.pack_signs(&x, plane);
            })?;
        }
    }
    Ok(())
}

pub(super) fn unpack_signs(backends: &[Backend]) -> Outcome {
    for n in (0..20).map(|n| 8 * n).chain(WIDTHS) {
        let plane = Painter::new(&[n]).bytes(n / 8);
        for scale in [1.0, -0.003_1, -0.0, 1e-42] {
            same_outputs(backends, format_args!("{n} values, scale {scale}"), n, |backend, out| {
                backend.unpack_signs(&plane, scale, out);
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
            let mut bytes = painter.bytes(stride * count);
            for row in bytes.chunks_exact_mut(stride) {
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
            run(&SignRows { bytes: &bytes, stride, dim, at, outer }, queries, &mut painter)?;
        }
    }
    Ok(())
}

pub(super) fn score_signs(backends: &[Backend]) -> Outcome {
    sign_rows(|rows, queries, painter| {
        let values: Vec<Buffer<i8>> = (0..queries)
            .map(|_| match painter.below(6) {
                0 => filled(127, rows.dim),
                1 => filled(-127, rows.dim),
                _ => painter.integers(127, rows.dim).iter().map(|v| *v as i8).collect(),
            })
            .collect();
        let queries: Vec<SignQuery> =
            values.iter().map(|values| SignQuery { values, scale: painter.float() / 100.0 }).collect();
        let count = rows.count();
        let start = painter.floats(Style::Wide, queries.len() * count);
        let case = format_args!("dim {}, {count} rows, {} queries", rows.dim, queries.len());
        same_changes(backends, case, &start, |backend, scores| {
            backend.score_signs(rows, 0.007_3, &queries, scores);
        })
    })
}

pub(super) fn accumulate_signs(backends: &[Backend]) -> Outcome {
    sign_rows(|rows, queries, painter| {
        let count = rows.count();
        let weights: Buffer<f32> = match painter.below(4) {
            0 => filled(MAX_WEIGHT, queries * count),
            1 => filled(1e-35, queries * count),
            _ => painter.floats(Style::Random, queries * count),
        };
        let start = painter.floats(Style::Random, queries * rows.dim);
        let case = format_args!("dim {}, {count} rows, {queries} queries", rows.dim);
        same_changes(backends, case, &start, |backend, acc| {
            backend.accumulate_signs(rows, 0.007_3, &weights, acc);
        })
    })
}
