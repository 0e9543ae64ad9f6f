//! Lloyd-Max quantisers of symmetric, log-concave densities, to the last bits of f64.
//!
//! A codebook is optimal when each threshold is the midpoint of its neighbouring centroids and each centroid
//! is the mean of the density over its cell. The density is symmetric and log-concave, which makes the
//! optimum unique and antisymmetric, so only the centroids above zero are unknown. Lloyd's alternation of the
//! two conditions slows as the levels grow, far too much at 256; Newton's method needs six steps or fewer.
//!
//! The same text must come out on every machine: hence `libm` for transcendental functions.

/// A density on `[-end, end]`, and a rule to integrate it.
pub(crate) struct Marginal {
    /// The density, for arguments from zero up; of any scale.
    density: Box<dyn Fn(f64) -> f64>,
    end: f64,
    /// About one standard deviation.
    deviation: f64,
    rule: Vec<(f64, f64)>,
}

impl Marginal {
    pub(crate) fn new(end: f64, deviation: f64, density: impl Fn(f64) -> f64 + 'static) -> Self {
        Self { density: Box::new(density), end, deviation, rule: gauss_legendre(16) }
    }

    fn density(&self, x: f64) -> f64 {
        (self.density)(x)
    }

    /// Integrals of `f(x)`, `(x - c) f(x)` and `(x - c)² f(x)` over the cell `[low, high]`.
    ///
    /// Moments about the centroid `c` rather than about zero keep their digits when the cell is narrow.
    /// The cell is cut into panels of at most one standard deviation. A 16-point rule is exact to rounding error on each of
    /// them.
    pub(crate) fn moments(&self, c: f64, low: f64, high: f64) -> [f64; 3] {
        let panels = ((high - low) / self.deviation).ceil();
        let half_width = (high - low) / panels / 2.0;
        let mut sums = [0.0; 3];
        for panel in 0..panels as usize {
            let middle = low + (2 * panel + 1) as f64 * half_width;
            for &(node, weight) in &self.rule {
                let x = middle + half_width * node;
                let mass = half_width * weight * self.density(x);
                sums[0] += mass;
                sums[1] += (x - c) * mass;
                sums[2] += (x - c) * (x - c) * mass;
            }
        }
        sums
    }
}

/// Nodes and weights of Gauss-Legendre quadrature on [-1, 1]: the roots of the Legendre polynomial of degree
/// `n`, by Newton's method from their asymptotic positions.
pub(crate) fn gauss_legendre(n: usize) -> Vec<(f64, f64)> {
    let node = |i: usize| {
        let mut x = libm::cos(std::f64::consts::PI * (i as f64 + 0.75) / (n as f64 + 0.5));
        let mut slope = 0.0;
        for _ in 0..8 {
            let (mut previous, mut value) = (1.0, x);
            for k in 2..=n {
                let k = k as f64;
                (previous, value) = (value, ((2.0 * k - 1.0) * x * value - (k - 1.0) * previous) / k);
            }
            slope = n as f64 * (x * value - previous) / (x * x - 1.0);
            x -= value / slope;
        }
        (x, 2.0 / ((1.0 - x * x) * slope * slope))
    };
    (0..n).map(node).collect()
}

/// Returns the start of Newton's method. For many levels, the density of optimal centroids tends to `f^(1/3)`, so they start
/// at evenly spaced quantiles of that.
fn companding_start(marginal: &Marginal, levels: usize) -> Vec<f64> {
    const STEPS: usize = 2000;
    let at = |step: usize| step as f64 / STEPS as f64 * marginal.end;
    let mut cumulative = vec![0.0];
    for step in 0..STEPS {
        cumulative.push(cumulative[step] + libm::cbrt(marginal.density(at(step) + at(1) / 2.0)));
    }
    let quantile = |q: f64| {
        let target = q * cumulative[STEPS];
        let step = cumulative.partition_point(|&c| c <= target) - 1;
        at(step) + (target - cumulative[step]) / (cumulative[step + 1] - cumulative[step]) * at(1)
    };
    // Quantiles of the upper half: 1, 3, 5, ... over an even `levels`; 2, 4, 6, ... over an odd one.
    (0..levels / 2).map(|i| quantile((2 * i + 1 + levels % 2) as f64 / levels as f64)).collect()
}

/// Ends of the cells of the centroids above zero: one more than there are centroids.
fn cell_ends(marginal: &Marginal, upper: &[f64], levels: usize) -> Vec<f64> {
    // The lowest cell begins at zero, or halfway to the centroid at zero.
    let first = if levels.is_multiple_of(2) { 0.0 } else { upper[0] / 2.0 };
    let midpoints = upper.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    std::iter::once(first).chain(midpoints).chain([marginal.end]).collect()
}

/// The Newton step for `g_i = ∫ (c_i - x) f(x) dx = 0`, with the integral over cell `i`.
///
/// Moving an end `b` of cell `i` changes `g_i` by `±(c_i - b) f(b)`, and an end moves half as far as either
/// adjacent centroid, so the Jacobian is symmetric and tridiagonal.
fn newton_step(marginal: &Marginal, upper: &[f64], levels: usize) -> Vec<f64> {
    let n = upper.len();
    let ends = cell_ends(marginal, upper, levels);
    // `pull[i]`: coupling of the centroids on the two sides of `ends[i]`. An end that is fixed has none.
    let mut pull: Vec<f64> =
        (0..n).map(|i| (upper[i] - ends[i]) * marginal.density(ends[i]) / 2.0).chain([0.0]).collect();
    if levels.is_multiple_of(2) {
        pull[0] = 0.0;
    }
    // Thomas' algorithm: eliminate downwards, substitute upwards.
    let (mut pivot, mut step) = (vec![0.0; n], vec![0.0; n]);
    for i in 0..n {
        let [mass, offset, _] = marginal.moments(upper[i], ends[i], ends[i + 1]);
        (pivot[i], step[i]) = (mass - pull[i] - pull[i + 1], offset);
        if i > 0 {
            let factor = pull[i] / pivot[i - 1];
            pivot[i] -= factor * pull[i];
            step[i] += factor * step[i - 1];
        }
    }
    for i in (0..n).rev() {
        let above = if i + 1 < n { pull[i + 1] * step[i + 1] } else { 0.0 };
        step[i] = (step[i] + above) / pivot[i];
    }
    step
}

/// The centroids above zero of the optimal codebook.
pub(crate) fn optimal_centroids(marginal: &Marginal, levels: usize) -> Vec<f64> {
    let mut upper = companding_start(marginal, levels);
    // The start is too spread out in the tail, where Newton's method would overshoot and never return. Two
    // of Lloyd's rounds (each centroid moves to the mean of its cell) cure that; ten are ample.
    for _ in 0..10 {
        let ends = cell_ends(marginal, &upper, levels);
        for (i, c) in upper.iter_mut().enumerate() {
            let [mass, offset, _] = marginal.moments(*c, ends[i], ends[i + 1]);
            *c += offset / mass;
        }
    }
    // Six steps suffice; the last one is below the rounding error, since each squares the error.
    for _ in 0..20 {
        let step = newton_step(marginal, &upper, levels);
        upper.iter_mut().zip(&step).for_each(|(c, s)| *c += s);
        if step.iter().all(|s| s.abs() < 1e-12 * upper[upper.len() - 1]) {
            return upper;
        }
    }
    unreachable!("Newton's method does not converge for {levels} levels")
}
