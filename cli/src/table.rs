//! The table of `compare` in the terminal.

use crate::compare::Row;
use crate::input::Sample;
use crate::metrics::AttentionMetrics;
use octaplex::{Backend, Role};
use std::fmt::Write;

/// Characters of a spec that are shown.
const SPEC: usize = 35;

/// Keys, then values, within 110 columns.
pub(crate) fn compare(sample: &Sample, rows: &[Row], backend: Backend) -> String {
    let mut out = format!("{}\n", sample.describe());
    if let Some(origin) = &sample.origin {
        let _ = writeln!(out, "{origin}");
    }
    let _ = writeln!(
        out,
        "bits: stored bits per value, everything counted · KL: nats, of attention weights · out err: ‖o-ô‖²/‖o‖²\n\
         times: ns per vector, one core, {}",
        backend.name()
    );
    for role in [Role::Keys, Role::Values] {
        let names: &[&str] = match role {
            Role::Keys => &["score err", "KL", "out err", "encode", "decode", "score"],
            Role::Values => &["out err", "encode", "decode", "accumulate"],
        };
        let title = if role == Role::Keys { "KEYS" } else { "VALUES" };
        let mut head = format!("{title:SPEC$} {:>6} {:>10} {:>7}", "bits", "distortion", "cosine");
        for name in names {
            let _ = write!(head, " {name:>0$}", width(name));
        }
        let _ = writeln!(out, "\n{head}\n{}", "─".repeat(head.chars().count()));
        for row in rows.iter().filter(|row| row.role == role) {
            let metrics = &row.metrics;
            let _ = write!(
                out,
                "{:SPEC$} {:>6} {:>10} {:>7.5}",
                shorten(&row.codec),
                format!("{:.3}", metrics.bits_per_value),
                number(metrics.distortion),
                metrics.cosine
            );
            let attention = |get: fn(&AttentionMetrics) -> f64| match &metrics.attention {
                Some(attention) => number(get(attention)),
                None => "-".into(),
            };
            for &name in names {
                let value = match name {
                    "score err" => attention(|attention| attention.score_error),
                    "KL" => attention(|attention| attention.kl),
                    "out err" => attention(|attention| attention.output_error),
                    "encode" => time(row.encode_ns),
                    "decode" => time(row.decode_ns),
                    "score" => time(row.score_ns),
                    _ => time(row.accumulate_ns),
                };
                let _ = write!(out, " {value:>0$}", width(name));
            }
            out.push('\n');
        }
    }
    out
}

fn width(name: &str) -> usize {
    name.len().max(6)
}

/// A spec cut to its column.
fn shorten(spec: &str) -> String {
    if spec.chars().count() <= SPEC {
        return spec.to_owned();
    }
    spec.chars().take(SPEC - 1).chain(['…']).collect()
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

/// Nanoseconds.
pub(crate) fn time(ns: f64) -> String {
    if ns < 99.95 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}
