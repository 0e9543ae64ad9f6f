//! Checks tensors and turns them into slices for the library.

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor, bail};
use octaplex::LayerConfig;

/// A contiguous tensor on the CPU, \[batch]\[heads]\[tokens]\[width].
pub(crate) struct Rows {
    tensor: Tensor,
    shape: Shape,
}

type Shape = (usize, usize, usize, usize);

impl Rows {
    pub(crate) fn keys(config: &LayerConfig, tensor: &Tensor) -> Result<Self> {
        Self::new(tensor, check_keys(config, tensor)?)
    }

    pub(crate) fn values(config: &LayerConfig, tensor: &Tensor) -> Result<Self> {
        Self::new(tensor, check("values", tensor, Some(config.kv_heads), config.value_dim)?)
    }

    /// Converts queries of any type to f32.
    pub(crate) fn queries(config: &LayerConfig, tensor: &Tensor) -> Result<Self> {
        let shape = check("queries", tensor, None, config.key_dim)?;
        Self::new(&tensor.to_dtype(DType::F32)?, shape)
    }

    fn new(tensor: &Tensor, shape: Shape) -> Result<Self> {
        Ok(Self { tensor: tensor.contiguous()?, shape })
    }

    pub(crate) fn batch(&self) -> usize {
        self.shape.0
    }

    pub(crate) fn heads(&self) -> usize {
        self.shape.1
    }

    pub(crate) fn tokens(&self) -> usize {
        self.shape.2
    }

    /// Returns the rows of all sequences together.
    pub(crate) fn count(&self) -> usize {
        self.shape.0 * self.shape.1 * self.shape.2
    }

    /// Calls `work` with the values, without a copy.
    pub(crate) fn read<T>(&self, work: impl FnOnce(Values) -> Result<T>) -> Result<T> {
        let (storage, layout) = self.tensor.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { bail!("a tensor that is not on the CPU") };
        let (start, each) = (layout.start_offset(), self.count() / self.batch() * self.shape.3);
        work(Values { storage, start, each })
    }
}

/// Values of all sequences.
pub(crate) struct Values<'a> {
    storage: &'a CpuStorage,
    start: usize,
    each: usize,
}

impl<'a> Values<'a> {
    /// Returns the values of one sequence.
    pub(crate) fn sequence(&self, number: usize) -> octaplex::Floats<'a> {
        let start = self.start + number * self.each;
        let range = start..start + self.each;
        match self.storage {
            CpuStorage::F32(values) => octaplex::Floats::F32(&values[range]),
            CpuStorage::F16(values) => octaplex::Floats::F16(&values[range]),
            CpuStorage::BF16(values) => octaplex::Floats::Bf16(&values[range]),
            _ => octaplex::Floats::F32(&[]),
        }
    }

    /// Returns the values of one sequence of a tensor in f32.
    pub(crate) fn in_f32(&self, number: usize) -> &'a [f32] {
        match self.sequence(number) {
            octaplex::Floats::F32(values) => values,
            _ => &[],
        }
    }
}

/// Checks that keys, values and queries, if any, have the same batch and tokens, and returns both.
pub(crate) fn check_new(
    config: &LayerConfig,
    keys: &Tensor,
    values: &Tensor,
    queries: Option<&Tensor>,
) -> Result<(usize, usize)> {
    let (batch, _, tokens, _) = check_keys(config, keys)?;
    let values = check("values", values, Some(config.kv_heads), config.value_dim)?;
    if (values.0, values.2) != (batch, tokens) {
        bail!("keys of {:?} and values of {values:?} must have the same batch and tokens", keys.dims());
    }
    if let Some(queries) = queries {
        let queries = check("queries", queries, None, config.key_dim)?;
        if (queries.0, queries.2) != (batch, tokens) {
            bail!(
                "queries of {queries:?} and keys of {:?}: expected one query for each new token",
                keys.dims()
            );
        }
    }
    Ok((batch, tokens))
}

fn check_keys(config: &LayerConfig, tensor: &Tensor) -> Result<Shape> {
    check("keys", tensor, Some(config.kv_heads), config.key_dim)
}

fn check(what: &str, tensor: &Tensor, heads: Option<usize>, width: usize) -> Result<Shape> {
    check_device(what, tensor.device())?;
    if !matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16) {
        let dtype = tensor.dtype().as_str();
        bail!("{what} in {dtype}: expected f32, f16 or bf16, for example .to_dtype(DType::F32)");
    }
    match *tensor.dims() {
        [a, b, c, d] if d == width && heads.is_none_or(|heads| heads == b) && a * b * c > 0 => {
            Ok((a, b, c, d))
        }
        _ => {
            let heads = heads.map_or("query heads".into(), |heads| format!("{heads} heads"));
            bail!("{what} of shape {:?}: expected [batch, {heads}, tokens, width {width}]", tensor.dims())
        }
    }
}

fn check_device(what: &str, device: &Device) -> Result<()> {
    if !device.is_cpu() {
        let place = if device.is_cuda() { "a CUDA" } else { "another" };
        bail!("{what} on {place} device: the cache is on the CPU; copy them with .to_device(&Device::Cpu)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_devices_are_refused() {
        let cuda = Device::Cuda(candle_core::CudaDevice);
        let error = check_device("keys", &cuda).map_err(|error| error.to_string());
        let words = ["keys on a CUDA device", "to_device(&Device::Cpu)"];
        assert!(
            error.as_ref().is_err_and(|error| words.iter().all(|word| error.contains(word))),
            "{error:?}"
        );
        assert!(check_device("keys", &Device::Cpu).is_ok());
    }
}
