//! Computes the gigabytes of `docs/memory.md` again, and compares the tables of `docs/choosing.md` with the sample. A row that is
//! wrong or missing is printed as it should be.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex::{CacheConfig, CodecSpec};
use std::fs;

/// Name, layers, key/value heads, width of a head, from the models' own config.json.
const MODELS: [(&str, usize, usize, usize); 5] = [
    ("Llama-3-8B", 32, 8, 128),
    ("Llama-3.1-70B", 80, 8, 128),
    ("Qwen2.5-7B", 28, 4, 128),
    ("Qwen3-8B", 36, 8, 128),
    ("Phi-3.5-mini", 32, 32, 96),
];

/// Engines' rows: every token takes a block, and nothing else is kept.
const PLAIN: [&str; 3] = ["f16", "q8_0", "q4_0"];

/// Ours: the whole cache, with sinks, exact window, rows for rollbacks, centres, balance and headers. The most bits a value,
/// or the default.
const CACHED: [(&str, Option<f64>); 3] =
    [("`bits=4.3`", Some(4.3)), ("the default", None), ("`bits=2.3`", Some(2.3))];

const TOKENS: usize = 32_768;

fn page(name: &str) -> String {
    fs::read_to_string(format!("{}/docs/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// 10⁹ bytes.
fn gigabytes(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / 1e9)
}

fn plain(spec: &str, (_, layers, heads, width): (&str, usize, usize, usize)) -> String {
    let spec: CodecSpec = spec.parse().unwrap();
    gigabytes((2 * layers * heads * TOKENS) as u64 * spec.block_bytes(width) as u64)
}

fn cached(bits: Option<f64>, (_, layers, heads, width): (&str, usize, usize, usize)) -> String {
    let config = CacheConfig::new(layers, heads, width, TOKENS);
    let config = bits.map_or(config, |bits| config.for_bits(bits).unwrap());
    gigabytes(config.layers().map(|layer| layer.required_bytes() as u64).sum())
}

#[test]
fn the_gigabytes_of_the_page() {
    let page = page("memory.md");
    let plain_titles = PLAIN.map(|spec| format!("`{spec}`")).join(" | ");
    let cached_titles = CACHED.map(|(title, _)| title).join(" | ");
    let mut expected = vec![format!("| at 32,768 tokens, GB | {plain_titles} | {cached_titles} |")];
    for model in MODELS {
        let mut cells: Vec<String> = PLAIN.iter().map(|spec| plain(spec, model)).collect();
        cells.extend(CACHED.iter().map(|(_, bits)| cached(*bits, model)));
        expected.push(format!("| {} | {} |", model.0, cells.join(" | ")));
    }
    for line in &expected {
        assert!(page.lines().any(|found| found == line), "docs/memory.md lacks\n{}", expected.join("\n"));
    }
}

/// A full cache has the bytes that it requires: the figures above are neither a bound nor an estimate.
#[cfg(feature = "alloc")]
#[test]
fn a_full_cache_takes_what_the_page_says() {
    let (heads, width, tokens) = (2, 128, 4 + 64 + 255 * 64);
    let config = octaplex::LayerConfig::new(heads, width, tokens);
    let mut cache = octaplex::KvCache::new([config], octaplex::Backend::detect()).unwrap();
    let rows = rows_of(heads * tokens * width);
    cache.append(0, &rows, &rows).unwrap();
    let (taken, asked) = (cache.stats().bytes as f64, config.required_bytes() as f64);
    assert!(taken <= asked && taken > 0.98 * asked, "{taken} of {asked}");
}

#[cfg(feature = "alloc")]
fn rows_of(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect()
}

/// The bits a value that a short context takes.
#[cfg(feature = "alloc")]
#[test]
fn the_bits_of_short_contexts() {
    let (page, mut cache) =
        (page("memory.md"), octaplex::KvCache::builder(1, 2, 128, 1 << 15).build().unwrap());
    let (mut tokens, mut expected) = (0, Vec::new());
    for (until, name) in [(256, "256"), (1000, "1,000"), (4096, "4,096"), (32_768, "32,768")] {
        let rows = rows_of(2 * (until - tokens) * 128);
        cache.append(0, &rows, &rows).unwrap();
        tokens = until;
        expected.push(format!("| {name} | {:.1} |", cache.stats().bits_per_value()));
    }
    for line in &expected {
        assert!(page.lines().any(|found| found == line), "docs/memory.md lacks\n{}", expected.join("\n"));
    }
}

/// Names that the page speaks of exist.
#[test]
fn the_specs_of_the_page_parse() {
    let (page, mut specs) = (page("choosing.md"), 0);
    let (before, after) = page.split_once("\n## What to take\n").unwrap();
    let (_, instead) = before.split_once("\n## Instead of").unwrap();
    // The column of our formats: the third in the first table, the first in the others.
    for (column, part) in [(3, instead), (1, after)] {
        let cells = part
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|line| line.split('|').nth(column).unwrap());
        for spec in cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
            assert!(spec.parse::<CodecSpec>().is_ok(), "{spec}");
            specs += 1;
        }
    }
    assert!(specs >= 10, "{specs}");
}

/// The figures of "What to take" are those of docs/plots/sample.txt, which has one digit more. `rates.rs` checks the bits.
#[test]
fn the_rows_of_what_to_take_are_those_of_the_sample() {
    let page = page("choosing.md");
    let sample = include_str!("../docs/plots/sample.txt");
    let (keys, values) = sample.split_once("\nKEYS ").unwrap().1.split_once("\nVALUES ").unwrap();
    let figures = |table: &'static str, spec: CodecSpec| -> Option<Vec<f64>> {
        // Specs are compared, because `trellis:bits=4` is another name of `trellis:m=8`.
        let is_spec = |line: &&str| line.split(' ').next().is_some_and(|name| name.parse() == Ok(spec));
        let row = table.lines().find(is_spec)?;
        row.split_whitespace().skip(1).filter(|cell| *cell != "*").map(|cell| cell.parse().ok()).collect()
    };
    let section = page.split("## What to take").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut count = 0;
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let spec = cells[1].split('`').nth(1).unwrap().parse().unwrap();
        let number = |cell: usize| cells[cell].parse::<f64>().unwrap();
        let (Some(keys), Some(values)) = (figures(keys, spec), figures(values, spec)) else { continue };
        // Bits, distortion, KL, raw KL of keys; distortion of values.
        for (said, printed) in
            [(number(3), values[1]), (number(4), keys[3]), (number(5), keys[0]), (number(6), keys[2])]
        {
            assert!(
                (said / printed - 1.0).abs() < 0.06,
                "{line}: {said}, and docs/plots/sample.txt has {printed}"
            );
        }
        count += 1;
    }
    assert!(count >= 12, "{count} rows are in docs/plots/sample.txt");
}
