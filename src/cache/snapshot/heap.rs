//! Snapshots of all layers in memory.

use super::*;
use crate::cache::layers::{KvCache, SharedLayer};
use crate::{Backend, Error};
use alloc::vec::Vec;

pub(super) const CACHE: &[u8; 8] = b"octacach";

/// Reads the magic and the version of a cache, and returns its number of layers.
pub(super) fn read_cache_header(reader: &mut Reader) -> Result<usize, Error> {
    if reader.array()? != *CACHE || reader.u32()? != VERSION as usize {
        return damaged(0, "this is no snapshot of a cache, or a snapshot of another version");
    }
    reader.u32()
}

/// Checks that the memory of codecs and exact windows is in proportion to the `bytes` of the snapshot at `at`.
///
/// A few hundred bytes a layer must not become gigabytes. Codecs cost time and memory when they are built, so they may
/// take 16 MiB plus 256 times the bytes. Windows are zeros until tokens are appended, so codecs and windows together may
/// take 256 MiB plus 256 times the bytes.
pub(crate) fn check_snapshot_memory(
    codecs: usize,
    windows: usize,
    bytes: usize,
    at: usize,
) -> Result<(), Error> {
    let allowed = bytes.saturating_mul(256);
    if codecs > allowed.saturating_add(1 << 24) {
        return damaged(at, "its codecs need far more memory than the bytes justify");
    }
    if codecs.saturating_add(windows) > allowed.saturating_add(1 << 28) {
        return damaged(at, "its exact windows need far more memory than the bytes justify");
    }
    Ok(())
}

/// Counts the bytes of memory of empty layers: their codecs and their exact windows.
#[derive(Default)]
pub(super) struct EmptyLayers {
    codecs: usize,
    windows: usize,
}

impl EmptyLayers {
    /// Adds a layer of this configuration, which stands at offset `at` of a snapshot of `bytes` bytes.
    pub(super) fn add(&mut self, config: &LayerConfig, bytes: usize, at: usize) -> Result<(), Error> {
        let LayerConfig { keys, values, key_dim, value_dim, .. } = *config;
        let codecs = keys.memory_bytes(key_dim).saturating_add(values.memory_bytes(value_dim));
        self.codecs = self.codecs.saturating_add(codecs).saturating_add(size_of::<SharedLayer>());
        self.windows = self.windows.saturating_add(Layout::new(config).front_bytes);
        check_snapshot_memory(self.codecs, self.windows, bytes, at)
    }
}

impl SharedLayer {
    /// Creates the layer that a snapshot describes.
    ///
    /// # Errors
    /// * Errors of [`load`](Self::load).
    /// * [`Error::Snapshot`] if an exact window or codecs need far more memory than the snapshot has bytes. In this
    ///   case, create the layer yourself, and [`load`](Self::load) the snapshot.
    /// * Errors of [`on_heap`](Self::on_heap).
    pub fn from_snapshot(bytes: &[u8], backend: Backend) -> Result<Self, Error> {
        let config = read_header(&mut Reader::new(bytes))?;
        let layout = Layout::new(&config);
        if layout.front_bytes > bytes.len().saturating_mul(256).saturating_add(1 << 24) {
            return damaged(12, "its exact window needs far more memory than the bytes justify");
        }
        EmptyLayers::default().add(&config, bytes.len(), 12)?;
        let mut layer = Self::on_heap(&config, backend)?;
        layer.read(bytes, false)?;
        layer.read(bytes, true)?;
        Ok(layer)
    }
}

impl KvCache {
    /// Returns a snapshot of all layers.
    ///
    /// If the machine has too little memory, the program ends; [`try_save`](Self::try_save) returns an error instead.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.save_into(&mut bytes, |_, _| true);
        bytes
    }

    /// Returns a snapshot of all layers, if there is memory for it.
    ///
    /// ```
    /// use octaplex::{Backend, Error, KvCache, LayerConfig};
    ///
    /// let cache = KvCache::new([LayerConfig::new(1, 64, 1000)], Backend::detect())?;
    /// assert_eq!(cache.try_save()?, cache.save());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if the machine has too little memory.
    pub fn try_save(&self) -> Result<Vec<u8>, Error> {
        let (mut bytes, mut missing) = (Vec::new(), None);
        self.save_into(&mut bytes, |bytes, more| {
            // After an error nothing is kept, so a later and smaller piece must not be added.
            if missing.is_none() && bytes.try_reserve(more).is_err() {
                missing = Some(bytes.len().saturating_add(more));
            }
            missing.is_none()
        });
        missing.map_or(Ok(bytes), |bytes| Err(Error::Memory { what: "a snapshot", bytes }))
    }

    /// Writes a snapshot of all layers. `reserve` makes space for more bytes, or refuses them.
    fn save_into(&self, bytes: &mut Vec<u8>, mut reserve: impl FnMut(&mut Vec<u8>, usize) -> bool) {
        let mut add = |bytes: &mut Vec<u8>, piece: &[u8]| {
            if reserve(bytes, piece.len()) {
                bytes.extend_from_slice(piece);
            }
        };
        add(bytes, CACHE);
        add(bytes, &VERSION.to_le_bytes());
        add(bytes, &(self.layers.len() as u32).to_le_bytes());
        for layer in &self.layers {
            let at = bytes.len();
            add(bytes, &[0; 8]);
            layer.save(&mut |piece| add(bytes, piece));
            let length = (bytes.len() - at).saturating_sub(8) as u64;
            if let Some(place) = bytes.get_mut(at..at + 8) {
                place.copy_from_slice(&length.to_le_bytes());
            }
        }
    }

    /// Creates the cache that a snapshot describes.
    ///
    /// Snapshots do not contain the number of query heads. [`set_query_heads`](Self::set_query_heads) sets it, and has
    /// an example.
    ///
    /// # Errors
    /// * [`Error::Snapshot`] for bytes that are damaged, cut off, or no snapshot of a cache.
    /// * [`Error::Snapshot`] if exact windows and codecs need far more memory than the snapshot has bytes.
    ///   In this case, create the cache yourself, and load each layer.
    /// * Errors of [`KvCache::new`].
    pub fn load(bytes: &[u8], backend: Backend) -> Result<Self, Error> {
        let mut reader = Reader::new(bytes);
        let (mut layers, mut memory) = (Vec::new(), EmptyLayers::default());
        // Check all headers before any layer is built.
        for _ in 0..read_cache_header(&mut reader)? {
            let length = reader.u64()?;
            let (at, layer) = (reader.at, reader.take(length)?);
            memory.add(&read_header(&mut Reader::new(layer))?, bytes.len(), at)?;
            layers.push(layer);
        }
        if reader.at != bytes.len() {
            return damaged(reader.at, "more bytes behind the end");
        }
        let layers = layers.into_iter().map(|layer| SharedLayer::from_snapshot(layer, backend));
        Ok(Self::from_layers(layers.collect::<Result<_, Error>>()?))
    }
}
