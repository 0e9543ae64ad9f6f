//! Small blocks.

use super::paint::{Painter, STYLES, Style};
use super::{Outcome, QUERY_COUNTS, ROW_COUNTS, same_changes, same_outputs};
use crate::buffer::Buffer;
use alloc::format;
use alloc::vec::Vec;
use octaplex_arch::{BLOCK_BYTES, Backend, BlockBook};

const BOOKS: [BlockBook; 2] = [
    BlockBook::TwoBits { centroids: [-1.51, -0.4528, 0.4528, 1.51], thresholds: [-0.9814, 0.0, 0.9814] },
    BlockBook::ThreeBits {
        centroids: [-2.25, -1.5, -0.75, -0.25, 0.125, 0.5, 1.0, 2.0],
        thresholds: [-1.75, -1.0, -0.5, 0.0, 0.5, 1.0, 1.75],
    },
];

pub(super) fn quantize_blocks(backends: &[Backend]) -> Outcome {
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
                let case = format_args!("{} levels, {blocks} blocks, {style:?}", book.largest());
                same_outputs(backends, case, BLOCK_BYTES * blocks, |backend, bytes| {
                    backend.quantize_blocks(book, &x, bytes);
                })?;
            }
        }
    }
    Ok(())
}

/// Returns powers of two without std.
trait PowiExact {
    fn powi_exact(self, exponent: i32) -> f32;
}

impl PowiExact for f32 {
    fn powi_exact(self, exponent: i32) -> f32 {
        f32::from_bits(((exponent + 127) as u32) << 23)
    }
}

/// Blocks of hostile bytes with finite scales.
fn small_blocks(painter: &mut Painter, blocks: usize) -> Buffer<u8> {
    let mut bytes = painter.bytes(BLOCK_BYTES * blocks);
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        block[12..].copy_from_slice(&painter.finite_f16());
    }
    bytes
}

/// One scale that is not finite, at any place. Other bytes that look like it are allowed.
pub(super) fn blocks_are_finite(backends: &[Backend]) -> Outcome {
    for blocks in [0, 1, 2, 31, 32, 33, 64, 100] {
        let clean = small_blocks(&mut Painter::new(&[blocks]), blocks);
        let check = |bytes: &[u8], finite: bool, at: usize| {
            let wrong = |backend: &&Backend| backend.blocks_are_finite(bytes) != finite;
            match backends.iter().find(wrong) {
                None => Ok(()),
                Some(wrong) => Err(format!("{}, {blocks} blocks, scale {at}: {}", wrong.name(), !finite)),
            }
        };
        check(&clean, true, blocks)?;
        for at in 0..blocks {
            for high in [0x7c, 0x7f, 0xfc, 0xff] {
                let mut bytes = clean.clone();
                bytes[at * BLOCK_BYTES + 13] = high;
                check(&bytes, false, at)?;
            }
        }
    }
    Ok(())
}

pub(super) fn decode_blocks(backends: &[Backend]) -> Outcome {
    for book in &BOOKS {
        for blocks in [0, 1, 2, 3, 4, 5, 16, 18] {
            let bytes = small_blocks(&mut Painter::new(&[blocks]), blocks);
            same_outputs(backends, format_args!("{blocks} blocks"), 32 * blocks, |backend, out| {
                backend.decode_blocks(book, &bytes, out);
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

pub(super) fn score_blocks(backends: &[Backend]) -> Outcome {
    for (book, dim, count, queries) in block_shapes() {
        let mut painter = Painter::new(&[dim, count, queries]);
        let bytes = small_blocks(&mut painter, dim / 32 * count);
        let rows: Vec<Buffer<f32>> = (0..queries).map(|_| painter.floats(Style::Wide, dim)).collect();
        let rows: Vec<&[f32]> = rows.iter().map(|row| &row[..]).collect();
        let case = format_args!("dim {dim}, {count} rows, {queries} queries, {}", book.largest());
        same_outputs(backends, case, queries * count, |backend, scores| {
            backend.score_blocks(book, dim, &bytes, &rows, scores);
        })?;
    }
    Ok(())
}

pub(super) fn accumulate_blocks(backends: &[Backend]) -> Outcome {
    for (book, dim, count, queries) in block_shapes() {
        let mut painter = Painter::new(&[dim, count, queries]);
        let bytes = small_blocks(&mut painter, dim / 32 * count);
        let weights = painter.floats(Style::Random, queries * count);
        let start = painter.floats(Style::Wide, queries * dim);
        let case = format_args!("dim {dim}, {count} rows, {queries} queries, {}", book.largest());
        same_changes(backends, case, &start, |backend, acc| {
            backend.accumulate_blocks(book, dim, &bytes, &weights, acc);
        })?;
    }
    Ok(())
}
