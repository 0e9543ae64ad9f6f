//! Snapshots of all layers to files and sockets.

use super::heap::{CACHE, check_memory, empty_bytes, read_cache_header};
use super::*;
use crate::Backend;
use crate::cache::layers::{KvCache, SharedLayer};
use alloc::vec::Vec;
use std::io::{self, ErrorKind, Read, Write};

impl KvCache {
    /// Writes the bytes of [`save`](Self::save), a layer at a time in memory.
    ///
    /// ```
    /// # use octaplex::{Backend, KvCache, LayerConfig};
    /// # let mut cache = KvCache::new([LayerConfig::new(1, 64, 1000)], Backend::detect())?;
    /// # cache.append(0, &[0.5; 200 * 64], &[0.5; 200 * 64])?;
    /// let mut file = Vec::new(); // or a std::fs::File
    /// cache.save_to(&mut file)?;
    /// let loaded = KvCache::load_from(&mut &file[..], Backend::detect())?;
    /// assert_eq!(loaded.stats(), cache.stats());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `writer`, which then has a part of the snapshot.
    pub fn save_to(&self, writer: &mut impl Write) -> io::Result<()> {
        writer.write_all(CACHE)?;
        writer.write_all(&VERSION.to_le_bytes())?;
        writer.write_all(&(self.layers.len() as u32).to_le_bytes())?;
        let mut bytes = Vec::new();
        for layer in &self.layers {
            bytes.clear();
            layer.save(&mut |piece| bytes.extend_from_slice(piece));
            writer.write_all(&(bytes.len() as u64).to_le_bytes())?;
            writer.write_all(&bytes)?;
        }
        Ok(())
    }

    /// Reads what [`save_to`](Self::save_to) wrote, and nothing behind it, a layer at a time in memory.
    ///
    /// # Errors
    /// Those of `reader`; [`ErrorKind::InvalidData`] with the [`Error`] of [`load`](Self::load), whose offsets are
    /// counted from the start of a layer.
    pub fn load_from(reader: &mut impl Read, backend: Backend) -> io::Result<Self> {
        let refuse = |error: Error| io::Error::new(ErrorKind::InvalidData, error);
        let mut head = [0; 16];
        reader.read_exact(&mut head)?;
        let mut header = Reader::new(&head);
        let layers = read_cache_header(&mut header).map_err(refuse)?;
        let (mut found, mut memory, mut read, mut bytes) = (Vec::new(), 0, 0, Vec::new());
        for _ in 0..layers {
            let mut length = [0; 8];
            reader.read_exact(&mut length)?;
            bytes.clear();
            // As many as there are, whatever the length says.
            reader.by_ref().take(u64::from_le_bytes(length)).read_to_end(&mut bytes)?;
            let layer = SharedLayer::from_snapshot(&bytes, backend).map_err(refuse)?;
            (memory, read) = (memory + empty_bytes(&layer), read + bytes.len());
            check_memory(memory, read, 0).map_err(refuse)?;
            found.push(layer);
        }
        Ok(Self::from_layers(found))
    }
}
