//! Reading whole files, and writing them so that an error leaves none behind.

use crate::console::{finish, is_dash};
use crate::failure::{At, Failure, Result};
use std::fs::{self, File, OpenOptions};
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

/// Writes a file under another name and renames it; `-` is standard output, and devices are written directly.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if is_dash(path) {
        let mut out = io::stdout().lock();
        return finish(out.write_all(bytes).and_then(|()| out.flush()));
    }
    let written = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => fs::write(path, bytes),
        _ => write_renamed(path, bytes),
    };
    written.map_err(|error| at_path(path, &error))
}

fn write_renamed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    write_new(&temporary, bytes)?;
    let result = fs::rename(&temporary, path);
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}

/// Writes a file that must not be there yet.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let result = file.write_all(bytes);
    if result.is_err() {
        let _ = fs::remove_file(path);
    }
    result
}

/// A system error in plain words.
pub(crate) fn at_path(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure(match error.kind() {
        io::ErrorKind::NotFound => format!("{path}: no such file or folder"),
        io::ErrorKind::PermissionDenied => format!("{path}: permission denied"),
        io::ErrorKind::IsADirectory => format!("{path}: is a folder, not a file"),
        _ => format!("{path}: {error}"),
    })
}
