//! The picture of a comparison: rate and distortion of values, which have few outliers, a colour and shape for each codec.

use crate::input::Sample;
use crate::plot::{Chart, Key, Point, picture};
use crate::row::Row;
use crate::series;
use crate::table::number;
use octaplex::codecs::Role;

/// Rates that the picture shows; wider formats are in the tables.
const WIDEST: f64 = 10.0;

/// Draws the picture as SVG text.
pub(super) fn chart(sample: &Sample, rows: &[Row]) -> String {
    let is_shown = |row: &&Row| row.role == Role::Values && row.metrics.bits_per_value <= WIDEST;
    let rows: Vec<&Row> = rows.iter().filter(is_shown).collect();
    let legend = series::legend(rows.iter().map(|row| &*row.codec)).into_iter();
    let keys: Vec<Key> = legend.map(|(series, name)| Key { series, name, hollow: false }).collect();
    let point = |row: &&Row| Point {
        x: row.metrics.bits_per_value,
        y: row.metrics.distortion,
        label: row.codec.clone(),
        tip: format!(
            "{}\n{:.3} bits, {}",
            row.codec,
            row.metrics.bits_per_value,
            number(row.metrics.distortion)
        ),
        series: series::group(&row.codec),
        curve: series::curve(&row.codec),
        hollow: false,
    };
    let chart = Chart {
        title: &sample.name,
        x_axis: "bits per value, everything counted",
        y_axis: "distortion of values",
        points: rows.iter().map(point).collect(),
        bound: true,
    };
    picture(&chart, &keys)
}
