//! Reads whole files up to a limit, and writes files so that an error leaves no part behind.

use crate::console::finish;
pub(crate) use crate::failure::at_path;
use crate::failure::{Failure, Result, fail};
use crate::paths::is_dash;
pub(crate) use crate::paths::{check, name};
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::path::Path;

/// The most bytes of a file that need not be regular: standard input, a pipe, a text.
pub(crate) const MOST: u64 = 1 << 30;

/// Reads a file of any size, or up to [`MOST`] bytes of a pipe or of standard input (`-`), which may never end.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    if is_dash(path) {
        return take(path, io::stdin().lock(), 0, MOST);
    }
    let (file, about) = open(path, is_pipe)?;
    take(path, file, about.len(), if about.is_file() { u64::MAX } else { MOST })
}

/// Reads a regular file of at most `most` bytes.
pub(crate) fn read_regular(path: &Path, most: u64) -> Result<Vec<u8>> {
    let (file, about) = open_regular(path)?;
    take(path, file, about.len(), most)
}

/// Opens a regular file.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    open(path, |_| false)
}

/// Opens a regular file, or one of another kind that `is_other` accepts. Others are not opened, because that may block.
fn open(path: &Path, is_other: fn(&Metadata) -> bool) -> Result<(File, Metadata)> {
    let opened = || {
        let about = std::fs::metadata(path)?;
        if about.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(if about.is_file() || is_other(&about) { Some((File::open(path)?, about)) } else { None })
    };
    match opened() {
        Ok(Some(found)) => Ok(found),
        Ok(None) => fail!("{}: not a regular file, which is needed here", path.display()),
        Err(error) => Err(at_path(path, &error)),
    }
}

#[cfg(unix)]
fn is_pipe(about: &Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&about.file_type())
}

#[cfg(not(unix))]
fn is_pipe(_: &Metadata) -> bool {
    false
}

/// Reads an open file to its end. `length` is how many bytes the system says it has, and `most` how many it may have.
fn take(path: &Path, from: impl Read, length: u64, most: u64) -> Result<Vec<u8>> {
    let name = name(path);
    if length > most {
        fail!("{name}: {length} bytes, but at most {most} are read");
    }
    let mut bytes = Vec::new();
    let room = usize::try_from(length).ok().map(|length| bytes.try_reserve_exact(length));
    if !matches!(room, Some(Ok(()))) {
        fail!("{name}: {length} bytes, more than there is memory for");
    }
    from.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| match is_dash(path) {
        true => Failure(format!("{name}: {error}")),
        false => at_path(path, &error),
    })?;
    if bytes.len() as u64 > most {
        fail!("{name}: more than {most} bytes, which is the most that is read here");
    }
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

/// Reads a text in UTF-8.
#[allow(dead_code)] // for commands that run models
pub(crate) fn text(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Failure(format!("{}: not text in UTF-8", name(path))))
}
