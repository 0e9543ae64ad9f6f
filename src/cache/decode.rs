//! Rows from a page: what a rollback puts back into the window, and what a chunk decodes to.

use super::page::{Head, Layout, Side, in_page};
use super::{center, norms};
use crate::Error;
use crate::backend::Kernels;
use crate::codec::Codec;
use crate::codec::scratch::with_scratch;
use core::ops::Range;
use octaplex_arch::{Float, MAX_DIM};

/// Decodes pages of a layer.
pub(crate) struct Decoder<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) backend: Kernels,
    pub(crate) codecs: (&'a dyn Codec, &'a dyn Codec),
}

impl Decoder<'_> {
    /// Decodes tokens of a head of a page, \[tokens]\[width], with the balance and the prefix centre that it was encoded
    /// with, in f16, or nothing.
    ///
    /// # Errors
    /// [`Error::Corrupt`], whose block is counted within the page.
    pub(crate) fn decode(
        &self,
        head: &Head,
        (balance, prefix): (&[u8], &[u8]),
        tokens: Range<usize>,
        keys: &mut [f32],
        values: &mut [f32],
    ) -> Result<(), Error> {
        let Self { layout, backend, codecs: (key_codec, value_codec) } = *self;
        let at = (tokens, layout.page);
        decode_side(key_codec, &layout.keys, (head.keys, head.key_norms), at.clone(), keys)?;
        decode_side(value_codec, &layout.values, (head.values, head.value_norms), at, values)?;
        let mut other = [0.0; MAX_DIM];
        let other = &mut other[..layout.key_dim];
        if !head.centre.is_empty() {
            center::read(backend, key_codec, &layout.keys, head.centre, other)?;
            add(keys, other);
        }
        if !prefix.is_empty() {
            backend.decode_floats(Float::F16, prefix, other);
            add(keys, other);
        }
        if !balance.is_empty() {
            center::read_balance(backend, balance, other);
            if layout.is_graded() {
                keys.chunks_exact_mut(layout.key_dim).for_each(|key| center::unsort(key, other));
            }
            center::multiply(keys, other);
        }
        Ok(())
    }
}

/// rows ← rows + centre.
fn add(rows: &mut [f32], centre: &[f32]) {
    for row in rows.chunks_exact_mut(centre.len()) {
        row.iter_mut().zip(centre).for_each(|(x, c)| *x += c);
    }
}

/// Decodes rows of a page of `count` tokens, from the rows and their norms. Of pages that are more than their blocks, all rows or
/// one, which is then a sum with one weight that is not 0.
fn decode_side(
    codec: &dyn Codec,
    side: &Side,
    (bytes, norms): (&[u8], &[u8]),
    (tokens, count): (Range<usize>, usize),
    x: &mut [f32],
) -> Result<(), Error> {
    let dim = codec.dim();
    for grade in side.grades(codec) {
        let (planes, bytes) = (grade.planes, &bytes[grade.rows.clone()]);
        with_scratch(count, |each| {
            norms::decode(planes.backend(), &norms[grade.norms.clone()], each)?;
            for (token, x) in tokens.clone().zip(x.chunks_exact_mut(dim)) {
                let x = &mut x[grade.channels.clone()];
                planes.decode_rotated(&bytes[token * grade.row..][..grade.row + 2], each[token], x)?;
                planes.rotation().inverse(planes.backend(), x);
            }
            Ok(())
        })?;
    }
    if side.is_lean() {
        return Ok(());
    }
    if bytes.len() == count * side.block {
        let blocks = bytes.chunks_exact(side.block).enumerate().skip(tokens.start);
        return blocks.zip(x.chunks_exact_mut(dim)).try_for_each(|((token, block), x)| {
            codec.decode(block, x).map_err(|error| in_page(error, token, 1))
        });
    }
    if tokens == (0..count) {
        return codec.decode_page(bytes, x);
    }
    let mut weights = [0.0; norms::MAX_TOKENS];
    weights[tokens.start] = 1.0;
    x.fill(0.0);
    codec.accumulate(&weights[..count], bytes, x)?;
    codec.finish(x);
    Ok(())
}
