//! Compares this library with others: the same rows, one process, one thread. All candidates take turns, and each number is
//! the fastest of many, in processor time of the thread. See run.sh. Words choose sections: encode, decode, score, memory, sums, step, prefill.

mod ggml;

use ggml::{Flash, QUANTISED, TYPES, Type};
use octaplex::codecs::{Codec, HeadId};
use octaplex::{Attend, Backend, CodecSpec, KvCache, LayerConfig};
use std::error::Error;
use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

const D: usize = 128;
/// Rows that fit a second-level cache.
const ROWS: usize = 4096;
/// Nanoseconds. Longer runs are not repeated within a turn: reading their rows into the cache is a small part of them, or the
/// rows do not fit.
const LONG: f64 = 1e6;
/// Rows of turboquant-rs, which needs a microsecond for each.
const FEW: usize = 512;
/// Memory rows are this many times as many: they do not fit any cache.
const TIMES: usize = 256;
const SECTIONS: [&str; 7] = ["encode", "decode", "score", "memory", "sums", "step", "prefill"];
const USAGE: &str =
    "usage: octaplex-peers [--json FILE] [encode] [decode] [score] [memory] [sums] [step] [prefill]";
/// Ratios are relative to this row.
const REFERENCE: &str = "ggml q4_0";

/// A candidate.
struct Runner {
    name: String,
    /// The time of a run is divided by this.
    units: usize,
    run: Box<dyn FnMut()>,
    best: f64,
}

impl Runner {
    fn new(name: impl Into<String>, units: usize, run: impl FnMut() + 'static) -> Self {
        Self { name: name.into(), units, run: Box::new(run), best: f64::INFINITY }
    }

    fn ns(&self) -> f64 {
        self.best / self.units as f64
    }
}

struct Report {
    json: String,
    isa: String,
}

impl Report {
    /// Runs all candidates in turns, at least three times and for six seconds. Prints their times, and ratios to the named one.
    fn section(&mut self, title: &str, beside: &str, mut runners: Vec<Runner>) {
        let (start, mut turns) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(6) || turns < 3 {
            turns += 1;
            for runner in &mut runners {
                // The turns of the others evict these rows from the second-level cache. The first run reads them again.
                for _ in 0..2 {
                    let before = ggml::nanoseconds();
                    (runner.run)();
                    let took = ggml::nanoseconds() - before;
                    runner.best = runner.best.min(took);
                    if took > LONG {
                        break;
                    }
                }
            }
        }
        let reference = runners.iter().find(|runner| runner.name == beside).map(Runner::ns);
        println!("\n| {title}, {} | ns | relative to {beside} |\n|---|---|---|", self.isa);
        for runner in &runners {
            let ratio = reference.map(|reference| runner.ns() / reference);
            let shown = ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
            println!("| {} | {:.2} | {shown} |", runner.name, runner.ns());
            let line = (&self.isa, title, &runner.name, runner.ns());
            let comma = if self.json.is_empty() { "" } else { ",\n" };
            let _ = write!(
                self.json,
                r#"{comma}  {{"isa": {:?}, "row": {:?}, "of": {:?}, "ns": {:.3}}}"#,
                line.0, line.1, line.2, line.3
            );
        }
    }
}

/// Returns Gaussian numbers that are good enough for timing: sums of twelve uniform ones.
fn gaussian(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

/// One of this library's codecs with its rows, encoded.
struct Ours {
    spec: CodecSpec,
    codec: Box<dyn Codec>,
    blocks: Vec<u8>,
}

const SPECS: [&str; 13] = [
    "turboquant:bits=4",
    "turboquant:bits=3",
    "turboquant:bits=2",
    "trellis:m=8",
    "trellis:m=4",
    "trellis:m=2",
    "int",
    "octopus",
    "hqmq",
    "tq3_0",
    "polarquant:bits=3",
    "q4_0",
    "f16",
];

impl Ours {
    fn new(spec: &str, backend: Backend, rows: &[f32]) -> Result<Self, Box<dyn Error>> {
        let spec: CodecSpec = spec.parse()?;
        let codec = spec.build_dyn(D, backend, HeadId::default())?;
        let mut ours = Self { spec, codec, blocks: Vec::new() };
        ours.encode(rows);
        Ok(ours)
    }

    /// Encodes in pages of 64, as a cache does.
    fn encode(&mut self, rows: &[f32]) {
        let bytes = 64 * self.codec.block_bytes();
        self.blocks.resize(rows.len() / D * self.codec.block_bytes(), 0);
        for (rows, page) in rows.chunks(64 * D).zip(self.blocks.chunks_mut(bytes)) {
            self.codec.encode_page(rows, page).expect("rows are finite");
        }
    }

    fn queries(&self, queries: &[f32]) -> Vec<Vec<f32>> {
        let prepare = |q: &[f32]| {
            let mut query = vec![0.0; self.codec.query_len()];
            self.codec.prepare_query(q, &mut query).expect("queries are finite");
            query
        };
        queries.chunks_exact(D).map(prepare).collect()
    }

    /// Scores all rows with this many queries.
    fn scorer(self, queries: &[f32], rows: usize) -> Runner {
        let queries = self.queries(queries);
        let mut scores = vec![0.0; queries.len() * rows];
        let name = self.spec.to_string();
        Runner::new(name, scores.len(), move || {
            let queries: Vec<&[f32]> = queries.iter().map(Vec::as_slice).collect();
            self.codec.score(&queries, black_box(&self.blocks), &mut scores).expect("blocks of its own");
            black_box(&scores);
        })
    }
}

fn all_ours(backend: Backend, rows: &[f32]) -> Result<Vec<Ours>, Box<dyn Error>> {
    SPECS.into_iter().map(|spec| Ours::new(spec, backend, rows)).collect()
}

fn encoded(of: Type, rows: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; rows.len() / D * of.row_bytes()];
    of.encode(rows, &mut bytes);
    bytes
}

/// bitpolar's quantiser with 4 bits, and the number of projections of its README: a quarter of the width.
fn bitpolar() -> Result<bitpolar::turbo::TurboQuantizer, Box<dyn Error>> {
    Ok(bitpolar::turbo::TurboQuantizer::new(D, 4, D / 4, 1)?)
}

/// turboquant-rs's cache: a layer of the first rows, with its bit of QJL.
fn turboquant_rs(rows: &[f32]) -> Result<turboquant::attention::QuantizedKVCache, Box<dyn Error>> {
    let config = turboquant::packed::TurboQuantConfig::new(4, D)?;
    let mut cache = turboquant::attention::QuantizedKVCache::new(config, 1, 1);
    let rows: Vec<&[f32]> = rows[..FEW * D].chunks_exact(D).collect();
    cache.push_batch(0, &rows, &rows)?;
    Ok(cache)
}

fn encode(report: &mut Report, backend: Backend, rows: &[f32]) -> Result<(), Box<dyn Error>> {
    let mut runners = Vec::new();
    for (of, name) in TYPES {
        let (rows, mut bytes) = (rows.to_vec(), encoded(of, rows));
        runners.push(Runner::new(name, ROWS, move || of.encode(black_box(&rows), &mut bytes)));
    }
    for mut ours in all_ours(backend, rows)? {
        let (name, rows) = (ours.spec.to_string(), rows.to_vec());
        runners.push(Runner::new(name, ROWS, move || ours.encode(black_box(&rows))));
    }
    let few = rows[..64 * D].to_vec();
    runners.push(Runner::new("tq-kv, 4 bits", 64, move || {
        black_box(tq_kv::compress_keys(black_box(&few), D, &tq_kv::TurboQuantConfig::default()));
    }));
    let (codec, few) = (ruvector_turboquant::Turbo4Codec::new(D, 1)?, rows[..64 * D].to_vec());
    runners.push(Runner::new("ruvector-turboquant, 4 bits", 64, move || {
        for x in few.chunks_exact(D) {
            black_box(codec.encode(black_box(x)).expect("finite"));
        }
    }));
    let (config, few) = (turboquant::packed::TurboQuantConfig::new(4, D)?, rows[..64 * D].to_vec());
    runners.push(Runner::new("turboquant-rs, 4 bits", 64, move || {
        for x in few.chunks_exact(D) {
            black_box(turboquant::quantize::quantize_vec(&config, black_box(x)).expect("finite"));
        }
    }));
    let (codec, few) = (bitpolar()?, rows[..64 * D].to_vec());
    runners.push(Runner::new("bitpolar, 4 bits", 64, move || {
        few.chunks_exact(D).for_each(|x| drop(black_box(codec.encode(black_box(x)))));
    }));
    report.section("encode a vector", REFERENCE, runners);
    Ok(())
}

fn decode(report: &mut Report, backend: Backend, rows: &[f32]) -> Result<(), Box<dyn Error>> {
    let mut runners = Vec::new();
    for (of, name) in QUANTISED {
        let (bytes, mut out) = (encoded(of, rows), vec![0.0; rows.len()]);
        runners.push(Runner::new(name, ROWS, move || of.decode(black_box(&bytes), &mut out)));
    }
    for ours in all_ours(backend, rows)? {
        let (name, mut out) = (ours.spec.to_string(), vec![0.0; rows.len()]);
        runners.push(Runner::new(name, ROWS, move || {
            ours.codec.decode_page(black_box(&ours.blocks), &mut out).expect("blocks of its own");
        }));
    }
    let config = tq_kv::TurboQuantConfig::default();
    let keys = tq_kv::compress_keys(&rows[..64 * D], D, &config);
    runners.push(Runner::new("tq-kv, 4 bits", 64, move || {
        black_box(tq_kv::decompress_keys(black_box(&keys), &config));
    }));
    let codec = ruvector_turboquant::Turbo4Codec::new(D, 1)?;
    let blobs = rows[..64 * D].chunks_exact(D).map(|x| codec.encode(x)).collect::<Result<Vec<_>, _>>()?;
    runners.push(Runner::new("ruvector-turboquant, 4 bits", 64, move || {
        blobs.iter().for_each(|blob| drop(black_box(codec.decode(black_box(blob)))));
    }));
    let config = turboquant::packed::TurboQuantConfig::new(4, D)?;
    let blocks = rows[..64 * D].chunks_exact(D).map(|x| turboquant::quantize::quantize_vec(&config, x));
    let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
    runners.push(Runner::new("turboquant-rs, 4 bits", 64, move || {
        let decode = |block| turboquant::quantize::dequantize_vec(&config, black_box(block));
        blocks.iter().for_each(|block| drop(black_box(decode(block).expect("its own"))));
    }));
    let codec = bitpolar()?;
    let codes = rows[..64 * D].chunks_exact(D).map(|x| codec.encode(x)).collect::<Result<Vec<_>, _>>()?;
    println!("bitpolar, 4 bits: {} bytes a vector", codes[0].to_compact_bytes().len());
    runners.push(Runner::new("bitpolar, 4 bits", 64, move || {
        codes.iter().for_each(|code| drop(black_box(codec.decode(black_box(code)))));
    }));
    report.section("decode a vector", REFERENCE, runners);
    Ok(())
}

fn score(report: &mut Report, backend: Backend, rows: &[f32]) -> Result<(), Box<dyn Error>> {
    for count in [1, 8, 32] {
        let queries = gaussian(7, count * D);
        let mut runners = Vec::new();
        for (of, name) in TYPES {
            let (bytes, mut scores) = (encoded(of, rows), vec![0.0; ROWS]);
            let prepared: Vec<Vec<u8>> = queries.chunks_exact(D).map(|query| of.prepare(query)).collect();
            runners.push(Runner::new(name, count * ROWS, move || {
                prepared.iter().for_each(|query| of.score(query, black_box(&bytes), &mut scores));
            }));
        }
        runners.extend(all_ours(backend, rows)?.into_iter().map(|ours| ours.scorer(&queries, ROWS)));
        let keys = tq_kv::compress_keys(rows, D, &tq_kv::TurboQuantConfig::default());
        let rotated: Vec<Vec<f32>> =
            queries.chunks_exact(D).map(|query| tq_kv::pre_rotate_query(query, keys.rotation_seed)).collect();
        runners.push(Runner::new("tq-kv, 4 bits", count * ROWS, move || {
            for query in &rotated {
                let centroids = tq_kv::codebook::get_centroids(4);
                black_box(tq_kv::fused_attention_scores(query, black_box(&keys), centroids, 1.0));
            }
        }));
        let codec = ruvector_turboquant::Turbo4Codec::new(D, 1)?;
        let blobs = rows.chunks_exact(D).map(|x| codec.encode(x)).collect::<Result<Vec<_>, _>>()?;
        let (bytes, blobs) = (blobs[0].len(), blobs.concat());
        let prepared =
            queries.chunks_exact(D).map(|query| codec.encode_query(query)).collect::<Result<Vec<_>, _>>()?;
        runners.push(Runner::new("ruvector-turboquant, 4 bits", count * ROWS, move || {
            for query in &prepared {
                for blob in black_box(&blobs).chunks_exact(bytes) {
                    let metric = ruvector_turboquant::Metric::DotProduct;
                    black_box(ruvector_turboquant::asymmetric_distance(metric, &query.blob, blob, D));
                }
            }
        }));
        let codec = bitpolar()?;
        let codes =
            rows[..FEW * D].chunks_exact(D).map(|x| codec.encode(x)).collect::<Result<Vec<_>, _>>()?;
        let of_bitpolar = queries.clone();
        runners.push(Runner::new("bitpolar, 4 bits", count * FEW, move || {
            for query in of_bitpolar.chunks_exact(D) {
                for code in black_box(&codes) {
                    black_box(codec.inner_product_estimate(code, query).expect("its own"));
                }
            }
        }));
        let (cache, queries) = (turboquant_rs(rows)?, queries.clone());
        runners.push(Runner::new("turboquant-rs, 4 bits", count * FEW, move || {
            for query in queries.chunks_exact(D) {
                black_box(cache.attention_scores(0, black_box(query)).expect("a layer"));
            }
        }));
        report.section(&format!("score, queries together: {count}, a key and query"), REFERENCE, runners);
    }
    Ok(())
}

/// Times keys in memory, and reading the same bytes alone.
fn memory(report: &mut Report, backend: Backend, rows: &[f32]) -> Result<(), Box<dyn Error>> {
    let query = gaussian(7, D);
    let mut runners = Vec::new();
    let all = vec![1u64; TIMES * ROWS * 256 / 8];
    runners.push(Runner::new("256 bytes, read", TIMES * ROWS, move || {
        black_box(
            black_box(&all).chunks_exact(8).fold([0u64; 8], |sum, x| std::array::from_fn(|i| sum[i] | x[i])),
        );
    }));
    for (of, name) in TYPES {
        let (bytes, mut scores) = (encoded(of, rows).repeat(TIMES), vec![0.0; TIMES * ROWS]);
        let (name, prepared) = (format!("{name}, {} bytes", of.row_bytes()), of.prepare(&query));
        runners.push(Runner::new(name, TIMES * ROWS, move || {
            of.score(&prepared, black_box(&bytes), &mut scores)
        }));
    }
    for spec in SPECS {
        let mut ours = Ours::new(spec, backend, rows)?;
        ours.blocks = ours.blocks.repeat(TIMES);
        let name = format!("{}, {} bytes", ours.spec, ours.codec.block_bytes());
        runners.push(Runner { name, ..ours.scorer(&query, TIMES * ROWS) });
    }
    let title = format!("score, 1 query, {} keys from memory, a key", TIMES * ROWS);
    report.section(&title, "256 bytes, read", runners);
    Ok(())
}

fn sums(report: &mut Report, backend: Backend, rows: &[f32]) -> Result<(), Box<dyn Error>> {
    let weights: Vec<f32> = gaussian(9, ROWS).iter().map(|x| x.exp()).collect();
    let mut runners = Vec::new();
    for (of, name) in QUANTISED {
        let (bytes, weights, mut acc) = (encoded(of, rows), weights.clone(), [0.0; D]);
        runners.push(Runner::new(name, ROWS, move || of.accumulate(&weights, black_box(&bytes), &mut acc)));
    }
    for ours in all_ours(backend, rows)? {
        let (name, weights, mut acc) = (ours.spec.to_string(), weights.clone(), [0.0; D]);
        runners.push(Runner::new(name, ROWS, move || {
            ours.codec.accumulate(&weights, black_box(&ours.blocks), &mut acc).expect("blocks of its own");
        }));
    }
    let (cache, few) = (turboquant_rs(rows)?, weights[..FEW].to_vec());
    runners.push(Runner::new("turboquant-rs, 4 bits", FEW, move || {
        black_box(cache.weighted_values(0, black_box(&few)).expect("a layer"));
    }));
    report.section("weighted sum, a vector", REFERENCE, runners);
    Ok(())
}

/// Returns the attention of a query to the first of the rows, repeated, in f64.
fn exact_attention(rows: &[f32], query: &[f32], tokens: usize) -> Vec<f64> {
    let rows: Vec<&[f32]> = rows.chunks_exact(D).cycle().take(tokens).collect();
    let dot = |row: &&[f32]| row.iter().zip(query).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let logits: Vec<f64> = rows.iter().map(|row| dot(row) / (D as f64).sqrt()).collect();
    let max = logits.iter().fold(f64::NEG_INFINITY, |max, x| max.max(*x));
    let mut output = vec![0.0; D];
    let mut total = 0.0;
    for (row, logit) in rows.iter().zip(&logits) {
        let weight = (logit - max).exp();
        total += weight;
        output.iter_mut().zip(*row).for_each(|(output, x)| *output += weight * f64::from(*x));
    }
    output.iter_mut().for_each(|x| *x /= total);
    output
}

/// Times attention of one head: a block of queries at the end of this many tokens.
fn attention(
    report: &mut Report,
    backend: Backend,
    rows: &[f32],
    block: usize,
    tokens: usize,
) -> Result<(), Box<dyn Error>> {
    let queries = gaussian(7, block * D);
    let mut runners = Vec::new();
    let mut outputs = Vec::new();
    for (of, name) in TYPES {
        let mut flash = Flash::new(of, rows, &queries, tokens);
        outputs.push(flash.run().to_vec());
        runners.push(Runner::new(name, block * tokens, move || {
            black_box(flash.run());
        }));
    }
    for pair in [
        ["turboquant:bits=4"; 2],
        ["turboquant:bits=3"; 2],
        ["trellis:m=4"; 2],
        ["graded", "trellis:m=4"],
        ["f16"; 2],
    ] {
        let [keys, values] = pair.map(str::parse::<CodecSpec>);
        let config = LayerConfig::new(1, D, tokens + 300).keys(keys?).values(values?);
        let mut cache = KvCache::new([config], backend)?;
        for _ in 0..tokens / ROWS {
            cache.append(0, rows, rows)?;
        }
        let (queries, mut output) = (queries.clone(), vec![0.0; block * D]);
        let options = Attend::default().queries(block);
        cache.attend_with(0, &queries, &options, &mut output)?;
        outputs.push(output.clone());
        runners.push(Runner::new(pair.join(" / "), block * tokens, move || {
            cache.attend_with(0, &queries, &options, &mut output).expect("finite queries");
            black_box(&output);
        }));
    }
    let (repeated, cpu) = (rows.repeat(tokens / ROWS), candle_core::Device::Cpu);
    let keys = candle_core::Tensor::from_vec(repeated, (1, tokens, 1, D), &cpu)?;
    let asked = candle_core::Tensor::from_slice(&queries, (1, block, 1, D), &cpu)?;
    let flash = move || {
        let mask = candle_nn::attention::AttnMask::causal_with_offset(tokens - block);
        let scale = 1.0 / (D as f32).sqrt();
        candle_nn::attention::flash_attn::<f32>(&asked, &keys, &keys, scale, mask, None, None)
    };
    outputs.push(flash()?.flatten_all()?.to_vec1::<f32>()?);
    runners.push(Runner::new("candle-nn f32", block * tokens, move || drop(black_box(flash()))));
    // All compute the same outputs, as well as their bits allow.
    let exact = exact_attention(rows, &queries[..D], tokens + 1 - block);
    let apart =
        |x: &[f32]| x.iter().zip(&exact).map(|(x, y)| (f64::from(*x) - y).powi(2)).sum::<f64>().sqrt();
    let norm = apart(&[0.0; D]);
    println!("\nThe first query's output, its distance from attention in f64 by the norm of that:");
    for (runner, output) in runners.iter().zip(&outputs) {
        let (apart, most) =
            (apart(&output[..D]) / norm, if runner.name == "f16 / f16" { 0.001 } else { 0.6 });
        println!("{}: {apart:.4}", runner.name);
        if apart.is_nan() || apart > most {
            return Err(format!("{}: {apart:.4} is more than {most}", runner.name).into());
        }
    }
    let what = if block == 1 { "decode step".into() } else { format!("prefill, {block} queries") };
    report.section(&format!("{what}, {tokens} tokens, a token and query"), "ggml f16", runners);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let file = match words.iter().position(|word| word == "--json") {
        Some(at) if at + 1 == words.len() => {
            return Err(format!("--json needs a file's name; {USAGE}").into());
        }
        Some(at) => words.drain(at..at + 2).next_back(),
        None => None,
    };
    if let Some(word) = words.iter().find(|word| !SECTIONS.contains(&word.as_str())) {
        return Err(format!("there is no section {word}; {USAGE}").into());
    }
    let isa = env!("PEERS_ISA");
    let backend = Backend::named(isa).ok_or(format!("this CPU has no {isa}"))?;
    ggml::init();
    // candle uses this thread alone, whose processor time counts.
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global()?;
    let rows = gaussian(1, ROWS * D);
    let wanted = |section: &str| words.is_empty() || words.iter().any(|word| word == section);
    let mut report = Report { json: String::new(), isa: isa.into() };
    let sections: [(&str, fn(&mut Report, Backend, &[f32]) -> Result<(), Box<dyn Error>>); 5] =
        [("encode", encode), ("decode", decode), ("score", score), ("memory", memory), ("sums", sums)];
    for (name, run) in sections {
        if wanted(name) {
            run(&mut report, backend, &rows)?;
        }
    }
    for (name, block, lengths) in
        [("step", 1, &[4096, 32_768, 131_072][..]), ("prefill", 512, &[4096, 32_768])]
    {
        for &tokens in lengths.iter().filter(|_| wanted(name)) {
            attention(&mut report, backend, &rows, block, tokens)?;
        }
    }
    if let Some(file) = file {
        std::fs::write(file, format!("[\n{}\n]\n", report.json))?;
    }
    Ok(())
}
