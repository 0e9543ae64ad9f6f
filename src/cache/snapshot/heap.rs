//! Snapshots of all layers, in memory.

use super::*;
use crate::cache::layers::{KvCache, SharedLayer};
use crate::{Backend, Error};
use alloc::vec::Vec;

pub(super) const CACHE: &[u8; 8] = b"octacach";

/// The magic and the version of a cache; its number of layers.
pub(super) fn read_cache_header(reader: &mut Reader) -> Result<usize, Error> {
    if reader.array()? != *CACHE || reader.u32()? != VERSION as usize {
        return damaged(0, "no snapshot of a cache, or one of another version");
    }
    reader.u32()
}

/// A few hundred bytes a layer must not become gigabytes.
pub(crate) fn check_memory(memory: usize, bytes: usize, at: usize) -> Result<(), Error> {
    if memory > (1 << 28) + 256 * bytes {
        return damaged(at, "exact windows, or random matrices of its codecs, far larger than the bytes");
    }
    Ok(())
}

/// What a layer takes before it has read anything.
pub(super) fn empty_bytes(layer: &SharedLayer) -> usize {
    let LayerConfig { keys, values, key_dim, value_dim, .. } = layer.config;
    layer.layout.front_bytes + keys.matrix_bytes(key_dim) + values.matrix_bytes(value_dim)
}

impl SharedLayer {
    /// The cache that a snapshot describes.
    ///
    /// # Errors
    /// As [`load`](Self::load); also for an exact window so long that memory for it would dwarf the snapshot:
    /// make that cache first, and load into it.
    pub fn from_snapshot(bytes: &[u8], backend: Backend) -> Result<Self, Error> {
        let config = read_header(&mut Reader::new(bytes))?;
        let layout = Layout::new(&config);
        if layout.front_bytes > (1 << 24) + 256 * bytes.len() {
            return damaged(12, "an exact window far larger than the snapshot");
        }
        let mut layer = Self::on_heap(&config, backend)?;
        layer.read(bytes, false)?;
        layer.read(bytes, true)?;
        Ok(layer)
    }
}

impl KvCache {
    /// A snapshot of all layers.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = CACHE.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.layers.len() as u32).to_le_bytes());
        for layer in &self.layers {
            let at = bytes.len();
            bytes.extend([0; 8]);
            layer.save(&mut |piece| bytes.extend_from_slice(piece));
            let length = (bytes.len() - at - 8) as u64;
            bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
        }
        bytes
    }

    /// The cache that a snapshot describes.
    ///
    /// # Errors
    /// [`Error::Snapshot`], also for exact windows whose memory would dwarf the snapshot; and what
    /// [`KvCache::new`] refuses.
    pub fn load(bytes: &[u8], backend: Backend) -> Result<Self, Error> {
        let mut reader = Reader::new(bytes);
        let (mut layers, mut memory) = (Vec::new(), 0);
        for _ in 0..read_cache_header(&mut reader)? {
            let length = reader.u64()?;
            let at = reader.at;
            let layer = SharedLayer::from_snapshot(reader.take(length)?, backend)?;
            memory += empty_bytes(&layer);
            check_memory(memory, bytes.len(), at)?;
            layers.push(layer);
        }
        if reader.at != bytes.len() {
            return damaged(reader.at, "bytes behind the end");
        }
        Ok(Self::from_layers(layers))
    }
}
