//! Tables in the terminal, within 80 columns, and the numbers in them.

use crate::console::{BOLD, GREEN, paint};
use std::fmt::Write;

/// Characters of a row's name; a longer one has a line of its own.
const NAME: usize = 24;

pub(crate) struct Table {
    head: String,
    widths: Vec<usize>,
    body: String,
}

impl Table {
    /// Columns of such names and widths after that of the rows' names.
    pub(crate) fn new(title: &str, columns: &[(&str, usize)]) -> Self {
        let widths: Vec<usize> = columns.iter().map(|(_, width)| *width).collect();
        let head = columns
            .iter()
            .fold(format!("{title:NAME$} "), |head, (name, width)| format!("{head}{name:>width$}"));
        Self { head, widths, body: String::new() }
    }

    /// Adds a row; one that leads is marked.
    pub(crate) fn row(&mut self, name: &str, leads: bool, cells: &[String]) {
        let mark = if leads { "*" } else { " " };
        let fits = name.chars().count() <= NAME;
        let shown =
            if fits { format!("{name:NAME$}{mark}") } else { format!("{name} {mark}").trim_end().to_owned() };
        self.body += &if leads { paint(GREEN, &shown) } else { shown };
        if !fits {
            let _ = write!(self.body, "\n{:1$}", "", NAME + 1);
        }
        for (cell, width) in cells.iter().zip(&self.widths) {
            let _ = write!(self.body, "{cell:>width$}");
        }
        self.body.push('\n');
    }

    pub(crate) fn text(&self) -> String {
        let line = "─".repeat(self.head.chars().count());
        format!("{}\n{line}\n{}", paint(BOLD, &self.head), self.body)
    }
}

/// Three digits that count.
pub(crate) fn number(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v < 0.000_995 => format!("{v:.1e}"),
        v if v < 0.009_995 => format!("{v:.5}"),
        v if v < 0.099_95 => format!("{v:.4}"),
        v if v < 0.999_5 => format!("{v:.3}"),
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Nanoseconds; a dash where nothing was timed.
pub(crate) fn time(ns: impl Into<Option<f64>>) -> String {
    match ns.into() {
        None => "-".into(),
        Some(ns) if ns < 99.95 => format!("{ns:.1}"),
        Some(ns) => format!("{ns:.0}"),
    }
}
