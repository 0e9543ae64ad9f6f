//! Attention on cells. A mask says what each query sees.
//!
//! Several threads can attend to different pages at once, each into its own [`Partial`].
//! [`Partial::merge`] adds them in order. The result is the same bits, no matter which thread
//! computed which part.

use super::page::{Body, cells_of};
use super::{CellPages, PAGE};
use crate::Attend;
use crate::Error;
use crate::attention::{Total, check_options};
use crate::backend::Kernels;
use crate::codec::query::QUERY_BATCH;
use crate::codec::scratch::{MAX_SCRATCH, with_scratch};
use crate::codec::{Codec, at_row};
use crate::math::inverse_sqrt;
use crate::page::{Part, Queries, Run, score_floats};
use crate::spec::builders;
use alloc::vec::Vec;
use core::ops::Range;
use half::f16;
use octaplex_arch::{Float, MAX_DIM};

/// Closed pages that one call of the codec scores. More would not fit its scratch memory at all widths.
const PAGES_AT_ONCE: usize = 64;

/// The bits of -∞, the mask's value for a hidden cell.
const HIDDEN: u16 = f16::NEG_INFINITY.to_bits();

/// The values that each query adds to the logits of each cell.
#[derive(Clone, Copy, Debug)]
pub struct CellMask<'a> {
    /// One row a query, with one value a cell. -∞ hides a cell.
    pub values: &'a [f16],
    /// Values from the start of one row to the start of the next.
    pub stride: usize,
}

impl<'a> CellMask<'a> {
    /// Returns the values of a query for these cells.
    fn row(&self, query: usize, cells: Range<usize>) -> &'a [f16] {
        &self.values[query * self.stride..][cells]
    }

    /// Returns whether a query sees a cell.
    pub(super) fn sees(&self, query: usize, cell: usize) -> bool {
        self.values[query * self.stride + cell].to_bits() != HIDDEN
    }

    /// Returns the cells that a query sees, in order.
    pub(super) fn visible(self, query: usize, cells: usize) -> impl Iterator<Item = usize> {
        let pages = self.row(query, 0..cells).chunks(PAGE).enumerate();
        let pages = pages.filter(|(_, page)| page.iter().any(|x| x.to_bits() != HIDDEN));
        let visible = |(_, x): &(usize, &f16)| x.to_bits() != HIDDEN;
        pages.flat_map(move |(number, page)| {
            page.iter().enumerate().filter(visible).map(move |(cell, _)| number * PAGE + cell)
        })
    }
}

/// Options of attention on cells. The defaults of [`new`](Self::new) are one query for each query
/// head, a scale of 1/√width, and all cells visible.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CellAttend<'a> {
    /// The first cell, a multiple of 64. For example, the first cell of a stream.
    pub first: usize,
    /// The number of cells from there on.
    pub cells: usize,
    /// Queries of each query head. Rows of queries are \[query heads of a key/value
    /// head]\[queries]\[width].
    pub queries: usize,
    /// Factor of the logits: logit = scale · q·k. The default is 1/√width.
    pub scale: Option<f32>,
    /// Soft cap, applied before the mask: logit = cap · tanh(logit / cap).
    pub soft_cap: Option<f32>,
    /// Values to add to the logits, the same for all heads. Without a mask every cell is visible.
    pub mask: Option<CellMask<'a>>,
    /// Factors of the mask (ALiBi), one for each query head of the key/value head. Empty for 1.
    pub slopes: &'a [f32],
}

impl<'a> CellAttend<'a> {
    /// Creates options for `cells` cells from `first` on.
    #[must_use]
    pub const fn new(first: usize, cells: usize) -> Self {
        Self { first, cells, queries: 1, scale: None, soft_cap: None, mask: None, slopes: &[] }
    }

    builders! {
        queries: usize;
        scale: f32 => Some;
        soft_cap: f32 => Some;
        slopes: &'a [f32];
    }

    /// Sets the [`mask`](field@Self::mask). Its rows are `stride` values apart.
    #[must_use]
    pub const fn mask(self, values: &'a [f16], stride: usize) -> Self {
        Self { mask: Some(CellMask { values, stride }), ..self }
    }

    /// Returns the number of pages that the cells span.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.cells.div_ceil(PAGE)
    }

    /// Attends with the queries of one key/value head to some pages, and writes the result to
    /// `part`.
    ///
    /// Pages are counted from the first cell. A page that the mask hides from all queries is
    /// skipped.
    ///
    /// # Errors
    /// [`Error::Missing`] for heads, cells and pages out of range; [`Error::Rows`],
    /// [`Error::Length`] and [`Error::Unsupported`]; [`Error::Row`] or [`Error::NonFinite`] for
    /// queries that the codec refuses; [`Error::Corrupt`]. The part is then unspecified.
    pub fn attend(
        &self,
        keys: &CellPages,
        values: &CellPages,
        head: usize,
        queries: &[f32],
        pages: Range<usize>,
        part: &mut Partial,
    ) -> Result<(), Error> {
        let rows = self.check(keys, values, head, queries, &pages)?;
        let dims = (keys.config.dim, values.config.dim);
        part.reset(rows, dims.1);
        // Prepared queries live on the stack, which limits how many share a pass.
        let batch = (MAX_SCRATCH / keys.codec.query_len().max(1)).clamp(1, QUERY_BATCH);
        for first in (0..rows).step_by(batch) {
            let rows = first..rows.min(first + batch);
            let queries = &queries[rows.start * dims.0..rows.end * dims.0];
            Pass { options: self, keys, values, head, first, queries, dims }.run(&pages, part)?;
        }
        Ok(())
    }

    /// Checks all arguments, and returns the number of query rows.
    fn check(
        &self,
        keys: &CellPages,
        values: &CellPages,
        head: usize,
        queries: &[f32],
        pages: &Range<usize>,
    ) -> Result<usize, Error> {
        check_options(&Attend { scale: self.scale, soft_cap: self.soft_cap, ..Attend::default() })?;
        for side in [keys, values] {
            if head >= side.config.heads {
                return Err(Error::Missing {
                    what: "key/value head",
                    number: head,
                    count: side.config.heads,
                });
            }
            self.check_cells(side)?;
        }
        if pages.end > self.pages() || pages.start > pages.end {
            return Err(Error::Missing { what: "page", number: pages.end, count: self.pages() });
        }
        let (dim, actual) = (keys.config.dim, queries.len());
        if !actual.is_multiple_of(dim.saturating_mul(self.queries)) {
            return Err(Error::Rows { what: "queries", heads: self.queries, width: dim, each: None, actual });
        }
        let rows = actual / dim;
        if !self.slopes.is_empty() {
            Error::expect_length("slopes", rows / self.queries, self.slopes.len())?;
        }
        Ok(rows)
    }

    /// Checks that the cells exist, and that the mask has values for all of them and all queries.
    pub(super) fn check_cells(&self, side: &CellPages) -> Result<(), Error> {
        side.range(self.first, self.cells)?;
        if !self.first.is_multiple_of(PAGE) || self.queries == 0 {
            let why = "attention begins at a multiple of 64 cells, with at least 1 query";
            return Err(Error::Unsupported { why });
        }
        let Some(CellMask { values, stride }) = self.mask else { return Ok(()) };
        let expected = (self.queries - 1).saturating_mul(stride).saturating_add(self.cells);
        if stride < self.cells && self.queries > 1 || values.len() < expected {
            return Err(Error::Length { what: "values of the mask", expected, actual: values.len() });
        }
        Ok(())
    }
}

/// The result of attention on some pages: for each query the largest logit, the sum of weights, and
/// the weighted sums of rows.
#[derive(Clone, Debug, Default)]
pub struct Partial {
    dim: usize,
    totals: Vec<Total>,
    /// Weighted sums of closed pages, in the basis of the values' codec, and of exact rows. Both
    /// are \[row]\[width].
    coded: Vec<f32>,
    exact: Vec<f32>,
    /// Buffers of a pass, kept so that later calls do not allocate.
    scores: Vec<f32>,
    rows: Vec<f32>,
    seen: Vec<usize>,
}

impl Partial {
    /// Empties the part for `rows` queries and values of width `dim`.
    fn reset(&mut self, rows: usize, dim: usize) {
        self.dim = dim;
        self.totals.clear();
        self.totals.resize(rows, Total::EMPTY);
        for sums in [&mut self.coded, &mut self.exact] {
            sums.clear();
            sums.resize(rows * dim, 0.0);
        }
    }

    /// Adds parts in order, and writes the normalised result to `output`, \[row]\[width].
    ///
    /// All parts must be of one head, of the same queries and of these values. `sink_logits` has one
    /// value for each row, or none. A sink logit takes weight and adds nothing. A query that sees
    /// nothing gives zeros. The parts stay as they are.
    ///
    /// # Errors
    /// [`Error::Length`] if parts, values, output and sink logits do not fit each other.
    pub fn merge(
        parts: &[Self],
        values: &CellPages,
        sink_logits: &[f32],
        output: &mut [f32],
    ) -> Result<(), Error> {
        let (backend, dim) = (values.backend, values.config.dim);
        let Some((first, others)) = parts.split_first() else {
            output.fill(0.0);
            return Ok(());
        };
        let rows = first.totals.len();
        parts.iter().try_for_each(|part| part.expect_shape(rows, dim))?;
        Error::expect_length("values of the output", rows * dim, output.len())?;
        if !sink_logits.is_empty() {
            Error::expect_length("sink logits", rows, sink_logits.len())?;
        }
        let (mut coded, mut exact) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (coded, exact) = (&mut coded[..dim], &mut exact[..dim]);
        for (row, output) in output.chunks_exact_mut(dim).enumerate() {
            let of_row = row * dim..(row + 1) * dim;
            coded.copy_from_slice(&first.coded[of_row.clone()]);
            exact.copy_from_slice(&first.exact[of_row]);
            let mut total = first.totals[row];
            others
                .iter()
                .for_each(|other| other.add_to(backend, row, &mut total, [&mut *coded, &mut *exact]));
            let scale = total.scale(backend, sink_logits.get(row).copied());
            values.codec.finish(coded);
            let sums = coded.iter().zip(&*exact);
            output.iter_mut().zip(sums).for_each(|(out, (coded, exact))| *out = (coded + exact) * scale);
        }
        Ok(())
    }

    /// Checks that the part has `rows` rows of values of width `dim`.
    fn expect_shape(&self, rows: usize, dim: usize) -> Result<(), Error> {
        Error::expect_length("rows of a part", rows, self.totals.len())?;
        Error::expect_length("width of a part", dim, self.dim)
    }

    /// Adds a part of the same queries.
    ///
    /// Adding parts one by one, in their order, and then [merging](Self::merge) the result alone
    /// gives the same bits as merging them all, in the memory of two parts.
    ///
    /// # Errors
    /// [`Error::Length`] for parts of different queries or widths.
    pub fn add(&mut self, values: &CellPages, other: &Self) -> Result<(), Error> {
        self.expect_shape(other.totals.len(), values.config.dim)?;
        other.expect_shape(self.totals.len(), self.dim)?;
        for (row, total) in self.totals.iter_mut().enumerate() {
            let of_row = row * self.dim..(row + 1) * self.dim;
            let sums = [&mut self.coded[of_row.clone()], &mut self.exact[of_row]];
            other.add_to(values.backend, row, total, sums);
        }
        Ok(())
    }

    /// Adds a row to the total and to the coded and exact sums of the same row of another part.
    fn add_to(&self, backend: Kernels, row: usize, total: &mut Total, [coded, exact]: [&mut [f32]; 2]) {
        let of_row = row * self.dim..(row + 1) * self.dim;
        let sums = [(coded, &self.coded[of_row.clone()]), (exact, &self.exact[of_row])];
        total.add(backend, self.totals[row], sums);
    }
}

/// One pass over the pages: at most [`QUERY_BATCH`] queries of a head.
struct Pass<'a> {
    options: &'a CellAttend<'a>,
    keys: &'a CellPages,
    values: &'a CellPages,
    head: usize,
    /// Index of the first row among all rows of the call.
    first: usize,
    queries: &'a [f32],
    dims: (usize, usize),
}

impl Pass<'_> {
    fn rows(&self) -> usize {
        self.queries.len() / self.dims.0
    }

    /// Returns the cells of a page, counted from the first cell of the call.
    fn cells(&self, page: usize) -> Range<usize> {
        page * PAGE..self.options.cells.min((page + 1) * PAGE)
    }

    /// Returns the body of a page, counted from the first cell of the call.
    fn body<'a>(&self, side: &'a CellPages, page: usize) -> &'a Body {
        &side.pages[self.options.first / PAGE + page].body
    }

    /// Returns whether any query sees any cell of a page.
    fn sees(&self, page: usize) -> bool {
        let Some(mask) = self.options.mask else { return true };
        let queries = self.options.queries;
        let rows = self.rows().min(queries);
        let visible = |row: usize| {
            let row = mask.row((self.first + row) % queries, self.cells(page));
            row.iter().any(|x| x.to_bits() != HIDDEN)
        };
        (0..rows).any(visible)
    }

    /// Attends to the pages of this pass: scores all, finds the largest logits, then accumulates
    /// values.
    fn run(&self, pages: &Range<usize>, part: &mut Partial) -> Result<(), Error> {
        let (rows, backend) = (self.rows(), self.keys.backend);
        let is_closed = |page: &usize| matches!(self.body(self.keys, *page), Body::Closed(_));
        let mut seen = core::mem::take(&mut part.seen);
        seen.clear();
        seen.extend(pages.clone().filter(|page| self.sees(*page)));
        // Closed pages come first, so that one call of the codec scores many.
        seen.sort_by_key(|page| !is_closed(page));
        let closed = seen.iter().take_while(|page| is_closed(page)).count();
        let mut scores = core::mem::take(&mut part.scores);
        scores.clear();
        scores.resize(seen.len() * rows * PAGE, 0.0);
        let (coded, open) = scores.split_at_mut(closed * rows * PAGE);
        for (pages, coded) in
            seen[..closed].chunks(PAGES_AT_ONCE).zip(coded.chunks_mut(PAGES_AT_ONCE * rows * PAGE))
        {
            self.score_closed(pages, coded)?;
        }
        for (page, scores) in seen[closed..].iter().zip(open.chunks_exact_mut(rows * PAGE)) {
            if let Body::Open(bytes) = self.body(self.keys, *page) {
                let bytes = &bytes[2 * self.head * PAGE * self.dims.0..][..2 * PAGE * self.dims.0];
                self.score_rows(bytes, scores);
            }
        }
        let mut totals = [Total::EMPTY; QUERY_BATCH];
        for (page, scores) in seen.iter().zip(scores.chunks_exact_mut(rows * PAGE)) {
            for (row, scores) in scores.chunks_exact_mut(PAGE).enumerate() {
                totals[row].raise(self.logits(row, *page, scores));
            }
        }
        let format = self.values.basis.shape.of(&self.values.codec, backend);
        let (mut run, per_page) = (Run::default(), rows * PAGE);
        let of_rows = self.first * self.dims.1..(self.first + rows) * self.dims.1;
        // Closed pages that follow each other are added in one call.
        let add = |run: &mut Run, weights: &[f32], part: &mut Partial| {
            let added = run.accumulate(&*format, (rows, PAGE), weights, &mut part.coded[of_rows.clone()]);
            added.map_err(|error| in_cells(error, &seen, self.options.first / PAGE))
        };
        for (number, page) in seen.iter().enumerate() {
            let weights = &mut scores[number * per_page..][..per_page];
            let mut any = false;
            for (row, weights) in weights.chunks_exact_mut(PAGE).enumerate() {
                any |= totals[row].weigh(backend, weights);
            }
            let closed = if any { self.accumulate_exact_of(*page, weights, part) } else { None };
            if closed.is_none_or(|closed| run.push(number, closed)) {
                add(&mut run, &scores, part)?;
            }
        }
        add(&mut run, &scores, part)?;
        part.totals[self.first..][..rows].copy_from_slice(&totals[..rows]);
        (part.seen, part.scores) = (seen, scores);
        Ok(())
    }

    /// Scores closed pages, laid out \[page]\[row]\[cell]. Exact rows replace the scores of their
    /// coded copies.
    fn score_closed(&self, pages: &[usize], scores: &mut [f32]) -> Result<(), Error> {
        let (keys, dim, rows) = (self.keys, self.dims.0, self.rows());
        let (basis, backend, len) = (&keys.basis, keys.backend, keys.codec.query_len());
        let mut balanced: Vec<f32> = self.queries.to_vec();
        basis.apply_to_queries(backend, self.head, &mut balanced);
        let mut base = [0.0; QUERY_BATCH];
        score_floats(backend, &balanced, dim, basis.prefix(self.head), base.iter_mut());
        let mut offsets: Vec<f32> =
            base[..rows].iter().flat_map(|x| core::iter::repeat_n(*x, pages.len())).collect();
        let closed = |page: &usize| match self.body(keys, *page) {
            Body::Closed(closed) => Some(closed),
            _ => None,
        };
        with_scratch(rows * len, |words| {
            for (row, (query, words)) in
                balanced.chunks_exact(dim).zip(words.chunks_exact_mut(len)).enumerate()
            {
                keys.codec
                    .prepare_query(query, words)
                    .map_err(|error| at_row(error, self.first + row, dim))?;
            }
            let mut prepared: [&[f32]; QUERY_BATCH] = [&[]; QUERY_BATCH];
            prepared.iter_mut().zip(words.chunks_exact(len)).for_each(|(slot, words)| *slot = words);
            let queries = Queries { rows: &balanced, prepared: &prepared[..rows] };
            let mut parts = pages.iter().filter_map(closed).map(|closed| basis.part(closed, self.head));
            basis.shape.of(&keys.codec, backend).score(&queries, &mut parts, scores, &mut offsets)
        })
        .map_err(|error| in_cells(error, pages, self.options.first / PAGE))?;
        for (number, (page, scores)) in pages.iter().zip(scores.chunks_exact_mut(rows * PAGE)).enumerate() {
            for (row, scores) in scores.chunks_exact_mut(PAGE).enumerate() {
                let offset = offsets[row * pages.len() + number];
                scores.iter_mut().for_each(|score| *score += offset);
            }
            let Some(closed) = closed(page).filter(|closed| closed.cells != 0) else { continue };
            let count = closed.cells.count_ones() as usize;
            let mut own = alloc::vec![0.0; rows * count];
            self.score_rows(closed.exact(self.head), &mut own);
            for (scores, own) in scores.chunks_exact_mut(PAGE).zip(own.chunks_exact(count)) {
                cells_of(closed.cells).zip(own).for_each(|(cell, own)| scores[cell] = *own);
            }
        }
        Ok(())
    }

    /// Scores f16 rows, laid out \[row]\[cell].
    fn score_rows(&self, bytes: &[u8], scores: &mut [f32]) {
        let mut queries: [&[f32]; QUERY_BATCH] = [&[]; QUERY_BATCH];
        let each = self.queries.chunks_exact(self.dims.0);
        queries.iter_mut().zip(each).for_each(|(slot, query)| *slot = query);
        self.keys.backend.score_floats(Float::F16, self.dims.0, bytes, &queries[..self.rows()], scores);
    }

    /// Turns the scores of a page into logits, and returns the largest.
    fn logits(&self, row: usize, page: usize, x: &mut [f32]) -> f32 {
        let (options, backend) = (self.options, self.keys.backend);
        let scale = options.scale.unwrap_or_else(|| inverse_sqrt(self.dims.0));
        let max = backend.scale_logits(x, 0.0, scale);
        let cells = self.cells(page);
        let number = self.first + row;
        if options.mask.is_none() && options.soft_cap.is_none() && cells.len() == PAGE {
            return max;
        }
        if let Some(cap) = options.soft_cap {
            backend.soft_cap(x, cap);
        }
        x[cells.len()..].fill(f32::NEG_INFINITY);
        if let Some(mask) = options.mask {
            let slope = options.slopes.get(number / options.queries).copied().unwrap_or(1.0);
            for (x, bias) in x.iter_mut().zip(mask.row(number % options.queries, cells)) {
                match bias.to_bits() {
                    0 => {}
                    HIDDEN => *x = f32::NEG_INFINITY,
                    _ => *x += slope * bias.to_f32(),
                }
            }
        }
        backend.min_max(x).1
    }

    /// Adds the weighted exact values of a page to the sums of `part`, and sets their weights to 0.
    /// Returns the coded values of the page, if it is closed.
    fn accumulate_exact_of(&self, page: usize, weights: &mut [f32], part: &mut Partial) -> Option<Part<'_>> {
        let (values, dim, rows) = (self.values, self.dims.1, self.rows());
        let of_rows = self.first * dim..(self.first + rows) * dim;
        match self.body(values, page) {
            Body::Empty => None,
            Body::Open(bytes) => {
                let bytes = &bytes[2 * self.head * PAGE * dim..][..2 * PAGE * dim];
                self.accumulate_exact(page, u64::MAX, bytes, weights, &mut part.exact[of_rows]);
                None
            }
            Body::Closed(closed) => {
                let (cells, exact) = (closed.cells, closed.exact(self.head));
                if cells != 0 {
                    part.rows.clear();
                    for weights in weights.chunks_exact_mut(PAGE) {
                        part.rows.extend(cells_of(cells).map(|cell| core::mem::take(&mut weights[cell])));
                    }
                    self.accumulate_exact(page, cells, exact, &part.rows, &mut part.exact[of_rows]);
                }
                Some(values.basis.part(closed, self.head))
            }
        }
    }

    /// Adds the weighted f16 rows of some cells of a page. `weights` is \[row]\[cell].
    fn accumulate_exact(&self, page: usize, cells: u64, bytes: &[u8], weights: &[f32], sums: &mut [f32]) {
        let dim = self.dims.1;
        let count = cells.count_ones() as usize;
        if self.values.pages[self.options.first / PAGE + page].wild & cells == 0 {
            self.values.backend.accumulate_floats(Float::F16, dim, bytes, weights, sums);
            return;
        }
        // Some rows are not finite. Rows with a weight of 0 are skipped, because 0·∞ would give NaN.
        for (weights, sums) in weights.chunks_exact(count).zip(sums.chunks_exact_mut(dim)) {
            let rows = bytes.chunks_exact(2 * dim).zip(weights).filter(|(_, weight)| **weight != 0.0);
            for (row, weight) in rows {
                for (sum, x) in sums.iter_mut().zip(row.as_chunks::<2>().0) {
                    *sum += weight * f16::from_le_bytes(*x).to_f32();
                }
            }
        }
    }
}

/// Converts the block number of an error, counted over `pages` of a call that begins at page `first`, to a cell.
fn in_cells(error: Error, pages: &[usize], first: usize) -> Error {
    match error {
        Error::Corrupt { block } => {
            let page = first + pages.get(block / PAGE).copied().unwrap_or_default();
            Error::Corrupt { block: page * PAGE + block % PAGE }
        }
        other => other,
    }
}
