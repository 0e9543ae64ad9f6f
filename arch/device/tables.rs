//! What kernels look codes up in.

use crate::quaternions::layout::{ChunkLayout, QuaternionSet, UNITS};
use crate::quaternions::scalar;
use crate::{BLOCK_BYTES, BLOCK_VALUES, BlockBook, Search, TrellisCodebook, TripletLayout};
use alloc::vec::Vec;

/// How a row of keys or of values is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeShape {
    /// Codes of so many bits: 2, 3 or 4, with centroids that are antisymmetric.
    Codes(u8),
    /// A trellis of 8 states with codes of so many bits: 1, 2 or 3.
    Trellis(u8),
    /// Integers of so many bits, 4 or 8, with a scale in f16 before each row.
    Int(u8),
    /// Triplets, of keys alone: bits of ξ and of η, of a radius, of a coordinate left over (0: none is on its own).
    Triplets([u8; 3]),
    /// Small blocks, of keys alone, of codes of 3 bits (2 and a sign are the same), each with a scale in f16.
    Blocks,
    /// Chunks of four values, of keys alone: members of the set, bits of a radius, 1 where codes are in mixed radix.
    Chunks([u8; 3]),
}

impl CodeShape {
    /// As the kernels' source has it.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Codes(bits) => bits.into(),
            Self::Trellis(bits) => 10 + u32::from(bits),
            Self::Int(bits) => 30 + u32::from(bits),
            Self::Triplets(_) => 20,
            Self::Blocks => 43,
            Self::Chunks(_) => 50,
        }
    }

    /// What is to be known of triplets and chunks, as the kernels' source has it.
    pub(super) fn triplets(self) -> u32 {
        match self {
            Self::Triplets([first, second, third]) | Self::Chunks([first, second, third]) => {
                u32::from(first) << 8 | u32::from(second) << 4 | u32::from(third)
            }
            _ => 0,
        }
    }

    /// Bytes of a row of this width as the CPU has it.
    pub(super) fn row(self, dim: usize) -> usize {
        match self {
            Self::Codes(bits) => dim * usize::from(bits) / 8,
            Self::Trellis(bits) => dim * (1 + usize::from(bits)) / 8,
            Self::Int(bits) => 2 + dim * usize::from(bits) / 8,
            Self::Triplets(_) => (dim.div_ceil(3) * self.field()).div_ceil(8),
            Self::Blocks => dim / BLOCK_VALUES * BLOCK_BYTES,
            Self::Chunks([members, radius_bits, radix]) => {
                let layout =
                    ChunkLayout { chunks: dim / 4, members, radius_bits, radix: radix == 1, flags: false };
                layout.row_bytes()
            }
        }
    }

    /// Scales of a row on the card, or norms.
    pub(super) fn scales(self, dim: usize) -> usize {
        if self == Self::Blocks { dim / BLOCK_VALUES } else { 1 }
    }

    /// Whether scales lie in rows, and a page's centre is f16.
    pub(super) fn in_rows(self) -> bool {
        matches!(self, Self::Int(_) | Self::Blocks | Self::Chunks(_))
    }

    /// Bytes of a row on the card.
    pub(super) fn card_row(self, dim: usize) -> usize {
        match self {
            Self::Triplets(_) | Self::Chunks(_) => 16 * (self.each_fields(dim) * self.field()).div_ceil(32),
            Self::Int(bits) => dim.next_multiple_of(32) * usize::from(bits) / 8,
            Self::Blocks => dim * 3 / 8,
            _ => self.row(dim.next_multiple_of(32)),
        }
    }

    /// Bytes of a page's norms.
    pub(super) fn norms(self, tokens: usize) -> usize {
        if self.in_rows() { 0 } else { 3 + tokens * 6 / 8 }
    }

    /// Bytes of operands that a key takes.
    pub(super) fn operands(self, dim: usize) -> usize {
        match self {
            Self::Triplets(_) | Self::Chunks(_) => 32 * self.each_fields(dim).div_ceil(2),
            _ => dim.next_multiple_of(32),
        }
    }

    /// Bits of a triplet; of a chunk those of a direction, of which opposites are one, and of a radius with a sign.
    fn field(self) -> usize {
        match self {
            Self::Chunks([members, radius_bits, _]) => {
                let directions = 12 * u32::from(members);
                (u32::BITS - (directions - 1).leading_zeros()) as usize + usize::from(radius_bits) + 1
            }
            Self::Triplets([direction, radius, _]) => 2 * usize::from(direction) + usize::from(radius),
            _ => 0,
        }
    }

    /// Triplets or chunks of a row that a thread of four has.
    fn each_fields(self, dim: usize) -> usize {
        dim.div_ceil(if matches!(self, Self::Chunks(_)) { 4 } else { 3 }).div_ceil(4)
    }
}

/// A table of 32 words, and what one integer of it is worth; how vectors are rotated.
#[derive(Clone, Debug)]
pub struct Tables {
    pub(super) shape: CodeShape,
    pub(super) words: [u32; 32],
    pub(super) unit: f32,
    pub(super) signs: [u32; 8],
    pub(super) rounds: u32,
    /// What encoding needs: which norm is stored (as the kernels number them; of small blocks the last code), integers to a standard
    /// deviation of a trellis, all centroids, by code and of a trellis by code · 16 + window (of small blocks eight, then their
    /// thresholds), and codes alone by cells.
    pub(super) gain: u32,
    pub(super) kappa: f32,
    pub(super) centroids: [f32; 128],
    pub(super) cells: Cells,
    /// What fields of triplets and chunks stand for, as the kernels have it.
    pub(super) triplets: Vec<u32>,
    /// What the search for them looks up: `Search` of the kernels; of chunks the set's members.
    pub(super) search: Vec<u32>,
}

/// Codes of coordinates of a unit vector by one look-up, as the kernels take it: a line from the first threshold to the last puts each into
/// one of 32 cells of its own. A cell has its threshold, and, 16 bits each, code + 256 · (centroid + 128) below it and from it on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells {
    slope: f32,
    offset: f32,
    cells: [[u32; 2]; 32],
}

impl Cells {
    const NONE: Self = Self { slope: 0.0, offset: 0.0, cells: [[0; 2]; 32] };

    /// `None` where two thresholds share a cell. There is one more centroid than thresholds.
    fn new(thresholds: &[f32], centroids: &[i16]) -> Option<Self> {
        let (low, high) = (*thresholds.first()?, *thresholds.last()?);
        let slope = 1.0 / (high - low);
        let mut all = Self { slope, offset: -low * slope, cells: [[f32::INFINITY.to_bits(), 0]; 32] };
        let side = |code: usize| code as u32 | ((centroids[code] + 128) as u32) << 8;
        let mut last = None;
        for (number, threshold) in thresholds.iter().enumerate() {
            let cell = all.cell(*threshold);
            let from = last.map_or(0, |last| last + 1);
            if cell < from {
                return None;
            }
            all.cells[from..cell].iter_mut().for_each(|own| own[1] = side(number));
            all.cells[cell] = [threshold.to_bits(), side(number) | side(number + 1) << 16];
            last = Some(cell);
        }
        all.cells[last? + 1..].iter_mut().for_each(|own| own[1] = side(thresholds.len()));
        Some(all)
    }

    /// As `found_in` of the kernels has it.
    fn cell(&self, y: f32) -> usize {
        along(y, self.slope, self.offset) / 8
    }
}

/// Which of 256 pieces of a line from 0 to 1 a value is taken to.
fn along(y: f32, slope: f32, offset: f32) -> usize {
    let along = y.mul_add(slope, offset).clamp(0.0, 1.0);
    (along.mul_add(255.0, 8_388_608.0).to_bits() & 0xFF) as usize
}

/// Cells of the coordinates of a triplet's map, -1 to 1.
const MAP_CELLS: usize = 64;

/// Of each cell the threshold in it, and how many are below. `None` where two share one.
fn map_cells(thresholds: &[f32]) -> Option<[[u32; MAP_CELLS]; 2]> {
    let mut cells = [[f32::INFINITY.to_bits(); MAP_CELLS], [0; MAP_CELLS]];
    let mut next = 0;
    for (number, threshold) in thresholds.iter().enumerate() {
        let cell = along(*threshold, 0.5, 0.5) / (256 / MAP_CELLS);
        if cell < next {
            return None;
        }
        cells[1][next..=cell].fill(number as u32);
        cells[0][cell] = threshold.to_bits();
        next = cell + 1;
    }
    cells[1][next..].fill(thresholds.len() as u32);
    Some(cells)
}

/// Between each two of them.
fn midpoints(centroids: impl Iterator<Item = f32> + Clone) -> impl Iterator<Item = f32> {
    centroids.clone().zip(centroids.skip(1)).map(|(a, b)| (a + b) * 0.5)
}

/// What the search for triplets of this layout looks up.
fn search_of(layout: &TripletLayout, search: Search) -> Option<Vec<u32>> {
    let (coordinates, bits) = (layout.coordinates, |x: f32| x.to_bits());
    let nearest = matches!(search, Search::Nearest | Search::Neighbours);
    let thresholds: Vec<f32> =
        if nearest { midpoints(coordinates.iter().copied()).collect() } else { coordinates.to_vec() };
    let all = coordinates.len() as u32;
    let (before, behind) = match search {
        Search::Nearest => (0, 0),
        Search::Bracket => (1, 0),
        Search::Neighbours => (1, 1),
        Search::All => (all, all),
    };
    let mut words = alloc::vec![before, behind, (search == Search::Nearest).into()];
    words.extend(map_cells(&thresholds)?.as_flattened());
    words.extend(coordinates.iter().copied().map(bits));
    // By codes, not by ranks: a kernel has the former anyway.
    let (count, half) = (coordinates.len(), coordinates.len() / 2);
    if count != 1 << layout.direction_bits || layout.lengths.len() != half * half {
        return None;
    }
    let rank = |code: usize| if code < half { half - 1 - code } else { code - half };
    words.extend(
        (0..count * count).map(|at| bits(layout.lengths[rank(at / count) * half + rank(at % count)])),
    );
    // Bytes that are not negative, which a kernel makes floats of by bits alone.
    words.extend(layout.directions.iter().map(|x| u32::from_le_bytes(x.map(|x| x as u8 ^ 0x80))));
    words.extend(layout.radii.iter().copied().map(bits));
    words.extend(midpoints(layout.radii.iter().copied()).chain([f32::INFINITY]).map(bits));
    if layout.rest.is_empty() {
        words.extend([0, 0]);
    } else {
        let rest = layout.rest.iter().map(|centroid| f32::from(*centroid));
        words.extend(rest.clone().map(|x| bits(x * layout.rest_scale)));
        words.extend(midpoints(rest).map(|x| bits(x * layout.rest_scale)).chain([bits(f32::INFINITY)]));
    }
    Some(words)
}

/// How rows are rotated, and which norm is stored of them.
#[derive(Clone, Copy, Debug)]
pub struct Rotated<'a> {
    /// One mask a coordinate, whose highest bit counts.
    pub signs: &'a [u32],
    /// Rounds of signs and transform.
    pub rounds: u8,
    /// 0: the least squared error; 1: no bias of products; 2: the row's own.
    pub gain: u8,
}

fn word(bytes: [i16; 4]) -> u32 {
    u32::from_le_bytes(bytes.map(|byte| byte as i8 as u8))
}

impl Tables {
    /// Codes that stand for these centroids, 4, 8 or 16 of them, each `unit`, and change at these thresholds, one less. `None` for other
    /// numbers of them, centroids that are not antisymmetric, and thresholds of which two are very close.
    #[must_use]
    pub fn codes(centroids: &[i16], thresholds: &[f32], unit: f32, rotated: Rotated) -> Option<Self> {
        let last = centroids.len().wrapping_sub(1);
        let antisymmetric =
            centroids.iter().enumerate().all(|(i, c)| *c == -centroids[last - i] && c.abs() <= 127);
        if !matches!(centroids.len(), 4 | 8 | 16) || !antisymmetric || thresholds.len() != last {
            return None;
        }
        let mut words = [0; 32];
        let fours = centroids.as_chunks::<4>().0;
        if centroids.len() == 16 {
            // The negative ones less 1, and the positive ones from the largest down: see `Halves` of the kernels.
            for (half, four) in fours[..2].iter().enumerate() {
                words[half] = word(four.map(|centroid| centroid - 1));
                words[2 + half] = word(four.map(|centroid| -centroid));
            }
        } else {
            words.iter_mut().zip(fours).for_each(|(own, four)| *own = word(*four));
        }
        let shape = CodeShape::Codes(centroids.len().trailing_zeros() as u8);
        let mut tables = Self::new(shape, words, unit, rotated);
        tables.cells = Cells::new(thresholds, centroids)?;
        tables.centroids.iter_mut().zip(centroids).for_each(|(own, centroid)| *own = f32::from(*centroid));
        Some(tables)
    }

    fn new(shape: CodeShape, words: [u32; 32], unit: f32, rotated: Rotated) -> Self {
        Self {
            shape,
            words,
            unit,
            signs: bits_of(rotated.signs),
            rounds: rotated.rounds.into(),
            gain: rotated.gain.into(),
            kappa: 0.0,
            centroids: [0.0; 128],
            cells: Cells::NONE,
            triplets: Vec::new(),
            search: Vec::new(),
        }
    }

    /// Integers of so many bits. `None` unless these are 4 or 8.
    #[must_use]
    pub fn integers(bits: u8, of_keys: bool, rotated: Rotated) -> Option<Self> {
        // Norms of other keys are steps of 32,767ths.
        let unit = if of_keys { 32767.0 } else { 1.0 };
        matches!(bits, 4 | 8).then(|| Self::new(CodeShape::Int(bits), [0; 32], unit, rotated))
    }

    /// Small blocks that have this codebook, each rotated with these signs. `None` unless there is one for each value of a block.
    #[must_use]
    pub fn blocks(book: &BlockBook, signs: &[u32]) -> Option<Self> {
        let (centroids, thresholds) = match book {
            // Whatever the sign of what is left, the same.
            BlockBook::TwoBits { centroids, thresholds } => {
                ([&centroids[..], centroids].concat(), &thresholds[..])
            }
            BlockBook::ThreeBits { centroids, thresholds } => (centroids.to_vec(), &thresholds[..]),
        };
        if signs.len() != BLOCK_VALUES {
            return None;
        }
        // Integers of 16 bits: high bytes, whose sign counts, and low ones.
        let unit = book.largest() / 32_512.0;
        let integers: Vec<i32> = centroids.iter().map(|c| libm::rintf(c / unit) as i32).collect();
        let bytes =
            |four: &[i32], by: u32| u32::from_le_bytes(core::array::from_fn(|i| (four[i] >> by) as u8));
        let mut words = [0; 32];
        for (number, four) in integers.chunks_exact(4).enumerate() {
            (words[number], words[2 + number]) = (bytes(four, 8), bytes(four, 0));
        }
        let signs = signs.repeat(256 / BLOCK_VALUES);
        let rotated = Rotated { signs: &signs, rounds: 1, gain: thresholds.len() as u8 };
        // Norms of other keys are steps of 32,767ths.
        let mut tables = Self::new(CodeShape::Blocks, words, 32_767.0 * unit, rotated);
        tables.centroids[..8].copy_from_slice(&centroids);
        tables.centroids[8..15].fill(f32::INFINITY);
        tables.centroids[8..8 + thresholds.len()].copy_from_slice(thresholds);
        Some(tables)
    }

    /// Chunks as this layout has them, without flags, directions of this set. `None` for flags, widths that four chunks do not divide, and
    /// sets of another size.
    #[must_use]
    pub fn chunks(layout: &ChunkLayout, set: &QuaternionSet, rotated: Rotated) -> Option<Self> {
        let ChunkLayout { chunks, members, radius_bits, radix, flags } = *layout;
        if flags
            || !layout.is_valid()
            || !chunks.is_multiple_of(4)
            || set.members.len() != usize::from(members)
        {
            return None;
        }
        // Of two units that are opposites the first: 1, i, j, k, then those whose last component is positive.
        let units = [0, 2, 4, 6].into_iter().chain(8..16).map(|p| &UNITS[p]);
        let directions =
            units.flat_map(|unit| set.members.iter().map(|member| scalar::product(unit, member)));
        let two = |low: f32, high: f32| {
            let [low, high] =
                [low, high].map(|x| libm::rintf(x * 32_767.0).clamp(-32_767.0, 32_767.0) as i16 as u16);
            u32::from(low) | u32::from(high) << 16
        };
        let triplets = directions.flat_map(|[w, x, y, z]| [two(w, x), two(y, z)]).collect();
        let shape = CodeShape::Chunks([members, radius_bits, radix.into()]);
        // A direction's integer times a radius and a step is 65,536 times a key's integer; norms of other keys are steps of 32,767ths, as
        // many as a direction's length.
        let limit = u16::from(layout.radius_limit());
        let unit = 65_536.0 / (f32::from(u16::MAX / limit) * f32::from(limit));
        let search = set.members.iter().flatten().map(|x| x.to_bits()).collect();
        Some(Self { triplets, search, ..Self::new(shape, [0; 32], unit, rotated) })
    }

    /// Triplets as this layout has them, found by this search. `None` for directions that are no bytes.
    #[must_use]
    pub fn triplets(layout: &TripletLayout, search: Search, rotated: Rotated) -> Option<Self> {
        let directions = layout.directions;
        let rest = if layout.rest_bits == 0 { 0 } else { 1 << layout.rest_bits };
        let lengths = (directions.len(), layout.radii.len(), layout.rest.len());
        if lengths != (1 << (2 * layout.direction_bits), 1 << layout.radius_bits, rest) {
            return None;
        }
        // An integer of 16 bits is the largest coordinate there is.
        let rest = layout.rest.iter().map(|centroid| f32::from(*centroid) * layout.rest_scale * 127.0);
        let radii = layout.radii.iter().map(|radius| radius * 127.0);
        let most = rest.clone().chain(radii.clone()).fold(0.0, |most: f32, x| most.max(x.abs()));
        let scale = 32766.0 / most;
        let mut triplets: Vec<u32> =
            directions.iter().map(|direction| u32::from_le_bytes(direction.map(|x| x as u8))).collect();
        triplets.extend(layout.radii.iter().map(|radius| libm::rintf(radius * scale * 256.0) as u32));
        triplets.extend(rest.map(|x| ((libm::rintf(x * scale) as i32) << 8) as u32));
        if layout.rest_bits == 0 {
            triplets.push(0);
        }
        let shape = CodeShape::Triplets([layout.direction_bits, layout.radius_bits, layout.rest_bits]);
        let search = search_of(layout, search)?;
        Some(Self { triplets, search, ..Self::new(shape, [0; 32], 1.0 / (127.0 * scale), rotated) })
    }

    /// Codes of a trellis, `kappa` integers to a standard deviation. Keys of codes of one bit are looked up two at a time, values one. `None` unless it has 8 states and
    /// 2, 4 or 8 codes a window.
    #[must_use]
    pub fn trellis(
        book: &TrellisCodebook,
        of_keys: bool,
        unit: f32,
        kappa: f32,
        rotated: Rotated,
    ) -> Option<Self> {
        if book.history() != 3 || !matches!(book.levels(), 2 | 4 | 8) {
            return None;
        }
        let centroid = |code: usize, window: usize| i16::from(book.centroids()[code * 16 + window]);
        let row = |lane: usize| {
            let (window, high) = (lane % 16, lane / 16);
            match (book.levels(), of_keys) {
                (2, true) => [(0, window), (1, window), (0, lane / 2), (1, lane / 2)],
                (2, false) => [(0, window), (1, window), (0, window), (1, window)],
                (4, _) => [0, 1, 2, 3].map(|code| (code, window)),
                _ => [0, 1, 2, 3].map(|code| (4 * high + code, window)),
            }
        };
        let words = core::array::from_fn(|lane| word(row(lane).map(|(code, window)| centroid(code, window))));
        let shape = CodeShape::Trellis(book.levels().trailing_zeros() as u8);
        let mut tables = Self { kappa, ..Self::new(shape, words, unit, rotated) };
        let all = tables.centroids.iter_mut().zip(book.centroids());
        all.for_each(|(own, centroid)| *own = f32::from(*centroid));
        Some(tables)
    }
}

/// Masks as bits.
fn bits_of(signs: &[u32]) -> [u32; 8] {
    let mut bits = [0; 8];
    signs.iter().take(256).enumerate().for_each(|(c, mask)| bits[c / 32] |= (mask >> 31) << (c % 32));
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Every value has the code that as many thresholds do not exceed it: at them, beside them, everywhere.
    #[test]
    fn a_cell_has_what_thresholds_say() {
        let centroids: [i16; 16] = [-127, -96, -76, -59, -45, -31, -18, -6, 6, 18, 31, 45, 59, 76, 96, 127];
        for unit in [1.0e-3, 1.9e-3, 3.3e-3] {
            let thresholds: Vec<f32> =
                centroids.windows(2).map(|c| f32::from(c[0] + c[1]) * 0.5 * unit).collect();
            let cells = Cells::new(&thresholds, &centroids).expect("far enough apart");
            let check = |y: f32| {
                let [threshold, sides] = cells.cells[cells.cell(y)];
                let side = if y >= f32::from_bits(threshold) { sides >> 16 } else { sides };
                let code = thresholds.iter().filter(|&&t| t <= y).count();
                assert_eq!(side & 0xFF, code as u32, "{y:e}");
                assert_eq!((side >> 8 & 0xFF) as i16 - 128, centroids[code], "{y:e}");
            };
            for t in &thresholds {
                [t.next_down(), *t, t.next_up()].into_iter().for_each(check);
            }
            (-20_000..20_000).for_each(|n| check(n as f32 * 1e-4 * unit * 127.0));
            [f32::MIN, -1.0, -0.0, 0.0, 1.0, f32::MAX].into_iter().for_each(check);
        }
        assert!(Cells::new(&[-1.0, 0.0, 0.01, 1.0], &[-3, -2, 1, 2, 3]).is_none());
    }

    /// As many as do not exceed a value, wherever it is.
    #[test]
    fn a_cell_of_the_map_counts() {
        for count in 1..=32 {
            let thresholds: Vec<f32> =
                (0..count).map(|n| (2 * n + 1) as f32 / count as f32 - 1.0 + 1e-3).collect();
            let [cells, counts] = map_cells(&thresholds).expect("far enough apart");
            let check = |v: f32| {
                let cell = along(v, 0.5, 0.5) / 4;
                let below = counts[cell] + u32::from(v >= f32::from_bits(cells[cell]));
                assert_eq!(below as usize, thresholds.iter().filter(|t| **t <= v).count(), "{v}");
            };
            thresholds.iter().for_each(|t| [t.next_down(), *t, t.next_up()].into_iter().for_each(check));
            (-1100..=1100).for_each(|n| check(n as f32 * 1e-3));
        }
        assert!(map_cells(&[0.5, 0.501]).is_none());
    }

    /// What selectors take of both words of bytes is a centroid in integers of 16 bits.
    #[test]
    fn bytes_of_small_blocks_are_centroids() {
        let two = BlockBook::TwoBits {
            centroids: [-1.510, -0.4528, 0.4528, 1.510],
            thresholds: [-0.9814, 0.0, 0.9814],
        };
        let three = BlockBook::ThreeBits {
            centroids: [-2.1573, -1.3336, -0.7434, -0.2428, 0.2428, 0.7434, 1.3336, 2.1573],
            thresholds: [-1.7455, -1.0385, -0.4931, 0.0, 0.4931, 1.0385, 1.7455],
        };
        for book in [two, three] {
            let tables = Tables::blocks(&book, &[0; BLOCK_VALUES]).expect("a sign each");
            for code in 0..8 {
                let byte = |first: usize| (tables.words[first + code / 4] >> (8 * (code % 4))) as u8;
                let integer = i32::from(byte(0) as i8) * 256 + i32::from(byte(2));
                let centroid = match book {
                    BlockBook::TwoBits { centroids, .. } => centroids[code % 4],
                    BlockBook::ThreeBits { centroids, .. } => centroids[code],
                };
                let unit = tables.unit / 32_767.0;
                assert!((integer as f32 * unit - centroid).abs() <= 0.51 * unit, "code {code}: {integer}");
                assert_eq!(tables.centroids[code], centroid);
            }
        }
        assert!(Tables::blocks(&two, &[0; 31]).is_none());
    }

    /// A direction times a radius, as the kernels have it, is what the CPU decodes, to within a 32,767th of a row's scale; and fits.
    #[test]
    fn chunks_are_what_the_cpu_decodes() {
        let mut state = 5_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        };
        let mut members: Vec<[f32; 4]> = alloc::vec![[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0]];
        members.extend((2..255).map(|_| {
            let q = [next(), next(), next(), next()];
            let norm = libm::sqrtf(q.iter().map(|c| c * c).sum());
            q.map(|c| c / norm)
        }));
        let ints: Vec<[i8; 4]> = members.iter().map(|q| crate::quaternion::quaternion_ints(*q)).collect();
        for (count, radius_bits) in [(1, 2), (2, 6), (24, 3), (96, 4), (100, 5), (255, 6)] {
            let set = QuaternionSet { members: &members[..count], ints: &ints[..count], index: None };
            let layout =
                ChunkLayout { chunks: 16, members: count as u8, radius_bits, radix: false, flags: false };
            let rotated = Rotated { signs: &[], rounds: 0, gain: 0 };
            let tables = Tables::chunks(&layout, &set, rotated).expect("a table");
            assert_eq!(tables.triplets.len(), 24 * count);
            let limit = i32::from(layout.radius_limit());
            for code in 0..24 * count {
                // As `chunk_field` has it.
                let (unit, member) = (code / count, code % count);
                let opposite = if unit < 8 { unit % 2 == 1 } else { unit >= 16 };
                let first = if unit < 8 {
                    unit / 2
                } else if unit < 16 {
                    unit - 4
                } else {
                    27 - unit
                };
                let words = &tables.triplets[2 * (first * count + member)..][..2];
                let direction = scalar::product(&UNITS[unit], &members[member]);
                for radius in [0, 1, limit / 2, limit] {
                    for (component, exact) in direction.iter().enumerate() {
                        let integer = (words[component / 2] >> (16 * (component % 2))) as i16;
                        let radius = if opposite { -radius } else { radius };
                        let x = i32::from(integer) * (radius * (65_535 / limit)) + 32_768;
                        let decoded = (x >> 16) as f32 * tables.unit / 32_767.0;
                        let expected = exact * radius.abs() as f32 / limit as f32;
                        assert!(
                            (decoded - expected).abs() < 1.1 / 32_767.0,
                            "{code}, {radius}: {decoded} {expected}"
                        );
                    }
                }
            }
        }
    }
}
