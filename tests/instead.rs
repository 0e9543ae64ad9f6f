//! Computes the gigabytes of `docs/instead.md` again. A row that is wrong or missing is printed as it should be.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex::{CodecSpec, LayerConfig};

/// Name, layers, key/value heads, width of a head, from the models' own config.json.
const MODELS: [(&str, usize, usize, usize); 5] = [
    ("Llama-3-8B", 32, 8, 128),
    ("Llama-3.1-70B", 80, 8, 128),
    ("Qwen2.5-7B", 28, 4, 128),
    ("Qwen3-8B", 36, 8, 128),
    ("Phi-3.5-mini", 32, 32, 96),
];

/// Engines' rows: every token takes a block, and nothing else is kept.
const PLAIN: [&str; 4] = ["f16", "q8_0", "fp8", "q4_0"];

/// Ours: the whole cache, with sinks, exact window, rows for rollbacks, centres, balance and headers.
const CACHED: [&str; 4] = ["turboquant:bits=6", "trellis:m=8", "trellis", "trellis:m=2"];

const TOKENS: usize = 32_768;

/// 10⁹ bytes.
fn gigabytes(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / 1e9)
}

fn plain(spec: &str, (_, layers, heads, width): (&str, usize, usize, usize)) -> String {
    let spec: CodecSpec = spec.parse().unwrap();
    gigabytes((2 * layers * heads * TOKENS) as u64 * spec.block_bytes(width) as u64)
}

fn cached(spec: &str, (_, layers, heads, width): (&str, usize, usize, usize)) -> String {
    let mut config = LayerConfig::new(heads, width, TOKENS);
    (config.keys, config.values) = (spec.parse().unwrap(), spec.parse().unwrap());
    let bytes = config.required_bytes();
    assert!(bytes > 0, "{spec}: an impossible configuration");
    gigabytes(layers as u64 * bytes as u64)
}

#[test]
fn the_gigabytes_of_the_page() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/instead.md")).unwrap();
    let code = |specs: &[&str]| specs.iter().map(|spec| format!("`{spec}`")).collect::<Vec<_>>().join(" | ");
    let mut expected = vec![format!("| at 32,768 tokens, GB | {} | {} |", code(&PLAIN), code(&CACHED))];
    for model in MODELS {
        let mut cells: Vec<String> = PLAIN.iter().map(|spec| plain(spec, model)).collect();
        cells.extend(CACHED.iter().map(|spec| cached(spec, model)));
        expected.push(format!("| {} | {} |", model.0, cells.join(" | ")));
    }
    for line in &expected {
        assert!(page.lines().any(|found| found == line), "docs/instead.md lacks\n{}", expected.join("\n"));
    }
}

/// A full cache has the bytes that it requires: the figures above are neither a bound nor an estimate.
#[cfg(feature = "alloc")]
#[test]
fn a_full_cache_takes_what_the_page_says() {
    let (heads, width, tokens) = (2, 128, 4 + 64 + 255 * 64);
    let config = LayerConfig::new(heads, width, tokens);
    let mut cache = octaplex::KvCache::new([config], octaplex::Backend::detect()).unwrap();
    let rows: Vec<f32> = (0..heads * tokens * width).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    cache.append(0, &rows, &rows).unwrap();
    let (taken, asked) = (cache.stats().bytes as f64, config.required_bytes() as f64);
    assert!(taken <= asked && taken > 0.98 * asked, "{taken} of {asked}");
}

/// Names that the page speaks of exist.
#[test]
fn the_specs_of_the_page_parse() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/instead.md")).unwrap();
    let formats = page.split("\nThe cache:\n").next().unwrap();
    let mut specs = 0;
    for line in formats.lines().filter(|line| line.starts_with("| `")) {
        for spec in line.split('|').nth(1).unwrap().split('`').skip(1).step_by(2) {
            assert!(spec.parse::<CodecSpec>().is_ok(), "{spec}");
            specs += 1;
        }
    }
    assert!(specs >= 10, "{specs}");
}

/// The figures of "What to take" are those of docs/plots/sample.txt, which has one digit more. `rates.rs` checks the bits.
#[test]
fn the_rows_of_what_to_take_are_those_of_the_sample() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/instead.md")).unwrap();
    let sample = include_str!("../docs/plots/sample.txt");
    let (keys, values) = sample.split_once("\nKEYS ").unwrap().1.split_once("\nVALUES ").unwrap();
    let figures = |table: &'static str, spec: &str| -> Option<Vec<f64>> {
        let row = table.lines().find(|line| line.split(' ').next() == Some(spec))?;
        row.split_whitespace().skip(1).filter(|cell| *cell != "*").map(|cell| cell.parse().ok()).collect()
    };
    let section = page.split("## What to take").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut count = 0;
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells[1].split('`').nth(1).unwrap();
        let number = |cell: usize| cells[cell].parse::<f64>().unwrap();
        let (Some(keys), Some(values)) = (figures(keys, name), figures(values, name)) else { continue };
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
