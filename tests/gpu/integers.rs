//! Integers of all numbers of bits, with a scale, or a scale and a zero, for each token or group: a GPU
//! compared with the CPU.

use super::groups::{check_appended, check_attention, check_pages, check_without_a_direction};
use super::{TOLERANCE, WIDTHS, case, device};
use octaplex::Attend;
use octaplex::cache::Center;

/// Returns a kind of each number of bits, spread over widths.
const KINDS: [&str; 7] = [
    "",
    ",group=16,asymmetric=true",
    ",asymmetric=true,rotate=true",
    ",group=32",
    ",rotate=true",
    ",group=64,asymmetric=true",
    ",asymmetric=true",
];

/// Pairs that other tests lack: all numbers of bits as keys and as values, and with a zero for each token.
fn pairs(dim: usize) -> Vec<(String, String)> {
    let width = WIDTHS.iter().position(|width| *width == dim).unwrap();
    let kind = |number: usize| {
        let kind = KINDS[number % KINDS.len()];
        let group = kind.strip_prefix(",group=").map_or("1", |rest| &rest[..2]);
        if dim.is_multiple_of(group.parse::<usize>().unwrap()) { kind } else { ",group=16" }
    };
    let bits = [2, 3, 5, 6, 7];
    let mut pairs: Vec<(String, String)> = (0..5)
        .map(|number| {
            let values = bits[(number + width + 1) % 5];
            let (keys, of_values) = (kind(number + width), kind(2 * number + 3 * width + 1));
            (format!("int:bits={}{keys}", bits[number]), format!("int:bits={values}{of_values}"))
        })
        .collect();
    let more = [
        [("int:asymmetric=true", "int:bits=8,asymmetric=true"), ("octopus", "int:bits=3")],
        [("int:bits=8,asymmetric=true,rotate=true", "int:asymmetric=true"), ("int:bits=6", "trellis")],
    ];
    pairs.extend(more[width % 2].map(|(keys, values)| (keys.to_string(), values.to_string())));
    pairs
}

#[test]
fn pages_of_integers_round_trip() {
    check_pages(pairs);
}

#[test]
fn integers_attend_like_f64() {
    check_attention(pairs);
}

#[test]
fn appended_pages_of_integers_are_the_cpus() {
    check_appended(pairs);
}

/// Lengths that are no multiple of four slots, numbers of heads, and options of single steps.
#[test]
fn lengths_heads_and_options_of_integers() {
    let Some(device) = device() else { return };
    for (number, tokens) in [3, 131, 196, 260, 452, 2000, 9000].into_iter().enumerate() {
        let heads = [(1, 1), (8, 1), (20, 2), (9, 3), (24, 24)][number % 5];
        let (keys, values) =
            [("int:bits=3", "int:bits=5"), ("int:bits=6,asymmetric=true", "int:bits=2")][number % 2];
        let mut case = case(keys, values, [64, 128][number % 2], heads, tokens);
        case.config = case.config.page([64, 128, 256][number % 3]).sink_tokens([0, 4, 17][number % 3]);
        let options = [Attend::default(), Attend::default().soft_cap(8.0).window(400).keep_sinks(true)];
        let (gpu, _) = case.check(&device, &options[number / 2 % 2]);
        assert!(gpu < TOLERANCE, "{tokens} tokens, heads {heads:?}: {gpu:e}");
    }
}

#[test]
fn integers_of_rows_without_a_direction_are_the_cpus() {
    check_without_a_direction(&[
        ("int:bits=5", "int:bits=3,asymmetric=true", Center::Off),
        ("int:bits=2,asymmetric=true", "int:bits=7", Center::Page),
        ("int:bits=6,group=32,asymmetric=true", "int:asymmetric=true,rotate=true", Center::Prefix),
    ]);
}
