//! Multiplies by weights that candle has no vector instructions for. Q4_1, Q5_0 and Q5_1 have a scale, perhaps a minimum,
//! and codes of four or five bits for each 32 weights. Their codes and scales are rewritten as Q4_0 or Q8_0, which candle
//! is fast at. That is exact: the rest of the minimum is multiplied by the sum of 32 activations.
//!
//! SmolLM2-135M in Q4_1, one thread, two cores with a load of 8: 5.9, 17.0 and 8.5 tokens/s, and 3.1, 3.5 and 4.2 without
//! (three pairs of runs in turns, medians of 16 tokens).

use candle_core::quantized::{GgmlDType, QMatMul, QTensor, ggml_file};
use candle_core::{Device, Module, Result, Tensor};
use half::f16;

/// Weights of a block in all of these types.
const BLOCK: usize = 32;

/// A matrix written in a faster type.
pub(super) struct Repacked {
    codes: QMatMul,
    /// The minima of weights that have some, \[block of a row]\[output]; otherwise empty.
    minima: Vec<f32>,
    outputs: usize,
}

impl Repacked {
    /// Rewrites a matrix, or returns `None` for types that have kernels.
    pub(super) fn new(weight: &QTensor) -> Result<Option<Self>> {
        let (into, size) = match weight.dtype() {
            GgmlDType::Q4_1 => (GgmlDType::Q4_0, 20),
            GgmlDType::Q5_0 => (GgmlDType::Q8_0, 22),
            GgmlDType::Q5_1 => (GgmlDType::Q8_0, 24),
            _ => return Ok(None),
        };
        let (outputs, inputs) = weight.shape().dims2()?;
        let blocks = inputs / BLOCK;
        let has_minima = weight.dtype() != GgmlDType::Q5_0;
        let mut minima = vec![0.0; if has_minima { inputs / BLOCK * outputs } else { 0 }];
        let mut codes = Vec::new();
        for (index, block) in weight.data()?.chunks_exact(size).enumerate() {
            // Scale, minimum, high bits and codes, in this order.
            let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
            let nibbles = &block[size - BLOCK / 2..];
            let minimum = match weight.dtype() {
                GgmlDType::Q4_1 => half(2) + 8.0 * half(0), // Q4_0 subtracts 8 from each code
                GgmlDType::Q5_1 => half(2),
                _ => 0.0,
            };
            if has_minima {
                minima[index % blocks * outputs + index / blocks] = minimum;
            }
            codes.extend(&block[..2]);
            if into == GgmlDType::Q4_0 {
                codes.extend(nibbles);
                continue;
            }
            let at = size - BLOCK / 2 - 4;
            let high = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
            let middle = if has_minima { 0 } else { 16 };
            codes.extend((0..BLOCK).map(|place| {
                let nibble = nibbles[place % 16] >> (place / 16 * 4) & 15;
                let code = nibble as i8 | ((high >> place & 1) << 4) as i8;
                (code - middle) as u8
            }));
        }
        let codes = ggml_file::qtensor_from_ggml(into, &codes, vec![outputs, inputs], &Device::Cpu)?;
        Ok(Some(Self { codes: QMatMul::from_qtensor(codes)?, minima, outputs }))
    }

    /// Computes x·Wᵀ.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Vec<f32>> {
        let inputs = x.dim(1)?;
        let mut product: Vec<f32> = self.codes.forward(x)?.flatten_all()?.to_vec1()?;
        let x: Vec<f32> = x.flatten_all()?.to_vec1()?;
        for (x, product) in x.chunks_exact(inputs).zip(product.chunks_exact_mut(self.outputs)) {
            let minima = self.minima.chunks_exact(self.outputs);
            for (x, minima) in x.chunks_exact(BLOCK).zip(minima) {
                let sum: f32 = x.iter().sum();
                product.iter_mut().zip(minima).for_each(|(product, minimum)| *product += sum * minimum);
            }
        }
        Ok(product)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_type_in_the_file() {
        let (outputs, inputs) = (48, 96);
        let number = |i: usize| ((i * 7919 + i * i * 31) % 2003) as f32 / 1001.0 - 0.7;
        let numbers = |count: usize| (0..count).map(number).collect::<Vec<_>>();
        let weight = Tensor::from_vec(numbers(outputs * inputs), (outputs, inputs), &Device::Cpu).unwrap();
        let x = Tensor::from_vec(numbers(2 * inputs), (2, inputs), &Device::Cpu).unwrap();
        for dtype in [GgmlDType::Q4_1, GgmlDType::Q5_0, GgmlDType::Q5_1] {
            let quantised = QTensor::quantize(&weight, dtype).unwrap();
            let decoded = quantised.dequantize(&Device::Cpu).unwrap();
            let exact = x.matmul(&decoded.t().unwrap()).unwrap().flatten_all().unwrap();
            let exact: Vec<f32> = exact.to_vec1().unwrap();
            let found = Repacked::new(&quantised).unwrap().unwrap().apply(&x).unwrap();
            assert_eq!(found.len(), exact.len());
            // Activations are rounded to 8 bits.
            let squares = |values: &[f32]| values.iter().map(|x| x * x).sum::<f32>();
            let differences: Vec<_> = found.iter().zip(&exact).map(|(a, b)| a - b).collect();
            let error = (squares(&differences) / squares(&exact)).sqrt();
            assert!(error < 0.01 && error > 0.0, "{dtype:?}: {error}");
        }
        for dtype in [GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::F16] {
            let quantised = QTensor::quantize(&weight, dtype).unwrap();
            assert!(Repacked::new(&quantised).unwrap().is_none(), "{dtype:?}");
        }
    }
}
