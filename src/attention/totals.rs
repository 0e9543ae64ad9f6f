//! The online softmax: what a part of an attention leaves behind, and how parts are added.
//!
//! Two parts may have different largest logits. To add them, both sums are first brought to the
//! larger one:
//!
//! ```text
//! m = max(m₁, m₂)     l = l₁·exp(m₁ - m) + l₂·exp(m₂ - m)     outputs likewise
//! ```

use crate::backend::Kernels;

/// The largest logit of a query, and the sum of exp(logit - max) over the tokens it saw.
///
/// The weighted sums of rows lie elsewhere. They are relative to the same maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Total {
    pub(crate) max: f32,
    pub(crate) sum: f32,
}

impl Total {
    /// The total of a query that has seen nothing.
    pub(crate) const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Raises the maximum to `logit` if that is larger.
    pub(crate) fn raise(&mut self, logit: f32) {
        self.max = larger(logit, self.max);
    }

    /// Turns logits into weights relative to the maximum, and adds them to the sum. Returns whether
    /// any weight is above zero.
    pub(crate) fn weigh(&mut self, backend: Kernels, logits: &mut [f32]) -> bool {
        if self.max == f32::NEG_INFINITY {
            logits.fill(0.0);
            return false;
        }
        let sum = backend.exp_weights(logits, self.max);
        self.sum += sum;
        sum > 0.0
    }

    /// Adds the total of another part, and the weighted sums of that part to ours.
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

    /// Returns the factor that turns weighted sums into the output. It is 0 for a query that saw
    /// nothing.
    ///
    /// A sink logit takes part in the normalisation, but has no value row.
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

/// Returns the larger number, or `y` if `x` is NaN.
fn larger(x: f32, y: f32) -> f32 {
    if x > y { x } else { y }
}
