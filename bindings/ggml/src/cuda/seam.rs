//! The host's GPUs with their own functions, and the inputs of its graphs.

use super::inputs::Inputs;
use super::told::Told;
use super::{Op, op_of};
use crate::abi::{Backend, Buffer, Device, Tensor};
use crate::functions::GpuFunctions;
use crate::instance::{Instance, lock};
use core::ffi::{c_char, c_int, c_void};
use octaplex::gpu;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

pub(super) type Alloc = extern "C" fn(*mut c_void, usize) -> *mut Buffer;
pub(super) type AllocSize = extern "C" fn(*mut c_void, *const Tensor) -> usize;
pub(super) type InitBackend = extern "C" fn(*mut Device, *const c_char) -> *mut Backend;
pub(super) type SupportsOp = extern "C" fn(*mut Device, *const Tensor) -> bool;
pub(super) type InitTensor = extern "C" fn(*mut Buffer, *mut Tensor) -> c_int;
pub(super) type SetTensor = extern "C" fn(*mut Buffer, *mut Tensor, *const c_void, usize, usize);

/// The wrapped devices of the first ggml of the process. They live as long as the process.
pub(super) struct Seam {
    pub(super) instance: &'static Instance,
    pub(super) functions: GpuFunctions,
    pub(super) gpus: Vec<Gpu>,
    pub(super) inputs: Mutex<Inputs>,
    pub(super) ops: [AtomicU8; 256],
}

/// A wrapped device, and its own functions.
pub(super) struct Gpu {
    pub(super) device: *mut Device,
    pub(super) buffer_type: *mut c_void,
    pub(super) alloc: Alloc,
    pub(super) alloc_size: Option<AllocSize>,
    pub(super) init_backend: InitBackend,
    pub(super) supports_op: SupportsOp,
    pub(super) vendor: gpu::Vendor,
    pub(super) ordinal: usize,
    pub(super) told: Mutex<Told>,
    /// CUDA's own function for its buffers.
    pub(super) set: OnceLock<SetTensor>,
    pub(super) init: OnceLock<InitTensor>,
    pub(super) opened: OnceLock<Result<gpu::Device, String>>,
    /// Taken while a graph with caches is computed: all contexts share the device's stream.
    pub(super) turn: Mutex<()>,
    /// Whether pages have closed since the host last waited for the GPU.
    pub(super) unread: AtomicBool,
}

// SAFETY: pointers lead to structs of the host that live as long as the process, and are tied to no thread.
unsafe impl Send for Seam {}
// SAFETY: as above; what changes is locked.
unsafe impl Sync for Seam {}

impl Seam {
    pub(super) fn gpu_of_type(&self, buffer_type: *mut c_void) -> Option<(usize, &Gpu)> {
        self.gpus.iter().enumerate().find(|(_, gpu)| gpu.buffer_type == buffer_type)
    }

    pub(super) fn gpu_of(&self, device: *mut Device) -> Option<(usize, &Gpu)> {
        self.gpus.iter().enumerate().find(|(_, gpu)| gpu.device == device)
    }

    /// Returns what an operation is.
    pub(super) fn op(&self, tensor: &Tensor) -> Op {
        const OPS: [Op; 6] = [Op::Nothing, Op::SetRows, Op::Attend, Op::Rope, Op::Copy, Op::Other];
        let Some(known) = usize::try_from(tensor.op).ok().and_then(|op| self.ops.get(op)) else {
            return Op::Other;
        };
        match known.load(Ordering::Relaxed) {
            0 => {
                let op = op_of(self.instance.host.op_name(tensor));
                let number = OPS.iter().position(|other| *other == op).unwrap_or(OPS.len() - 1);
                known.store(number as u8 + 1, Ordering::Relaxed);
                op
            }
            number => OPS[usize::from(number) - 1],
        }
    }
}

impl Gpu {
    /// Returns the GPU of this device, opened at its first use.
    pub(super) fn open(&self) -> Result<&gpu::Device, String> {
        let open = || gpu::Device::of(self.vendor, self.ordinal).map_err(|why| why.to_string());
        self.opened.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    pub(super) fn take_turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    /// Allocates a buffer of the host's own.
    pub(super) fn allocate(&self, bytes: usize) -> *mut Buffer {
        (self.alloc)(self.buffer_type, bytes)
    }

    /// Returns the bytes that the host's own function tells for a tensor.
    pub(super) fn nominal(&self, instance: &Instance, tensor: *const Tensor) -> usize {
        match self.alloc_size {
            Some(alloc_size) => alloc_size(self.buffer_type, tensor),
            // SAFETY: ggml.h declares the function so.
            None => unsafe { (instance.host.functions.ggml_nbytes)(tensor) },
        }
    }
}
