//! The table of `compare` in the terminal.

use crate::backend::cpu;
use crate::console::wrap;
use crate::input::Sample;
use crate::keys::Keys;
use crate::metrics::AttentionMetrics;
use crate::row::Row;
use crate::table::{Table, number, time};
use octaplex::Backend;
use octaplex::codecs::Role;

/// A column: its head, its width, and what it shows of a row.
type Column = (&'static str, usize, fn(&Row) -> String);

const BITS: Column = ("bits", 7, |row| format!("{:.3}", row.metrics.bits_per_value));
const DISTORTION: Column = ("distortion", 11, |row| number(row.metrics.distortion));
const COSINE: Column = ("cosine", 8, |row| format!("{:.5}", row.metrics.cosine));
const SCORE_ERROR: Column = ("score err", 10, |row| attention(row, |attention| attention.score_error));
const KL: Column = ("KL", 8, |row| attention(row, |attention| attention.kl));
const KL_RAW: Column = ("KL raw", 8, |row| row.kl_raw.map_or("-".into(), number));
const OUTPUT_ERROR: Column = ("out err", 8, |row| attention(row, |attention| attention.output_error));
const ENCODE: Column = ("encode", 7, |row| time(row.encode_ns));
const DECODE: Column = ("decode", 7, |row| time(row.decode_ns));
const SCORE: Column = ("score", 6, |row| time(row.score_ns));
const SUM: Column = ("sum", 6, |row| time(row.accumulate_ns));

fn attention(row: &Row, get: fn(&AttentionMetrics) -> f64) -> String {
    row.metrics.attention.as_ref().map_or("-".into(), |attention| number(get(attention)))
}

/// Keys, then values, within 80 columns unless `wide`.
pub(crate) fn text(sample: &Sample, rows: &[Row], keys: Keys, backend: Backend, wide: bool) -> String {
    let origin = sample.origin.as_ref().map_or(String::new(), |origin| format!("{origin}\n"));
    let raw = if keys == Keys::RAW { "" } else { "; KL raw: the same with keys as they are" };
    let error = if sample.queries.is_some() { "KL or output error" } else { "distortion" };
    let about = format!(
        "{}\n{origin}keys: {}\nbits: stored a value, everything counted\nKL: of attention weights from the exact ones, \
         nats{raw}\nout err: ‖o-ô‖²/‖o‖² of attention's output\ntimes: ns a vector, one core, {}, {}\n*: no other row has \
         as few bits and as small a {error}\n",
        sample.describe(),
        keys.describe(),
        cpu(),
        backend.name(),
    );
    let mut out = wrap(&about);
    for role in [Role::Keys, Role::Values] {
        let columns: &[Column] = match (role, wide, keys == Keys::RAW) {
            (Role::Keys, false, false) => &[BITS, DISTORTION, KL, KL_RAW, OUTPUT_ERROR, ENCODE, SCORE],
            (Role::Keys, false, true) => &[BITS, DISTORTION, COSINE, KL, OUTPUT_ERROR, ENCODE, SCORE],
            (Role::Keys, true, _) => {
                &[BITS, DISTORTION, COSINE, SCORE_ERROR, KL, KL_RAW, OUTPUT_ERROR, ENCODE, DECODE, SCORE]
            }
            (Role::Values, ..) => &[BITS, DISTORTION, COSINE, OUTPUT_ERROR, ENCODE, DECODE, SUM],
        };
        let title = if role == Role::Keys { "KEYS" } else { "VALUES" };
        let heads: Vec<_> = columns.iter().map(|(name, width, _)| (*name, *width)).collect();
        let mut table = Table::new(title, &heads);
        for row in rows.iter().filter(|row| row.role == role) {
            let cells: Vec<String> = columns.iter().map(|(.., cell)| cell(row)).collect();
            table.row(&row.codec, row.leads(rows), &cells);
        }
        out += &format!("\n{}", table.text());
    }
    out
}
