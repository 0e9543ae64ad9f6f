//! What parts of an attention leave behind, and how parts add up: the online softmax.

use crate::backend::Kernels;

/// The largest logit of a query, and the sum of exp(logit - max) over what it saw. The weighted sums of rows that belong to
/// it lie elsewhere, relative to the same maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Total {
    pub(crate) max: f32,
    pub(crate) sum: f32,
}

impl Total {
    /// Of a query that has seen nothing.
    pub(crate) const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Raises the largest logit to the largest of some more.
    pub(crate) fn raise(&mut self, logit: f32) {
        self.max = larger(logit, self.max);
    }

    /// Turns logits into weights, relative to the largest of all, and adds them up. Says whether any is not zero.
    pub(crate) fn weigh(&mut self, backend: Kernels, logits: &mut [f32]) -> bool {
        if self.max == f32::NEG_INFINITY {
            logits.fill(0.0);
            return false;
        }
        let sum = backend.exp_weights(logits, self.max);
        self.sum += sum;
        sum > 0.0
    }

    /// Adds another part: its total, and its weighted sums to ours.
    pub(crate) fn add<const N: usize>(
        &mut self,
        backend: Kernels,
        other: Self,
        sums: [(&mut [f32], &[f32]); N],
    ) {
        if other.max == f32::NEG_INFINITY {
            return;
        }
        if self.max == f32::NEG_INFINITY {
            *self = other;
            sums.into_iter().for_each(|(ours, others)| ours.copy_from_slice(others));
            return;
        }
        let max = larger(other.max, self.max);
        let mut factors = [self.max, other.max];
        let _ = backend.exp_weights(&mut factors, max);
        let [old, new] = factors;
        *self = Self { max, sum: self.sum * old + other.sum * new };
        for (ours, others) in sums {
            ours.iter_mut().zip(others).for_each(|(ours, other)| *ours = *ours * old + other * new);
        }
    }

    /// The factor from weighted sums to the output, with a sink logit that takes weight and gives nothing. A query that
    /// sees nothing gives zeros.
    pub(crate) fn scale(self, backend: Kernels, sink: Option<f32>) -> f32 {
        let (mut total, mut factor) = (self.sum, 1.0);
        if let Some(sink) = sink {
            let mut factors = [self.max, sink];
            let _ = backend.exp_weights(&mut factors, larger(sink, self.max));
            factor = factors[0];
            total = total * factor + factors[1];
        }
        if total > 0.0 { factor / total } else { 0.0 }
    }
}

/// The first of two numbers if it is larger.
fn larger(x: f32, y: f32) -> f32 {
    if x > y { x } else { y }
}
