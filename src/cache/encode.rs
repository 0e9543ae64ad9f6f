//! A page from its rows: what closes behind the window, and what a chunk is made of.

use super::page::{self, HeadMut, Layout};
use super::{center, norms};
use crate::backend::Kernels;
use crate::codec::planes::encode_channels;
use crate::codec::scratch::{bytes_of, with_scratch};
use crate::codec::{Codec, MAX_BLOCK_BYTES, read_f16};
use crate::{Error, Role};

/// Encodes a page that closes.
pub(crate) struct Encoder<'a> {
    /// The layer's number, for errors.
    pub(crate) layer: u32,
    pub(crate) layout: &'a Layout,
    pub(crate) backend: Kernels,
    pub(crate) codecs: (&'a dyn Codec, &'a dyn Codec),
    /// Writes the page's keys or values of a head, \[tokens]\[width].
    pub(crate) gather: &'a (dyn Fn(Role, usize, &mut [f32]) + Sync),
    /// Position of its first token.
    pub(crate) start: usize,
}

impl Encoder<'_> {
    /// All heads; with the feature `rayon`, at once where `rows` has room for that.
    pub(crate) fn encode(
        &self,
        page: &mut [u8],
        balances: &[f32],
        prefixes: &[f32],
        rows: &mut [f32],
    ) -> Result<(), Error> {
        let layout = self.layout;
        let header = &mut page[..layout.header];
        header.fill(0);
        header[..8].copy_from_slice(&(self.start as u64).to_le_bytes());
        let encode = |number: usize, head: HeadMut, scratch: &mut [f32]| {
            let at = number * layout.key_dim..(number + 1) * layout.key_dim;
            self.encode_head(number, head, &balances[at.clone()], &prefixes[at], scratch)
        };
        let one = layout.encode_scratch();
        #[cfg(feature = "rayon")]
        if layout.heads > 1 && rows.len() >= layout.heads * one {
            use rayon::prelude::*;
            let heads: alloc::vec::Vec<_> = layout.heads_mut(page).enumerate().collect();
            let heads = heads.into_par_iter().zip(rows.par_chunks_mut(one));
            heads.try_for_each(|((number, head), rows)| encode(number, head, rows))?;
            layout.pack(page);
            return Ok(());
        }
        for (number, head) in layout.heads_mut(page).enumerate() {
            encode(number, head, &mut rows[..one])?;
        }
        layout.pack(page);
        Ok(())
    }

    fn encode_head(
        &self,
        number: usize,
        head: HeadMut,
        balance: &[f32],
        prefix: &[f32],
        scratch: &mut [f32],
    ) -> Result<(), Error> {
        let (layout, backend) = (self.layout, self.backend);
        let (scratch, blocks) = scratch.split_at_mut(layout.page_of_rows());
        let rows = &mut scratch[..layout.page * layout.key_dim];
        (self.gather)(Role::Keys, number, rows);
        if !layout.balance(number).is_empty() {
            center::divide(rows, balance);
        }
        if layout.is_graded() {
            center::sort(rows, balance);
        }
        if !layout.prefix(number).is_empty() {
            center::subtract(rows, prefix);
        }
        if !head.centre.is_empty() {
            let stored = center::store(backend, self.codecs.0, &layout.keys, rows, head.centre);
            stored.map_err(|error| page_error(error, self.layer, "keys", number, (self.start, None)))?;
        }
        let (key_codec, value_codec) = self.codecs;
        let keys = (&mut *head.keys, head.key_norms);
        let keys = self.encode_side("keys", number, (key_codec, &layout.keys), rows, blocks, keys)?;
        let rows = &mut scratch[..layout.page * layout.value_dim];
        (self.gather)(Role::Values, number, rows);
        let values = (&mut *head.values, head.value_norms);
        let values =
            self.encode_side("values", number, (value_codec, &layout.values), rows, blocks, values)?;
        for (length, bytes) in [keys, values].into_iter().zip(head.lengths.as_chunks_mut::<4>().0) {
            *bytes = (length as u32).to_le_bytes();
        }
        Ok(())
    }

    /// A page of blocks; or, of rows of planes, these and their norms. Gives how many bytes the rows take.
    fn encode_side(
        &self,
        what: &'static str,
        head: usize,
        (codec, side): (&dyn Codec, &page::Side),
        rows: &[f32],
        blocks: &mut [f32],
        (bytes, norms): (&mut [u8], &mut [u8]),
    ) -> Result<usize, Error> {
        if !side.is_lean() {
            let encoded = codec.encode_page(rows, bytes);
            return encoded.map_err(|error| self.error_in_page(error, what, head, codec, rows));
        }
        let (tokens, dim) = (self.layout.page, codec.dim());
        let mut rest = bytes;
        for grade in side.grades(codec) {
            let planes;
            (planes, rest) = rest.split_at_mut(tokens * grade.row);
            let blocks = bytes_of(blocks, tokens * (grade.row + 2));
            let encoded = encode_channels(grade.planes, grade.channels, rows, dim, blocks);
            encoded.map_err(|error| self.error_in_page(error, what, head, codec, rows))?;
            with_scratch(tokens, |each| {
                let blocks = blocks.chunks_exact(grade.row + 2);
                for ((block, row), norm) in blocks.zip(planes.chunks_exact_mut(grade.row)).zip(&mut *each) {
                    *norm = read_f16(block).to_f32();
                    row.copy_from_slice(&block[2..]);
                }
                norms::encode(self.backend, each, &mut norms[grade.norms.clone()])
            })?;
        }
        Ok(side.rows)
    }

    /// The error of a page, which says the row that it comes from, if it is one.
    fn error_in_page(
        &self,
        error: Error,
        what: &'static str,
        head: usize,
        codec: &dyn Codec,
        rows: &[f32],
    ) -> Error {
        let mut block = [0; MAX_BLOCK_BYTES];
        let block = &mut block[..codec.block_bytes()];
        let row = rows.chunks_exact(codec.dim()).position(|row| codec.encode(row, block).is_err());
        page_error(error, self.layer, what, head, (self.start, row))
    }
}

/// Where an error of a codec is that knows only its rows.
pub(crate) fn page_error(
    error: Error,
    layer: u32,
    what: &'static str,
    head: usize,
    (position, row): (usize, Option<usize>),
) -> Error {
    match error {
        Error::Overflow | Error::NonFinite { .. } => Error::Page { layer, what, head, position, row },
        other => other,
    }
}
