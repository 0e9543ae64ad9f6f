//! Encodes a page, when it closes or for a chunk.

use super::layout::{HeadMut, Layout};
use crate::Error;
use crate::backend::Kernels;
use crate::codec::{Codec, MAX_BLOCK_BYTES};
use crate::page::{PageFormat, PartMut, Shape, subtract};
use crate::random::Role;

/// Encodes one page of a layer.
pub(crate) struct Encoder<'a> {
    /// The layer's number, for errors.
    pub(crate) layer: u32,
    pub(crate) layout: &'a Layout,
    pub(crate) backend: Kernels,
    pub(crate) codecs: (&'a dyn Codec, &'a dyn Codec),
    /// Writes the page's keys or values of a head, \[tokens]\[width].
    pub(crate) gather: &'a (dyn Fn(Role, usize, &mut [f32]) + Sync),
    /// Position of the page's first token.
    pub(crate) start: usize,
}

impl Encoder<'_> {
    /// Encodes all heads into `page`, with their balances and prefix centres, \[heads]\[key width].
    ///
    /// `rows` is scratch memory for one head. With the feature `rayon` and memory for all heads, threads encode heads
    /// at once. Each key passes through these steps:
    ///
    /// ```text
    ///  key / balance - prefix centre - page's centre ─► codec's row
    /// ```
    ///
    /// # Errors
    /// [`Error::Page`] if the codec cannot hold a row, and other errors of the codec.
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
        mut head: HeadMut,
        balance: &[f32],
        prefix: &[f32],
        rows: &mut [f32],
    ) -> Result<(), Error> {
        let layout = self.layout;
        let (key_codec, value_codec) = self.codecs;
        let keys = &mut rows[..layout.page * layout.key_dim];
        (self.gather)(Role::Keys, number, keys);
        layout.balance.apply(keys, balance);
        if !layout.prefix(number).is_empty() {
            subtract(keys, prefix);
        }
        let keys = self.encode_side("keys", number, (key_codec, &layout.keys), keys, &mut head.keys)?;
        let values = &mut rows[..layout.page * layout.value_dim];
        (self.gather)(Role::Values, number, values);
        let side = (value_codec, &layout.values);
        let values = self.encode_side("values", number, side, values, &mut head.values)?;
        for (length, bytes) in [keys, values].into_iter().zip(head.lengths.as_chunks_mut::<4>().0) {
            *bytes = (length as u32).to_le_bytes();
        }
        Ok(())
    }

    /// Encodes the keys or values of a head, and returns the number of bytes of their rows.
    fn encode_side(
        &self,
        what: &'static str,
        head: usize,
        (codec, shape): (&dyn Codec, &Shape),
        rows: &mut [f32],
        part: &mut PartMut,
    ) -> Result<usize, Error> {
        let format = shape.of(codec, self.backend);
        let format: &dyn PageFormat = &*format;
        if !part.centre.is_empty() {
            let taken = format.take_centre(rows, part.centre);
            taken.map_err(|error| page_error(error, self.layer, what, head, (self.start, None)))?;
        }
        format.encode(rows, part).map_err(|error| self.error_in_page(error, what, head, codec, rows))
    }

    /// Returns the error of a page. It names the row at fault, if a single row is.
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

/// Adds layer, head and page to an error of a codec, which knows only rows.
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
