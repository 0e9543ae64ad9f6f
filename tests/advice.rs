//! Figures of the advice in the README, in `docs/choosing.md` and `docs/codecs.md`: each is computed, or follows from a table
//! of results.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use crate::common::{Random, build, decode_rows, encode_rows};
use octaplex::{CodecSpec, LayerConfig};

const README: &str = include_str!("../README.md");
const CHOOSING: &str = include_str!("../docs/choosing.md");
const CODECS: &str = include_str!("../docs/codecs.md");
const ACCURACY: &str = include_str!("../docs/accuracy.md");

/// Key/value heads and their width: SmolLM2-135M, Qwen2.5-0.5B, Qwen2.5-1.5B.
const MODELS: [(usize, usize); 3] = [(3, 64), (2, 64), (2, 128)];

fn spec(text: &str) -> CodecSpec {
    text.parse().unwrap()
}

#[track_caller]
fn says(name: &str, page: &str, words: &str) {
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains(words), "{name} does not say: {words}");
}

/// "3.1 to 3.2": bits of a page, from the least to the most over the models.
fn range(keys: &str, values: &str) -> String {
    let bits = MODELS.map(|(heads, dim)| {
        let bits = LayerConfig::new(heads, dim, 1000).keys(spec(keys)).values(spec(values)).page_bits();
        format!("{bits:.1}")
    });
    let (least, most) = (bits.iter().min().unwrap(), bits.iter().max().unwrap());
    if least == most { least.clone() } else { format!("{least} to {most}") }
}

/// The KL and the change of perplexity in the cells of a row of the first table of results: each model's three texts.
fn results(row: &str) -> Vec<(f64, f64)> {
    let start = format!("| {row} |");
    let line = ACCURACY.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no {row}"));
    let cell = |cell: &str| {
        let (kl, change) = cell.trim().split_once(' ').unwrap();
        let change = change.trim_matches(['(', ')']).trim_end_matches('%');
        (kl.trim_start_matches('<').parse().unwrap(), change.parse().unwrap())
    };
    line.trim_matches('|').split('|').skip(2).map(cell).collect()
}

#[test]
fn the_bits_of_the_advice() {
    let default = LayerConfig::new(1, 128, 1000);
    assert_eq!((default.keys, default.values), (spec("graded"), spec("trellis")));
    let best = range("graded:bits=4", "trellis:m=8");
    let [default, smallest, fast] =
        [("graded", "trellis"), ("graded:bits=2", "trellis:m=2"), ("turboquant", "turboquant")]
            .map(|(keys, values)| range(keys, values));
    for row in [
        format!("| `graded` | `trellis` | {default} |"),
        format!("| `graded:bits=4` | `trellis:m=8` | {best} |"),
        format!("| `graded:bits=2` | `trellis:m=2` | {smallest} |"),
        format!("| `turboquant` | `turboquant` | {fast} |"),
    ] {
        says("docs/choosing.md", CHOOSING, &row);
    }
    for words in [
        format!("`graded` keys and `trellis` values, {default} bits."),
        format!("`graded:bits=4` and `trellis:m=8`, {best} bits."),
        format!("`graded:bits=2` and `trellis:m=2`, {smallest} bits;"),
        format!("`turboquant` for both, {fast} bits."),
    ] {
        says("README.md", README, &words);
    }
    let ggml = ["q8_0", "q5_0", "q4_0", "iq4_nl"].map(|name| spec(name).bits_per_value(128));
    let (least, most) =
        (ggml.iter().fold(f64::MAX, |a, b| a.min(*b)), ggml.iter().fold(0.0f64, |a, b| a.max(*b)));
    says("docs/choosing.md", CHOOSING, &format!("`iq4_nl` | the same | {least} to {most} |"));
}

#[test]
fn the_losses_of_the_advice() {
    let ours = results("`graded:bits=2` / `trellis:m=2`");
    let theirs = results("llama.cpp's `q4_0`, rotated");
    let kl = |fold: fn(f64, f64) -> f64| ours.iter().map(|(kl, _)| *kl).reduce(fold).unwrap();
    says("docs/choosing.md", CHOOSING, &format!("of {:.3} to {:.3} nats", kl(f64::min), kl(f64::max)));
    // Behind SmolLM2's three texts.
    let ratio = ours.iter().zip(&theirs).skip(3).map(|((a, _), (b, _))| b / a).reduce(f64::min).unwrap();
    says("docs/choosing.md", CHOOSING, &format!("1/{:.0} of what", ratio.floor()));
    // Raw keys: what is advised keeps everywhere what the others lose on some model and text.
    let worst = |row: &str| results(row).iter().map(|(kl, _)| *kl).fold(0.0, f64::max);
    assert!(worst("llama.cpp's `q8_0`, rotated") < 0.001);
    for row in ["`fp8`, raw", "`int:group=32`, raw", "`hqmq:r=6,med=3` / `hqmq`, raw"] {
        assert!(worst(row) > 0.3, "{row} loses {} at most", worst(row));
    }
}

/// Keys of 2 and 3 bits with grades, beside those without.
#[test]
fn the_gain_of_grades() {
    let pairs = [("`graded` / `trellis`", "`trellis`"), ("`graded:bits=2` / `trellis:m=2`", "`trellis:m=2`")];
    let ratios = pairs.iter().flat_map(|(graded, plain)| {
        results(graded).into_iter().zip(results(plain)).map(|((a, _), (b, _))| a / b).collect::<Vec<_>>()
    });
    let (least, most) = ratios.fold((f64::MAX, 0.0f64), |(least, most), x| (least.min(x), most.max(x)));
    let words = format!("{least:.2} to {most:.2} of `trellis`'s KL");
    assert!(CODECS.contains(&words), "docs/codecs.md does not say: {words}");
}

/// Decibels between the distortions of `turboquant` and `trellis` at the same bits.
#[test]
fn the_gain_of_a_trellis() {
    const D: usize = 128;
    let x = Random::new(11).gaussians(2048 * D);
    let distortion = |text: &str| {
        let codec = build(text, D);
        let decoded = decode_rows(&*codec, &encode_rows(&*codec, &x));
        crate::oracle::distortion(&crate::oracle::to_f64(&x), &crate::oracle::to_f64(&decoded))
    };
    let gains = [(1, 1), (2, 2), (4, 3), (8, 4), (16, 5)].map(|(m, bits)| {
        let (scalar, trellis) = (format!("turboquant:bits={bits},gain=norm"), format!("trellis:m={m}"));
        assert_eq!(spec(&scalar).block_bytes(D), spec(&trellis).block_bytes(D));
        10.0 * (distortion(&scalar) / distortion(&trellis)).log10()
    });
    println!("{gains:?}");
    let (least, most) =
        gains.iter().fold((f64::MAX, 0.0f64), |(least, most), x| (least.min(*x), most.max(*x)));
    let words = format!("{least:.1} to {most:.1} dB better than `turboquant`");
    assert!(
        CODECS.contains(&words) || CODECS.contains(&words.replacen("0.", ".", 1)),
        "docs/codecs.md: {words}"
    );
}

/// What centring and the balance do to keys of the bundled sample.
#[test]
fn the_gain_of_the_balance() {
    let row = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/plots/sample.txt"));
    let tables = row.unwrap_or_else(|_| ACCURACY.to_string());
    let keys = tables.split("\nKEYS ").nth(1).unwrap();
    let row = keys.lines().find(|line| line.starts_with("turboquant ")).unwrap();
    let cells: Vec<f64> = row.split_whitespace().filter_map(|cell| cell.parse().ok()).collect();
    // Bits, distortion, KL, KL raw.
    says("README.md", README, &format!("keys on the bundled sample by {:.0}.", cells[3] / cells[2]));
}

/// Exact tokens weigh more in short contexts.
#[cfg(feature = "alloc")]
#[test]
fn the_bits_of_a_short_context() {
    let mut cache = octaplex::KvCache::builder(1, 8, 128, 8192).build().unwrap();
    let rows = Random::new(12).gaussians(8 * 4096 * 128);
    cache.append(0, &rows, &rows).unwrap();
    let bits = cache.stats().bits_per_value();
    says("README.md", README, &format!("the default has {bits:.1} at 4,096 tokens"));
}
