//! Sums, extremes, rotations and products of plain vectors.

use super::paint::{Painter, STYLES, Style};
use super::{Outcome, WIDTHS, lengths, same_changes, same_outputs};
use crate::buffer::Buffer;
use octaplex_arch::Backend;

pub(crate) fn dot(backends: &[Backend]) -> Outcome {
    for n in lengths() {
        for style in STYLES {
            let mut painter = Painter::new(&[n]);
            let (a, b) = (painter.floats(style, n), painter.floats(Style::Wide, n));
            same_outputs(backends, format_args!("{n} values, {style:?}"), 1, |backend, out| {
                out[0] = backend.dot(&a, &b);
            })?;
        }
    }
    Ok(())
}

pub(crate) fn add(backends: &[Backend]) -> Outcome {
    for n in lengths() {
        for style in STYLES {
            let mut painter = Painter::new(&[n]);
            let (x, y) = (painter.floats(style, n), painter.floats(style, n));
            same_outputs(backends, format_args!("{n} values, {style:?}"), n, |backend, out| {
                out.copy_from_slice(&y);
                backend.add(&x, out);
            })?;
        }
    }
    Ok(())
}

pub(crate) fn max_abs(backends: &[Backend]) -> Outcome {
    for n in lengths() {
        for style in STYLES {
            let x = Painter::new(&[n]).floats(style, n);
            same_outputs(backends, format_args!("{n} values, {style:?}"), 1, |backend, out| {
                out[0] = backend.max_abs(&x);
            })?;
        }
    }
    Ok(())
}

pub(crate) fn min_max(backends: &[Backend]) -> Outcome {
    for n in lengths() {
        for style in STYLES {
            for seed in 0..4 {
                let x = Painter::new(&[n, seed]).floats(style, n);
                let case = format_args!("{n} values, {style:?}, seed {seed}");
                same_outputs(backends, case, 2, |backend, out| {
                    (out[0], out[1]) = backend.min_max(&x);
                })?;
            }
        }
    }
    Ok(())
}

pub(crate) fn rotate(backends: &[Backend]) -> Outcome {
    rotations(backends, Backend::rotate)
}

pub(crate) fn rotate_inverse(backends: &[Backend]) -> Outcome {
    rotations(backends, Backend::rotate_inverse)
}

fn rotations(backends: &[Backend], kernel: fn(Backend, &mut [f32], &[u32], f32)) -> Outcome {
    const SMALL: [usize; 20] =
        [1, 2, 4, 8, 12, 16, 20, 24, 28, 40, 48, 56, 144, 224, 288, 320, 384, 448, 640, 1024];
    for n in SMALL.into_iter().chain(WIDTHS) {
        for style in STYLES {
            let mut painter = Painter::new(&[n]);
            let x = painter.floats(style, n);
            let signs: Buffer<u32> = (0..n).map(|_| painter.next() as u32 & 0x8000_0000).collect();
            for scale in [1.0, 0.088_388_35, -3.7] {
                let case = format_args!("width {n}, {style:?}, scale {scale}");
                same_changes(backends, case, &x, |backend, x| kernel(backend, x, &signs, scale))?;
            }
        }
    }
    Ok(())
}

pub(crate) fn multiply_columns(backends: &[Backend]) -> Outcome {
    for n in [1, 2, 7, 15, 16, 17, 31, 33, 64, 80, 128, 192] {
        for style in STYLES {
            let mut painter = Painter::new(&[n]);
            let (columns, x) = (painter.floats(Style::Wide, n * n), painter.floats(style, n));
            same_outputs(backends, format_args!("width {n}, {style:?}"), n, |backend, y| {
                backend.multiply_columns(&columns, &x, y);
            })?;
        }
    }
    Ok(())
}
