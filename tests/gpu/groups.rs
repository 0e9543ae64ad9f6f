//! Integers with scales, and zeros, for each group: a GPU compared with the CPU.

use super::append::{Both, without_direction};
use super::vectors::Random;
use super::{BLOCK_TOLERANCE, TOLERANCE, WIDTHS, assert_pages, case, device, each_width};
use octaplex::cache::Center;
use octaplex::{Attend, gpu};

/// All numbers of bits and groups that the width supports, with and without zeros.
fn specs(dim: usize) -> Vec<String> {
    let groups = [16, 32, 64].into_iter().filter(|group| dim.is_multiple_of(*group));
    let both = groups.flat_map(|group| [4, 8].map(|bits| (group, bits)));
    let all = both.flat_map(|(group, bits)| {
        [false, true].map(|zeros| format!("int:bits={bits},group={group},asymmetric={zeros}"))
    });
    all.collect()
}

/// Keys and values: each of the above once as keys and once as values, some with other codecs.
fn pairs(dim: usize) -> Vec<(String, String)> {
    let (keys, mut pairs) = (specs(dim), Vec::new());
    let values = |number: usize| keys[(5 * number + 3) % keys.len()].clone();
    // Half of them at each width, because kernels of each pair are compiled.
    let every = if keys.len() > 8 { 2 } else { 1 };
    for (number, keys) in keys.iter().enumerate().skip(dim / 64 % every).step_by(every) {
        pairs.push((keys.clone(), values(number)));
    }
    let more = [
        ("octopus", "int:group=16,asymmetric=true"),
        ("int:bits=8,group=16,rotate=true", "trellis"),
        ("turboquant:bits=3", "int:bits=8,group=16,asymmetric=true,rotate=true"),
        ("int:group=16,asymmetric=true,rotate=true,seed=3", "int:bits=8"),
    ];
    pairs.extend(more.map(|(keys, values)| (keys.to_string(), values.to_string())));
    pairs
}

#[test]
fn pages_round_trip() {
    check_pages(pairs);
}

#[test]
fn steps_and_blocks_attend_like_f64() {
    check_attention(pairs);
}

#[test]
fn appended_pages_are_the_cpus() {
    check_appended(pairs);
}

/// Returns keys and values of a width.
type Pairs = fn(usize) -> Vec<(String, String)>;

/// Copies pages to the GPU and back.
pub(super) fn check_pages(pairs: Pairs) {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        for (number, (keys, values)) in pairs(dim).iter().enumerate() {
            let mut case = case(keys, values, dim, (2, 2), 900);
            let page = [64, 128, 256][number % 3];
            case.config = case.config.page(page).center([Center::Page, Center::Prefix][number % 2]);
            let layer = case.layer();
            let mut gpu = case.on_gpu(&device, &layer);
            assert_pages(&mut gpu, 0, &layer);
        }
    });
}

/// Checks steps and blocks of queries.
pub(super) fn check_attention(pairs: Pairs) {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        for (number, (keys, values)) in pairs(dim).iter().enumerate() {
            let mut case = case(keys, values, dim, (14, 2), 1000);
            let center = [Center::Page, Center::Prefix, Center::Off][number % 3];
            case.config = case.config.center(center).balance(number % 4 != 1);
            for (options, tolerance) in
                [(Attend::default(), TOLERANCE), (Attend::default().queries(40), BLOCK_TOLERANCE)]
            {
                let (gpu, cpu) = case.check(&device, &options);
                let queries = options.queries.unwrap_or(1);
                println!("{keys}, {values}, width {dim}, {queries} queries: gpu {gpu:.1e}, CPU {cpu:.1e}");
                assert!(gpu < tolerance, "{keys}, {values}, width {dim}, {queries} queries: {gpu:e}");
            }
        }
    });
}

/// Lengths that are no multiple of four slots, numbers of heads, and options of single steps.
#[test]
fn lengths_heads_and_options() {
    let Some(device) = device() else { return };
    let (keys, values) = ("int:group=32,asymmetric=true", "int:bits=8,group=16,asymmetric=true");
    for (number, tokens) in [3, 131, 132, 196, 260, 452, 2000, 9000].into_iter().enumerate() {
        let heads = [(1, 1), (8, 1), (20, 2), (9, 3), (24, 24)][number % 5];
        let mut case = case(keys, values, [64, 128][number % 2], heads, tokens);
        case.config = case.config.page([64, 128, 256][number % 3]).sink_tokens([0, 4, 17][number % 3]);
        let (gpu, _) = case.check(&device, &Attend::default());
        assert!(gpu < TOLERANCE, "{tokens} tokens, heads {heads:?}: {gpu:e}");
    }
    let case = case(keys, values, 128, (12, 2), 1500);
    let (bias, logits) = ((0..1500).map(|at| (at % 29) as f32 * 0.05).collect::<Vec<_>>(), [0.5; 12]);
    for options in [
        Attend::default().soft_cap(8.0).window(400).keep_sinks(true).sink_logits(&logits).scale(-0.1),
        Attend::default().bias(&bias),
    ] {
        for (options, tolerance) in [(options, TOLERANCE), (options.queries(50), BLOCK_TOLERANCE)] {
            let (gpu, _) = case.check(&device, &options);
            assert!(gpu < tolerance, "{options:?}: {gpu:e}");
        }
    }
}

/// Checks pages that the GPU encodes.
pub(super) fn check_appended(pairs: Pairs) {
    let Some(device) = device() else { return };
    each_width(&WIDTHS, |dim| {
        let (mut random, mut compared) = (Random::new(16), 0);
        for (number, (keys, values)) in pairs(dim).iter().enumerate() {
            let mut case = case(keys, values, dim, (4, 2), 900);
            case.seed = number as u64;
            let center = [Center::Page, Center::Page, Center::Prefix, Center::Off][number % 4];
            case.config = case.config.page([64, 128, 256][(number + dim / 64) % 3]).center(center);
            let mut both = Both::new(&device, &case);
            both.append_and_compare(400);
            (0..4).for_each(|_| both.append_and_compare(random.below(70) + 1));
            both.append_and_compare(900 - both.given);
            both.attend(&device, &case);
            compared += both.compared;
        }
        println!("width {dim}: {compared} pages the same");
        assert!(compared > 30, "{compared}");
    });
}

#[test]
fn rows_without_a_direction_are_the_cpus() {
    check_without_a_direction(&[
        ("int:group=16,asymmetric=true", "int:bits=8,group=32,asymmetric=true", Center::Off),
        ("int:bits=8,group=64,asymmetric=true", "int:group=16,asymmetric=true", Center::Page),
        ("int:group=32", "int:bits=8,group=16,asymmetric=true,rotate=true", Center::Prefix),
    ]);
}

/// Rows that are zero, negative zeros among zeros, tiny, equal, of one coordinate, or of very different
/// lengths; and rows that f16 cannot hold.
pub(super) fn check_without_a_direction(specs: &[(&str, &str, Center)]) {
    let Some(device) = device() else { return };
    for &(keys, values, center) in specs {
        let mut case = case(keys, values, 64, (1, 1), 900);
        case.config = case.config.center(center);
        let mut both = Both::new(&device, &case);
        for side in &mut both.rows {
            for (token, row) in side.chunks_exact_mut(64).enumerate() {
                match token / 64 % 11 {
                    8 => row
                        .iter_mut()
                        .enumerate()
                        .for_each(|(c, x)| *x = if (c * 7 + token) % 5 < 2 { -0.0 } else { 0.0 }),
                    9 => row
                        .iter_mut()
                        .enumerate()
                        .for_each(|(c, x)| *x = if (c * 3 + token) % 7 < 3 { -0.0 } else { x.abs() }),
                    kind => without_direction(kind, token, row),
                }
            }
        }
        both.append_and_compare(900);
        both.attend(&device, &case);
        let mut rows = vec![0.0; 64 * 200];
        rows.iter_mut().step_by(64).enumerate().for_each(|(n, x)| *x = if n % 128 < 9 { -3e4 } else { 3e4 });
        let mut cpu = both.cpu.clone();
        let expected = cpu.append(&rows, &rows, &mut both.scratch).map_err(gpu::Error::Library);
        assert_eq!(both.gpu.append(1, &rows, &rows), expected, "{keys}");
    }
}
