//! Rows of a sweep.

use crate::models::likelihood::Outcome;
use crate::table::number;
use clap::ValueEnum;

/// The preparation of keys before encoding.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preparation {
    /// Unchanged
    #[value(alias = "raw")]
    Plain,
    /// Centred page by page
    Page,
    /// Centred page by page, and balanced
    Balanced,
}

impl Preparation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Page => "page",
            Self::Balanced => "balanced",
        }
    }
}

/// One cache and its results.
pub(crate) struct Row {
    /// The codec as the user gave it.
    pub(crate) codec: String,
    pub(crate) keys: Preparation,
    pub(crate) outcome: Outcome,
}

/// The columns of a row after codec and preparation.
pub(crate) fn cells(outcome: &Outcome) -> [String; 6] {
    [
        format!("{:.3}", outcome.bits_per_value),
        format!("{:.3}", outcome.bits_per_value_pages),
        rounded(outcome.perplexity, 6, 3),
        change(100.0 * (outcome.perplexity / outcome.perplexity_f16 - 1.0)),
        number(outcome.kl_mean),
        outcome.kl_paged.map_or("-".into(), number),
    ]
}

/// Rounds to at most `decimals` decimals, and leaves out decimals beyond `digits` digits in all.
fn rounded(value: f64, digits: usize, decimals: usize) -> String {
    let whole = value.abs().max(1.0).log10() as usize + 1;
    match whole {
        0..=7 => format!("{value:.*}", decimals.min(digits.saturating_sub(whole))),
        _ => format!("{value:.0e}"),
    }
}

/// Formats percent with their sign.
fn change(percent: f64) -> String {
    let sign = if percent < 0.0 { "" } else { "+" };
    format!("{sign}{}%", rounded(percent, 5, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_any_size_fit_their_columns() {
        let shown = [21.25, 999.9994, 3952.45, 123_456.7, 9_999_999.0, 1e9].map(|value| rounded(value, 6, 3));
        assert_eq!(shown, ["21.250", "999.999", "3952.45", "123457", "9999999", "1e9"]);
        let changes = [0.0, -3.415, 14_700.123, 3e5, 1e12].map(change);
        assert_eq!(changes, ["+0.00%", "-3.42%", "+14700%", "+300000%", "+1e12%"]);
    }
}
