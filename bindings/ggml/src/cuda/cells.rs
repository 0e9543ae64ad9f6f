//! Compressed cells of a cache on a GPU: how a graph's operations on them are computed.
//!
//! ```text
//! few tokens     SET_ROWS writes places; FLASH_ATTN_EXT attends on slots and places. Then full pages close
//! others         a layer's rows are opened to an f16 area, CUDA's own operations run there, and what changed is closed
//! ```

mod again;
mod lost;
mod operations;

pub(super) use again::Steps;
pub(super) use lost::WHY;

use super::Op;
use super::seam::Seam;
use crate::abi::{F16, F32, I32, I64, Tensor, size, source};
use crate::instance::lock;
use crate::store::Store;
use core::ffi::c_void;
use octaplex::LayerConfig;
use octaplex::codecs::Role;
use octaplex::gpu::cells::{
    Address, Area, Book, CellAttention, CellLayer, CellPlan, MOST_QUERIES, PAGE, Scratch, Settled, Write,
};
use octaplex::gpu::{Device, Error};
use std::collections::HashSet;

struct Layer {
    /// The tensors of keys and of values.
    tensors: [usize; 2],
    layer: CellLayer,
    query_heads: usize,
    /// Bytes that the host brought since the last graph: where, and what. Of keys and of values.
    pending: [Vec<(usize, Vec<u8>)>; 2],
}

pub(super) struct Cells {
    device: Device,
    book: Book,
    plan: CellPlan,
    layers: Vec<Layer>,
    scratch: Scratch,
    stream_cells: usize,
    /// The pages that each stream's table has on the GPU.
    tables: Vec<Option<Vec<u32>>>,
    /// The mask that was last turned into biases: its address, stream, queries and cells.
    shown: Option<(usize, usize, usize, usize)>,
    /// The layer whose rows are in the area.
    opened: Option<usize>,
    /// Rows of one side of a layer that wait for those of the other, so that one kernel writes both.
    unwritten: Option<(usize, Write)>,
    /// Whether the GPU's list of lost cells must be read: pages have closed since, or a cell that it may name is written again.
    unread: bool,
    /// The cells that batches of a few tokens have written since.
    few: HashSet<usize>,
}

/// The computation of a graph's operations.
pub(super) enum Begun {
    /// On compressed pages.
    Few(Steps),
    /// In the area. Then pages close, and the book becomes the new one.
    Area { settled: Settled, book: Box<Book> },
}

fn said(error: Error) -> String {
    error.to_string()
}

fn failed(failure: octaplex::gpu::Failure) -> String {
    failure.to_string()
}

/// Wraps a host's pointer.
fn address(data: *mut c_void) -> Address {
    // SAFETY: the host's tensors lie on the GPU that computes the graph. `cut.rs` orders its stream with ours by events.
    unsafe { Address::new(data as u64) }
}

impl Cells {
    pub(super) fn new(
        device: &Device,
        (stream_cells, streams): (usize, usize),
        layers: &[(LayerConfig, usize, [usize; 2])],
        sinks: usize,
        open_pages: usize,
    ) -> Result<Self, String> {
        let (stream_pages, pages) = (stream_cells / PAGE, stream_cells / PAGE * streams);
        if pages == 0 || pages > 1 << 24 {
            return Err("a cache on a GPU has 64 to 2^30 cells".into());
        }
        let book = Book::new(stream_pages, streams, sinks, open_pages);
        let layer = |(config, ..): &(LayerConfig, usize, [usize; 2])| {
            CellLayer::new(device, config, pages, book.exact()).map_err(said)
        };
        let bare = layers.iter().map(layer).collect::<Result<Vec<_>, String>>()?;
        CellLayer::compile(device, &bare.iter().collect::<Vec<_>>()).map_err(said)?;
        let plan = CellPlan::new(device, stream_pages, streams, book.exact()).map_err(failed)?;
        let mut made: Vec<Layer> = Vec::new();
        for ((_, query_heads, tensors), mut layer) in layers.iter().zip(bare) {
            let like: Vec<&CellLayer> = made.iter().map(|layer| &layer.layer).collect();
            layer.prepare(*query_heads, &like).map_err(said)?;
            made.push(Layer {
                tensors: *tensors,
                layer,
                query_heads: *query_heads,
                pending: Default::default(),
            });
        }
        let widest = layers.iter().map(|(config, ..)| config.kv_heads * config.key_dim).max().unwrap_or(0);
        let scratch = Scratch::new(device, 4 * widest * pages * PAGE).map_err(failed)?;
        let mut cells = Self {
            device: device.clone(),
            book,
            plan,
            layers: made,
            scratch,
            stream_cells,
            tables: vec![None; streams],
            shown: None,
            opened: None,
            unwritten: None,
            unread: false,
            few: HashSet::new(),
        };
        cells.place(false)?;
        Ok(cells)
    }

    pub(super) fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.layer.bytes()).sum::<usize>() + self.scratch.bytes()
    }

    /// Returns the bits per value, without the area.
    pub(super) fn bits(&self) -> f64 {
        let (bytes, values) = self.layers.iter().fold((0, 0), |(bytes, values), layer| {
            let config = layer.layer.config();
            let width = config.kv_heads * config.key_dim;
            (bytes + layer.layer.bytes(), values + 2 * width * self.book.cells())
        });
        (8 * bytes) as f64 / values.max(1) as f64
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    fn layer_of(&self, tensor: *const Tensor) -> Option<(usize, usize)> {
        let found = |(number, layer): (usize, &Layer)| {
            Some((number, layer.tensors.iter().position(|own| *own == tensor as usize)?))
        };
        self.layers.iter().enumerate().find_map(found)
    }

    fn side_of(&self, tensor: &Tensor) -> Option<(usize, usize)> {
        self.layer_of(tensor.root())
    }

    fn width(&self, layer: usize) -> usize {
        let config = self.layers[layer].layer.config();
        config.kv_heads * config.key_dim
    }

    /// Returns the area for a layer's rows.
    fn area(&self, layer: usize) -> Area {
        let side = 2 * self.width(layer) * self.book.cells();
        let (keys, values) = (self.scratch.address(0), self.scratch.address(side));
        Area { keys, values, cells: self.book.cells() }
    }

    /// Brings the book's places to the GPU. `masked`: a mask hides cells that are not written.
    fn place(&mut self, masked: bool) -> Result<(), String> {
        let places = if masked { self.book.filled_places() } else { self.book.places() };
        self.shown = None;
        self.plan.set_places(places).map_err(failed)
    }

    pub(super) fn clear(&mut self) -> Result<(), String> {
        self.book.clear();
        self.opened = None;
        self.plan.take_lost().map_err(failed)?;
        self.unread = false;
        self.few.clear();
        self.tables.fill(None);
        for layer in &mut self.layers {
            layer.pending = Default::default();
            layer.layer.clear().map_err(said)?;
        }
        // Rows that were not finite must not stay behind cells that a mask hides.
        self.scratch.zero().map_err(failed)?;
        for layer in &mut self.layers {
            layer.layer.pool().zero_places().map_err(failed)?;
        }
        self.place(false)
    }

    /// Takes bytes that the host writes to a tensor. The next graph, or the next read, encodes them.
    pub(super) fn bring(&mut self, tensor: usize, offset: usize, bytes: &[u8]) -> Result<(), String> {
        let (layer, side) =
            self.layer_of(tensor as *const Tensor).ok_or("a tensor is no part of this cache")?;
        if offset + bytes.len() > 2 * self.width(layer) * self.book.cells() {
            return Err("the host writes beyond a cache's end".into());
        }
        self.layers[layer].pending[side].push((offset, bytes.to_vec()));
        Ok(())
    }

    /// Encodes what the host brought.
    fn flush(&mut self) -> Result<(), String> {
        if self.layers.iter().all(|layer| layer.pending.iter().all(Vec::is_empty)) {
            return Ok(());
        }
        let mut cells = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            let row = 2 * self.width(number);
            for (offset, bytes) in layer.pending.iter().flatten() {
                cells.extend(offset / row..(offset + bytes.len()).div_ceil(row));
            }
        }
        cells.sort_unstable();
        cells.dedup();
        self.forget_before(&cells)?;
        let mut book = self.book.clone();
        let settled = book.rewrite(&cells, &[]);
        self.plan_area(&settled)?;
        for number in 0..self.layers.len() {
            self.open(number)?;
            let area = self.area(number);
            for side in 0..2 {
                for (offset, bytes) in core::mem::take(&mut self.layers[number].pending[side]) {
                    let pool = self.layers[number].layer.pool();
                    pool.bring(&area, side == 1, offset, &bytes).map_err(failed)?;
                }
            }
            self.close(number, &settled)?;
        }
        (self.book, self.opened, self.unread) = (book, None, true);
        Ok(())
    }

    /// Tells the GPU which pages are opened to the area, and what closes from it.
    fn plan_area(&mut self, settled: &Settled) -> Result<(), String> {
        let closed = self.book.closed_in(0..self.book.cells());
        self.place(false)?;
        self.plan.set_opening(&closed).map_err(failed)?;
        self.plan.set_closing(&settled.stash, &settled.close).map_err(failed)
    }

    /// Reads bytes of a tensor in f16.
    pub(super) fn read(&mut self, tensor: usize, offset: usize, out: &mut [u8]) -> Result<(), String> {
        self.flush()?;
        self.forget_lost()?;
        let (layer, side) =
            self.layer_of(tensor as *const Tensor).ok_or("a tensor is no part of this cache")?;
        let row = 2 * self.width(layer);
        let (first, last) = (offset / row, (offset + out.len()).div_ceil(row));
        if last > self.book.cells() {
            return Err("the host reads beyond a cache's end".into());
        }
        let (pages, area) = (self.book.closed_in(first..last), self.area(layer));
        self.opened = None;
        self.place(false)?;
        self.plan.set_opening(&pages).map_err(failed)?;
        let pool = self.layers[layer].layer.pool();
        pool.open(&self.plan, &area).map_err(failed)?;
        let mut bytes = pool.read(&area, side == 1, first..last).map_err(failed)?;
        // Whoever saves a lost row saves NaN. Loaded again, it is lost again.
        let lost: Vec<usize> =
            self.book.lost().into_iter().filter(|cell| (first..last).contains(cell)).collect();
        lost.iter().for_each(|cell| bytes[(cell - first) * row..][..row].fill(0xFF));
        let skip = offset - first * row;
        out.copy_from_slice(&bytes[skip..skip + out.len()]);
        if lost.is_empty() { Ok(()) } else { Err(WHY.into()) }
    }

    /// Opens all rows to f16 tensors of the host's.
    pub(super) fn open_all(&mut self, places: &[(usize, *mut c_void)]) -> Result<(), String> {
        self.flush()?;
        self.forget_lost()?;
        let closed = self.book.closed_in(0..self.book.cells());
        self.place(false)?;
        self.plan.set_opening(&closed).map_err(failed)?;
        for layer in &mut self.layers {
            let of = |side: usize| {
                places.iter().find(|(tensor, _)| *tensor == layer.tensors[side]).map(|(_, data)| *data)
            };
            let (Some(keys), Some(values)) = (of(0), of(1)) else {
                return Err("a layer has no tensors".into());
            };
            let area = Area { keys: address(keys), values: address(values), cells: self.book.cells() };
            layer.layer.pool().open(&self.plan, &area).map_err(failed)?;
        }
        self.device.synchronize().map_err(failed)
    }

    /// Decides how a graph's operations are computed, or says why they cannot be.
    pub(super) fn begin(
        &mut self,
        seam: &Seam,
        nodes: &[*mut Tensor],
        ops: &[usize],
        wait: &dyn Fn(),
    ) -> Result<Result<Begun, String>, String> {
        self.flush()?;
        self.forget_lost()?;
        (self.shown, self.opened, self.unwritten) = (None, None, None);
        self.check_masks(seam, nodes, ops, wait)?;
        let mut written: Vec<[Option<Vec<usize>>; 2]> = self.layers.iter().map(|_| [None, None]).collect();
        let (mut few, mut shifts, mut first) = (true, false, Vec::new());
        let mut steps = Steps { masked: true, seen: vec![None; self.tables.len()], ..Steps::default() };
        // Layers in the order of the graph. One that comes again would be opened without the rows of this graph.
        let mut order: Vec<usize> = Vec::new();
        for node in ops {
            // SAFETY: nodes of a graph are tensors.
            let op = unsafe { &*nodes[*node] };
            let kind = seam.op(op);
            if let Some(layer) = self.layer_at(op)
                && order.last() != Some(&layer)
            {
                order.push(layer);
            }
            match (kind, self.side_of(op)) {
                (Op::SetRows, Some((layer, side))) => match self.cells_of(seam, op, layer, wait) {
                    Ok(cells) => {
                        let first = op.view_offset() / (2 * self.width(layer));
                        let indices = (op.src[1] as usize, cells.len(), first);
                        if !steps.indices.contains(&indices) {
                            steps.indices.push(indices);
                        }
                        let known = &mut written[layer][side];
                        if known.is_some() {
                            few = false;
                        }
                        known.get_or_insert_default().extend(cells);
                    }
                    Err(why) => return Ok(Err(why)),
                },
                (Op::Rope, Some((_, 0))) => (few, shifts) = (false, true),
                (Op::Attend, None) => {
                    let Some(layer) = self.attended(op) else {
                        return Ok(Err("attention has keys and values in another layout".into()));
                    };
                    few = few && self.is_few(op, layer) && self.sees(op, layer, &mut steps.seen);
                    let origin = source(op, 3).map(|mask| origin_of(seam, mask));
                    steps.masked &= origin.is_some();
                    if let Some(origin) = origin.filter(|origin| !steps.masks.contains(&(*origin as usize))) {
                        steps.masks.push(origin as usize);
                        first.extend(self.first_cells(&lock(&seam.inputs), origin));
                    }
                }
                _ => {
                    let name = String::from_utf8_lossy(seam.instance.host.op_name(op)).into_owned();
                    return Ok(Err(format!("llama.cpp runs {name} on it")));
                }
            }
        }
        first.sort_unstable();
        first.dedup();
        let all = written.iter().flatten();
        let cells = all.clone().find_map(Option::clone);
        if all.clone().any(|side| *side != cells) {
            return Ok(Err("layers write different cells".into()));
        }
        let cells = cells.unwrap_or_default();
        self.forget_before(&cells)?;
        if few && !shifts && self.begin_few(&cells, &first, &steps)? {
            return Ok(Ok(Begun::Few(steps)));
        }
        let count = order.len();
        order.sort_unstable();
        order.dedup();
        if order.len() < count {
            return Ok(Err("layers share keys and values".into()));
        }
        let mut book = self.book.clone();
        let mut settled = if cells.is_empty() { Settled::default() } else { book.rewrite(&cells, &first) };
        if shifts {
            if !cells.is_empty() {
                return Ok(Err("llama.cpp shifts and writes it at once".into()));
            }
            settled = book.change_all();
        }
        self.plan_area(&settled)?;
        Ok(Ok(Begun::Area { settled, book: Box::new(book) }))
    }

    /// Writes rows to places. The first side of a layer waits for the other one, or for [`write_rest`](Self::write_rest).
    pub(super) fn write(&mut self, op: &Tensor) -> Result<(), String> {
        let lost = || "an operation on a cache has changed".to_owned();
        let (layer, side) = self.side_of(op).ok_or_else(lost)?;
        let (rows, indices) = (source(op, 0).ok_or_else(lost)?, source(op, 1).ok_or_else(lost)?);
        let offset = op.view_offset();
        let given = Some((address(rows.data), rows.nb[1] / 4));
        if let Some((_, write)) =
            self.unwritten.as_mut().filter(|(of, write)| *of == layer && write.rows[side].is_none())
        {
            write.rows[side] = given; // `begin` found that both sides write the same cells
            return self.write_rest();
        }
        self.write_rest()?;
        let mut write = Write {
            rows: [None; 2],
            indices: address(indices.data),
            wide: indices.kind == I64,
            count: size(rows, 1),
            first: offset / (2 * self.width(layer)),
        };
        write.rows[side] = given;
        self.unwritten = Some((layer, write));
        Ok(())
    }

    /// Writes the rows that wait. The host calls it before memory of these rows can change.
    pub(super) fn write_rest(&mut self) -> Result<(), String> {
        let Some((layer, write)) = self.unwritten.take() else { return Ok(()) };
        self.layers[layer].layer.pool().write(&self.plan, &write).map_err(failed)
    }

    /// Attends on compressed pages.
    pub(super) fn attend(&mut self, op: &Tensor) -> Result<(), String> {
        let lost = || "an attention has changed".to_owned();
        self.write_rest()?;
        let layer = self.attended(op).ok_or_else(lost)?;
        let (queries, keys) = (source(op, 0).ok_or_else(lost)?, source(op, 1).ok_or_else(lost)?);
        let offset = keys.view_offset();
        let first = offset / (2 * self.width(layer) * self.stream_cells);
        let (count, seen) = (size(queries, 1), size(keys, 1));
        for number in 0..size(queries, 3) {
            let stream = first + number;
            let (mask, stride) = match source(op, 3) {
                Some(mask) => {
                    let number = number % size(mask, 3).max(1);
                    (mask.data.wrapping_byte_add(number * mask.nb[3]), mask.nb[1] / 2)
                }
                None => (core::ptr::null_mut(), 0),
            };
            let shown = (mask as usize, stream, count, seen);
            if self.shown != Some(shown) {
                self.plan.show(stream, address(mask), stride, count, seen).map_err(failed)?;
                self.shown = Some(shown);
            }
            let sinks = source(op, 4).map_or(core::ptr::null_mut(), |sinks| sinks.data);
            let attention = CellAttention {
                stream,
                queries: address(queries.data.wrapping_byte_add(number * queries.nb[3])),
                output: address(op.data.wrapping_byte_add(number * op.nb[3])),
                count,
                scale: op.float(0),
                soft_cap: op.float(2),
                sink_logits: address(sinks),
            };
            self.layers[layer].layer.pool().attend(&self.plan, &attention).map_err(failed)?;
        }
        Ok(())
    }

    /// Opens a layer's rows to the area.
    fn open(&mut self, layer: usize) -> Result<(), String> {
        let area = self.area(layer);
        self.opened = Some(layer);
        self.layers[layer].layer.pool().open(&self.plan, &area).map_err(failed)
    }

    /// Closes what changed in the area.
    fn close(&mut self, layer: usize, settled: &Settled) -> Result<(), String> {
        let area = self.area(layer);
        self.layers[layer].layer.settle(&self.plan, settled, &area).map_err(said)
    }

    /// Returns the layer of an operation.
    fn layer_at(&self, op: &Tensor) -> Option<usize> {
        let own = |number: usize| source(op, number).and_then(|tensor| self.side_of(tensor));
        self.side_of(op).or_else(|| (0..op.src.len()).find_map(own)).map(|(layer, _)| layer)
    }

    /// Makes the area that of the layer of an operation.
    pub(super) fn enter(&mut self, op: &Tensor, settled: &Settled) -> Result<(), String> {
        let layer = self.layer_at(op).ok_or("an operation on a cache has changed")?;
        if let Some(before) = self.opened.filter(|before| *before != layer) {
            self.close(before, settled)?;
        }
        if self.opened != Some(layer) {
            self.open(layer)?;
        }
        Ok(())
    }

    /// Returns whether an operation needs another layer in the area.
    pub(super) fn enters(&self, op: &Tensor) -> bool {
        self.layer_at(op) != self.opened
    }

    /// Returns where the area has a tensor of the open layer.
    pub(super) fn in_area(&self, tensor: &Tensor) -> Option<*mut c_void> {
        let (layer, side) = self.side_of(tensor)?;
        let offset = tensor.view_offset();
        let at = side * 2 * self.width(layer) * self.book.cells() + offset;
        (self.opened == Some(layer)).then(|| (self.scratch.number() as usize + at) as *mut c_void)
    }

    /// Ends a graph. After a large batch the host does not wait for the GPU: it prepares the next one meanwhile.
    pub(super) fn end(&mut self, begun: Begun) -> Result<(), String> {
        match begun {
            Begun::Few(_) => {
                if !self.book.closes() {
                    return Ok(());
                }
                self.place(false)?; // rows of cells that are not written stay where they are
                let Some(settled) = self.book.settle(&[]) else { return Ok(()) };
                self.plan.set_opening(&[]).map_err(failed)?;
                self.plan.set_closing(&settled.stash, &settled.close).map_err(failed)?;
                for layer in 0..self.layers.len() {
                    let area = self.area(layer);
                    self.layers[layer].layer.pool().open(&self.plan, &area).map_err(failed)?;
                    self.close(layer, &settled)?;
                }
                self.unread = true;
                Ok(())
            }
            Begun::Area { settled, book } => {
                if let Some(layer) = self.opened {
                    self.close(layer, &settled)?;
                }
                (self.book, self.opened, self.unread) = (*book, None, true);
                Ok(())
            }
        }
    }

    /// Returns whether the end of a graph has work for the GPU.
    pub(super) fn is_idle(&self, begun: &Begun) -> bool {
        match begun {
            Begun::Few(_) => !self.book.closes(),
            Begun::Area { .. } => false,
        }
    }
}

/// Returns the bytes that keys, or values, take on a GPU: half of a layer's. Heads are of the width that takes most, because
/// their width is unknown yet. `area` adds the area that all layers of a cache share.
pub(super) fn expected_bytes(seam: &Seam, store: &Store, area: bool) -> usize {
    let settings = &seam.instance.settings;
    let book =
        Book::new(store.cells / PAGE, store.streams, settings.sinks, settings.open_pages(store.streams));
    let of_width = |dim: usize| {
        let heads = store.width / dim;
        let codec = |role| settings.codec(role, store.layer, heads, dim).ok();
        let config =
            LayerConfig::new(heads, dim, book.cells()).keys(codec(Role::Keys)?).values(codec(Role::Values)?);
        CellLayer::bytes_of(&config, book.cells() / PAGE, book.exact()).ok()
    };
    let widths = [64, 80, 96, 128, 192, 256].into_iter().filter(|dim| store.width.is_multiple_of(*dim));
    let layer = widths.filter_map(of_width).max().unwrap_or(2 * store.nominal_bytes());
    layer / 2 + if area { 2 * store.nominal_bytes() } else { 0 }
}

/// Returns the input that a mask was copied from.
pub(super) fn origin_of(seam: &Seam, mask: &Tensor) -> *const Tensor {
    let mut origin = mask;
    for _ in 0..4 {
        match (seam.op(origin), source(origin, 0)) {
            (Op::Copy, Some(before)) | (Op::Nothing, Some(before)) => origin = before,
            _ => break,
        }
    }
    origin
}
