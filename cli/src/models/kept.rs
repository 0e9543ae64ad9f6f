//! Rows of JSON in a file. Each is written at once, so that long work continues after an interruption.

use crate::failure::{At, Failure, Result, first_line};
use crate::files;
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The rows of a file.
pub(crate) struct Kept {
    path: PathBuf,
    rows: Vec<Value>,
}

impl Kept {
    /// The stored rows; none without a file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut kept = Self { path: path.to_owned(), rows: Vec::new() };
        if !path.exists() {
            return Ok(kept);
        }
        let text = String::from_utf8_lossy(&files::read_regular(path, files::MOST)?).into_owned();
        let count = text.lines().count();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match serde_json::from_str(line) {
                Ok(row) => kept.rows.push(row),
                // The last line of an interrupted run may be a part.
                Err(_) if number + 1 == count && !text.ends_with('\n') => {}
                Err(error) => {
                    let (path, why) = (path.display(), first_line(&error));
                    return Err(Failure(format!("{path}, line {}: {why}", number + 1)));
                }
            }
        }
        Ok(kept)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Value> {
        self.rows.iter()
    }

    /// Adds a row to the file.
    pub(crate) fn add(&mut self, row: Value) -> Result<()> {
        let (path, place) = (&self.path, self.path.display());
        let before = if path.exists() { files::read_regular(path, files::MOST)? } else { Vec::new() };
        let (whole, last) =
            before.split_at(before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
        let start = match serde_json::from_slice::<Value>(last) {
            Ok(_) => "\n",
            // An interrupted run leaves a part of a line.
            Err(_) => {
                if !last.is_empty() {
                    files::write(path, whole)?;
                }
                ""
            }
        };
        let mut file = OpenOptions::new().create(true).append(true).open(path).at(&place)?;
        file.write_all(format!("{start}{row}\n").as_bytes()).at(&place)?;
        self.rows.push(row);
        Ok(())
    }
}

/// Identifies a text by the FNV-1a hash of its tokens.
pub(crate) fn hash(tokens: &[u32]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in tokens.iter().flat_map(|token| token.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}
