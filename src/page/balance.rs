//! Centres of keys, and the balance between their channels.
//!
//! Balance: s_c = (σ_c + 10⁻⁶)^½ / (rms_c + 10⁻⁶)^⅜, σ_c the deviation of key channel c around its page's mean, rms_c of
//! channel c over the queries given to `calibrate`; clamped to [2⁻⁸, 2⁸] and rounded to f16. Fewer than 32 queries say too
//! little: s_c = √σ_c then.
//!
//! A rotation spreads the error of the balanced keys evenly over channels, so that the error of scores is
//! Σ(rms·s)²·Σ(σ/s)², least at an exponent of ½ for both. The divergence of attention's weights is not. Mean over heads,
//! `trellis`, an unbalanced cache's is 1:
//!
//! | | SmolLM2: prose, code, languages | Qwen2.5 0.5B: prose, languages | 1.5B: prose, languages |
//! |---|---|---|---|
//! | √σ / rms^½ | .87, .87, .95 | .024, .020 | .58, .51 |
//! | √σ / rms^⅜ | .76, .78, .88 | .024, .021 | .56, .53 |
//! | √σ / rms^¼ | .73, .75, .79 | .027, .023 | .61, .59 |
//! | σ^¼ | .84, .87, .84 | .15, .14 | .89, .80 |
//! | √σ | .80, .85, .83 | .048, .040 | .91, .78 |
//!
//! A head whose channels differ by no more than chance keeps ones: where n·Σs²/(Σs)² over its n channels is below 1 + 4v,
//! v = 1/8k + 9/128q for k keys and q queries (1/8k without) being what as many samples of equal channels show. It is then
//! as if it were not balanced, bit for bit.
//!
//! Grades: the channels of a codec of two grades are sorted by σ_c·rms_c (as above; σ_c alone where queries are few), largest
//! first and the lower channel of equals. A negative s_c marks one of the second half. Keys are divided by it and queries
//! multiplied, so that its sign goes out of the score.
//!
//! Where keys divided by s could be longer than 2¹⁴, which f16 hardly holds, s_c is at least max|k_c|·√D/2¹⁴.
//! Keys are divided by it and queries multiplied, before the codec's rotation. It is decided once, from the sequence alone
//! or from what `calibrate` is given.

use crate::Error;
use crate::backend::Kernels;
use half::f16;
use octaplex_arch::{Float, MAX_DIM};

/// μ = Σ rows / n, in f32, rows ascending.
pub(super) fn mean(rows: &[f32], mean: &mut [f32]) {
    mean.fill(0.0);
    for row in rows.chunks_exact(mean.len()) {
        mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    let count = (rows.len() / mean.len()).max(1) as f32;
    mean.iter_mut().for_each(|sum| *sum /= count);
}

/// μ in f16.
pub(crate) fn store_mean(rows: &[f32], dim: usize, bytes: &mut [u8]) -> Result<(), Error> {
    let mut means = [0.0f32; MAX_DIM];
    mean(rows, &mut means[..dim]);
    for (mean, bytes) in means.iter().zip(bytes.as_chunks_mut::<2>().0) {
        let mean = f16::from_f32(*mean);
        if !mean.is_finite() {
            return Err(Error::Overflow);
        }
        *bytes = mean.to_le_bytes();
    }
    Ok(())
}

/// Stores the mean of rows in f16, and subtracts what was stored from them.
pub(super) fn take_mean(
    backend: Kernels,
    rows: &mut [f32],
    dim: usize,
    bytes: &mut [u8],
) -> Result<(), Error> {
    store_mean(rows, dim, bytes)?;
    let mut centre = [0.0; MAX_DIM];
    let centre = &mut centre[..dim];
    read_floats(backend, bytes, centre);
    subtract(rows, centre);
    Ok(())
}

/// Reads a centre in f16.
pub(super) fn read_floats(backend: Kernels, bytes: &[u8], centre: &mut [f32]) {
    backend.decode_floats(Float::F16, bytes, centre);
}

/// Adds a centre in f16, or nothing, to rows.
pub(crate) fn add_floats(backend: Kernels, rows: &mut [f32], dim: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        let mut centre = [0.0; MAX_DIM];
        let centre = &mut centre[..dim];
        read_floats(backend, bytes, centre);
        add(rows, centre);
    }
}

/// rows ← rows + centre.
pub(super) fn add(rows: &mut [f32], centre: &[f32]) {
    for row in rows.chunks_exact_mut(centre.len()) {
        row.iter_mut().zip(centre).for_each(|(x, c)| *x += c);
    }
}

/// rows ← rows - centre.
pub(crate) fn subtract(rows: &mut [f32], centre: &[f32]) {
    for row in rows.chunks_exact_mut(centre.len()) {
        for (x, c) in row.iter_mut().zip(centre) {
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
fn multiply(rows: &mut [f32], balance: &[f32]) {
    for row in rows.chunks_exact_mut(balance.len()) {
        for (x, s) in row.iter_mut().zip(balance) {
            *x *= s;
        }
    }
}

/// What a layer's keys pass through before they are encoded: channels are divided, and sorted. Queries pass through the
/// inverse transpose, so that scores stay what they are.
///
/// A head's balance is one number a channel, kept in f16. It is decided once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance {
    /// Whether channels are divided by their own scale.
    scales: bool,
    /// Whether channels are sorted, because the format of the pages codes the first half more finely.
    sorts: bool,
}

impl Balance {
    pub(crate) const fn new(scales: bool, sorts: bool) -> Self {
        Self { scales, sorts }
    }

    /// Whether keys stay as they are: nothing is stored then.
    pub(crate) const fn is_none(&self) -> bool {
        !self.scales && !self.sorts
    }

    /// Bytes of a head's balance.
    pub(crate) const fn bytes(&self, dim: usize) -> usize {
        if self.is_none() { 0 } else { 2 * dim }
    }

    /// Decides a head's balance, as f32 of f16, from keys and from the queries that will meet them, or none.
    pub(crate) fn decide(&self, backend: Kernels, keys: &Spread, queries: &[f32], balance: &mut [f32]) {
        keys.decide(backend, *self, queries, balance);
    }

    /// Brings keys into the basis in which pages keep them.
    pub(crate) fn apply(&self, keys: &mut [f32], balance: &[f32]) {
        if !self.is_none() {
            divide(keys, balance);
        }
        if self.sorts {
            sort(keys, balance);
        }
    }

    /// Brings keys back from there.
    pub(crate) fn undo(&self, keys: &mut [f32], balance: &[f32]) {
        if self.sorts {
            keys.chunks_exact_mut(balance.len()).for_each(|key| unsort(key, balance));
        }
        if !self.is_none() {
            multiply(keys, balance);
        }
    }

    /// Brings queries into the basis of the keys.
    pub(crate) fn apply_to_queries(&self, queries: &mut [f32], balance: &[f32]) {
        if !self.is_none() {
            multiply(queries, balance);
        }
        if self.sorts {
            sort(queries, balance);
        }
    }

    /// Whether bytes are a balance that can have been decided: from 2⁻⁸ to 2⁸, or as large as keys that f16 holds can make it;
    /// half of them below zero where channels are sorted, else none.
    pub(crate) fn is_sound(&self, bytes: &[u8]) -> bool {
        let values = || bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
        let negative = if self.sorts { bytes.len() / 4 } else { 0 };
        values().all(|s| (0x1c00..=0x5c00).contains(&(s & 0x7fff)))
            && values().filter(|s| s >> 15 == 1).count() == negative
    }
}

/// Squares of keys around their pages' means.
///
/// In f32, each channel's sums in the order of its rows: boards have no f64, whose arithmetic would be 3 kB of their flash,
/// and a balance is rounded to f16. Deviations are those from a page's first row less their mean: large constant channels,
/// which is what there is to find, leave no rounding error.
pub(crate) struct Spread {
    squares: [f32; MAX_DIM],
    /// The largest magnitude of each channel.
    largest: [f32; MAX_DIM],
    count: usize,
}

/// Added to deviations.
const SMALLEST: f32 = 1e-6;

/// Queries that are enough to go by.
const ENOUGH: usize = 32;

/// The longest that keys may be once they are divided by the balance.
const LONGEST: f32 = 16384.0;

impl Spread {
    pub(crate) fn new() -> Self {
        Self { squares: [0.0; MAX_DIM], largest: [0.0; MAX_DIM], count: 0 }
    }

    /// Adds one page.
    pub(crate) fn add(&mut self, rows: &[f32], dim: usize) {
        let count = rows.len() / dim;
        let mut means = [0.0f32; MAX_DIM];
        for row in rows.chunks_exact(dim) {
            for ((sum, x), first) in means.iter_mut().zip(row).zip(rows) {
                *sum += x - first;
            }
            for (largest, x) in self.largest.iter_mut().zip(row) {
                *largest = if x.abs() > *largest { x.abs() } else { *largest };
            }
        }
        means.iter_mut().for_each(|sum| *sum /= count as f32);
        for row in rows.chunks_exact(dim) {
            for (((square, mean), x), first) in self.squares.iter_mut().zip(&means).zip(row).zip(rows) {
                let d = x - first - mean;
                *square += d * d;
            }
        }
        self.count += count;
    }

    /// What a head's channels are divided by, as f32 of f16, from the keys added so far and these queries, or none: the balance,
    /// or ones; with the sign of its grade, where a layer has grades.
    fn decide(&self, backend: Kernels, kind: Balance, queries: &[f32], balance: &mut [f32]) {
        let (dim, keys) = (balance.len(), self.count.max(1) as f32);
        let (mut sigma, mut rms) = ([0.0f32; MAX_DIM], [0.0f32; MAX_DIM]);
        let (sigma, rms) = (&mut sigma[..dim], &mut rms[..dim]);
        sigma.iter_mut().zip(&self.squares).for_each(|(s, sum)| *s = backend.sqrt(sum / keys) + SMALLEST);
        let seen = queries.len() / dim;
        let mut chance = 1.0 / (8.0 * keys);
        if seen < ENOUGH {
            rms.fill(1.0);
        } else {
            for query in queries.chunks_exact(dim) {
                rms.iter_mut().zip(query).for_each(|(sum, x)| *sum += x * x);
            }
            rms.iter_mut().for_each(|sum| *sum = backend.sqrt(*sum / seen as f32) + SMALLEST);
            chance += 9.0 / (128.0 * seen as f32);
        }
        let round = |x: f32| f16::from_f32(x).to_f32();
        for ((sigma, rms), s) in sigma.iter().zip(&*rms).zip(&mut *balance) {
            let root = backend.sqrt(*rms);
            *s = round(backend.sqrt(sigma / (root * backend.sqrt(root))).clamp(1.0 / 256.0, 256.0));
        }
        let (sum, squares) = (balance.iter().sum::<f32>(), balance.iter().map(|s| s * s).sum::<f32>());
        if !kind.scales || dim as f32 * squares / (sum * sum) < 1.0 + 4.0 * chance {
            balance.fill(1.0);
        } else {
            let longest = self.largest.iter().zip(&*balance).map(|(x, s)| x / s * (x / s));
            if longest.sum::<f32>() > LONGEST * LONGEST {
                let factor = backend.sqrt(dim as f32) / LONGEST;
                for (s, largest) in balance.iter_mut().zip(self.largest) {
                    *s = s.max(round(largest * factor));
                }
            }
        }
        if kind.sorts {
            sigma.iter_mut().zip(rms).for_each(|(weight, rms)| *weight *= *rms);
            for (channel, s) in balance.iter_mut().enumerate() {
                let (weight, before) = (sigma[channel], sigma.split_at(channel));
                let heavier = before.0.iter().filter(|x| **x >= weight).count()
                    + before.1.iter().filter(|x| **x > weight).count();
                *s = if heavier < dim / 2 { *s } else { -*s };
            }
        }
    }
}

/// A power of two, so that no index needs a branch.
const ROOM: usize = MAX_DIM.next_power_of_two();

/// Brings the channels of rows that a balance above 0 marks to the front, in their order, those below 0 behind them.
fn sort(rows: &mut [f32], balance: &[f32]) {
    let mut from = [0u16; MAX_DIM];
    places(balance).enumerate().for_each(|(channel, place)| from[place] = channel as u16);
    let (mut unsorted, from) = ([0.0; ROOM], &from[..balance.len()]);
    for row in rows.chunks_exact_mut(balance.len()) {
        unsorted[..row.len()].copy_from_slice(row);
        row.iter_mut().zip(from).for_each(|(x, channel)| *x = unsorted[usize::from(*channel) % ROOM]);
    }
}

/// The inverse of [`sort`], for one row.
fn unsort(row: &mut [f32], balance: &[f32]) {
    let mut unsorted = [0.0; MAX_DIM];
    let unsorted = &mut unsorted[..balance.len()];
    unsorted.iter_mut().zip(places(balance)).for_each(|(x, place)| *x = row[place]);
    row.copy_from_slice(unsorted);
}

/// Where each channel goes.
fn places(balance: &[f32]) -> impl Iterator<Item = usize> {
    let (mut fine, mut coarse) = (0, balance.iter().filter(|s| **s > 0.0).count());
    balance.iter().map(move |s| {
        let next = if *s > 0.0 { &mut fine } else { &mut coarse };
        *next += 1;
        *next - 1
    })
}

/// Reads a balance that has been decided.
pub(crate) fn read_balance(backend: Kernels, memory: &[u8], balance: &mut [f32]) {
    backend.decode_floats(Float::F16, &memory[..2 * balance.len()], balance);
}
