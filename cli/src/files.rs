//! Reading whole files, and writing them so that an error leaves none behind.

use crate::console::{finish, is_dash};
pub(crate) use crate::failure::at_path;
use crate::failure::{At, Result};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// The bytes of a file, or of standard input for `-`.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if is_dash(path) {
        io::stdin().lock().read_to_end(&mut bytes).at("standard input")?;
        return Ok(bytes);
    }
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|error| at_path(path, &error))?;
    Ok(bytes)
}

/// Writes a file whole or not at all; `-` is standard output, and devices are written directly.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if is_dash(path) {
        let mut out = io::stdout().lock();
        return finish(out.write_all(bytes).and_then(|()| out.flush()));
    }
    octaplex_files::write(path, |file| file.write_all(bytes)).map_err(|error| at_path(path, &error))
}

/// Whether a file can be written: to be asked before the work whose result it gets.
pub(crate) fn check(path: &Path) -> Result<()> {
    if is_dash(path) {
        return Ok(());
    }
    octaplex_files::check(path).map_err(|error| at_path(path, &error))
}
