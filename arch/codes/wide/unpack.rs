//! From packed codes to bytes, 16 codes at a time, and on to centroids.

use crate::registers::Integers;
use crate::{MAX_DIM, Packing, Rows};
use core::marker::PhantomData;

/// The orders in which the codes of a row come. A `match` outside of all loops chooses one.
///
/// ```text
/// 1, 2, 4     16 bytes hold 16·8/bits codes. Register k has every (8/bits)-th code, from code k on. An index is half
///             a byte, which contains one or more codes, and each of those has its own table. So one shift serves all,
///             and nothing moves from lane to lane.
/// THREES      48 bytes are sixteen threes of eight codes of 3 bits each. Register k has every eighth code.
/// ORDERED     codes in order, as bytes; WORDS: for tables of words
/// ```
pub(crate) mod kind {
    pub(crate) const ORDERED: u8 = 0;
    pub(crate) const THREES: u8 = 3;
    pub(crate) const WORDS: u8 = 8;

    /// Returns the distance from one code of a register to its next.
    pub(crate) const fn stride(kind: u8) -> usize {
        match kind {
            1 | 2 | 4 => 8 / kind as usize,
            THREES => 8,
            _ => 1,
        }
    }

    /// Returns the number of tables. Half bytes need one for each code in them, threes one for each
    /// way in which a code lies in a byte.
    pub(crate) const fn tables(kind: u8) -> usize {
        stride(kind).div_ceil(2)
    }
}

/// Registers of 16 codes in the widest row: 40 for 576 codes of one bit.
pub(crate) const MAX_REGISTERS: usize = 40;

/// The most bytes that are read beyond the end of a row.
pub(crate) const MARGIN: usize = 16 + 16;

/// Unpacks 16 codes at a time from rows of one shape.
///
/// In the raw plane, 16 codes of b bits are 2·b bytes. A lookup brings the two bytes around each
/// code to a word. A multiplication by a power of two moves the code to the top of it:
///
/// ```text
/// 3 bits     byte 1: c₅c₄c₄c₄c₃c₃c₃c₂    byte 0: c₂c₂c₁c₁c₁c₀c₀c₀
/// code 2     word = bytes 0 and 1, c₂ at bits 6 to 8;    · 2⁷ moves it to bits 13 to 15
/// ```
pub(crate) struct Codes<L: Integers> {
    raw_bits: usize,
    /// The byte of a row at which its planes begin.
    start: usize,
    /// For the lower and for the upper eight codes: the two bytes around each one.
    spread: [L::V; 2],
    /// The powers of two that move these codes to the top of their words.
    shift: [L::V; 2],
    /// Ones for the raw bits of a code.
    mask: L::V,
    digits: Digits,
    /// The bytes that must be readable from a row's first on: the planes, and a margin if loads end behind them.
    reach: usize,
    /// The registers that a row's codes fill, in whole units.
    registers: usize,
}

/// The location of the digits.
struct Digits {
    phases: &'static [Phase],
    /// radix · 2^raw.
    levels: u16,
    /// 256 divided by the number of phases, rounded up: register r is in pattern r · `patterns` >> 8.
    patterns: usize,
    /// The bytes after which phases repeat.
    pattern_bytes: usize,
    /// Whether a group of digits has seven bits, and not a byte.
    seven: bool,
    /// The byte of a row at which the plane of digits begins.
    start: usize,
    /// The last byte of the plane.
    last: usize,
    /// A mask to be cut out where its byte 31 meets the plane's last byte: ones before it, ones for
    /// the digits' bits in it, and zeros behind it.
    edge: [u8; 48],
}

impl Digits {
    /// Finds the digits of rows of `dim` codes.
    #[inline(always)]
    fn new(packing: Packing, dim: usize, start: usize) -> Self {
        let phases: &[Phase] = match packing.radix() {
            3 => &PHASES_3,
            5 => &PHASES_5,
            9 => &PHASES_9,
            _ => &[],
        };
        let mut edge = [0; 48];
        edge[..31].fill(0xff);
        edge[31] = last_digit_byte(packing, dim);
        Self {
            phases,
            levels: packing.levels() as u16,
            patterns: 256usize.div_ceil(phases.len().max(1)),
            pattern_bytes: phases.last().map_or(0, |phase| phase.end),
            seven: packing.digit_group().1 == 7,
            start: start + packing.raw_bytes(dim),
            last: start + packing.bytes(dim) - 1,
            edge,
        }
    }

    /// Returns the phase of a register, and where its bytes begin.
    #[inline(always)]
    fn place(&self, register: usize) -> (&'static Phase, usize) {
        let pattern = (register * self.patterns) >> 8;
        let phase = &self.phases[register - pattern * self.phases.len()];
        (phase, self.start + pattern * self.pattern_bytes + phase.first)
    }

    /// Returns a mask of valid bits: bytes behind the row must not get into its last group.
    #[inline(always)]
    fn valid(&self, at: usize) -> &[u8; 16] {
        let before = 31 - self.last.saturating_sub(at).min(31);
        self.edge[before..].first_chunk().unwrap_or(&[0; 16])
    }
}

impl<L: Integers> Codes<L> {
    /// Prepares rows whose planes of `dim` codes begin at byte `start`.
    #[inline(always)]
    pub(crate) fn new(kind: u8, packing: Packing, dim: usize, start: usize) -> Self {
        let raw_bits = packing.raw_bits() as usize;
        let stride = kind::stride(kind);
        let registers = dim.div_ceil(16 * stride) * stride;
        Self {
            raw_bits,
            start,
            spread: [L::load(&SPREAD[raw_bits][0]), L::load(&SPREAD[raw_bits][1])],
            shift: [L::load_words(&SHIFT[raw_bits][0]), L::load_words(&SHIFT[raw_bits][1])],
            mask: L::splat(((1u32 << raw_bits) - 1) as u8),
            digits: Digits::new(packing, dim, start),
            reach: start
                + match kind {
                    // As many bytes as units load: none behind the planes if these are whole units.
                    1 | 2 | 4 => 16 * registers / stride,
                    _ => packing.bytes(dim) + MARGIN,
                },
            registers,
        }
    }

    /// Returns the number of registers of codes in a row.
    #[inline(always)]
    pub(crate) fn registers(&self) -> usize {
        self.registers
    }

    /// Returns the codes of a register, of R rows, in order. Behind the end of the rows they are
    /// anything below `levels`.
    #[inline(always)]
    pub(crate) fn get<const KIND: u8, const R: usize>(&self, rows: [&[u8]; R], register: usize) -> [L::V; R] {
        const { assert!(KIND == kind::ORDERED) };
        let mut group = Group { starts: [[core::ptr::null(); 2]; R], reach: usize::MAX, bytes: PhantomData };
        for (starts, row) in group.starts.iter_mut().zip(rows) {
            *starts = [row.as_ptr(); 2];
            group.reach = group.reach.min(row.len());
        }
        self.unit::<KIND, R>(&group, register)
    }

    /// Returns the registers from `kind::stride` · `unit` on, which contain
    /// [`indices`](Self::indices).
    ///
    /// Here and wherever registers are used, write loops and no closures. A closure lacks the
    /// caller's target features, and LLVM does not inline it into `map` or `from_fn` before it has
    /// given up on its intrinsics.
    #[inline(always)]
    pub(crate) fn unit<const KIND: u8, const R: usize>(&self, rows: &Group<R>, unit: usize) -> [L::V; R] {
        let register = unit * kind::stride(KIND);
        assert!(register < self.registers && rows.reach >= self.reach);
        if let 1 | 2 | 4 = KIND {
            return self.load(rows, self.start + 16 * unit);
        }
        if self.raw_bits == 0 {
            return self.digits(rows, register);
        }
        let mut codes = self.load(rows, self.start + 2 * self.raw_bits * register);
        if self.raw_bits < 8 {
            for codes in &mut codes {
                let low = L::multiply_words(L::lookup_16(*codes, self.spread[0]), self.shift[0]);
                let high = L::multiply_words(L::lookup_16(*codes, self.spread[1]), self.shift[1]);
                *codes = L::upper_bits(low, high, self.raw_bits as u32);
            }
        }
        if !self.digits.phases.is_empty() {
            for (codes, digits) in codes.iter_mut().zip(self.digits(rows, register)) {
                *codes = L::select(self.mask, *codes, digits);
            }
        }
        codes
    }

    /// Returns the table indices for the lower or upper half bytes of a unit.
    #[inline(always)]
    pub(crate) fn indices<const KIND: u8>(unit: L::V, half: usize) -> L::V {
        match (KIND, half) {
            (1 | 2 | 4, 0) => L::and(unit, L::splat(15)),
            (1 | 2 | 4, _) => L::shift_bytes_right(unit, 4),
            _ => unit,
        }
    }

    /// Returns the bytes of sixteen threes of row `r`, from the `unit`-th 48 bytes.
    #[inline(always)]
    pub(crate) fn threes<const R: usize>(&self, rows: &Group<R>, r: usize, unit: usize) -> [L::V; 3] {
        assert!(8 * unit < self.registers && rows.reach >= self.reach);
        let [first, second] = rows.starts[r];
        let mut fours = [L::splat(0); 4];
        for (i, fours) in fours.iter_mut().enumerate() {
            let at = self.start + 48 * unit + 12 * i;
            // SAFETY: the check above: rows have `reach` bytes, and these 48 bytes are in their plane. The last
            // load begins 12 bytes before the end of the 48, and `MARGIN` bytes follow the planes.
            *fours = unsafe { L::load_pointers([first.add(at), second.add(at)]) };
        }
        L::thirds(fours)
    }

    /// Returns the indices of the eight codes of threes, and the table of each.
    ///
    /// ```text
    /// byte a    c₂c₂ c₁c₁c₁ c₀c₀c₀
    /// byte b    c₅ c₄c₄c₄ c₃c₃c₃ c₂
    /// byte c    c₇c₇c₇ c₆c₆c₆ c₅c₅
    /// ```
    ///
    /// Codes 2 and 5 lie in two bytes. Masks bring their parts together in half a byte.
    #[inline(always)]
    pub(crate) fn indices_of_threes([a, b, c]: [L::V; 3]) -> [(L::V, usize); 8] {
        let (upper, lower, half) = (L::splat(12), L::splat(3), L::splat(15));
        let [by_four, by_four_b, by_four_c] =
            [L::shift_words_right::<4>(a), L::shift_words_right::<4>(b), L::shift_words_right::<4>(c)];
        [
            (L::and(a, half), 0),
            (L::and(L::shift_words_right::<3>(a), half), 0),
            (L::or(L::and(by_four, upper), L::and(b, lower)), 2),
            (L::and(b, half), 1),
            (L::and(by_four_b, half), 0),
            (L::or(L::and(by_four_b, upper), L::and(c, lower)), 3),
            (L::and(L::shift_words_right::<1>(c), half), 1),
            (L::and(by_four_c, half), 1),
        ]
    }

    /// Returns digits above the raw bits. Below them are fractions.
    ///
    /// No division is needed. v·⌈2¹⁶/rⁿ⌉ is v/rⁿ as a fraction of 16 bits, exact enough for n
    /// digits. Times r^(n-1-k) modulo 2¹⁶, digit k comes first behind the point. These two factors
    /// are one constant. A multiplication by r · 2^raw then extracts the digit.
    #[inline(always)]
    fn digits<const R: usize>(&self, rows: &Group<R>, register: usize) -> [L::V; R] {
        let (phase, at) = self.digits.place(register);
        let valid = L::load(self.digits.valid(at));
        let mut digits = self.load(rows, at);
        for digits in &mut digits {
            let bytes = L::and(*digits, valid);
            let (low, high) = (self.fractions(bytes, phase, 0), self.fractions(bytes, phase, 1));
            *digits = L::multiply_fractions(low, high, self.digits.levels);
        }
        digits
    }

    /// Returns eight digits as fractions.
    #[inline(always)]
    fn fractions(&self, bytes: L::V, phase: &Phase, half: usize) -> L::V {
        let mut group = L::lookup_16(bytes, L::load(&phase.spread[half]));
        if self.digits.seven {
            let top = L::multiply_words(group, L::load_words(&phase.shift[half]));
            group = L::shift_words_right::<9>(top);
        }
        L::multiply_words(group, L::load_words(&phase.fraction[half]))
    }

    /// Loads 16 bytes of each row.
    #[inline(always)]
    fn load<const R: usize>(&self, rows: &Group<R>, at: usize) -> [L::V; R] {
        debug_assert!(at + 16 <= self.reach);
        let mut bytes = [L::splat(0); R];
        for (bytes, [first, second]) in bytes.iter_mut().zip(rows.starts) {
            // SAFETY: `unit` checked that the rows have `reach` bytes and that the register is one of theirs. These are
            // 16 bytes for each unit, or planes with `MARGIN` bytes behind them. Then the last register starts less
            // than 16 bytes behind the end of a plane.
            *bytes = unsafe { L::load_pointers([first.add(at), second.add(at)]) };
        }
        bytes
    }

    /// Splits rows as [`Segment::both`] does.
    #[inline(always)]
    pub(crate) fn with_margin<'a>(&self, rows: &Rows<'a>, spare: &'a mut [u8; SPARE]) -> [Segment<'a>; 2] {
        Segment::both(rows, self.reach, spare)
    }
}

/// Memory for copies of the last rows.
pub(crate) const SPARE: usize = 3 * (2 + MAX_DIM + 2 * MARGIN);

/// Rows with a margin behind each, so that 16 bytes can be loaded anywhere in them.
pub(crate) struct Segment<'a> {
    bytes: &'a [u8],
    stride: usize,
    reach: usize,
    pub(crate) count: usize,
}

impl<'a> Segment<'a> {
    /// Splits rows in two: those with `reach` bytes before the end of the memory, and copies of the
    /// last ones in `spare`.
    #[inline(always)]
    pub(crate) fn both(rows: &Rows<'a>, reach: usize, spare: &'a mut [u8; SPARE]) -> [Self; 2] {
        let (bytes, stride, count) = (rows.bytes, rows.stride, rows.count());
        let ready = bytes.len().checked_sub(reach).map_or(0, |last| count.min(last / stride + 1));
        let rest = bytes.get(ready * stride..).filter(|_| ready < count).unwrap_or_default();
        // With a stride of `reach` or more nothing is left. Otherwise less than `reach` + `stride`
        // is left.
        let kept = rest.len().min(SPARE - reach);
        spare[..kept].copy_from_slice(&rest[..kept]);
        spare[kept..kept + reach].fill(0);
        [Self::new(bytes, stride, reach, ready), Self::new(spare, stride, reach, count - ready)]
    }

    /// Checks that all rows lie within the bytes.
    #[inline(always)]
    fn new(bytes: &'a [u8], stride: usize, reach: usize, count: usize) -> Self {
        assert!(count == 0 || (count - 1) * stride + reach <= bytes.len());
        Self { bytes, stride, reach, count }
    }

    /// Returns a row with its margin.
    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> &'a [u8] {
        &self.bytes[r * self.stride..][..self.reach]
    }

    /// Returns R rows for each of `lanes` lanes. The rows of the second lane follow those of the
    /// first, and all must exist.
    #[inline(always)]
    pub(crate) fn whole<const R: usize>(&self, first: usize, lanes: usize) -> Group<'a, R> {
        assert!(first + R * lanes <= self.count);
        self.up_to(first, R * lanes - 1)
    }

    /// Returns R rows for each of two lanes. Behind the last row, it repeats.
    #[inline(always)]
    pub(crate) fn group<const R: usize>(&self, first: usize) -> Group<'a, R> {
        assert!(first < self.count);
        let last = self.count - 1 - first;
        // Usually all rows exist, and their distances are constants of the loop.
        if last >= 2 * R { self.up_to(first, 2 * R - 1) } else { self.up_to(first, last) }
    }

    /// Returns rows from `first` on. The row that is `last` behind it repeats.
    #[inline(always)]
    fn up_to<const R: usize>(&self, first: usize, last: usize) -> Group<'a, R> {
        debug_assert!(first + last < self.count);
        let mut starts = [[core::ptr::null(); 2]; R];
        // SAFETY: `new` has checked that each of `count` rows has `reach` bytes.
        let start = unsafe { self.bytes.as_ptr().add(first * self.stride) };
        for i in 0..2 * R {
            // SAFETY: `i.min(last)` is at most `last`, so this too is one of the `count` rows.
            starts[i % R][i / R] = unsafe { start.add(i.min(last) * self.stride) };
        }
        Group { starts, reach: self.reach, bytes: PhantomData }
    }
}

/// Returns rows across both segments, as [`Segment::group`] does, from any row on. Behind the last
/// row, it repeats.
#[inline(always)]
pub(crate) fn gather<'a, const R: usize>(segments: &[Segment<'a>; 2], first: usize) -> Group<'a, R> {
    let [all, rest] = segments;
    let last = all.count + rest.count - 1;
    let mut starts = [[core::ptr::null(); 2]; R];
    for i in 0..2 * R {
        let r = last.min(first + i);
        let (segment, r) = if r < all.count { (all, r) } else { (rest, r - all.count) };
        // SAFETY: `new` has checked that each of `count` rows has `reach` bytes.
        starts[i % R][i / R] = unsafe { segment.bytes.as_ptr().add(r * segment.stride) };
    }
    Group { starts, reach: all.reach, bytes: PhantomData }
}

/// R rows for each lane. `reach` bytes of each can be read.
pub(crate) struct Group<'a, const R: usize> {
    starts: [[*const u8; 2]; R],
    reach: usize,
    bytes: PhantomData<&'a [u8]>,
}

/// Returns the bits of the digit plane's last byte that are digits.
#[inline(always)]
fn last_digit_byte(packing: Packing, dim: usize) -> u8 {
    let bits = packing.digit_bits(dim);
    0xff >> (bits.next_multiple_of(8) - bits)
}

/// For raw codes of b bits, the indices of the two bytes around code i.
static SPREAD: [[[u8; 16]; 2]; 9] = {
    let mut table = [[[0; 16]; 2]; 9];
    let mut at = 0;
    while at < 9 * 16 {
        let (bits, code) = (at / 16, at % 16);
        let byte = (bits * code / 8) as u8;
        table[bits][code / 8][code % 8 * 2] = byte;
        table[bits][code / 8][code % 8 * 2 + 1] = byte + 1;
        at += 1;
    }
    table
};

/// The factors that move code i to the top of its word.
static SHIFT: [[[i16; 8]; 2]; 9] = {
    let mut table = [[[0; 8]; 2]; 9];
    let mut at = 16;
    while at < 9 * 16 {
        let (bits, code) = (at / 16, at % 16);
        table[bits][code / 8][code % 8] = (1u16 << (16 - bits - bits * code % 8)) as i16;
        at += 1;
    }
    table
};

/// The location of 16 digits. The pattern repeats when a register begins with a group's first
/// digit, on a byte.
struct Phase {
    /// The byte with the first of the digits, from the start of the pattern.
    first: usize,
    /// The byte behind the last of them. In the last phase, it is the length of the pattern.
    end: usize,
    /// The byte of each digit's group, or both bytes of a group of seven bits.
    spread: [[u8; 16]; 2],
    /// The factors that move a group of seven bits to the top of its word.
    shift: [[i16; 8]; 2],
    /// The factors that move a digit behind the point.
    fraction: [[i16; 8]; 2],
}

const NO_PHASE: Phase =
    Phase { first: 0, end: 0, spread: [[0xff; 16]; 2], shift: [[0; 8]; 2], fraction: [[0; 8]; 2] };
static PHASES_3: [Phase; 5] = phases(3);
static PHASES_5: [Phase; 3] = phases(5);
static PHASES_9: [Phase; 1] = phases(9);

/// Computes the phases of a radix.
const fn phases<const N: usize>(radix: u32) -> [Phase; N] {
    let (group, width) = match radix {
        3 => (5, 8),
        5 => (3, 7),
        _ => (2, 7),
    };
    let unit = 65536u32.div_ceil(radix.pow(group as u32));
    let mut phases = [const { NO_PHASE }; N];
    let mut digit = 0;
    while digit < 16 * N {
        let (phase, code) = (&mut phases[digit / 16], digit % 16);
        let bit = digit / group * width;
        if code == 0 {
            phase.first = bit / 8;
        }
        phase.end = (bit + width) / 8;
        let (half, lane) = (code / 8, code % 8);
        let byte = (bit / 8 - phase.first) as u8;
        phase.spread[half][2 * lane] = byte;
        if width == 7 {
            phase.spread[half][2 * lane + 1] = byte + 1;
            phase.shift[half][lane] = 1 << (9 - bit % 8);
        }
        phase.fraction[half][lane] = (unit * radix.pow((group - 1 - digit % group) as u32)) as u16 as i16;
        digit += 1;
    }
    phases
}

/// A codebook of up to 16 bytes. Each code of half a byte has a table of its centroids plus `bias`,
/// and one of their upper bytes.
pub(crate) struct Bytes<L: Integers>([[L::V; 2]; 4]);

impl<L: Integers> Bytes<L> {
    /// Builds the tables for an order of codes.
    #[inline(always)]
    pub(crate) fn new(kind: u8, centroids: &[i16], bias: u8) -> Self {
        let mut tables = [[L::splat(0); 2]; 4];
        let (mut sixteen, count) = ([0; 16], centroids.len().min(16));
        sixteen[..count].copy_from_slice(&centroids[..count]);
        for (t, table) in tables.iter_mut().enumerate().take(kind::tables(kind)) {
            let mut planes = [[0; 16]; 2];
            for i in 0..16 {
                // If a half byte is one code, or codes come in order, the index is the code itself.
                let code = if kind == kind::THREES {
                    [i & 7, i >> 1, i >> 2 | (i & 1) << 2, i >> 3 | (i & 3) << 1][t]
                } else if kind::tables(kind) > 1 {
                    i >> (t * usize::from(kind)) & (centroids.len() - 1)
                } else {
                    i
                };
                [planes[0][i], planes[1][i]] = sixteen[code & 15].to_le_bytes();
                planes[0][i] = planes[0][i].wrapping_add(bias);
            }
            *table = [L::load(&planes[0]), L::load(&planes[1])];
        }
        Self(tables)
    }

    /// Looks up bytes.
    #[inline(always)]
    pub(crate) fn lookup(&self, table: usize, indices: L::V) -> L::V {
        L::lookup_16(self.0[table][0], indices)
    }

    /// Looks up words.
    #[inline(always)]
    pub(crate) fn words(&self, table: usize, indices: L::V) -> [L::V; 2] {
        L::lookup_words(self.0[table], indices)
    }
}

/// A codebook of up to 256 words: its low and its high bytes, in blocks of 64.
pub(crate) struct Words<L: Integers> {
    blocks: [[[L::V; 4]; 2]; 4],
    len: usize,
    /// If the centroids are the codes minus a constant (0 or half their number), that constant.
    /// Then nothing is looked up.
    offset: Option<u8>,
}

impl<L: Integers> Words<L> {
    /// Prepares a codebook.
    #[inline(always)]
    pub(crate) fn new(centroids: &[i16]) -> Self {
        let mut blocks = [[[L::splat(0); 4]; 2]; 4];
        for (i, chunk) in centroids.chunks(16).enumerate() {
            let mut planes = [[0; 16]; 2];
            for (j, centroid) in chunk.iter().enumerate() {
                [planes[0][j], planes[1][j]] = centroid.to_le_bytes();
            }
            for (plane, bytes) in planes.iter().enumerate() {
                blocks[i / 4][plane][i % 4] = L::load(bytes);
            }
        }
        let are_codes_minus =
            |offset: i16| centroids.iter().zip(0..).all(|(centroid, code)| *centroid == code - offset);
        let offset = [0, centroids.len() as i16 / 2].into_iter().find(|offset| are_codes_minus(*offset));
        Self { blocks, len: centroids.len(), offset: offset.map(|offset| offset as u8) }
    }

    /// Returns the centroids of 16 codes below the length, in order, for each of R rows.
    #[inline(always)]
    pub(crate) fn lookup<const R: usize>(&self, codes: [L::V; R]) -> [[L::V; 2]; R] {
        let mut found = [[L::splat(0); 2]; R];
        if let Some(offset) = self.offset {
            for (found, codes) in found.iter_mut().zip(codes) {
                *found = match offset {
                    0 => L::interleave(codes, L::splat(0)),
                    // These bytes are from -128 to 127.
                    _ => L::extend(L::sub_bytes(codes, L::splat(offset))),
                };
            }
            return found;
        }
        if self.len <= 16 {
            for (found, codes) in found.iter_mut().zip(codes) {
                let [[low, ..], [high, ..]] = self.blocks[0];
                *found = [L::lookup_16(low, codes), L::lookup_16(high, codes)];
            }
        } else if self.len <= 32 {
            let [[a, b, ..], [c, d, ..]] = self.blocks[0];
            for (found, codes) in found.iter_mut().zip(codes) {
                *found = [L::lookup_32([a, b], codes), L::lookup_32([c, d], codes)];
            }
        } else {
            for (i, block) in self.blocks[..self.len.div_ceil(64).min(4)].iter().enumerate() {
                for (found, codes) in found.iter_mut().zip(codes) {
                    let index = L::sub_bytes(codes, L::splat(64 * i as u8));
                    for (found, plane) in found.iter_mut().zip(block) {
                        *found = L::or(*found, L::lookup_64(plane, index));
                    }
                }
            }
        }
        for found in &mut found {
            *found = L::interleave(found[0], found[1]);
        }
        found
    }
}
