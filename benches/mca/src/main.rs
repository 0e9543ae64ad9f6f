//! `mca BACKEND CALL CODES LEVELS DIM QUERIES`: one call, `score` or `sum`, of 256 rows without a scale between them, between
//! two calls of [`mark`]; run.sh follows its instructions in an emulator. CODES are `trellis` (8 states) or `codes`.

use octaplex_arch::{Backend, IntQuery, Packing, Rows, TrellisCodebook};
use std::error::Error;
use std::hint::black_box;

const ROWS: usize = 256;

/// A function whose code equals no other, so that the linker does not merge it.
#[inline(never)]
fn mark() {
    black_box("mark");
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, backend, call, codes, levels, dim, queries] = words.as_slice() else {
        return Err("usage: mca BACKEND score|sum trellis|codes LEVELS DIM QUERIES".into());
    };
    let backend = Backend::named(backend).ok_or("this CPU has no such backend")?;
    let (levels, dim, queries): (usize, usize, usize) = (levels.parse()?, dim.parse()?, queries.parse()?);
    // Any ascending centroids, and any bytes.
    let windows: Vec<i8> = (0..16 * levels).map(|i| (i / 16 * 3) as i8).collect();
    let centroids: Vec<i16> = (0..levels as i16).collect();
    let book = TrellisCodebook::new(3, levels, &windows);
    let packing = Packing::for_levels(levels).ok_or("no packing has this number of levels")?;
    let len = if codes == "trellis" { book.row_bytes(dim) } else { 2 + packing.bytes(dim) };
    let bytes: Vec<u8> = (0..ROWS * (len - 2) + 2).map(|i| (i * i / 7) as u8).collect();
    let rows = Rows { bytes: &bytes, stride: len - 2, len, dim, scales: Some(&[0.7; ROWS]), ahead: &[] };
    let values = vec![3; dim];
    let prepared = vec![IntQuery { values: &values, scale: 0.5 }; queries];
    let (mut scores, mut sums) = (vec![0.0; ROWS * queries], vec![0.0; dim * queries]);
    let weights = vec![0.5; ROWS * queries];
    // Run once before, so that one-time detection is not recorded.
    for followed in [false, true] {
        if followed {
            mark();
        }
        match (call.as_str(), codes.as_str()) {
            ("score", "trellis") => backend.score_trellis(&book, &[rows], 0.1, &prepared, &mut scores),
            ("score", _) => backend.score_codes(packing, &[rows], &centroids, 0.1, &prepared, &mut scores),
            (_, "trellis") => backend.accumulate_trellis(&book, &[rows], 0.1, &weights, &mut sums),
            _ => backend.accumulate_codes(packing, &[rows], &centroids, 0.1, &weights, &mut sums),
        }
        if followed {
            mark();
        }
    }
    black_box((scores, sums));
    Ok(())
}
