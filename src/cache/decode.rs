//! Decodes rows of a page, for rollbacks and chunks.

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
    /// Decodes the keys and values of some tokens of a page's head, \[tokens]\[width].
    ///
    /// `balance` and `prefix` are the balance and the prefix centre that the page was encoded with, in f16. Each may be
    /// empty. The steps reverse those of [`Encoder`](super::encode::Encoder):
    ///
    /// ```text
    ///  k̂ = (codec's row + page's centre + prefix centre) * balance
    /// ```
    ///
    /// # Errors
    /// [`Error::Corrupt`]. Its block is counted within the page.
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
