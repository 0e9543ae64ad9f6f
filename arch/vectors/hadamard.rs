//! Hadamard matrices of order 12, 20 and 28, for widths that are no powers of two.
//!
//! The compiler computes the row masks. Bit `c` of `ROWS[r]` is set where H\[r]\[c] = -1. χ is the
//! Legendre symbol mod q, and Q\[a]\[b] = χ(a-b).
//!
//! * Paley I (q ≡ 3 mod 4 prime, order q+1): H = I + [[0, 1ᵀ], [-1, Q]]. It is not symmetric; its
//!   inverse is Hᵀ/n.
//! * Paley II (q ≡ 1 mod 4, order 2(q+1)): in the symmetric [[0, 1ᵀ], [1, Q]] each 0 becomes [[1,
//!   -1], [-1, -1]], and each ±1 becomes ±[[1, 1], [1, -1]].

/// Returns whether `value` is a square mod q.
const fn is_square(value: usize, q: usize) -> bool {
    let mut root = 1;
    while root < q {
        if root * root % q == value {
            return true;
        }
        root += 1;
    }
    false
}

/// Returns whether χ(a-b) is -1, for a ≠ b.
const fn non_residue(a: usize, b: usize, q: usize) -> bool {
    !is_square((a + q - b) % q, q)
}

/// Computes the matrix of Paley I of order N, as row masks.
const fn paley_1<const N: usize>() -> [u32; N] {
    let mut rows = [0; N];
    let mut r = 0;
    while r < N {
        let mut c = 0;
        while c < N {
            let minus = match (r, c) {
                (0, _) => false,
                (_, 0) => true,
                _ => r != c && non_residue(r - 1, c - 1, N - 1),
            };
            rows[r] |= (minus as u32) << c;
            c += 1;
        }
        r += 1;
    }
    rows
}

/// Computes the matrix of Paley II of order N, as row masks.
const fn paley_2<const N: usize>() -> [u32; N] {
    let mut rows = [0; N];
    let q = N / 2 - 1;
    let mut r = 0;
    while r < N {
        let mut c = 0;
        while c < N {
            let (block_r, block_c, low_r, low_c) = (r / 2, c / 2, r % 2, c % 2);
            let minus = if block_r == block_c {
                low_r + low_c > 0
            } else {
                let negative = block_r > 0 && block_c > 0 && non_residue(block_r - 1, block_c - 1, q);
                (low_r + low_c == 2) != negative
            };
            rows[r] |= (minus as u32) << c;
            c += 1;
        }
        r += 1;
    }
    rows
}

/// The signs of a matrix, column by column: the factors of `x[column]` on its way into `y[row]`.
pub(crate) struct Signs<const N: usize> {
    /// Sign masks: 0 or the sign bit.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
    pub(crate) masks: [[u32; N]; N],
    /// Bit `row` of a column is set for -1. Microcontrollers use this form: ten kilobytes of masks
    /// are too much, and a shift is cheaper than a load.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128")))]
    columns: [u32; N],
}

impl<const N: usize> Signs<N> {
    /// Builds the signs of a matrix or of its transpose.
    const fn new(rows: [u32; N], transpose: bool) -> Self {
        let columns = if transpose { rows } else { columns(rows) };
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
        return Self { masks: masks(columns) };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128")))]
        return Self { columns };
    }

    /// Returns the sign mask of an entry: 0 or the sign bit.
    #[inline(always)]
    fn mask(&self, column: usize, row: usize) -> u32 {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
        return self.masks[column][row];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128")))]
        return self.columns[column] >> row << 31;
    }
}

/// Transposes a matrix of bits.
const fn columns<const N: usize>(rows: [u32; N]) -> [u32; N] {
    let mut columns = [0; N];
    let mut r = 0;
    while r < N {
        let mut c = 0;
        while c < N {
            columns[c] |= ((rows[r] >> c) & 1) << r;
            c += 1;
        }
        r += 1;
    }
    columns
}

/// Expands bits to sign masks.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
const fn masks<const N: usize>(columns: [u32; N]) -> [[u32; N]; N] {
    let mut masks = [[0; N]; N];
    let mut c = 0;
    while c < N {
        let mut r = 0;
        while r < N {
            masks[c][r] = columns[c] >> r << 31;
            r += 1;
        }
        c += 1;
    }
    masks
}

/// The matrix of order 12 and its transpose.
pub(crate) static H12: [Signs<12>; 2] = [Signs::new(paley_1(), false), Signs::new(paley_1(), true)];
/// The matrix of order 20 and its transpose.
pub(crate) static H20: [Signs<20>; 2] = [Signs::new(paley_1(), false), Signs::new(paley_1(), true)];
/// The matrix of order 28 and its transpose.
pub(crate) static H28: [Signs<28>; 2] = [Signs::new(paley_2(), false), Signs::new(paley_2(), true)];

/// Returns the base of a width: 1, 12, 20, 28 or 144 = 12·12, with `width` = base · 2ⁿ. `None` if
/// no Hadamard matrix of that order is offered.
#[must_use]
pub const fn base(width: usize) -> Option<usize> {
    const BASES: [usize; 5] = [1, 12, 20, 28, 144];
    let mut i = 0;
    while i < BASES.len() {
        let base = BASES[i];
        if width > 0 && width.is_multiple_of(base) && (width / base).is_power_of_two() {
            return Some(base);
        }
        i += 1;
    }
    None
}

/// Multiplies each run of `base` coordinates by the base matrix or its transpose. Returns `base`,
/// the step of the first butterfly.
///
/// A base of 144 multiplies twice by the matrix of order 12: first 12 neighbours, then coordinates
/// 12 apart.
#[cfg_attr(target_os = "none", inline(never))] // so that both directions share it
#[cfg_attr(not(target_os = "none"), inline(always))]
pub(crate) fn base_pass(x: &mut [f32], transpose: bool) -> usize {
    let base = base(x.len()).unwrap_or(1);
    match base {
        12 => contiguous(&H12[usize::from(transpose)], x),
        20 => contiguous(&H20[usize::from(transpose)], x),
        28 => contiguous(&H28[usize::from(transpose)], x),
        144 => {
            contiguous(&H12[usize::from(transpose)], x);
            strided_12(&H12[usize::from(transpose)], x);
        }
        _ => {}
    }
    base
}

/// Multiplies each run of N coordinates: y = Σ ±x\[column], columns in ascending order.
#[inline(always)]
fn contiguous<const N: usize>(signs: &Signs<N>, x: &mut [f32]) {
    for run in x.as_chunks_mut::<N>().0 {
        let mut y = [0.0f32; N];
        for row in 0..N {
            y[row] = f32::from_bits(run[0].to_bits() ^ signs.mask(0, row));
        }
        for column in 1..N {
            for row in 0..N {
                y[row] += f32::from_bits(run[column].to_bits() ^ signs.mask(column, row));
            }
        }
        *run = y;
    }
}

/// Multiplies coordinates that are 12 apart, for a base of 144.
#[inline(always)]
fn strided_12(signs: &Signs<12>, x: &mut [f32]) {
    for run in x.as_chunks_mut::<144>().0 {
        let mut y = [0.0f32; 144];
        for (row, y) in y.as_chunks_mut::<12>().0.iter_mut().enumerate() {
            for low in 0..12 {
                y[low] = f32::from_bits(run[low].to_bits() ^ signs.mask(0, row));
            }
            for column in 1..12 {
                for low in 0..12 {
                    y[low] += f32::from_bits(run[12 * column + low].to_bits() ^ signs.mask(column, row));
                }
            }
        }
        *run = y;
    }
}
