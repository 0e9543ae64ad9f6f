//! The page of a sweep: plots and tables for each preparation of keys, nothing loaded from elsewhere.

use super::rows::{COLUMNS, Preparation, Row, cells};
use crate::models::likelihood::Outcome;
use crate::plot::{Chart, Point, escape, shape, svg};
use crate::rates::IN_PAGES;
use crate::series;
use crate::table::number;
use std::fmt::Write;

const STYLE: &str = include_str!("../../report.css");

/// Rates that the plots show; wider formats are in the tables.
const WIDEST: f64 = 10.0;

/// Plots show perplexities up to this multiple of the f16 cache's, and arrows for the others.
const USEFUL: f64 = 1.25;

fn title(keys: Preparation) -> &'static str {
    match keys {
        Preparation::Plain => "Keys as they are",
        Preparation::Page => "Keys centred page by page",
        Preparation::Balanced => "Keys centred page by page and balanced",
    }
}

/// The whole page.
pub(super) fn page(model: &str, about: &str, rows: &[Row]) -> String {
    let plotted = rows.iter().filter(|row| is_plotted(row));
    let legend = series::legend(plotted.map(|row| &*row.codec));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>octaplex: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>A model on compressed keys and values</h1>\n<p>{about}</p>\n<div class=\"legend\">",
        title = escape(model),
        about = escape(about).replace('\n', "<br>"),
    );
    for (series, name) in legend {
        let mark = shape(series, 8.0, 8.0);
        let _ = write!(
            out,
            "<span><svg viewBox=\"0 0 16 16\" class=\"s{series}\">{mark}</svg>{}</span>",
            escape(&name)
        );
    }
    out.push_str("</div>\n");
    for keys in Preparation::ALL {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.keys == keys).collect();
        if !rows.is_empty() {
            section(&mut out, keys, &rows);
        }
    }
    let _ = write!(
        out,
        "<footer>\n<p><b>Bits</b> count everything stored, exact tokens, centres and balance included; <b>in pages</b> \
         leaves out the exact tokens, as a long context would. <b>KL</b> is the divergence of the next token's \
         distribution from that with the f16 cache, in nats: mean over all positions, mean over those that read pages \
         (<b>paged</b>: the others see exact tokens only, and dilute it), 99th percentile; <b>top-1</b> the share of positions \
         with the same likeliest token. Curves join the rates of a codec; the broad line joins the caches that no other beats at \
         their rate.</p>\n<p>octaplex {}</p>\n</footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
    );
    out
}

/// Returns plots and table of one preparation of keys.
fn section(out: &mut String, keys: Preparation, rows: &[&Row]) {
    let _ = write!(out, "<h2>{}</h2>\n<div class=\"charts\">\n", title(keys));
    let f16 = rows.first().map(|row| row.outcome.perplexity_f16);
    let mut chart = |title: &str,
                     y_axis: &str,
                     level: Option<(f64, &str)>,
                     value: &dyn Fn(&Outcome) -> f64| {
        let points =
            rows.iter().filter(|row| is_plotted(row)).map(|row| point(row, value(&row.outcome))).collect();
        let top = level.map_or(f64::INFINITY, |(value, _)| value * USEFUL);
        let svg = svg(&Chart { title, x_axis: IN_PAGES, y_axis, points, bound: false, level, top });
        if !svg.is_empty() {
            let _ = write!(out, "<figure><h3>{title}</h3>\n{svg}</figure>\n");
        }
    };
    let level = f16.map(|perplexity| (perplexity, "f16 cache"));
    chart("Rate and next-token distribution", "KL divergence where pages are read, nats", None, &|outcome| {
        outcome.kl_paged.unwrap_or(outcome.kl_mean)
    });
    let off = |row: &&Row| is_plotted(row) && row.outcome.perplexity > row.outcome.perplexity_f16 * USEFUL;
    let arrows = if rows.iter().any(off) { " (arrows: more than 25% above f16)" } else { "" };
    chart("Rate and perplexity", &format!("perplexity{arrows}"), level, &|outcome| outcome.perplexity);
    chart("Its worst positions", "KL divergence, nats, 99th percentile", None, &|outcome| outcome.kl_p99);
    chart("Another likeliest token", "share of positions", None, &|outcome| 1.0 - outcome.top1_agreement);
    out.push_str("</div>\n<div class=\"scroll\"><table><thead><tr><th>codec");
    COLUMNS.iter().for_each(|column| {
        let _ = write!(out, "<th>{column}");
    });
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        let _ = writeln!(out, "<tr><td>{}<td>{}</tr>", escape(&row.codec), cells(&row.outcome).join("<td>"));
    }
    out.push_str("</tbody></table></div>\n");
}

fn is_plotted(row: &Row) -> bool {
    row.outcome.bits_per_value_pages <= WIDEST
}

fn point(row: &Row, y: f64) -> Point {
    let bits = row.outcome.bits_per_value_pages;
    Point {
        x: bits,
        y,
        label: row.codec.clone(),
        tip: format!("{}\n{bits:.3} bits, {}", row.codec, number(y)),
        series: series::group(&row.codec),
        curve: series::curve(&row.codec),
        hollow: false,
    }
}
