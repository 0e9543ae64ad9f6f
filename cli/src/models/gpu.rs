//! Attention of a model on a GPU. The cache on the CPU stores the tokens, decides balances and encodes. After each block
//! its pages and exact tokens go to the GPU, which computes the attention of the block's queries.

use crate::device::Device;
use crate::failure::{At, Result};
use candle_core::{DType, Tensor};
use octaplex::gpu::Layer;
use octaplex_candle::{Attend, KvCache};

pub(crate) struct Gpu {
    layers: Vec<Layer>,
}

impl Gpu {
    /// Opens the first GPU of a vendor, with memory for these caches when they are full.
    pub(crate) fn new(device: Device, caches: &[KvCache]) -> Result<Self> {
        let gpu = device.gpu()?;
        let layer = |cache: &KvCache| Layer::new(&gpu, cache.config(), 1, 2 * cache.config().capacity);
        let layers: std::result::Result<_, _> = caches.iter().map(layer).collect();
        Ok(Self { layers: layers.at(format_args!("--device {}", device.name()))? })
    }

    /// Computes attention of queries \[1]\[heads]\[queries]\[width]; the last query is at the newest token.
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        cache: &KvCache,
        queries: &Tensor,
    ) -> candle_core::Result<Tensor> {
        let gpu = &mut self.layers[layer];
        let (_, _, count, _) = queries.dims4()?;
        let rows = queries.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        let mut output = vec![0.0; rows.len()];
        let mut attend = || {
            gpu.upload(0, &cache.sequences()[0])?;
            gpu.attend_with(&rows, &Attend::default().queries(count), &mut output)
        };
        attend().map_err(candle_core::Error::wrap)?;
        Tensor::from_vec(output, queries.shape(), queries.device())
    }
}
