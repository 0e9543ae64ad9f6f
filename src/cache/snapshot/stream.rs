//! Snapshots of all layers to files and sockets.

use super::heap::{CACHE, EmptyLayers, read_cache_header};
use super::*;
use crate::Backend;
use crate::cache::layers::{KvCache, SharedLayer};
use alloc::vec::Vec;
use std::io::{self, ErrorKind, Read, Write};

impl KvCache {
    /// Writes a snapshot of all layers to a writer. It needs memory for one layer's snapshot at a time.
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
    /// Errors of `writer`, and [`ErrorKind::OutOfMemory`]. The writer has then received a part of the snapshot.
    pub fn save_to(&self, writer: &mut impl Write) -> io::Result<()> {
        writer.write_all(CACHE)?;
        writer.write_all(&VERSION.to_le_bytes())?;
        writer.write_all(&(self.layers.len() as u32).to_le_bytes())?;
        let mut bytes = Vec::new();
        for layer in &self.layers {
            bytes.clear();
            let mut missing = false;
            layer.save(&mut |piece| {
                missing |= bytes.try_reserve(piece.len()).is_err();
                if !missing {
                    bytes.extend_from_slice(piece);
                }
            });
            if missing {
                return Err(ErrorKind::OutOfMemory.into());
            }
            writer.write_all(&(bytes.len() as u64).to_le_bytes())?;
            writer.write_all(&bytes)?;
        }
        Ok(())
    }

    /// Creates the cache that a reader's snapshot describes. [`save_to`](Self::save_to) has an example.
    ///
    /// It reads no byte after the snapshot, and needs memory for one layer's snapshot at a time. Each section is
    /// checked before the next one is read. So a wrong length is an error after some kilobytes.
    ///
    /// # Errors
    /// * Errors of `reader`.
    /// * [`ErrorKind::InvalidData`] with an [`Error`] of [`load`](Self::load). Its offsets are counted from the start
    ///   of a layer.
    pub fn load_from(reader: &mut impl Read, backend: Backend) -> io::Result<Self> {
        let mut head = [0; 16];
        reader.read_exact(&mut head)?;
        let layers = read_cache_header(&mut Reader::new(&head)).map_err(refused)?;
        let (mut found, mut memory, mut read) = (Vec::new(), EmptyLayers::default(), 0);
        for _ in 0..layers {
            let mut length = [0; 8];
            reader.read_exact(&mut length)?;
            let length = Reader::new(&length).u64().map_err(refused)?;
            let mut incoming = Incoming { reader: &mut *reader, length, bytes: Vec::new() };
            let config = incoming.read_layer()?;
            read += length;
            memory.add(&config, read, 0).map_err(refused)?;
            found.push(SharedLayer::from_snapshot(&incoming.bytes, backend).map_err(refused)?);
        }
        Ok(Self::from_layers(found))
    }
}

fn refused(error: Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// The largest number of bytes of a layer's header: all its numbers, and two specs of the longest text that
/// [`Reader::spec`] reads.
const HEADER: usize = 12 + 52 + 2 * (4 + 4096) + 60 + 8 + CRC;

/// Bytes of a checksum.
const CRC: usize = 4;

/// A layer's snapshot that is being read.
struct Incoming<'a, R> {
    reader: &'a mut R,
    /// Bytes of the snapshot, according to the length before it.
    length: usize,
    /// The bytes that have been read.
    bytes: Vec<u8>,
}

impl<R: Read> Incoming<'_, R> {
    /// Reads the snapshot section by section, and stops at the first damaged one. Returns the configuration.
    fn read_layer(&mut self) -> io::Result<LayerConfig> {
        self.reader.by_ref().take(self.length.min(HEADER) as u64).read_to_end(&mut self.bytes)?;
        let mut header = Reader::new(&self.bytes);
        let (config, state, pages) = read_outline(&mut header).map_err(refused)?;
        let (layout, mut at) = (Layout::new(&config), header.at);
        let mut front = 0;
        front_pieces(&layout, &state, |piece, _| front += piece.len());
        at = self.section(at, front)?;
        for _ in 0..pages {
            self.until(at.saturating_add(layout.header))?;
            let page = layout.page_length(&self.bytes[at..]);
            if page > layout.page_bytes {
                return damaged(at, "the lengths of the page do not add up").map_err(refused);
            }
            at = self.section(at, page)?;
        }
        if at != self.length {
            return damaged(at, "more bytes behind the end").map_err(refused);
        }
        Ok(config)
    }

    /// Reads until there are `end` bytes.
    fn until(&mut self, end: usize) -> io::Result<()> {
        let missing = end.min(self.length).saturating_sub(self.bytes.len());
        self.reader.by_ref().take(missing as u64).read_to_end(&mut self.bytes)?;
        if self.bytes.len() < end {
            return damaged(self.bytes.len(), "the bytes are cut off here").map_err(refused);
        }
        Ok(())
    }

    /// Reads a section of `length` bytes at `at` and its checksum. Returns where the next section begins.
    fn section(&mut self, at: usize, length: usize) -> io::Result<usize> {
        let end = at.saturating_add(length).saturating_add(CRC);
        self.until(end)?;
        let mut section = Reader::new(&self.bytes[at..end]);
        section.take(length).and_then(|_| section.checksum()).map_err(refused)?;
        Ok(end)
    }
}
