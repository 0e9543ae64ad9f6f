//! Cells after a fixed sequence of calls, and attention on them: the same on every backend, and as before.
//! `OCTAPLEX_BLESS=1 cargo test --test suite cells::golden` rewrites `golden.txt`.
//!
//! A line `case KEYS VALUES WIDTH` opens a case. Lines `STEP BYTES KEYS VALUES ATTENTION` follow: bytes of both sides, and
//! FNV-1a 64 of all rows of the keys, of the values (f16, little-endian), and of the output (f32, little-endian). Inputs are the
//! numbers of `tests/golden.rs`.

use half::f16;
use octaplex::Backend;
use octaplex::cells::{CellAttend, CellConfig, CellPages, Partial, in_order};
use octaplex::codecs::Role;
use std::fmt::Write;
use std::fs;

const CASES: [(&str, &str, usize); 6] = [
    ("graded", "trellis", 64),
    ("graded:bits=4", "turboquant", 128),
    ("trellis:m=2", "trellis:m=2", 80),
    ("turboquant", "int:bits=3,med=1", 64),
    ("q4_0", "fp8", 64),
    ("f16", "f16", 64),
];
const HEADS: usize = 2;
/// Cells of a stream; there are two.
const CELLS: usize = 256;

struct Numbers(u32);

impl Numbers {
    fn vector(&mut self, count: usize, scale: f32) -> Vec<f32> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((self.0 >> 16) as f32 - 32768.0) / 8192.0 * scale
        };
        (0..count).map(|_| next()).collect()
    }

    /// Rows whose channels differ in size and have a mean, as those of keys.
    fn rows(&mut self, count: usize, width: usize) -> Vec<f32> {
        let mut rows = self.vector(count * width, 1.0);
        for (channel, x) in rows.iter_mut().enumerate() {
            let channel = channel % width;
            *x = *x * (1 + channel % 5) as f32 + if channel.is_multiple_of(7) { 6.0 } else { 0.0 };
        }
        rows
    }
}

fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

struct Case {
    sides: [CellPages; 2],
    dim: usize,
    numbers: Numbers,
    text: String,
}

impl Case {
    fn set(&mut self, cells: &[usize]) {
        for side in &mut self.sides {
            side.set_rows(cells, &self.numbers.rows(cells.len(), HEADS * self.dim)).unwrap();
        }
    }

    fn settle(&mut self) {
        let queries = self.numbers.vector(HEADS * 32 * self.dim, 1.0);
        self.sides[0].settle(&queries, &in_order).unwrap();
        self.sides[1].settle(&[], &in_order).unwrap();
    }

    fn line(&mut self, step: &str) {
        let bytes: usize = self.sides.iter().map(CellPages::bytes).sum();
        write!(self.text, "{step} {bytes}").unwrap();
        for side in &self.sides {
            let mut rows = vec![f16::ZERO; side.cells() * HEADS * self.dim];
            side.read_rows(0..side.cells(), &mut rows).unwrap();
            write!(self.text, " {:016x}", fnv(rows.iter().flat_map(|x| x.to_le_bytes()))).unwrap();
        }
        // Three queries of each of two query heads; each sees some of the cells.
        let mut output = Vec::new();
        for stream in 0..2 {
            let queries = self.numbers.vector(6 * self.dim, 0.125);
            let hidden = |i: usize| (i % CELLS + i / CELLS).is_multiple_of(3);
            let mask: Vec<f16> =
                (0..3 * CELLS).map(|i| if hidden(i) { f16::NEG_INFINITY } else { f16::ZERO }).collect();
            let options = CellAttend::new(stream * CELLS, CELLS).queries(3).mask(&mask, CELLS);
            let mut parts = [Partial::default(), Partial::default()];
            for (number, part) in parts.iter_mut().enumerate() {
                let pages = 3 * number..3 + number;
                options.attend(&self.sides[0], &self.sides[1], stream, &queries, pages, part).unwrap();
            }
            let mut rows = vec![0.0; queries.len()];
            Partial::merge(&parts, &self.sides[1], &[], &mut rows).unwrap();
            output.extend(rows);
        }
        writeln!(self.text, " {:016x}", fnv(output.iter().flat_map(|x| x.to_le_bytes()))).unwrap();
    }
}

fn case((keys, values, dim): (&str, &str, usize), backend: Backend) -> String {
    let side = |role, codec: &str| {
        let config =
            CellConfig::new(role, HEADS, dim, CELLS).streams(2).layer(1).codec(codec.parse().unwrap());
        CellPages::new(&config, backend).unwrap()
    };
    let mut case = Case {
        sides: [side(Role::Keys, keys), side(Role::Values, values)],
        dim,
        numbers: Numbers(2_463_534_242),
        text: format!("case {keys} {values} {dim}\n"),
    };
    case.set(&(0..230).rev().collect::<Vec<_>>());
    case.line("set");
    case.settle();
    case.line("settle");
    // A rollback into a closed page; later cells are newer, so that it closes again.
    case.set(&(50..60).chain(170..230).collect::<Vec<_>>());
    case.line("reopen");
    case.settle();
    case.line("close");
    for side in &mut case.sides {
        side.copy_cells(0..CELLS, CELLS).unwrap();
        side.copy_cells(5..40, 2 * CELLS - 50).unwrap();
    }
    case.line("copy");
    case.settle();
    case.line("settle");
    for side in &mut case.sides {
        // A quarter turn of each pair of channels.
        let mut turn = |_: usize, rows: &mut [f32]| {
            rows.as_chunks_mut::<2>().0.iter_mut().for_each(|pair| *pair = [-pair[1], pair[0]]);
        };
        side.map_rows(30..CELLS + 100, &mut turn).unwrap();
    }
    case.line("shift");
    for side in &mut case.sides {
        let mut rows = vec![f16::ZERO; 100 * HEADS * dim];
        side.read_rows(20..120, &mut rows).unwrap();
        side.write_rows(CELLS + 77, &rows).unwrap();
    }
    case.settle();
    case.line("state");
    case.sides.iter_mut().for_each(CellPages::clear);
    case.set(&(0..4).chain(100..260).collect::<Vec<_>>());
    case.settle();
    case.line("clear");
    case.text
}

#[test]
fn every_backend_gives_the_golden_checksums() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cells/golden.txt");
    if std::env::var_os("OCTAPLEX_BLESS").is_some_and(|bless| bless == "1") {
        let head = "# Checksums of cells; tests/cells/golden.rs describes this file and writes it (OCTAPLEX_BLESS=1).\n";
        fs::write(path, head.to_owned() + &CASES.map(|of| case(of, Backend::SCALAR)).concat()).unwrap();
    }
    let file = fs::read_to_string(path).unwrap();
    let golden: Vec<String> = file.split("case ").skip(1).map(|case| format!("case {case}")).collect();
    assert_eq!(golden.len(), CASES.len());
    for (of, golden) in CASES.into_iter().zip(golden) {
        for backend in Backend::available() {
            assert_eq!(case(of, backend), golden, "backend {}", backend.name());
        }
    }
}
