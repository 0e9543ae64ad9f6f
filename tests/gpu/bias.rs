//! Compares attention with biases on a GPU with f64 on the layer's decoded tokens.

use super::{Case, WIDTHS, case, device, each_width, error};
use octaplex::cache::Center;
use octaplex::{Attend, Error, gpu};

/// Maximum difference from f64: of a step, and of a block.
const TOLERANCES: [f64; 2] = [super::TOLERANCE, super::BLOCK_TOLERANCE];

/// Slopes of ALiBi for each head; hidden tokens, alone and whole pages; finite masks.
fn biases(rows: usize, positions: usize) -> Vec<f32> {
    let hides = |row: usize, position: usize| match position {
        300..520 if row.is_multiple_of(3) => Some(f32::NEG_INFINITY),
        700..710 => Some(f32::MIN),
        _ if (position * 7 + row) % 11 == 4 => Some(f32::NEG_INFINITY),
        _ => None,
    };
    let bias = |row: usize, position: usize| {
        let slope = 0.004 / (1 + row % 5) as f32;
        hides(row, position).unwrap_or(-slope * (positions - position) as f32 + 0.3 * (position % 7) as f32)
    };
    (0..rows).flat_map(|row| (0..positions).map(move |position| bias(row, position))).collect()
}

fn check(device: &gpu::Device, case: &Case, options: &Attend, what: &str) {
    let (gpu, cpu) = case.check(device, options);
    println!("{what}: gpu {gpu:.1e}, CPU {cpu:.1e}");
    let tolerance = TOLERANCES[usize::from(options.queries.is_some() || options.position.is_some())];
    assert!(gpu < tolerance, "{what}: {gpu:e}");
}

#[test]
fn biases_of_positions_and_of_heads() {
    let Some(device) = device() else { return };
    let (of_positions, of_heads) = (biases(1, 1500), biases(12, 1500));
    let logits: Vec<f32> = (0..12).map(|head| head as f32 / 2.0 - 1.0).collect();
    each_width(&WIDTHS, |dim| {
        let (number, keys, values) = match dim {
            64 => (0, "trellis", "trellis"),
            80 => (1, "turboquant:bits=3", "trellis:m=2"),
            96 => (2, "int", "int:bits=8"),
            128 => (0, "turboquant", "turboquant"),
            192 => (1, "octopus", "turboquant:bits=2"),
            _ => (2, "turboquant:bits=2", "turboquant"),
        };
        let mut case = case(keys, values, dim, (12, 2), 1500);
        case.config = case.config.page([64, 128, 256][number]).sink_tokens([4, 0, 70][number]);
        for bias in [&of_positions, &of_heads] {
            let rows = bias.len() / 1500;
            let all = [
                Attend::default(),
                Attend::default().soft_cap(3.0).window(900).keep_sinks(true).sink_logits(&logits),
                Attend::default().queries(50),
                Attend::default().queries(129).soft_cap(3.0).window(700).keep_sinks(true),
                Attend::default().queries(3).position(900).sink_logits(&logits),
            ];
            for (number, options) in all.into_iter().enumerate() {
                let what = format!("{keys}, {values}, width {dim}, {rows} rows, options {number}");
                check(&device, &case, &options.bias(bias), &what);
            }
        }
    });
    let mut case = case("turboquant", "turboquant", 128, (12, 2), 1500);
    for center in [Center::Off, Center::Prefix] {
        case.config = case.config.center(center);
        check(&device, &case, &Attend::default().bias(&of_heads), "another centre");
    }
    // More heads than share a look-up, and lengths that are no multiple of four slots.
    for (heads, tokens) in [((20, 2), 700), ((9, 3), 131), ((1, 1), 9000), ((24, 24), 1000)] {
        let case = super::case("turboquant", "trellis", 128, heads, tokens);
        let bias = biases(heads.0, tokens);
        check(&device, &case, &Attend::default().bias(&bias), &format!("{tokens} tokens, heads {heads:?}"));
        check(
            &device,
            &case,
            &Attend::default().queries(5).bias(&bias),
            &format!("a block, heads {heads:?}"),
        );
    }
}

/// The largest biases: only the token with the largest one counts. If all tokens are hidden, the output is
/// zero.
#[test]
fn large_biases_and_hidden_tokens() {
    let Some(device) = device() else { return };
    let case = case("turboquant", "trellis", 128, (4, 2), 1500);
    for size in [1e3_f32, 1e6, 1e7, 3e9, 1e20, 8.5e37] {
        // They rise up to a token in a page, far from all others, and stay constant after it.
        let bias: Vec<f32> =
            (0..1500).map(|at| if at <= 700 { size / 700.0 * at as f32 } else { 0.0 }).collect();
        for options in [Attend::default(), Attend::default().queries(7)] {
            check(&device, &case, &options.bias(&bias), &format!("up to {size:e}"));
            let down: Vec<f32> = bias.iter().map(|x| -x.min(1e29) - 3.0).collect();
            check(&device, &case, &options.bias(&down), &format!("down to -{size:e}"));
        }
    }
    let layer = case.layer();
    let mut gpu = case.on_gpu(&device, &layer);
    let mut bias = vec![0.0; 4 * 1500];
    bias[1500..3000].fill(f32::NEG_INFINITY);
    for options in [Attend::default(), Attend::default().queries(9)] {
        let options = options.bias(&bias);
        let queries = case.block(options.queries.unwrap_or(1));
        let mut output = vec![f32::NAN; queries.len()];
        gpu.attend_with(&queries, &options, &mut output).unwrap();
        let each = output.len() / 4;
        for (head, output) in output.chunks_exact(each).enumerate() {
            assert_eq!(head == 1, output.iter().all(|x| *x == 0.0), "head {head}");
            assert!(output.iter().all(|x| x.is_finite()), "head {head}");
        }
    }
}

#[test]
fn biases_of_several_sequences() {
    let Some(device) = device() else { return };
    let lengths = [900, 40, 2000];
    let cases = lengths.map(|tokens| Case {
        config: case("trellis", "turboquant", 128, (8, 2), 2000).config,
        ..case("trellis", "turboquant", 128, (8, 2), tokens)
    });
    let layers = cases.map(|case| case.layer());
    let mut gpu = gpu::Layer::new(&device, &cases[0].config, 4, 5000).unwrap();
    // One sequence without tokens, between others.
    for (number, layer) in [0, 2, 3].into_iter().zip(&layers) {
        gpu.upload(number, layer).unwrap();
    }
    gpu.reserve(8).unwrap();
    for (options, rows) in [
        (Attend::default(), 1),
        (Attend::default(), 8),
        (Attend::default().queries(20), 8),
        (Attend::default().queries(3), 1),
    ] {
        let count = options.queries.unwrap_or(1);
        let each = 8 * count * 128;
        let asked = [0, 0, 1, 2].map(|number| cases[number].block(count)).concat();
        let own = lengths.map(|tokens| biases(rows, tokens));
        let mut plain = vec![f32::NAN; 4 * each];
        gpu.attend_with(&asked, &options, &mut plain).unwrap();
        let (bias, mut output) = (own.concat(), vec![f32::NAN; 4 * each]);
        gpu.attend_with(&asked, &options.bias(&bias), &mut output).unwrap();
        assert!(output[each..2 * each].iter().all(|x| *x == 0.0), "a sequence that holds nothing");
        for (number, place) in [0, 2, 3].into_iter().enumerate() {
            let mine = place * each..(place + 1) * each;
            let options = options.bias(&own[number]);
            let exact = cases[number].in_f64(&layers[number], &asked[mine.clone()], &options);
            let wrong = error(&output[mine], &exact, 128);
            assert!(wrong < TOLERANCES[usize::from(count > 1)], "{} tokens: {wrong:e}", lengths[number]);
        }
        let mut again = vec![f32::NAN; 4 * each];
        gpu.attend_with(&asked, &options, &mut again).unwrap();
        assert!(plain == again, "without biases as if there had been none");
    }
}

#[test]
fn wrong_biases_are_errors() {
    let Some(device) = device() else { return };
    let case = case("turboquant", "turboquant", 64, (4, 2), 500);
    let mut gpu = case.on_gpu(&device, &case.layer());
    let queries = case.queries();
    let mut output = vec![0.0; queries.len()];
    for options in [Attend::default(), Attend::default().queries(1).position(499)] {
        for len in [1, 499, 501, 1000, 1999, 2001] {
            let bias = vec![0.0; len];
            let refused = gpu.attend_with(&queries, &options.bias(&bias), &mut output);
            let expected = Error::Length { what: "bias values", expected: 2000, actual: len };
            assert_eq!(refused, Err(gpu::Error::Library(expected)));
        }
        for value in [f32::NAN, f32::INFINITY, 8.6e37] {
            let mut bias = vec![0.0; 2000];
            bias[777] = value;
            let refused = gpu.attend_with(&queries, &options.bias(&bias), &mut output);
            let layer = case.layer();
            let mut scratch = vec![0.0; case.config.scratch_len(4)];
            let cpus = layer.attend_with(&queries, &options.bias(&bias), &mut output, &mut scratch);
            assert_eq!(refused, cpus.map_err(gpu::Error::Library));
            assert!(refused.is_err());
        }
    }
    let refused = gpu.capture(&Attend::default().bias(&[0.0; 500]));
    assert!(matches!(refused, Err(gpu::Error::Unsupported { .. })), "{refused:?}");
    gpu.attend_with(&queries, &Attend::default().bias(&[0.0; 500]), &mut output).unwrap();
}
