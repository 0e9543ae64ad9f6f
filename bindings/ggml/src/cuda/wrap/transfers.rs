//! Transfers of a backend that need not wait, those of caches through this library; and the wait for a backend.

use super::*;
use crate::cuda::cells::WHY;
use std::sync::TryLockError;

type SetAsync = extern "C" fn(*mut Backend, *mut Tensor, *const c_void, usize, usize);
type GetAsync = extern "C" fn(*mut Backend, *const Tensor, *mut c_void, usize, usize);
type Set2dAsync = extern "C" fn(*mut Backend, *mut Tensor, *const c_void, usize, usize, usize, usize, usize);
type Get2dAsync = extern "C" fn(*mut Backend, *const Tensor, *mut c_void, usize, usize, usize, usize, usize);

type Synchronize = extern "C" fn(*mut Backend);

/// Waits for a backend. Then the log tells of rows that its caches could not hold.
pub(super) extern "C" fn synchronize(backend: *mut Backend) {
    let Some((seam, wrapped)) = seam().zip(wrapped_of(backend)) else { return };
    // SAFETY: the backend's own function, which is not null: see `init_backend`.
    unsafe { core::mem::transmute::<*const c_void, Synchronize>(wrapped.own.synchronize)(backend) };
    let gpu = &seam.gpus[wrapped.gpu];
    guarded((), || {
        // A graph that is being computed, also one that waits here, reads the list itself.
        let _turn = match gpu.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !gpu.unread.swap(false, Ordering::Relaxed) {
            return;
        }
        let caches: Vec<Arc<Cache>> = lock(&CACHES).values().cloned().collect();
        for cache in caches.iter().filter(|cache| cache.gpu == wrapped.gpu) {
            let mut lost = false;
            let read = cache.with_cells(|cells| {
                lost = cells.forget_lost()?;
                Ok(())
            });
            if let Err(why) = read {
                seam.instance.fail(&why);
            } else if lost {
                seam.instance.fail(WHY);
            }
        }
    });
}

/// Returns the buffer of a cache's tensor.
fn buffer_of(tensor: *const Tensor) -> Option<*mut Buffer> {
    // SAFETY: the host passes a tensor.
    let about = unsafe { &*tensor };
    cache_of(about).map(|_| about.root().buffer)
}

pub(super) extern "C" fn set_async(
    backend: *mut Backend,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    if let Some(buffer) = buffer_of(tensor) {
        return set_cache(buffer, tensor, data, offset, size);
    }
    let Some((seam, wrapped)) = seam().zip(wrapped_of(backend)) else { return };
    guarded((), || {
        // SAFETY: the tensor has a buffer of the host's; `root` follows views.
        let usage = unsafe { (*tensor).root().buffer.as_ref() }.map_or(WEIGHTS, |buffer| buffer.usage);
        if usage != WEIGHTS {
            note(seam, tensor, data, offset, size);
        }
    });
    // SAFETY: the backend's own function, which is not null: see `init_backend`.
    unsafe {
        core::mem::transmute::<*const c_void, SetAsync>(wrapped.own.transfers[0])(
            backend, tensor, data, offset, size,
        )
    };
}

pub(super) extern "C" fn get_async(
    backend: *mut Backend,
    tensor: *const Tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
) {
    if let Some(buffer) = buffer_of(tensor) {
        return get_cache(buffer, tensor, data, offset, size);
    }
    let Some(wrapped) = wrapped_of(backend) else { return };
    // SAFETY: as in `set_async`.
    unsafe {
        core::mem::transmute::<*const c_void, GetAsync>(wrapped.own.transfers[1])(
            backend, tensor, data, offset, size,
        )
    };
}

pub(super) extern "C" fn set_2d_async(
    backend: *mut Backend,
    tensor: *mut Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
    copies: usize,
    stride: usize,
    from_stride: usize,
) {
    if let Some(buffer) = buffer_of(tensor) {
        for copy in 0..copies {
            set_cache(
                buffer,
                tensor,
                data.wrapping_byte_add(copy * from_stride),
                offset + copy * stride,
                size,
            );
        }
        return;
    }
    let Some(wrapped) = wrapped_of(backend) else { return };
    // SAFETY: as in `set_async`.
    unsafe {
        let own = core::mem::transmute::<*const c_void, Set2dAsync>(wrapped.own.transfers[2]);
        own(backend, tensor, data, offset, size, copies, stride, from_stride);
    }
}

pub(super) extern "C" fn get_2d_async(
    backend: *mut Backend,
    tensor: *const Tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
    copies: usize,
    stride: usize,
    to_stride: usize,
) {
    if let Some(buffer) = buffer_of(tensor) {
        for copy in 0..copies {
            get_cache(buffer, tensor, data.wrapping_byte_add(copy * to_stride), offset + copy * stride, size);
        }
        return;
    }
    let Some(wrapped) = wrapped_of(backend) else { return };
    // SAFETY: as in `set_async`.
    unsafe {
        let own = core::mem::transmute::<*const c_void, Get2dAsync>(wrapped.own.transfers[3]);
        own(backend, tensor, data, offset, size, copies, stride, to_stride);
    }
}
