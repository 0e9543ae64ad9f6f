//! Sizes, and what kernels are given: the same as in `kernels/*.cuh`.

use super::tables::{Cells, CodeShape, Tables};
use alloc::vec::Vec;

/// Widths of keys and values that there are kernels for.
pub const WIDTHS: [usize; 6] = [64, 80, 96, 128, 192, 256];

/// Tokens of a slot, which is what kernels work on: a page is one of them, or two or four.
pub(super) const SLOT_TOKENS: usize = 64;

/// Sizes. Keys and values are of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Width of a key and of a value: one of [`WIDTHS`].
    pub dim: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Tokens of a page as the CPU has it: 64, 128 or 256.
    pub page_tokens: usize,
    /// Whether a page has a centre.
    pub centres: bool,
    /// Sequences.
    pub sequences: usize,
    /// Pages of all sequences together.
    pub pages: usize,
    /// Pages of one sequence at most.
    pub pages_each: usize,
    /// Exact tokens of one sequence at most.
    pub exact: usize,
    /// Of these, sinks.
    pub sinks: usize,
    /// Places for the others, and for those that may become exact again: no fewer than there are exact ones.
    pub ring: usize,
    /// Whether some chunks of four values of keys, and of values, are exact beside their codes.
    pub outliers: [bool; 2],
}

impl Shape {
    pub(super) fn slots_of_page(&self) -> usize {
        self.page_tokens / SLOT_TOKENS
    }

    /// Bytes of a page of such keys and values as the CPU has it.
    #[must_use]
    pub fn bytes_of_page(&self, keys: &Tables, values: &Tables) -> usize {
        self.page_bytes(keys.shape, values.shape)
    }

    /// Bytes of a page as the CPU has it.
    pub(super) fn page_bytes(&self, keys: CodeShape, values: CodeShape) -> usize {
        let centre = match keys {
            _ if !self.centres => 0,
            CodeShape::Halves(_) => 4 + self.dim * 5 / 8,
            keys if keys.in_rows() => 2 * self.dim,
            _ => 2 + self.dim * 5 / 8,
        };
        let norms = keys.norms(self.page_tokens) + values.norms(self.page_tokens);
        8 + self.kv_heads * (self.page_tokens * (keys.row(self.dim) + values.row(self.dim)) + centre + norms)
    }

    /// Bytes of a slot of one head, as `kernels/layout.cuh` has it.
    pub(super) fn slot_bytes(&self, keys: CodeShape, values: CodeShape) -> usize {
        (self.key_part(keys, values) + self.value_part(values)).next_multiple_of(32)
    }

    /// Bytes of a slot's planes.
    pub(super) fn planes(&self, shape: CodeShape) -> usize {
        SLOT_TOKENS * shape.gpu_row(self.dim)
    }

    /// As the kernels' source has it.
    pub(super) fn outliers_number(&self) -> u32 {
        u32::from(self.outliers[0]) | u32::from(self.outliers[1]) << 1
    }

    /// Bytes of a slot but for the part of its values.
    pub(super) fn key_part(&self, keys: CodeShape, values: CodeShape) -> usize {
        let centre = if self.centres { 2 * keys.operands(self.dim) } else { 0 };
        let of_values = if matches!(values, CodeShape::Groups(_)) { 0 } else { 2 };
        let tails = if keys.halves().is_some() { 2 } else { 1 };
        let tail = 16 * tails + if self.outliers_number() > 0 { 16 } else { 0 };
        self.planes(keys) + centre + SLOT_TOKENS * (2 * keys.fields(self.dim) + of_values) + tail
    }

    /// Where a slot has the second half of keys of two halves; 0 where they are not.
    pub(super) fn coarse_at(&self, keys: CodeShape, values: CodeShape) -> usize {
        let Some([fine, _]) = keys.halves() else { return 0 };
        let half = Self { dim: self.dim / 2, outliers: [false; 2], ..*self };
        half.key_part(fine, values)
    }

    /// Bytes of a slot's values: planes, and fields of groups behind them.
    pub(super) fn value_part(&self, values: CodeShape) -> usize {
        let fields = if matches!(values, CodeShape::Groups(_)) { 2 * values.fields(self.dim) } else { 0 };
        self.planes(values) + SLOT_TOKENS * fields
    }

    /// Places of exact tokens of a sequence.
    pub(super) fn exact_places(&self) -> usize {
        self.ring + self.sinks
    }

    /// Values of the exact rows of a token.
    pub(super) fn token_values(&self) -> usize {
        self.kv_heads * 2 * self.dim
    }

    /// Values of balances and prefix centres of a sequence.
    pub(super) fn front_values(&self) -> usize {
        self.kv_heads * 2 * self.dim
    }
}

/// What a sequence holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Its pages, in order: places in the pool.
    pub pages: Vec<u32>,
    /// Its exact tokens: sinks, then the window.
    pub exact: usize,
    /// Of these, sinks.
    pub sinks: usize,
    /// Place in the ring of the first token of the window.
    pub place: usize,
    /// Position of the next token.
    pub next: u64,
    /// Position of the first token of the window.
    pub window_start: u64,
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Exchange {
    pub(super) pages: u64,
    pub(super) pool: u64,
    pub(super) slots: u64,
    pub(super) steps: u64,
    pub(super) book: u64,
    pub(super) page_bytes: u64,
    pub(super) kv_heads: u32,
    pub(super) page_tokens: u32,
    /// Of kernels that are compiled with outliers; others do not look at it.
    pub(super) outliers: u64,
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Given {
    pub(super) sides: [u64; 2],
    pub(super) rows: u64,
    pub(super) wide: u64,
    pub(super) doubtful: u64,
    pub(super) token_stride: u64,
    pub(super) head_stride: u64,
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) kv_heads: u32,
    pub(super) dim: u32,
    pub(super) float: u32,
    pub(super) bounds: [f32; 2],
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub(super) sides: [u64; 2],
    pub(super) exact: u64,
    pub(super) sequences: u64,
    pub(super) flags: u64,
    pub(super) token_stride: u64,
    pub(super) head_stride: u64,
    pub(super) exact_stride: u32,
    pub(super) ring: u32,
    pub(super) most: u32,
    pub(super) kv_heads: u32,
    pub(super) dim: u32,
    pub(super) float: u32,
    pub(super) bounds: [f32; 2],
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Encode {
    pub(super) rows: u64,
    pub(super) pool: u64,
    pub(super) slots: u64,
    pub(super) steps: u64,
    pub(super) book: u64,
    pub(super) book_thresholds: u64,
    pub(super) front: u64,
    pub(super) refused: u64,
    pub(super) search: u64,
    pub(super) position: u64,
    pub(super) kv_heads: u32,
    pub(super) page_tokens: u32,
    pub(super) rounds: u32,
    pub(super) gain: u32,
    pub(super) unit: f32,
    pub(super) kappa: f32,
    pub(super) book_unit: f32,
    pub(super) signs: [u32; 8],
    pub(super) centroids: [f32; 128],
    pub(super) cells: Cells,
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Bias {
    pub(super) values: u64,
    pub(super) starts: u64,
    pub(super) of_heads: u64,
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Params {
    pub(super) queries: u64,
    pub(super) output: u64,
    pub(super) pool: u64,
    pub(super) table: u64,
    pub(super) sequences: u64,
    pub(super) exact: u64,
    pub(super) fronts: u64,
    pub(super) sink_logits: u64,
    pub(super) parts: u64,
    pub(super) sums: u64,
    pub(super) entries: u64,
    pub(super) window: u64,
    pub(super) query_heads: u32,
    pub(super) kv_heads: u32,
    pub(super) table_stride: u32,
    pub(super) exact_stride: u32,
    pub(super) splits: u32,
    pub(super) exact_splits: u32,
    pub(super) keep_sinks: u32,
    pub(super) key_rounds: u32,
    pub(super) value_rounds: u32,
    pub(super) several: u32,
    pub(super) ring: u32,
    pub(super) query_type: u32,
    pub(super) output_type: u32,
    pub(super) zero: u32,
    pub(super) together: u32,
    pub(super) logit_unit: f32,
    pub(super) key_unit: f32,
    pub(super) centre_unit: f32,
    pub(super) value_unit: f32,
    pub(super) soft_cap: f32,
    pub(super) key_signs: [u32; 8],
    pub(super) value_signs: [u32; 8],
    pub(super) key_table: [u32; 32],
    pub(super) value_table: [u32; 32],
    pub(super) bias: Bias,
    /// Of kernels that are compiled for halves; others do not look at it.
    pub(super) coarse_table: [u32; 32],
    pub(super) coarse_unit: f32,
}

/// As the kernels take it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) queries: u64,
    pub(super) output: u64,
    pub(super) pool: u64,
    pub(super) table: u64,
    pub(super) sequences: u64,
    pub(super) exact: u64,
    pub(super) fronts: u64,
    pub(super) sink_logits: u64,
    pub(super) tokens: u64,
    pub(super) tiles: u64,
    pub(super) asked: u64,
    pub(super) units: u64,
    pub(super) scales: u64,
    pub(super) means: u64,
    pub(super) parts: u64,
    pub(super) sums: u64,
    pub(super) entries: u64,
    pub(super) window: u64,
    pub(super) position: u64,
    pub(super) query_heads: u32,
    pub(super) kv_heads: u32,
    pub(super) table_stride: u32,
    pub(super) exact_stride: u32,
    pub(super) queries_each: u32,
    pub(super) padded: u32,
    pub(super) splits: u32,
    pub(super) first_tile: u32,
    pub(super) keep_sinks: u32,
    pub(super) key_rounds: u32,
    pub(super) value_rounds: u32,
    pub(super) at_once: u32,
    pub(super) ring: u32,
    pub(super) query_type: u32,
    pub(super) output_type: u32,
    pub(super) logit_unit: f32,
    pub(super) key_unit: f32,
    pub(super) centre_unit: f32,
    pub(super) value_unit: f32,
    pub(super) soft_cap: f32,
    pub(super) key_signs: [u32; 8],
    pub(super) value_signs: [u32; 8],
    pub(super) key_centroids: [f32; 128],
    pub(super) value_centroids: [f32; 128],
    pub(super) bias: Bias,
    /// Of kernels that are compiled for halves; others do not look at it.
    pub(super) coarse_centroids: [f32; 128],
    pub(super) coarse_unit: f32,
}

/// A sequence's words on the GPU.
pub(super) fn words_of(sequence: &Sequence, slots: usize) -> [u32; 8] {
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let ([next, next_high], [start, start_high]) = (halves(sequence.next), halves(sequence.window_start));
    [
        slots as u32,
        sequence.exact as u32,
        sequence.sinks as u32,
        sequence.place as u32,
        next,
        next_high,
        start,
        start_high,
    ]
}
