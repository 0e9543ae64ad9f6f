//! The error type: one line that the user sees.

use octaplex::Error;
use std::fmt::Display;
use std::io;
use std::path::Path;

/// A message in plain words, without a full stop.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Fails with a formatted message.
macro_rules! fail {
    ($($part:tt)*) => { return Err($crate::failure::Failure(format!($($part)*))) };
}
pub(crate) use fail;

/// Adds the place of an error to its message.
pub(crate) trait At<T> {
    /// Puts `place: ` before the error.
    fn at(self, place: impl Display) -> Result<T>;
}

impl<T, E: Display> At<T> for std::result::Result<T, E> {
    fn at(self, place: impl Display) -> Result<T> {
        self.map_err(|error| Failure(format!("{place}: {error}")))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The most characters of a text from a file that a message shows.
const SHOWN: usize = 100;

/// Cuts and escapes text from a file for a message, so that no file fills a terminal or controls it.
pub(crate) fn shown(text: &str) -> String {
    cut(text, SHOWN)
}

/// Returns the first `most` characters, and escapes those that a terminal would not print.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let mut characters = text.chars();
    let mut cut = String::new();
    for character in characters.by_ref().take(most) {
        match character {
            '"' | '\'' | '\\' => cut.push(character),
            _ => cut.extend(character.escape_debug()),
        }
    }
    if characters.next().is_some() {
        cut.push('…');
    }
    cut
}

/// The first line of an error of another crate, without its trace; it may quote a file at any length.
pub(crate) fn first_line(error: &impl Display) -> String {
    cut(error.to_string().lines().next().unwrap_or(""), 2 * SHOWN)
}

/// Returns the same error for a slice that starts at `row`, with the row and the column of a non-finite value.
pub(crate) fn in_rows(error: Error, row: usize, dim: usize) -> Failure {
    Failure(match error {
        Error::NonFinite { index } => {
            format!("row {}, column {} is NaN or infinite", row + index / dim, index % dim)
        }
        Error::Corrupt { block } => Error::Corrupt { block: row + block }.to_string(),
        other => other.to_string(),
    })
}

/// Returns a system error in plain words.
pub(crate) fn at_path(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure(match error.kind() {
        io::ErrorKind::NotFound => format!("{path}: no such file or folder"),
        io::ErrorKind::PermissionDenied => format!("{path}: permission denied"),
        io::ErrorKind::IsADirectory => format!("{path}: is a folder, not a file"),
        _ => format!("{path}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn what_a_file_says_is_short_and_harmless() {
        assert_eq!(shown("llama \"é日\" 'x' \\"), "llama \"é日\" 'x' \\");
        assert_eq!(
            shown("\u{1b}[2J\u{1b}]0;title\u{7}\r\n\u{9b}m\u{202e}"),
            "\\u{1b}[2J\\u{1b}]0;title\\u{7}\\r\\n\\u{9b}m\\u{202e}"
        );
        let long = "ä".repeat(100);
        assert_eq!(shown(&long), long);
        assert_eq!(shown(&format!("{long}b")), format!("{long}…"));
    }
}
