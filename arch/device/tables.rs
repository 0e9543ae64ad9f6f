//! What kernels look codes up in.

mod small;

use crate::quaternions::layout::ChunkLayout;
use crate::{BLOCK_BYTES, BLOCK_VALUES, Packing, Search, TrellisCodebook, TripletLayout};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter;

/// How a row of keys or of values is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeShape {
    /// Codes of so many bits: 2, 3 or 4, with centroids that are antisymmetric; or 1, or 5 to 8 with centroids of up to ±2047, which
    /// are looked up in shared memory.
    Codes(u8),
    /// So many codes, 3, 5, 6, 10 or 12, looked up there too: low bits and digits of radix 3 or 5.
    Levels(u8),
    /// A trellis of 8 states with codes of so many bits: 1, 2 or 3.
    Trellis(u8),
    /// Another trellis, looked up in shared memory: bits of its path that count beside the newest, codes a window.
    Paths([u8; 2]),
    /// Integers of so many bits, 2 to 8, with a scale in f16 before each row.
    Int(u8),
    /// The same with fields in f16 before each row: a scale for each group, or a scale and a zero.
    Groups(Groups),
    /// Triplets, of keys alone: bits of ξ and of η, of a radius, of a coordinate left over (0: none is on its own).
    Triplets([u8; 3]),
    /// Small blocks, of keys alone, of codes of 3 bits (2 and a sign are the same), each with a scale in f16.
    Blocks,
    /// Chunks of four values, of keys alone: members of the set, bits of a radius, 1 where codes are in mixed radix.
    Chunks([u8; 3]),
    /// Two trellis codes of half the width, of keys alone: of each bits of its path beside the newest, codes a window. Norms of both lie
    /// beside the rows.
    Halves([[u8; 2]; 2]),
}

/// A trellis, as [`CodeShape::Trellis`] where registers hold it.
const fn trellis_shape(history: u8, levels: u8) -> CodeShape {
    match (history, levels) {
        (3, 2 | 4 | 8) => CodeShape::Trellis(levels.trailing_zeros() as u8),
        _ => CodeShape::Paths([history, levels]),
    }
}

/// Integers whose groups have scales of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Bits of an integer: 2 to 8.
    pub bits: u8,
    /// Integers of a group: 16, 32 or 64; `None` for all of a row, with zeros.
    pub group: Option<u8>,
    /// Whether a group has a zero as well.
    pub zeros: bool,
}

impl Groups {
    /// Fields of a row.
    fn fields(self, dim: usize) -> usize {
        self.group.map_or(1, |group| dim / usize::from(group)) * if self.zeros { 2 } else { 1 }
    }
}

impl CodeShape {
    /// As the kernels' source has it.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Codes(bits) => bits.into(),
            Self::Levels(levels) => {
                let of_radix = if levels.is_multiple_of(5) { 70 } else { 60 };
                of_radix + gpu_bits(levels) as u32
            }
            Self::Trellis(bits) => 10 + u32::from(bits),
            Self::Paths([history, levels]) => {
                let digits = if levels.is_multiple_of(3) { 50 } else { 0 };
                100 * u32::from(history) + digits + gpu_bits(levels) as u32
            }
            Self::Int(bits) => 30 + u32::from(bits),
            Self::Groups(Groups { bits, group: Some(group), zeros }) => {
                100 + 10 * (group / 16).ilog2() + if zeros { 30 } else { 0 } + u32::from(bits)
            }
            Self::Groups(Groups { bits, group: None, .. }) => 160 + u32::from(bits),
            Self::Triplets(_) => 20,
            Self::Blocks => 43,
            Self::Chunks(_) => 50,
            // Kernels ask each half; what is compiled for whole keys, and never runs, is a trellis's.
            Self::Halves(_) => 13,
        }
    }

    /// The shapes of both halves.
    pub(super) fn halves(self) -> Option<[Self; 2]> {
        match self {
            Self::Halves(halves) => Some(halves.map(|[history, levels]| trellis_shape(history, levels))),
            _ => None,
        }
    }

    /// Of what one half, of half the width, gives, the sum over both.
    fn of_halves(halves: [[u8; 2]; 2], each: impl Fn(Self) -> usize) -> usize {
        halves.iter().map(|[history, levels]| each(trellis_shape(*history, *levels))).sum()
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
            Self::Codes(bits) => self.row_head(dim) + dim * usize::from(bits) / 8,
            Self::Levels(levels) => packed_bytes(levels, dim),
            Self::Trellis(bits) => dim * (1 + usize::from(bits)) / 8,
            Self::Paths([_, levels]) => self.row_head(dim) + dim / 8 + packed_bytes(levels, dim),
            Self::Int(bits) => self.row_head(dim) + dim * usize::from(bits) / 8,
            Self::Groups(groups) => self.row_head(dim) + dim * usize::from(groups.bits) / 8,
            Self::Triplets(_) => (dim.div_ceil(3) * self.field()).div_ceil(8),
            Self::Blocks => dim / BLOCK_VALUES * BLOCK_BYTES,
            Self::Chunks([members, radius_bits, radix]) => {
                let layout =
                    ChunkLayout { chunks: dim / 4, members, radius_bits, radix: radix == 1, flags: false };
                layout.row_bytes()
            }
            Self::Halves(halves) => {
                Self::of_halves(halves, |half| half.row(dim / 2) - half.row_head(dim / 2))
            }
        }
    }

    /// Fields of 16 bits of a row on the GPU: scales, zeros, norms.
    pub(super) fn fields(self, dim: usize) -> usize {
        match self {
            Self::Groups(groups) => groups.fields(dim),
            Self::Blocks => dim / BLOCK_VALUES,
            Self::Halves(_) => 2,
            _ => 1,
        }
    }

    /// Whether scales, or norms of all codes of more than 4.5 bits, lie in rows, and a page's centre is f16.
    pub(super) fn in_rows(self) -> bool {
        match self {
            Self::Codes(bits) => bits > 4,
            Self::Paths([_, levels]) => levels > 8,
            Self::Int(_) | Self::Groups(_) | Self::Blocks | Self::Chunks(_) => true,
            Self::Levels(_) | Self::Trellis(_) | Self::Triplets(_) | Self::Halves(_) => false,
        }
    }

    /// Bytes of scales, zeros or a norm before a row.
    fn row_head(self, dim: usize) -> usize {
        if self.in_rows() && self != Self::Blocks { 2 * self.fields(dim) } else { 0 }
    }

    /// Bytes of a row on the GPU.
    pub(super) fn gpu_row(self, dim: usize) -> usize {
        match self {
            Self::Triplets(_) | Self::Chunks(_) => 16 * (self.each_fields(dim) * self.field()).div_ceil(32),
            Self::Int(bits) | Self::Groups(Groups { bits, .. }) => {
                dim.next_multiple_of(32) * usize::from(bits) / 8
            }
            Self::Blocks => dim * 3 / 8,
            Self::Levels(levels) => dim.next_multiple_of(32) * gpu_bits(levels) / 8,
            Self::Paths([_, levels]) => dim.next_multiple_of(32) * (1 + gpu_bits(levels)) / 8,
            Self::Halves(halves) => Self::of_halves(halves, |half| half.gpu_row(dim / 2)),
            _ => self.row(dim.next_multiple_of(32)) - self.row_head(dim),
        }
    }

    /// Bytes of a page's norms.
    pub(super) fn norms(self, tokens: usize) -> usize {
        let each = if self.in_rows() { 0 } else { 3 + tokens * 6 / 8 };
        if self.halves().is_some() { 2 * each } else { each }
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

/// Bits that one of so many codes takes on the GPU.
fn gpu_bits(levels: u8) -> usize {
    usize::from(levels).next_power_of_two().trailing_zeros() as usize
}

/// Bytes of so many of them as the CPU packs them; of one code none.
fn packed_bytes(levels: u8, dim: usize) -> usize {
    Packing::for_levels(levels.into()).map_or(0, |packing| packing.bytes(dim))
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
    /// What fields of triplets and chunks stand for, or codes that are looked up in shared memory, as the kernels have it.
    pub(super) entries: Vec<u32>,
    /// What the search for them looks up: `Search` of the kernels; of chunks the set's members; of codes that are looked up their
    /// thresholds and centroids, of each as many as their bits count; of [`CodeShape::Paths`] centroids, by code and window.
    pub(super) search: Vec<u32>,
    /// Of [`CodeShape::Halves`] those of each half; what stands above is then the first one's, but for signs, entries and searches, which
    /// are of both.
    pub(super) halves: Option<Arc<[Self; 2]>>,
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
    /// Codes that stand for these centroids, 2, 3, 5, 6, 10, 12 or a power of two up to 256 of them, each `unit`, and change at these
    /// thresholds, one less. `None` for other numbers of them; of 4, 8 and 16 centroids that are not antisymmetric, and thresholds of
    /// which two are very close; centroids beyond ±127, of more than 16 beyond ±2047.
    #[must_use]
    pub fn codes(centroids: &[i16], thresholds: &[f32], unit: f32, rotated: Rotated) -> Option<Self> {
        let last = centroids.len().wrapping_sub(1);
        if matches!(centroids.len(), 2 | 3 | 5 | 6 | 10 | 12 | 32 | 64 | 128 | 256) {
            return Self::looked_up(centroids, thresholds, unit, rotated);
        }
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

    /// The same of codes that are looked up in shared memory. Of entries there are as many as their bits count, more than codes: of no
    /// page.
    fn looked_up(centroids: &[i16], thresholds: &[f32], unit: f32, rotated: Rotated) -> Option<Self> {
        let (levels, last) = (centroids.len(), centroids.len().checked_sub(1)?);
        if thresholds.len() != last {
            return None;
        }
        let padded = levels.next_power_of_two();
        let shape = if levels == padded {
            CodeShape::Codes(padded.trailing_zeros() as u8)
        } else {
            CodeShape::Levels(levels as u8)
        };
        let all = (0..padded).map(|code| centroids[code.min(last)]);
        let entries =
            all.clone().map(if padded > 16 { entry } else { small_entry }).collect::<Option<_>>()?;
        let known = thresholds.iter().copied().chain(iter::repeat(f32::INFINITY)).take(padded);
        let search = known.chain(all.map(f32::from)).map(f32::to_bits).collect();
        Some(Self { entries, search, ..Self::new(shape, [0; 32], unit, rotated) })
    }

    /// What an integer of a key is worth, beside a norm: of blocks their own, of others in steps of 32,767ths of the page's largest.
    pub(super) fn key_unit(&self) -> f32 {
        match self.shape {
            CodeShape::Codes(_) | CodeShape::Paths(_) if self.shape.in_rows() => self.unit,
            _ => self.unit / 32767.0,
        }
    }

    /// The same of the second half, where there are two.
    pub(super) fn coarse_unit(&self) -> f32 {
        self.halves.as_ref().map_or(0.0, |halves| halves[1].unit / 32767.0)
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
            entries: Vec::new(),
            search: Vec::new(),
            halves: None,
        }
    }

    /// Keys of two trellis codes, each of half of `dim` channels. `None` for other codes.
    #[must_use]
    pub fn halves(fine: Self, coarse: Self, dim: usize) -> Option<Self> {
        let of = |tables: &Self| match tables.shape {
            CodeShape::Trellis(bits) => Some([3, 1 << bits]),
            CodeShape::Paths(shape) => Some(shape),
            _ => None,
        };
        let shape = CodeShape::Halves([of(&fine)?, of(&coarse)?]);
        let both = |one: &[u32], other: &[u32]| one.iter().chain(other).copied().collect::<Vec<_>>();
        let (entries, search) = (both(&fine.entries, &coarse.entries), both(&fine.search, &coarse.search));
        let (mut signs, half) = ([0; 8], dim / 2);
        for c in 0..dim.min(256) {
            let own = if c < half { &fine } else { &coarse };
            signs[c / 32] |= (own.signs[c % half / 32] >> (c % half % 32) & 1) << (c % 32);
        }
        let own = Self { shape, signs, entries, search, halves: None, ..fine.clone() };
        Some(Self { halves: Some(Arc::new([fine, coarse])), ..own })
    }

    /// Integers of so many bits. `None` unless these are 2 to 8.
    #[must_use]
    pub fn integers(bits: u8, of_keys: bool, rotated: Rotated) -> Option<Self> {
        // Norms of other keys are steps of 32,767ths.
        let unit = if of_keys { 32767.0 } else { 1.0 };
        // Other bits than 4 stand at the top of bytes: see kernels/slices.cuh.
        let times = if bits == 4 { 1 } else { 1 << 8u8.checked_sub(bits)? };
        let unit = unit / times as f32;
        (2..=8).contains(&bits).then(|| Self::new(CodeShape::Int(bits), [0; 32], unit, rotated))
    }

    /// The same with fields of groups, which divide the width. `None` unless they are of 16, 32 or 64, or all of a row with zeros.
    #[must_use]
    pub fn groups(groups: Groups, of_keys: bool, rotated: Rotated) -> Option<Self> {
        let tables = Self::integers(groups.bits, of_keys, rotated)?;
        let known = groups.group.map_or(groups.zeros, |group| matches!(group, 16 | 32 | 64));
        known.then_some(Self { shape: CodeShape::Groups(groups), ..tables })
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
        let mut entries: Vec<u32> =
            directions.iter().map(|direction| u32::from_le_bytes(direction.map(|x| x as u8))).collect();
        entries.extend(layout.radii.iter().map(|radius| libm::rintf(radius * scale * 256.0) as u32));
        entries.extend(rest.map(|x| ((libm::rintf(x * scale) as i32) << 8) as u32));
        if layout.rest_bits == 0 {
            entries.push(0);
        }
        let shape = CodeShape::Triplets([layout.direction_bits, layout.radius_bits, layout.rest_bits]);
        let search = search_of(layout, search)?;
        Some(Self { entries, search, ..Self::new(shape, [0; 32], 1.0 / (127.0 * scale), rotated) })
    }

    /// Codes of a trellis, `kappa` integers to a standard deviation. Of 8 states and 2, 4 or 8 codes a window keys of codes of one bit are
    /// looked up two at a time, values one; others are looked up in shared memory.
    #[must_use]
    pub fn trellis(book: &TrellisCodebook, of_keys: bool, unit: f32, kappa: f32, rotated: Rotated) -> Self {
        if book.history() != 3 || !matches!(book.levels(), 2 | 4 | 8) {
            let shape = CodeShape::Paths([book.history() as u8, book.levels() as u8]);
            let entries = (0..1 << gpu_bits(book.levels() as u8)).flat_map(|code: usize| {
                let code = code.min(book.levels() - 1); // more than there are: of no page
                let windows = &book.centroids()[code * book.windows()..][..book.windows()];
                windows.iter().map(|centroid| u32::from(*centroid as u8))
            });
            let search = book.centroids().iter().map(|centroid| f32::from(*centroid).to_bits()).collect();
            return Self {
                kappa,
                entries: entries.collect(),
                search,
                ..Self::new(shape, [0; 32], unit, rotated)
            };
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
        tables
    }
}

/// A centroid as kernels look it up: 16 · high + low, bits 16 to 23 high, which has a sign, the lowest four low.
fn entry(centroid: i16) -> Option<u32> {
    let high = i8::try_from(centroid >> 4).ok()?;
    Some(u32::from(high as u8) << 16 | u32::from(centroid as u16 & 15))
}

/// The same of up to 16 codes, a byte.
fn small_entry(centroid: i16) -> Option<u32> {
    i8::try_from(centroid).ok().map(|centroid| u32::from(centroid as u8))
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

    /// Both bytes of every centroid make it up, as signed bytes and, between them and the next, nothing.
    #[test]
    fn entries_are_centroids() {
        for centroid in -2048..=2047 {
            let entry = entry(centroid).expect("12 bits");
            assert_eq!(i16::from((entry >> 16) as u8 as i8) * 16 + i16::from(entry as u8 as i8), centroid);
            assert_eq!(entry & 0xFF00_FFF0, 0);
        }
        assert!(entry(2048).is_none() && entry(-2049).is_none());
    }

    /// Bytes of rows, and numbers of shapes, of every trellis.
    #[test]
    fn shapes_of_trellises() {
        let mut numbers = Vec::new();
        for history in 2..=6 {
            for levels in [1, 2, 3, 4, 6, 8, 12, 16] {
                let shape = CodeShape::Paths([history, levels]);
                let bits = usize::from(levels).next_power_of_two().trailing_zeros() as usize;
                numbers.push(shape.number());
                for dim in super::super::layout::WIDTHS {
                    let path = dim / 8;
                    let packed = match levels {
                        1 => 0,
                        3 | 6 | 12 => dim * (bits - 2) / 8 + dim.div_ceil(5), // as layout.cuh has it
                        _ => dim * bits / 8,
                    };
                    assert_eq!(
                        shape.row(dim),
                        path + packed + if levels > 8 { 2 } else { 0 },
                        "{levels} codes, width {dim}"
                    );
                    assert_eq!(shape.gpu_row(dim), dim.next_multiple_of(32) * (1 + bits) / 8);
                }
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!((numbers.len(), numbers[0], numbers[39]), (40, 200, 654));
    }

    /// Numbers of shapes that are nobody else's, bytes of rows, and one entry a code, of those that there are not as well.
    #[test]
    fn shapes_of_levels() {
        let rotated = Rotated { signs: &[], rounds: 1, gain: 0 };
        let tables = |count: i16, step: i16| {
            let centroids: Vec<i16> = (0..count).map(|code| (2 * code + 1 - count) * step).collect();
            let thresholds: Vec<f32> = centroids.windows(2).map(|c| f32::from(c[0] + c[1]) * 0.5).collect();
            Tables::codes(&centroids, &thresholds, 1.0, rotated)
        };
        // Bits of a code on the GPU; of the CPU's row low bits, digits of a group, its bits.
        for (levels, number, bits, raw, group, group_bits) in [
            (2, 1, 1, 1, 1, 0),
            (3, 62, 2, 0, 5, 8),
            (5, 73, 3, 0, 3, 7),
            (6, 63, 3, 1, 5, 8),
            (10, 74, 4, 1, 3, 7),
            (12, 64, 4, 2, 5, 8),
        ] {
            let Tables { shape, entries, search, .. } = tables(levels, 7).expect("centroids of a byte");
            assert_eq!((shape.number(), shape.in_rows()), (number, false), "{levels} levels");
            for dim in super::super::layout::WIDTHS {
                let radix = levels as usize >> raw;
                let last = radix.pow((dim % group) as u32).next_power_of_two().trailing_zeros() as usize;
                let digits = (dim / group * group_bits + last).div_ceil(8);
                assert_eq!(shape.row(dim), dim * raw / 8 + digits, "{levels} levels, width {dim}");
                assert_eq!(shape.gpu_row(dim), dim.next_multiple_of(32) * bits / 8);
            }
            let (codes, last) = (1 << bits, levels as usize - 1);
            assert_eq!((entries.len(), search.len()), (codes, 2 * codes), "{levels} levels");
            for code in 0..codes {
                let centroid = (2 * code.min(last) as i16 + 1 - levels) * 7;
                assert_eq!(entries[code], u32::from(centroid as u8), "code {code} of {levels}");
                assert_eq!(search[codes + code], f32::from(centroid).to_bits());
                let threshold = f32::from_bits(search[code]);
                assert_eq!(threshold.is_infinite(), code >= last, "threshold {code} of {levels}");
            }
            assert!(tables(levels, 128).is_none(), "{levels} levels beyond a byte");
        }
        assert!([0, 1, 7, 9, 18, 20, 24, 257].iter().all(|levels| tables(*levels, 1).is_none()));
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
}
