//! Reads the header of a GGUF file, which may hold anything: its short entries are kept, lists of tokens are skipped.

use crate::failure::{Failure, Result, fail, shown};
use std::collections::{HashMap, HashSet};
use std::io::{BufReader, Read, Seek};

/// The most items in all lists of a file. Vocabularies have a quarter of a million tokens. Candle takes 32 bytes for an
/// item that is one byte in the file.
const ITEMS: u64 = 1 << 22;

/// The longest text and list that [`Header`] keeps. Lists of this length have an item for each layer.
const SHORT: u64 = 4096;

/// The short entries of a header.
pub(crate) struct Header(HashMap<String, Entry>);

/// An entry.
enum Entry {
    Text(String),
    Count(u64),
    Counts(Vec<u64>),
    /// Any other one, which is not kept.
    Other,
}

impl Header {
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.0.get(key)? {
            Entry::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns an integer that is not negative, or a boolean as 0 or 1, or a list of these. `Err` for any other entry.
    pub(crate) fn counts(&self, key: &str) -> Result<Option<&[u64]>> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Entry::Count(count)) => Ok(Some(std::slice::from_ref(count))),
            Some(Entry::Counts(counts)) => Ok(Some(counts)),
            Some(_) => fail!("{} is not a count", shown(key)),
        }
    }
}

/// A reader of the header that counts the remaining bytes.
struct Walk<'a, R> {
    file: &'a mut BufReader<R>,
    left: u64,
}

/// Reads the header at the start of a file of `length` bytes, and checks version, sizes, unique names and the alignment.
pub(crate) fn read<R: Read + Seek>(file: &mut BufReader<R>, length: u64) -> Result<Header> {
    let mut walk = Walk { file, left: length };
    if walk.bytes().ok() != Some(*b"GGUF") {
        fail!("not a GGUF file");
    }
    match walk.u32()? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 1..=3) => {
            fail!("a GGUF file of a big-endian machine, which is not supported")
        }
        version => fail!("a GGUF file of version {version}; 2 and 3 are supported"),
    }
    let [tensors, entries] = [walk.u64()?, walk.u64()?];
    let (mut kept, mut names, mut items) = (HashMap::new(), HashSet::new(), 0);
    for _ in 0..entries {
        let key = walk.text()?;
        let kind = walk.u32()?;
        let entry = walk.entry(kind, &key, &mut items)?;
        if key == "general.alignment" {
            // The only type that the format allows.
            let is_sound =
                kind == U32 && matches!(entry, Entry::Count(alignment) if alignment.is_power_of_two());
            if !is_sound {
                fail!("a damaged GGUF file: general.alignment is not a power of two");
            }
        }
        if kept.contains_key(&key) {
            fail!("a damaged GGUF file: it says {} twice", shown(&key));
        }
        kept.insert(key, entry);
    }
    for _ in 0..tensors {
        let name = walk.text()?;
        let dims = walk.u32()?;
        walk.skip(8 * u64::from(dims) + 4 + 8)?;
        if let Some(name) = names.replace(name) {
            fail!("a damaged GGUF file: it has the tensor {} twice", shown(&name));
        }
    }
    Ok(Header(kept))
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
        self.text_of(length)
    }

    fn text_of(&mut self, length: u64) -> Result<String> {
        self.take(length)?;
        let mut bytes = Vec::new();
        self.file.by_ref().take(length).read_to_end(&mut bytes).map_err(|_| ends())?;
        // Candle drops zeros at the end, so names that differ only in these are equal.
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// Reads an integer of any width, or a boolean; `None` for a float or a negative number.
    fn count(&mut self, kind: u32, key: &str) -> Result<Option<u64>> {
        let size = size(kind, key)?;
        self.take(size)?;
        let (mut bytes, size) = ([0; 8], size as usize);
        self.file.read_exact(&mut bytes[..size]).map_err(|_| ends())?;
        let is_float = matches!(kind, 6 | 12);
        let is_negative = matches!(kind, 1 | 3 | 5 | 11) && bytes[size - 1] >= 0x80;
        Ok((!is_float && !is_negative).then(|| u64::from_le_bytes(bytes)))
    }

    fn entry(&mut self, kind: u32, key: &str, items: &mut u64) -> Result<Entry> {
        match kind {
            TEXT => match self.u64()? {
                length @ ..=SHORT => self.text_of(length).map(Entry::Text),
                length => self.skip(length).map(|()| Entry::Other),
            },
            LIST => {
                let (kind, count) = (self.u32()?, self.u64()?);
                *items = items.saturating_add(count);
                if *items > ITEMS {
                    fail!("a GGUF file with over {ITEMS} items in lists, {} among them", shown(key));
                }
                if kind == TEXT {
                    for _ in 0..count {
                        let length = self.u64()?;
                        self.skip(length)?;
                    }
                    return Ok(Entry::Other);
                }
                if count > SHORT {
                    return self.skip(count * size(kind, key)?).map(|()| Entry::Other);
                }
                // Read all items, also those behind one that is no count.
                let items = (0..count).map(|_| self.count(kind, key)).collect::<Result<Vec<_>>>()?;
                Ok(items.into_iter().collect::<Option<_>>().map_or(Entry::Other, Entry::Counts))
            }
            _ => Ok(self.count(kind, key)?.map_or(Entry::Other, Entry::Count)),
        }
    }
}

fn ends() -> Failure {
    Failure("a truncated GGUF file: it ends within its header".into())
}
