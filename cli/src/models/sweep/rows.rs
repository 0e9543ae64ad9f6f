//! Rows of a sweep.

use crate::models::likelihood::Outcome;
use crate::table::number;
use clap::ValueEnum;

/// What is done to keys before they are encoded.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preparation {
    /// As they are
    #[value(alias = "raw")]
    Plain,
    /// Centred page by page
    Page,
    /// Centred page by page, and balanced
    Balanced,
}

impl Preparation {
    pub(crate) const ALL: [Self; 3] = [Self::Plain, Self::Page, Self::Balanced];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Page => "page",
            Self::Balanced => "balanced",
        }
    }
}

/// One cache and what it does.
pub(crate) struct Row {
    /// As it was given.
    pub(crate) codec: String,
    pub(crate) keys: Preparation,
    pub(crate) outcome: Outcome,
}

/// The columns of a row after codec and preparation.
pub(crate) fn cells(outcome: &Outcome) -> [String; 8] {
    [
        format!("{:.3}", outcome.bits_per_value),
        format!("{:.3}", outcome.bits_per_value_pages),
        format!("{:.3}", outcome.perplexity),
        format!("{:+.2}%", 100.0 * (outcome.perplexity / outcome.perplexity_f16 - 1.0)),
        number(outcome.kl_mean),
        outcome.kl_paged.map_or("-".into(), number),
        number(outcome.kl_p99),
        format!("{:.2}%", 100.0 * outcome.top1_agreement),
    ]
}

/// Their names.
pub(crate) const COLUMNS: [&str; 8] =
    ["bits", "in pages", "perplexity", "change", "KL mean", "KL paged", "KL p99", "top-1"];
