//! The operations on caches that the host requests.

use crate::abi::{F16, F32, FAILED, I32, I64, SUCCESS, Tensor, size, source};
use crate::instance::{Instance, lock};
use crate::store::{self, Rows, Store};
use core::ffi::c_int;
use core::ops::Range;
use octaplex::cells::{CellAttend, CellPages, PAGE, Partial};
use octaplex::{Error, f16};
use std::sync::{Mutex, PoisonError};

/// Pages that one task attends to. It is fixed, so that results do not depend on the number of threads.
const PART: usize = 16;

/// About how many query rows a task takes, over all query heads that share a key/value head.
const ROWS: usize = 64;

/// Queries of each head that help to decide the balance of keys.
const SAMPLE: usize = 256;

/// Returns a row of a tensor in the host's memory.
///
/// # Safety
/// The tensor's data are values of `T`, its rows lie without gaps, and the indices are below its sizes.
unsafe fn row<T>(tensor: &Tensor, at: [usize; 3]) -> &[T] {
    let offset: usize = at.iter().zip(&tensor.nb[1..]).map(|(index, stride)| index * stride).sum();
    // SAFETY: the caller promises values of `T` without gaps, and indices within the tensor.
    unsafe { core::slice::from_raw_parts(tensor.data.cast::<u8>().add(offset).cast::<T>(), size(tensor, 0)) }
}

/// Writes rows of keys or values into cells.
pub(crate) fn set_rows(instance: &Instance, store: &Store, op: &Tensor) -> c_int {
    let mut rows = store.rows();
    let is_flat = matches!(&*rows, Rows::Unknown) || is_transposed(store, op);
    if is_flat
        && !store.flatten(instance, &mut rows, "llama.cpp writes them in the layout without flash attention")
    {
        return instance.fail(
            "the host writes this cache without flash attention, but wrote earlier rows with it: use -fa on",
        );
    }
    let written = match &mut *rows {
        Rows::Pages(pages) => write_rows(store, op, pages),
        Rows::Flat(_) => {
            drop(rows);
            return on_flat(instance, op);
        }
        Rows::Unknown => Err("the host writes a cache whose layout is unknown".to_owned()),
    };
    match written {
        Ok(()) => SUCCESS,
        Err(why) => instance.fail(&why),
    }
}

/// Turns the stores of an operation that pages do not have into plain memory. Returns false if one of them holds pages.
pub(crate) fn flatten(instance: &Instance, op: &Tensor) -> bool {
    let why = match instance.host.op_name(op) {
        b"FLASH_ATTN_EXT" => "this device does not have the attention that llama.cpp requests".to_owned(),
        name => format!("llama.cpp runs {} on them, without flash attention", String::from_utf8_lossy(name)),
    };
    (0..op.src.len())
        .filter_map(|number| source(op, number))
        .chain([op])
        .filter_map(|tensor| store::of(instance, tensor))
        .all(|store| store.flatten(instance, &mut store.rows(), &why))
}

/// Returns whether the host writes values channel by channel, as it does without flash attention.
fn is_transposed(store: &Store, op: &Tensor) -> bool {
    source(op, 0).is_none_or(|rows| size(rows, 0) != store.width)
}

fn write_rows(store: &Store, op: &Tensor, pages: &mut CellPages) -> Result<(), String> {
    let unknown = || "the host writes a cache in a layout that this device does not support".to_owned();
    let (rows, indices) = (source(op, 0).ok_or_else(unknown)?, source(op, 1).ok_or_else(unknown)?);
    let offset = op.view_offset();
    let flat = size(rows, 2) == 1 && size(rows, 3) == 1 && rows.nb[0] == 4 && rows.kind == F32;
    if !flat || size(indices, 0) < size(rows, 1) || !offset.is_multiple_of(store.row_bytes()) {
        return Err(unknown());
    }
    let cells: Vec<i64> = match indices.kind {
        // SAFETY: the host's indices have this type; a row of them lies without gaps.
        I64 => unsafe { row::<i64>(indices, [0; 3]) }.to_vec(),
        // SAFETY: the host's indices are i32 here; a row of them lies without gaps.
        I32 => unsafe { row::<i32>(indices, [0; 3]) }.iter().map(|cell| i64::from(*cell)).collect(),
        _ => return Err(unknown()),
    };
    let first = offset / store.row_bytes();
    let cells = cells.iter().map(|cell| usize::try_from(*cell).map_or(usize::MAX, |cell| first + cell));
    let cells: Vec<usize> = cells.take(size(rows, 1)).collect();
    for (number, cell) in cells.iter().enumerate() {
        // SAFETY: the tensor has f32 rows without gaps, and more rows than the number.
        let values = unsafe { row::<f32>(rows, [number, 0, 0]) };
        pages.set_rows(&[*cell], values).map_err(|why| why.to_string())?;
    }
    Ok(())
}

/// Computes an operation on caches in plain memory, on the host's CPU.
pub(crate) fn on_flat(instance: &Instance, op: &Tensor) -> c_int {
    // Plain memory neither moves nor ends before its buffer, so no lock is held while the host computes.
    let moved = |tensor: &Tensor| {
        let Some(store) = store::of(instance, tensor) else { return Some(*tensor) };
        let offset = tensor.view_offset();
        match &mut *store.rows() {
            Rows::Flat(bytes) if offset <= bytes.len() => {
                // SAFETY: a view lies within its tensor, which has the length of `bytes`.
                Some(Tensor { data: unsafe { bytes.as_mut_ptr().add(offset) }.cast(), ..*tensor })
            }
            _ => None,
        }
    };
    let unknown =
        || instance.fail("the host computes on compressed rows in a way that this device does not support");
    let Some(mut node) = moved(op) else { return unknown() };
    let mut sources: Vec<Box<Tensor>> = Vec::new();
    for number in 0..node.src.len() {
        let Some(tensor) = source(op, number) else { continue };
        let Some(tensor) = moved(tensor) else { return unknown() };
        sources.push(Box::new(tensor));
        node.src[number] = sources.last_mut().map_or(core::ptr::null_mut(), |tensor| &raw mut **tensor);
    }
    // SAFETY: the operands lie in the host's memory or in plain memory of stores, whose cells no other call writes.
    unsafe { instance.compute_on_host(&mut node) }
}

/// Returns whether this device can compute the attention. The host asks before it writes rows; this is where stores learn
/// the head width.
pub(crate) fn can_attend(instance: &Instance, op: &Tensor) -> bool {
    let [Some(queries), Some(keys), Some(values)] = [0, 1, 2].map(|number| source(op, number)) else {
        return false;
    };
    let [Some(key_store), Some(value_store)] = [keys, values].map(|side| store::of(instance, side)) else {
        return false;
    };
    let plain = queries.kind == F32 && queries.nb[0] == 4 && op.kind == F32;
    let masked = source(op, 3).is_none_or(|mask| mask.kind == F16 && size(mask, 2) == 1)
        && source(op, 4).is_none_or(|sinks| sinks.kind == F32);
    let heads = (size(keys, 2), size(values, 2), size(queries, 2));
    let grouped = heads.0 > 0 && heads.0 == heads.1 && heads.2.is_multiple_of(heads.0);
    let cells = [(keys, key_store), (values, value_store)]
        .iter()
        .all(|(side, store)| size(side, 0) * size(side, 2) == store.width && side.nb[1] == store.row_bytes());
    let served = plain
        && masked
        && grouped
        && cells
        && !core::ptr::eq(key_store, value_store)
        && key_store.learn(instance, size(keys, 0))
        && value_store.learn(instance, size(values, 0));
    if served && let Some((keys, values)) = key_store.codec().zip(value_store.codec()) {
        instance.announce(keys, values, instance.settings.backend.name());
    }
    served
}

/// Computes attention. Then pages close.
pub(crate) fn attend(instance: &Instance, op: &Tensor) -> c_int {
    match try_attend(instance, op) {
        Ok(()) => SUCCESS,
        Err(why) => instance.fail(&why),
    }
}

fn try_attend(instance: &Instance, op: &Tensor) -> Result<(), String> {
    let missing = || "the host requests attention without a cache of this device".to_owned();
    let [Some(queries), Some(keys), Some(values)] = [0, 1, 2].map(|number| source(op, number)) else {
        return Err(missing());
    };
    let key_store = store::of(instance, keys).ok_or_else(missing)?;
    let value_store = store::of(instance, values).ok_or_else(missing)?;
    let (mut key_rows, mut value_rows) = (key_store.rows(), value_store.rows());
    let (Rows::Pages(key_pages), Rows::Pages(value_pages)) = (&mut *key_rows, &mut *value_rows) else {
        return Err(missing());
    };
    let call = Call::new(op, [queries, keys, values], key_store)?;
    call.run(instance, key_pages, value_pages).map_err(|why| why.to_string())?;
    // Without queries there is no row of the mask.
    for stream in (0..call.streams).filter(|_| call.count > 0) {
        let options = call.options(stream, 0..call.count);
        for pages in [&mut *key_pages, &mut *value_pages] {
            pages.observe(&options).map_err(|why| why.to_string())?;
        }
    }
    let tasks = |count: usize, task: &(dyn Fn(usize) + Sync)| instance.team.run(count, task);
    let sample =
        if key_pages.is_unsettled() && key_pages.wants_queries() { call.sample() } else { Vec::new() };
    key_pages.settle(&sample, &tasks).map_err(|why| why.to_string())?;
    value_pages.settle(&[], &tasks).map_err(|why| why.to_string())
}

/// The operands of an attention, and how it is split into tasks.
struct Call<'a> {
    op: &'a Tensor,
    queries: &'a Tensor,
    mask: Option<&'a Tensor>,
    /// A logit for each query head, which takes weight and adds nothing to the output.
    sinks: &'a [f32],
    /// ALiBi's slope for each query head. Empty without ALiBi.
    slopes: Vec<f32>,
    scale: f32,
    soft_cap: Option<f32>,
    /// Number of key/value heads.
    heads: usize,
    /// Query heads of each key/value head.
    group: usize,
    key_dim: usize,
    value_dim: usize,
    /// Queries of each head.
    count: usize,
    /// Queries of each head in a task.
    block: usize,
    streams: usize,
    /// The first cell of each stream.
    firsts: Vec<usize>,
    /// Cells of each stream that queries see.
    cells: usize,
}

impl<'a> Call<'a> {
    fn new(op: &'a Tensor, [queries, keys, values]: [&'a Tensor; 3], store: &Store) -> Result<Self, String> {
        let (heads, query_heads, streams) = (size(keys, 2), size(queries, 2), size(queries, 3));
        let soft_cap = op.float(2);
        let offset = keys.view_offset();
        let firsts: Vec<usize> =
            (0..streams).map(|stream| (offset + stream * keys.nb[3]) / store.row_bytes()).collect();
        if firsts.iter().any(|first| !first.is_multiple_of(PAGE)) {
            return Err("the host's view of a cache begins within a page".into());
        }
        let sinks = source(op, 4);
        let group = query_heads / heads.max(1);
        Ok(Self {
            op,
            queries,
            mask: source(op, 3),
            // SAFETY: the host's sinks are f32, one for each query head, without gaps.
            sinks: sinks.map_or(&[], |sinks| unsafe { row(sinks, [0; 3]) }),
            slopes: slopes(op.float(1), query_heads),
            scale: op.float(0),
            soft_cap: (soft_cap != 0.0).then_some(soft_cap),
            heads,
            group,
            key_dim: size(keys, 0),
            value_dim: size(values, 0),
            count: size(queries, 1),
            block: (ROWS / group.max(1)).max(1),
            streams,
            firsts,
            cells: size(keys, 1),
        })
    }

    /// Gathers the queries of a key/value head, \[query heads]\[queries]\[width].
    fn gather(&self, stream: usize, head: usize, queries: Range<usize>) -> Vec<f32> {
        let mut rows = Vec::with_capacity(self.group * queries.len() * self.key_dim);
        for of_group in 0..self.group {
            for query in queries.clone() {
                // SAFETY: queries are f32 rows without gaps; the indices are below the tensor's sizes.
                rows.extend_from_slice(unsafe {
                    row(self.queries, [query, head * self.group + of_group, stream])
                });
            }
        }
        rows
    }

    /// Gathers some of the newest queries, \[heads]\[rows]\[width].
    fn sample(&self) -> Vec<f32> {
        let count = (SAMPLE / self.group.max(1)).max(1).min(self.count);
        let newest = self.count - count..self.count;
        (0..self.heads).flat_map(|head| self.gather(self.streams - 1, head, newest.clone())).collect()
    }

    fn run(&self, instance: &Instance, keys: &CellPages, values: &CellPages) -> Result<(), Error> {
        let blocks = self.count.div_ceil(self.block);
        let (units, parts) = (self.streams * self.heads * blocks, self.cells.div_ceil(PAGE * PART).max(1));
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let check = |result: Result<(), Error>| {
            if let Err(error) = result {
                lock(&failed).get_or_insert(error);
            }
        };
        if units >= 2 * instance.team.threads() {
            // A prompt keeps every thread busy without parts. Parts would take memory until they are merged.
            instance.team.run(units, &|unit| check(self.attend_unit(keys, values, unit, parts)));
        } else {
            let results: Vec<Mutex<Partial>> = (0..units * parts).map(|_| Mutex::default()).collect();
            instance.team.run(units * parts, &|task| {
                check(self.attend_part(keys, values, task / parts, task % parts, &mut lock(&results[task])));
            });
            let results: Vec<Partial> = results
                .into_iter()
                .map(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner))
                .collect();
            for (unit, parts) in results.chunks_exact(parts).enumerate() {
                check(self.merge(values, unit, parts));
            }
        }
        lock(&failed).map_or(Ok(()), Err)
    }

    /// Attends to all parts of a unit, one after the other.
    fn attend_unit(
        &self,
        keys: &CellPages,
        values: &CellPages,
        unit: usize,
        parts: usize,
    ) -> Result<(), Error> {
        let (mut sum, mut next) = (Partial::default(), Partial::default());
        self.attend_part(keys, values, unit, 0, &mut sum)?;
        for part in 1..parts {
            self.attend_part(keys, values, unit, part, &mut next)?;
            sum.add(values, &next)?;
        }
        self.merge(values, unit, core::slice::from_ref(&sum))
    }

    /// Returns a unit's stream, key/value head and queries.
    fn unit(&self, unit: usize) -> (usize, usize, Range<usize>) {
        let blocks = self.count.div_ceil(self.block);
        let first = unit % blocks * self.block;
        let (head, stream) = (unit / blocks % self.heads, unit / blocks / self.heads);
        (stream, head, first..self.count.min(first + self.block))
    }

    /// Returns what some queries of a stream see, and how. There is at least one query.
    fn options(&self, stream: usize, queries: Range<usize>) -> CellAttend<'_> {
        let mut options =
            CellAttend::new(self.firsts[stream], self.cells).queries(queries.len()).scale(self.scale);
        options.soft_cap = self.soft_cap;
        let Some(mask) = self.mask else { return options };
        let stream = stream % size(mask, 3).max(1);
        let (stride, first) = (mask.nb[1] / 2, queries.start * mask.nb[1] + stream * mask.nb[3]);
        let len = (queries.len() - 1) * stride + self.cells;
        // SAFETY: the mask is f16 in the host's memory, with a row for each query, as long as there are cells.
        let values =
            unsafe { core::slice::from_raw_parts(mask.data.cast::<u8>().add(first).cast::<f16>(), len) };
        options.mask(values, stride)
    }

    fn attend_part(
        &self,
        keys: &CellPages,
        values: &CellPages,
        unit: usize,
        part: usize,
        result: &mut Partial,
    ) -> Result<(), Error> {
        let (stream, head, queries) = self.unit(unit);
        let mut options = self.options(stream, queries.clone());
        if !self.slopes.is_empty() {
            options = options.slopes(&self.slopes[head * self.group..][..self.group]);
        }
        let rows = self.gather(stream, head, queries);
        let pages = part * PART..options.pages().min((part + 1) * PART);
        options.attend(keys, values, head, &rows, pages, result)
    }

    /// Adds up the parts of a unit into the host's result, \[streams]\[queries]\[query heads]\[width].
    fn merge(&self, values: &CellPages, unit: usize, parts: &[Partial]) -> Result<(), Error> {
        let (stream, head, queries) = self.unit(unit);
        let dim = self.value_dim;
        let of_row = |row: usize| self.sinks.get(head * self.group + row / queries.len()).copied();
        let sinks: Vec<f32> = (0..self.group * queries.len()).filter_map(of_row).collect();
        let mut output = vec![0.0; self.group * queries.len() * dim];
        Partial::merge(parts, values, &sinks, &mut output)?;
        for (row, values) in output.chunks_exact(dim).enumerate() {
            let (query_head, query) =
                (head * self.group + row / queries.len(), queries.start + row % queries.len());
            let at = query_head * self.op.nb[1] + query * self.op.nb[2] + stream * self.op.nb[3];
            // SAFETY: the result is f32 with these sizes; no other unit writes this row.
            unsafe {
                let out = self.op.data.cast::<u8>().add(at).cast::<f32>();
                core::ptr::copy_nonoverlapping(values.as_ptr(), out, dim);
            }
        }
        Ok(())
    }
}

/// Returns ALiBi's slopes. The largest power of two of heads has a geometric series. The other heads have the odd steps of a
/// finer one.
fn slopes(max_bias: f32, heads: usize) -> Vec<f32> {
    if max_bias <= 0.0 || heads == 0 {
        return Vec::new();
    }
    let power = 1usize << heads.ilog2();
    let (coarse, fine) = (2f32.powf(-max_bias / power as f32), 2f32.powf(-max_bias / 2.0 / power as f32));
    let slope = |head: usize| {
        if head < power { coarse.powi(head as i32 + 1) } else { fine.powi(2 * (head - power) as i32 + 1) }
    };
    (0..heads).map(slope).collect()
}

/// Shifts positions: rotates all cells of a layer's keys in place.
pub(crate) fn rope(instance: &Instance, store: &Store, op: &Tensor) -> c_int {
    let mut rows = store.rows();
    let result = match &mut *rows {
        Rows::Pages(pages) => shift(instance, store, op, pages),
        Rows::Flat(_) => {
            drop(rows);
            return on_flat(instance, op);
        }
        Rows::Unknown => Ok(()),
    };
    match result {
        Ok(()) => SUCCESS,
        Err(why) => instance.fail(&why),
    }
}

fn shift(instance: &Instance, store: &Store, op: &Tensor, pages: &mut CellPages) -> Result<(), String> {
    let unknown = || "the host shifts a cache in a layout that this device does not support".to_owned();
    let (keys, shifts) = (source(op, 0).ok_or_else(unknown)?, source(op, 1).ok_or_else(unknown)?);
    let (dim, heads, row_bytes) = (pages.config().dim, pages.config().heads, store.row_bytes());
    let offset = keys.view_offset();
    // A model may rotate only some channels of a head.
    let (first, skip) = (offset / row_bytes, offset % row_bytes / 2);
    let known = keys.kind == store.kind
        && size(keys, 1) == heads
        && size(keys, 0) + skip <= dim
        && shifts.kind == I32;
    if !known || keys.nb[2] != row_bytes || keys.nb[1] != 2 * dim {
        return Err(unknown());
    }
    // SAFETY: shifts are i32, one for each cell, without gaps.
    let shifts: &[i32] = unsafe { row(shifts, [0; 3]) };
    let mut failed = SUCCESS;
    for (number, shifts) in shifts.chunks(PAGE).enumerate() {
        if shifts.iter().all(|shift| *shift == 0) {
            continue;
        }
        let start = first + PAGE * number;
        let mut map = |cell: usize, rows: &mut [f32]| {
            let shifts = &shifts[cell - start..];
            let done = rotate(instance, op, [dim, heads, skip], &shifts[..rows.len() / store.width], rows);
            failed = if failed == SUCCESS { done } else { failed };
        };
        pages.map_rows(start..start + shifts.len(), &mut map).map_err(|why| why.to_string())?;
    }
    if failed == SUCCESS { Ok(()) } else { Err("the host's CPU could not shift a cache".into()) }
}

/// Rotates rows by the host's operation, on the host's CPU.
fn rotate(
    instance: &Instance,
    op: &Tensor,
    [dim, heads, skip]: [usize; 3],
    shifts: &[i32],
    rows: &mut [f32],
) -> c_int {
    let Some((keys, positions)) = source(op, 0).zip(source(op, 1)) else { return FAILED };
    let mut shifts = shifts.to_vec();
    let count = shifts.len();
    let nb = [4, 4 * dim, 4 * dim * heads, 4 * dim * heads * count];
    let ne = [keys.ne[0], heads as i64, count as i64, 1];
    use core::ptr::null_mut;
    // SAFETY: `skip` is within a row.
    let data = unsafe { rows.as_mut_ptr().add(skip) }.cast();
    let own = |tensor: &Tensor| Tensor {
        buffer: null_mut(),
        view_src: null_mut(),
        view_offs: 0,
        extra: null_mut(),
        ..*tensor
    };
    let mut values = Tensor { kind: F32, ne, nb, data, src: [null_mut(); 10], op: 0, ..own(keys) };
    let mut moves = Tensor {
        ne: [count as i64, 1, 1, 1],
        nb: [4, 4 * count, 4 * count, 4 * count],
        data: shifts.as_mut_ptr().cast(),
        ..own(positions)
    };
    let mut node = Tensor { kind: F32, ne, nb, data, ..own(op) };
    (node.src[0], node.src[1]) = (&mut values, &mut moves);
    // SAFETY: the operands are rows and shifts of this call, and the host's own tensors.
    unsafe { instance.compute_on_host(&mut node) }
}

#[cfg(test)]
mod tests {
    use super::slopes;

    /// Compares with ggml's slopes.
    #[test]
    fn slopes_of_heads() {
        assert_eq!(slopes(0.0, 4), []);
        assert_eq!(slopes(8.0, 4), [0.25, 0.0625, 0.015625, 0.00390625]);
        let odd = slopes(8.0, 6);
        assert_eq!(odd[..4], slopes(8.0, 4));
        assert_eq!(odd[4..], [0.5, 0.125]);
    }
}
