//! Trees of polar coordinates.

use super::paint::{Painter, STYLES, Style};
use super::{Outcome, QUERY_COUNTS, filled, same_changes, same_outputs};
use crate::buffer::Buffer;
use alloc::vec;
use alloc::vec::Vec;
use octaplex_arch::{AngleTree, Angles, Backend};

/// Bits, directions, tangents.
type Book = (u8, Buffer<[f32; 2]>, Buffer<f32>);

/// Codebooks of some bits for each level. The numbers need not be cosines.
struct Tree {
    dim: usize,
    books: Vec<Book>,
}

impl Tree {
    fn new(painter: &mut Painter, dim: usize, bits: &[u8]) -> Self {
        let book = |(level, &bits): (usize, &u8)| {
            let codes = 1usize << bits;
            let tangents = if level == 0 { (codes / 4).max(1) } else { codes } - 1;
            let tangents = (1..=tangents).map(|k| k as f32 / (tangents + 1 - k) as f32).collect();
            let directions = painter.floats(Style::Random, 2 * codes).as_chunks().0.iter().copied().collect();
            (bits, directions, tangents)
        };
        Self { dim, books: bits.iter().enumerate().map(book).collect() }
    }

    fn run<T>(&self, run: impl FnOnce(&AngleTree) -> T) -> T {
        let levels: Vec<Angles> = self
            .books
            .iter()
            .map(|(bits, directions, tangents)| Angles { bits: *bits, directions, tangents })
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

pub(super) fn quantize_angles(backends: &[Backend]) -> Outcome {
    for (dim, bits) in trees() {
        let mut painter = Painter::new(&[dim, usize::from(bits[0])]);
        let tree = Tree::new(&mut painter, dim, &bits);
        for style in STYLES {
            let mut x = painter.floats(style, dim);
            // On thresholds and axes, in all quadrants.
            if style == Style::Random {
                x.iter_mut().step_by(2).for_each(|x| *x = (*x * 4.0) as i32 as f32);
                x.iter_mut().skip(1).step_by(4).for_each(|x| *x = -((*x * 4.0) as i32 as f32));
            }
            // Squares of a page's values fit into f32.
            x.iter_mut().for_each(|x| *x = (*x).clamp(-1e15, 1e15));
            tree.run(|tree| {
                let case = format_args!("dim {dim}, bits {bits:?}, {style:?}");
                same_outputs(backends, case, tree.codes(), |backend, codes| {
                    backend.quantize_angles(tree, &mut x.clone(), codes);
                })?;
                same_outputs(backends, case, tree.roots(), |backend, roots| {
                    let mut x = x.clone();
                    backend.quantize_angles(tree, &mut x, &mut filled(0, tree.codes()));
                    roots.copy_from_slice(&x[..roots.len()]);
                })
            })?;
        }
    }
    Ok(())
}

/// Rows of hostile bytes with finite roots.
fn angle_rows(painter: &mut Painter, tree: &AngleTree, count: usize) -> Buffer<u8> {
    let mut bytes = painter.bytes(tree.row_bytes() * count);
    for row in bytes.chunks_exact_mut(tree.row_bytes()) {
        for root in row[..2 * tree.roots()].chunks_exact_mut(2) {
            root.copy_from_slice(&painter.finite_f16());
        }
    }
    bytes
}

pub(super) fn decode_angles(backends: &[Backend]) -> Outcome {
    for (dim, bits) in trees() {
        let mut painter = Painter::new(&[dim, usize::from(bits[0])]);
        Tree::new(&mut painter, dim, &bits).run(|tree| {
            let bytes = angle_rows(&mut painter, tree, 1);
            same_outputs(backends, format_args!("dim {dim}, bits {bits:?}"), dim, |backend, out| {
                backend.decode_angles(tree, &bytes, out);
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

pub(super) fn score_angles(backends: &[Backend]) -> Outcome {
    for (dim, bits, count, queries) in angle_shapes() {
        let mut painter = Painter::new(&[dim, count, queries]);
        Tree::new(&mut painter, dim, &bits).run(|tree| {
            let bytes = angle_rows(&mut painter, tree, count);
            let rows: Vec<Buffer<f32>> = (0..queries).map(|_| painter.floats(Style::Wide, dim)).collect();
            let rows: Vec<&[f32]> = rows.iter().map(|row| &row[..]).collect();
            let case = format_args!("dim {dim}, bits {bits:?}, {count} rows, {queries} queries");
            same_outputs(backends, case, queries * count, |backend, scores| {
                backend.score_angles(tree, &bytes, &rows, scores);
            })
        })?;
    }
    Ok(())
}

pub(super) fn accumulate_angles(backends: &[Backend]) -> Outcome {
    for (dim, bits, count, queries) in angle_shapes() {
        let mut painter = Painter::new(&[dim, count, queries]);
        Tree::new(&mut painter, dim, &bits).run(|tree| {
            let bytes = angle_rows(&mut painter, tree, count);
            let weights = painter.floats(Style::Random, queries * count);
            let start = painter.floats(Style::Wide, queries * dim);
            let case = format_args!("dim {dim}, bits {bits:?}, {count} rows, {queries} queries");
            same_changes(backends, case, &start, |backend, acc| {
                backend.accumulate_angles(tree, &bytes, &weights, acc);
            })
        })?;
    }
    Ok(())
}
