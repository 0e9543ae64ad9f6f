//! Keys of two trellis codes, for two halves of sorted channels: pages, appends, steps and blocks of
//! queries.

use super::append::Both;
use super::{BLOCK_TOLERANCE, Case, TOLERANCE, assert_pages, case, device, each_width, error};
use octaplex::cache::Center;
use octaplex::{Attend, Error, LayerConfig, gpu};

/// Widths whose half is a supported width too.
const WIDTHS: [usize; 4] = [64, 128, 192, 256];

/// Keys and values: the defaults, the finest and the smallest, halves that do not fit registers, and other
/// values.
const PAIRS: [(&str, &str); 6] = [
    ("graded", "trellis"),
    ("graded:bits=4", "trellis:m=8"),
    ("graded:bits=2", "trellis:m=2"),
    ("graded:fine=4,coarse=2,states=16,seed=7", "int:bits=8,group=16"),
    ("graded:fine=2,coarse=8", "turboquant"),
    ("graded:fine=16,coarse=1", "trellis:m=16"),
];

fn cases(dim: usize) -> impl Iterator<Item = Case> {
    PAIRS.into_iter().enumerate().map(move |(number, (keys, values))| {
        let mut case = case(keys, values, dim, (14, 2), 900);
        case.seed = number as u64;
        let center = [Center::Page, Center::Prefix, Center::Page, Center::Off][(number + dim / 64) % 4];
        let page = [64, 128, 256][(number + dim / 64) % 3];
        case.config = case.config.center(center).page(page).balance(number % 4 != 3);
        case
    })
}

/// Tokens appended on the GPU have the CPU's bytes, round-trip, and attend like f64; so do blocks.
#[test]
fn pages_and_attention() {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        for case in cases(dim) {
            let LayerConfig { keys, values, page, .. } = case.config;
            let what = format!("{keys}, {values}, width {dim}, pages of {page}");
            let mut both = Both::new(&device, &case);
            both.append_and_compare(400);
            both.append_and_compare(1);
            both.append_and_compare(900 - both.given);
            assert!(both.compared > 1, "{what}: {}", both.compared);
            both.attend(&device, &case);
            let layer = case.layer();
            let mut gpu = case.on_gpu(&device, &layer);
            assert_pages(&mut gpu, 0, &layer);
            let wrong = |gpu: &mut gpu::Layer, options: &Attend| {
                let queries = case.block(options.queries.unwrap_or(1));
                let mut output = vec![f32::NAN; queries.len()];
                gpu.attend_with(&queries, options, &mut output).unwrap();
                error(&output, &case.in_f64(&layer, &queries, options), dim)
            };
            let step = wrong(&mut gpu, &Attend::default());
            let block = wrong(&mut gpu, &Attend::default().queries(40));
            println!("{what}: step {step:.1e}, block {block:.1e}");
            assert!(step < TOLERANCE && block < BLOCK_TOLERANCE, "{what}: {step:e}, {block:e}");
        }
    });
}

/// The same sequence after it was truncated, evicted, forked and moved to the CPU and back.
#[test]
fn tokens_come_and_go() {
    let Some(device) = device() else { return };
    let case = case("graded", "trellis", 128, (8, 2), 900);
    let mut both = Both::new(&device, &case);
    both.append_and_compare(700);
    both.cpu.truncate(301).unwrap();
    both.gpu.truncate(1, 301).unwrap();
    (both.given, both.compared) = (301, 0);
    both.append_and_compare(400);
    assert!(both.cpu.evict(70..300) > 0);
    assert!(both.gpu.evict(1, 70..300).unwrap() > 0);
    both.check();
    both.attend(&device, &case);
    let [mut here, mut there] = [Vec::new(), Vec::new()];
    both.cpu.save(&mut |piece| here.extend_from_slice(piece));
    both.gpu.save(1, &mut |piece| there.extend_from_slice(piece)).unwrap();
    assert!(here == there, "snapshots differ");
    both.gpu.fork(1, 0).unwrap();
    both.gpu.clear(1).unwrap();
    both.gpu.load(1, &here).unwrap();
    both.check();
}

/// Codes and widths that GPUs do not support.
#[test]
fn unsupported_configurations_are_errors() {
    let Some(device) = device() else { return };
    let case = case("graded", "trellis", 64, (2, 2), 300);
    for spec in ["graded:fine=12,coarse=2", "graded:fine=8,coarse=3"] {
        let config = case.config.keys(spec.parse().unwrap());
        let error = gpu::Layer::new(&device, &config, 1, 256).unwrap_err();
        assert!(error.to_string().contains("fine or coarse"), "{error}");
    }
    let values = case.config.values("graded".parse().unwrap());
    assert!(matches!(gpu::Layer::new(&device, &values, 1, 256), Err(gpu::Error::Unsupported { .. })));
    let width = LayerConfig::new(1, 96, 300).keys("graded".parse().unwrap());
    let error = gpu::Layer::new(&device, &width, 1, 256).unwrap_err();
    assert!(
        matches!(error, gpu::Error::Library(Error::Width { .. } | Error::Unsupported { .. })),
        "{error:?}"
    );
}
