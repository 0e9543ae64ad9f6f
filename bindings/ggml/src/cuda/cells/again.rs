//! A graph of a few tokens that the host computes again and again: only its cells and its masks change.

use super::*;

/// The requests of such a graph to a cache.
#[derive(Clone, Debug, Default)]
pub(in crate::cuda) struct Steps {
    /// Tensors of cells: their address, how many cells are written, and the cell that they count from.
    pub(super) indices: Vec<(usize, usize, usize)>,
    /// The inputs that masks were copied from.
    pub(super) masks: Vec<usize>,
    /// Whether each attention has a mask.
    pub(super) masked: bool,
    /// The cells that attention sees in each stream.
    pub(super) seen: Vec<Option<usize>>,
}

impl Steps {
    pub(in crate::cuda) fn inputs(&self) -> impl Iterator<Item = *const Tensor> {
        let indices = self.indices.iter().map(|(tensor, ..)| *tensor);
        indices.chain(self.masks.iter().copied()).map(|tensor| tensor as *const Tensor)
    }
}

impl Cells {
    /// Begins a graph once more. Returns false if [`begin`](Self::begin) must look at its operations.
    pub(in crate::cuda) fn begin_again(&mut self, seam: &Seam, steps: &Steps) -> Result<bool, String> {
        self.forget_lost()?;
        let brought = self.layers.iter().any(|layer| layer.pending.iter().any(|rows| !rows.is_empty()));
        if brought || !self.book.lost().is_empty() {
            return Ok(false);
        }
        (self.shown, self.opened, self.unwritten) = (None, None, None);
        let (mut cells, mut first) = (None, Vec::new());
        {
            let inputs = lock(&seam.inputs);
            for (tensor, count, from) in &steps.indices {
                let Some(noted) = inputs.cells(*tensor as *const Tensor) else { return Ok(false) };
                let own =
                    noted.iter().take(*count).map(|cell| usize::try_from(*cell).ok()?.checked_add(*from));
                let own: Option<Vec<usize>> = own.collect();
                let fits = |own: &Vec<usize>| {
                    own.len() == *count && own.iter().all(|cell| *cell < self.book.cells())
                };
                let Some(own) = own.filter(fits) else { return Ok(false) };
                if *cells.get_or_insert_with(|| own.clone()) != own {
                    return Ok(false);
                }
            }
            for mask in &steps.masks {
                first.extend(self.first_cells(&inputs, *mask as *const Tensor));
            }
        }
        let cells = cells.unwrap_or_default();
        self.forget_before(&cells)?;
        if !self.book.lost().is_empty() {
            return Ok(false);
        }
        self.begin_few(&cells, &first, steps)
    }

    /// Forgets what the operations of a graph have noted, so that they can come again.
    pub(in crate::cuda) fn unrecord(&mut self) {
        (self.shown, self.unwritten) = (None, None);
    }

    /// Returns the first cells of the sequences that a mask starts.
    pub(super) fn first_cells<'a>(
        &'a self,
        inputs: &'a crate::cuda::inputs::Inputs,
        mask: *const Tensor,
    ) -> impl Iterator<Item = usize> + 'a {
        inputs.first(mask).iter().map(|(stream, cell)| stream * self.stream_cells + cell)
    }

    /// Begins a graph of a few tokens. Returns false, and changes nothing, if its rows do not fit into places.
    pub(super) fn begin_few(
        &mut self,
        cells: &[usize],
        first: &[usize],
        steps: &Steps,
    ) -> Result<bool, String> {
        if !self.book.write(cells) {
            return Ok(false);
        }
        self.few.extend(cells);
        self.book.mark(first);
        self.place(steps.masked)?;
        for (stream, seen) in steps.seen.iter().enumerate() {
            let Some(seen) = seen else { continue };
            let table = self.book.closed(stream, seen.div_ceil(PAGE));
            if self.tables[stream].as_ref() != Some(&table) {
                self.plan.set_table(stream, &table).map_err(failed)?;
                self.tables[stream] = Some(table);
            }
        }
        Ok(true)
    }
}
