//! Errors of caches on a language model, row by row, as CSV next to the pictures in `docs/plots/`, and the picture of such
//! rows, which `sweep --svg` draws.

use crate::failure::{Failure, Result};
use crate::plot::{Chart, Key, Point, picture};
use crate::series;
use crate::table::number;
use serde::{Deserialize, Serialize};

/// The rates in pictures.
const WIDEST: f64 = 10.0;

/// Title of the axis of bits that a long context approaches.
const IN_PAGES: &str = "bits per value in pages (exact window left out)";

/// One cache, and the errors of a model's next-token distribution with it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Rate {
    /// Specs.
    pub(crate) keys: String,
    pub(crate) values: String,
    /// The preparation of keys: plain, page or balanced.
    pub(crate) prepared: String,
    /// Bits of the whole cache at the end of a window, with exact tokens.
    pub(crate) bits: f64,
    pub(crate) bits_in_pages: f64,
    pub(crate) perplexity: f64,
    pub(crate) perplexity_f16: f64,
    /// Nats.
    pub(crate) kl_mean: f64,
    /// Mean over the positions that read pages; `None` without such positions or measurements.
    #[serde(default)]
    pub(crate) kl_paged: Option<f64>,
    pub(crate) kl_p99: f64,
    /// Share of positions with the same likeliest token.
    pub(crate) top1: f64,
}

impl Rate {
    /// Returns the codec in the syntax of `sweep`: one spec, or KEYS/VALUES.
    fn codec(&self) -> String {
        if self.keys == self.values { self.keys.clone() } else { format!("{}/{}", self.keys, self.values) }
    }
}

/// The rows as CSV.
pub(crate) fn write(rows: &[Rate]) -> Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.iter().try_for_each(|row| writer.serialize(row)).map_err(|error| Failure(error.to_string()))?;
    writer.into_inner().map_err(|error| Failure(error.to_string()))
}

/// The rates in pages and the mean KL. Marks are filled for keys centred page by page and balanced, and hollow for raw keys.
pub(crate) fn chart(model: &str, rows: &[Rate]) -> String {
    let shown = |row: &&Rate| row.bits_in_pages <= WIDEST && ["plain", "balanced"].contains(&&*row.prepared);
    let rows: Vec<&Rate> = rows.iter().filter(shown).collect();
    let points = rows.iter().map(|row| {
        let codec = row.codec();
        Point {
            x: row.bits_in_pages,
            y: row.kl_mean,
            tip: format!("{codec}, {}\n{:.3} bits, {}", row.prepared, row.bits_in_pages, number(row.kl_mean)),
            series: series::group(&codec),
            curve: series::curve(&codec),
            hollow: row.prepared == "plain",
            label: codec,
        }
    });
    let chart = Chart {
        title: model,
        x_axis: IN_PAGES,
        y_axis: "KL divergence of the next token from f16, nats",
        points: points.collect(),
        bound: false,
    };
    let legend = series::legend(rows.iter().map(|row| &*row.keys)).into_iter();
    let mut keys: Vec<Key> = legend.map(|(series, name)| Key { series, name, hollow: false }).collect();
    if rows.iter().any(|row| row.prepared == "plain") {
        keys.push(Key {
            series: 0,
            name: "hollow: keys as they are, neither centred nor balanced".into(),
            hollow: true,
        });
    }
    picture(&chart, &keys)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;
    use std::path::Path;

    fn read(text: &[u8]) -> Vec<Rate> {
        csv::Reader::from_reader(text).deserialize().collect::<std::result::Result<_, _>>().unwrap()
    }

    /// The pictures of the documentation show the rows in the same folder. `OCTAPLEX_BLESS=1` draws them again.
    #[test]
    fn the_pictures_are_those_of_their_rows() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/plots");
        for model in ["smollm2", "qwen05", "qwen15"] {
            let text = std::fs::read(folder.join(model).with_extension("csv")).unwrap();
            let rows = read(&text);
            assert!(rows.len() > 40, "{model}");
            let again = write(&rows).unwrap();
            assert_eq!(
                String::from_utf8(again).unwrap(),
                String::from_utf8(text).unwrap(),
                "{model}.csv, written again"
            );
            let (path, drawn) = (folder.join(model).with_extension("svg"), chart(model, &rows));
            if std::env::var_os("OCTAPLEX_BLESS").is_some() {
                std::fs::write(&path, &drawn).unwrap();
            }
            assert!(
                std::fs::read_to_string(&path).unwrap() == drawn,
                "docs/plots/{model}.svg is of other rows"
            );
        }
    }
}
