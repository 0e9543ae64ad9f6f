//! Chunks that pages keep exactly (`med`): attention on rows with spikes and large channels, pages that
//! close, the memory of outliers, and corrupt pages.

use super::append::Both;
use super::{
    BLOCK_TOLERANCE, Case, TOLERANCE, WIDTHS, assert_pages, case, device, each_width, error, page_bytes,
};
use octaplex::cache::{Center, SharedLayer};
use octaplex::{Attend, Backend, Error, gpu};

/// Returns keys and values of a width: all bits, groups, rotations and sets at some width, with outliers on
/// one side or both.
fn pairs(dim: usize) -> Vec<(String, String)> {
    let kinds = ["", ",group=16", ",rotate=true", ",group=16,rotate=true,seed=3"];
    let width = WIDTHS.iter().position(|width| *width == dim).unwrap();
    let of =
        |number: usize, med: usize| format!("int:bits={}{},med={med}", 2 + number % 7, kinds[number % 4]);
    let keys = ["hqmq:med=3", "hqmq:s=24,r=3,rotate=true,med=2", "hqmq:s=255,r=6,med=2"][width % 3];
    let one = [
        ("octopus", "int:bits=8,group=16,med=2"),
        ("int:med=3", "trellis:m=2"),
        ("turboquant:bits=8", "int:med=3"),
        ("hqmq:s=192,r=2,med=3", "turboquant:bits=6"),
    ];
    let mut pairs = vec![
        (of(width, 2), of(2 * width + 3, 3)),
        (of(width + 3, 1), of(width + 2, 1)),
        (keys.to_string(), of(width + 5, 2)),
    ];
    pairs.extend([one[width % 4], one[(width + 1) % 4]].map(|(keys, values)| (keys.into(), values.into())));
    pairs
}

/// Returns rows of a case with a few spikes, and values with large channels.
fn spiked(case: &Case) -> [Vec<f32>; 2] {
    let dim = case.config.key_dim;
    let mut rows = case.rows();
    for (side, rows) in rows.iter_mut().enumerate() {
        for (at, x) in rows.iter_mut().enumerate() {
            if side == 1 && at % dim == 11 {
                *x += 5.0;
            }
            if (at * 7 + at / dim * 5) % 331 == 17 {
                *x = if at % 2 == 0 { 9.0 } else { -13.0 };
            }
        }
    }
    rows
}

/// Creates a layer on the CPU with such rows.
fn layer_of(case: &Case, rows: &[Vec<f32>; 2]) -> SharedLayer {
    let mut layer = SharedLayer::on_heap(&case.config, Backend::detect()).unwrap();
    let mut scratch = vec![0.0; case.config.scratch_len(case.heads)];
    layer.append(&rows[0], &rows[1], &mut scratch).unwrap();
    layer
}

/// Returns the error of a step or a block compared with f64.
fn wrong(case: &Case, gpu: &mut gpu::Layer, layer: &SharedLayer, options: &Attend) -> f64 {
    let queries = case.block(options.queries.unwrap_or(1));
    let mut output = vec![f32::NAN; queries.len()];
    gpu.attend_with(&queries, options, &mut output).unwrap();
    error(&output, &case.in_f64(layer, &queries, options), case.config.key_dim)
}

/// Returns the least bytes of pages, without outliers.
fn least_bytes(layer: &SharedLayer) -> usize {
    let (config, mut bytes) = (layer.config(), 0);
    config.page_layout(|part, what| bytes += if what.contains("blocks") { 0 } else { part });
    let rows = |spec: octaplex::CodecSpec, planes: bool| match planes {
        true => 0,
        false => config.page * spec.block_bytes(config.key_dim),
    };
    let mut planes = [false; 2];
    config.page_layout(|_, what| {
        for (planes, side) in planes.iter_mut().zip(["keys: planes", "values: planes"]) {
            *planes |= what.starts_with(side);
        }
    });
    let blocks = rows(config.keys, planes[0]) + rows(config.values, planes[1]);
    layer.stats().paged_tokens / config.page * (bytes + config.kv_heads * blocks)
}

#[test]
fn pages_and_attention() {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        for (number, (keys, values)) in pairs(dim).iter().enumerate() {
            let mut case = case(keys, values, dim, (14, 2), 1000);
            let center = [Center::Page, Center::Prefix, Center::Off][number % 3];
            let page = [64, 128, 256][(number + dim / 64) % 3];
            case.config = case.config.center(center).page(page).balance(number % 4 != 1);
            let layer = layer_of(&case, &spiked(&case));
            let mut gpu = case.on_gpu(&device, &layer);
            let bytes = assert_pages(&mut gpu, 0, &layer);
            // Eight bytes each: at least one percent of all chunks of both sides.
            let (least, chunks) = (least_bytes(&layer), layer.stats().paged_tokens * 2 * 2 * dim / 4);
            let outliers = (bytes - least) / 8;
            assert!(outliers > chunks / 100, "{keys}, {values}, width {dim}: {outliers} of {chunks}");
            let (step, block) = (Attend::default(), Attend::default().queries(40));
            let step = wrong(&case, &mut gpu, &layer, &step);
            let block = wrong(&case, &mut gpu, &layer, &block);
            let share = 100.0 * outliers as f64 / chunks as f64;
            println!(
                "{keys}, {values}, width {dim}: {share:.1}% outliers, step {step:.1e}, block {block:.1e}"
            );
            assert!(
                step < TOLERANCE && block < BLOCK_TOLERANCE,
                "{keys}, {values}, width {dim}: {step:e}, {block:e}"
            );
        }
    });
}

/// Lengths that are no multiple of four slots, numbers of heads, and options of single steps.
#[test]
fn lengths_heads_and_options() {
    let Some(device) = device() else { return };
    let pairs = [("int:med=2", "int:bits=8,med=2"), ("hqmq:med=2", "int:bits=3,group=16,med=2")];
    for (number, tokens) in [3, 131, 132, 196, 260, 452, 2000, 5000].into_iter().enumerate() {
        let heads = [(1, 1), (8, 1), (20, 2), (9, 3), (24, 24)][number % 5];
        let (keys, values) = pairs[number / 2 % 2];
        let mut case = case(keys, values, [64, 128][number % 2], heads, tokens);
        case.config = case.config.page([64, 128, 256][number % 3]).sink_tokens([0, 4, 17][number % 3]);
        let layer = layer_of(&case, &spiked(&case));
        let wrong = wrong(&case, &mut case.on_gpu(&device, &layer), &layer, &Attend::default());
        println!("{tokens} tokens, heads {heads:?}: {wrong:.1e}");
        assert!(wrong < TOLERANCE, "{tokens} tokens, heads {heads:?}: {wrong:e}");
    }
    let (bias, logits) = ((0..1500).map(|at| (at % 29) as f32 * 0.05).collect::<Vec<_>>(), [0.5; 12]);
    for (keys, values) in pairs {
        let case = case(keys, values, 128, (12, 2), 1500);
        let layer = layer_of(&case, &spiked(&case));
        let mut gpu = case.on_gpu(&device, &layer);
        for options in [
            Attend::default().soft_cap(8.0).window(400).keep_sinks(true).sink_logits(&logits).scale(-0.1),
            Attend::default().bias(&bias),
        ] {
            for (options, tolerance) in [(options, TOLERANCE), (options.queries(50), BLOCK_TOLERANCE)] {
                let wrong = wrong(&case, &mut gpu, &layer, &options);
                println!("{keys}, {values}, {} queries: {wrong:.1e}", options.queries.unwrap_or(1));
                assert!(wrong < tolerance, "{keys}, {values}: {wrong:e}");
            }
        }
    }
}

/// Outliers as large as f16 allows in four channels, and all other values small. Sums of f16 do not
/// overflow, and the small values survive.
#[test]
fn outliers_as_large_as_f16() {
    let Some(device) = device() else { return };
    // With keys' centres, a single row may have half of that.
    for (keys, values, dim, large) in
        [("int:med=3", "int:med=3", 128, 65000.0), ("hqmq:med=3", "int:bits=8,group=16,med=3", 80, 30000.0)]
    {
        for center in [Center::Page, Center::Off] {
            let mut case = case(keys, values, dim, (8, 2), 700);
            case.config = case.config.center(center).balance(false);
            // In pages alone: exact rows do not show how large they are.
            let is_large = |token: usize| token % 9 == 4 && (20..450).contains(&(token % 700));
            let mut rows = case.rows();
            for rows in &mut rows {
                for (token, row) in rows.chunks_exact_mut(dim).enumerate() {
                    row.iter_mut().for_each(|x| *x *= 0.1);
                    row[token / 9 % 4] = if is_large(token) { large * [1.0, -0.9][token % 2] } else { 0.0 };
                }
            }
            let layer = layer_of(&case, &rows);
            let mut gpu = case.on_gpu(&device, &layer);
            assert_pages(&mut gpu, 0, &layer);
            // Logits of about 1.
            let step = Attend::default().scale(2e-5);
            for (options, tolerance) in [(step, TOLERANCE), (step.queries(20), BLOCK_TOLERANCE)] {
                let queries = case.block(options.queries.unwrap_or(1));
                let mut output = vec![f32::NAN; queries.len()];
                gpu.attend_with(&queries, &options, &mut output).unwrap();
                let exact = case.in_f64(&layer, &queries, &options);
                let all = error(&output, &exact, dim);
                let small: Vec<f32> = output.chunks_exact(dim).flat_map(|row| row[4..].to_vec()).collect();
                let of_small: Vec<f64> = exact.chunks_exact(dim).flat_map(|row| row[4..].to_vec()).collect();
                let small = error(&small, &of_small, dim - 4);
                println!("{keys}, {values}, width {dim}, {center:?}: {all:.1e}, the small ones {small:.1e}");
                assert!(
                    all < tolerance && small < tolerance,
                    "{keys}, {values}, {center:?}: {all:e}, {small:e}"
                );
            }
        }
    }
}

/// Pages that close, are truncated and evicted.
#[test]
fn appended_pages_are_the_cpus() {
    let Some(device) = device() else { return };
    for (number, (keys, values, dim)) in [
        ("int:med=3", "int:bits=8,med=2", 128),
        ("hqmq:med=2", "turboquant", 64),
        ("turboquant", "int:bits=3,group=16,med=1", 80),
        ("int:bits=5,rotate=true,med=2", "int:bits=2,med=3", 256),
    ]
    .into_iter()
    .enumerate()
    {
        let mut case = case(keys, values, dim, (4, 2), 1100);
        case.config = case.config.page([64, 128, 256][number % 3]);
        let mut both = Both::new(&device, &case);
        both.rows = spiked(&case);
        let first = case.config.sink_tokens + case.config.recent_window + case.config.page;
        both.append_and_compare(first - 1);
        for count in [1, 1, 70, 200, 130] {
            both.append_and_compare(count);
        }
        both.attend(&device, &case);
        let back = both.cpu.next_position() - case.config.max_rollback.min(50);
        both.cpu.truncate(back).unwrap();
        both.gpu.truncate(1, back).unwrap();
        assert_eq!(both.gpu.evict(1, 100..400).unwrap(), both.cpu.evict(100..400));
        both.compared = 0;
        both.check();
        both.append_and_compare(120);
        // A page that is cut is decoded.
        let cut = both.cpu.next_position() - 200;
        both.cpu.truncate(cut).unwrap();
        both.gpu.truncate(1, cut).unwrap();
        both.compared = 0;
        both.check();
        both.append_and_compare(150);
        both.attend(&device, &case);
        let timed = both.gpu.time_append(&both.rows[0], &both.rows[1], 1);
        assert!(matches!(timed, Err(gpu::Error::Unsupported { .. })), "{timed:?}");
    }
}

/// The maximum of outliers needs more space than a layer starts with. Captured steps see outliers in added
/// memory, and freed space is used again.
#[test]
fn lists_grow_and_space_is_used_again() {
    let Some(device) = device() else { return };
    let small = case("int:med=1", "int:med=1", 64, (4, 2), 2000);
    let rows = small.rows();
    let full = layer_of(&small, &rows);
    let few = {
        let case = Case { tokens: 400, ..small };
        layer_of(&case, &case.rows())
    };
    let mut gpu = gpu::Layer::new(&device, &small.config, 2, 4000).unwrap();
    gpu.upload(0, &few).unwrap();
    gpu.reserve(4).unwrap();
    let step = gpu.capture(&Attend::default()).unwrap();
    let queries = [small.queries(), small.queries()].concat();
    let check = |gpu: &mut gpu::Layer, step: &gpu::Step, sequence: usize, layer: &SharedLayer| {
        let mut output = vec![f32::NAN; queries.len()];
        gpu.launch(step, &queries, &mut output).unwrap();
        let half = queries.len() / 2;
        let exact = small.in_f64(layer, &queries[..half], &Attend::default());
        let wrong = error(&output[sequence * half..][..half], &exact, 64);
        assert!(wrong < TOLERANCE, "{wrong:e}");
        assert_pages(gpu, sequence, layer);
    };
    check(&mut gpu, &step, 0, &few);
    for round in 0..6 {
        gpu.upload(1, &full).unwrap();
        check(&mut gpu, &step, 1, &full);
        check(&mut gpu, &step, 0, &few);
        // Pages stay while a fork holds them.
        gpu.fork(1, 0).unwrap();
        gpu.clear(1).unwrap();
        check(&mut gpu, &step, 0, &full);
        gpu.evict(0, 0..500 + 100 * round).unwrap();
        gpu.upload(0, &few).unwrap();
        check(&mut gpu, &step, 0, &few);
    }
}

/// Flags and outliers that no encoder writes, in snapshots with correct checksums.
#[test]
fn corrupt_pages_change_nothing() {
    let Some(device) = device() else { return };
    // At a width of 80, only four bits of the last byte of flags count.
    for (keys, values) in
        [("int:med=2", "turboquant"), ("hqmq:med=2", "int:med=3"), ("turboquant", "int:med=2")]
    {
        let case = case(keys, values, 80, (2, 1), 260);
        let layer = layer_of(&case, &spiked(&case));
        let mut good = Vec::new();
        layer.save(&mut |piece| good.extend_from_slice(piece));
        let page = page_bytes(&layer, layer.stats().paged_tokens / 64 - 1);
        let mut gpu = gpu::Layer::new(&device, &case.config, 1, 520).unwrap();
        gpu.upload(0, &layer).unwrap();
        let end = good.len() - 4;
        let start = end - page.len();
        assert!(good[start..end] == page, "the last page ends the snapshot");
        let of_keys = keys.contains("med");
        let spec = if of_keys { case.config.keys } else { case.config.values };
        // Position and length come first; values come after keys of planes.
        let before = if of_keys { 16 } else { 16 + 64 * 80 / 2 };
        let block = spec.block_bytes(80);
        let mut refused = |change: &dyn Fn(&mut [u8])| {
            let mut bytes = good.clone();
            change(&mut bytes[start + before..end]);
            assert!(bytes != good);
            let checksum = crc32fast::hash(&bytes[start..end]);
            bytes[end..].copy_from_slice(&checksum.to_le_bytes());
            let refused = gpu.load(0, &bytes);
            assert!(
                matches!(refused, Err(gpu::Error::Library(Error::Corrupt { .. }))),
                "{keys}, {values}: {refused:?}"
            );
            let mut after = Vec::new();
            gpu.save(0, &mut |piece| after.extend_from_slice(piece)).unwrap();
            assert!(after == good, "as it was");
        };
        // One outlier more, and one less, than the list has.
        refused(&|rows| rows[block - 3] ^= 1);
        refused(&|rows| rows[7 * block - 2] ^= 0x40);
        // The first outlier, moved to a chunk that does not exist.
        refused(&|rows| {
            let at = (0..64 * block).find(|at| at % block >= block - 3 && rows[*at] != 0).unwrap();
            rows[at] &= rows[at] - 1;
            rows[at - at % block + block - 1] |= 0x20;
        });
        for half in [0x7c00_u16, 0xfc00, 0x7e00] {
            refused(&|rows| rows[64 * block + 2..64 * block + 4].copy_from_slice(&half.to_le_bytes()));
        }
    }
}
