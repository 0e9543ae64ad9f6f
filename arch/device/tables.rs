//! Lookup tables of kernels.

mod small;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter;
use octaplex_arch::quaternion::ChunkLayout;
use octaplex_arch::{BLOCK_BYTES, BLOCK_VALUES, Packing, Search, TrellisCodebook, TripletLayout};

/// The code of a row of keys or of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeShape {
    /// Codes of n bits. Codes of 2, 3 and 4 bits have antisymmetric centroids. Codes of 1 and 5 to 8 bits
    /// have centroids of up to ±2047 in shared memory.
    Codes(u8),
    /// n codes, 3, 5, 6, 10 or 12, in shared memory too: low bits, and digits of radix 3 or 5.
    Levels(u8),
    /// A trellis of 8 states with codes of 1, 2 or 3 bits.
    Trellis(u8),
    /// Another trellis, in shared memory: bits of the path in addition to the newest, and codes of a
    /// window.
    Paths([u8; 2]),
    /// Integers of 2 to 8 bits, with a scale in f16 before each row.
    Int(u8),
    /// Such integers with fields in f16 before each row: a scale for each group, or a scale and a zero.
    Groups(Groups),
    /// Triplets, for keys only: bits of ξ and of η, of a radius, and of a coordinate that is left over (0
    /// if none is).
    Triplets([u8; 3]),
    /// Small blocks, for keys only: codes of 3 bits, or of 2 and a sign, with a scale in f16 for each
    /// block.
    Blocks,
    /// Chunks of four values, for keys only: members of the set, bits of a radius, and 1 for codes in mixed
    /// radix.
    Chunks([u8; 3]),
    /// Two trellis codes of half the width, for keys only: for each, bits of the path in addition to the
    /// newest, and codes of a window. Norms of both lie outside of the rows.
    Halves([[u8; 2]; 2]),
}

/// Returns the shape of a trellis: [`CodeShape::Trellis`] if registers hold its codebook.
const fn trellis_shape(history: u8, levels: u8) -> CodeShape {
    match (history, levels) {
        (3, 2 | 4 | 8) => CodeShape::Trellis(levels.trailing_zeros() as u8),
        _ => CodeShape::Paths([history, levels]),
    }
}

/// Integers whose groups have their own scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Bits of an integer: 2 to 8.
    pub bits: u8,
    /// Integers of a group: 16, 32 or 64; `None` for a whole row, with zeros.
    pub group: Option<u8>,
    /// Whether a group has a zero too.
    pub zeros: bool,
}

impl Groups {
    /// Returns the fields of a row.
    fn fields(self, dim: usize) -> usize {
        self.group.map_or(1, |group| dim / usize::from(group)) * if self.zeros { 2 } else { 1 }
    }
}

impl CodeShape {
    /// Returns the number that the kernels' source uses.
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
            // Kernels use the shapes of both halves. The code for whole keys is compiled for a trellis, but
            // never runs.
            Self::Halves(_) => 13,
        }
    }

    /// Returns the shapes of both halves.
    pub(super) fn halves(self) -> Option<[Self; 2]> {
        match self {
            Self::Halves(halves) => Some(halves.map(|[history, levels]| trellis_shape(history, levels))),
            _ => None,
        }
    }

    /// Returns the sum over both halves, each of half the width.
    fn of_halves(halves: [[u8; 2]; 2], each: impl Fn(Self) -> usize) -> usize {
        halves.iter().map(|[history, levels]| each(trellis_shape(*history, *levels))).sum()
    }

    /// Returns the parameters of triplets and chunks as the kernels' source packs them.
    pub(super) fn triplets(self) -> u32 {
        match self {
            Self::Triplets([first, second, third]) | Self::Chunks([first, second, third]) => {
                u32::from(first) << 8 | u32::from(second) << 4 | u32::from(third)
            }
            _ => 0,
        }
    }

    /// Returns the bytes of a row of this width on the CPU.
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

    /// Returns the fields of a row on the GPU: scales, zeros and norms of 16 bits.
    pub(super) fn fields(self, dim: usize) -> usize {
        match self {
            Self::Groups(groups) => groups.fields(dim),
            Self::Blocks => dim / BLOCK_VALUES,
            Self::Halves(_) => 2,
            _ => 1,
        }
    }

    /// Returns whether rows contain their scales or norms, and a page's centre is f16. Codes of more than
    /// 4.5 bits contain norms.
    pub(super) fn in_rows(self) -> bool {
        match self {
            Self::Codes(bits) => bits > 4,
            Self::Paths([_, levels]) => levels > 8,
            Self::Int(_) | Self::Groups(_) | Self::Blocks | Self::Chunks(_) => true,
            Self::Levels(_) | Self::Trellis(_) | Self::Triplets(_) | Self::Halves(_) => false,
        }
    }

    /// Returns the bytes of scales, zeros or a norm before a row.
    fn row_head(self, dim: usize) -> usize {
        if self.in_rows() && self != Self::Blocks { 2 * self.fields(dim) } else { 0 }
    }

    /// Returns the bytes of a row on the GPU.
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

    /// Returns the bytes of a page's norms.
    pub(super) fn norms(self, tokens: usize) -> usize {
        let each = if self.in_rows() { 0 } else { 3 + tokens * 6 / 8 };
        if self.halves().is_some() { 2 * each } else { each }
    }

    /// Returns the bytes of a key's operands.
    pub(super) fn operands(self, dim: usize) -> usize {
        match self {
            Self::Triplets(_) | Self::Chunks(_) => 32 * self.each_fields(dim).div_ceil(2),
            _ => dim.next_multiple_of(32),
        }
    }

    /// Returns the bits of a triplet, or of a chunk: a direction, where opposite directions share a code,
    /// and a radius with a sign.
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

    /// Returns the triplets or chunks of a row that one of four threads holds.
    fn each_fields(self, dim: usize) -> usize {
        dim.div_ceil(if matches!(self, Self::Chunks(_)) { 4 } else { 3 }).div_ceil(4)
    }
}

/// Returns the bits of a code on the GPU.
fn gpu_bits(levels: u8) -> usize {
    usize::from(levels).next_power_of_two().trailing_zeros() as usize
}

/// Returns the bytes of a row of codes as the CPU packs them; 0 for one level.
fn packed_bytes(levels: u8, dim: usize) -> usize {
    Packing::for_levels(levels.into()).map_or(0, |packing| packing.bytes(dim))
}

/// The tables of one side: a table of 32 words, what an integer of it is worth, and the rotation of
/// vectors.
#[derive(Clone, Debug)]
pub struct Tables {
    pub(super) shape: CodeShape,
    pub(super) words: [u32; 32],
    pub(super) unit: f32,
    pub(super) signs: [u32; 8],
    pub(super) rounds: u32,
    /// For encoding. `gain`: which norm is stored, as kernels number them; the last code of small blocks.
    /// `kappa`: integers to a standard deviation of a trellis. `centroids`: by code; of a trellis by code ·
    /// 16 + window; of small blocks eight centroids, then thresholds. `cells`: codes of other rows.
    pub(super) gain: u32,
    pub(super) kappa: f32,
    pub(super) centroids: [f32; 128],
    pub(super) cells: Cells,
    /// For kernels with look-ups in shared memory: what fields of triplets and chunks, or codes, stand for.
    pub(super) entries: Vec<u32>,
    /// For searches: `Search` of the kernels for triplets; the set's members for chunks; thresholds, then
    /// centroids, for codes in shared memory, as many as their bits count; centroids by code and window for
    /// [`CodeShape::Paths`].
    pub(super) search: Vec<u32>,
    /// For [`CodeShape::Halves`], the tables of each half. The fields above are those of the first half,
    /// except signs, entries and searches, which are those of both.
    pub(super) halves: Option<Arc<[Self; 2]>>,
}

/// Finds the code of a coordinate of a unit vector with one look-up. The line from the first threshold to
/// the last has 32 cells, with at most one threshold each.
///
/// ```text
/// line     │  │ t │  │ t │  │  │ t │ …       cell = 32 · (y · slope + offset)
/// cell     threshold │ side below it, 16 bits │ side from it on, 16 bits
/// side     code + 256 · (centroid + 128)
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells {
    slope: f32,
    offset: f32,
    cells: [[u32; 2]; 32],
}

impl Cells {
    const NONE: Self = Self { slope: 0.0, offset: 0.0, cells: [[0; 2]; 32] };

    /// Returns `None` if two thresholds share a cell. There is one more centroid than thresholds.
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

    /// Returns the cell of a value, as `found_in` of the kernels does.
    fn cell(&self, y: f32) -> usize {
        along(y, self.slope, self.offset) / 8
    }
}

/// Returns which of 256 pieces of a line from 0 to 1 contains a value.
fn along(y: f32, slope: f32, offset: f32) -> usize {
    let along = y.mul_add(slope, offset).clamp(0.0, 1.0);
    (along.mul_add(255.0, 8_388_608.0).to_bits() & 0xFF) as usize
}

/// Cells of a coordinate of a triplet's map, from -1 to 1.
const MAP_CELLS: usize = 64;

/// Returns for each cell the threshold in it, and the number of thresholds before it; `None` if two share a
/// cell.
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

/// Returns the midpoint of each two neighbours.
fn midpoints(centroids: impl Iterator<Item = f32> + Clone) -> impl Iterator<Item = f32> {
    centroids.clone().zip(centroids.skip(1)).map(|(a, b)| (a + b) * 0.5)
}

/// Returns what the search for triplets of this layout looks up.
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
    // Indexed by codes, which a kernel has, instead of ranks.
    let (count, half) = (coordinates.len(), coordinates.len() / 2);
    if count != 1 << layout.direction_bits || layout.lengths.len() != half * half {
        return None;
    }
    let rank = |code: usize| if code < half { half - 1 - code } else { code - half };
    words.extend(
        (0..count * count).map(|at| bits(layout.lengths[rank(at / count) * half + rank(at % count)])),
    );
    // The bytes are not negative here, so a kernel can turn them into floats with bit operations alone.
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

/// The rotation of rows, and the norm that they store.
#[derive(Clone, Copy, Debug)]
pub struct Rotated<'a> {
    /// A mask for each coordinate; its highest bit counts.
    pub signs: &'a [u32],
    /// Rounds of signs and transform.
    pub rounds: u8,
    /// 0 minimises the squared error, 1 removes the bias of products, 2 stores the row's own norm.
    pub gain: u8,
}

fn word(bytes: [i16; 4]) -> u32 {
    u32::from_le_bytes(bytes.map(|byte| byte as i8 as u8))
}

impl Tables {
    /// Creates tables of codes from centroids, each worth `unit`, and the thresholds between them.
    ///
    /// The number of centroids is 2, 3, 5, 6, 10, 12 or a power of two up to 256. It returns `None` in
    /// these cases:
    ///
    /// * another number of centroids, or of thresholds;
    /// * 4, 8 or 16 centroids that are not antisymmetric, or thresholds that are too close;
    /// * centroids beyond ±127, or beyond ±2047 for more than 16 centroids.
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
            // The negative centroids minus 1, then the positive ones from the largest down: see `Halves` of
            // the kernels.
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

    /// Creates tables of codes in shared memory. There is an entry for each value of a code's bits. No page
    /// has codes beyond the last.
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

    /// Returns what an integer of a key is worth, in addition to a norm. Blocks have their own norms; other
    /// norms are steps of 1/32,767 of the page's largest.
    pub(super) fn key_unit(&self) -> f32 {
        match self.shape {
            CodeShape::Codes(_) | CodeShape::Paths(_) if self.shape.in_rows() => self.unit,
            _ => self.unit / 32767.0,
        }
    }

    /// Returns the same for the second half, if there is one.
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

    /// Creates tables of keys with two trellis codes, each of half of `dim` channels; `None` for other
    /// codes.
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

    /// Creates tables of integers of 2 to 8 bits; `None` for other numbers.
    #[must_use]
    pub fn integers(bits: u8, of_keys: bool, rotated: Rotated) -> Option<Self> {
        // Norms of other keys are steps of 1/32,767.
        let unit = if of_keys { 32767.0 } else { 1.0 };
        // Except for 4 bits, codes lie in the high bits of bytes: see kernels/slices.cuh.
        let times = if bits == 4 { 1 } else { 1 << 8u8.checked_sub(bits)? };
        let unit = unit / times as f32;
        (2..=8).contains(&bits).then(|| Self::new(CodeShape::Int(bits), [0; 32], unit, rotated))
    }

    /// Creates tables of integers with fields for each group. Groups have 16, 32 or 64 integers, or are a
    /// whole row with zeros; it returns `None` for others.
    #[must_use]
    pub fn groups(groups: Groups, of_keys: bool, rotated: Rotated) -> Option<Self> {
        let tables = Self::integers(groups.bits, of_keys, rotated)?;
        let known = groups.group.map_or(groups.zeros, |group| matches!(group, 16 | 32 | 64));
        known.then_some(Self { shape: CodeShape::Groups(groups), ..tables })
    }

    /// Creates tables of triplets with this layout and search; `None` if directions are not bytes.
    #[must_use]
    pub fn triplets(layout: &TripletLayout, search: Search, rotated: Rotated) -> Option<Self> {
        let directions = layout.directions;
        let rest = if layout.rest_bits == 0 { 0 } else { 1 << layout.rest_bits };
        let lengths = (directions.len(), layout.radii.len(), layout.rest.len());
        if lengths != (1 << (2 * layout.direction_bits), 1 << layout.radius_bits, rest) {
            return None;
        }
        // The largest coordinate becomes the largest integer of 16 bits.
        let rest = layout.rest.iter().map(|centroid| f32::from(*centroid) * layout.rest_scale * 127.0);
        let radii = layout.radii.iter().map(|radius| radius * 127.0);
        let most = rest.clone().chain(radii.clone()).fold(0.0, |most: f32, x| most.max(x.abs()));
        let scale = 32766.0 / most;
        let mut entries: Vec<u32> =
            directions.iter().map(|direction| u32::from_le_bytes(direction.map(|x| x as u8))).collect();
        entries.extend(layout.radii.iter().map(|radius| (radius * scale * 256.0).round_ties_even() as u32));
        entries.extend(rest.map(|x| (((x * scale).round_ties_even() as i32) << 8) as u32));
        if layout.rest_bits == 0 {
            entries.push(0);
        }
        let shape = CodeShape::Triplets([layout.direction_bits, layout.radius_bits, layout.rest_bits]);
        let search = search_of(layout, search)?;
        Some(Self { entries, search, ..Self::new(shape, [0; 32], 1.0 / (127.0 * scale), rotated) })
    }

    /// Creates tables of trellis codes, with `kappa` integers to a standard deviation.
    ///
    /// Registers hold trellises of 8 states with 2, 4 or 8 codes in a window. Then keys with codes of one
    /// bit are looked up in pairs, values one by one. Other trellises are looked up in shared memory.
    #[must_use]
    pub fn trellis(book: &TrellisCodebook, of_keys: bool, unit: f32, kappa: f32, rotated: Rotated) -> Self {
        if book.history() != 3 || !matches!(book.levels(), 2 | 4 | 8) {
            let shape = CodeShape::Paths([book.history() as u8, book.levels() as u8]);
            let entries = (0..1 << gpu_bits(book.levels() as u8)).flat_map(|code: usize| {
                let code = code.min(book.levels() - 1); // codes beyond the last occur in no page
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

/// Returns a centroid as kernels look it up: 16 · high + low.
///
/// ```text
/// bit   31 … 24   23 … 16         15 … 4   3 … 0
///       0         high, signed    0        low
/// ```
fn entry(centroid: i16) -> Option<u32> {
    let high = i8::try_from(centroid >> 4).ok()?;
    Some(u32::from(high as u8) << 16 | u32::from(centroid as u16 & 15))
}

/// Returns a centroid of up to 16 as one byte.
fn small_entry(centroid: i16) -> Option<u32> {
    i8::try_from(centroid).ok().map(|centroid| u32::from(centroid as u8))
}

/// Packs the highest bit of each mask.
fn bits_of(signs: &[u32]) -> [u32; 8] {
    let mut bits = [0; 8];
    signs.iter().take(256).enumerate().for_each(|(c, mask)| bits[c / 32] |= (mask >> 31) << (c % 32));
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Every value gets as code the number of thresholds that do not exceed it: at thresholds, near them,
    /// and everywhere.
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

    /// High and low part make up each centroid, and all other bits are 0.
    #[test]
    fn entries_are_centroids() {
        for centroid in -2048..=2047 {
            let entry = entry(centroid).expect("12 bits");
            assert_eq!(i16::from((entry >> 16) as u8 as i8) * 16 + i16::from(entry as u8 as i8), centroid);
            assert_eq!(entry & 0xFF00_FFF0, 0);
        }
        assert!(entry(2048).is_none() && entry(-2049).is_none());
    }

    /// Bytes of rows, and unique numbers of shapes, for all trellises.
    #[test]
    fn shapes_of_trellises() {
        let mut numbers = Vec::new();
        for history in 2..=6 {
            for levels in [1, 2, 3, 4, 6, 8, 12, 16] {
                let shape = CodeShape::Paths([history, levels]);
                let bits = usize::from(levels).next_power_of_two().trailing_zeros() as usize;
                numbers.push(shape.number());
                for dim in crate::layout::WIDTHS {
                    let path = dim / 8;
                    let packed = match levels {
                        1 => 0,
                        3 | 6 | 12 => dim * (bits - 2) / 8 + dim.div_ceil(5), // as in layout.cuh
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

    /// Unique numbers of shapes, bytes of rows, and an entry for each value of a code's bits.
    #[test]
    fn shapes_of_levels() {
        let rotated = Rotated { signs: &[], rounds: 1, gain: 0 };
        let tables = |count: i16, step: i16| {
            let centroids: Vec<i16> = (0..count).map(|code| (2 * code + 1 - count) * step).collect();
            let thresholds: Vec<f32> = centroids.windows(2).map(|c| f32::from(c[0] + c[1]) * 0.5).collect();
            Tables::codes(&centroids, &thresholds, 1.0, rotated)
        };
        // Bits of a code on the GPU. On the CPU: low bits, digits of a group, bits of a group.
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
            for dim in crate::layout::WIDTHS {
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

    /// A cell counts the thresholds that do not exceed a value, wherever it is.
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
