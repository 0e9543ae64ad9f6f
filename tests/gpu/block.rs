//! Compares blocks of queries on a GPU with f64 on the layer's decoded tokens.

use super::{BLOCK_TOLERANCE, CODECS, Case, WIDTHS, case, device, each_width, error, others};
use octaplex::cache::Center;
use octaplex::{Attend, Error, LayerConfig, gpu};

fn check(case: &Case, options: &Attend, device: &gpu::Device, what: &str) {
    let (gpu, cpu) = case.check(device, options);
    println!("{what}: gpu {gpu:.1e}, CPU {cpu:.1e}");
    // Larger logits allow proportionally larger errors; here they are more than twice the default.
    let larger =
        options.scale.map_or(1.0, |scale| f64::from(scale.abs()) * (case.config.key_dim as f64).sqrt());
    assert!(gpu < BLOCK_TOLERANCE * larger.max(1.0), "{what}: {gpu:e}");
}

#[test]
fn every_codec_and_width() {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        let next = |number| CODECS[(number + 1 + dim / 64) % CODECS.len()];
        let pairs =
            (0..6).flat_map(|number| [CODECS[number], next(number)].map(|values| (CODECS[number], values)));
        for (keys, values) in pairs.chain(others(dim)) {
            let case = case(keys, values, dim, (14, 2), 1000);
            let what = format!("{keys:18} {values:18} width {dim:3}");
            check(&case, &Attend::default().queries(40), &device, &what);
        }
    });
}

#[test]
fn lengths_heads_and_pages() {
    let Some(device) = device() else { return };
    // Exact tokens alone, pages, a whole prompt; rows that are no multiple of 128; heads of one key.
    let all =
        [(1, 1), (5, 5), (70, 70), (200, 3), (324, 324), (500, 129), (2000, 256), (9000, 17), (1200, 1200)];
    for (number, (tokens, block)) in all.into_iter().enumerate() {
        for dim in WIDTHS {
            let heads = [(1, 1), (8, 1), (6, 2), (9, 3)][number % 4];
            let mut case = case("turboquant", "trellis", dim, heads, tokens);
            case.config = case.config.page([64, 128, 256][number % 3]).sink_tokens([0, 4, 70][number % 3]);
            let options = Attend::default().queries(block).position(tokens - block);
            check(&case, &options, &device, &format!("{block} of {tokens} tokens, width {dim}, {heads:?}"));
        }
    }
}

#[test]
fn every_option() {
    let Some(device) = device() else { return };
    let logits: Vec<f32> = (0..12).map(|head| head as f32 / 2.0 - 1.0).collect();
    let all = [
        Attend::default().queries(50).scale(0.2),
        Attend::default().queries(50).soft_cap(3.0),
        Attend::default().queries(50).window(700),
        Attend::default().queries(200).window(100).keep_sinks(true),
        Attend::default().queries(200).window(20),
        Attend::default().queries(50).sink_logits(&logits),
        Attend::default()
            .queries(50)
            .sink_logits(&logits)
            .soft_cap(8.0)
            .window(400)
            .keep_sinks(true)
            .scale(-0.1),
        Attend::default().queries(50).position(700),
        Attend::default().position(0),
        Attend::default().queries(300).position(1400), // after the newest token: all tokens are visible
        Attend::default().queries(50).position(1 << 63),
    ];
    for (number, options) in all.iter().enumerate() {
        for (keys, dim) in [
            ("turboquant", 128),
            ("trellis", 64),
            ("trellis:m=2", 96),
            ("turboquant:bits=3", 256),
            ("int", 192),
            ("tq3_0", 128),
            ("hqmq", 80),
            ("turboquant:bits=8", 80),
            ("trellis:m=16,states=4", 128),
        ] {
            let values = if ["tq3_0", "hqmq"].contains(&keys) { "turboquant" } else { keys };
            check(
                &case(keys, values, dim, (12, 2), 1500),
                options,
                &device,
                &format!("{keys}, options {number}"),
            );
        }
    }
    let configs: [fn(LayerConfig) -> LayerConfig; 5] = [
        |config| config.center(Center::Off),
        |config| config.center(Center::Prefix),
        |config| config.balance(false),
        |config| config.sliding_window(500),
        |config| config.keys("turboquant:rounds=3,seed=9,gain=norm".parse().unwrap()),
    ];
    for (number, config) in configs.iter().enumerate() {
        let mut case = case("turboquant", "turboquant:bits=3", 128, (8, 2), 1500);
        case.config = config(case.config);
        // The window held 500 tokens when the last token was added, so earlier queries would miss some.
        let options = Attend::default().queries(if number == 3 { 1 } else { 64 }).position(if number == 3 {
            1499
        } else {
            1436
        });
        check(&case, &options, &device, &format!("configuration {number}"));
    }
}

/// A whole prompt whose first queries see only sinks: later queries would miss tokens that the sliding window has dropped.
#[test]
fn a_prompt_that_misses_dropped_tokens_is_refused() {
    let Some(device) = device() else { return };
    let mut case = case("turboquant", "turboquant", 64, (2, 1), 700);
    case.config = case.config.sliding_window(100);
    let (layer, queries) = (case.layer(), case.block(700));
    let (mut gpu, mut output) = (case.on_gpu(&device, &layer), vec![0.0; queries.len()]);
    let refused = gpu.attend_with(&queries, &Attend::default().queries(700), &mut output).unwrap_err();
    assert!(matches!(refused, gpu::Error::Library(Error::Dropped { visible: 4, .. })), "{refused}");
    // The sinks' own queries miss nothing.
    let first = Attend::default().queries(4).position(0);
    check(&case, &first, &device, "queries of sinks");
}

/// Rows of all sizes: f16 cannot hold the largest and the smallest without a scale.
#[test]
fn large_and_small_rows() {
    let Some(device) = device() else { return };
    for size in [1e-6, 1e-3, 1e3] {
        let case = case("turboquant", "turboquant", 128, (4, 2), 600);
        let mut layer =
            octaplex::cache::SharedLayer::on_heap(&case.config, octaplex::Backend::detect()).unwrap();
        let [keys, values] = case.rows().map(|rows| rows.iter().map(|x| x * size).collect::<Vec<_>>());
        layer.append(&keys, &values, &mut vec![0.0; case.config.scratch_len(4)]).unwrap();
        let options = Attend::default().queries(30).scale(0.08 / size);
        let (mut gpu, queries) = (case.on_gpu(&device, &layer), case.block(30));
        let mut output = vec![f32::NAN; queries.len()];
        gpu.attend_with(&queries, &options, &mut output).unwrap();
        let wrong = error(&output, &case.in_f64(&layer, &queries, &options), 128);
        // Exact tokens are f16 in the layer. Below 6e-5 they have few bits, on a GPU and on a CPU.
        println!("rows times {size:e}: {wrong:.1e}");
        assert!(wrong < BLOCK_TOLERANCE, "rows times {size:e}: {wrong:e}");
    }
}

/// Keys whose constant channels are far larger than the differences between keys: f16 has no bits for both.
/// Without the mean's subtraction the error of integers would be 5.2e-3. Pages have centres of both kinds
/// or none; one case has exact tokens alone.
#[test]
fn large_constant_channels() {
    let Some(device) = device() else { return };
    for (keys, center, tokens) in [
        ("turboquant", Center::Page, 600),
        ("int", Center::Page, 600),
        ("octopus", Center::Prefix, 600),
        ("turboquant:bits=8", Center::Off, 600),
        ("turboquant", Center::Page, 70),
    ] {
        let mut case = case(keys, "turboquant", 128, (4, 2), tokens);
        case.config = case.config.center(center);
        let mut layer =
            octaplex::cache::SharedLayer::on_heap(&case.config, octaplex::Backend::detect()).unwrap();
        let [mut keys_of, values] = case.rows();
        keys_of.iter_mut().enumerate().for_each(|(i, x)| *x += if i % 128 % 17 == 3 { 54.0 } else { 0.0 });
        layer.append(&keys_of, &values, &mut vec![0.0; case.config.scratch_len(4)]).unwrap();
        let (mut gpu, queries) = (case.on_gpu(&device, &layer), case.block(30));
        let (options, mut output) = (Attend::default().queries(30), vec![f32::NAN; queries.len()]);
        gpu.attend_with(&queries, &options, &mut output).unwrap();
        let wrong = error(&output, &case.in_f64(&layer, &queries, &options), 128);
        println!("{keys}, {center:?}, {tokens} tokens: {wrong:.1e}");
        assert!(wrong < BLOCK_TOLERANCE, "{keys}, {center:?}, {tokens} tokens: {wrong:e}");
    }
}

/// More tokens than one group of tiles, for sequences of different lengths, one of them empty.
#[test]
fn parts_and_sequences() {
    let Some(device) = device() else { return };
    let lengths = [40_000, 33_000, 300];
    let cases = lengths.map(|tokens| Case {
        config: case("trellis", "turboquant", 64, (2, 1), 40_000).config,
        ..case("trellis", "turboquant", 64, (2, 1), tokens)
    });
    let layers = cases.map(|case| case.layer());
    let mut gpu = gpu::Layer::new(&device, &cases[0].config, 4, 80_000).unwrap();
    for (number, layer) in layers.iter().enumerate() {
        gpu.upload(number, layer).unwrap();
    }
    for options in
        [Attend::default().queries(130), Attend::default().queries(130).window(36_000).keep_sinks(true)]
    {
        let width = 2 * 130 * 64;
        let queries: Vec<f32> = (0..4).flat_map(|number| cases[number % 3].block(130)).collect();
        let mut output = vec![f32::NAN; 4 * width];
        gpu.attend_with(&queries, &options, &mut output).unwrap();
        for (number, (case, layer)) in cases.iter().zip(&layers).enumerate() {
            let mine = number * width..(number + 1) * width;
            let wrong = error(&output[mine.clone()], &case.in_f64(layer, &queries[mine], &options), 64);
            println!("{} tokens: {wrong:.1e}", case.tokens);
            assert!(wrong < BLOCK_TOLERANCE, "{} tokens: {wrong:e}", case.tokens);
        }
        assert!(output[3 * width..].iter().all(|x| *x == 0.0), "a sequence that holds nothing");
        let mut again = vec![f32::NAN; 4 * width];
        gpu.attend_with(&queries, &options, &mut again).unwrap();
        assert_eq!(output, again, "the same bits at each call");
    }
}

/// Rows wider than 128, whose columns two blocks of threads share, with more tokens than one group of
/// tiles.
#[test]
fn wide_rows_in_parts() {
    let Some(device) = device() else { return };
    for dim in [192, 256] {
        let case = case("turboquant", "trellis", dim, (64, 64), 6000);
        let options = Attend::default().queries(5).window(5800).keep_sinks(true);
        check(&case, &options, &device, &format!("64 heads of width {dim}"));
    }
}

#[test]
fn wrong_blocks_are_errors() {
    let Some(device) = device() else { return };
    let case = case("turboquant", "turboquant", 128, (4, 2), 500);
    let mut gpu = gpu::Layer::new(&device, &case.config, 1, 1000).unwrap();
    let (block, mut output) = (case.block(8), vec![0.0; 8 * 4 * 128]);
    let options = Attend::default().queries(8);
    assert_eq!(
        gpu.attend_with(&block, &options, &mut output),
        Err(gpu::Error::Library(octaplex::Error::Empty))
    );
    gpu.upload(0, &case.layer()).unwrap();
    assert!(gpu.attend_with(&block, &Attend::default().queries(0), &mut output).is_err());
    assert!(gpu.attend_with(&block[1..], &options, &mut output).is_err());
    assert!(gpu.attend_with(&block, &options, &mut output[1..]).is_err());
    assert!(matches!(
        gpu.attend_with(&case.block(501), &Attend::default().queries(501), &mut vec![0.0; 501 * 512]),
        Err(gpu::Error::Library(octaplex::Error::Length { expected: 500, actual: 501, .. }))
    ));
    let mut bad = block.clone();
    bad[1000] = f32::INFINITY;
    let refused = gpu.attend_with(&bad, &options, &mut output);
    assert_eq!(refused, Err(gpu::Error::Library(octaplex::Error::NonFinite { index: 1000 })));
    assert!(gpu.attend_with(&block, &options.sink_logits(&[0.0; 3]), &mut output).is_err());
    gpu.attend_with(&block, &options, &mut output).unwrap();

    for options in [options.heads(1), options.first_head(1)] {
        let refused = gpu.attend_with(&block, &options, &mut output);
        assert!(matches!(refused, Err(gpu::Error::Unsupported { .. })), "{refused:?}");
    }
}
