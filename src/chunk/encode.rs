//! Encodes tensors as chunks.

use super::*;
use crate::cache::encode::{Encoder, page_error};
use crate::cache::layout::Layout;
use crate::cache::storage::check_memory;
use crate::page::{Spread, counted, store_mean, tame};
use crate::rows::Floats;
use octaplex_arch::Float;

/// A layer of the tensor that is being encoded.
struct Layer<'a> {
    codec: &'a ChunkCodec,
    tensor: Floats<'a>,
    tokens: usize,
    index: usize,
}

impl ChunkCodec {
    /// Encodes a tensor of any number of tokens, in the configuration's layout.
    ///
    /// Values pass through f16, as in a cache. It takes O(values), and for each layer memory for a
    /// page of a head.
    ///
    /// # Errors
    /// [`Error::Length`] for a tensor that is empty or not of whole tokens; [`Error::Row`] for
    /// values that f16 cannot hold; [`Error::Page`] for rows that the codec cannot hold;
    /// [`Error::Memory`] if the machine has too little memory for the blob.
    pub fn encode<'a>(&self, tensor: impl Into<Floats<'a>>) -> Result<Vec<u8>, Error> {
        let tensor = tensor.into();
        let bytes = self.max_bytes(self.tokens(tensor)?);
        check_memory("a chunk", bytes)?;
        let mut blob = vec![0; bytes];
        let length = self.encode_into(tensor, &mut blob)?;
        blob.truncate(length);
        Ok(blob)
    }

    /// Encodes a tensor into the front of `blob`, and returns the number of bytes used.
    ///
    /// `blob` needs at least [`max_bytes`](Self::max_bytes) bytes. After an error it may hold
    /// anything.
    ///
    /// # Errors
    /// As [`encode`](Self::encode), and [`Error::Length`] for a `blob` that is too short.
    pub fn encode_into<'a>(&self, tensor: impl Into<Floats<'a>>, blob: &mut [u8]) -> Result<usize, Error> {
        let (tensor, config) = (tensor.into(), &self.config);
        let tokens = self.tokens(tensor)?;
        let plan = Plan::new(config, tokens);
        if blob.len() < plan.most() {
            return Err(Error::Length { what: "bytes of a blob", expected: plan.most(), actual: blob.len() });
        }
        let dtype = match tensor {
            Floats::F32(_) => Dtype::F32,
            Floats::F16(_) => Dtype::F16,
            Floats::Bf16(_) => Dtype::Bf16,
        };
        let header = plan.header(dtype, 0).len();
        let (_, most) = plan.layer_bytes();
        let encode = |(index, slot): (usize, &mut [u8])| {
            Layer { codec: self, tensor, tokens, index }.encode(&plan, slot)
        };
        let slots = &mut blob[header..header + config.layers * most];
        #[cfg(feature = "rayon")]
        let lengths: Result<Vec<usize>, Error> = {
            use rayon::prelude::*;
            slots.par_chunks_mut(most).enumerate().map(encode).collect()
        };
        #[cfg(not(feature = "rayon"))]
        let lengths: Result<Vec<usize>, Error> = slots.chunks_mut(most).enumerate().map(encode).collect();
        let mut end = 0;
        for (index, length) in lengths?.into_iter().enumerate() {
            slots.copy_within(index * most..index * most + length, end);
            end += length;
        }
        blob[..header].copy_from_slice(&plan.header(dtype, header + end));
        Ok(header + end)
    }

    /// Returns the number of tokens of a tensor.
    fn tokens(&self, tensor: Floats) -> Result<usize, Error> {
        let ChunkConfig { layers, kv_heads, head_dim, .. } = self.config;
        let all = [layers, kv_heads, head_dim].into_iter().fold(2, usize::saturating_mul);
        let (token, actual) = (all, tensor.len());
        if actual == 0 || !actual.is_multiple_of(token) {
            let what = "values of a chunk (2 · layers · tokens · heads · width), a multiple";
            return Err(Error::Length { what, expected: token, actual });
        }
        Ok(actual / token)
    }
}

impl Layer<'_> {
    /// Encodes a layer: balances and prefix centres, pages, checksum. Returns the number of bytes.
    fn encode(&self, plan: &Plan, slot: &mut [u8]) -> Result<usize, Error> {
        let (ChunkConfig { kv_heads: heads, head_dim: dim, .. }, backend) =
            (self.codec.config, self.codec.backend);
        self.check_values()?;
        let layout = plan.full();
        let values = 2 * heads * dim + layout.encode_scratch();
        check_memory("a page of a chunk", values.saturating_mul(size_of::<f32>()))?;
        let mut memory = vec![0.0; values];
        let (balances, rest) = memory.split_at_mut(heads * dim);
        let (prefixes, rows) = rest.split_at_mut(heads * dim);
        let mut end = 0;
        for head in 0..heads {
            let (balance, prefix) = (&mut balances[head * dim..][..dim], &mut prefixes[head * dim..][..dim]);
            let place = &mut slot[end..];
            end += self.decide(plan, head, rows, (balance, prefix), place)?;
        }
        for (layout, start) in plan.layouts() {
            let gather = |role, head, rows: &mut [f32]| self.gather(role, head, start, rows);
            let layer = self.codec.config.first_layer + self.index as u32;
            let codecs = self.codec.codecs(self.index);
            let encoder = Encoder { layer, layout, backend, codecs, gather: &gather, start };
            // One head at a time: threads share layers, not heads.
            encoder.encode(&mut slot[end..], balances, prefixes, &mut rows[..layout.encode_scratch()])?;
            end += layout.page_length(&slot[end..]);
        }
        let checksum = crc32fast::hash(&slot[..end]);
        slot[end..end + 4].copy_from_slice(&checksum.to_le_bytes());
        Ok(end + 4)
    }

    /// Decides the balance and the prefix centre of a head from all of its keys, and stores them.
    fn decide(
        &self,
        plan: &Plan,
        head: usize,
        rows: &mut [f32],
        (balance, prefix): (&mut [f32], &mut [f32]),
        slot: &mut [u8],
    ) -> Result<usize, Error> {
        let (backend, dim) = (self.codec.backend, balance.len());
        let layout: &Layout = plan.full();
        let (balances, centres) = (!layout.balance(0).is_empty(), !layout.prefix(0).is_empty());
        balance.fill(1.0);
        prefix.fill(0.0);
        if !balances && !centres {
            return Ok(0);
        }
        let count = counted(self.tokens, layout.page);
        let mut spread = Spread::new();
        for (layout, start) in plan.layouts() {
            let rows = &mut rows[..layout.page * dim];
            self.gather(Role::Keys, head, start, rows);
            if balances {
                spread.add(rows, dim);
            }
            if !centres || start >= count {
                continue;
            }
            tame(rows, dim);
            for row in rows.chunks_exact(dim) {
                prefix.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
        }
        let mut end = 0;
        if balances {
            spread.decide(backend, layout.balance, &[], balance);
            end = 2 * dim;
            backend.encode_floats(Float::F16, balance, &mut slot[..end]);
        }
        if centres {
            prefix.iter_mut().for_each(|sum| *sum /= count as f32);
            layout.balance.apply(prefix, balance);
            let bytes = &mut slot[end..end + 2 * dim];
            let layer = self.codec.config.first_layer + self.index as u32;
            let stored = store_mean(prefix, dim, bytes);
            stored.map_err(|error| page_error(error, layer, "keys", head, (0, None)))?;
            backend.decode_floats(Float::F16, bytes, prefix);
            end += 2 * dim;
        }
        Ok(end)
    }

    /// Reads rows of a head from token `start` on.
    fn gather(&self, role: Role, head: usize, start: usize, rows: &mut [f32]) {
        let config = &self.codec.config;
        let from = config.place(self.tokens, role, self.index, head, start);
        self.tensor.read(self.codec.backend, from, (config.row(), config.head_dim), rows);
    }

    /// Returns an error for the first value that f16 cannot hold.
    fn check_values(&self) -> Result<(), Error> {
        let (config, dim) = (&self.codec.config, self.codec.config.head_dim);
        let planes: &[Role] = match config.layout {
            ChunkLayout::Split => &[Role::Keys, Role::Values],
            ChunkLayout::Fused => &[Role::Keys],
        };
        for &plane in planes {
            let from = config.place(self.tokens, plane, self.index, 0, 0);
            let values = self.tensor.slice(from..from + self.tokens * config.row());
            if let Some((at, finite)) = values.first_unfit() {
                let within = at % config.row() % config.stride();
                let is_value = plane == Role::Values || within >= dim;
                return Err(Error::Row {
                    layer: config.first_layer + self.index as u32,
                    what: if is_value { "values" } else { "keys" },
                    head: at % config.row() / config.stride(),
                    row: at / config.row(),
                    channel: Some(within % dim),
                    finite,
                });
            }
        }
        Ok(())
    }
}
