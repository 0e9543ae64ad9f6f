//! Text for people: for a terminal of 80 columns, with colours where the terminal supports them.

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

/// The stream for text: standard output, or standard error if `-` sends a file to standard output.
#[derive(Clone, Copy)]
pub(crate) struct Console {
    output_is_taken: bool,
}

impl Console {
    /// Chooses the stream for a command with these input and output files. At most one output may be `-`. [`paths::check`]
    /// checks the files before the work.
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

/// Prints a text to standard output. A reader that closes the pipe early is no error.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = anstream::stdout().lock();
    finish(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Converts the result of a write: a closed pipe is no error.
pub(crate) fn finish(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).at("standard output"),
        _ => Ok(()),
    }
}

/// Returns the text in a style.
pub(crate) fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Breaks the lines of prose between words.
pub(crate) fn wrap(text: &str) -> String {
    let options = textwrap::Options::new(COLUMNS).word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}
