//! The tables of `compare` in the terminal, and the legend below them.

use crate::backend::cpu;
use crate::columns::{columns, legend_text};
use crate::console::wrap;
use crate::input::Sample;
use crate::keys::Keys;
use crate::row::Row;
use crate::table::Table;
use octaplex::Backend;
use octaplex::codecs::Role;

/// Keys, then values, within 80 columns unless `wide`.
pub(crate) fn text(sample: &Sample, rows: &[Row], keys: Keys, backend: Backend, wide: bool) -> String {
    let origin = sample.origin.as_ref().map_or(String::new(), |origin| format!("{origin}\n"));
    let about = format!(
        "{}\n{origin}keys: {}; times: {}, {}\n",
        sample.describe(),
        keys.describe(),
        cpu(),
        backend.name(),
    );
    let (attends, is_raw) = (sample.queries.is_some(), keys == Keys::RAW);
    let mut out = wrap(&about);
    for role in [Role::Keys, Role::Values] {
        let columns = columns(role, attends, is_raw, wide);
        let title = if role == Role::Keys { "KEYS" } else { "VALUES" };
        let heads: Vec<_> = columns.iter().map(|column| (column.name, column.unit, column.width)).collect();
        let mut table = Table::with_units(title, &heads);
        for row in rows.iter().filter(|row| row.role == role) {
            let cells: Vec<String> = columns.iter().map(|column| (column.cell)(row)).collect();
            let mark = if row.is_default() { " default" } else { "" };
            table.row(&format!("{}{mark}", row.codec), row.leads(rows), &cells);
        }
        out += &format!("\n{}", table.text());
    }
    format!("{out}\n{}", legend_text(attends, is_raw, wide))
}
