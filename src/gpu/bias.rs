//! Biases: numbers that are added to logits.

use super::{Error, Layer, refuse};
use crate::Attend;
use alloc::vec::Vec;
use core::ops::Range;

impl Layer {
    /// Checks biases of `query_heads` query heads on some sequences, and copies them to the GPU.
    ///
    /// They lie sequence after sequence, each as in [`Layer::attend`](crate::cache::Layer::attend).
    pub(super) fn set_bias(
        &mut self,
        options: &Attend,
        query_heads: usize,
        of: Range<usize>,
    ) -> Result<(), Error> {
        let bias = options.bias;
        if bias.is_empty() {
            return Ok(());
        }
        let positions: Vec<usize> = self.sequences[of.clone()].iter().map(|held| held.state.next).collect();
        let rows = check(bias, &positions, query_heads, self.config.layer)?;
        if bias.len() >= 1 << 32 {
            return refuse("a GPU takes fewer than 2^32 biases in a call");
        }
        Ok(self.paged.set_bias(bias, rows, of)?)
    }
}

/// Checks biases and returns how many rows each sequence has: 1, or `query_heads`.
fn check(bias: &[f32], positions: &[usize], query_heads: usize, layer: u32) -> Result<usize, crate::Error> {
    let total: usize = positions.iter().sum();
    let rows = if bias.len() == total { 1 } else { query_heads };
    crate::Error::expect_length("bias values", total.saturating_mul(rows), bias.len())?;
    let mut first = 0;
    for count in positions {
        let mine = &bias[first..first + rows * count];
        first += mine.len();
        if let Some(at) = mine.iter().position(|x| x.is_nan() || *x >= crate::attention::MAX_BIAS) {
            let (head, channel, finite) = (at / count, Some(at % count), mine[at].is_finite());
            return Err(crate::Error::Row { layer, what: "bias", head, row: 0, channel, finite });
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Error;

    #[test]
    fn biases_are_of_positions_or_of_heads_and_positions() {
        let hides = [f32::NEG_INFINITY; 24];
        assert_eq!(check(&hides[..6], &[4, 0, 2], 4, 0), Ok(1));
        assert_eq!(check(&hides, &[4, 0, 2], 4, 0), Ok(4));
        assert_eq!(check(&hides[..6], &[6], 1, 0), Ok(1));
        for (len, expected) in [(5, 24), (12, 24), (23, 24)] {
            let actual = len;
            let refused = Error::Length { what: "bias values", expected, actual };
            assert_eq!(check(&hides[..len], &[4, 0, 2], 4, 0), Err(refused));
        }
        for (value, finite) in [(f32::NAN, false), (f32::INFINITY, false), (1e38, true)] {
            // Head 1 and position 1 of the last sequence.
            let mut bias = hides;
            bias[19] = value;
            let refused = Error::Row { layer: 7, what: "bias", head: 1, row: 0, channel: Some(1), finite };
            assert_eq!(check(&bias, &[4, 0, 2], 4, 7), Err(refused));
        }
    }
}
