//! Checks the files of a command line: which files a command may write, and their names in messages.

use crate::failure::{Result, at_path, fail};
use std::fs::Metadata;
use std::path::{Path, PathBuf};

/// Returns whether a file is standard input or output.
pub(crate) fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns the name of an input for messages.
pub(crate) fn name(path: &Path) -> String {
    if is_dash(path) { "standard input".into() } else { path.display().to_string() }
}

/// Checks the files of a command before its work: outputs can be written, and none is an input or another output.
pub(crate) fn check(inputs: &[PathBuf], outputs: &[&Path]) -> Result<()> {
    for (index, output) in outputs.iter().enumerate() {
        let Some(own) = Identity::of(output, true) else { continue };
        if let Some(input) =
            inputs.iter().find(|input| Identity::of(input, false).is_some_and(|other| own.is(&other)))
        {
            let input = if is_dash(input) { name(input) } else { format!("the input {}", name(input)) };
            fail!("{}: the same file as {input}; write to another file", written(output));
        }
        if let Some(other) = outputs[..index]
            .iter()
            .find(|other| Identity::of(other, true).is_some_and(|other| own.is(&other)))
        {
            fail!(
                "{}: the same file as the output {}; write to another file",
                written(output),
                written(other)
            );
        }
    }
    for path in outputs.iter().filter(|path| !is_dash(path)) {
        octaplex_files::check(path).map_err(|error| at_path(path, &error))?;
    }
    Ok(())
}

/// Returns the name of an output for messages.
fn written(path: &Path) -> String {
    if is_dash(path) { "standard output".into() } else { path.display().to_string() }
}

/// Identifies a file, to tell whether two paths name the same one. Pipes, devices and folders have no identity.
struct Identity {
    /// The path without links; `None` for standard input and output.
    path: Option<PathBuf>,
    /// Device and number, which hard links share.
    node: Option<(u64, u64)>,
}

impl Identity {
    fn of(path: &Path, is_output: bool) -> Option<Self> {
        if is_dash(path) {
            let about = standard(is_output).filter(Metadata::is_file)?;
            return Some(Self { path: None, node: node(&about) });
        }
        match std::fs::metadata(path) {
            Ok(about) if !about.is_file() => None,
            Ok(about) => Some(Self { path: path.canonicalize().ok(), node: node(&about) }),
            // A file that does not exist yet is in an existing folder.
            Err(_) => {
                let folder =
                    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
                Some(Self { path: Some(folder.canonicalize().ok()?.join(path.file_name()?)), node: None })
            }
        }
    }

    fn is(&self, other: &Self) -> bool {
        self.path.is_some() && self.path == other.path || self.node.is_some() && self.node == other.node
    }
}

#[cfg(unix)]
fn node(about: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((about.dev(), about.ino()))
}

#[cfg(not(unix))]
fn node(_: &Metadata) -> Option<(u64, u64)> {
    None
}

/// Returns the identity of the file behind standard input or output.
#[cfg(unix)]
fn standard(is_output: bool) -> Option<Metadata> {
    use std::{fs::File, io, os::fd::AsFd};
    let (input, output) = (io::stdin(), io::stdout());
    let handle = if is_output { output.as_fd() } else { input.as_fd() };
    File::from(handle.try_clone_to_owned().ok()?).metadata().ok()
}

#[cfg(not(unix))]
fn standard(_: bool) -> Option<Metadata> {
    None
}
