//! Blocks of integers that follow their scale.

use super::paint::{Painter, STYLES, Style};
use super::{Outcome, same_outputs};
use octaplex_arch::{Backend, Scaled};

const LAYOUTS: [Scaled; 3] = [Scaled::Bytes, Scaled::Fives, Scaled::Nibbles];
const COUNTS: [usize; 6] = [0, 1, 2, 3, 4, 18];

pub(super) fn quantize_scaled(backends: &[Backend]) -> Outcome {
    for layout in LAYOUTS {
        for blocks in COUNTS {
            for style in STYLES {
                let mut painter = Painter::new(&[blocks]);
                let mut x = painter.floats(style, 32 * blocks);
                for (i, x) in x.iter_mut().enumerate() {
                    match (style, i / 32 % 4) {
                        // Scales that f16 holds, and scales whose reciprocals overflow.
                        (Style::Wide, 0) => *x = (*x).clamp(-6e4, 6e4),
                        (Style::Wide, 1) => *x = f32::from_bits(x.to_bits() & 0x80ff_ffff),
                        // Halves, largest magnitudes of both signs, and zeros of both signs.
                        (Style::Random, 1) => *x = (*x * 8.0) as i32 as f32,
                        (Style::Random, 2) => {
                            *x = if i % 32 == 5 { 127.0 } else { (*x * 255.0) as i32 as f32 / 2.0 }
                        }
                        (Style::Random, 3) => *x *= 0.0,
                        _ => {}
                    }
                }
                let case = format_args!("{layout:?}, {blocks} blocks, {style:?}");
                // Bytes are unspecified if a scale is not finite, so they are compared only otherwise.
                same_outputs(backends, case, 1 + layout.bytes() * blocks, |backend, bytes| {
                    let (finite, bytes) = bytes.split_at_mut(1);
                    finite[0] = u8::from(backend.quantize_scaled(layout, &x, bytes));
                    if finite[0] == 0 {
                        bytes.fill(0);
                    }
                })?;
            }
        }
    }
    Ok(())
}

pub(super) fn decode_scaled(backends: &[Backend]) -> Outcome {
    for layout in LAYOUTS {
        for blocks in COUNTS {
            let mut painter = Painter::new(&[blocks, layout.bytes()]);
            let mut bytes = painter.bytes(layout.bytes() * blocks);
            for block in bytes.chunks_exact_mut(layout.bytes()) {
                block[..2].copy_from_slice(&painter.finite_f16());
            }
            same_outputs(
                backends,
                format_args!("{layout:?}, {blocks} blocks"),
                32 * blocks,
                |backend, out| {
                    backend.decode_scaled(layout, &bytes, out);
                },
            )?;
        }
    }
    Ok(())
}
