//! One lean page of a cache, from floats to bytes and back: the format in plain Rust, for someone who writes it in another language.
//!
//! The page has keys and values of `trellis` codecs, for any number of heads; keys are centred page by page, which is the default.
//! Read from top to bottom: random signs, rotation, sums, bits, the trellis code, norms, the centre, the page, its two products.
//! `docs/formats.md` and `docs/trellis.md` define the same in words, and `tests/reference.rs` compares this file with the library,
//! bit for bit. Nothing here is fast: the library's kernels compute the same numbers in other ways.
//!
//! Three rules make results bit-exact:
//! * Floats are IEEE f32. Each operation rounds once, and a multiplication and an addition are never fused.
//! * The order of a sum of floats is part of the format: [`dot`] has one, sums over tokens another. Sums of integers are exact.
//! * An f16 is rounded to nearest even.
//!
//! This file does not have:
//! * widths that are no power of two: their rotation begins with a small Hadamard matrix, see [`hadamard`];
//! * 3, 6 and 12 levels, whose codes have a plane of base-3 digits;
//! * the options `gain`, `scales` and `rounds`, and `graded`, which is two such codes of half the width;
//! * how `balance` and `prefix` are decided, and errors for values that f16 cannot hold.

use chacha20::ChaCha8Rng;
use half::f16;
use octaplex::codebook::{Codebook, TrellisBook, lloyd_max, trellis};
use rand_core::{Rng, SeedableRng};

/// Vectors shorter than this (2⁻³⁰) are zeros.
const SMALLEST_NORM: f32 = 1.0 / 1_073_741_824.0;

/// The code of the keys or of the values of a layer.
pub(super) struct Code {
    dim: usize,
    /// 1 or -1 for each channel.
    signs: Vec<f32>,
    /// The centroids of the trellis: integers, `kappa` of them to a standard deviation of a coordinate.
    book: TrellisBook,
    /// The size of one integer step in a rotated vector of length 1.
    unit: f32,
    /// The 32 levels of a page's centre.
    centre: Codebook,
}

impl Code {
    /// `role` is 0 for keys and 1 for values.
    pub(super) fn new(dim: usize, (levels, states): (usize, usize), seed: u64, layer: u32, role: u8) -> Self {
        assert!(dim.is_power_of_two() && levels.is_power_of_two(), "left out of the reference");
        let book = trellis(states, levels).unwrap();
        let unit = (1.0 / (f64::from(book.kappa()) * (dim as f64).sqrt())) as f32;
        Self { dim, signs: signs(dim, seed, layer, role), book, unit, centre: lloyd_max(dim, 32).unwrap() }
    }

    /// Bits of a coordinate's code, without its path bit.
    fn code_bits(&self) -> usize {
        self.book.codebook().levels().trailing_zeros() as usize
    }

    /// Bytes of a row without its norm: the path plane, then the plane of codes.
    fn row_bytes(&self) -> usize {
        self.dim.div_ceil(8) + (self.dim * self.code_bits()).div_ceil(8)
    }

    fn centre_bytes(&self) -> usize {
        2 + (5 * self.dim).div_ceil(8)
    }
}

/// Bytes of the norms of a page.
fn norm_bytes(tokens: usize) -> usize {
    3 + (6 * tokens).div_ceil(8)
}

// Rotation: it spreads a vector's energy over all coordinates, so that one table of centroids fits each of them.

/// The signs of a layer's keys or values: ChaCha8 with a seed that names what they are for. A bit 1 is a minus.
///
/// ```text
/// seed   "octaplex" 8 │ seed u64 │ layer u32 │ head u32, 0 │ role u8 │ purpose u8, 0 │ 0 … up to 32 bytes
/// ```
fn signs(dim: usize, seed: u64, layer: u32, role: u8) -> Vec<f32> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(b"octaplex");
    bytes[8..16].copy_from_slice(&seed.to_le_bytes());
    bytes[16..20].copy_from_slice(&layer.to_le_bytes());
    bytes[24] = role;
    let mut random = ChaCha8Rng::from_seed(bytes);
    let words: Vec<u64> = (0..dim.div_ceil(64)).map(|_| random.next_u64()).collect();
    (0..dim).map(|j| if words[j / 64] >> (j % 64) & 1 == 1 { -1.0 } else { 1.0 }).collect()
}

/// x ← H·x with Sylvester's matrix, not scaled: sums and differences of neighbours, then at distance 2, 4 and so on.
///
/// ```text
/// step 1   a b c d   →   a+b  a-b  c+d  c-d
/// step 2   p q r s   →   p+r  q+s  p-r  q-s
/// ```
///
/// Other widths first multiply runs of 12, 20 or 28 neighbours by a matrix of that order, and begin with that step.
fn hadamard(x: &mut [f32]) {
    let mut step = 1;
    while step < x.len() {
        for at in (0..x.len()).filter(|at| at / step % 2 == 0) {
            (x[at], x[at + step]) = (x[at] + x[at + step], x[at] - x[at + step]);
        }
        step *= 2;
    }
}

/// x multiplied by the signs, then by H, then by `scale`: 1/√D keeps its length.
fn rotated(code: &Code, x: &[f32], scale: f32) -> Vec<f32> {
    let mut y: Vec<f32> = x.iter().zip(&code.signs).map(|(x, sign)| x * sign).collect();
    hadamard(&mut y);
    y.iter().map(|y| y * scale).collect()
}

/// The way back: the same steps in the reverse order, since H/√D is its own inverse.
fn unrotated(code: &Code, x: &[f32]) -> Vec<f32> {
    let mut y = x.to_vec();
    hadamard(&mut y);
    y.iter().zip(&code.signs).map(|(y, sign)| y * inverse_sqrt(code.dim) * sign).collect()
}

fn inverse_sqrt(dim: usize) -> f32 {
    (1.0 / (dim as f64).sqrt()) as f32
}

// Sums and bits.

/// Σ a·b. Product i goes to lane i mod 16, in ascending order; then the upper half of the lanes is added to the lower, four times.
///
/// ```text
/// lanes 0 … 15   →   0 … 7 += 8 … 15   →   0 … 3 += 4 … 7   →   0, 1 += 2, 3   →   0 += 1
/// ```
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; 16];
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        lanes[i % 16] += a * b;
    }
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

/// The mean of rows: each channel's sum over the tokens in ascending order, divided by their number.
fn mean(rows: &[Vec<f32>]) -> Vec<f32> {
    let sum = |channel: usize| rows.iter().fold(0.0, |sum, row| sum + row[channel]);
    (0..rows[0].len()).map(|channel| sum(channel) / rows.len() as f32).collect()
}

/// Packs fields of `width` bits, one after the other, the lowest bit first. The last byte is filled up with zeros.
///
/// ```text
/// fields of 3 bits   a       b       c           bit 0 of a byte is on the right
/// bytes              │ c1 c0 b2 b1 b0 a2 a1 a0 │ … … … … … … … c2 │
/// ```
fn pack(fields: &[usize], width: usize) -> Vec<u8> {
    let mut bytes = vec![0; (fields.len() * width).div_ceil(8)];
    for (i, field) in fields.iter().enumerate() {
        for bit in 0..width {
            let at = i * width + bit;
            bytes[at / 8] |= ((field >> bit & 1) as u8) << (at % 8);
        }
    }
    bytes
}

/// Unpacks the fields that [`pack`] has written.
fn unpack(bytes: &[u8], width: usize, count: usize) -> Vec<usize> {
    let bit = |at: usize| usize::from(bytes[at / 8] >> (at % 8) & 1);
    (0..count).map(|i| (0..width).map(|b| bit(i * width + b) << b).sum()).collect()
}

fn read_f16(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

// The trellis code. A coordinate has a path bit and a code. Its window has its path bit and those of the ν coordinates
// before. Each window has its own few centroids, and the code names one of them.

/// The nearest centroid of a window: its code, and the centroid. A value half way between two takes the upper one.
fn nearest(code: &Code, window: usize, y: f32) -> (usize, i32) {
    let centroid = |k: usize| centroid(code, window, k);
    let mut k = 0;
    while k + 1 < code.book.codebook().levels() && y + y >= (centroid(k) + centroid(k + 1)) as f32 {
        k += 1;
    }
    (k, centroid(k))
}

/// The table lists the centroids of code 0 for all windows, then those of code 1, and so on.
fn centroid(code: &Code, window: usize, k: usize) -> i32 {
    let book = code.book.codebook();
    i32::from(book.centroids()[k * 2 * book.states() + window])
}

/// The window of each coordinate: ν + 1 neighbouring path bits, the newest one highest; before the first bit there are zeros.
///
/// ```text
/// path bits   u0 u1 u2 u3 u4 …      windows, ν = 3   of 0: u0 0  0  0
///                                                    of 1: u1 u0 0  0
///                                                    of 4: u4 u3 u2 u1
/// ```
fn windows(code: &Code, path: &[usize]) -> Vec<usize> {
    let (history, mut window) = (code.book.codebook().history(), 0);
    let mut next = |bit: &usize| {
        window = window >> 1 | bit << history;
        window
    };
    path.iter().map(&mut next).collect()
}

/// The path whose centroids are nearest to y, by Viterbi's algorithm. A state is the newest ν path bits, the newest one highest. A
/// window is a new state and the bit that it forgets, so it leads from one state to another:
///
/// ```text
/// window   u(t) u(t-1) … u(t-ν+1) u(t-ν)
/// new      ╰──────── ν bits ────╯                 = window >> 1
/// old           ╰──────── ν bits ──────╯          = window mod 2^ν
/// ```
///
/// For each state the search keeps the cost of the cheapest path into it. Of the two ways into a state, the one whose forgotten bit
/// is 1 wins only if it is strictly cheaper. The cheapest last state wins. Ties go to the smallest state, read with the newest bit
/// as bit 0 (this file stores that bit highest).
fn best_path(code: &Code, y: &[f32]) -> Vec<usize> {
    let states = code.book.codebook().states();
    let mut costs = vec![f32::INFINITY; states];
    costs[0] = 0.0; // the bits before the first are zeros
    let mut forgotten = vec![vec![0; states]; y.len()];
    for (y, forgotten) in y.iter().zip(&mut forgotten) {
        let cost = |window: usize| {
            let error = y - nearest(code, window, *y).1 as f32;
            costs[window % states] + error * error
        };
        let ways: Vec<[f32; 2]> = (0..states).map(|state| [cost(2 * state), cost(2 * state + 1)]).collect();
        for (state, [zero, one]) in ways.into_iter().enumerate() {
            forgotten[state] = usize::from(one < zero);
            costs[state] = if one < zero { one } else { zero };
        }
    }
    let order = |a: &usize, b: &usize| costs[*a].total_cmp(&costs[*b]);
    let newest_lowest = |a: &usize, b: &usize| a.reverse_bits().cmp(&b.reverse_bits());
    let mut state = (0..states).min_by(|a, b| order(a, b).then(newest_lowest(a, b))).unwrap();
    // Back from the end: the highest bit of a state is its coordinate's path bit.
    let mut path = vec![0; y.len()];
    for (bit, forgotten) in path.iter_mut().zip(&forgotten).rev() {
        *bit = 2 * state / states;
        state = (2 * state + forgotten[state]) % states;
    }
    path
}

/// Encodes a row into two planes and an f16 norm. The norm with the least error for these centroids is ‖x‖·⟨u, q⟩/⟨q, q⟩. Here u is
/// the rotated vector of length 1, and q has its centroids.
pub(super) fn encode_row(code: &Code, x: &[f32]) -> (Vec<u8>, f32) {
    let norm = dot(x, x).sqrt();
    let scale = if norm < SMALLEST_NORM { 0.0 } else { code.book.kappa() / norm };
    // The transform without its 1/√D: the scale has it, and `kappa` integer steps are a standard deviation of y.
    let y: Vec<f32> = rotated(code, x, 1.0).iter().map(|z| z * scale).collect();
    let path = best_path(code, &y);
    let chosen = windows(code, &path).into_iter().zip(&y).map(|(window, y)| nearest(code, window, *y));
    let (codes, centroids): (Vec<usize>, Vec<i32>) = chosen.unzip();
    let floats: Vec<f32> = centroids.iter().map(|c| *c as f32).collect();
    let square = code.unit * code.unit;
    let correlation = dot(&y, &floats) * square;
    let energy = centroids.iter().map(|c| c * c).sum::<i32>() as f32 * square;
    let stored = f16::from_f32(if energy > 0.0 { norm * (correlation / energy) } else { norm });
    if norm < SMALLEST_NORM || stored.to_bits() == 0 {
        return (vec![0; code.row_bytes()], 0.0); // nothing is left of it
    }
    ([pack(&path, 1), pack(&codes, code.code_bits())].concat(), stored.to_f32())
}

/// The centroids of a row: a window of path bits, a code, a look-up.
fn row_centroids(code: &Code, row: &[u8]) -> Vec<i32> {
    let (path, codes) = row.split_at(code.dim.div_ceil(8));
    let windows = windows(code, &unpack(path, 1, code.dim));
    let codes = unpack(codes, code.code_bits(), code.dim);
    windows.into_iter().zip(codes).map(|(window, k)| centroid(code, window, k)).collect()
}

/// A row as floats.
pub(super) fn decode_row(code: &Code, row: &[u8], norm: f32) -> Vec<f32> {
    let step = norm * code.unit;
    let rotated: Vec<f32> = row_centroids(code, row).iter().map(|c| *c as f32 * step).collect();
    unrotated(code, &rotated)
}

// Norms: those of a page lie together, six bits each, on a scale of 1, 2, 4 or 8 octaves below the largest.
//
// ```text
// f16 largest │ u8 log2 of the octaves │ codes of 6 bits, row after row
// ```

/// Returns the scale of 2^e octaves, in units of the largest norm over 32767. Code 0 is 0, and code 63 the largest. The codes between
/// are 2^e/64 octaves apart, as the nearest integers. Half the largest is 16383.5, and becomes 16383.
fn norm_scale(e: u8) -> Vec<i32> {
    let exact = |code: i32| 32767.0 * (-f64::from((63 - code) << e) / 64.0).exp2();
    (0..64).map(|code| if code == 0 { 0 } else { (exact(code) - 0.5).ceil() as i32 }).collect()
}

/// Chooses the scale with the least loss, then the nearest code of each norm; ties take the upper code. Scales are tried narrowest
/// first. The search stops at the first scale whose code 1 is at or below every norm that is not zero.
fn encode_norms(norms: &[f32]) -> Vec<u8> {
    let largest = norms.iter().fold(0.0, |largest: f32, norm| largest.max(*norm));
    let mut best = (f32::INFINITY, vec![0; norm_bytes(norms.len())]);
    let (unit, per_unit) = (largest / 32767.0, 32767.0 / largest);
    for e in 0..if largest == 0.0 { 0 } else { 4 } {
        let scale = norm_scale(e);
        let is_above =
            |norm: f32, code: usize| norm * per_unit >= 0.5 * (scale[code] + scale[code + 1]) as f32;
        let code = |norm: &f32| (0..63).filter(|code| is_above(*norm, *code)).count();
        let codes: Vec<usize> = norms.iter().map(code).collect();
        let mut loss = 0.0;
        for (norm, code) in norms.iter().zip(&codes).filter(|(norm, _)| **norm > 0.0) {
            let error = norm - scale[*code] as f32 * unit;
            loss += error * error / norm;
        }
        if loss < best.0 {
            let head = [&f16::from_f32(largest).to_le_bytes()[..], &[e]].concat();
            best = (loss, [head, pack(&codes, 6)].concat());
        }
        if norms.iter().all(|norm| *norm <= 0.0 || *norm >= scale[1] as f32 * unit) {
            break;
        }
    }
    best.1
}

fn decode_norms(bytes: &[u8], tokens: usize) -> Vec<f32> {
    let (unit, scale) = (read_f16(bytes) / 32767.0, norm_scale(bytes[2] % 4));
    unpack(&bytes[3..], 6, tokens).into_iter().map(|code| scale[code] as f32 * unit).collect()
}

// The centre of a page: the mean of its keys, minus that of the keys of all pages (the prefix centre).
//
// ```text
// f16 norm │ codes of 5 bits, coordinate after coordinate
// ```

/// Rotates the centre, and takes for each coordinate the nearest of 32 levels, the upper one half way.
fn encode_centre(code: &Code, centre: &[f32]) -> Vec<u8> {
    let (norm, book) = (dot(centre, centre).sqrt(), &code.centre);
    if norm < SMALLEST_NORM {
        return vec![0; code.centre_bytes()];
    }
    let (z, per_norm) = (rotated(code, centre, inverse_sqrt(code.dim)), 1.0 / norm);
    let middle = |pair: &[i16]| f32::from(pair[0] + pair[1]) * 0.5 * book.scale();
    let level = |z: &f32| book.centroids().windows(2).filter(|pair| z * per_norm >= middle(pair)).count();
    let codes: Vec<usize> = z.iter().map(level).collect();
    let levels: Vec<f32> = codes.iter().map(|k| f32::from(book.centroids()[*k]) * book.scale()).collect();
    let stored = f16::from_f32(dot(&z, &levels) / dot(&levels, &levels));
    [stored.to_le_bytes().to_vec(), pack(&codes, 5)].concat()
}

fn centre_centroids(code: &Code, bytes: &[u8]) -> Vec<i32> {
    let codes = unpack(&bytes[2..], 5, code.dim);
    codes.into_iter().map(|k| i32::from(code.centre.centroids()[k])).collect()
}

fn decode_centre(code: &Code, bytes: &[u8]) -> Vec<f32> {
    let step = read_f16(bytes) * code.centre.scale();
    let rotated: Vec<f32> = centre_centroids(code, bytes).iter().map(|c| *c as f32 * step).collect();
    unrotated(code, &rotated)
}

// The page.
//
// ```text
// position u64 │ head 0: keys, values │ head 1: keys, values │ … │ head 0: centre, norms of keys, norms of values │ head 1: … │
// ```

/// The rows of a head, one a token. Keys are divided by `balance`, then the prefix centre is subtracted; both are f16 numbers.
pub(super) struct Head {
    pub(super) keys: Vec<Vec<f32>>,
    pub(super) values: Vec<Vec<f32>>,
    pub(super) balance: Vec<f32>,
    pub(super) prefix: Vec<f32>,
}

/// Rows of planes, and the norms of all of them.
fn encode_rows(code: &Code, rows: &[Vec<f32>]) -> (Vec<u8>, Vec<u8>) {
    let (planes, norms): (Vec<_>, Vec<f32>) = rows.iter().map(|row| encode_row(code, row)).unzip();
    (planes.concat(), encode_norms(&norms))
}

/// Returns the bytes of a page. Keys lose the decoded centre, not the exact one, so that its error is in no score.
pub(super) fn encode_page(keys: &Code, values: &Code, position: u64, heads: &[Head]) -> Vec<u8> {
    let (mut page, mut behind) = (position.to_le_bytes().to_vec(), Vec::new());
    for head in heads {
        let relative = |key: &Vec<f32>| {
            let channels = key.iter().zip(&head.balance).zip(&head.prefix);
            channels.map(|((x, s), prefix)| x / s - prefix).collect()
        };
        let mut rows: Vec<Vec<f32>> = head.keys.iter().map(relative).collect();
        let centre = encode_centre(keys, &mean(&rows));
        let decoded = decode_centre(keys, &centre);
        rows.iter_mut().for_each(|row| row.iter_mut().zip(&decoded).for_each(|(x, centre)| *x -= centre));
        let (key_planes, key_norms) = encode_rows(keys, &rows);
        let (value_planes, value_norms) = encode_rows(values, &head.values);
        page.extend([key_planes, value_planes].concat());
        behind.extend([centre, key_norms, value_norms].concat());
    }
    [page, behind].concat()
}

/// The parts of one head of a page.
pub(super) struct Parts<'a> {
    keys: &'a [u8],
    values: &'a [u8],
    centre: &'a [u8],
    key_norms: Vec<f32>,
    value_norms: Vec<f32>,
}

/// Finds the parts of a head of a page of `heads` heads and `tokens` tokens.
pub(super) fn parts<'a>(
    (keys, values): (&Code, &Code),
    page: &'a [u8],
    (head, heads): (usize, usize),
    tokens: usize,
) -> Parts<'a> {
    let (key_planes, value_planes) = (tokens * keys.row_bytes(), tokens * values.row_bytes());
    let (centre, norms) = (keys.centre_bytes(), norm_bytes(tokens));
    let planes = &page[8 + head * (key_planes + value_planes)..];
    let behind = &page[8 + heads * (key_planes + value_planes) + head * (centre + 2 * norms)..];
    Parts {
        keys: &planes[..key_planes],
        values: &planes[key_planes..][..value_planes],
        centre: &behind[..centre],
        key_norms: decode_norms(&behind[centre..][..norms], tokens),
        value_norms: decode_norms(&behind[centre + norms..][..norms], tokens),
    }
}

/// The keys of a head as floats: balance · (row + centre + prefix centre).
pub(super) fn decode_keys(code: &Code, parts: &Parts, balance: &[f32], prefix: &[f32]) -> Vec<Vec<f32>> {
    let centre = decode_centre(code, parts.centre);
    let whole = |(row, norm): (&[u8], &f32)| {
        let row = decode_row(code, row, *norm);
        (0..code.dim).map(|c| (row[c] + centre[c] + prefix[c]) * balance[c]).collect()
    };
    parts.keys.chunks(code.row_bytes()).zip(&parts.key_norms).map(whole).collect()
}

/// The values of a head as floats.
pub(super) fn decode_values(code: &Code, parts: &Parts) -> Vec<Vec<f32>> {
    let rows = parts.values.chunks(code.row_bytes()).zip(&parts.value_norms);
    rows.map(|(row, norm)| decode_row(code, row, *norm)).collect()
}

/// Returns the score q·k of each key, from its bytes. Nothing is rotated back, because rotated vectors have the same products. The
/// rotated query becomes integers of at most ±127, once for all pages. A score is then a sum of integers and a few multiplications.
///
/// ```text
/// score = q·prefix + q·centre + q·row          the first in floats, the others in integers
/// ```
pub(super) fn scores(code: &Code, parts: &Parts, query: &[f32], balance: &[f32], prefix: &[f32]) -> Vec<f32> {
    let query: Vec<f32> = query.iter().zip(balance).map(|(q, s)| q * s).collect();
    let z = rotated(code, &query, inverse_sqrt(code.dim));
    let largest = z.iter().fold(0.0, |largest: f32, z| largest.max(z.abs()));
    let factor = 127.0 / largest;
    let vanishes = factor.is_infinite();
    let integer = |z: &f32| if vanishes { 0 } else { (z * factor).round_ties_even() as i32 };
    let integers: Vec<i32> = z.iter().map(integer).collect();
    let step = if vanishes { 0.0 } else { largest / 127.0 };
    let score = |centroids: Vec<i32>, unit: f32, norm: f32| {
        let sum: i32 = integers.iter().zip(centroids).map(|(q, c)| q * c).sum();
        sum as f32 * (step * unit) * norm
    };
    let centre = score(centre_centroids(code, parts.centre), code.centre.scale(), read_f16(parts.centre));
    let offset = dot(&query, prefix) + centre;
    let rows = parts.keys.chunks(code.row_bytes()).zip(&parts.key_norms);
    rows.map(|(row, norm)| score(row_centroids(code, row), code.unit, *norm) + offset).collect()
}

/// Adds Σ weight·value to `sums`, which stay rotated. The products weight · norm become integers of at most ±32767, so that the sum
/// over the page is one of integers; one multiplication and addition a coordinate closes the page.
pub(super) fn add_values(code: &Code, parts: &Parts, weights: &[f32], sums: &mut [f32]) {
    let products: Vec<f32> = parts.value_norms.iter().zip(weights).map(|(norm, w)| norm * w).collect();
    let largest = products.iter().fold(0.0, |largest: f32, product| largest.max(product.abs()));
    if largest < 2f32.powi(-100) {
        return; // a page that adds nothing
    }
    let (factor, unit) = (32767.0 / largest, largest / 32767.0 * code.unit);
    let mut integers = vec![0; code.dim];
    for (row, product) in parts.values.chunks(code.row_bytes()).zip(products) {
        let weight = (product * factor).round_ties_even() as i32;
        integers.iter_mut().zip(row_centroids(code, row)).for_each(|(sum, c)| *sum += weight * c);
    }
    sums.iter_mut().zip(integers).for_each(|(sum, integer)| *sum += integer as f32 * unit);
}

/// The sums of all pages, rotated back once.
pub(super) fn finish(code: &Code, sums: &[f32]) -> Vec<f32> {
    unrotated(code, sums)
}
