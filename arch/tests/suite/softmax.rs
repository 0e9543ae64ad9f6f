//! Scores to weights.

use super::paint::{Painter, STYLES, Style};
use super::{Outcome, lengths, same_changes, same_outputs};
use crate::buffer::Buffer;
use alloc::format;
use alloc::vec::Vec;
use octaplex_arch::{Backend, Float};

const LONG: [usize; 2] = [64, 4096];

/// The kernel changes its slice and returns a number. First the slice is compared, then the number.
fn same_both(backends: &[Backend], start: &[f32], run: impl Fn(Backend, &mut [f32]) -> f32) -> Outcome {
    let case = format_args!("{} values", start.len());
    same_changes(backends, case, start, |backend, x| {
        let _ = run(backend, x);
    })?;
    same_outputs(backends, case, 1, |backend, out| out[0] = run(backend, &mut Buffer::new(start)))
}

pub(super) fn scale_logits(backends: &[Backend]) -> Outcome {
    for n in lengths().chain(LONG) {
        for style in STYLES {
            let x = Painter::new(&[n]).floats(style, n);
            for (offset, scale) in [(0.0, 1.0), (0.37, 0.088_388_35), (-3.0e5, -2.5)] {
                same_both(backends, &x, |backend, x| backend.scale_logits(x, offset, scale))?;
            }
        }
    }
    Ok(())
}

pub(super) fn soft_cap(backends: &[Backend]) -> Outcome {
    for n in lengths().chain(LONG) {
        for style in STYLES {
            let x: Vec<f32> = Painter::new(&[n]).floats(style, n).iter().map(|x| x * 100.0).collect();
            for cap in [1.0, 50.0] {
                same_changes(backends, format_args!("{n} values, {style:?}"), &x, |backend, x| {
                    backend.soft_cap(x, cap);
                })?;
            }
        }
    }
    Ok(())
}

pub(super) fn largest_bits(backends: &[Backend]) -> Outcome {
    for n in lengths().chain(LONG) {
        for format in [Float::F16, Float::Bf16, Float::F32] {
            let bytes = Painter::new(&[n]).bytes(n * format.bytes());
            same_outputs(backends, format_args!("{n} of {format:?}"), 1, |backend, out| {
                out[0] = f32::from_bits(backend.largest_bits(format, &bytes));
            })?;
        }
    }
    Ok(())
}

pub(super) fn exp_weights(backends: &[Backend]) -> Outcome {
    for n in lengths().chain(LONG) {
        for style in STYLES {
            let mut painter = Painter::new(&[n]);
            let mut x = painter.floats(style, n);
            if style == Style::Random {
                x.iter_mut().for_each(|x| *x *= 60.0);
            }
            let max = x.iter().fold(0.0f32, |max, x| max.max(*x));
            x.iter_mut().step_by(7).for_each(|x| *x = f32::NEG_INFINITY);
            same_both(backends, &x, |backend, x| backend.exp_weights(x, max))?;
        }
    }
    Ok(())
}

pub(crate) fn sqrt(backends: &[Backend]) -> Outcome {
    for style in STYLES {
        let x = Painter::new(&[64]).floats(style, 64);
        same_outputs(backends, format_args!("{style:?}"), 64, |backend, out| {
            for (out, x) in out.iter_mut().zip(x.iter()) {
                *out = backend.sqrt(x.abs());
            }
        })?;
    }
    // Rounded to nearest: x lies between the squares of the midpoints to the root's neighbours.
    // These squares are exact in f64.
    for x in [f32::from_bits(1), 9.0f32.next_down(), 9.0, 9.0f32.next_up(), 2.0, f32::MAX] {
        for backend in backends {
            let root = backend.sqrt(x);
            let halfway = |neighbour: f32| (f64::from(root) + f64::from(neighbour)) / 2.0;
            let (below, above) = (halfway(root.next_down()), halfway(root.next_up()));
            if !(below * below <= x.into() && f64::from(x) <= above * above) {
                return Err(format!("{}: {root} is not the root of {x}", backend.name()));
            }
        }
    }
    Ok(())
}
