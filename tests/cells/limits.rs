//! Calls at the limits of numbers, parts that do not fit, values that are not finite, and too little memory.

use crate::common::Random;
use half::f16;
use octaplex::cells::{CellAttend, CellConfig, CellPages, Partial, in_order};
use octaplex::codecs::Role;
use octaplex::{Backend, Error};

fn pages(role: Role, dim: usize) -> CellPages {
    let mut random = Random::new(dim as u64);
    let config = CellConfig::new(role, 1, dim, 256).codec("turboquant".parse().unwrap());
    let mut pages = CellPages::new(&config, Backend::detect()).unwrap();
    let rows: Vec<f32> = (0..200 * dim).map(|_| random.gaussian()).collect();
    pages.set_rows(&(0..200).collect::<Vec<_>>(), &rows).unwrap();
    pages.settle(&[], &in_order).unwrap();
    pages
}

fn part(keys: &CellPages, values: &CellPages, rows: usize) -> Partial {
    let (mut part, queries) = (Partial::default(), vec![0.1; rows * keys.config().dim]);
    CellAttend::new(0, 200).attend(keys, values, 0, &queries, 0..4, &mut part).unwrap();
    part
}

/// Parts of another width or of other queries are refused. Merging changes no part.
#[test]
fn parts_that_do_not_fit_are_refused() {
    let (keys, v64, v128) = (pages(Role::Keys, 64), pages(Role::Values, 64), pages(Role::Values, 128));
    let (narrow, wide) = (part(&keys, &v64, 2), part(&keys, &v128, 2));
    let parts = |each: &[&Partial]| each.iter().map(|part| (*part).clone()).collect::<Vec<_>>();
    let mut output = [7.0; 256];
    for (parts, values, len) in [
        (parts(&[&wide]), &v64, 128),
        (parts(&[&narrow]), &v128, 256),
        (parts(&[&narrow, &wide]), &v64, 128),
        (parts(&[&wide, &narrow]), &v128, 256),
        (parts(&[&narrow, &part(&keys, &v64, 1)]), &v64, 128),
        (parts(&[&narrow, &Partial::default()]), &v64, 128),
        (parts(&[&narrow]), &v64, 129),
    ] {
        let refused = Partial::merge(&parts, values, &[], &mut output[..len]);
        assert!(matches!(refused, Err(Error::Length { .. })), "{refused:?}");
    }
    assert_eq!(output, [7.0; 256]);
    for (first, second, values) in
        [(&narrow, &wide, &v64), (&wide, &narrow, &v64), (&narrow, &narrow, &v128), (&wide, &wide, &v64)]
    {
        let mut sum = first.clone();
        assert!(matches!(sum.add(values, second), Err(Error::Length { .. })));
    }
    let both = parts(&[&narrow, &narrow]);
    let runs = [(); 3].map(|()| {
        let mut output = [0.0; 128];
        Partial::merge(&both, &v64, &[0.5, 0.25], &mut output).unwrap();
        output
    });
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[0], runs[2]);
    Partial::merge(&[], &v64, &[], &mut output).unwrap();
    assert_eq!(output, [0.0; 256]);
}

/// Numbers at the ends of their types are errors, and change nothing.
#[test]
fn numbers_at_the_limits_are_refused() {
    let mut cells = pages(Role::Values, 64);
    let (before, row) = (cells.clone(), [f16::ONE; 128]);
    for first in [usize::MAX, usize::MAX - 1, 255, 256, usize::MAX / 2 + 1] {
        assert!(matches!(cells.write_rows(first, &row), Err(Error::Missing { .. })), "{first}");
        assert!(
            matches!(cells.set_rows(&[first, 0x100], &[1.0; 128]), Err(Error::Missing { .. })),
            "{first}"
        );
        let read = cells.read_rows(first..first.saturating_add(2), &mut [f16::ONE; 128]);
        assert!(read.is_err(), "{first}");
        assert!(
            cells.map_rows(first..first.saturating_add(2), &mut |_, _| {}).is_err() || first == usize::MAX
        );
        assert!(matches!(cells.copy_cells(0..64, first), Err(Error::Missing { .. })), "{first}");
    }
    for from in [0..usize::MAX, 1..usize::MAX, usize::MAX - 1..usize::MAX, 250..257] {
        for to in [0, 300, usize::MAX] {
            let copied = cells.copy_cells(from.clone(), to);
            assert!(copied.is_err() || from.start == to, "{from:?} to {to}: {copied:?}");
        }
        assert!(cells.read_rows(from.clone(), &mut [f16::ONE; 64]).is_err());
        assert!(cells.map_rows(from, &mut |_, _| {}).is_err());
    }
    // An empty call changes nothing.
    cells.write_rows(256, &[]).unwrap();
    cells.set_rows(&[], &[]).unwrap();
    cells.read_rows(256..256, &mut []).unwrap();
    cells.copy_cells(7..7, 9).unwrap();
    cells.map_rows(7..7, &mut |_, _| panic!("no rows")).unwrap();
    let read = |cells: &CellPages| {
        let mut rows = vec![f16::ONE; 256 * 64];
        cells.read_rows(0..256, &mut rows).unwrap();
        rows
    };
    assert_eq!((read(&cells), cells.counts()), (read(&before), before.counts()));
    let attend = |options: CellAttend, head, pages| {
        options.attend(&before, &before, head, &[0.1; 64], pages, &mut Partial::default())
    };
    for (first, count) in
        [(usize::MAX, 1), (usize::MAX - 63, 64), (0, usize::MAX), (64, usize::MAX), (256, 1)]
    {
        assert!(attend(CellAttend::new(first, count), 0, 0..1).is_err(), "{first} {count}");
    }
    assert!(attend(CellAttend::new(0, 256), usize::MAX, 0..1).is_err());
    assert!(attend(CellAttend::new(0, 256), 0, 0..usize::MAX).is_err());
    assert!(attend(CellAttend::new(0, 256).queries(usize::MAX), 0, 0..1).is_err());
    assert!(attend(CellAttend::new(0, 256).queries(usize::MAX).mask(&[], usize::MAX), 0, 0..1).is_err());
    assert!(attend(CellAttend::new(256, 0), 0, 0..0).is_ok());
}

/// Sizes of a configuration never panic, whatever its numbers; impossible ones are refused.
#[test]
fn configurations_at_the_limits_are_refused() {
    const MOST: usize = usize::MAX;
    for [heads, dim, cells, streams, sinks, open] in [
        [MOST; 6],
        [0; 6],
        [1, 64, MOST / 4 - 63, MOST, 4, 1],
        [1, 64, MOST - 63, 65_536, 64, MOST],
        [MOST, 64, 256, 1, 4, 2],
        [1, MOST, 256, 1, 4, 2],
        [1, 1, 256, 1, 4, 2],
        [1, 64, 256, 1, MOST, 2],
    ] {
        for codec in ["turboquant", "graded", "trellis", "int", "q4_0", "f16", "f32", "octopus", "hqmq"] {
            for role in [Role::Keys, Role::Values] {
                let mut config = CellConfig::new(role, heads, dim, cells).codec(codec.parse().unwrap());
                (config.streams, config.sinks, config.open_pages) = (streams, sinks, open);
                let _ = (config.width(), config.page_bytes(), config.required_bytes());
                assert!(CellPages::new(&config, Backend::detect()).is_err(), "{config:?}");
            }
        }
    }
}

/// A row that is not finite leaves its page exact, with the same bytes on every backend.
#[test]
fn pages_with_a_row_that_is_not_finite_are_the_same_on_every_backend() {
    for codec in ["trellis", "q8_0", "int", "fp8", "bf16", "f32", "graded", "turboquant", "octopus", "hqmq"] {
        for (role, bad) in [Role::Keys, Role::Values].into_iter().flat_map(|role| {
            [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65520.0, 65504.0, 6e-8].map(|bad| (role, bad))
        }) {
            let mut seen = Vec::new();
            for backend in Backend::available() {
                let mut random = Random::new(11);
                let config = CellConfig::new(role, 1, 64, 320).sinks(0).open_pages(1);
                let mut pages = CellPages::new(&config.codec(codec.parse().unwrap()), backend).unwrap();
                // A channel that the balance of keys makes small.
                let mut rows: Vec<f32> =
                    (0..192 * 64).map(|i| random.gaussian() * if i % 64 == 3 { 40.0 } else { 1.0 }).collect();
                rows[140 * 64 + 3] = bad;
                let cells: Vec<usize> = (0..192).collect();
                for page in [0..128, 128..192] {
                    pages.set_rows(&cells[page.clone()], &rows[page.start * 64..page.end * 64]).unwrap();
                    pages.settle(&[], &in_order).unwrap();
                }
                pages.set_rows(&[200], &rows[..64]).unwrap();
                pages.settle(&[], &in_order).unwrap();
                let mut read = vec![f16::ZERO; 320 * 64];
                pages.read_rows(0..320, &mut read).unwrap();
                let bits: Vec<u16> = read.iter().map(|x| x.to_bits()).collect();
                if !f16::from_f32(bad).is_finite() {
                    assert_eq!(pages.counts().refused, 1, "{codec} {role:?} {bad} {}", backend.name());
                    let exact = |n: usize| f16::from_f32(rows[128 * 64 + n]).to_bits() == bits[128 * 64 + n];
                    assert!((0..64 * 64).all(exact), "{codec} {role:?} {bad} {}", backend.name());
                }
                // A query that does not see the row.
                let mut mask = [f16::ZERO; 320];
                mask[140] = f16::NEG_INFINITY;
                let mut part = Partial::default();
                let options = CellAttend::new(0, 320).mask(&mask, 320);
                let other = CellPages::new(&config.codec("f16".parse().unwrap()), backend).unwrap();
                let [keys, values] = if role == Role::Keys { [&pages, &other] } else { [&other, &pages] };
                options.attend(keys, values, 0, &[0.01; 64], 0..5, &mut part).unwrap();
                let mut output = [0.0; 64];
                Partial::merge(&[part], values, &[], &mut output).unwrap();
                assert!(output.iter().all(|x| x.is_finite()), "{codec} {role:?} {bad} {}", backend.name());
                seen.push((pages.counts(), pages.bytes(), bits, output.map(f32::to_bits)));
            }
            for other in &seen[1..] {
                assert_eq!(other, &seen[0], "{codec} {role:?} {bad}");
            }
        }
    }
}

/// Rows at the end of f16 stay finite, also after their page was coded and opened again.
#[test]
fn rows_at_the_end_of_f16_stay_finite() {
    for codec in ["q8_0", "int", "fp8", "turboquant", "trellis", "q4_0"] {
        for backend in Backend::available() {
            let config = CellConfig::new(Role::Values, 1, 64, 256).sinks(0).open_pages(1);
            let mut pages = CellPages::new(&config.codec(codec.parse().unwrap()), backend).unwrap();
            let rows: Vec<f32> = (0..128 * 64).map(|i| if i % 3 == 0 { 65504.0 } else { -61000.0 }).collect();
            pages.set_rows(&(0..128).collect::<Vec<_>>(), &rows).unwrap();
            pages.settle(&[], &in_order).unwrap();
            let mut read = vec![f16::ZERO; 64 * 64];
            pages.read_rows(0..64, &mut read).unwrap();
            assert!(read.iter().all(|x| x.is_finite()), "{codec} {}", backend.name());
        }
    }
}

/// A huge value in a page of few rows decides neither balance nor grades of later pages.
#[test]
fn a_huge_value_among_few_rows_decides_nothing() {
    for codec in ["graded", "trellis", "turboquant", "int"] {
        let error = |huge: f32| {
            let mut random = Random::new(21);
            let config = CellConfig::new(Role::Keys, 1, 64, 320).sinks(0).open_pages(1);
            let mut pages = CellPages::new(&config.codec(codec.parse().unwrap()), Backend::detect()).unwrap();
            let mut rows: Vec<f32> =
                (0..256 * 64).map(|i| random.gaussian() * (1.0 + (i % 5) as f32)).collect();
            rows[2 * 64 + 9] += huge;
            let cells: Vec<usize> = (0..256).collect();
            for part in [0..5, 64..192, 192..256] {
                pages.set_rows(&cells[part.clone()], &rows[part.start * 64..part.end * 64]).unwrap();
                pages.settle(&[], &in_order).unwrap();
            }
            let mut read = vec![f16::ZERO; 64 * 64];
            pages.read_rows(128..192, &mut read).unwrap();
            let pairs = read.iter().zip(&rows[128 * 64..]);
            pairs.map(|(a, b)| f64::from(a.to_f32() - b).powi(2)).sum::<f64>().sqrt()
        };
        let (without, with) = (error(0.0), error(20_000.0));
        assert!(with < 1.1 * without && without > 0.0, "{codec}: {with} instead of {without}");
    }
}

/// Queries that are not finite, or whose squares are not, decide nothing: the others do.
#[test]
fn queries_beyond_any_limit_decide_nothing() {
    let mut random = Random::new(22);
    let queries: Vec<f32> =
        (0..40 * 64).map(|i| random.gaussian() * if i % 64 == 9 { 8.0 } else { 1.0 }).collect();
    let rows: Vec<f32> = (0..192 * 64).map(|_| random.gaussian()).collect();
    let coded = |queries: &[f32]| {
        let config = CellConfig::new(Role::Keys, 1, 64, 256).codec("graded".parse().unwrap());
        let mut pages = CellPages::new(&config.open_pages(1), Backend::detect()).unwrap();
        pages.set_rows(&(0..192).collect::<Vec<_>>(), &rows).unwrap();
        pages.settle(queries, &in_order).unwrap();
        assert_eq!(pages.counts().closed, 2);
        let mut read = vec![f16::ZERO; 192 * 64];
        pages.read_rows(0..192, &mut read).unwrap();
        read
    };
    let usual = coded(&queries);
    assert!(usual != coded(&[]), "queries decide");
    for bad in [f32::NAN, f32::NEG_INFINITY, 1e30] {
        let mut row = [0.5; 64];
        row[20] = bad;
        assert!(coded(&[&queries[..], &row].concat()) == usual, "{bad}");
    }
}

/// Tasks that do not run leave their pages exact.
#[test]
fn tasks_that_do_not_run_code_nothing() {
    let mut cells = pages(Role::Values, 64);
    let closed = cells.counts().closed;
    cells.set_rows(&[255, 130, 70], &[0.25; 3 * 64]).unwrap();
    let mut before = vec![f16::ONE; 256 * 64];
    cells.read_rows(0..256, &mut before).unwrap();
    cells.settle(&[], &|_, _| {}).unwrap();
    let mut after = vec![f16::ONE; 256 * 64];
    cells.read_rows(0..256, &mut after).unwrap();
    assert_eq!((before, cells.counts().closed), (after, closed));
}

/// More cells than the machine has memory for are an error.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn too_little_memory_is_an_error() {
    let config = CellConfig::new(Role::Keys, 1, 64, 1 << 32).streams(1 << 16);
    let error = CellPages::new(&config, Backend::detect()).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
}
