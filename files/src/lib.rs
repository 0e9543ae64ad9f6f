//! Writes files whole or not at all.
//!
//! [`write()`] writes under a random name in the same folder, syncs, and renames. Another program sees the old file or the new one.
//! A failure leaves the old file and no other. A killed process leaves its temporary file; the next write to this folder removes it.
//!
//! A temporary file is locked as long as its writer lives, so that no other writer removes it. This needs a file system with
//! locks: without them, temporary files of killed processes stay.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::{Builder, NamedTempFile};

/// Replaces the file at `path` by what `fill` writes, or creates it.
///
/// A link is followed: the file that it names is replaced. An existing file keeps its mode and, where the system permits it, its
/// owner. What is no file, such as a device or a pipe, is written directly.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("numbers");
/// octaplex_files::write(&path, |file| file.write_all(b"123"))?;
/// assert_eq!(std::fs::read(&path)?, b"123");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Those of the file system, and those of `fill`. The old file is then as it was.
pub fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let Target { path, existing } = Target::of(path)?;
    remove_stale(folder(&path));
    let mut temporary = match existing {
        Some(old) if !old.is_file() => return write_through(File::options().write(true).open(path)?, fill),
        Some(old) => {
            let temporary = filled(&path, true, fill)?;
            own_as(temporary.as_file(), &old);
            temporary.as_file().set_permissions(old.permissions())?;
            temporary
        }
        None => filled(&path, false, fill)?,
    };
    temporary.as_file().sync_all()?;
    patiently(|| fs::rename(temporary.path(), &path))?;
    temporary.disable_cleanup(true); // nothing has its name any more
    sync_folder(&path);
    Ok(())
}

/// Creates the file at `path` as [`write()`] does. Never replaces one.
///
/// # Errors
/// As for [`write()`], and [`ErrorKind::AlreadyExists`].
pub fn create(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    remove_stale(folder(path));
    let temporary = filled(path, false, fill)?;
    temporary.as_file().sync_all()?;
    temporary.persist_noclobber(path)?;
    sync_folder(path);
    Ok(())
}

/// Checks whether [`write()`] could write to `path` now. Call it before work whose result goes there. It leaves no trace.
///
/// # Errors
/// Those that [`write()`] would begin with: a folder that does not exist or is read-only, a file that is read-only.
pub fn check(path: &Path) -> io::Result<()> {
    let Target { path, existing } = Target::of(path)?;
    match existing {
        Some(old) if !old.is_file() => Ok(()), // opening a pipe would wait for its reader
        _ => check_folder(folder(&path)),
    }
}

/// Checks whether [`create`] could put a file into this folder now. It leaves no trace.
///
/// # Errors
/// A folder that does not exist or is read-only.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    filled(&folder.join("new"), true, |_| Ok(())).map(drop)
}

/// The file to write, with all links followed, and the metadata of an existing one.
struct Target {
    path: PathBuf,
    existing: Option<fs::Metadata>,
}

impl Target {
    fn of(path: &Path) -> io::Result<Self> {
        let mut path = path.to_owned();
        if path.as_os_str().is_empty() || path.file_name().is_none() {
            return Err(if path.is_dir() { ErrorKind::IsADirectory } else { ErrorKind::NotFound }.into());
        }
        let existing = match fs::metadata(&path) {
            Ok(found) if found.is_dir() => return Err(ErrorKind::IsADirectory.into()),
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error), // a circle of links among them, so that the loop below ends
        };
        while let Ok(link) = fs::read_link(&path) {
            path = folder(&path).join(link); // an absolute one replaces all
        }
        if existing.as_ref().is_some_and(fs::Metadata::is_file) {
            // A file that its owner has made read-only is not replaced.
            patiently(|| File::options().write(true).open(&path))?;
        }
        Ok(Self { path, existing })
    }
}

/// Tries again for half a second where Windows denies access. There, another writer or a virus scanner that has the file open
/// makes a rename fail.
fn patiently<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut wait = if cfg!(windows) { 1 } else { 512 };
    loop {
        match work() {
            Err(error) if error.kind() == ErrorKind::PermissionDenied && wait < 512 => {
                std::thread::sleep(Duration::from_millis(wait));
                wait *= 2;
            }
            result => return result,
        }
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file next to `path` by `fill`. It is removed unless it is renamed.
fn filled(
    path: &Path,
    is_private: bool,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<NamedTempFile<File>> {
    let mut code = None;
    let open = |path: &Path| open_locked(path, is_private).inspect_err(|error| code = error.raw_os_error());
    let temporary =
        Builder::new().prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM).make_in(folder(path), open);
    // Without the temporary's name, which no caller knows.
    let temporary = temporary.map_err(|error| code.map_or(error, io::Error::from_raw_os_error))?;
    write_through(temporary.as_file(), fill)?;
    Ok(temporary)
}

fn write_through(file: impl Write, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    let result = fill(&mut file);
    if result.is_err() {
        let _ = file.into_parts(); // without writing the rest
        return result;
    }
    file.flush()
}

/// Names of temporary files: the prefix, random letters and digits, the suffix.
const PREFIX: &str = ".octaplex-";
const SUFFIX: &str = ".tmp";
const RANDOM: usize = 6;

/// Opens a temporary file, and locks it until it is closed.
fn open_locked(path: &Path, is_private: bool) -> io::Result<File> {
    let file = new_file(is_private).open(path)?;
    // A file system without locks is no reason not to write.
    let _ = file.lock();
    // Another writer may have found it before the lock, and removed it.
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(file),
        Err(_) => Err(ErrorKind::AlreadyExists.into()), // tempfile then takes another name
    }
}

/// Removes the temporary files of killed processes. What cannot be removed stays.
fn remove_stale(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !is_temporary(&entry.file_name()) {
            continue;
        }
        // Locks on network file systems need a file that is open for writing.
        let Ok(file) = File::options().read(true).write(true).open(entry.path()) else { continue };
        if file.try_lock().is_ok() {
            let _ = fs::remove_file(entry.path()); // before the lock ends
        }
    }
}

/// Returns whether a file has a name of [`filled`].
fn is_temporary(name: &OsStr) -> bool {
    let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
    random.is_some_and(|random| {
        random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Opens a file that must not exist: with the mode that any new file gets, or for its owner alone.
fn new_file(#[cfg_attr(not(unix), allow(unused_variables))] is_private: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, if is_private { 0o600 } else { 0o666 });
    options
}

/// Gives the file to the owner of the old one, where the system permits it.
#[cfg(unix)]
fn own_as(file: &File, old: &fs::Metadata) {
    use std::os::unix::fs::{MetadataExt, fchown};
    let _ = fchown(file, Some(old.uid()), Some(old.gid()));
}

#[cfg(not(unix))]
fn own_as(_: &File, _: &fs::Metadata) {}

/// Makes the rename last. Some file systems cannot sync a folder; the file is complete all the same.
#[cfg(unix)]
fn sync_folder(path: &Path) {
    let _ = File::open(folder(path)).and_then(|folder| folder.sync_all());
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) {}

#[cfg(test)]
mod tests;
