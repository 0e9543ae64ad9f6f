//! The cache's speed on one core: attention compared with f16, eight query heads compared with one, appending, time by length,
//! and blocks of queries of a prompt. All candidates take turns, and each number is the fastest of many. So ratios within a run
//! are fair.
//!
//! `cargo bench --bench attention`; words after `--` choose sections: attend, page, heads, append, length, prefill, plain.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "common/plain.rs"]
mod plain;

use octaplex::cache::{Center, SharedLayer};
use octaplex::codecs::HeadId;
use octaplex::{Attend, Backend, CodecSpec, KvCache, LayerConfig};
use std::time::{Duration, Instant};

const D: usize = 128;
const SECTIONS: [&str; 7] = ["attend", "page", "heads", "append", "length", "prefill", "plain"];

/// Returns Gaussian numbers that are good enough for timing: sums of twelve uniform ones.
fn gaussian(count: usize) -> Vec<f32> {
    gaussian_from(1, count)
}

fn gaussian_from(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

fn config(keys: &str, values: &str, tokens: usize) -> LayerConfig {
    let (keys, values): (CodecSpec, CodecSpec) = (keys.parse().unwrap(), values.parse().unwrap());
    LayerConfig::new(1, D, tokens + 300).keys(keys).values(values)
}

/// Returns a layer with this many tokens.
fn filled(config: LayerConfig, tokens: usize) -> SharedLayer {
    filled_on(Backend::detect(), config, tokens)
}

fn filled_on(backend: Backend, config: LayerConfig, tokens: usize) -> SharedLayer {
    let mut cache = KvCache::new([config], backend).unwrap();
    let rows = gaussian(4096 * D);
    let mut left = tokens;
    while left > 0 {
        let count = left.min(4096);
        cache.append(0, &rows[..count * D], &rows[..count * D]).unwrap();
        left -= count;
    }
    cache.layers()[0].clone()
}

/// A layer, and the time of one call of attend on it.
struct Runner {
    name: String,
    layer: SharedLayer,
    queries: Vec<f32>,
    output: Vec<f32>,
    scratch: Vec<f32>,
    best: Duration,
}

impl Runner {
    fn new(name: &str, layer: SharedLayer, heads: usize) -> Self {
        let scratch = vec![0.0; layer.config().scratch_len(heads)];
        Self {
            name: name.into(),
            layer,
            queries: gaussian(heads * D),
            output: vec![0.0; heads * D],
            scratch,
            best: Duration::MAX,
        }
    }

    fn run(&mut self) {
        let start = Instant::now();
        self.layer.attend(&self.queries, &mut self.output, &mut self.scratch).unwrap();
        self.best = self.best.min(start.elapsed());
        std::hint::black_box(&self.output);
    }

    fn ns_per_token(&self) -> f64 {
        self.best.as_nanos() as f64 / self.layer.stats().tokens as f64
    }
}

fn take_turns(runners: &mut [Runner], seconds: f64) {
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        runners.iter_mut().for_each(Runner::run);
    }
}

/// Returns the pairs of codecs that exist in this build.
fn pairs() -> Vec<(&'static str, &'static str)> {
    let all = [
        ("f16", "f16"),
        ("turboquant:bits=4", "turboquant:bits=4"),
        ("turboquant:bits=3", "turboquant:bits=3"),
        ("trellis:m=4", "trellis:m=4"),
        ("graded", "trellis:m=4"),
        ("trellis:m=4", "turboquant:bits=4"),
        ("int", "int"),
    ];
    all.into_iter()
        .filter(|(k, v)| k.parse::<CodecSpec>().is_ok() && v.parse::<CodecSpec>().is_ok())
        .collect()
}

fn attend(tokens: usize) {
    println!("attend, one head, width {D}, {tokens} tokens, one query");
    let mut runners: Vec<Runner> = pairs()
        .into_iter()
        .map(|(k, v)| Runner::new(&format!("{k} / {v}"), filled(config(k, v, tokens), tokens), 1))
        .collect();
    let off = config("turboquant", "turboquant", tokens).center(Center::Off);
    runners.push(Runner::new("turboquant / turboquant, no centre", filled(off, tokens), 1));
    let long = config("turboquant", "turboquant", tokens).page(256);
    runners.push(Runner::new("turboquant / turboquant, pages of 256", filled(long, tokens), 1));
    take_turns(&mut runners, 6.0);
    let f16 = runners[0].ns_per_token();
    for runner in &runners {
        let ns = runner.ns_per_token();
        println!("  {:45} {ns:6.2} ns a token   {:5.2} times as fast as f16", runner.name, f16 / ns);
    }
}

fn heads(tokens: usize) {
    println!("attend, {tokens} tokens, eight query heads, compared with one");
    for (k, v) in pairs() {
        let layer = filled(config(k, v, tokens), tokens);
        let mut runners = [Runner::new("one", layer.clone(), 1), Runner::new("eight", layer, 8)];
        take_turns(&mut runners, 1.5);
        let [one, eight] = runners.map(|runner| runner.ns_per_token());
        println!("  {:45} {one:6.2} ns, {eight:6.2} ns: {:4.2} times", format!("{k} / {v}"), eight / one);
    }
}

fn append(tokens: usize) {
    println!("append and encode, ns a token and head, one by one and {tokens} at once");
    let rows = gaussian(tokens * D);
    for (k, v) in pairs() {
        for balance in [false, true] {
            let config = config(k, v, tokens).balance(balance);
            let mut best = [f64::INFINITY; 2];
            for _ in 0..6 {
                for (at_once, best) in [false, true].into_iter().zip(&mut best) {
                    let mut cache = KvCache::new([config], Backend::detect()).unwrap();
                    cache.reserve(1).unwrap();
                    let start = Instant::now();
                    for rows in rows.chunks_exact(if at_once { tokens * D } else { D }) {
                        cache.append(0, rows, rows).unwrap();
                    }
                    *best = best.min(start.elapsed().as_nanos() as f64 / tokens as f64);
                }
            }
            let name = format!("{k} / {v}{}", if balance { ", balanced" } else { "" });
            println!("  {name:45} {:6.0} {:6.0}", best[0], best[1]);
        }
    }
}

fn length() {
    println!("attend over length, turboquant 4 bits, ns a token");
    for shift in 10..21 {
        let tokens = 1 << shift;
        let layer = filled(config("turboquant", "turboquant", tokens), tokens);
        let mut runners = [Runner::new("", layer, 1)];
        take_turns(&mut runners, 0.3);
        println!("  {tokens:9} {:6.2}", runners[0].ns_per_token());
    }
}

/// Times blocks of queries of a prompt, one head, on every backend with vectors. More words choose: a number of queries (512 by
/// default), backends such as `avx2`, and pairs of codecs such as `f16/f16`.
fn prefill(words: &[String]) {
    let count = words.iter().find_map(|word| word.parse().ok()).unwrap_or(512);
    println!("attend, one head, width {D}, {count} queries at the end; ns a token and query");
    let backends: Vec<Backend> =
        Backend::available().filter(|backend| !["portable", "scalar"].contains(&backend.name())).collect();
    let (codecs, named): (Vec<&str>, Vec<&str>) = words
        .iter()
        .map(String::as_str)
        .filter(|word| !SECTIONS.contains(word) && word.parse::<usize>().is_err())
        .partition(|word| word.contains('/'));
    let chosen = |words: &[&str], name: &str| words.is_empty() || words.contains(&name);
    for tokens in [4096, 32_768] {
        let (queries, options) = (gaussian(count * D), Attend::default().queries(count));
        let mut runners = Vec::new();
        for &backend in backends.iter().filter(|backend| chosen(&named, backend.name())) {
            for (k, v) in pairs().into_iter().filter(|(k, v)| chosen(&codecs, &format!("{k}/{v}"))) {
                let name = format!("{tokens:6} {:9} {k} / {v}", backend.name());
                runners.push((name, filled_on(backend, config(k, v, tokens), tokens), Duration::MAX));
            }
        }
        assert!(!runners.is_empty(), "no backend or pair of codecs is called so: {words:?}");
        let (mut output, begin) = (vec![0.0; count * D], Instant::now());
        let mut scratch =
            vec![
                0.0;
                runners.iter().map(|(_, layer, _)| layer.config().scratch_len(count)).max().unwrap_or(0)
            ];
        while begin.elapsed().as_secs_f64() < 0.3 * runners.len() as f64 {
            for (_, layer, best) in &mut runners {
                let start = Instant::now();
                layer.attend_with(&queries, &options, &mut output, &mut scratch).unwrap();
                *best = (*best).min(start.elapsed());
                std::hint::black_box(&output);
            }
        }
        for (name, _, best) in runners {
            println!("  {name:50} {:6.2}", best.as_nanos() as f64 / (tokens * count) as f64);
        }
    }
}

/// Times the codecs' own calls on one page in the first-level cache. Attention cannot be faster than that.
fn page() {
    println!("one page of 64 in cache, ns a token: score, accumulate");
    for spec in ["f16", "turboquant", "int", "trellis:m=4"] {
        let Ok(spec) = spec.parse::<CodecSpec>() else { continue };
        let codec = spec.build_dyn(D, Backend::detect(), HeadId::default()).unwrap();
        let rows = gaussian(64 * D);
        let mut blocks = vec![0; codec.page_bytes_max(64)];
        codec.encode_page(&rows, &mut blocks).unwrap();
        let mut query = vec![0.0; codec.query_len()];
        codec.prepare_query(&rows[..D], &mut query).unwrap();
        let (mut scores, mut acc) = ([0.0; 64], [0.0; D]);
        let mut best = [f64::INFINITY; 2];
        for _ in 0..300 {
            let start = Instant::now();
            for _ in 0..100 {
                codec.score(&[&query], std::hint::black_box(&blocks), &mut scores).unwrap();
            }
            best[0] = best[0].min(start.elapsed().as_nanos() as f64 / 6400.0);
            let start = Instant::now();
            for _ in 0..100 {
                codec.accumulate(&scores, std::hint::black_box(&blocks), &mut acc).unwrap();
            }
            best[1] = best[1].min(start.elapsed().as_nanos() as f64 / 6400.0);
        }
        println!("  {:45} {:6.2} {:6.2}", spec.to_string(), best[0], best[1]);
    }
}

/// Times the backends without vector instructions against plain f32: 2,000 tokens, eight query heads on two key/value heads.
fn plain(dim: usize) {
    const TOKENS: usize = 2000;
    println!("2,000 tokens, 8 query heads on 2, width {dim}, µs; times the plain f32 loop");
    let rows: Vec<Vec<f32>> = (0..4).map(|i| gaussian_from(i, TOKENS * dim)).collect();
    let (queries, mut output) = (gaussian_from(9, 8 * dim), vec![0.0; 8 * dim]);
    let (scale, mut scores) = (1.0 / (dim as f32).sqrt(), vec![0.0; TOKENS]);
    let mut layers = Vec::new();
    for spec in [
        "turboquant:bits=2",
        "turboquant:bits=3",
        "turboquant",
        "turboquant:bits=8",
        "trellis:m=2",
        "trellis",
        "trellis:m=8",
    ] {
        for backend in Backend::available().filter(|backend| ["portable", "scalar"].contains(&backend.name()))
        {
            let (keys, values): (CodecSpec, CodecSpec) = (spec.parse().unwrap(), spec.parse().unwrap());
            let config = LayerConfig::new(2, dim, TOKENS + 300).keys(keys).values(values);
            let mut cache = KvCache::new([config], backend).unwrap();
            cache.append(0, &rows[..2].concat(), &rows[2..].concat()).unwrap();
            layers.push((spec, backend, cache, Duration::MAX));
        }
    }
    let (mut naive, start) = (Duration::MAX, Instant::now());
    while start.elapsed().as_secs_f64() < 8.0 {
        let now = Instant::now();
        for head in 0..2 {
            let range = head * 4 * dim..(head + 1) * 4 * dim;
            let (queries, output) = (&queries[range.clone()], &mut output[range]);
            plain::attention(f32::exp, queries, &rows[head], &rows[2 + head], scale, &mut scores, output);
        }
        naive = naive.min(now.elapsed());
        std::hint::black_box(&output);
        for (.., cache, best) in &mut layers {
            let now = Instant::now();
            cache.attend(0, &queries, &mut output).unwrap();
            *best = (*best).min(now.elapsed());
            std::hint::black_box(&output);
        }
    }
    println!("  {:45} {:6.0}", "plain f32", naive.as_nanos() as f64 / 1e3);
    for (spec, backend, _, best) in layers {
        let times = best.as_secs_f64() / naive.as_secs_f64();
        println!(
            "  {:45} {:6.0}   {times:5.2} times",
            format!("{spec}, {}", backend.name()),
            best.as_nanos() as f64 / 1e3
        );
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |section: &str| words.is_empty() || words.iter().any(|word| word == section);
    println!("{}", Backend::detect().name());
    if wanted("attend") {
        attend(131_072);
    }
    if wanted("page") {
        page();
    }
    if wanted("heads") {
        heads(131_072);
    }
    if wanted("append") {
        append(4096);
    }
    if wanted("length") {
        length();
    }
    if wanted("prefill") {
        prefill(&words);
    }
    if wanted("plain") {
        [64, 128].into_iter().for_each(plain);
    }
}
