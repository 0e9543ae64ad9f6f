//! The cache in one buffer of the host's: compressed cells, or f16 of CUDA's own.

use super::cells::{Begun, Cells, Steps};
use super::seam::{Gpu, Seam};
use crate::abi::{Buffer, BufferInterface, Tensor};
use crate::instance::lock;
use crate::store::Store;
use octaplex::LayerConfig;
use octaplex::codecs::Role;
use std::sync::{Mutex, MutexGuard};

/// A buffer with caches.
pub(super) struct Cache {
    /// The number of its GPU.
    pub(super) gpu: usize,
    /// The functions of the host's own buffers.
    pub(super) own: BufferInterface,
    inner: Mutex<Inner>,
}

// SAFETY: the host's functions are tied to no thread. What changes is locked.
unsafe impl Send for Cache {}
// SAFETY: as above.
unsafe impl Sync for Cache {}

/// The part that changes.
pub(super) struct Inner {
    sides: Vec<Side>,
    rows: Rows,
    /// The reason for which rows are lost until the host clears the cache.
    failed: Option<String>,
}

// SAFETY: tensors and buffers are the host's, and tied to no thread.
unsafe impl Send for Inner {}

/// The keys or the values of a layer.
struct Side {
    tensor: *mut Tensor,
    store: Store,
    /// Width of a head, and query heads, once the host has asked for attention.
    known: Option<(usize, usize)>,
}

enum Rows {
    /// Nothing is written yet.
    Unknown,
    Cells(Box<Cells>),
    /// f16 in a buffer of the host's.
    Flat(*mut Buffer),
}

/// The replacements of a graph's operations on a cache.
pub(super) enum Plan {
    /// CUDA computes them.
    Own,
    Cells(Begun),
}

/// The alignment of flat tensors.
const ALIGNMENT: usize = 256;

impl Cache {
    pub(super) fn new(gpu: usize, own: BufferInterface) -> Self {
        Self { gpu, own, inner: Mutex::new(Inner { sides: Vec::new(), rows: Rows::Unknown, failed: None }) }
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Adds a tensor that the host places in the buffer.
    pub(super) fn add(&self, tensor: *mut Tensor) {
        // SAFETY: the host passes a tensor that lives as long as the buffer.
        if let Some(store) = Store::new(unsafe { &*tensor }) {
            self.inner().sides.push(Side { tensor, store, known: None });
        }
    }

    /// Learns from a request for attention how wide heads are. When all layers are known, memory is allocated.
    pub(super) fn learn(&self, seam: &Seam, op: &Tensor) {
        let inner = &mut *self.inner();
        if !matches!(inner.rows, Rows::Unknown) {
            return;
        }
        // SAFETY: sources are null or tensors of the host's.
        let [Some(queries), Some(keys), Some(values)] =
            [0, 1, 2].map(|number: usize| unsafe { op.src[number].as_ref() })
        else {
            return;
        };
        let heads = usize::try_from(queries.ne[2]).unwrap_or(0);
        let mut foreign = None;
        for (side, role) in [(keys, Role::Keys), (values, Role::Values)] {
            let root: *const Tensor = side.root();
            let Some(known) = inner.sides.iter_mut().find(|known| core::ptr::eq(known.tensor, root)) else {
                continue;
            };
            let dim = usize::try_from(side.ne[0]).unwrap_or(0);
            let whole = usize::try_from(side.ne[2]).ok().and_then(|heads| heads.checked_mul(dim));
            if known.store.role != role || whole != Some(known.store.width) || dim == 0 {
                foreign = Some("attention has keys and values in another layout".to_owned());
            }
            known.known = Some((dim, heads));
        }
        if foreign.is_none() && inner.sides.iter().any(|side| side.known.is_none()) {
            return;
        }
        let gpu = &seam.gpus[self.gpu];
        let made = match foreign {
            Some(why) => Err(why),
            None => inner.build(seam, gpu),
        };
        match made {
            Ok(cells) => inner.rows = Rows::Cells(Box::new(cells)),
            Err(why) => {
                if let Err(why) = inner.flatten(seam, gpu, &self.own, &why) {
                    seam.instance.fail(&why);
                    inner.failed = Some(why);
                }
            }
        }
    }

    pub(super) fn free(&self, seam: &Seam) {
        let inner = &mut *self.inner();
        if let Rows::Flat(buffer) = core::mem::replace(&mut inner.rows, Rows::Unknown) {
            // SAFETY: allocated by `flatten`, and freed once.
            unsafe { (seam.instance.host.functions.ggml_backend_buffer_free)(buffer) };
        }
        inner.sides.clear();
    }

    pub(super) fn clear(&self, seam: &Seam, value: u8) {
        let inner = &mut *self.inner();
        inner.failed = None;
        match &mut inner.rows {
            Rows::Unknown => {}
            // SAFETY: the host's own function, for a buffer of its own.
            Rows::Flat(buffer) => unsafe { ((**buffer).interface.clear)(*buffer, value) },
            Rows::Cells(cells) => {
                if let Err(why) = cells.clear() {
                    seam.instance.fail(&why);
                    inner.failed = Some(why);
                }
            }
        }
    }

    /// Writes bytes of a tensor in f16.
    pub(super) fn set(
        &self,
        seam: &Seam,
        tensor: &Tensor,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), String> {
        let inner = &mut *self.inner();
        if let Rows::Unknown = inner.rows {
            inner.flatten(
                seam,
                &seam.gpus[self.gpu],
                &self.own,
                "llama.cpp writes it before it attends to it",
            )?;
        }
        let offset = offset + tensor.view_offset();
        let root: *const Tensor = tensor.root();
        match &mut inner.rows {
            Rows::Unknown => Ok(()),
            Rows::Cells(cells) => cells.bring(root as usize, offset, bytes),
            Rows::Flat(_) => {
                let mut flat = flat_of(tensor);
                // SAFETY: the host's own function, with a tensor in memory of its own.
                (self.own.set_tensor)(flat.buffer, &mut flat, bytes.as_ptr().cast(), offset, bytes.len());
                Ok(())
            }
        }
    }

    /// Reads bytes of a tensor in f16.
    pub(super) fn get(&self, tensor: &Tensor, offset: usize, out: &mut [u8]) -> Result<(), String> {
        let inner = &mut *self.inner();
        if let Some(why) = &inner.failed {
            return Err(why.clone());
        }
        let offset = offset + tensor.view_offset();
        let root: *const Tensor = tensor.root();
        match &mut inner.rows {
            Rows::Unknown => Ok(()),
            Rows::Cells(cells) => cells.read(root as usize, offset, out),
            Rows::Flat(_) => {
                let flat = flat_of(tensor);
                // SAFETY: the host's own function, with a tensor in memory of its own.
                (self.own.get_tensor)(flat.buffer, &flat, out.as_mut_ptr().cast(), offset, out.len());
                Ok(())
            }
        }
    }

    /// Decides what a graph's operations on this cache become.
    pub(super) fn begin(
        &self,
        seam: &Seam,
        nodes: &[*mut Tensor],
        ops: &[usize],
        wait: &dyn Fn(),
    ) -> Result<Plan, String> {
        let inner = &mut *self.inner();
        if let Some(why) = &inner.failed {
            return Err(why.clone());
        }
        let gpu = &seam.gpus[self.gpu];
        let why = match &mut inner.rows {
            Rows::Flat(_) => return Ok(Plan::Own),
            Rows::Unknown => {
                format!("llama.cpp runs {} on it, without flash attention", inner.first_op(seam, nodes, ops))
            }
            Rows::Cells(cells) => match cells.begin(seam, nodes, ops, wait)? {
                Ok(begun) => return Ok(Plan::Cells(begun)),
                Err(why) => why,
            },
        };
        wait();
        inner.flatten(seam, gpu, &self.own, &why)?;
        Ok(Plan::Own)
    }

    /// Begins a graph once more, as [`Cells::begin_again`] does.
    pub(super) fn begin_again(&self, seam: &Seam, steps: &Steps) -> Result<bool, String> {
        let inner = &mut *self.inner();
        match &mut inner.rows {
            Rows::Cells(cells) if inner.failed.is_none() => cells.begin_again(seam, steps),
            _ => Ok(false),
        }
    }

    /// Calls `f` with the cells, while a graph is computed. An error loses all rows until the host clears the cache.
    pub(super) fn with_cells(&self, f: impl FnOnce(&mut Cells) -> Result<(), String>) -> Result<(), String> {
        let inner = &mut *self.inner();
        let Rows::Cells(cells) = &mut inner.rows else { return Ok(()) };
        let done = f(cells);
        if let Err(why) = &done {
            inner.failed = Some(why.clone());
        }
        done
    }

    /// Undoes what a failed recording has noted: none of its work ran.
    pub(super) fn unrecord(&self) {
        let inner = &mut *self.inner();
        inner.failed = None;
        if let Rows::Cells(cells) = &mut inner.rows {
            cells.unrecord();
        }
    }

    /// Points tensors of a graph at the f16 rows.
    pub(super) fn point(&self, tensor: *mut Tensor) {
        // SAFETY: the graph's tensors are the host's, which computes the graph now.
        let about = unsafe { &mut *tensor };
        if !about.view_src.is_null() {
            about.data = flat_of(about).data.wrapping_byte_add(about.view_offs);
        }
    }
}

/// Returns a tensor in whose memory offsets count from the first row of its layer.
fn flat_of(tensor: &Tensor) -> Tensor {
    let root = tensor.root();
    Tensor { data: root.data, buffer: root.buffer, ..*tensor }
}

impl Inner {
    fn first_op(&self, seam: &Seam, nodes: &[*mut Tensor], ops: &[usize]) -> String {
        let name = |node: &usize| {
            // SAFETY: nodes of a graph are tensors.
            let op = unsafe { &*nodes[*node] };
            String::from_utf8_lossy(seam.instance.host.op_name(op)).into_owned()
        };
        ops.iter().map(name).find(|name| name != "SET_ROWS").unwrap_or_else(|| "SET_ROWS".into())
    }

    /// Allocates compressed cells.
    fn build(&self, seam: &Seam, gpu: &Gpu) -> Result<Cells, String> {
        let settings = &seam.instance.settings;
        let device = gpu.open()?;
        let Some(first) = self.sides.first() else { return Err("it has no layer".into()) };
        let shape = (first.store.cells, first.store.streams);
        let mut layers = Vec::new();
        for keys in self.sides.iter().filter(|side| side.store.role == Role::Keys) {
            let layer = keys.store.layer;
            let of_layer = |side: &&Side| side.store.role == Role::Values && side.store.layer == layer;
            let values = self.sides.iter().find(of_layer).ok_or("a layer has keys without values")?;
            let (Some((dim, query_heads)), Some((value_dim, _))) = (keys.known, values.known) else {
                return Err("the width of its heads is unknown".into());
            };
            if [keys, values].iter().any(|side| (side.store.cells, side.store.streams) != shape) {
                return Err("its layers have different sizes".into());
            }
            if dim != value_dim || keys.store.width != values.store.width {
                return Err(format!("keys have width {dim}, and values {value_dim}"));
            }
            let heads = keys.store.width / dim;
            let codec = |role| settings.codec(role, layer, heads, dim);
            let config = LayerConfig::new(heads, dim, shape.0 * shape.1)
                .keys(codec(Role::Keys)?)
                .values(codec(Role::Values)?)
                .layer(layer);
            layers.push((config, query_heads, [keys.tensor as usize, values.tensor as usize]));
        }
        let cells = Cells::new(device, shape, &layers, settings.sinks, settings.open_pages(shape.1))?;
        if let Some((config, ..)) = layers.first() {
            let bits = cells.bits();
            let (keys, values) =
                ((config.keys, config.key_dim, bits), (config.values, config.value_dim, bits));
            seam.instance.announce(keys, values, device.name());
            seam.instance.say_once(&format!(
                "cache on {}: keys in {}, values in {}, {:.2} MiB",
                device.name(),
                config.keys,
                config.values,
                cells.bytes() as f64 / f64::from(1 << 20)
            ));
        }
        Ok(cells)
    }

    /// Turns all rows into f16 of the host's own.
    fn flatten(&mut self, seam: &Seam, gpu: &Gpu, own: &BufferInterface, why: &str) -> Result<(), String> {
        let sizes: Vec<usize> =
            self.sides.iter().map(|side| side.store.nominal_bytes().next_multiple_of(ALIGNMENT)).collect();
        let total = sizes.iter().sum::<usize>().max(ALIGNMENT);
        let buffer = gpu.allocate(total);
        if buffer.is_null() {
            return Err(format!("{why}, but the GPU has no {total} bytes for it in f16"));
        }
        // SAFETY: the buffer was just allocated; these are the host's own functions.
        let base = unsafe {
            (own.clear)(buffer, 0);
            (seam.instance.host.functions.ggml_backend_buffer_get_base)(buffer)
        };
        let mut at = 0;
        let mut places = Vec::new();
        for (side, size) in self.sides.iter().zip(&sizes) {
            places.push((side.tensor as usize, base.wrapping_byte_add(at)));
            at += size;
        }
        if let Rows::Cells(cells) = &mut self.rows
            && let Err(why) = cells.open_all(&places)
        {
            // SAFETY: allocated above.
            unsafe { (seam.instance.host.functions.ggml_backend_buffer_free)(buffer) };
            return Err(why);
        }
        for (side, (_, data)) in self.sides.iter().zip(&places) {
            // SAFETY: the tensor lives as long as its buffer, and the host computes nothing with it now.
            unsafe { (*side.tensor).data = *data };
        }
        seam.instance
            .say_once(&format!("left to CUDA, in f16, {:.2} MiB: {why}", total as f64 / f64::from(1 << 20)));
        self.rows = Rows::Flat(buffer);
        Ok(())
    }
}
