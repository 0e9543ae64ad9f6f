//! Biases: numbers that are added to logits.

use super::driver::Buffer;
use super::failure::Failure;
use super::held::Biases;
use super::layout::Bias;
use super::paged::{Attention, Paged};
use alloc::vec::Vec;
use core::ops::Range;

impl Paged {
    /// Copies the biases of the next call, which is for sequences `of`, to the GPU.
    ///
    /// Each sequence has `rows` rows: one, or one for each query head. A row has one value for each
    /// position that the sequence has now.
    ///
    /// # Errors
    /// Errors of the driver; [`Failure::Memory`].
    ///
    /// # Panics
    /// Panics for another length.
    pub fn set_bias(&mut self, values: &[f32], rows: usize, of: Range<usize>) -> Result<(), Failure> {
        let mut next = 0;
        let starts = self.positions[of.clone()].iter().map(|count| {
            let start = next;
            next += rows as u64 * count;
            start
        });
        let starts: Vec<u64> = starts.collect();
        assert!(rows > 0 && values.len() as u64 == next);
        let fits =
            |held: &&mut Biases| held.values.len() >= values.len() && held.starts.len() >= starts.len();
        let held = match self.bias.as_mut().filter(fits) {
            Some(held) => held,
            None => self.bias.insert(Biases {
                values: Buffer::new(&self.device, values.len())?,
                starts: Buffer::new(&self.device, starts.len())?,
                positions: Vec::new(),
                rows: 0,
            }),
        };
        // If a write fails, these biases match no call.
        held.positions.clear();
        held.values.write(0, values)?;
        held.starts.write(0, &starts)?;
        (held.positions, held.rows) = (self.positions[of].to_vec(), rows);
        Ok(())
    }

    /// Returns what a call reads: the biases for the positions of these sequences, or nothing.
    pub(super) fn bias(&self, attention: &Attention, query_heads: usize, of: &Range<usize>) -> Bias {
        let held = self.bias.as_ref().filter(|_| attention.biased);
        let Some(held) = held else {
            assert!(!attention.biased, "biases come before a call that reads them");
            return Bias { values: 0, starts: 0, of_heads: 0 };
        };
        assert!(held.positions == self.positions[of.clone()] && (held.rows == 1 || held.rows == query_heads));
        Bias {
            values: held.values.address(),
            starts: held.starts.address(),
            of_heads: (held.rows > 1).into(),
        }
    }
}
