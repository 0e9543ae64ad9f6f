//! Stores the cells of the host's cache tensors, such as `cache_k_l0`.

use crate::abi::{F16, Tensor};
use crate::device::{Instance, lock};
use core::ffi::CStr;
use octaplex::cells::{CellConfig, CellPages};
use octaplex::codecs::{F16Spec, Role};
use octaplex::{Backend, CodecSpec};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// A cache tensor: rows of a layer's keys or values, \[streams]\[cells]\[width]. A row holds all heads.
pub(crate) struct Store {
    pub(crate) role: Role,
    pub(crate) layer: u32,
    /// Values in a row, of all heads together.
    pub(crate) width: usize,
    /// Cells in a stream.
    pub(crate) cells: usize,
    /// Number of streams.
    pub(crate) streams: usize,
    rows: Mutex<Rows>,
}

/// The rows in one of three states.
pub(crate) enum Rows {
    /// Nothing is written yet, and the width of a head is unknown.
    Unknown,
    Pages(Box<CellPages>),
    /// Plain memory in the tensor's type, for hosts that do not use flash attention.
    Flat(Vec<u8>),
}

const PREFIX: [&[u8]; 2] = [b"cache_k_l", b"cache_v_l"];

impl Store {
    /// Creates the store of a tensor that the host is allocating, or returns `None` if it is not a cache.
    pub(crate) fn new(tensor: &Tensor) -> Option<Self> {
        let name = name(tensor);
        let number = PREFIX.iter().position(|prefix| name.starts_with(prefix))?;
        let size = |axis: usize| usize::try_from(tensor.ne[axis]).ok();
        let (width, cells, streams) = (size(0)?, size(1)?, size(2)?);
        if tensor.kind != F16 || tensor.ne[3] != 1 || width == 0 || streams == 0 {
            return None;
        }
        if cells == 0 || !cells.is_multiple_of(64) {
            return None;
        }
        let digits = name[PREFIX[number].len()..].iter().take_while(|byte| byte.is_ascii_digit());
        let layer =
            digits.fold(0u32, |layer, digit| layer.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')));
        let role = if number == 0 { Role::Keys } else { Role::Values };
        Some(Self { role, layer, width, cells, streams, rows: Mutex::new(Rows::Unknown) })
    }

    /// Locks the rows.
    pub(crate) fn rows(&self) -> std::sync::MutexGuard<'_, Rows> {
        lock(&self.rows)
    }

    /// Returns the bytes of a row in the tensor's type.
    pub(crate) fn row_bytes(&self) -> usize {
        2 * self.width
    }

    /// Returns the bytes of all rows in the tensor's type.
    pub(crate) fn nominal_bytes(&self) -> usize {
        self.row_bytes() * self.cells * self.streams
    }

    /// Returns the configuration of cells whose heads have width `dim`.
    fn config(&self, instance: &Instance, dim: usize) -> Result<CellConfig, String> {
        let heads = self.width / dim;
        let codec = instance.settings.codec(self.role, self.layer, heads, dim)?;
        Ok(CellConfig::new(self.role, heads, dim, self.cells)
            .layer(self.layer)
            .streams(self.streams)
            .codec(codec)
            .sinks(instance.settings.sinks)
            .open_pages(instance.settings.open_pages(self.streams)))
    }

    /// Returns the bytes of a full cache. The width of heads is unknown here, so it assumes the narrowest: they have the
    /// most overhead.
    pub(crate) fn expected_bytes(&self, instance: &Instance) -> usize {
        let mut dims = [64, 80, 96, 128, 256].into_iter().filter(|dim| self.width.is_multiple_of(*dim));
        let config = dims.find_map(|dim| self.config(instance, dim).ok());
        config.map_or(self.nominal_bytes(), |config| config.required_bytes().min(self.nominal_bytes()))
    }

    /// Learns the width of heads before the first row is written. Returns whether rows are in pages with heads of this
    /// width.
    pub(crate) fn learn(&self, instance: &Instance, dim: usize) -> bool {
        let mut rows = self.rows();
        match &*rows {
            Rows::Flat(_) => return false,
            Rows::Pages(pages) if pages.config().dim == dim || !pages.is_empty() => {
                return pages.config().dim == dim;
            }
            Rows::Unknown | Rows::Pages(_) => {}
        }
        if dim == 0 || !self.width.is_multiple_of(dim) {
            return false;
        }
        let made = self.config(instance, dim).and_then(|config| {
            let backend = Backend::detect();
            let exact = |why| {
                instance.say_once(&format!(
                    "{} at width {dim} is not possible, so this cache stays in f16: {why}",
                    config.codec
                ));
                CellPages::new(&config.codec(CodecSpec::F16(F16Spec)), backend).map_err(|why| why.to_string())
            };
            CellPages::new(&config, backend).or_else(exact)
        });
        match made {
            Ok(pages) => {
                let config = pages.config();
                let what = if self.role == Role::Keys { "keys" } else { "values" };
                instance
                    .say_once(&format!("{what} in {}, {} heads of width {dim}", config.codec, config.heads));
                *rows = Rows::Pages(Box::new(pages));
                true
            }
            Err(why) => {
                instance.say_once(&why);
                false
            }
        }
    }

    /// Turns rows into plain memory, for hosts that do not use flash attention. Returns false if pages already hold rows.
    pub(crate) fn flatten(&self, instance: &Instance, rows: &mut Rows) -> bool {
        match rows {
            Rows::Flat(_) => true,
            Rows::Pages(pages) if !pages.is_empty() => false,
            _ => {
                instance.say_once(
                    "this cache stays in f16: the host does not use flash attention on it (-fa off?)",
                );
                *rows = Rows::Flat(vec![0; self.nominal_bytes()]);
                true
            }
        }
    }
}

/// Returns a tensor's name.
pub(crate) fn name(tensor: &Tensor) -> &[u8] {
    // SAFETY: ggml ends names with a zero within the array.
    unsafe { CStr::from_ptr(tensor.name.as_ptr()) }.to_bytes()
}

/// Returns the tensor behind a view, or the tensor itself.
pub(crate) fn root(tensor: &Tensor) -> &Tensor {
    // SAFETY: `view_src` is null or a tensor that lives as long as its views.
    unsafe { tensor.view_src.as_ref() }.unwrap_or(tensor)
}

/// Returns whether a tensor that is no view lies in a buffer of this library.
fn is_ours(instance: &Instance, root: &Tensor) -> bool {
    // SAFETY: the buffer is one of the host's.
    !root.buffer.is_null()
        && unsafe { (instance.host.functions.ggml_backend_buffer_get_type)(root.buffer) }
            == instance.buffer_type
}

/// Returns the store behind a tensor or a view.
pub(crate) fn of<'a>(instance: &Instance, tensor: &'a Tensor) -> Option<&'a Store> {
    let root = root(tensor);
    if root.extra.is_null() || !is_ours(instance, root) {
        return None;
    }
    // SAFETY: in this library's buffers only `buffer::init_tensor` sets `extra`, to a store that lives as long as the buffer.
    Some(unsafe { &*root.extra.cast::<Store>() })
}

/// Returns whether a tensor is a cache in plain memory of this library: states of recurrent layers, or another type.
pub(crate) fn is_plain_cache(instance: &Instance, tensor: &Tensor) -> bool {
    let root = root(tensor);
    root.extra.is_null() && name(root).starts_with(b"cache_") && is_ours(instance, root)
}

/// Adds a store to the count of stores, or removes one.
pub(crate) fn count(instance: &Instance, more: bool) {
    if more {
        instance.stores.fetch_add(1, Ordering::Relaxed);
    } else {
        instance.stores.fetch_sub(1, Ordering::Relaxed);
    }
}
