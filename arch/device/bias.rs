//! What is added to logits.

use super::driver::Buffer;
use super::failure::Failure;
use super::paged::Paged;
use alloc::vec::Vec;

/// Biases of all sequences on the card.
#[derive(Debug)]
pub(super) struct Biases {
    values: Buffer<f32>,
    /// Of each sequence, where its first value is.
    starts: Buffer<u64>,
    /// Whether each query head has its own.
    of_heads: bool,
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Bias {
    values: u64,
    starts: u64,
    of_heads: u64,
}

impl Paged {
    /// Biases of the next call: of each sequence as many rows as there are query heads, or one for all of them, each as long as the
    /// sequence has positions.
    ///
    /// # Errors
    /// What the driver refuses, [`Failure::Memory`].
    ///
    /// # Panics
    /// For another number of sequences, and other lengths.
    pub fn set_bias(&mut self, values: &[f32], positions: &[usize], rows: usize) -> Result<(), Failure> {
        let total: usize = positions.iter().sum();
        assert!(positions.len() == self.shape.sequences && values.len() == rows * total);
        let mut next = 0;
        let starts = positions.iter().map(|count| {
            let start = next;
            next += (rows * count) as u64;
            start
        });
        let starts: Vec<u64> = starts.collect();
        let fits = |held: &&mut Biases| held.values.len() >= values.len();
        let held = match self.bias.as_mut().filter(fits) {
            Some(held) => held,
            None => self.bias.insert(Biases {
                values: Buffer::new(&self.device, values.len())?,
                starts: Buffer::new(&self.device, starts.len())?,
                of_heads: false,
            }),
        };
        held.of_heads = rows > 1;
        held.values.write(0, values)?;
        held.starts.write(0, &starts)
    }

    pub(super) fn bias(&self) -> Bias {
        let of = |held: &Biases| Bias {
            values: held.values.address(),
            starts: held.starts.address(),
            of_heads: held.of_heads.into(),
        };
        self.bias.as_ref().map_or(Bias { values: 0, starts: 0, of_heads: 0 }, of)
    }
}
