//! The page of `compare`: one HTML file with plots and tables, nothing loaded from elsewhere.

use crate::input::Sample;
use crate::keys::Keys;
use crate::metrics::AttentionMetrics;
use crate::plot::{Chart, Key, Point, escape, picture, shape, svg};
use crate::row::Row;
use crate::series;
use crate::table::{number, time};
use octaplex::Backend;
use octaplex::codecs::Role;
use std::fmt::Write;

const STYLE: &str = include_str!("report.css");

/// Rates that the plots show; wider formats are in the tables.
const WIDEST: f64 = 10.0;

/// The whole page.
pub(crate) fn page(sample: &Sample, rows: &[Row], backend: Backend) -> String {
    let legend = series::legend(rows.iter().filter(|row| is_plotted(row)).map(|row| &*row.codec));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>octaplex: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>Compressed keys and values</h1>\n<p>{about}</p>\n<p class=\"soft\">{origin}</p>\n<div class=\"legend\">",
        title = escape(&sample.name),
        about = escape(&sample.describe()),
        origin = escape(sample.origin.as_deref().unwrap_or("")),
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
    for role in [Role::Keys, Role::Values] {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.role == role).collect();
        section(&mut out, role, &rows, sample.queries.is_some());
    }
    let _ = write!(
        out,
        "<footer>\n\
         <p><b>Bits per value</b> count every stored byte. <b>Distortion</b> is Σ‖x-x̂‖²/Σ‖x‖²; <b>cosine</b> is the mean \
         over vectors. <b>Score error</b> is the mean |q·k - score|, q·k unscaled, the score computed on compressed bytes.</p>\n\
         <p><b>KL</b> is that of the attention weights from the exact ones, in nats: the mean over layers, query heads and \
         queries, each over the tokens up to its own. <b>Output error</b> is Σ‖o-ô‖²/Σ‖o‖² over a head's queries, \
         the mean over layers and query heads; for keys with exact values, for values with exact weights.</p>\n\
         <p>Times are nanoseconds per vector on one core with {backend}; vectors are encoded in pages, scores are of one \
         query. Curves join the rates of a codec; the broad line joins the codecs that no other beats at their rate. The dashed \
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
    table(out, role, rows);
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

fn table(out: &mut String, role: Role, rows: &[&Row]) {
    let columns = match role {
        Role::Keys => "<th>score error<th>KL<th>KL raw<th>output error<th>encode<th>decode<th>score",
        Role::Values => "<th>output error<th>encode<th>decode<th>accumulate",
    };
    let _ = writeln!(
        out,
        "<div class=\"scroll\"><table><thead><tr><th>codec<th>bits<th>distortion<th>cosine{columns}</tr></thead><tbody>"
    );
    for row in rows {
        let metrics = &row.metrics;
        let mut cells = vec![
            escape(&row.codec),
            format!("{:.3}", metrics.bits_per_value),
            number(metrics.distortion),
            format!("{:.5}", metrics.cosine),
        ];
        let of = |get: fn(&AttentionMetrics) -> f64| {
            metrics.attention.as_ref().map_or("-".into(), |attention| number(get(attention)))
        };
        if role == Role::Keys {
            cells.extend([of(|attention| attention.score_error), of(|attention| attention.kl)]);
            cells.push(row.kl_raw.map_or("-".into(), number));
        }
        cells.extend([of(|attention| attention.output_error), time(row.encode_ns), time(row.decode_ns)]);
        cells.push(time(if role == Role::Keys { row.score_ns } else { row.accumulate_ns }));
        let _ = writeln!(out, "<tr><td>{}</tr>", cells.join("<td>"));
    }
    out.push_str("</tbody></table></div>\n");
}

fn is_plotted(row: &Row) -> bool {
    row.metrics.bits_per_value <= WIDEST
}
