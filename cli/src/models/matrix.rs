//! A model's matrices: quantised as in the file, or decoded for many rows.

use super::repacked::Repacked;
use crate::failure::{Failure, Result, fail, first_line};
use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{Device, Storage, Tensor};
use rayon::prelude::*;
use std::sync::{Arc, OnceLock};

/// A quantised matrix of the file.
pub(crate) struct Matrix {
    weight: Arc<QTensor>,
    product: QMatMul,
    /// The same matrix in a faster type, from the first product of few rows on.
    repacked: OnceLock<Option<Repacked>>,
    inputs: usize,
}

/// From this number of rows on, products are in f32 on weights that are decoded for the call. With fewer rows, candle
/// multiplies the quantised weights by activations of 8 bits: that reads less, but each row is slower.
const DENSE_ROWS: usize = 16;

impl Matrix {
    /// Reads a tensor whose rows have `inputs` values.
    pub(crate) fn new(weight: QTensor, inputs: usize) -> candle_core::Result<Self> {
        let weight = Arc::new(weight);
        Ok(Self { product: QMatMul::from_arc(weight.clone())?, weight, repacked: OnceLock::new(), inputs })
    }

    fn repacked(&self) -> candle_core::Result<&Option<Repacked>> {
        match self.repacked.get() {
            Some(repacked) => Ok(repacked),
            None => {
                let repacked = Repacked::new(&self.weight)?;
                Ok(self.repacked.get_or_init(|| repacked))
            }
        }
    }

    /// Computes x·Wᵀ for rows of `inputs`.
    pub(crate) fn apply(&self, x: &[f32]) -> Result<Vec<f32>> {
        check_finite(x)?; // rounded to 8 bits, NaN would become 0
        let rows = x.len() / self.inputs;
        let product = || {
            let x = Tensor::from_slice(x, (rows, self.inputs), &Device::Cpu)?;
            if rows < DENSE_ROWS {
                match self.repacked()? {
                    Some(repacked) => repacked.apply(&x),
                    None => candle_core::Module::forward(&self.product, &x)?.flatten_all()?.to_vec1(),
                }
            } else {
                x.matmul(&self.weight.dequantize(&Device::Cpu)?.t()?)?.flatten_all()?.to_vec1()
            }
        };
        product().map_err(|error| Failure(first_line(&error)))
    }

    /// Decodes the matrix once, for many calls.
    pub(crate) fn dense(&self) -> Result<Dense> {
        let weight = self.weight.dequantize(&Device::Cpu);
        let weight = weight.map_err(|error| Failure(first_line(&error)))?;
        Ok(Dense { weight, inputs: self.inputs })
    }

    /// Decodes rows of the matrix.
    pub(crate) fn rows(&self, rows: &[u32]) -> Result<Vec<f32>> {
        let decoded = || {
            let ids = Tensor::from_slice(rows, rows.len(), &Device::Cpu)?;
            self.weight.embedding(&ids)?.flatten_all()?.to_vec1()
        };
        decoded().map_err(|error| Failure(first_line(&error)))
    }
}

/// Fails if activations or logits are not finite: every comparison with NaN is false, which would look like agreement.
pub(crate) fn check_finite(values: &[f32]) -> Result<()> {
    if values.par_iter().with_min_len(1 << 14).all(|value| value.is_finite()) {
        return Ok(());
    }
    fail!("the model computes values that are NaN or infinite: its weights are damaged, or too large for f32")
}

/// A matrix in f32.
pub(crate) struct Dense {
    weight: Tensor,
    inputs: usize,
}

impl Dense {
    /// Passes x·Wᵀ to `read` and returns its result, for rows of the matrix' width. The product is large, so it is not copied.
    pub(crate) fn apply<T>(&self, x: &[f32], read: impl FnOnce(&[f32]) -> T) -> Result<T> {
        let product = || {
            let x = Tensor::from_slice(x, (x.len() / self.inputs, self.inputs), &Device::Cpu)?;
            let product = x.matmul(&self.weight.t()?)?;
            let (storage, _) = product.storage_and_layout();
            match &*storage {
                Storage::Cpu(storage) => Ok(read(storage.as_slice()?)),
                _ => candle_core::bail!("the product is not in memory"),
            }
        };
        product().map_err(|error| Failure(first_line(&error)))
    }
}
