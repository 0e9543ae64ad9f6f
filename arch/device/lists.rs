//! Outliers as kernels read them, and the allocator of their memory.
//!
//! ```text
//! piece 0   │ page 3's │ free │ page 0's ······ │ free │     an outlier is three words
//! piece 1   │ page 1's │ free                          │     pieces are added, and never move
//! list      address u64 │ keys, values: count u16 each │ keys, values: largest magnitude f16 each
//! ```

use super::layout::{SLOT_TOKENS, Shape};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// A chunk of four values of a row, which is added to the decoded codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outlier {
    /// The key/value head.
    pub head: u16,
    /// Whether the row is a value; otherwise it is a key.
    pub of_value: bool,
    /// The token of the page.
    pub token: u16,
    /// The chunk of the row.
    pub chunk: u16,
    /// Four values in f16, in the basis of the codes.
    pub values: [u16; 4],
}

impl Outlier {
    fn slot(&self) -> usize {
        usize::from(self.token) / SLOT_TOKENS
    }

    fn token_of_slot(&self) -> usize {
        usize::from(self.token) % SLOT_TOKENS
    }

    /// Returns the sorting key among a page's outliers: slot, head and side; then token for keys, chunk for
    /// values.
    pub(super) fn order(&self) -> (usize, u16, bool, usize, u16) {
        let (token, chunk) = (self.token_of_slot(), self.chunk);
        let (first, second) = if self.of_value { (usize::from(chunk), token as u16) } else { (token, chunk) };
        (self.slot(), self.head, self.of_value, first, second)
    }

    /// Returns the words that kernels read.
    pub(super) fn words(&self) -> [u32; WORDS] {
        let two = |low, high| u32::from(low) | u32::from(high) << 16;
        let [w, x, y, z] = self.values;
        [self.token_of_slot() as u32 | u32::from(self.chunk) << 8, two(w, x), two(y, z)]
    }

    /// Returns the outlier of such words, for a slot, a head and a side.
    pub(super) fn of_words(
        [place, low, high]: [u32; WORDS],
        slot: usize,
        head: usize,
        of_value: bool,
    ) -> Self {
        Self {
            head: head as u16,
            of_value,
            token: slot as u16 * SLOT_TOKENS as u16 + (place & 0xFF) as u16,
            chunk: (place >> 8) as u16,
            values: [low as u16, (low >> 16) as u16, high as u16, (high >> 16) as u16],
        }
    }
}

/// Words of an outlier on the GPU.
pub(super) const WORDS: usize = 3;

/// Words that describe a slot's outliers.
pub(super) const LIST_WORDS: usize = 4;

/// A piece has space for one in 32 of all chunks.
const SHARE: usize = 32;

/// An allocator: which ranges of the pieces of memory belong to which page. Ranges count outliers.
#[derive(Debug)]
pub(super) struct Lists {
    /// For each piece, the free ranges in order. No two are adjacent.
    free: Vec<Vec<Range<usize>>>,
    /// The range of each page of the pool.
    pub(super) runs: Vec<Option<Run>>,
    /// Outliers that a piece has space for.
    pub(super) each: usize,
}

/// A page's range.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) piece: usize,
    pub(super) first: usize,
    /// \[slots]\[kv heads]\[keys, values].
    pub(super) counts: Vec<u16>,
}

impl Run {
    pub(super) fn places(&self) -> Range<usize> {
        self.first..self.first + self.counts.iter().map(|count| usize::from(*count)).sum::<usize>()
    }
}

impl Lists {
    pub(super) fn new(shape: &Shape) -> Self {
        let sides = shape.outliers.iter().filter(|exact| **exact).count();
        let page = shape.page_tokens * shape.kv_heads * (shape.dim / 4) * sides;
        // A piece has space for any page: at most half of its chunks are outliers.
        let each = (shape.pages.saturating_mul(page) / SHARE).max(page / 2);
        let pages = if sides > 0 { shape.pages } else { 0 };
        Self { free: Vec::new(), runs: (0..pages).map(|_| None).collect(), each }
    }

    /// Sets the number of pages in the pool.
    pub(super) fn grow(&mut self, pages: usize) {
        if !self.runs.is_empty() {
            self.runs.resize_with(pages, || None);
        }
    }

    /// Adds a piece with space for `count` outliers.
    pub(super) fn add(&mut self, count: usize) {
        self.free.push(core::iter::once(0..count).collect());
    }

    /// Allocates `count` outliers in the first piece with enough space: returns the piece and the first
    /// place.
    pub(super) fn take(&mut self, count: usize) -> Option<(usize, usize)> {
        for (piece, free) in self.free.iter_mut().enumerate() {
            if let Some(at) = free.iter().position(|places| places.len() >= count) {
                let first = free[at].start;
                free[at].start += count;
                if free[at].is_empty() {
                    free.remove(at);
                }
                return Some((piece, first));
            }
        }
        None
    }

    /// Frees a range of a piece, and joins it with free neighbours.
    fn release(&mut self, piece: usize, places: Range<usize>) {
        if places.is_empty() {
            return;
        }
        let free = &mut self.free[piece];
        let at = free.partition_point(|other| other.start < places.start);
        free.insert(at, places);
        if at + 1 < free.len() && free[at].end == free[at + 1].start {
            free[at].end = free.remove(at + 1).end;
        }
        if at > 0 && free[at - 1].end == free[at].start {
            free[at - 1].end = free.remove(at).end;
        }
    }

    /// Frees a page's range.
    pub(super) fn forget(&mut self, page: u32) {
        if let Some(run) = self.runs.get_mut(page as usize).and_then(Option::take) {
            self.release(run.piece, run.places());
        }
    }
}

/// Returns what kernels read of a page's sorted outliers at an address: the description of each slot and
/// head, and the counts, \[slots]\[kv heads]\[keys, values].
pub(super) fn lists_of(list: &[Outlier], shape: &Shape, address: u64) -> (Vec<u32>, Vec<u16>) {
    let (mut words, mut at) = (Vec::new(), 0);
    let mut counts = vec![0u16; 2 * shape.slots_of_page() * shape.kv_heads];
    let mut largest = vec![0u16; counts.len()];
    for outlier in list {
        let unit = outlier.slot() * shape.kv_heads + usize::from(outlier.head);
        let side = 2 * unit + usize::from(outlier.of_value);
        counts[side] += 1;
        largest[side] = outlier.values.iter().fold(largest[side], |most, half| most.max(half & 0x7fff));
    }
    let pairs = |all: &[u16]| all.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect::<Vec<_>>();
    for ([keys, values], [of_keys, of_values]) in pairs(&counts).into_iter().zip(pairs(&largest)) {
        let own = address + (4 * WORDS * at) as u64;
        words.extend([own as u32, (own >> 32) as u32]);
        words.extend([[keys, values], [of_keys, of_values]].map(|[a, b]| u32::from(a) | u32::from(b) << 16));
        at += usize::from(keys) + usize::from(values);
    }
    (words, counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape {
            dim: 64,
            kv_heads: 2,
            page_tokens: 128,
            centres: true,
            sequences: 1,
            pages: 4,
            pages_each: 4,
            exact: 192,
            sinks: 4,
            ring: 256,
            outliers: [true, true],
        }
    }

    /// Space is allocated once, freed, and joined with its free neighbours.
    #[test]
    fn freed_space_is_used_again() {
        let mut lists = Lists::new(&shape());
        assert_eq!(lists.take(1), None, "no piece yet");
        lists.add(100);
        let mut held: Vec<Range<usize>> = Vec::new();
        let mut random = 7u32;
        for _ in 0..2000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let count = (random >> 16) as usize % 30 + 1;
            match lists.take(count) {
                Some((piece, first)) => {
                    let own = first..first + count;
                    assert!(piece == 0 && own.end <= 100);
                    assert!(held.iter().all(|other| other.end <= own.start || own.end <= other.start));
                    held.push(own);
                }
                None => lists.release(0, held.swap_remove(random as usize % held.len())),
            }
            let free: usize = lists.free[0].iter().map(Range::len).sum();
            assert_eq!(free + held.iter().map(Range::len).sum::<usize>(), 100);
            assert!(lists.free[0].windows(2).all(|two| two[0].end < two[1].start), "{:?}", lists.free);
        }
        held.drain(..).for_each(|own| lists.release(0, own));
        assert!(lists.free[0].len() == 1 && lists.free[0][0] == (0..100));
        // The second piece is used when the first has no space.
        lists.add(300);
        assert_eq!(
            (lists.take(200), lists.take(60), lists.take(60)),
            (Some((1, 0)), Some((0, 0)), Some((1, 200)))
        );
    }

    /// Words describe an outlier, and where each slot's begin.
    #[test]
    fn words_describe_outliers() {
        let mut list = Vec::new();
        for (n, token) in [0u16, 5, 5, 63, 64, 64, 127, 100].into_iter().enumerate() {
            let n = n as u16;
            let values = [n, 0x8000 | (300 * n), 1000 - n, 77];
            list.push(Outlier { head: n % 2, of_value: n % 3 == 1, token, chunk: 15 - n, values });
        }
        list.sort_unstable_by_key(Outlier::order);
        for outlier in &list {
            let again =
                Outlier::of_words(outlier.words(), outlier.slot(), outlier.head.into(), outlier.of_value);
            assert_eq!(again, *outlier);
        }
        let (words, counts) = lists_of(&list, &shape(), 1 << 33);
        assert_eq!((words.len(), counts.len()), (4 * LIST_WORDS, 8));
        let mut at = 0;
        for (unit, words) in words.chunks_exact(LIST_WORDS).enumerate() {
            let address = u64::from(words[0]) | u64::from(words[1]) << 32;
            assert_eq!(address, (1 << 33) + 12 * at as u64);
            for side in 0..2 {
                let count = (words[2] >> (16 * side) & 0xFFFF) as usize;
                assert_eq!(count, usize::from(counts[2 * unit + side]));
                let own = &list[at..at + count];
                let is_own = |o: &Outlier| {
                    2 * o.slot() + usize::from(o.head) == unit && usize::from(o.of_value) == side
                };
                assert!(own.iter().all(is_own), "{own:?}");
                let largest = own.iter().flat_map(|o| o.values).map(|half| half & 0x7fff).max();
                assert_eq!(words[3] >> (16 * side) & 0xFFFF, u32::from(largest.unwrap_or(0)));
                at += count;
            }
        }
        assert_eq!(at, list.len());
    }
}
