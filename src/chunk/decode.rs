//! Decodes chunks into tensors.

use super::blob::Section;
use super::*;
use crate::cache::decode::Decoder;
use crate::cache::snapshot::damaged;
use crate::rows::FloatsMut;
use half::{bf16, f16};
use octaplex_arch::Float;

/// A type of tensor values.
trait Value: Send + Sized {
    fn write(backend: Kernels, x: &[f32], out: &mut [Self]);
}

impl Value for f32 {
    fn write(_: Kernels, x: &[f32], out: &mut [Self]) {
        out.copy_from_slice(x);
    }
}

/// Writes rows as values of two bytes.
fn write_halves<T>(backend: Kernels, format: Float, x: &[f32], out: &mut [T], from: fn([u8; 2]) -> T) {
    let mut bytes = [0; 256];
    for (x, out) in x.chunks(128).zip(out.chunks_mut(128)) {
        let bytes = &mut bytes[..2 * x.len()];
        backend.encode_floats(format, x, bytes);
        out.iter_mut().zip(bytes.as_chunks::<2>().0).for_each(|(slot, bytes)| *slot = from(*bytes));
    }
}

impl Value for f16 {
    fn write(backend: Kernels, x: &[f32], out: &mut [Self]) {
        write_halves(backend, Float::F16, x, out, f16::from_le_bytes);
    }
}

impl Value for bf16 {
    fn write(backend: Kernels, x: &[f32], out: &mut [Self]) {
        write_halves(backend, Float::Bf16, x, out, bf16::from_le_bytes);
    }
}

/// A layer of a tensor: its keys and its values, or both in the first slice if they are fused.
struct Target<'a, T>([&'a mut [T]; 2]);

/// The largest finite f16, which is the largest magnitude a cache holds.
const LARGEST: f32 = 65504.0;

/// Clamps decoded rows to the range of f16: rounding in a codec may exceed the largest input.
pub(super) fn clamp(rows: &mut [f32]) {
    rows.iter_mut().for_each(|x| *x = x.clamp(-LARGEST, LARGEST));
}

impl ChunkCodec {
    /// Decodes a blob into a tensor of [`values`](ChunkInfo::values) values, in the configuration's
    /// layout.
    ///
    /// The tensor's type may differ from the one that was encoded. Any bytes are allowed, and
    /// results are finite and within the range of f16. It takes O(values), and for each layer
    /// memory for a page of a head.
    ///
    /// # Errors
    /// * [`Error::Snapshot`] for bytes that are no chunk of this configuration, damaged or cut off,
    ///   and [`Error::Length`]. The tensor is then as it was.
    /// * [`Error::Corrupt`] for blocks that no codec wrote although all checksums are right, which
    ///   takes intent. The block is counted within a page of a head. Part of the tensor may be
    ///   written.
    pub fn decode<'a>(&self, blob: &[u8], tensor: impl Into<FloatsMut<'a>>) -> Result<(), Error> {
        let info = ChunkInfo::parse(blob)?;
        if info.config != self.config {
            return damaged(
                12,
                "the chunk has another configuration: create the codec that its header names",
            );
        }
        match tensor.into() {
            FloatsMut::F32(values) => self.decode_values(blob, &info, values),
            FloatsMut::F16(values) => self.decode_values(blob, &info, values),
            FloatsMut::Bf16(values) => self.decode_values(blob, &info, values),
        }
    }

    fn decode_values<T: Value>(&self, blob: &[u8], info: &ChunkInfo, values: &mut [T]) -> Result<(), Error> {
        Error::expect_length("values of a chunk", info.values(), values.len())?;
        let plan = Plan::new(&self.config, info.tokens);
        let sections = plan.sections(blob, info)?;
        let (keys, others) = match self.config.layout {
            ChunkLayout::Split => values.split_at_mut(info.values() / 2),
            ChunkLayout::Fused => (values, &mut [][..]),
        };
        let layer = info.tokens * self.config.row();
        let others = others.chunks_mut(layer).map(Some).chain(core::iter::repeat_with(|| None));
        let targets = keys
            .chunks_mut(layer)
            .zip(others)
            .map(|(keys, values)| Target([keys, values.unwrap_or_default()]));
        let jobs = sections.iter().zip(targets).enumerate();
        let decode = |(index, (section, target))| self.decode_layer(index, &plan, section, target);
        #[cfg(feature = "rayon")]
        {
            use rayon::prelude::*;
            let jobs: Vec<_> = jobs.collect();
            jobs.into_par_iter().try_for_each(decode)
        }
        #[cfg(not(feature = "rayon"))]
        {
            let mut jobs = jobs;
            jobs.try_for_each(decode)
        }
    }

    fn decode_layer<T: Value>(
        &self,
        index: usize,
        plan: &Plan,
        section: &Section,
        mut target: Target<T>,
    ) -> Result<(), Error> {
        let (config, backend) = (&self.config, self.backend);
        let (heads, dim) = (config.kv_heads, config.head_dim);
        let mut memory = vec![0.0; 2 * config.page * dim];
        let values_at = if config.layout == ChunkLayout::Fused { dim } else { 0 };
        for ((layout, start), page) in plan.layouts().zip(&section.pages) {
            let decoder = Decoder { layout, backend, codecs: self.codecs(index) };
            let (keys, values) = memory[..2 * layout.page * dim].split_at_mut(layout.page * dim);
            for head in 0..heads {
                let decided = section.of_head(layout, head);
                decoder.decode(&layout.head(page, head), decided, 0..layout.page, keys, values)?;
                clamp(keys);
                clamp(values);
                let rows = keys.chunks_exact(dim).zip(values.chunks_exact(dim));
                for (token, (key, value)) in rows.enumerate() {
                    let at = (start + token) * config.row() + head * config.stride();
                    let [keys, values] = &mut target.0;
                    T::write(backend, key, &mut keys[at..at + dim]);
                    let values = if values.is_empty() { keys } else { values };
                    T::write(backend, value, &mut values[at + values_at..][..dim]);
                }
            }
        }
        Ok(())
    }
}
