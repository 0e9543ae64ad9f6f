//! Trains the tables of the trellis codec and writes `src/codebook/trellis.rs`:
//! `cargo run --release --example train_trellis`, some 20 minutes of a CPU with AVX-512. The same text on every machine: the
//! encoder is bit-identical, the random vectors are ChaCha8 and `libm`, and sums have a fixed order.
//! `train_trellis 8 4` trains one table (8 states, 4 levels) and prints its distortion.
//!
//! A table starts from Ungerboeck's codes. 4·m points in ascending order form four subsets, of every fourth point each. Two
//! parities of a window's bits choose the subset that is its row. Then Lloyd's iterations follow: encode random vectors of
//! the unit sphere with the *rounded* table, move each centroid to the mean of its values, round again. Centroids move
//! beyond the mean where rounding would hold them. If there are many points, their first spread decides where this ends, so
//! several are tried. Rounds with disturbed centroids follow, and stay if the distortion falls. Last comes a search for the
//! best scale: a finer one clips the outermost centroids but rounds all others less.

use chacha20::ChaCha8Rng;
use octaplex::codebook::{TRELLIS_LEVELS, TRELLIS_STATES};
use octaplex_arch::{Backend, Fit, TrellisCodebook};
use rand_core::{Rng, SeedableRng};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The width trained for. Wider and narrower vectors have the same tables.
const D: usize = 128;
/// Vectors encoded in one call.
const PAGE: usize = 64;

/// Parity checks (h0, h1) of Ungerboeck's codes for amplitude modulation, 4 to 64 states: "Channel coding with
/// multilevel/phase signals", IEEE Transactions on Information Theory 28(1), 1982, table I.
const CHECKS: [(usize, usize); 5] = [(0o5, 0o2), (0o13, 0o4), (0o23, 0o4), (0o45, 0o10), (0o103, 0o24)];

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let jobs: Vec<(usize, usize)> = match numbers[..] {
        [states, levels] => vec![(states, levels)],
        _ => TRELLIS_STATES.iter().flat_map(|s| TRELLIS_LEVELS.map(|m| (*s, m))).collect(),
    };
    let training = Vectors::new(1, 24_000);
    let held_out = Vectors::new(2, 16_000);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![String::new(); jobs.len()]);
    // Finished tables are stored, so an interrupted run continues.
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/target/train_trellis");
    std::fs::create_dir_all(kept).expect("the target directory is writable");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(states, levels)) = jobs.get(job) else { return };
                    let file = format!("{kept}/{states}_{levels}");
                    let text = std::fs::read_to_string(&file).ok().filter(|_| jobs.len() > 1);
                    let text = text.unwrap_or_else(|| {
                        let table = train(states, levels, &training);
                        let text = table.text(table.measure(&held_out, None));
                        std::fs::write(&file, &text).expect("the target directory is writable");
                        text
                    });
                    eprintln!("{}", text.lines().next().unwrap_or_default());
                    results.lock().expect("no thread panicked")[job] = text;
                }
            });
        }
    });
    if jobs.len() > 1 {
        let results = results.into_inner().expect("no thread panicked");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/codebook/trellis.rs");
        std::fs::write(path, [HEADER, &results.concat(), "];\n"].concat()).expect("the file can be written");
    }
}

/// Returns Gaussian vectors of norm √D: points of the sphere whose coordinates have variance 1.
struct Vectors {
    values: Vec<f32>,
}

impl Vectors {
    fn new(seed: u64, count: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut values = Vec::with_capacity(count * D);
        for _ in 0..count {
            let vector: Vec<f64> = (0..D).map(|_| gaussian(&mut random)).collect();
            let norm = libm::sqrt(vector.iter().map(|x| x * x).sum::<f64>() / D as f64);
            values.extend(vector.iter().map(|x| (x / norm) as f32));
        }
        Self { values }
    }
}

fn gaussian(random: &mut ChaCha8Rng) -> f64 {
    let uniform = |x: u64| ((x >> 11) as f64 + 0.5) / 9_007_199_254_740_992.0;
    let (a, b) = (uniform(random.next_u64()), uniform(random.next_u64()));
    libm::sqrt(-2.0 * libm::log(a)) * libm::cos(2.0 * std::f64::consts::PI * b)
}

/// Centroids in standard deviations, `[code][window]`, and their scale.
#[derive(Clone)]
struct Table {
    history: u32,
    levels: usize,
    centroids: Vec<f64>,
    kappa: f32,
}

/// For each centroid: the number of its values, and their sum.
#[derive(Clone, Default)]
struct Cells(Vec<(u64, f64)>);

impl Table {
    fn ungerboeck(states: usize, levels: usize, spread: f64) -> Self {
        let history = states.trailing_zeros();
        let (h0, h1) = CHECKS[history as usize - 2];
        let windows = 2 * states;
        let points = 4 * levels;
        let parity = |bits: usize| bits.count_ones() as usize & 1;
        let mut centroids = vec![0.0; windows * levels];
        for bits in 0..windows {
            let subset = 2 * parity(bits & h0) + parity(bits & h1);
            // The search's newest bit is the lowest, the window's the highest.
            let window = bits.reverse_bits() >> (usize::BITS - history - 1);
            for code in 0..levels {
                let quantile = ((4 * code + subset) as f64 + 0.5) / points as f64;
                centroids[code * windows + window] = spread * normal_quantile(quantile);
            }
        }
        let mut table = Self { history, levels, centroids, kappa: 0.0 };
        table.fit_scale();
        table
    }

    /// The largest centroid becomes 127.
    fn fit_scale(&mut self) {
        let max = self.centroids.iter().fold(0.0f64, |max, c| max.max(c.abs()));
        self.kappa = (127.0 / max) as f32;
    }

    fn rounded(&self) -> Vec<i8> {
        let windows = 2 << self.history;
        let mut ints: Vec<i8> = self
            .centroids
            .iter()
            .map(|c| libm::rint(c * f64::from(self.kappa)).clamp(-127.0, 127.0) as i8)
            .collect();
        for window in 0..windows {
            let mut row: Vec<i8> = (0..self.levels).map(|k| ints[k * windows + window]).collect();
            row.sort_unstable();
            row.iter().enumerate().for_each(|(k, c)| ints[k * windows + window] = *c);
        }
        ints
    }

    /// Returns the distortion with gain mse, and fills the cells if there are any.
    fn measure(&self, vectors: &Vectors, mut cells: Option<&mut Cells>) -> f64 {
        let backend = Backend::detect();
        let ints = self.rounded();
        let book = TrellisCodebook::new(self.history, self.levels, &ints);
        let (row_bytes, windows) = (book.row_bytes(D), book.windows());
        if let Some(cells) = &mut cells {
            cells.0 = vec![(0, 0.0); ints.len()];
        }
        let mut residual = 0.0;
        let mut codes = [0; D];
        for z in vectors.values.chunks(PAGE * D) {
            let count = z.len() / D;
            let mut bytes = vec![0; count * row_bytes];
            let mut fits = vec![Fit::default(); count];
            backend.viterbi_encode(&book, D, z, &vec![self.kappa; count], &mut bytes, &mut fits);
            for fit in &fits {
                let total = f64::from(self.kappa) * f64::from(self.kappa) * D as f64;
                let explained = f64::from(fit.correlation) * f64::from(fit.correlation);
                residual += 1.0 - explained / f64::from(fit.energy) / total;
            }
            let Some(cells) = &mut cells else { continue };
            for (z, row) in z.chunks(D).zip(bytes.chunks(row_bytes)) {
                let (path, planes) = row[2..].split_at(D / 8);
                if let Some(packing) = book.packing() {
                    backend.unpack(packing, planes, &mut codes);
                }
                let mut window = 0;
                for (t, (z, code)) in z.iter().zip(codes).enumerate() {
                    window = window >> 1 | usize::from(path[t / 8] >> (t % 8) & 1) << self.history;
                    let cell = &mut cells.0[usize::from(code) * windows + window];
                    *cell = (cell.0 + 1, cell.1 + f64::from(*z));
                }
            }
        }
        residual / (vectors.values.len() / D) as f64
    }

    /// Returns the table's lines in the file.
    fn text(&self, distortion: f64) -> String {
        let mut text =
            format!("// {} states, {} levels: distortion {distortion:.6}\n", 1 << self.history, self.levels);
        let mut line = format!("book({}, {}, {:?}, &[", self.history, self.levels, self.kappa);
        for (k, centroid) in self.rounded().iter().enumerate() {
            let item = format!("{}{centroid}", if k == 0 { "" } else { "," });
            if line.len() + item.len() > 106 {
                let _ = writeln!(text, "{line},");
                line = centroid.to_string();
            } else {
                line += &item;
            }
        }
        let _ = writeln!(text, "{line}]),");
        text
    }

    /// Runs Lloyd's iterations. Returns the best table, and its distortion on the training vectors.
    fn improve(mut self, rounds: usize, vectors: &Vectors, stride: f64, free_scale: bool) -> (Self, f64) {
        let mut best = (self.clone(), f64::INFINITY);
        let mut cells = Cells::default();
        let mut before = Vec::new();
        for _ in 0..rounds {
            let now = self.rounded();
            if now == before {
                break;
            }
            before = now;
            let distortion = self.measure(vectors, Some(&mut cells));
            if distortion < best.1 {
                best = (self.clone(), distortion);
            }
            for (centroid, cell) in self.centroids.iter_mut().zip(&cells.0) {
                if cell.0 > 0 {
                    *centroid += stride * (cell.1 / cell.0 as f64 - *centroid);
                }
            }
            if free_scale {
                self.fit_scale();
            }
        }
        best
    }
}

fn train(states: usize, levels: usize, vectors: &Vectors) -> Table {
    let few = Vectors { values: vectors.values[..8_000 * D].to_vec() };
    let starts = (0..=12).map(|i| {
        let spread = 0.85 + 0.05 * f64::from(i);
        Table::ungerboeck(states, levels, spread).improve(30, &few, 1.0, true)
    });
    let Some((mut table, mut least)) = starts.reduce(|a, b| if b.1 < a.1 { b } else { a }) else {
        unreachable!("there are starts")
    };
    // Disturb by less and less of the usual distance between neighbours.
    let mut random = ChaCha8Rng::seed_from_u64((states * 1000 + levels) as u64);
    let rounds = (640 / states as i32).clamp(12, 40);
    for round in 0..rounds {
        let size = 0.6 * (1.0 - f64::from(round) / f64::from(rounds)) / levels as f64;
        let mut other = table.clone();
        other.centroids.iter_mut().for_each(|c| *c += size * gaussian(&mut random));
        other.fit_scale();
        let stride = [1.0, 2.0][round as usize % 2];
        let (other, distortion) = other.improve(20, &few, stride, true);
        if distortion < least {
            (table, least) = (other, distortion);
        }
    }
    let (mut best, mut least) = table.improve(20, vectors, 1.0, true);
    let widest = best.kappa;
    for step in 1..=10 {
        let mut other = best.clone();
        other.kappa = widest * (1.0 + 0.03 * step as f32);
        for stride in [1.0, 2.0] {
            let (other, distortion) = other.clone().improve(10, vectors, stride, false);
            if distortion < least {
                (best, least) = (other, distortion);
            }
        }
    }
    best
}

/// Returns the quantile of the normal distribution, by bisection.
fn normal_quantile(quantile: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        let below = 0.5 * libm::erfc(-middle / libm::sqrt(2.0));
        if below < quantile { low = middle } else { high = middle }
    }
    low
}

const HEADER: &str = "//! Generated by `cargo run --release --example train_trellis`; do not edit.

use super::{TrellisBook, trellis_book as book};

/// History bits, levels, integers to a standard deviation, centroids by code and window.
#[rustfmt::skip]
pub(super) static TRELLIS: [TrellisBook; 40] = [
";
