//! The columns of `compare`: what a cell shows, its unit, and a line about it.

use crate::metrics::AttentionMetrics;
use crate::row::Row;
use crate::table::{fixed, time};
use octaplex::codecs::Role;

/// A column after the codec's name.
pub(crate) struct Column {
    pub(crate) name: &'static str,
    /// The unit, below the name.
    pub(crate) unit: &'static str,
    /// Width in characters in the terminal.
    pub(crate) width: usize,
    /// Its line in the legend.
    pub(crate) means: &'static str,
    pub(crate) cell: fn(&Row) -> String,
}

/// Bits of a value in the f16 cache, which is the baseline.
pub(crate) const F16: f64 = 16.0;

const BITS: Column = Column {
    name: "bits",
    unit: "a value",
    width: 8,
    means: "all that is stored: codes, norms, centres, headers of pages",
    cell: |row| format!("{:.3}", row.metrics.bits_per_value),
};
const SMALLER: Column = Column {
    name: "smaller",
    unit: "than f16",
    width: 9,
    means: "16 bits of f16, divided by these bits",
    cell: |row| format!("{:.1}x", F16 / row.metrics.bits_per_value),
};
const DISTORTION: Column = Column {
    name: "distort.",
    unit: "",
    width: 9,
    means: "distortion of the vectors: sum of |x-x^|^2 / sum of |x|^2",
    cell: |row| fixed(row.metrics.distortion),
};
const COSINE: Column = Column {
    name: "cosine",
    unit: "",
    width: 8,
    means: "of vectors and decoded vectors, the mean",
    cell: |row| fixed(row.metrics.cosine),
};
const SCORE_ERROR: Column = Column {
    name: "score",
    unit: "error",
    width: 8,
    means: "mean |q.k - score|, q.k not scaled",
    cell: |row| attention(row, |attention| attention.score_error),
};
const KL: Column = Column {
    name: "KL",
    unit: "nats",
    width: 8,
    means: "how far attention's weights are from the exact ones; 0: exact",
    cell: |row| attention(row, |attention| attention.kl),
};
const KL_RAW: Column = Column {
    name: "KL raw",
    unit: "nats",
    width: 8,
    means: "with keys as they are; a cache centres and balances them",
    cell: |row| row.kl_raw.map_or("-".into(), fixed),
};
const OUTPUT_ERROR: Column = Column {
    name: "output",
    unit: "error",
    width: 8,
    means: "of attention's output: sum of |o-o^|^2 / sum of |o|^2",
    cell: |row| attention(row, |attention| attention.output_error),
};
const ENCODE: Column = Column {
    name: "encode",
    unit: "ns",
    width: 7,
    means: "time to append a token, its other side in f16, on one core",
    cell: |row| time(row.times.map(|times| times.encode)),
};
const SCORE: Column = Column {
    name: "score",
    unit: "ns",
    width: 7,
    means: "time for a key, with one query, in a cache of 4,096 tokens",
    cell: |row| time(row.times.map(|times| times.read)),
};
const SUM: Column = Column {
    name: "sum",
    unit: "ns",
    width: 7,
    means: "time for a value, in one output, in a cache of 4,096 tokens",
    cell: |row| time(row.times.map(|times| times.read)),
};

fn attention(row: &Row, get: fn(&AttentionMetrics) -> f64) -> String {
    row.metrics.attention.as_ref().map_or("-".into(), |attention| fixed(get(attention)))
}

/// Returns the columns of a role: all if `wide`, else those that fit a terminal. `attends` says that there are queries.
pub(crate) fn columns(role: Role, attends: bool, is_raw: bool, wide: bool) -> Vec<Column> {
    let mut columns = vec![BITS, SMALLER];
    match (role, attends, wide) {
        (Role::Keys, true, true) => {
            columns.extend([KL, KL_RAW, OUTPUT_ERROR, SCORE_ERROR, DISTORTION, COSINE, ENCODE, SCORE]);
        }
        (Role::Keys, true, false) => columns.extend([KL, KL_RAW, OUTPUT_ERROR, ENCODE, SCORE]),
        (Role::Keys, false, _) => columns.extend([DISTORTION, COSINE, ENCODE, SCORE]),
        (Role::Values, true, true) => columns.extend([OUTPUT_ERROR, DISTORTION, COSINE, ENCODE, SUM]),
        (Role::Values, true, false) => columns.extend([OUTPUT_ERROR, DISTORTION, ENCODE, SUM]),
        (Role::Values, false, _) => columns.extend([DISTORTION, COSINE, ENCODE, SUM]),
    }
    columns.retain(|column| !(is_raw && column.name == KL_RAW.name));
    columns
}

/// Explains the mark of the Pareto front.
pub(crate) fn mark(attends: bool) -> String {
    let error = if attends { "KL or output error" } else { "distortion" };
    format!("no other row has as few bits and as small a {error}")
}

/// Returns a line for each column: its name and meaning. A column of both keys and values has one line.
pub(crate) fn legend(attends: bool, is_raw: bool, wide: bool) -> Vec<(String, &'static str)> {
    let mut lines: Vec<(String, &str)> = Vec::new();
    for role in [Role::Keys, Role::Values] {
        for column in columns(role, attends, is_raw, wide) {
            let name = format!("{} {}", column.name, column.unit).trim_end().to_owned();
            if !lines.iter().any(|(known, _)| *known == name) {
                lines.push((name, column.means));
            }
        }
    }
    lines
}

/// Returns the legend as text within a terminal's width.
pub(crate) fn legend_text(attends: bool, is_raw: bool, wide: bool) -> String {
    let line = |name: &str, means: &str| format!("{name:17} {means}\n");
    let mut text = line("*", &mark(attends));
    legend(attends, is_raw, wide).iter().for_each(|(name, means)| text += &line(name, means));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::COLUMNS;

    /// Every column is explained in a line of its own, and fits a terminal.
    #[test]
    fn every_column_has_a_line_in_the_legend() {
        for (attends, is_raw, wide) in
            [(true, false, false), (true, true, false), (true, false, true), (false, true, false)]
        {
            let text = legend_text(attends, is_raw, wide);
            for role in [Role::Keys, Role::Values] {
                let columns = columns(role, attends, is_raw, wide);
                assert_eq!(columns[0].name, "bits");
                let width: usize = columns.iter().map(|column| column.width).sum();
                assert!(wide || width + 25 <= COLUMNS, "{width}");
                for column in columns {
                    let name = format!("\n{} {}", column.name, column.unit);
                    assert!(text.contains(name.trim_end()) && text.contains(column.means), "{name}: {text}");
                }
            }
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
            assert_eq!(text.contains("KL raw"), attends && !is_raw, "{text}");
        }
    }
}
