//! Sizes, and parameters of kernels: the same as in `kernels/*.cuh`.
//!
//! ```text
//! pool     slot │ slot │ slot …            a page of 64, 128 or 256 tokens is 1, 2 or 4 slots
//! slot     head 0 │ head 1 │ …             64 tokens; each head starts at a multiple of 32 bytes
//! head     planes of keys │ centre │ fields of keys │ norms of values │ tail │ planes of values │ fields of groups
//!          └───────────────────────── key_part ────────────────────────────┘ └────────── value_part ──────────┘
//! ```

use super::tables::{Cells, CodeShape, Tables};
use alloc::vec::Vec;

/// Widths of keys and values with kernels.
pub const WIDTHS: [usize; 6] = [64, 80, 96, 128, 192, 256];

/// Tokens of a slot, the unit of kernels. A page is one, two or four slots.
pub(super) const SLOT_TOKENS: usize = 64;

/// Sizes of a layer. Keys and values have the same width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Width of a key and of a value: one of [`WIDTHS`].
    pub dim: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Tokens of a page on the CPU: 64, 128 or 256.
    pub page_tokens: usize,
    /// Whether a page has a centre.
    pub centres: bool,
    /// The number of sequences.
    pub sequences: usize,
    /// Pages of all sequences together.
    pub pages: usize,
    /// Maximum pages of a sequence.
    pub pages_each: usize,
    /// Maximum exact tokens of a sequence.
    pub exact: usize,
    /// Sinks among these.
    pub sinks: usize,
    /// Places of the ring: for the other exact tokens, and for those that a rollback makes exact again.
    pub ring: usize,
    /// Whether keys, and values, have chunks of four values that are exact in addition to their codes.
    pub outliers: [bool; 2],
}

impl Shape {
    pub(super) fn slots_of_page(&self) -> usize {
        self.page_tokens / SLOT_TOKENS
    }

    /// Returns the bytes of a page with these tables, as on the CPU.
    #[must_use]
    pub fn bytes_of_page(&self, keys: &Tables, values: &Tables) -> usize {
        self.page_bytes(keys.shape, values.shape)
    }

    /// Returns the bytes of a page, as on the CPU.
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

    /// Returns the bytes of a slot of one head, as in `kernels/layout.cuh`.
    pub(super) fn slot_bytes(&self, keys: CodeShape, values: CodeShape) -> usize {
        (self.key_part(keys, values) + self.value_part(values)).next_multiple_of(32)
    }

    /// Returns the bytes of a slot's planes.
    pub(super) fn planes(&self, shape: CodeShape) -> usize {
        SLOT_TOKENS * shape.gpu_row(self.dim)
    }

    /// Returns `outliers` as the number in the kernels' source.
    pub(super) fn outliers_number(&self) -> u32 {
        u32::from(self.outliers[0]) | u32::from(self.outliers[1]) << 1
    }

    /// Returns the bytes of a slot without the part of its values.
    pub(super) fn key_part(&self, keys: CodeShape, values: CodeShape) -> usize {
        let centre = if self.centres { 2 * keys.operands(self.dim) } else { 0 };
        let of_values = if matches!(values, CodeShape::Groups(_)) { 0 } else { 2 };
        let tails = if keys.halves().is_some() { 2 } else { 1 };
        let tail = 16 * tails + if self.outliers_number() > 0 { 16 } else { 0 };
        self.planes(keys) + centre + SLOT_TOKENS * (2 * keys.fields(self.dim) + of_values) + tail
    }

    /// Returns where a slot has the second half of keys, or 0 for keys without halves.
    pub(super) fn coarse_at(&self, keys: CodeShape, values: CodeShape) -> usize {
        let Some([fine, _]) = keys.halves() else { return 0 };
        let half = Self { dim: self.dim / 2, outliers: [false; 2], ..*self };
        half.key_part(fine, values)
    }

    /// Returns the bytes of a slot's values: planes, then fields of groups.
    pub(super) fn value_part(&self, values: CodeShape) -> usize {
        let fields = if matches!(values, CodeShape::Groups(_)) { 2 * values.fields(self.dim) } else { 0 };
        self.planes(values) + SLOT_TOKENS * fields
    }

    /// Returns the places for exact tokens of a sequence.
    pub(super) fn exact_places(&self) -> usize {
        self.ring + self.sinks
    }

    /// Returns the values of the exact rows of a token.
    pub(super) fn token_values(&self) -> usize {
        self.kv_heads * 2 * self.dim
    }

    /// Returns the values of balances and prefix centres of a sequence.
    pub(super) fn front_values(&self) -> usize {
        self.kv_heads * 2 * self.dim
    }
}

/// The contents of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Its pages in order, as places in the pool.
    pub pages: Vec<u32>,
    /// Its exact tokens: sinks, then the window.
    pub exact: usize,
    /// Sinks among these.
    pub sinks: usize,
    /// The place in the ring of the window's first token.
    pub place: usize,
    /// The position of the next token.
    pub next: u64,
    /// The position of the window's first token.
    pub window_start: u64,
}

/// Parameters of `upload` and `download`.
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
    /// Only kernels with outliers read it.
    pub(super) outliers: u64,
}

/// Parameters of `check`, `take` and `widen`.
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
    pub(super) floats: u32,
    pub(super) bounds: [f32; 2],
}

/// Parameters of `step`.
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
    pub(super) floats: u32,
    pub(super) bounds: [f32; 2],
}

/// Parameters of `encode_keys` and `encode_values`.
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
    pub(super) lost: u64,
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

/// Biases, as kernels read them.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Bias {
    pub(super) values: u64,
    pub(super) starts: u64,
    pub(super) of_heads: u64,
}

/// Parameters of `attend` and `combine`.
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
    pub(super) one_front: u32,
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
    /// Only kernels for halves read it.
    pub(super) coarse_table: [u32; 32],
    pub(super) coarse_unit: f32,
}

/// Parameters of the kernels of blocks.
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
    pub(super) query_rows: u64,
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
    /// Only kernels for halves read it.
    pub(super) coarse_centroids: [f32; 128],
    pub(super) coarse_unit: f32,
}

/// Parameters of the kernels on rows in cells.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct CellRows {
    pub(super) rows: [u64; 2],
    pub(super) indices: u64,
    pub(super) places: u64,
    pub(super) exact: u64,
    pub(super) scratch: [u64; 2],
    pub(super) cell_of: u64,
    pub(super) pages: u64,
    pub(super) coded: u64,
    pub(super) out: u64,
    pub(super) mask: u64,
    pub(super) hidden: u64,
    pub(super) bias: u64,
    pub(super) lost: u64,
    pub(super) row_stride: [u64; 2],
    pub(super) mask_stride: u64,
    pub(super) bias_stride: u64,
    pub(super) first: u64,
    pub(super) cells: u64,
    pub(super) seen: u64,
    pub(super) count: u32,
    pub(super) kv_heads: u32,
    pub(super) dim: u32,
    pub(super) side: u32,
    pub(super) wide: u32,
}

/// Parameters of `open`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Open {
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) block: Block,
}

/// Returns a sequence's words on the GPU.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of a field, and its alignment and bytes.
    type Field<'a> = (&'a str, [usize; 2]);

    /// Returns the lines of a struct.
    fn lines_of<'a>(source: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
        let (_, body) = source.split_once(&alloc::format!("struct {name} {{\n")).expect(name);
        body.lines()
            .take_while(|line| !line.starts_with('}'))
            .map(|line| line.trim().split("//").next().unwrap_or(""))
    }

    /// Returns alignment and bytes of `count` values of a type.
    fn sizes(of_type: &str, count: &str) -> [usize; 2] {
        let known = [
            ("u32", 4, 4),
            ("f32", 4, 4),
            ("float", 4, 4),
            ("u64", 8, 8),
            ("Bias", 8, size_of::<Bias>()),
            ("Block", 8, size_of::<Block>()),
            ("Cells", 4, size_of::<Cells>()),
        ];
        let (_, align, bytes) = known.into_iter().find(|(name, ..)| *name == of_type).expect(of_type);
        [align, bytes * count.parse::<usize>().expect("a number")]
    }

    /// Returns the fields of a struct of the kernels, such as `const u32 *table, sides[2];`.
    fn fields_of_kernels<'a>(source: &'a str, name: &str) -> Vec<Field<'a>> {
        let fields =
            lines_of(source, name).filter(|line| !line.starts_with('#')).flat_map(|line| line.split(';'));
        let fields = fields.filter_map(|field| field.trim().trim_start_matches("const ").split_once(' '));
        let each =
            fields.flat_map(|(of_type, names)| names.split(',').map(move |name| (of_type, name.trim())));
        each.map(|(of_type, name)| {
            let (pointer, name) = name.strip_prefix('*').map_or((false, name), |name| (true, name));
            let (name, count) = name.trim_end_matches(']').split_once('[').unwrap_or((name, "1"));
            (name, sizes(if pointer { "u64" } else { of_type }, count))
        })
        .collect()
    }

    /// Returns the fields of a struct of this file, such as `pub(super) sides: [u64; 2],`.
    fn fields_here(name: &str) -> Vec<Field<'static>> {
        let fields =
            lines_of(include_str!("layout.rs"), name).filter_map(|line| line.strip_prefix("pub(super) "));
        let fields = fields.map(|field| field.trim_end_matches(',').split_once(": ").expect(name));
        fields
            .map(|(name, of_type)| {
                let array = of_type.trim_matches(['[', ']']).split_once("; ");
                let (of_type, count) = array.unwrap_or((of_type, "1"));
                (name, sizes(of_type, count))
            })
            .collect()
    }

    #[test]
    fn parameters_are_those_of_the_kernels() {
        let attend = include_str!("kernels/attend.cuh");
        let rows = include_str!("kernels/rows.cuh");
        for (name, in_kernels, source, bytes) in [
            ("Exchange", "Exchange", include_str!("kernels/exchange.cuh"), size_of::<Exchange>()),
            ("Given", "Given", rows, size_of::<Given>()),
            ("Steps", "Steps", rows, size_of::<Steps>()),
            ("Encode", "Encode", include_str!("kernels/encode.cuh"), size_of::<Encode>()),
            ("Bias", "Bias", include_str!("kernels/warp.cuh"), size_of::<Bias>()),
            ("Params", "Params", attend, size_of::<Params>()),
            ("Block", "Block", include_str!("kernels/unfold.cuh"), size_of::<Block>()),
            ("CellRows", "Cells", include_str!("kernels/cells.cuh"), size_of::<CellRows>()),
            ("Open", "Open", include_str!("kernels/open.cuh"), size_of::<Open>()),
        ] {
            let fields = fields_here(name);
            assert_eq!(fields, fields_of_kernels(source, in_kernels), "{name}");
            let end =
                fields.iter().fold(0, |end: usize, (_, [align, bytes])| end.next_multiple_of(*align) + bytes);
            assert_eq!(end.next_multiple_of(8), bytes, "{name}: a field was not read");
        }
    }
}
