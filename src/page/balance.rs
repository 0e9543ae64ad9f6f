//! The centre of keys, and the balance between their channels.
//!
//! # Balance
//! Channel c of the keys is divided by s_c, and channel c of the queries is multiplied by it. So
//! scores stay the same, and the errors of the channels count alike:
//!
//! ```text
//! s_c = (σ_c + 10⁻⁶)^½ / (rms_c + 10⁻⁶)^⅜     σ_c: deviation of the keys around their page's mean
//!                                            rms_c: root mean square of the queries given to `calibrate`
//! s_c = (σ_c + 10⁻⁶)^½                       with fewer than 32 queries, which say too little
//! ```
//!
//! The result is clamped to [2⁻⁸, 2⁸] and rounded to f16. It is decided once, from the sequence or
//! from what `calibrate` got.
//!
//! Why these exponents? A rotation spreads the error of the balanced keys evenly over the channels.
//! The error of scores is then Σ(rms·s)²·Σ(σ/s)², which is least at an exponent of ½ for both. The
//! divergence of attention's weights is least elsewhere. This table shows it for `trellis`, as the
//! mean over heads and relative to an unbalanced cache:
//!
//! | | SmolLM2: prose, code, languages | Qwen2.5 0.5B: prose, languages | 1.5B: prose, languages |
//! |---|---|---|---|
//! | √σ / rms^½ | 0.87, 0.87, 0.95 | 0.024, 0.020 | 0.58, 0.51 |
//! | √σ / rms^⅜ | 0.76, 0.78, 0.88 | 0.024, 0.021 | 0.56, 0.53 |
//! | √σ / rms^¼ | 0.73, 0.75, 0.79 | 0.027, 0.023 | 0.61, 0.59 |
//! | σ^¼ | 0.84, 0.87, 0.84 | 0.15, 0.14 | 0.89, 0.80 |
//! | √σ | 0.80, 0.85, 0.83 | 0.048, 0.040 | 0.91, 0.78 |
//!
//! # Exceptions
//! Heads with similar channels are not rescaled: their s_c are 1, and their pages are bit-exact
//! with those of an unbalanced cache. A head counts as such if n·Σs²/(Σs)² over its n channels is
//! below 1 + 4v. Here v = 1/8k + 9/128q for k keys and q queries, or 1/8k without queries. That is
//! what sampling noise alone produces when all channels are equal.
//!
//! Keys divided by s must not be longer than 2¹⁴, because f16 hardly holds more. So where they
//! could be longer, all s grow by the same factor, which changes no proportion. No s grows above
//! 2⁸. If that is not enough, s_c is at least max|k_c|·√D/2¹⁴.
//!
//! # Outlying values
//! A few huge values must not decide for a whole sequence. So a page counts some values as the mean
//! of the others in their channel. These are at most one in 32 rows, and far from the others. The
//! same holds for queries, 256 at a time:
//!
//! ```text
//! column    ..:.:.::..:.:..:.::.:.                                             :
//!           └ others: their mean and deviation ┘ └ more than 12 deviations ┘   outlying
//! ```
//!
//! # Grades
//! A codec of two grades codes the first half of the channels more finely. Its channels are sorted
//! by σ_c·rms_c, or by σ_c if there are too few queries. The largest comes first, and the lower
//! channel first among equals. A negative s_c marks a channel of the second half. Keys are divided
//! by s_c and queries multiplied, so the sign cancels in the score.

use super::MAX_TOKENS;
use crate::Error;
use crate::backend::Kernels;
use half::f16;
use octaplex_arch::{Float, MAX_DIM};

/// Computes the mean of rows in f32, adding them in ascending order.
pub(super) fn mean(rows: &[f32], mean: &mut [f32]) {
    mean.fill(0.0);
    for row in rows.chunks_exact(mean.len()) {
        mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    let count = (rows.len() / mean.len()).max(1) as f32;
    mean.iter_mut().for_each(|sum| *sum /= count);
}

/// Stores the mean of rows in f16, two bytes a value.
///
/// # Errors
/// [`Error::Overflow`] if f16 cannot hold the mean.
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

/// Stores the mean of rows in f16, and subtracts what was stored from the rows.
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

/// Decodes a centre from f16.
pub(super) fn read_floats(backend: Kernels, bytes: &[u8], centre: &mut [f32]) {
    backend.decode_floats(Float::F16, bytes, centre);
}

/// Adds a centre in f16 to rows. Does nothing if `bytes` is empty.
pub(crate) fn add_floats(backend: Kernels, rows: &mut [f32], dim: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        let mut centre = [0.0; MAX_DIM];
        let centre = &mut centre[..dim];
        read_floats(backend, bytes, centre);
        add(rows, centre);
    }
}

/// Adds `centre` to every row.
pub(super) fn add(rows: &mut [f32], centre: &[f32]) {
    for row in rows.chunks_exact_mut(centre.len()) {
        row.iter_mut().zip(centre).for_each(|(x, c)| *x += c);
    }
}

/// Subtracts `centre` from every row.
pub(crate) fn subtract(rows: &mut [f32], centre: &[f32]) {
    for row in rows.chunks_exact_mut(centre.len()) {
        for (x, c) in row.iter_mut().zip(centre) {
            *x -= c;
        }
    }
}

/// Divides every row by `balance`.
pub(crate) fn divide(rows: &mut [f32], balance: &[f32]) {
    for row in rows.chunks_exact_mut(balance.len()) {
        for (x, s) in row.iter_mut().zip(balance) {
            *x /= s;
        }
    }
}

/// Multiplies every row by `balance`.
fn multiply(rows: &mut [f32], balance: &[f32]) {
    for row in rows.chunks_exact_mut(balance.len()) {
        for (x, s) in row.iter_mut().zip(balance) {
            *x *= s;
        }
    }
}

/// The transform that a layer's keys pass through before they are encoded: channels are divided,
/// then sorted.
///
/// Queries pass through its inverse transpose, so scores do not change. A head stores one f16 a
/// channel, which is decided once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance {
    /// Whether channels are divided by their own scale.
    scales: bool,
    /// Whether channels are sorted, because the page format codes the first half more finely.
    sorts: bool,
}

impl Balance {
    pub(crate) const fn new(scales: bool, sorts: bool) -> Self {
        Self { scales, sorts }
    }

    /// Returns whether keys stay as they are. Nothing is stored then.
    pub(crate) const fn is_none(&self) -> bool {
        !self.scales && !self.sorts
    }

    /// Returns the bytes of a head's balance.
    pub(crate) const fn bytes(&self, dim: usize) -> usize {
        if self.is_none() { 0 } else { 2 * dim }
    }

    /// Brings keys into the basis in which pages store them.
    pub(crate) fn apply(&self, keys: &mut [f32], balance: &[f32]) {
        if !self.is_none() {
            divide(keys, balance);
        }
        if self.sorts {
            sort(keys, balance);
        }
    }

    /// Brings keys back from the basis of the pages.
    pub(crate) fn undo(&self, keys: &mut [f32], balance: &[f32]) {
        if self.sorts {
            keys.chunks_exact_mut(balance.len()).for_each(|key| unsort(key, balance));
        }
        if !self.is_none() {
            multiply(keys, balance);
        }
    }

    /// Brings queries into the basis of the stored keys.
    pub(crate) fn apply_to_queries(&self, queries: &mut [f32], balance: &[f32]) {
        if !self.is_none() {
            multiply(queries, balance);
        }
        if self.sorts {
            sort(queries, balance);
        }
    }

    /// Returns whether untrusted bytes are a balance that [`Spread::decide`] could have
    /// produced.
    ///
    /// Magnitudes must be from 2⁻⁸ to 2⁸; the upper end allows for long keys. If channels are
    /// sorted, exactly half of the values are negative, otherwise none.
    pub(crate) fn is_sound(&self, bytes: &[u8]) -> bool {
        let values = || bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
        let negative = if self.sorts { bytes.len() / 4 } else { 0 };
        values().all(|s| (0x1c00..=0x5c00).contains(&(s & 0x7fff)))
            && values().filter(|s| s >> 15 == 1).count() == negative
    }
}

/// Sums of squared deviations of keys around the means of their pages, a channel each.
///
/// Sums are in f32 and in the order of the rows: microcontrollers have no f64 instructions, and
/// emulating them takes 3 kB of flash. The result is rounded to f16 anyway. Deviations are computed
/// relative to a page's first row, then to the mean of these differences. So a channel with a large
/// constant, the case that balance exists for, causes no rounding error.
pub(crate) struct Spread {
    squares: [f32; MAX_DIM],
    /// The largest magnitude in each channel.
    largest: [f32; MAX_DIM],
    count: usize,
}

/// Added to deviations and to rms, so that a silent channel does not divide by zero.
const SMALLEST: f32 = 1e-6;

/// The number of queries from which on their rms is used.
const ENOUGH: usize = 32;

/// The largest norm that balanced keys may have.
const LONGEST: f32 = 16384.0;

/// The largest factor of a balance. The least one is its inverse.
const MOST: f32 = 256.0;

impl Spread {
    pub(crate) fn new() -> Self {
        Self { squares: [0.0; MAX_DIM], largest: [0.0; MAX_DIM], count: 0 }
    }

    /// Adds the rows of one page.
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
        // As in `counted`. A single row is its own mean.
        if count < 2 || count < FEW && self.count > 0 {
            return;
        }
        let before = self.squares;
        means.iter_mut().for_each(|sum| *sum /= count as f32);
        for row in rows.chunks_exact(dim) {
            for (((square, mean), x), first) in self.squares.iter_mut().zip(&means).zip(row).zip(rows) {
                let d = x - first - mean;
                *square += d * d;
            }
        }
        outlying(rows, dim, &mut |found| {
            let mean = found.tamed(rows, dim).sum::<f32>() / count as f32;
            let squares = found.tamed(rows, dim).map(|x| (x - mean) * (x - mean)).sum::<f32>();
            self.squares[found.channel] = before[found.channel] + squares;
        });
        self.count += count;
    }

    /// Decides s_c for every channel of a head, as f32 values that f16 can hold, from the keys added
    /// so far and from `queries`, which may be empty.
    ///
    /// If the layer has grades, a negative sign marks channels of the second half.
    pub(crate) fn decide(&self, backend: Kernels, kind: Balance, queries: &[f32], balance: &mut [f32]) {
        let (dim, keys) = (balance.len(), self.count.max(1) as f32);
        let (mut sigma, mut rms) = ([0.0f32; MAX_DIM], [0.0f32; MAX_DIM]);
        let (sigma, rms) = (&mut sigma[..dim], &mut rms[..dim]);
        sigma.iter_mut().zip(&self.squares).for_each(|(s, sum)| *s = backend.sqrt(sum / keys) + SMALLEST);
        let seen = counted(queries.len() / dim, MAX_TOKENS);
        let queries = &queries[..seen * dim];
        // The v of the module docs: how much s_c vary by sampling alone.
        let mut chance = 1.0 / (8.0 * keys);
        if seen < ENOUGH {
            rms.fill(1.0);
        } else {
            for queries in queries.chunks(MAX_TOKENS * dim) {
                let mut sums = [0.0; MAX_DIM];
                let before = &mut sums[..dim];
                before.copy_from_slice(rms);
                for query in queries.chunks_exact(dim) {
                    rms.iter_mut().zip(query).for_each(|(sum, x)| *sum += x * x);
                }
                outlying(queries, dim, &mut |found| {
                    let squares = found.tamed(queries, dim).map(|x| x * x).sum::<f32>();
                    rms[found.channel] = before[found.channel] + squares;
                });
            }
            rms.iter_mut().for_each(|sum| *sum = backend.sqrt(*sum / seen as f32) + SMALLEST);
            chance += 9.0 / (128.0 * seen as f32);
        }
        let round = |x: f32| f16::from_f32(x).to_f32();
        // s = √(σ / rms^¾) = σ^½ / rms^⅜, where rms^¾ = √rms · √√rms.
        for ((sigma, rms), s) in sigma.iter().zip(&*rms).zip(&mut *balance) {
            let root = backend.sqrt(*rms);
            *s = round(backend.sqrt(sigma / (root * backend.sqrt(root))).clamp(1.0 / MOST, MOST));
        }
        // n·Σs²/(Σs)² is 1 if all s are equal, and grows as they differ.
        let (sum, squares) = (balance.iter().sum::<f32>(), balance.iter().map(|s| s * s).sum::<f32>());
        if !kind.scales || dim as f32 * squares / (sum * sum) < 1.0 + 4.0 * chance {
            balance.fill(1.0);
        } else {
            // No key, divided by s, is longer than a vector of the largest values of all channels.
            let longest = self.largest.iter().zip(&*balance).map(|(x, s)| x / s * (x / s));
            let longest = longest.sum::<f32>();
            if longest > LONGEST * LONGEST {
                let needed = backend.sqrt(longest) / LONGEST;
                let by = needed.min(MOST / balance.iter().fold(0.0, |most: f32, s| most.max(*s)));
                balance.iter_mut().for_each(|s| *s = round(*s * by).min(MOST));
                let factor = if by < needed { backend.sqrt(dim as f32) / LONGEST } else { 0.0 };
                for (s, largest) in balance.iter_mut().zip(self.largest) {
                    *s = s.max(round(largest * factor));
                }
            }
        }
        if kind.sorts {
            // Rank channels by σ·rms. A channel belongs to the fine half if fewer than n/2 others come before it.
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

/// The keys that decide a head's balance and prefix centre.
///
/// They are read a page at a time and twice, because memory may hold only one page.
pub(crate) struct Deciding<'a> {
    pub(crate) backend: Kernels,
    pub(crate) kind: Balance,
    pub(crate) pages: usize,
    /// Memory for the keys of a page.
    pub(crate) rows: &'a mut [f32],
    /// Reads the keys of a page to the front of `rows`, and returns the number of their values.
    pub(crate) read: &'a mut dyn FnMut(usize, &mut [f32]) -> usize,
}

impl Deciding<'_> {
    /// Decides the balance. It stays as it is if the layer has none. Not inlined, so that its memory and that of
    /// [`centre`](Self::centre) are not on the stack together: microcontrollers have little.
    #[inline(never)]
    pub(crate) fn balance(&mut self, queries: &[f32], balance: &mut [f32]) {
        if self.kind.is_none() {
            return;
        }
        let mut spread = Spread::new();
        for page in 0..self.pages {
            let len = (self.read)(page, self.rows);
            spread.add(&self.rows[..len], balance.len());
        }
        spread.decide(self.backend, self.kind, queries, balance);
    }

    /// Decides the prefix centre: the mean of the first keys in the basis of the pages, `most` of
    /// them at most.
    ///
    /// # Errors
    /// [`Error::Overflow`] if f16 cannot hold the mean.
    #[inline(never)]
    pub(crate) fn centre(&mut self, most: usize, balance: &[f32], centre: &mut [f32]) -> Result<(), Error> {
        let (dim, mut count) = (balance.len(), 0);
        let (mut sums, mut bytes) = ([0.0; MAX_DIM], [0; 2 * MAX_DIM]);
        for page in 0..self.pages {
            if count == most {
                break;
            }
            let len = (self.read)(page, self.rows);
            let rows = &mut self.rows[..len];
            tame(rows, dim);
            for row in rows.chunks_exact_mut(dim).take(most - count) {
                self.kind.apply(row, balance);
                sums.iter_mut().zip(&*row).for_each(|(sum, x)| *sum += x);
                count += 1;
            }
        }
        sums.iter_mut().for_each(|sum| *sum /= count.max(1) as f32);
        store_mean(&sums[..dim], dim, &mut bytes[..2 * dim])?;
        read_floats(self.backend, &bytes[..2 * dim], centre);
        Ok(())
    }
}

/// The fewest rows among which a value can be outlying.
pub(crate) const FEW: usize = 8;

/// The most keys whose mean is the prefix centre of a cache.
pub(crate) const CENTRED: usize = 128;

/// Deviations from page means that are enough to decide the balance of cells. One full page has more, with up to 15 sinks.
#[cfg(feature = "alloc")]
pub(crate) const DEVIATIONS: usize = 3 * super::PAGE / 4;

/// Returns the number of rows that decide, of `count` rows in pages of `page`.
///
/// Too few rows show no outlying value. So a last page of less than [`FEW`] rows does not count.
pub(crate) const fn counted(count: usize, page: usize) -> usize {
    if count > page && count % page < FEW { count - count % page } else { count }
}

/// Rows of a page for each of its outlying values in a channel, at most.
const ROWS_EACH: usize = 32;

/// Square of the distance from the mean, in deviations of the other values, from which on a value
/// is outlying. The others exclude the extremes, so their deviation is smaller than that of all.
const FAR: f32 = 144.0;

/// The values of a channel that are far from most others.
struct Outlying {
    channel: usize,
    /// The mean of the other values.
    mean: f32,
    /// The least square of the distance from the mean.
    limit: f32,
}

impl Outlying {
    /// Finds the outlying values of a channel.
    ///
    /// More of them than one in [`ROWS_EACH`] rows are no outliers: the channel is like that.
    fn find(rows: &[f32], dim: usize, channel: usize) -> Option<Self> {
        let mut column = [0.0; MAX_TOKENS];
        let mut len = 0;
        for (slot, row) in column.iter_mut().zip(rows.chunks_exact(dim)) {
            *slot = row[channel];
            len += 1;
        }
        let (column, most) = (&mut column[..len], len.div_ceil(ROWS_EACH));
        // Move the extremes to both ends: the least values to the front, the largest to the back.
        for end in 0..most {
            for (slot, inner, sign) in [(end, end..len - end, -1.0), (len - 1 - end, end + 1..len - end, 1.0)]
            {
                let extreme =
                    inner.fold(slot, |a, b| if sign * column[b] > sign * column[a] { b } else { a });
                column.swap(slot, extreme);
            }
        }
        let others = &column[most..len - most];
        let mean = others.iter().sum::<f32>() / others.len() as f32;
        let squares = others.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>();
        let found = Self { channel, mean, limit: FAR * squares / others.len() as f32 };
        let count = column.iter().filter(|x| found.contains(**x)).count();
        (1..=most).contains(&count).then_some(found)
    }

    fn contains(&self, x: f32) -> bool {
        (x - self.mean) * (x - self.mean) > self.limit
    }

    /// Returns the channel's values. The mean replaces those that are outlying.
    fn tamed(&self, rows: &[f32], dim: usize) -> impl Iterator<Item = f32> {
        let values = rows.iter().skip(self.channel).step_by(dim);
        values.map(|x| if self.contains(*x) { self.mean } else { *x })
    }
}

/// Calls `found` for each channel of a page that has outlying values.
///
/// One function serves all callers, because it is large for a microcontroller.
fn outlying(rows: &[f32], dim: usize, found: &mut dyn FnMut(Outlying)) {
    /// Channels whose sums are computed together.
    const TOGETHER: usize = 32;
    let count = rows.len() / dim;
    if count < FEW {
        return;
    }
    for start in (0..dim).step_by(TOGETHER) {
        let channels = start..dim.min(start + TOGETHER);
        let [mut means, mut squares, mut tops] = [[0.0f32; TOGETHER]; 3];
        for row in rows.chunks_exact(dim) {
            means.iter_mut().zip(&row[channels.clone()]).for_each(|(sum, x)| *sum += x);
        }
        means.iter_mut().for_each(|sum| *sum /= count as f32);
        for row in rows.chunks_exact(dim) {
            let sums = squares.iter_mut().zip(&mut tops).zip(&means);
            for (((square, top), mean), x) in sums.zip(&row[channels.clone()]) {
                let d = (x - mean) * (x - mean);
                *square += d;
                *top = if d > *top { d } else { *top };
            }
        }
        for (channel, (square, top)) in channels.zip(squares.iter().zip(tops)) {
            // A cheap test that skips most channels. It is a part of the definition: where several values are almost
            // outlying, it may skip a channel in which `find` would find one.
            if top * count as f32 > FAR / 3.0 * (square - top)
                && let Some(outlying) = Outlying::find(rows, dim, channel)
            {
                found(outlying);
            }
        }
    }
}

/// Replaces the outlying values in the rows of a page by the mean of their channel's other values.
pub(crate) fn tame(rows: &mut [f32], dim: usize) {
    let (mut means, mut limits) = ([0.0; MAX_DIM], [f32::INFINITY; MAX_DIM]);
    outlying(rows, dim, &mut |found| {
        (means[found.channel], limits[found.channel]) = (found.mean, found.limit);
    });
    for row in rows.chunks_exact_mut(dim) {
        for ((x, mean), limit) in row.iter_mut().zip(&means).zip(&limits) {
            if (*x - mean) * (*x - mean) > *limit {
                *x = *mean;
            }
        }
    }
}

/// The length of a row's copy. A power of two lets `index % PADDED_DIM` replace a bounds check.
const PADDED_DIM: usize = MAX_DIM.next_power_of_two();

/// Moves the channels with a positive balance to the front, in their order, and the others behind
/// them.
///
/// ```text
/// balance   +  -  -  +          row   a b c d   ─►   a d b c
/// ```
fn sort(rows: &mut [f32], balance: &[f32]) {
    let mut from = [0u16; MAX_DIM];
    places(balance).enumerate().for_each(|(channel, place)| from[place] = channel as u16);
    let (mut unsorted, from) = ([0.0; PADDED_DIM], &from[..balance.len()]);
    for row in rows.chunks_exact_mut(balance.len()) {
        unsorted[..row.len()].copy_from_slice(row);
        row.iter_mut().zip(from).for_each(|(x, channel)| *x = unsorted[usize::from(*channel) % PADDED_DIM]);
    }
}

/// Reverses [`sort`] for one row.
fn unsort(row: &mut [f32], balance: &[f32]) {
    let mut unsorted = [0.0; MAX_DIM];
    let unsorted = &mut unsorted[..balance.len()];
    unsorted.iter_mut().zip(places(balance)).for_each(|(x, place)| *x = row[place]);
    row.copy_from_slice(unsorted);
}

/// Returns the new index of each channel under [`sort`].
fn places(balance: &[f32]) -> impl Iterator<Item = usize> {
    let (mut fine, mut coarse) = (0, balance.iter().filter(|s| **s > 0.0).count());
    balance.iter().map(move |s| {
        let next = if *s > 0.0 { &mut fine } else { &mut coarse };
        *next += 1;
        *next - 1
    })
}

/// Reads a balance that was decided earlier.
pub(crate) fn read_balance(backend: Kernels, memory: &[u8], balance: &mut [f32]) {
    backend.decode_floats(Float::F16, &memory[..2 * balance.len()], balance);
}
