//! Stores the cells of the host's cache tensors, such as `cache_k_l0`.

use crate::abi::{BF16, F16, Tensor};
use crate::instance::{Instance, lock};
use core::ffi::c_int;
use octaplex::cells::{CellConfig, CellPages, PAGE};
use octaplex::codecs::{F16Spec, Role};
use octaplex::{CodecSpec, f16};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// A cache tensor: rows of a layer's keys or values, \[streams]\[cells]\[width]. A row holds all heads.
pub(crate) struct Store {
    pub(crate) role: Role,
    pub(crate) layer: u32,
    /// The type in which the host reads and writes rows: f16 or bf16.
    pub(crate) kind: c_int,
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
        let name = tensor.name();
        let number = PREFIX.iter().position(|prefix| name.starts_with(prefix))?;
        let size = |axis: usize| usize::try_from(tensor.ne[axis]).ok();
        let (width, cells, streams) = (size(0)?, size(1)?, size(2)?);
        if ![F16, BF16].contains(&tensor.kind) || tensor.ne[3] != 1 || width == 0 || streams == 0 {
            return None;
        }
        if cells == 0 || !cells.is_multiple_of(PAGE) {
            return None;
        }
        let digits = name[PREFIX[number].len()..].iter().take_while(|byte| byte.is_ascii_digit());
        let layer =
            digits.fold(0u32, |layer, digit| layer.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')));
        let role = if number == 0 { Role::Keys } else { Role::Values };
        let kind = tensor.kind;
        Some(Self { role, layer, kind, width, cells, streams, rows: Mutex::new(Rows::Unknown) })
    }

    /// Locks the rows.
    pub(crate) fn rows(&self) -> std::sync::MutexGuard<'_, Rows> {
        lock(&self.rows)
    }

    /// Returns the bytes of a row in the tensor's type.
    pub(crate) fn row_bytes(&self) -> usize {
        2 * self.width
    }

    /// Appends values in the tensor's type.
    pub(crate) fn encode(&self, values: &[f16], out: &mut Vec<u8>) {
        for value in values {
            match self.kind {
                BF16 => {
                    // Rounds to the nearest, to even at a tie. No f16 overflows here, and NaN stays NaN.
                    let bits = value.to_f32().to_bits();
                    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
                    let bits = if value.is_nan() { bits >> 16 | 0x40 } else { rounded };
                    out.extend_from_slice(&(bits as u16).to_le_bytes());
                }
                _ => out.extend_from_slice(&value.to_le_bytes()),
            }
        }
    }

    /// Reads values in the tensor's type.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Vec<f16> {
        let short = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
        let values = bytes.chunks_exact(2);
        match self.kind {
            BF16 => values.map(|b| f16::from_f32(f32::from_bits(u32::from(short(b)) << 16))).collect(),
            _ => values.map(|b| f16::from_bits(short(b))).collect(),
        }
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

    /// Returns the bytes of a full cache. The width of heads is unknown here, so it assumes the narrowest common one: it has
    /// the most overhead. Rows that fit none of them may have heads that cannot be compressed.
    pub(crate) fn expected_bytes(&self, instance: &Instance) -> usize {
        let fits = |dim: &usize| self.width.is_multiple_of(*dim);
        let common = [64, 96, 128, 256].into_iter().filter(fits);
        let rare = [80, 112, 160, 32].into_iter().filter(fits).filter(|_| !fits(&120));
        let config = common.chain(rare).find_map(|dim| self.config(instance, dim).ok());
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
            instance.say_once(&format!("{} values of a token are no heads of width {dim}", self.width));
            return false;
        }
        let made = self.config(instance, dim).and_then(|config| {
            let backend = instance.settings.backend;
            let exact = |why| {
                instance.say_once(&format!(
                    "{} at width {dim} is not possible, so this cache stays uncompressed: {why}",
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

    /// Returns the codec, the width of heads, and the bits per value in closed pages, once rows lie in pages.
    pub(crate) fn codec(&self) -> Option<(CodecSpec, usize, f64)> {
        let Rows::Pages(pages) = &*self.rows() else { return None };
        let config = pages.config();
        let bits = (8 * config.page_bytes()) as f64 / (PAGE * self.width) as f64;
        Some((config.codec, config.dim, bits))
    }

    /// Turns rows into plain memory, for operations that pages do not have. Returns false if pages already hold rows.
    pub(crate) fn flatten(&self, instance: &Instance, rows: &mut Rows, why: &str) -> bool {
        match rows {
            Rows::Flat(_) => true,
            Rows::Pages(pages) if !pages.is_empty() => false,
            _ => {
                let side = if self.role == Role::Keys { "keys" } else { "values" };
                let size = self.nominal_bytes() as f64 / f64::from(1 << 20);
                instance.say_once(&format!("{side} stay uncompressed, {size:.2} MiB a layer: {why}"));
                *rows = Rows::Flat(vec![0; self.nominal_bytes()]);
                true
            }
        }
    }
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
    let root = tensor.root();
    if root.extra.is_null() || !is_ours(instance, root) {
        return None;
    }
    // SAFETY: in this library's buffers only `buffer::init_tensor` sets `extra`, to a store that lives as long as the buffer.
    Some(unsafe { &*root.extra.cast::<Store>() })
}

/// Returns whether a tensor lies in plain memory of this library: in its buffers, and no store.
pub(crate) fn is_plain(instance: &Instance, tensor: &Tensor) -> bool {
    let root = tensor.root();
    root.extra.is_null() && is_ours(instance, root)
}

/// Returns whether a tensor has no memory yet. The host asks so about weights, and about caches whose size it estimates.
pub(crate) fn is_imagined(tensor: &Tensor) -> bool {
    // SAFETY: the buffer is null or one of the host's.
    unsafe { tensor.root().buffer.as_ref() }.is_some_and(|buffer| buffer.context.is_null())
}

/// Returns whether a tensor lies in memory of the host's CPU.
pub(crate) fn is_on_host(instance: &Instance, tensor: &Tensor) -> bool {
    let root = tensor.root();
    let functions = &instance.host.functions;
    // SAFETY: the buffer is one of the host's; calls as ggml-backend.h declares them.
    !root.buffer.is_null()
        && unsafe {
            (functions.ggml_backend_buft_is_host)((functions.ggml_backend_buffer_get_type)(root.buffer))
        }
}

/// Adds a store to the count of stores, or removes one.
pub(crate) fn count(instance: &Instance, more: bool) {
    if more {
        instance.stores.fetch_add(1, Ordering::Relaxed);
    } else {
        instance.stores.fetch_sub(1, Ordering::Relaxed);
    }
}
