//! The textbook, in f64: dense Hadamard matrices from their definition, the nearest codeword by looking at all of
//! them, Lloyd-Max by Lloyd's alternation, attention as in the first lecture. Slow, and independent of the library:
//! nothing here calls it. `tests/rotation.rs` tests the oracle itself.
#![allow(dead_code, unreachable_pub)] // each test binary takes what it needs

/// A dense square matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    pub rows: Vec<Vec<f64>>,
}

impl Matrix {
    pub fn from(order: usize, entry: impl Fn(usize, usize) -> f64) -> Self {
        Self { rows: (0..order).map(|r| (0..order).map(|c| entry(r, c)).collect()).collect() }
    }

    pub fn order(&self) -> usize {
        self.rows.len()
    }

    pub fn transpose(&self) -> Self {
        Self::from(self.order(), |r, c| self.rows[c][r])
    }

    pub fn times(&self, x: &[f64]) -> Vec<f64> {
        self.rows.iter().map(|row| dot(row, x)).collect()
    }

    /// self ⊗ low: index = high · low.order() + low's index.
    pub fn kronecker(&self, low: &Self) -> Self {
        let n = low.order();
        Self::from(self.order() * n, |r, c| self.rows[r / n][c / n] * low.rows[r % n][c % n])
    }

    /// The largest |entry| of self·selfᵀ - factor·I.
    pub fn orthogonality_error(&self, factor: f64) -> f64 {
        let mut worst = 0.0f64;
        for (r, a) in self.rows.iter().enumerate() {
            for (c, b) in self.rows.iter().enumerate() {
                worst = worst.max((dot(a, b) - if r == c { factor } else { 0.0 }).abs());
            }
        }
        worst
    }
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// χ(a) modulo the prime q, by Euler's criterion: a^((q-1)/2).
fn legendre(a: i64, q: i64) -> f64 {
    let a = a.rem_euclid(q);
    let power = (0..(q - 1) / 2).fold(1, |power, _| power * a % q);
    if power == q - 1 { -1.0 } else { power as f64 }
}

/// The Jacobsthal matrix bordered by ones (and `corner` down the side): [[0, 1], [side, Q]], Q\[a]\[b] = χ(a-b).
fn conference(q: i64, side: f64) -> Matrix {
    Matrix::from(q as usize + 1, |r, c| match (r, c) {
        (0, 0) => 0.0,
        (0, _) => 1.0,
        (_, 0) => side,
        _ => legendre(r as i64 - c as i64, q),
    })
}

/// Paley I, q ≡ 3 mod 4: I + S with the skew S.
pub fn paley_1(q: i64) -> Matrix {
    let s = conference(q, -1.0);
    Matrix::from(s.order(), |r, c| s.rows[r][c] + f64::from(u8::from(r == c)))
}

/// Paley II, q ≡ 1 mod 4: S ⊗ [[1, 1], [1, -1]] + I ⊗ [[1, -1], [-1, -1]] with the symmetric S.
pub fn paley_2(q: i64) -> Matrix {
    let s = conference(q, 1.0);
    let one = Matrix::from(s.order(), |r, c| f64::from(u8::from(r == c)));
    let plus = Matrix { rows: vec![vec![1.0, 1.0], vec![1.0, -1.0]] };
    let zero = Matrix { rows: vec![vec![1.0, -1.0], vec![-1.0, -1.0]] };
    let (a, b) = (s.kronecker(&plus), one.kronecker(&zero));
    Matrix::from(a.order(), |r, c| a.rows[r][c] + b.rows[r][c])
}

/// Sylvester: H[r][c] = (-1)^popcount(r & c).
pub fn sylvester(order: usize) -> Matrix {
    assert!(order.is_power_of_two());
    Matrix::from(order, |r, c| if (r & c).count_ones() % 2 == 0 { 1.0 } else { -1.0 })
}

/// The Hadamard matrix of a width, by the table of the format.
pub fn hadamard(width: usize) -> Matrix {
    let h12 = || paley_1(11);
    match width {
        80 => sylvester(4).kronecker(&paley_1(19)),
        96 => sylvester(8).kronecker(&h12()),
        112 => sylvester(4).kronecker(&paley_2(13)),
        160 => sylvester(8).kronecker(&paley_1(19)),
        192 => sylvester(16).kronecker(&h12()),
        576 => sylvester(4).kronecker(&h12().kronecker(&h12())),
        _ => sylvester(width),
    }
}

/// R·x with R = (H·diag(s)/√D)^rounds.
pub fn rotate(h: &Matrix, signs: &[f64], rounds: u32, x: &[f64]) -> Vec<f64> {
    let scale = 1.0 / (h.order() as f64).sqrt();
    (0..rounds).fold(x.to_vec(), |x, _| {
        let signed: Vec<f64> = x.iter().zip(signs).map(|(x, s)| x * s).collect();
        h.times(&signed).iter().map(|y| y * scale).collect()
    })
}

/// The number of the nearest codeword, the lowest of equals.
pub fn nearest(codewords: &[f64], x: f64) -> usize {
    let mut best = 0;
    for (i, c) in codewords.iter().enumerate() {
        if (x - c).abs() < (x - codewords[best]).abs() {
            best = i;
        }
    }
    best
}

/// One coordinate of a uniform unit vector in `dim` dimensions, density ∝ (1-x²)^((dim-3)/2), as masses on a fine grid.
pub struct Marginal {
    /// Cumulative mass, first and second moment at the grid's edges.
    sums: Vec<[f64; 3]>,
    /// Cumulative mass of the density's cube root, which optimal codewords tend to as they grow many.
    cube_root: Vec<f64>,
    half_width: f64,
}

impl Marginal {
    pub fn new(dim: usize) -> Self {
        const STEPS: usize = 120_000;
        let half_width = 1.0f64.min(12.0 / (dim as f64).sqrt());
        let step = 2.0 * half_width / STEPS as f64;
        let mut sums = vec![[0.0; 3]];
        let mut sum = [0.0; 3];
        let mut cube_root = vec![0.0];
        for i in 0..STEPS {
            let x = -half_width + (i as f64 + 0.5) * step;
            let mass = (1.0 - x * x).max(0.0).powf((dim as f64 - 3.0) / 2.0);
            for (power, sum) in sum.iter_mut().enumerate() {
                *sum += mass * x.powi(power as i32);
            }
            sums.push(sum);
            cube_root.push(cube_root[i] + mass.cbrt());
        }
        for entry in &mut sums {
            *entry = entry.map(|moment| moment / sum[0]);
        }
        Self { sums, cube_root, half_width }
    }

    /// Mass, first and second moment below x.
    fn below(&self, x: f64) -> [f64; 3] {
        let steps = (self.sums.len() - 1) as f64;
        let at = ((x + self.half_width) / (2.0 * self.half_width) * steps).clamp(0.0, steps);
        let i = (at as usize).min(self.sums.len() - 2);
        let t = at - i as f64;
        [0, 1, 2].map(|m| self.sums[i][m] * (1.0 - t) + self.sums[i + 1][m] * t)
    }

    fn cell(&self, low: f64, high: f64) -> [f64; 3] {
        let (low, high) = (self.below(low), self.below(high));
        [0, 1, 2].map(|m| high[m] - low[m])
    }

    fn cells(&self, codewords: &[f64]) -> Vec<[f64; 3]> {
        let edge = |i: usize| match i {
            0 => -1.0,
            i if i == codewords.len() => 1.0,
            i => (codewords[i - 1] + codewords[i]) / 2.0,
        };
        (0..codewords.len()).map(|i| self.cell(edge(i), edge(i + 1))).collect()
    }

    /// The Lloyd-Max codewords: Lloyd's alternation from a start whose density is f^(1/3).
    pub fn lloyd_max(&self, levels: usize) -> Vec<f64> {
        let sigma = self.below(1.0)[2].sqrt();
        let steps = self.cube_root.len() - 1;
        let start = |i: usize| {
            let share = (i as f64 + 0.5) / levels as f64 * self.cube_root[steps];
            let at = self.cube_root.partition_point(|mass| *mass < share);
            (2.0 * at as f64 / steps as f64 - 1.0) * self.half_width
        };
        let mut codewords: Vec<f64> = (0..levels).map(start).collect();
        for _ in 0..4000 {
            let mut moved = 0.0f64;
            let cells = self.cells(&codewords);
            for (codeword, cell) in codewords.iter_mut().zip(cells) {
                if cell[0] > 1e-12 {
                    moved = moved.max((cell[1] / cell[0] - *codeword).abs());
                    *codeword = cell[1] / cell[0];
                }
            }
            if moved < 1e-6 * sigma {
                break;
            }
        }
        codewords
    }

    /// E‖u-û‖² over unit vectors u when every coordinate goes to its nearest codeword.
    pub fn distortion(&self, dim: usize, codewords: &[f64]) -> f64 {
        let error = |(cell, c): ([f64; 3], &f64)| cell[2] - 2.0 * c * cell[1] + c * c * cell[0];
        dim as f64 * self.cells(codewords).into_iter().zip(codewords).map(error).sum::<f64>()
    }
}

/// Integers with a scale for each group, as in the first lecture: exact scales and zeros, no f16.
pub fn integers(x: &[f64], bits: u32, group: usize, asymmetric: bool) -> Vec<f64> {
    let quantize = |group: &[f64]| -> Vec<f64> {
        let (min, max) = group.iter().fold((f64::MAX, f64::MIN), |(low, high), &x| (low.min(x), high.max(x)));
        let (zero, scale, low, high) = if asymmetric {
            let steps = f64::from((1 << bits) - 1);
            (min, (max - min) / steps, 0.0, steps)
        } else {
            let largest = f64::from((1 << (bits - 1)) - 1);
            (0.0, min.abs().max(max.abs()) / largest, -largest, largest)
        };
        group.iter().map(|x| ((x - zero) / scale).round_ties_even().clamp(low, high) * scale + zero).collect()
    };
    x.chunks(group).flat_map(quantize).collect()
}

/// softmax(K·q/√D)ᵀ·V.
pub fn attention(query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let scale = 1.0 / (query.len() as f64).sqrt();
    let logits: Vec<f64> = keys.iter().map(|key| dot(query, key) * scale).collect();
    let largest = logits.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut output = vec![0.0; query.len()];
    for (weight, value) in weights.iter().zip(values) {
        for (output, value) in output.iter_mut().zip(value) {
            *output += weight / total * value;
        }
    }
    output
}

/// E‖x-x̂‖²/E‖x‖² over rows.
pub fn distortion(x: &[f64], decoded: &[f64]) -> f64 {
    let residual: f64 = x.iter().zip(decoded).map(|(x, y)| (x - y) * (x - y)).sum();
    residual / dot(x, x)
}

pub fn to_f64(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}
