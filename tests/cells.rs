//! Cells against a plain model of them: rows in f16, attention in f64.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking
#![cfg(feature = "alloc")]

mod golden;
mod limits;
mod sequences;

use crate::common::{Random, is_thorough};
use half::f16;
use octaplex::cells::{CellAttend, CellConfig, CellPages, Partial, in_order};
use octaplex::codecs::Role;
use octaplex::{Backend, CodecSpec, Error};

const HEADS: usize = 2;
const GROUP: usize = 3;
const CELLS: usize = 320;
const STREAMS: usize = 2;

/// Keys or values, and the rows that they should hold.
struct Side {
    pages: CellPages,
    rows: Vec<Option<Vec<f16>>>,
    sinks: usize,
}

impl Side {
    fn new(role: Role, codec: &str, dim: usize, backend: Backend) -> Self {
        let codec: CodecSpec = codec.parse().unwrap();
        let config = CellConfig::new(role, HEADS, dim, CELLS).streams(STREAMS).codec(codec).layer(3);
        let pages = CellPages::new(&config, backend).unwrap();
        Self { pages, rows: vec![None; CELLS * STREAMS], sinks: config.sinks }
    }

    fn width(&self) -> usize {
        self.pages.config().width()
    }

    fn set(&mut self, cells: &[usize], random: &mut Random) {
        let width = self.width();
        // Channels of unlike size with a mean, as keys have them.
        let value =
            |i: usize, x: f32| x * (1.0 + (i % 7) as f32) + if i.is_multiple_of(5) { 4.0 } else { 0.0 };
        let rows: Vec<f32> = (0..cells.len() * width).map(|i| value(i % width, random.gaussian())).collect();
        self.pages.set_rows(cells, &rows).unwrap();
        for (cell, row) in cells.iter().zip(rows.chunks_exact(width)) {
            self.rows[*cell] = Some(row.iter().map(|x| f16::from_f32(*x)).collect());
        }
    }

    fn read(&self) -> Vec<f16> {
        let mut rows = vec![f16::ONE; CELLS * STREAMS * self.width()];
        self.pages.read_rows(0..CELLS * STREAMS, &mut rows).unwrap();
        rows
    }

    /// Rows are those of the model: exactly, or as far from it as the codec is. Returns the rows.
    fn check(&self, loss: f32) -> Vec<f16> {
        let rows = self.read();
        let (mut error, mut power) = (0.0f32, 0.0f32);
        for (cell, (row, expected)) in rows.chunks_exact(self.width()).zip(&self.rows).enumerate() {
            let Some(expected) = expected else {
                assert!(row.iter().all(|x| x.to_bits() == 0), "cell {cell} was never written");
                continue;
            };
            if loss == 0.0 || cell % CELLS < self.sinks {
                assert_eq!(row, expected, "cell {cell}");
            }
            for (x, y) in row.iter().zip(expected) {
                error += (x.to_f32() - y.to_f32()).powi(2);
                power += y.to_f32().powi(2);
            }
        }
        assert!(
            error <= loss * power,
            "{:?} {}: {error} of {power}, {:?}",
            self.pages.config().role,
            self.pages.config().codec,
            self.pages.counts()
        );
        rows
    }
}

/// Attention of one query head in f64.
fn reference(
    query: &[f32],
    rows: [&[f16]; 2],
    stream: usize,
    (head, dims): (usize, [usize; 2]),
    mask: &[f16],
    options: &CellAttend,
    (slope, sink): (f64, Option<f32>),
) -> Vec<f64> {
    let row = |side: usize, cell: usize| {
        let cell = stream * CELLS + cell;
        &rows[side][(cell * HEADS + head) * dims[side]..][..dims[side]]
    };
    let scale = options.scale.map_or(1.0 / (dims[0] as f64).sqrt(), f64::from);
    let mut logits = vec![f64::NEG_INFINITY; mask.len()];
    for (cell, bias) in mask.iter().enumerate().filter(|(_, bias)| bias.is_finite()) {
        let dot: f64 = query.iter().zip(row(0, cell)).map(|(q, k)| f64::from(*q) * k.to_f64()).sum();
        let logit = options.soft_cap.map_or(dot * scale, |cap| {
            let cap = f64::from(cap);
            cap * (dot * scale / cap).tanh()
        });
        logits[cell] = logit + slope * bias.to_f64();
    }
    let max = logits.iter().copied().chain(sink.map(f64::from)).fold(f64::NEG_INFINITY, f64::max);
    let mut output = vec![0.0; dims[1]];
    if max == f64::NEG_INFINITY {
        return output;
    }
    let mut sum = sink.map_or(0.0, |sink| (f64::from(sink) - max).exp());
    for (cell, logit) in logits.iter().enumerate() {
        let weight = (logit - max).exp();
        sum += weight;
        if weight > 0.0 {
            output.iter_mut().zip(row(1, cell)).for_each(|(out, v)| *out += weight * v.to_f64());
        }
    }
    output.iter_mut().for_each(|out| *out /= sum);
    output
}

/// Attention of random queries with a random mask, in random parts, is that of the rows that can be read.
fn check_attention(sides: &[Side; 2], rows: [&[f16]; 2], random: &mut Random, tolerance: f64) {
    let dims = [sides[0].pages.config().dim, sides[1].pages.config().dim];
    let (stream, cells, queries) =
        (random.below(STREAMS), 64 * (1 + random.below(5)) - random.below(3), 1 + random.below(5));
    let stride = cells + random.below(9);
    let mut mask = vec![f16::NEG_INFINITY; queries * stride];
    let density = [0.0, 0.05, 0.5, 1.0][random.below(4)];
    for (i, value) in mask.iter_mut().enumerate() {
        // No query sees a cell that was never written, because its value in a coded page is arbitrary.
        let written = sides[0].rows.get(stream * CELLS + i % stride).is_some_and(|row| row.is_some());
        let hidden = !written || i / 64 % 3 == 1 && density < 1.0;
        if !hidden && random.unit() < density {
            *value = if random.below(4) == 0 { f16::from_f32(-random.unit() as f32) } else { f16::ZERO };
        }
    }
    let slopes: Vec<f32> = (0..GROUP).map(|_| random.unit() as f32).collect();
    let sinks: Vec<f32> = (0..GROUP * queries).map(|row| (row / queries) as f32 - 1.0).collect();
    let mut options = CellAttend::new(stream * CELLS, cells).queries(queries).mask(&mask, stride);
    options.soft_cap = [None, Some(5.0)][random.below(2)];
    options.scale = [None, Some(0.05)][random.below(2)];
    if random.below(2) == 0 {
        options.slopes = &slopes;
    }
    let sinks = if random.below(2) == 0 { &sinks[..] } else { &[] };
    let (mut error, mut power) = (0.0, 0.0);
    for head in 0..HEADS {
        let rows_of_queries: Vec<f32> =
            (0..GROUP * queries * dims[0]).map(|_| 0.3 * random.gaussian()).collect();
        let mut parts = Vec::new();
        let mut page = 0;
        while page < options.pages() {
            let end = (page + 1 + random.below(4)).min(options.pages());
            let mut part = Partial::default();
            options
                .attend(&sides[0].pages, &sides[1].pages, head, &rows_of_queries, page..end, &mut part)
                .unwrap();
            parts.push(part);
            page = end;
        }
        let mut output = vec![9.0; GROUP * queries * dims[1]];
        let mut sum = parts[0].clone();
        parts[1..].iter().for_each(|part| sum.add(&sides[1].pages, part).unwrap());
        Partial::merge(&parts, &sides[1].pages, sinks, &mut output).unwrap();
        let mut one_by_one = vec![9.0; output.len()];
        Partial::merge(&[sum], &sides[1].pages, sinks, &mut one_by_one).unwrap();
        assert_eq!(one_by_one, output, "parts added one by one");
        for (row, (query, output)) in
            rows_of_queries.chunks_exact(dims[0]).zip(output.chunks_exact(dims[1])).enumerate()
        {
            let (group, query_number) = (row / queries, row % queries);
            let slope = options.slopes.get(group).map_or(1.0, |slope| f64::from(*slope));
            let mask = &mask[query_number * stride..][..cells];
            let factors = (slope, sinks.get(row).copied());
            let expected = reference(query, rows, stream, (head, dims), mask, &options, factors);
            for (x, y) in output.iter().zip(&expected) {
                error += (f64::from(*x) - y).powi(2);
                power += y * y;
            }
        }
    }
    let found = (error / f64::max(power, 1e-30)).sqrt();
    let codecs = sides.each_ref().map(|side| side.pages.config().codec.to_string());
    assert!(found <= tolerance, "{codecs:?}: {found} of the outputs' norm");
}

/// Random sets, rollbacks (the same cells again), copies, shifts, masks and clears.
fn random_calls(codecs: [&str; 2], dims: [usize; 2], (loss, tolerance): (f32, f64), seed: u64) {
    let mut random = Random::new(seed);
    let backends: Vec<Backend> = Backend::available().collect();
    let backend = backends[seed as usize % backends.len()];
    let mut sides = [
        Side::new(Role::Keys, codecs[0], dims[0], backend),
        Side::new(Role::Values, codecs[1], dims[1], backend),
    ];
    let all = CELLS * STREAMS;
    for step in 0..60 {
        match random.below(12) {
            0..=5 => {
                // Consecutive cells most of the time, any cells else, some twice.
                let first = random.below(all - 100);
                let count = 1 + random.below(100);
                let cells: Vec<usize> = if random.below(3) > 0 {
                    (first..first + count).collect()
                } else {
                    (0..count).map(|_| random.below(all)).collect()
                };
                sides.iter_mut().for_each(|side| side.set(&cells, &mut random));
            }
            6 | 7 => {
                let (page, to) = (random.below(4) * 64, random.below(4) * 64);
                let skew = [0, 0, 5][random.below(3)];
                let (from, to) = (page + skew, CELLS + to + skew);
                let count = 1 + random.below(CELLS - page.max(to - CELLS) - skew - 1);
                let count = if skew == 0 && count > 64 { count / 64 * 64 } else { count };
                for side in &mut sides {
                    side.pages.copy_cells(from..from + count, to).unwrap();
                    let width = side.width();
                    let read = side.read();
                    for n in 0..count {
                        let page = (from + n) / 64 * 64;
                        let whole = from <= page && page + 64 <= from + count && from % 64 == to % 64;
                        if side.rows[from + n].is_some() {
                            let row = &read[(to + n) * width..][..width];
                            let source = &read[(from + n) * width..][..width];
                            assert_eq!(row, source, "step {step}, cell {n} of a copy");
                            side.rows[to + n] = Some(row.to_vec());
                        } else if whole {
                            side.rows[to + n] = None;
                        }
                    }
                }
            }
            8 => {
                let first = random.below(all - 200);
                let cells = first..first + 1 + random.below(199);
                for side in &mut sides {
                    let width = side.width();
                    let mut seen = 0;
                    side.pages
                        .map_rows(cells.clone(), &mut |_, rows| {
                            seen += rows.len() / width;
                            rows.iter_mut().for_each(|x| *x = -*x);
                        })
                        .unwrap();
                    assert!(seen <= cells.len());
                    let rows = side.rows[cells.clone()].iter_mut().flatten();
                    rows.for_each(|row| row.iter_mut().for_each(|x| *x = -*x));
                }
            }
            9 if step % 4 == 0 => sides.iter_mut().for_each(|side| {
                side.pages.clear();
                assert!(side.pages.is_empty());
                side.rows.fill(None);
            }),
            _ => {}
        }
        if random.below(2) == 0 {
            let queries: Vec<f32> = (0..HEADS * 40 * dims[0]).map(|_| random.gaussian()).collect();
            sides[0].pages.settle(&queries, &in_order).unwrap();
            sides[1].pages.settle(&[], &in_order).unwrap();
            let open = |side: &Side| !side.pages.is_unsettled();
            assert!(loss == 0.0 || sides.iter().all(open));
        }
        let rows = [sides[0].check(loss), sides[1].check(loss)];
        check_attention(&sides, [&rows[0], &rows[1]], &mut random, tolerance);
    }
    assert!(loss == 0.0 || sides.iter().all(|side| side.pages.counts().closed > 0));
    assert!(sides.iter().all(|side| side.pages.counts().refused == 0));
}

#[test]
fn exact_cells_are_the_model() {
    for seed in 0..8 {
        random_calls(["f16", "f16"], [64, 80], (0.0, 2e-5), seed);
    }
}

#[test]
fn coded_cells_are_as_near_as_their_codec() {
    for seed in 0..if is_thorough() { 4 } else { 1 } {
        random_calls(["turboquant", "trellis:m=8"], [64, 128], (0.05, 0.05), seed);
        random_calls(["graded:bits=4", "turboquant:bits=6"], [64, 64], (0.05, 0.05), 10 + seed);
        random_calls(["int8", "q8_0"], [64, 64], (0.002, 0.05), 20 + seed);
        random_calls(["int:bits=4,med=3", "fp8"], [64, 64], (0.1, 0.05), 30 + seed);
    }
}

/// Servers often forget the end of a page and write it again. The other rows do not drift.
#[test]
fn pages_that_open_and_close_again_do_not_drift() {
    for codec in ["turboquant", "trellis", "graded", "int", "q4_0", "octopus"] {
        let mut random = Random::new(5);
        let mut side = Side::new(Role::Keys, codec, 64, Backend::detect());
        side.set(&(0..64 * 4).collect::<Vec<_>>(), &mut random);
        side.pages.settle(&[], &in_order).unwrap();
        let width = side.width();
        let row: Vec<f32> = (0..width).map(|_| random.gaussian()).collect();
        let mut runs = Vec::new();
        for _ in 0..20 {
            side.pages.set_rows(&[63], &row).unwrap();
            // Others become newer, so that the page closes.
            side.pages.set_rows(&[64 * 3, 64 * 4 + 1], &[row.clone(), row.clone()].concat()).unwrap();
            side.pages.settle(&[], &in_order).unwrap();
            runs.push(side.read()[..64 * width].to_vec());
        }
        assert_eq!(runs[1], runs[19], "{codec}");
        assert!(side.pages.counts().reopened >= 20);
        let distance = |a: &[f16], b: &[f16]| {
            let square = |(x, y): (&f16, &f16)| (x.to_f32() - y.to_f32()).powi(2);
            a.iter().zip(b).map(square).sum::<f32>() / b.iter().map(|x| x.to_f32().powi(2)).sum::<f32>()
        };
        assert!(distance(&runs[19], &runs[0]) < 1e-3, "{codec}");
    }
}

/// Cells, and attention on them, have the same bits on every backend.
#[test]
fn every_backend_gives_the_same_bits() {
    for codecs in [["turboquant", "trellis"], ["graded", "trellis:m=2"]] {
        let mut all = Vec::new();
        for backend in Backend::available() {
            let mut random = Random::new(8);
            let mut sides = [
                Side::new(Role::Keys, codecs[0], 64, backend),
                Side::new(Role::Values, codecs[1], 64, backend),
            ];
            for side in &mut sides {
                side.set(&(0..CELLS).rev().collect::<Vec<_>>(), &mut random);
            }
            let queries: Vec<f32> = (0..HEADS * 40 * 64).map(|_| random.gaussian()).collect();
            sides[0].pages.settle(&queries, &in_order).unwrap();
            sides[1].pages.settle(&[], &in_order).unwrap();
            let options = CellAttend::new(0, CELLS).queries(5);
            let mut part = Partial::default();
            options
                .attend(&sides[0].pages, &sides[1].pages, 1, &queries[..15 * 64], 0..5, &mut part)
                .unwrap();
            let mut output = vec![0.0; 15 * 64];
            Partial::merge(&[part], &sides[1].pages, &[], &mut output).unwrap();
            let bits: Vec<u32> = output.iter().map(|x| x.to_bits()).collect();
            all.push((backend.name(), sides.map(|side| side.read()), bits));
        }
        for other in &all[1..] {
            assert_eq!((&other.1, &other.2), (&all[0].1, &all[0].2), "{} and {}", other.0, all[0].0);
        }
    }
}

/// A full cache has the bytes that its configuration requires, and no more.
#[test]
fn bytes_are_those_that_were_promised() {
    for codec in ["turboquant", "graded", "trellis:m=2", "f16"] {
        for role in [Role::Keys, Role::Values] {
            let mut random = Random::new(1);
            let mut side = Side::new(role, codec, 128, Backend::detect());
            for first in (0..CELLS * STREAMS).step_by(64) {
                side.set(&(first..first + 64).collect::<Vec<_>>(), &mut random);
                // Four sequences begin at the second to the fifth page.
                let (page, mut mask) = (first / 64, [f16::NEG_INFINITY; CELLS]);
                if (1..5).contains(&page) {
                    mask[first..first + 4].fill(f16::ZERO);
                    side.pages.observe(&CellAttend::new(0, CELLS).mask(&mask, CELLS)).unwrap();
                }
                side.pages.settle(&[], &in_order).unwrap();
            }
            let (bytes, promised) = (side.pages.bytes(), side.pages.config().required_bytes());
            // A balance and a prefix centre for each head; the end of each head's page, and the bytes before its rows.
            let more = 4 * HEADS * 128 + (4 * HEADS + 2) * side.pages.counts().closed;
            assert!(bytes <= promised + more && bytes + 4096 > promised, "{codec}: {bytes} of {promised}");
        }
    }
}

/// The output for one query that sees all cells of the first stream except one.
fn without(cell: usize, values: &CellPages) -> [f32; 64] {
    let keys = Side::new(Role::Keys, "f16", 64, Backend::detect());
    let mut mask = vec![f16::ZERO; CELLS];
    mask[cell] = f16::NEG_INFINITY;
    let mut part = Partial::default();
    let options = CellAttend::new(0, CELLS).mask(&mask, CELLS);
    options.attend(&keys.pages, values, 0, &[0.0; 64], 0..5, &mut part).unwrap();
    let mut output = [0.0; 64];
    Partial::merge(&[part], values, &[], &mut output).unwrap();
    output
}

/// A row that is not finite leaves its page exact, or is one of the first cells, which always are.
#[test]
fn rows_that_a_codec_cannot_hold_stay_exact() {
    let cases = Backend::available().flat_map(|backend| [(70, 1, backend), (0, 0, backend)]);
    for (cell, refused, backend) in cases {
        let mut random = Random::new(3);
        let mut side = Side::new(Role::Values, "turboquant", 64, backend);
        side.set(&(0..CELLS).collect::<Vec<_>>(), &mut random);
        let width = side.width();
        let mut row = vec![0.5; width];
        row[3] = f32::INFINITY;
        side.pages.set_rows(&[cell], &row).unwrap();
        side.set(&[200, 300], &mut random); // which are newer: the page is to close
        side.pages.settle(&[], &in_order).unwrap();
        assert_eq!((side.pages.counts().refused, side.pages.counts().closed > 0), (refused, true));
        let mut rows = vec![f16::ZERO; width];
        side.pages.read_rows(cell..cell + 1, &mut rows).unwrap();
        assert_eq!(rows[3], f16::INFINITY);
        // A query that does not see it is not touched by it.
        let output = without(cell, &side.pages);
        assert!(output.iter().all(|x| x.is_finite()), "cell {cell}");
    }
}

/// Rows and queries that are not finite have no part in the balance of keys: later pages close.
#[test]
fn the_balance_is_decided_by_finite_rows() {
    let mut queries = vec![0.5; 64 * HEADS * 4];
    queries[70] = f32::NAN;
    for (sample, backend) in
        Backend::available().flat_map(|backend| [(&[][..], backend), (&queries, backend)])
    {
        let mut random = Random::new(4);
        let mut side = Side::new(Role::Keys, "graded", 64, backend);
        side.set(&(0..128).collect::<Vec<_>>(), &mut random);
        let mut row = vec![0.5; side.width()];
        row[3] = f32::INFINITY;
        side.pages.set_rows(&[70], &row).unwrap();
        for first in [128, 192, 256] {
            side.set(&(first..first + 64).collect::<Vec<_>>(), &mut random);
            side.pages.settle(sample, &in_order).unwrap();
        }
        let counts = side.pages.counts();
        assert_eq!((counts.refused, counts.closed), (1, 2), "{counts:?}");
    }
}

/// A call may span any number of closed pages.
#[test]
fn one_call_attends_to_many_pages() {
    const MANY: usize = 64 * 130;
    let sides = [Role::Keys, Role::Values].map(|role| {
        let config = CellConfig::new(role, 1, 128, MANY).codec("trellis:m=2".parse().unwrap());
        let mut pages = CellPages::new(&config, Backend::detect()).unwrap();
        let mut random = Random::new(5);
        for first in (0..MANY).step_by(64) {
            let rows: Vec<f32> = (0..64 * 128).map(|_| random.gaussian()).collect();
            pages.set_rows(&(first..first + 64).collect::<Vec<_>>(), &rows).unwrap();
            pages.settle(&[], &in_order).unwrap();
        }
        pages
    });
    let mut random = Random::new(6);
    let queries: Vec<f32> = (0..64 * 128).map(|_| random.gaussian()).collect();
    let options = CellAttend::new(0, MANY).queries(64);
    let attend = |pages| {
        let mut part = Partial::default();
        options.attend(&sides[0], &sides[1], 0, &queries, pages, &mut part).unwrap();
        part
    };
    let merge = |parts: Vec<Partial>| {
        let mut output = vec![0.0; 64 * 128];
        Partial::merge(&parts, &sides[1], &[], &mut output).unwrap();
        output
    };
    let (whole, parts) = (merge(vec![attend(0..130)]), merge(vec![attend(0..60), attend(60..130)]));
    let difference = whole.iter().zip(&parts).fold(0.0f32, |most, (x, y)| most.max((x - y).abs()));
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let backend = Backend::detect();
    let config = CellConfig::new(Role::Keys, 2, 64, 128);
    for (config, why) in [
        (config.dim(65), "width 65"),
        (config.cells(100), "multiple of 64"),
        (config.cells(0), "multiple of 64"),
        (config.heads(0), "heads"),
        (config.streams(0), "streams"),
        (config.sinks(65), "64 sinks"),
        (config.open_pages(0), "open page"),
        (config.heads(1 << 16).dim(576).codec("f32".parse().unwrap()), "4 GiB"),
    ] {
        let error = CellPages::new(&config, backend).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let mut pages = CellPages::new(&config, backend).unwrap();
    let row = [1.0; 128];
    assert!(matches!(pages.set_rows(&[3, 128], &[1.0; 256]), Err(Error::Missing { number: 128, .. })));
    assert!(matches!(pages.set_rows(&[3], &[1.0; 127]), Err(Error::Length { .. })));
    assert!(matches!(pages.write_rows(127, &[f16::ONE; 256]), Err(Error::Missing { .. })));
    assert!(matches!(pages.write_rows(0, &[f16::ONE; 100]), Err(Error::Length { .. })));
    assert!(matches!(pages.read_rows(127..129, &mut [f16::ONE; 256]), Err(Error::Missing { .. })));
    assert!(matches!(pages.copy_cells(0..64, 32), Err(Error::Unsupported { .. })));
    assert!(matches!(pages.copy_cells(64..128, 65), Err(Error::Missing { .. })));
    assert!(matches!(pages.map_rows(0..129, &mut |_, _| {}), Err(Error::Missing { .. })));
    assert!(matches!(pages.settle(&[0.0; 100], &in_order), Err(Error::Rows { .. })));
    assert!(pages.is_empty());
    pages.set_rows(&[3], &row).unwrap();
    let values = CellPages::new(&config.role(Role::Values), backend).unwrap();
    let mask = [f16::ZERO; 128];
    let attend = |options: CellAttend, head: usize, queries: &[f32], page: usize| {
        options.attend(&pages, &values, head, queries, page..page + 1, &mut Partial::default())
    };
    let all = CellAttend::new(0, 128);
    assert!(attend(all, 0, &[0.0; 64], 1).is_ok());
    assert!(attend(all, 2, &[0.0; 64], 0).is_err());
    assert!(attend(all, 0, &[0.0; 64], 2).is_err());
    assert!(attend(all, 0, &[0.0; 63], 0).is_err());
    assert!(attend(CellAttend::new(64, 128), 0, &[0.0; 64], 0).is_err());
    assert!(attend(CellAttend::new(32, 64), 0, &[0.0; 64], 0).is_err());
    assert!(attend(all.queries(0), 0, &[0.0; 64], 0).is_err());
    assert!(attend(all.queries(2).mask(&mask, 64), 0, &[0.0; 128], 0).is_err());
    assert!(attend(all.slopes(&[1.0, 1.0]), 0, &[0.0; 64], 0).is_err());
    assert!(attend(all.scale(f32::NAN), 0, &[0.0; 64], 0).is_err());
}
