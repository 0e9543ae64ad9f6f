//! The page of `compare`: one HTML file with plots and tables, nothing loaded from elsewhere.

use crate::columns::{columns, legend, mark};
use crate::input::Sample;
use crate::keys::Keys;
use crate::metrics::AttentionMetrics;
use crate::plot::{Chart, Key, Point, escape, picture, shape, svg};
use crate::row::Row;
use crate::series;
use crate::table::number;
use octaplex::Backend;
use octaplex::codecs::Role;
use std::fmt::Write;

const STYLE: &str = include_str!("report.css");
/// Styles of the advice at the head of the page.
const ADVICE: &str = include_str!("advice.css");

/// Rates that the plots show; wider formats are in the tables.
const WIDEST: f64 = 10.0;

/// The whole page: what to take, what the columns mean, then plots and tables.
pub(crate) fn page(sample: &Sample, rows: &[Row], keys: Keys, backend: Backend, advice: &str) -> String {
    let attends = sample.queries.is_some();
    let marks = series::legend(rows.iter().filter(|row| is_plotted(row)).map(|row| &*row.codec));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>octaplex: {title}</title>\n<style>\n{STYLE}{ADVICE}</style>\n</head>\n<body>\n\
         <h1>Compressed keys and values</h1>\n<p class=\"advice\">{advice}</p>\n<p>{about}</p>\n<p class=\"soft\">{origin}</p>\n\
         <dl>\n<dt>★<dd>{mark}\n",
        advice = escape(advice),
        mark = escape(&mark(attends)),
        title = escape(&sample.name),
        about = escape(&sample.describe()),
        origin = escape(sample.origin.as_deref().unwrap_or("")),
    );
    for (name, means) in legend(attends, keys == Keys::RAW, true) {
        let _ = writeln!(out, "<dt>{}<dd>{}", escape(&name), escape(means));
    }
    out.push_str("</dl>\n<div class=\"legend\">");
    for (series, name) in marks {
        let mark = shape(series, 8.0, 8.0);
        let _ = write!(
            out,
            "<span><svg viewBox=\"0 0 16 16\" class=\"s{series}\">{mark}</svg>{}</span>",
            escape(&name)
        );
    }
    out.push_str("</div>\n");
    for role in [Role::Keys, Role::Values] {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.role == role).collect();
        section(&mut out, role, &rows, attends);
    }
    let _ = write!(
        out,
        "<footer>\n\
         <p>Times are on one core with {backend}. KL is the mean over layers, query heads and queries, each over the tokens up \
         to its own; output errors are the mean over layers and query heads, for keys with exact values, for values with exact \
         weights. Curves join the rates of a codec; the broad line joins the codecs that no other beats at their rate. The dashed \
         line is 2<sup>-2·bits</sup>, the least distortion that any code of Gaussian vectors can have: values are close to \
         Gaussian, keys with large constant channels are not. Formats of more than {WIDEST} bits are in the tables only.</p>\n\
         <p>octaplex {version}</p>\n</footer>\n</body>\n</html>\n",
        backend = backend.name(),
        version = env!("CARGO_PKG_VERSION"),
    );
    out
}

/// One picture: rate and distortion of values, which have few outliers, a colour and shape for each codec.
pub(crate) fn chart(sample: &Sample, rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.role == Role::Values && is_plotted(row)).collect();
    let legend = series::legend(rows.iter().map(|row| &*row.codec)).into_iter();
    let keys: Vec<Key> = legend.map(|(series, name)| Key { series, name, hollow: false }).collect();
    let points = rows.iter().map(|row| point(row, row.metrics.distortion)).collect();
    picture(&rate_chart(&sample.name, "distortion of values", true, points), &keys)
}

fn rate_chart<'a>(title: &'a str, y_axis: &'a str, bound: bool, points: Vec<Point>) -> Chart<'a> {
    let x_axis = "bits per value, everything counted";
    Chart { title, x_axis, y_axis, points, bound, level: None, top: f64::INFINITY }
}

/// Plots and table of one role.
fn section(out: &mut String, role: Role, rows: &[&Row], attention: bool) {
    let title = if role == Role::Keys { "Keys" } else { "Values" };
    let _ = writeln!(out, "<h2>{title}</h2>");
    if let Some(row) = rows.iter().find(|row| row.keys != Keys::RAW) {
        let _ = writeln!(out, "<p>Keys are {}, as in the cache; raw: as they are.</p>", row.keys.describe());
    }
    out.push_str("<div class=\"charts\">\n");
    let mut chart = |title: &str, axis: &str, bound: bool, value: &dyn Fn(&Row) -> f64| {
        let shown = rows.iter().filter(|row| is_plotted(row));
        let points = shown.map(|row| point(row, value(row))).collect();
        let svg = svg(&rate_chart(title, axis, bound, points));
        if !svg.is_empty() {
            let _ = write!(out, "<figure><h3>{title}</h3>\n{svg}</figure>\n");
        }
    };
    let of =
        |get: fn(&AttentionMetrics) -> f64| move |row: &Row| row.metrics.attention.as_ref().map_or(0.0, get);
    chart("Rate and distortion", "distortion", role == Role::Values, &|row| row.metrics.distortion);
    if attention && role == Role::Keys {
        let scores = "mean error of scores";
        chart("Rate and scores", scores, false, &of(|attention| attention.score_error));
        chart("Rate and attention weights", "KL divergence, nats", false, &of(|attention| attention.kl));
    }
    if attention {
        chart("Rate and attention output", "output error", false, &of(|attention| attention.output_error));
    }
    out.push_str("</div>\n");
    table(out, role, rows, attention);
}

fn point(row: &Row, y: f64) -> Point {
    Point {
        x: row.metrics.bits_per_value,
        y,
        label: row.codec.clone(),
        tip: format!("{}\n{:.3} bits, {}", row.codec, row.metrics.bits_per_value, number(y)),
        series: series::group(&row.codec),
        curve: series::curve(&row.codec),
        hollow: false,
    }
}

fn table(out: &mut String, role: Role, rows: &[&Row], attends: bool) {
    let is_raw = rows.iter().all(|row| row.keys == Keys::RAW);
    let columns = columns(role, attends, is_raw, true);
    let heads = columns.iter().map(|column| format!("<th>{}<br>{}", column.name, column.unit));
    let heads: String = heads.collect();
    let _ = writeln!(out, "<div class=\"scroll\"><table><thead><tr><th>codec{heads}</tr></thead><tbody>");
    for row in rows {
        let star = if row.leads(rows.iter().copied()) { " ★" } else { "" };
        let mut cells = vec![format!("{}{star}", escape(&row.codec))];
        cells.extend(columns.iter().map(|column| escape(&(column.cell)(row))));
        let _ = writeln!(out, "<tr><td>{}</tr>", cells.join("<td>"));
    }
    out.push_str("</tbody></table></div>\n");
}

fn is_plotted(row: &Row) -> bool {
    row.metrics.bits_per_value <= WIDEST
}
