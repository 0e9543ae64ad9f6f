//! What people read: text for a terminal of 80 columns, with colours where there is one.

use crate::failure::{At, Result, fail};
use crate::paths;
pub(crate) use crate::paths::is_dash;
use anstyle::{AnsiColor, Style};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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
    /// For a command that reads and writes these files. At most one output may be `-`. [`paths::check`] checks them before the
    /// work.
    pub(crate) fn beside(inputs: &[PathBuf], outputs: &[Option<&Path>]) -> Result<Self> {
        let outputs: Vec<&Path> = outputs.iter().copied().flatten().collect();
        let dashes = outputs.iter().filter(|path| is_dash(path)).count();
        if dashes > 1 {
            fail!("two files cannot both be -, which is standard output");
        }
        paths::check(inputs, &outputs)?;
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
