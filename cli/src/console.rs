//! What people read: text for a terminal of 80 columns, with colours where there is one.

use crate::failure::{At, Result, at_path, fail};
use anstyle::{AnsiColor, Style};
use std::io::{self, Write};
use std::path::Path;

/// Columns of a terminal.
pub(crate) const COLUMNS: usize = 80;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default().bold();

/// Where text goes: to standard output, or to standard error where `-` sends a file to standard output.
#[derive(Clone, Copy)]
pub(crate) struct Console {
    output_is_taken: bool,
}

impl Console {
    /// Beside these files, at most one of which may be `-`. That they can be written is checked now, before the work.
    pub(crate) fn beside(files: &[Option<&Path>]) -> Result<Self> {
        let dashes = files.iter().flatten().filter(|path| is_dash(path)).count();
        if dashes > 1 {
            fail!("two files cannot both be -, which is standard output");
        }
        for path in files.iter().flatten().filter(|path| !is_dash(path)) {
            octaplex_files::check(path).map_err(|error| at_path(path, &error))?;
        }
        Ok(Self { output_is_taken: dashes == 1 })
    }

    /// Prints a text.
    pub(crate) fn say(self, text: &str) -> Result<()> {
        match self.output_is_taken {
            true => finish(anstream::stderr().write_all(text.as_bytes())),
            false => say(text),
        }
    }
}

/// Prints a text to standard output; nothing is wrong if its reader has seen enough.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = anstream::stdout().lock();
    finish(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Says whether writing went well.
pub(crate) fn finish(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).at("standard output"),
        _ => Ok(()),
    }
}

/// Whether a file is standard input or output.
pub(crate) fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Where a page with plots is, or how to get one: nothing is written that nobody asked for.
pub(crate) fn page_note(path: Option<&Path>) -> String {
    match path {
        Some(path) => format!("Page with plots: {}", path.display()),
        None => "A page with plots: add --html report.html".into(),
    }
}

/// The text in a style.
pub(crate) fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Prose, its lines broken between words.
pub(crate) fn wrap(text: &str) -> String {
    let options = textwrap::Options::new(COLUMNS).word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}
