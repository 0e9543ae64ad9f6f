//! Converts arrays to the library's slices.

use crate::{Error, Result};
use half::slice::HalfBitsSliceExt;
use half::{bf16, f16};
use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use octaplex::gpu::{CallerStream, DeviceRows, DeviceSlice, Float};
use octaplex::{Floats as Tensor, FloatsMut as TensorMut};
use pyo3::prelude::*;
use std::borrow::Cow;

/// Floats to read. 16-bit floats are their bits, and their type.
#[derive(FromPyObject)]
pub(crate) enum Floats<'py> {
    F32(PyReadonlyArray1<'py, f32>),
    Halves(PyReadonlyArray1<'py, u16>, Half),
}

/// Floats to write.
#[derive(FromPyObject)]
pub(crate) enum FloatsMut<'py> {
    F32(PyReadwriteArray1<'py, f32>),
    Halves(PyReadwriteArray1<'py, u16>, Half),
}

/// The type of 16-bit floats: true for bfloat16, false for f16.
#[derive(FromPyObject, Clone, Copy)]
#[pyo3(transparent)]
pub(crate) struct Half(bool);

fn contiguous<T, E>(slice: core::result::Result<T, E>) -> Result<T> {
    slice.map_err(|_| Error::new_err("the array is not contiguous: pass numpy.ascontiguousarray(x)"))
}

impl Floats<'_> {
    pub(crate) fn tensor(&self) -> Result<Tensor<'_>> {
        Ok(match self {
            Self::F32(values) => Tensor::F32(contiguous(values.as_slice())?),
            Self::Halves(values, Half(true)) => {
                Tensor::Bf16(contiguous(values.as_slice())?.reinterpret_cast::<bf16>())
            }
            Self::Halves(values, Half(false)) => {
                Tensor::F16(contiguous(values.as_slice())?.reinterpret_cast::<f16>())
            }
        })
    }
}

impl FloatsMut<'_> {
    pub(crate) fn tensor(&mut self) -> Result<TensorMut<'_>> {
        Ok(match self {
            Self::F32(values) => TensorMut::F32(contiguous(values.as_slice_mut())?),
            Self::Halves(values, Half(true)) => {
                TensorMut::Bf16(contiguous(values.as_slice_mut())?.reinterpret_cast_mut::<bf16>())
            }
            Self::Halves(values, Half(false)) => {
                TensorMut::F16(contiguous(values.as_slice_mut())?.reinterpret_cast_mut::<f16>())
            }
        })
    }
}

/// Converts floats to f32. Copies only 16-bit floats.
pub(crate) fn floats<'a>(tensor: Tensor<'a>) -> Cow<'a, [f32]> {
    match tensor {
        Tensor::F32(values) => Cow::Borrowed(values),
        Tensor::F16(values) => Cow::Owned(values.iter().map(|x| x.to_f32()).collect()),
        Tensor::Bf16(values) => Cow::Owned(values.iter().map(|x| x.to_f32()).collect()),
    }
}

pub(crate) fn bytes<'a>(array: &'a PyReadonlyArray1<u8>) -> Result<&'a [u8]> {
    contiguous(array.as_slice())
}

/// Floats in a GPU's memory: a `View` of `_gpu.py`, from its first float to its last.
#[derive(FromPyObject)]
pub(crate) struct OnDevice {
    address: u64,
    extent: usize,
    dtype: String,
}

impl OnDevice {
    #[allow(unsafe_code)]
    pub(crate) fn slice(&self) -> Result<DeviceSlice> {
        let float = match &*self.dtype {
            "float32" => Float::F32,
            "float16" => Float::F16,
            "bfloat16" => Float::Bf16,
            other => {
                let said = format!("a tensor is of {other}: pass float32, float16 or bfloat16");
                return Err(Error::new_err(said));
            }
        };
        // SAFETY: a `View` has the address and the extent of a tensor of this GPU, and keeps it alive during
        // the call. The tensor's library frees memory in the order of the stream that `_gpu.py` passes.
        Ok(unsafe { DeviceSlice::new(self.address, self.extent, float) })
    }
}

/// Keys and values in a GPU's memory: `Rows` of `_gpu.py`.
#[derive(FromPyObject)]
pub(crate) struct RowsOnDevice {
    keys: OnDevice,
    values: OnDevice,
    tokens: usize,
    token_stride: usize,
    head_stride: usize,
}

impl RowsOnDevice {
    pub(crate) fn rows(&self) -> Result<DeviceRows> {
        let (keys, values) = (self.keys.slice()?, self.values.slice()?);
        let Self { tokens, token_stride, head_stride, .. } = *self;
        Ok(DeviceRows { keys, values, tokens, token_stride, head_stride })
    }
}

/// Returns the stream with this handle.
#[allow(unsafe_code)]
pub(crate) fn stream(handle: usize) -> CallerStream {
    // SAFETY: `_gpu.py` passes PyTorch's current stream of the tensors' GPU, or the stream that the tensors name.
    unsafe { CallerStream::new(handle) }
}
