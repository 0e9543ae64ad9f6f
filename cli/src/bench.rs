//! `bench`: nanoseconds a vector on one core, the fastest of many passes. Codecs and the f16 dot product that they
//! compete with are timed in turns, so that a change of the machine's pace meets both.
//!
//! `l2` is 4,096 vectors; `memory` is 1,048,576, made by repeating the same 4,096 blocks. Vectors are Gaussian.

#[cfg(feature = "gpu")]
mod gpu;

use crate::backend::cpu;
use crate::codecs::{ALL_CODECS, build, parse_specs};
use crate::console::{Console, wrap};
use crate::device::Device;
use crate::failure::{At, Result, fail};
use crate::progress::Progress;
use crate::table::{Table, time};
use crate::timing::{Op, Runner, best, best_cold, best_f16_dot};
use crate::{files, provenance};
use clap::Args;
use octaplex::{Backend, CodecSpec};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The end of the help of `bench`: examples, and how it measures.
const HELP: &str = "\
Examples:
  octaplex bench --codecs \"trellis; turboquant\" --dim 64
  octaplex bench --backend avx2 --json bench.json
  octaplex bench --device cuda --codecs \"turboquant; trellis\"

It times bare blocks. `octaplex compare` times the pages of a cache, which are
faster for some codecs, graded among them.

The second table repeats the 4,096 blocks of the first, so that they come from
memory. In the JSON the tables are called l2 and memory. build is the time to
construct a codec for one head. Each number is the fastest of many passes on
one core.

f16-fma is the baseline: the fastest dot product with plain f16 rows on this
CPU. Codecs take turns with it, so compare them within one run.

On a GPU (a build with --features cuda, or hip for AMD's) the numbers are
microseconds of a decode step and of encoding.";

/// Arguments of `bench`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Bench {
    /// Write the rows as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The codecs, as "SPEC;SPEC"
    #[arg(long, value_name = "SPECS")]
    codecs: Option<String>,
    /// Width of a vector
    #[arg(long, value_name = "D", default_value_t = 128)]
    dim: usize,
    /// Instructions to use; `octaplex info` lists them
    #[arg(long, value_name = "NAME", value_parser = crate::backend::parse)]
    backend: Option<Backend>,
    /// Device that runs the codecs
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    device: Device,
}

const L2_VECTORS: usize = 4096;
const MEMORY_VECTORS: usize = 1 << 20;

/// Turns of everything, and what each gets in a turn.
const L2_TURNS: usize = 20;
const L2_BUDGET: Duration = Duration::from_millis(4);
const MEMORY_TURNS: usize = 4;
const MEMORY_BUDGET: Duration = Duration::from_millis(20);

/// A codec that has had this much time gets no further turn.
const MEMORY_LIMIT: Duration = Duration::from_millis(1500);

/// Timed on pages in memory; the others take vectors or blocks one by one.
const MEMORY_OPS: [Op; 4] = [Op::Score, Op::Score8, Op::Accumulate, Op::EncodePage];

/// The row of a codec's construction. The other rows have the names of operations.
const BUILD: &str = "build";

/// The name of the uncompressed dot product in rows.
const BASELINE: &str = "f16-fma";

struct Row {
    codec: String,
    op: &'static str,
    place: &'static str,
    ns: f64,
}

/// Pages of f16 for the baseline.
struct Baseline {
    backend: Backend,
    query: Vec<f32>,
    page: Vec<u8>,
    scores: Vec<f32>,
}

impl Baseline {
    fn best(&mut self, budget: Duration) -> f64 {
        best_f16_dot(self.backend, &self.query, &self.page, &mut self.scores, budget)
    }
}

pub(crate) fn run(arguments: &Bench) -> Result<()> {
    let console = Console::beside(&[], &[arguments.json.as_deref()])?;
    let dim = arguments.dim;
    let backend = arguments.backend.unwrap_or_else(Backend::detect);
    let mut specs = parse_specs(arguments.codecs.as_deref().unwrap_or(ALL_CODECS))?;
    if arguments.codecs.is_none() {
        specs.retain(|(text, spec)| build(text, *spec, dim, backend).is_ok());
        if specs.is_empty() {
            fail!("--dim {dim}: {}", octaplex::Error::Width { actual: dim });
        }
    }
    for (text, spec) in &specs {
        build(text, *spec, dim, backend)?;
    }
    if arguments.device != Device::Cpu {
        if arguments.backend.is_some() {
            fail!(
                "--backend names instructions of the CPU; drop it, or --device {}",
                arguments.device.name()
            );
        }
        return on_gpu(arguments, &console, &specs);
    }
    let vectors = gaussian(L2_VECTORS * dim);
    let page = vectors.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
    let scores = vec![0.0; L2_VECTORS];
    let mut baseline = Baseline { backend, query: vectors[..dim].to_vec(), page, scores };

    let progress = Progress::new(L2_TURNS * specs.len() + specs.len(), "measurements");
    let mut rows = vec![Row { codec: BASELINE.into(), op: Op::Score.name(), place: "l2", ns: f64::INFINITY }];
    in_cache(&specs, dim, backend, &vectors, &mut baseline, &mut rows, &progress)?;
    rows.push(Row { codec: BASELINE.into(), op: Op::Score.name(), place: "memory", ns: f64::INFINITY });
    in_memory(&specs, dim, backend, &vectors, &mut baseline, &mut rows, &progress)?;
    drop(progress);

    if let Some(path) = &arguments.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({
                    "codec": row.codec, "backend": backend.name(), "dim": dim, "op": row.op,
                    "where": row.place, "ns": row.ns,
                })
            })
            .collect();
        let specs: Vec<_> = specs.iter().map(|(text, _)| text).collect();
        let run = provenance::json("Gaussian vectors", backend, json!({"codecs": specs, "dim": dim}));
        files::write(path, format!("{:#}\n", json!({"run": run, "rows": rows})).as_bytes())?;
    }
    console.say(&table(&rows, dim, backend))
}

#[cfg(feature = "gpu")]
fn on_gpu(arguments: &Bench, console: &Console, specs: &[(String, CodecSpec)]) -> Result<()> {
    let (name, rows) = gpu::run(arguments.device, specs, arguments.dim, &gaussian(8192 * arguments.dim))?;
    if let Some(path) = &arguments.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| match &row.times {
                Ok(times) => json!({"codec": row.codec, "step_us": times.step, "encode_us": times.encode}),
                Err(why) => json!({"codec": row.codec, "unsupported": why}),
            })
            .collect();
        let json = json!({"gpu": name, "dim": arguments.dim, "rows": rows});
        files::write(path, format!("{json:#}\n").as_bytes())?;
    }
    console.say(&gpu::table(&rows, arguments.dim, &name))
}

#[cfg(not(feature = "gpu"))]
fn on_gpu(arguments: &Bench, _: &Console, _: &[(String, CodecSpec)]) -> Result<()> {
    arguments.device.check()
}

fn in_cache(
    specs: &[(String, CodecSpec)],
    dim: usize,
    backend: Backend,
    vectors: &[f32],
    baseline: &mut Baseline,
    rows: &mut Vec<Row>,
    progress: &Progress,
) -> Result<()> {
    let mut runners: Vec<Runner> = Vec::new();
    let first = rows.len();
    for (text, spec) in specs {
        runners.push(Runner::new(build(text, *spec, dim, backend)?, vectors).at(text)?);
        let empty = |op| Row { codec: text.clone(), op, place: "l2", ns: f64::INFINITY };
        rows.extend(Op::ALL.map(Op::name).into_iter().chain([BUILD]).map(empty));
    }
    for _ in 0..L2_TURNS {
        for (index, (text, spec)) in specs.iter().enumerate() {
            progress.about(&format!("{text}, in cache"));
            let ns = baseline.best(L2_BUDGET);
            rows[first - 1].ns = rows[first - 1].ns.min(ns);
            let start = Instant::now();
            build(text, *spec, dim, backend)?;
            let built = start.elapsed().as_nanos() as f64;
            let rows = &mut rows[first + index * (Op::ALL.len() + 1)..];
            for (op, row) in Op::ALL.into_iter().zip(&mut *rows) {
                row.ns = row.ns.min(best(&mut runners[index], op, L2_BUDGET).at(text)?);
            }
            rows[Op::ALL.len()].ns = rows[Op::ALL.len()].ns.min(built);
            progress.step(1);
        }
    }
    Ok(())
}

fn in_memory(
    specs: &[(String, CodecSpec)],
    dim: usize,
    backend: Backend,
    vectors: &[f32],
    baseline: &mut Baseline,
    rows: &mut Vec<Row>,
    progress: &Progress,
) -> Result<()> {
    let times = MEMORY_VECTORS / L2_VECTORS;
    baseline.page = baseline.page.repeat(times);
    baseline.scores = vec![0.0; MEMORY_VECTORS];
    let first = rows.len() - 1;
    for (text, spec) in specs {
        progress.about(&format!("{text}, in memory"));
        let mut runner = Runner::new(build(text, *spec, dim, backend)?, vectors).at(text)?;
        runner.repeat(times);
        let mut ns = MEMORY_OPS.map(|_| f64::INFINITY);
        let start = Instant::now();
        for turn in 0..MEMORY_TURNS {
            if start.elapsed() > MEMORY_LIMIT {
                break;
            }
            rows[first].ns = rows[first].ns.min(baseline.best(MEMORY_BUDGET));
            for (op, ns) in MEMORY_OPS.into_iter().zip(&mut ns) {
                // One pass of encoding takes longer than all others together.
                if op != Op::EncodePage || turn == 0 {
                    *ns = ns.min(best_cold(&mut runner, op, MEMORY_BUDGET).at(text)?);
                }
            }
        }
        let row = |(op, ns): (Op, f64)| Row { codec: text.clone(), op: op.name(), place: "memory", ns };
        rows.extend(MEMORY_OPS.into_iter().zip(ns).map(row));
        progress.step(1);
    }
    Ok(())
}

fn table(rows: &[Row], dim: usize, backend: Backend) -> String {
    let (cpu, backend) = (cpu(), backend.name());
    let mut out = wrap(&format!(
        "Nanoseconds a vector of width {dim} on one core of {cpu}, {backend}. page: encoded in pages of 64; score8: eight \
         queries at once, per query; sum: one output; build: one codec's construction\n"
    ));
    for (place, title) in [("l2", "4,096 VECTORS"), ("memory", "1,048,576 VECTORS")] {
        let ops: Vec<_> = match place {
            "l2" => Op::ALL.iter().map(|op| op.name()).chain([BUILD]).collect(),
            _ => Op::ALL.iter().filter(|op| MEMORY_OPS.contains(op)).map(|op| op.name()).collect(),
        };
        let heads: Vec<_> = ops.iter().map(|op| (head(op), 7)).collect();
        let mut table = Table::new(title, &heads);
        let mut codecs: Vec<_> = rows.iter().map(|row| &row.codec).collect();
        codecs.dedup();
        codecs.truncate(codecs.iter().rposition(|codec| *codec == BASELINE).unwrap_or(codecs.len()));
        for codec in codecs {
            let find = |op| rows.iter().find(|row| (&row.codec, row.op, row.place) == (codec, op, place));
            let cells: Vec<_> = ops.iter().map(|op| time(find(*op).map(|row| row.ns))).collect();
            table.row(codec, false, &cells);
        }
        out += &format!("\n{}", table.text());
    }
    out
}

/// The head of a column.
fn head(op: &str) -> &str {
    match op {
        "encode_page" => "page",
        "accumulate" => "sum",
        op => op,
    }
}

/// Returns Gaussian numbers that are good enough for timing: sums of twelve uniform ones.
fn gaussian(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}
