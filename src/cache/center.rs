//! Centres of keys, and the balance between their channels.
//!
//! Balance: s_c = √((σ_c + 10⁻⁶)/(rms_c + 10⁻⁶)), σ_c the deviation of key channel c around its page's mean, rms_c of
//! channel c over the queries given to `calibrate`; clamped to [2⁻⁸, 2⁸] and rounded to f16. A rotation spreads the
//! error of the balanced keys evenly over channels, so that the error of scores is Σ(rms·s)²·Σ(σ/s)², least at this s.
//! Fewer than 32 queries say too little; in their place stands rms_c = √σ_c, thus s_c = σ_c^¼. (Of s = σ^e on the keys of
//! two models, e = ¼ took the error to .92 and .88 of an unbalanced one's, with 1.06 for the worst of 32 heads; ½ to .96
//! and .84, with 1.24. Their queries: .60 and .61, none above .9.)
//!
//! A head whose channels differ by no more than chance keeps ones: where the gain, Σrms²·Σσ²/(Σrms·σ)², is below
//! 1 + 4v, v = 1/2k + 1/2q for k keys and q queries (1/8k without) being what as many samples of equal channels show. It is
//! then as if it were not balanced, bit for bit.
//!
//! Where keys divided by s could be longer than 2¹⁴, which f16 hardly holds, s_c is at least max|k_c|·√D/2¹⁴.
//! Keys are divided by it and queries multiplied, before the codec's rotation. It is decided once, from the sequence alone
//! or from what `calibrate` is given.

use crate::Error;
use crate::backend::Kernels;
use half::f16;
use octaplex_arch::{Float, MAX_DIM};

/// μ = f16(Σ rows / n), the sum in f32, rows ascending.
pub(crate) fn store_mean(rows: &[f32], dim: usize, bytes: &mut [u8]) -> Result<(), Error> {
    let mut sums = [0.0f32; MAX_DIM];
    for row in rows.chunks_exact(dim) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += x;
        }
    }
    let count = (rows.len() / dim).max(1) as f32;
    for (sum, bytes) in sums.iter().zip(bytes.as_chunks_mut::<2>().0) {
        let mean = f16::from_f32(sum / count);
        if !mean.is_finite() {
            return Err(Error::Overflow);
        }
        *bytes = mean.to_le_bytes();
    }
    Ok(())
}

/// rows ← rows - centre.
pub(crate) fn subtract(backend: Kernels, rows: &mut [f32], centre: &[u8]) {
    let mut values = [0.0; MAX_DIM];
    let values = &mut values[..centre.len() / 2];
    backend.decode_floats(Float::F16, centre, values);
    for row in rows.chunks_exact_mut(values.len()) {
        for (x, c) in row.iter_mut().zip(&*values) {
            *x -= c;
        }
    }
}

/// rows ← rows / balance.
pub(crate) fn divide(rows: &mut [f32], balance: &[f32]) {
    for row in rows.chunks_exact_mut(balance.len()) {
        for (x, s) in row.iter_mut().zip(balance) {
            *x /= s;
        }
    }
}

/// rows ← rows · balance.
pub(crate) fn multiply(rows: &mut [f32], balance: &[f32]) {
    for row in rows.chunks_exact_mut(balance.len()) {
        for (x, s) in row.iter_mut().zip(balance) {
            *x *= s;
        }
    }
}

/// Squares of keys around their pages' means.
pub(crate) struct Spread {
    squares: [f64; MAX_DIM],
    /// The largest magnitude of each channel.
    largest: [f32; MAX_DIM],
    count: usize,
}

/// Added to deviations.
const SMALLEST: f64 = 1e-6;

/// Queries that are enough to go by.
const ENOUGH: f64 = 32.0;

/// The longest that keys may be once they are divided by the balance.
const LONGEST: f64 = 16384.0;

impl Spread {
    pub(crate) fn new() -> Self {
        Self { squares: [0.0; MAX_DIM], largest: [0.0; MAX_DIM], count: 0 }
    }

    /// Adds one page.
    pub(crate) fn add(&mut self, rows: &[f32], dim: usize) {
        let count = rows.len() / dim;
        let mut sums = [0.0; MAX_DIM];
        for row in rows.chunks_exact(dim) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += f64::from(*x);
            }
            for (largest, x) in self.largest.iter_mut().zip(row) {
                *largest = if x.abs() > *largest { x.abs() } else { *largest };
            }
        }
        for row in rows.chunks_exact(dim) {
            for ((square, sum), x) in self.squares.iter_mut().zip(&sums).zip(row) {
                let d = f64::from(*x) - sum / count as f64;
                *square += d * d;
            }
        }
        self.count += count;
    }

    /// The balance of a head, as f32 of its f16, from the keys added so far and these queries, or none.
    pub(crate) fn balance(&self, queries: &[f32], balance: &mut [f32]) {
        let (dim, keys) = (balance.len(), self.count.max(1) as f64);
        let (mut sigma, mut rms) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (sigma, rms) = (&mut sigma[..dim], &mut rms[..dim]);
        sigma.iter_mut().zip(&self.squares).for_each(|(s, square)| *s = libm::sqrt(square / keys) + SMALLEST);
        let seen = (queries.len() / dim) as f64;
        let chance = if seen < ENOUGH {
            rms.iter_mut().zip(&*sigma).for_each(|(rms, sigma)| *rms = libm::sqrt(*sigma));
            1.0 / (8.0 * keys)
        } else {
            for query in queries.chunks_exact(dim) {
                rms.iter_mut().zip(query).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
            }
            rms.iter_mut().for_each(|sum| *sum = libm::sqrt(*sum / seen) + SMALLEST);
            1.0 / (2.0 * keys) + 1.0 / (2.0 * seen)
        };
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let balanced = product(sigma, rms);
        if product(sigma, sigma) * product(rms, rms) < (1.0 + 4.0 * chance) * balanced * balanced {
            balance.fill(1.0);
            return;
        }
        for ((sigma, rms), s) in sigma.iter().zip(&*rms).zip(&mut *balance) {
            let exact = libm::sqrt(sigma / rms) as f32;
            *s = f16::from_f32(exact.clamp(1.0 / 256.0, 256.0)).to_f32();
        }
        let square = |x: f64| x * x;
        let longest = self.largest.iter().zip(&*balance).map(|(x, s)| square(f64::from(*x) / f64::from(*s)));
        if longest.sum::<f64>() > square(LONGEST) {
            let factor = libm::sqrt(balance.len() as f64) / LONGEST;
            for (s, largest) in balance.iter_mut().zip(self.largest) {
                *s = s.max(f16::from_f32((f64::from(largest) * factor) as f32).to_f32());
            }
        }
    }
}

/// Reads a balance that has been decided.
pub(crate) fn read_balance(backend: Kernels, memory: &[u8], balance: &mut [f32]) {
    backend.decode_floats(Float::F16, &memory[..2 * balance.len()], balance);
}
