//! Tables in the terminal, within 80 columns, and the numbers in them.

use crate::console::{BOLD, GREEN, paint};
use std::fmt::Write;

/// The most characters of a row's name. A longer one has a line of its own.
const NAME: usize = 24;

pub(crate) struct Table {
    head: String,
    /// A second line of titles, if any.
    units: String,
    widths: Vec<usize>,
    body: String,
}

impl Table {
    /// Creates a table whose columns, after that of the rows' names, have these titles and widths.
    pub(crate) fn new(title: &str, columns: &[(&str, usize)]) -> Self {
        let widths: Vec<usize> = columns.iter().map(|(_, width)| *width).collect();
        let head = columns
            .iter()
            .fold(format!("{title:NAME$} "), |head, (name, width)| format!("{head}{name:>width$}"));
        Self { head, units: String::new(), widths, body: String::new() }
    }

    /// Creates a table with a unit below each title.
    pub(crate) fn with_units(title: &str, columns: &[(&str, &str, usize)]) -> Self {
        let names: Vec<_> = columns.iter().map(|(name, _, width)| (*name, *width)).collect();
        let units: Vec<_> = columns.iter().map(|(_, unit, width)| (*unit, *width)).collect();
        Self { units: Self::new("", &units).head, ..Self::new(title, &names) }
    }

    /// Adds a row, and marks it if it leads.
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
        let units = if self.units.is_empty() { String::new() } else { format!("{}\n", self.units) };
        format!("{}\n{units}{line}\n{}", paint(BOLD, &self.head), self.body)
    }
}

/// Formats with five decimals, the same in a whole column; with fewer for large numbers, so that seven characters suffice.
pub(crate) fn fixed(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v < 0.000_005 => "<1e-5".into(),
        v if v < 9.999_995 => format!("{v:.5}"),
        v if v < 99.999_95 => format!("{v:.4}"),
        v if v < 999.9995 => format!("{v:.3}"),
        v => format!("{v:.0}"),
    }
}

/// Formats with three significant digits.
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

/// Formats nanoseconds; a dash if nothing was timed.
pub(crate) fn time(ns: impl Into<Option<f64>>) -> String {
    match ns.into() {
        None => "-".into(),
        Some(ns) if ns < 99.95 => format!("{ns:.1}"),
        Some(ns) => format!("{ns:.0}"),
    }
}

/// Formats a number of bytes: 6.6 MB.
#[cfg(feature = "models")]
pub(crate) fn bytes(count: usize) -> String {
    let count = count as f64;
    match count {
        c if c < 1e3 => format!("{c} bytes"),
        c if c < 999_950.0 => format!("{:.1} kB", c / 1e3),
        c if c < 999_950_000.0 => format!("{:.1} MB", c / 1e6),
        c => format!("{:.2} GB", c / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::fixed;

    #[test]
    fn numbers_have_one_format() {
        let shown = [0.0, 1e-12, 6e-6, 0.009_34, 0.745, 2.49, 12.5, 123.456, 1234.5].map(fixed);
        let expected =
            ["0", "<1e-5", "0.00001", "0.00934", "0.74500", "2.49000", "12.5000", "123.456", "1234"];
        assert_eq!(shown, expected);
        assert!(shown.iter().all(|text| text.len() <= 7));
    }

    #[cfg(feature = "models")]
    #[test]
    fn bytes_are_words() {
        let shown = [0, 999, 1000, 31_234_567, 999_949_999, 999_950_000, 12_345_678_901].map(super::bytes);
        assert_eq!(shown, ["0 bytes", "999 bytes", "1.0 kB", "31.2 MB", "999.9 MB", "1.00 GB", "12.35 GB"]);
    }
}
