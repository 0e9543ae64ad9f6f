//! Rows from a page: what a rollback puts back into the window, and what a chunk decodes to.

use super::layout::{Head, Layout};
use crate::Error;
use crate::backend::Kernels;
use crate::codec::Codec;
use crate::page::{add_floats, read_balance};
use core::ops::Range;
use octaplex_arch::MAX_DIM;

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
        layout.keys.of(key_codec, backend).decode(&head.keys, tokens.clone(), keys)?;
        layout.values.of(value_codec, backend).decode(&head.values, tokens, values)?;
        add_floats(backend, keys, layout.key_dim, prefix);
        if !balance.is_empty() {
            let mut scales = [0.0; MAX_DIM];
            let scales = &mut scales[..layout.key_dim];
            read_balance(backend, balance, scales);
            layout.balance.undo(keys, scales);
        }
        Ok(())
    }
}
