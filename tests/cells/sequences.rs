//! The first cells of sequences stay exact, wherever they are: sequences that share a stream, compared with exact cells.

use crate::common::Random;
use half::f16;
use octaplex::cells::{CellAttend, CellConfig, CellPages, Partial, in_order};
use octaplex::codecs::Role;
use octaplex::{Backend, Error};

const HEADS: usize = 2;
const DIM: usize = 64;
const WIDTH: usize = HEADS * DIM;
const SINKS: usize = 4;

/// A host of several sequences, as llama-server: a token takes the next free cell.
struct Host {
    /// Coded keys and values, and exact ones.
    coded: [CellPages; 2],
    exact: [CellPages; 2],
    /// The sequence and the position of each cell's token.
    owners: Vec<Option<(usize, usize)>>,
    head: usize,
    random: Random,
    /// A direction that all first tokens of sequences share, and that all queries look for.
    sink: Vec<f32>,
    /// Squared errors and squares of the outputs of each sequence.
    errors: Vec<[f64; 2]>,
}

impl Host {
    fn new(cells: usize, sequences: usize, backend: Backend, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let side = |role, codec: &str| {
            let config = CellConfig::new(role, HEADS, DIM, cells).codec(codec.parse().unwrap());
            CellPages::new(&config, backend).unwrap()
        };
        let both = |codec| [side(Role::Keys, codec), side(Role::Values, codec)];
        Self {
            coded: both("turboquant"),
            exact: both("f16"),
            owners: vec![None; cells],
            head: 0,
            sink: (0..DIM).map(|_| random.gaussian()).collect(),
            random,
            errors: vec![[0.0; 2]; sequences],
        }
    }

    fn cells(&self) -> usize {
        self.owners.len()
    }

    /// The cells of a sequence by position.
    fn cells_of(&self, sequence: usize) -> Vec<usize> {
        let own = |(cell, owner): (usize, &Option<(usize, usize)>)| match owner {
            Some((of, position)) if *of == sequence => Some((*position, cell)),
            _ => None,
        };
        let mut cells: Vec<(usize, usize)> = self.owners.iter().enumerate().filter_map(own).collect();
        cells.sort_unstable();
        cells.into_iter().map(|(_, cell)| cell).collect()
    }

    /// Forgets a sequence from a position on. The cache does not hear of it.
    fn forget(&mut self, sequence: usize, from: usize) {
        let gone =
            |owner: &Option<(usize, usize)>| owner.is_some_and(|(of, at)| of == sequence && at >= from);
        self.owners.iter_mut().filter(|owner| gone(owner)).for_each(|owner| *owner = None);
    }

    /// Writes and attends to a token of each of these sequences, in one batch.
    fn batch(&mut self, sequences: &[usize]) {
        let (count, cells) = (sequences.len(), self.cells());
        let mut lengths: Vec<usize> = (0..self.errors.len()).map(|of| self.cells_of(of).len()).collect();
        let (mut taken, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for &sequence in sequences {
            while self.owners[self.head].is_some() {
                self.head = (self.head + 1) % cells;
            }
            let position = lengths[sequence];
            lengths[sequence] += 1;
            self.owners[self.head] = Some((sequence, position));
            taken.push((sequence, position, self.head));
            for channel in 0..WIDTH {
                let sink = if position < SINKS { 4.0 * self.sink[channel % DIM] } else { 0.0 };
                keys.push(self.random.gaussian() + sink);
                values.push(self.random.gaussian());
            }
        }
        let numbers: Vec<usize> = taken.iter().map(|(_, _, cell)| *cell).collect();
        for sides in [&mut self.coded, &mut self.exact] {
            sides[0].set_rows(&numbers, &keys).unwrap();
            sides[1].set_rows(&numbers, &values).unwrap();
        }
        let mut mask = vec![f16::NEG_INFINITY; count * cells];
        for ((sequence, position, _), row) in taken.iter().zip(mask.chunks_exact_mut(cells)) {
            for (x, owner) in row.iter_mut().zip(&self.owners) {
                if owner.is_some_and(|(of, at)| of == *sequence && at <= *position) {
                    *x = f16::ZERO;
                }
            }
        }
        let queries: Vec<f32> =
            (0..count * DIM).map(|i| 0.3 * self.random.gaussian() + 0.2 * self.sink[i % DIM]).collect();
        let options = CellAttend::new(0, cells).queries(count).mask(&mask, cells);
        let outputs = [&self.coded, &self.exact].map(|[keys, values]| {
            let (mut part, mut output) = (Partial::default(), vec![0.0; count * DIM]);
            options.attend(keys, values, 0, &queries, 0..options.pages(), &mut part).unwrap();
            Partial::merge(&[part], values, &[], &mut output).unwrap();
            output
        });
        for (n, (x, y)) in outputs[0].iter().zip(&outputs[1]).enumerate() {
            let of = &mut self.errors[taken[n / DIM].0];
            of[0] += f64::from(x - y).powi(2);
            of[1] += f64::from(*y).powi(2);
        }
        for side in &mut self.coded {
            side.observe(&options).unwrap();
            side.settle(&[], &in_order).unwrap();
        }
        self.check_bytes();
    }

    fn check_bytes(&self) {
        for side in &self.coded {
            // A balance for each head; the end of each head's page, and the bytes before its rows.
            let more = 4 * WIDTH + (4 * HEADS + 2) * self.cells() / 64;
            let (bytes, promised) = (side.bytes(), side.config().required_bytes());
            assert!(side.is_unsettled() || bytes <= promised + more, "{bytes} of {promised}");
        }
    }

    /// The first cells of a sequence have the rows that were written.
    fn is_exact(&self, sequence: usize) -> bool {
        self.cells_of(sequence).iter().take(SINKS).all(|&cell| self.coded_equals(cell, cell))
    }

    /// A coded side's row is that of an exact side's cell.
    fn coded_equals(&self, cell: usize, exact: usize) -> bool {
        self.coded.iter().zip(&self.exact).all(|(coded, expected)| row(coded, cell) == row(expected, exact))
    }
}

fn row(pages: &CellPages, cell: usize) -> Vec<f16> {
    let mut row = vec![f16::ZERO; WIDTH];
    pages.read_rows(cell..cell + 1, &mut row).unwrap();
    row
}

/// Two and three slots of one stream: every sequence has exact first cells, and the accuracy of the first.
#[test]
fn sequences_that_share_a_stream_are_equally_exact() {
    for backend in Backend::available() {
        for (sequences, seed) in [(2, 1), (3, 2), (3, 3)] {
            let mut host = Host::new(1024, sequences, backend, seed);
            // Prompts in turn, then steps of all sequences, mixed.
            for sequence in 0..sequences {
                (0..4).for_each(|_| host.batch(&vec![sequence; 30 + 7 * sequence]));
            }
            for _ in 0..60 {
                let count = 1 + host.random.below(3);
                let batch: Vec<usize> = (0..count).map(|_| host.random.below(sequences)).collect();
                host.batch(&batch);
            }
            assert!(host.coded[0].counts().closed > 2);
            let of = |[error, power]: [f64; 2]| (error / power).sqrt();
            let errors: Vec<f64> = host.errors.iter().map(|of_sequence| of(*of_sequence)).collect();
            for (sequence, error) in errors.iter().enumerate() {
                assert!(host.is_exact(sequence), "{sequence} on {}", backend.name());
                assert!(*error < 1.5 * errors[0] && *error > 0.0, "{errors:?}");
            }
            // Only the first cells are exact.
            let cells = host.cells_of(1);
            assert!((SINKS..40).all(|position| !host.coded_equals(cells[position], cells[position])));
        }
    }
}

/// Tokens of several sequences that begin at the same time, one token a batch: cells in turn.
#[test]
fn sequences_may_begin_at_the_same_time() {
    let mut host = Host::new(1024, 3, Backend::detect(), 4);
    (0..120).for_each(|_| host.batch(&[0, 1, 2]));
    assert!((0..3).all(|sequence| host.is_exact(sequence)));
}

/// A conversation keeps its exact cells while other sequences come and go. Memory stays as promised.
#[test]
fn exact_cells_that_nobody_sees_give_way() {
    let mut host = Host::new(1024, 2, Backend::detect(), 5);
    host.batch(&[1; 70]); // takes the first cells
    host.batch(&[0; 70]);
    let mut cells = Vec::new();
    for _ in 0..9 {
        host.forget(1, 0);
        host.batch(&[1; 70]);
        host.batch(&[0]);
        cells.push(host.cells_of(1));
    }
    assert!(host.is_exact(0) && host.is_exact(1));
    // Of the finished sequences whose cells are not reused, the oldest are coded now.
    let taken = |cell: usize| host.owners[cell].is_some();
    let over = cells.iter().filter(|cells| !cells.iter().any(|cell| taken(*cell)));
    let exact: Vec<bool> =
        over.map(|cells| (0..SINKS).all(|n| host.coded_equals(cells[n], cells[n]))).collect();
    assert!(exact.contains(&false), "{exact:?}");
}

/// A rollback to the start, and another sequence in the cells of the first.
#[test]
fn cells_of_another_token_are_not_exact_for_long() {
    let mut host = Host::new(512, 2, Backend::detect(), 6);
    host.batch(&[1; 64]);
    host.batch(&[0; 200]);
    assert!(host.is_exact(0));
    // The sequence continues elsewhere from position 2, and others take its cells.
    let first = host.cells_of(0)[2];
    host.forget(0, 2);
    host.head = first + 1;
    host.batch(&[0; 100]);
    host.head = first;
    host.batch(&[1; 30]);
    host.batch(&[0; 130]);
    assert_eq!(host.owners[first].map(|owner| owner.0), Some(1));
    assert!(host.is_exact(0));
    assert!(!host.coded_equals(first, first));
}

/// Copies and shifts keep exact cells; a cleared cache has none.
#[test]
fn copies_and_shifts_keep_exact_cells() {
    let mut host = Host::new(512, 2, Backend::detect(), 7);
    host.batch(&[1; 70]);
    host.batch(&[0; 190]);
    let cells = host.cells_of(0);
    let (first, page) = (cells[0], cells[0] / 64 * 64);
    let mut negate = |_: usize, rows: &mut [f32]| rows.iter_mut().for_each(|x| *x = -*x);
    for side in host.coded.iter_mut().chain(&mut host.exact) {
        side.copy_cells(page..page + 64, 320).unwrap(); // shares the page
        side.copy_cells(first..first + 40, 401).unwrap();
        side.map_rows(0..512, &mut negate).unwrap();
        // Newer cells close the copies, and a write into the shared page opens and closes one.
        side.set_rows(&[383, 450, 511, 500], &[0.5; 4 * WIDTH]).unwrap();
        side.settle(&[], &in_order).unwrap();
        side.set_rows(&[100, 300], &[0.5; 2 * WIDTH]).unwrap();
        side.settle(&[], &in_order).unwrap();
        side.set_rows(&[500, 450], &[0.5; 2 * WIDTH]).unwrap();
        side.settle(&[], &in_order).unwrap();
    }
    for n in 0..SINKS {
        for cell in [first + n, 320 + first % 64 + n, 401 + n] {
            assert!(host.coded_equals(cell, cell), "cell {cell}, {n} of the sequence");
        }
    }
    assert!(!host.coded_equals(first + SINKS, first + SINKS));
    host.check_bytes();
    host.coded.iter_mut().for_each(CellPages::clear);
    host.owners.fill(None);
    host.head = 0;
    host.batch(&[1; 250]);
    assert!(!host.coded_equals(first, first), "a cell that was exact before");
}

/// A state comes without the queries at its start: its first rows are those that any query sees first.
#[test]
fn a_restored_sequence_has_exact_cells() {
    let mut host = Host::new(512, 2, Backend::detect(), 8);
    host.batch(&[1; 70]);
    host.batch(&[0; 150]);
    let (from, rows) = (host.cells_of(0), 150);
    for side in host.coded.iter_mut().chain(&mut host.exact) {
        let mut state = vec![f16::ZERO; rows * WIDTH];
        side.read_rows(from[0]..from[0] + rows, &mut state).unwrap();
        side.write_rows(230, &state).unwrap();
    }
    host.forget(0, 0);
    (0..rows).for_each(|n| host.owners[230 + n] = Some((0, n)));
    host.head = 400;
    host.batch(&[0; 100]);
    assert!(host.coded[0].counts().closed > 0);
    for n in 0..SINKS {
        assert!(host.coded_equals(230 + n, from[n]), "row {n}");
    }
    assert!(!host.coded_equals(230 + SINKS, from[SINKS]));
}

/// Masks that show a few cells to every query make few cells exact, and pages close.
#[test]
fn masks_cannot_make_everything_exact() {
    let mut random = Random::new(9);
    for sinks in [1, 4, 64] {
        let config =
            CellConfig::new(Role::Values, HEADS, DIM, 512).sinks(sinks).codec("turboquant".parse().unwrap());
        let mut pages = CellPages::new(&config, Backend::detect()).unwrap();
        for round in 0..40 {
            let cells: Vec<usize> = (0..64).map(|n| (round * 64 + n) % 512).collect();
            let rows: Vec<f32> = (0..64 * WIDTH).map(|_| random.gaussian()).collect();
            pages.set_rows(&cells, &rows).unwrap();
            let mut mask = vec![f16::NEG_INFINITY; 512 * 512];
            (0..512).for_each(|query| mask[query * 512 + query] = f16::ZERO); // each cell has a query of its own
            pages.observe(&CellAttend::new(0, 512).queries(512).mask(&mask, 512)).unwrap();
            pages.settle(&[], &in_order).unwrap();
            assert!(!pages.is_unsettled());
            let (bytes, promised) = (pages.bytes(), config.required_bytes());
            assert!(bytes <= promised + (4 * HEADS + 2) * 8, "{sinks} sinks: {bytes} of {promised}");
        }
        assert!(pages.counts().closed > 30);
    }
}

#[test]
fn wrong_masks_are_refused() {
    let config = CellConfig::new(Role::Keys, HEADS, DIM, 128);
    let mut pages = CellPages::new(&config, Backend::detect()).unwrap();
    let mask = [f16::ZERO; 256];
    let mut observe = |options: CellAttend| pages.observe(&options);
    assert!(observe(CellAttend::new(0, 128).queries(2).mask(&mask, 128)).is_ok());
    assert!(observe(CellAttend::new(0, 128).queries(usize::MAX)).is_ok(), "no mask shows nothing");
    for options in [
        CellAttend::new(0, 128).queries(3).mask(&mask, 128),
        CellAttend::new(0, 128).queries(2).mask(&mask, 100),
        CellAttend::new(0, 128).queries(usize::MAX).mask(&mask, usize::MAX),
    ] {
        assert!(matches!(observe(options), Err(Error::Length { .. })));
    }
    for (first, cells) in [(64, 128), (0, usize::MAX), (usize::MAX - 63, 64), (128, 1)] {
        assert!(matches!(observe(CellAttend::new(first, cells)), Err(Error::Missing { .. })), "{first}");
    }
    for options in [CellAttend::new(32, 64), CellAttend::new(0, 64).queries(0)] {
        assert!(matches!(observe(options), Err(Error::Unsupported { .. })));
    }
}
