//! The page of a sweep: plots and tables for each way to prepare keys, nothing loaded from elsewhere.

use super::rows::{COLUMNS, Preparation, Row, cells};
use crate::models::likelihood::Outcome;
use crate::plot::{Chart, Point, SERIES, escape, picture, shape, svg};
use crate::table::number;
use std::fmt::Write;

const STYLE: &str = include_str!("../../report.css");

/// Rates that the plots show; wider formats are in the tables.
const WIDEST: f64 = 12.0;

/// The codec's name.
fn name(row: &Row) -> &str {
    row.codec.split([':', '/']).next().unwrap_or("")
}

/// One picture of all rows: rate in pages and mean KL, a colour and shape for each way to prepare keys.
pub(super) fn chart(model: &str, rows: &[Row]) -> String {
    let shown: Vec<&Row> = rows.iter().filter(|row| row.outcome.bits_per_value_pages <= WIDEST).collect();
    let mut ways = Preparation::ALL.to_vec();
    ways.retain(|keys| shown.iter().any(|row| row.keys == *keys));
    let points = shown.iter().map(|row| Point {
        x: row.outcome.bits_per_value_pages,
        label: row.codec.clone(),
        series: ways.iter().position(|keys| row.keys == *keys).unwrap_or(0),
        ..point(row, &[], row.outcome.kl_mean)
    });
    let axis = "KL divergence of the next token from the f16 cache, nats";
    let chart = Chart { title: model, axis, points: points.collect(), bound: false };
    picture(&chart, &ways.iter().map(|keys| title(*keys)).collect::<Vec<_>>())
}

fn title(keys: Preparation) -> &'static str {
    match keys {
        Preparation::Plain => "Keys as they are",
        Preparation::Page => "Keys centred page by page",
        Preparation::Balanced => "Keys centred page by page and balanced",
    }
}

/// The whole page.
pub(super) fn page(model: &str, about: &str, rows: &[Row]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.outcome.bits_per_value <= WIDEST) {
        if !names.contains(&name(row)) {
            names.push(name(row));
        }
    }
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>octaplex: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>A model on compressed keys and values</h1>\n<p>{about}</p>\n<div class=\"legend\">",
        title = escape(model),
        about = escape(about).replace('\n', "<br>"),
    );
    for (series, name) in names.iter().enumerate() {
        let mark = shape(series, 7.0, 7.0);
        let class = series % SERIES;
        let _ = write!(
            out,
            "<span><svg viewBox=\"0 0 14 14\" class=\"s{class}\">{mark}</svg>{}</span>",
            escape(name)
        );
    }
    out.push_str("</div>\n");
    for keys in Preparation::ALL {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.keys == keys).collect();
        if !rows.is_empty() {
            section(&mut out, keys, &rows, &names);
        }
    }
    let _ = write!(
        out,
        "<footer>\n<p><b>Bits</b> count everything stored, exact tokens, centres and balance included; <b>in pages</b> \
         leaves out the exact tokens, as a long context would. <b>KL</b> is the divergence of the next token's \
         distribution from that with the f16 cache, in nats, mean and 99th percentile; <b>top-1</b> the share of positions \
         with the same likeliest token.</p>\n<p>octaplex {}</p>\n</footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
    );
    out
}

/// Plots and table of one way to prepare keys.
fn section(out: &mut String, keys: Preparation, rows: &[&Row], names: &[&str]) {
    let _ = write!(out, "<h2>{}</h2>\n<div class=\"charts\">\n", title(keys));
    let mut chart = |title: &str, axis: &str, value: &dyn Fn(&Outcome) -> f64| {
        let shown = rows.iter().filter(|row| row.outcome.bits_per_value <= WIDEST);
        let points = shown.map(|row| point(row, names, value(&row.outcome))).collect();
        let svg = svg(&Chart { title, axis, points, bound: false });
        if !svg.is_empty() {
            let _ = write!(out, "<figure><h3>{title}</h3>\n{svg}</figure>\n");
        }
    };
    chart("Rate and perplexity", "perplexity", &|outcome| outcome.perplexity);
    chart("Rate and next-token distribution", "KL divergence, nats, mean", &|outcome| outcome.kl_mean);
    chart("Its worst positions", "KL divergence, nats, 99th percentile", &|outcome| outcome.kl_p99);
    chart("Another likeliest token", "share of positions", &|outcome| 1.0 - outcome.top1_agreement);
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

fn point(row: &Row, names: &[&str], y: f64) -> Point {
    let bits = row.outcome.bits_per_value;
    Point {
        x: bits,
        y,
        label: row.codec.split_once(':').map_or(row.codec.as_str(), |(_, keys)| keys).to_owned(),
        tip: format!("{}\n{bits:.3} bits, {}", row.codec, number(y)),
        series: names.iter().position(|other| *other == name(row)).unwrap_or(0),
    }
}
