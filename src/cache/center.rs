//! Centres of keys, and the balance between their channels.
//!
//! Balance: s_c = √((σ_c + 10⁻⁶)/(rms_c + 10⁻⁶)), σ_c the deviation of key channel c around its page's mean, rms_c of
//! channel c over all queries that the head has seen (1 if it has seen none); clamped to [2⁻⁸, 2⁸] and rounded to f16.
//! Where keys divided by it could be longer than 2¹⁴, which f16 hardly holds, s_c is at least max|k_c|·√D/2¹⁴.
//! Keys are divided by it and queries multiplied, before the codec's rotation. It is decided once.

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

    /// The balance, from the mean squares of queries, as f32 of its f16.
    pub(crate) fn balance(&self, queries: impl Iterator<Item = f64>, balance: &mut [f32]) {
        for ((square, query), s) in self.squares.iter().zip(queries).zip(&mut *balance) {
            let sigma = libm::sqrt(square / self.count.max(1) as f64);
            let exact = libm::sqrt((sigma + 1e-6) / (libm::sqrt(query) + 1e-6)) as f32;
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

/// A head's memory for its balance: while it is open, sums of squares of queries in f32, at first 0; then f16 values at
/// the start of it and -1 at its end.
const DECIDED: [u8; 4] = (-1.0f32).to_le_bytes();

pub(crate) fn is_decided(memory: &[u8]) -> bool {
    memory.ends_with(&DECIDED)
}

/// Writes a balance.
pub(crate) fn decide(backend: Kernels, memory: &mut [u8], balance: &[f32]) {
    memory.fill(0);
    backend.encode_floats(Float::F16, balance, &mut memory[..2 * balance.len()]);
    let end = memory.len();
    memory[end - 4..].copy_from_slice(&DECIDED);
}

/// Reads a balance that has been decided.
pub(crate) fn read_balance(backend: Kernels, memory: &[u8], balance: &mut [f32]) {
    backend.decode_floats(Float::F16, &memory[..2 * balance.len()], balance);
}

/// Adds the squares of queries.
pub(crate) fn observe(memory: &mut [u8], queries: &[f32], dim: usize) {
    for query in queries.chunks_exact(dim) {
        for (sum, x) in memory.as_chunks_mut::<4>().0.iter_mut().zip(query) {
            // Sums stay finite: 2⁵⁰ is far beyond any query.
            let square = (x * x).min(1_125_899_906_842_624.0);
            *sum = (f32::from_le_bytes(*sum) + square).to_le_bytes();
        }
    }
}

/// Mean squares of the queries seen, 1 for none.
pub(crate) fn mean_squares(memory: &[u8], seen: u64) -> impl Iterator<Item = f64> {
    memory.as_chunks::<4>().0.iter().map(move |sum| match seen {
        0 => 1.0,
        _ => f64::from(f32::from_le_bytes(*sum)) / seen as f64,
    })
}
