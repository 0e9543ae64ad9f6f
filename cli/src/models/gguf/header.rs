//! Checks the parts of a GGUF header that candle trusts, before candle reads it.

use crate::failure::{Failure, Result, fail, shown};
use candle_core::quantized::gguf_file::Content;
use std::collections::HashSet;
use std::io::{BufReader, Read, Seek};

/// The most items in all lists of a file. Vocabularies have a quarter of a million tokens. Candle takes 32 bytes for an
/// item that is one byte in the file.
const ITEMS: u64 = 1 << 22;

/// A reader of the header that counts the remaining bytes.
struct Walk<'a, R> {
    file: &'a mut BufReader<R>,
    left: u64,
}

/// Reads the header at the start of a file, and checks version, sizes, unique names and the alignment.
pub(super) fn check<R: Read + Seek>(file: &mut BufReader<R>, length: u64) -> Result<()> {
    let mut walk = Walk { file, left: length };
    let [_magic, version] = [walk.u32()?, walk.u32()?];
    match version {
        2 | 3 => {}
        _ if matches!(version.swap_bytes(), 1..=3) => {
            fail!("a GGUF file of a big-endian machine, which is not supported")
        }
        _ => fail!("a GGUF file of version {version}; 2 and 3 are supported"),
    }
    let [tensors, entries] = [walk.u64()?, walk.u64()?];
    let (mut keys, mut names, mut items) = (HashSet::new(), HashSet::new(), 0);
    for _ in 0..entries {
        let key = walk.text()?;
        let kind = walk.u32()?;
        if key == "general.alignment" {
            // The only type that the format allows.
            let alignment = if kind == U32 { walk.u32()? } else { 0 };
            if !alignment.is_power_of_two() {
                fail!("a damaged GGUF file: general.alignment is not a power of two");
            }
        } else {
            walk.skip_value(kind, &key, &mut items)?;
        }
        if let Some(key) = keys.replace(key) {
            fail!("a damaged GGUF file: it says {} twice", shown(&key));
        }
    }
    for _ in 0..tensors {
        let name = walk.text()?;
        let dims = walk.u32()?;
        walk.skip(8 * u64::from(dims) + 4 + 8)?;
        if let Some(name) = names.replace(name) {
            fail!("a damaged GGUF file: it has the tensor {} twice", shown(&name));
        }
    }
    Ok(())
}

/// Types of values: `gguf_metadata_value_type`.
const U32: u32 = 4;
const TEXT: u32 = 8;
const LIST: u32 = 9;

/// Bytes of a value of the other types.
fn size(kind: u32, key: &str) -> Result<u64> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        _ => fail!("{} has values of type {kind}, which is not supported", shown(key)),
    }
}

impl<R: Read + Seek> Walk<'_, R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N as u64)?;
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(|_| ends())?;
        Ok(bytes)
    }

    fn take(&mut self, bytes: u64) -> Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or_else(ends)?;
        Ok(())
    }

    fn u32(&mut self) -> Result<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.take(bytes)?;
        let bytes = i64::try_from(bytes).map_err(|_| ends())?;
        self.file.seek_relative(bytes).map_err(|_| ends())
    }

    fn text(&mut self) -> Result<String> {
        let length = self.u64()?;
        self.take(length)?;
        let mut bytes = Vec::new();
        self.file.by_ref().take(length).read_to_end(&mut bytes).map_err(|_| ends())?;
        // Candle drops zeros at the end, so names that differ only in these are equal.
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    fn skip_value(&mut self, kind: u32, key: &str, items: &mut u64) -> Result<()> {
        match kind {
            TEXT => {
                let length = self.u64()?;
                self.skip(length)
            }
            LIST => {
                let (kind, count) = (self.u32()?, self.u64()?);
                *items = items.saturating_add(count);
                if *items > ITEMS {
                    fail!("a GGUF file with over {ITEMS} items in lists, {} among them", shown(key));
                }
                match kind {
                    TEXT => (0..count).try_for_each(|_| self.skip_value(TEXT, key, items)),
                    _ => self.skip(count * size(kind, key)?),
                }
            }
            _ => self.skip(size(kind, key)?),
        }
    }
}

fn ends() -> Failure {
    Failure("a truncated GGUF file: it ends within its header".into())
}

/// Checks that a file has the bytes of its tensors, and that no two tensors share any. Then reading takes no more memory
/// than the file has bytes.
pub(super) fn check_tensors(content: &Content, length: u64) -> Result<()> {
    let mut places = Vec::new();
    for (name, info) in &content.tensor_infos {
        let dims = info.shape.dims();
        let values = dims.iter().fold(1, |values: u64, &dim| values.saturating_mul(dim as u64));
        let bytes =
            (values / info.ggml_dtype.block_size() as u64).saturating_mul(info.ggml_dtype.type_size() as u64);
        let start = content.tensor_data_offset.saturating_add(info.offset);
        let end = start.saturating_add(bytes);
        if end > length {
            fail!("a truncated GGUF file: {} ends at byte {end}, the file at {length}", shown(name));
        }
        places.push((start, end, name));
    }
    places.sort_unstable();
    for pair in places.windows(2) {
        let [(_, end, first), (start, _, second)] = pair else { continue };
        if start < end {
            fail!("a damaged GGUF file: {} and {} overlap", shown(first), shown(second));
        }
    }
    Ok(())
}
