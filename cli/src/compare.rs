//! `compare`: every codec on the same keys, values and queries; a table, and files for machines and for browsers.

use crate::failure::{At, Failure, Result, build, fail, parse_specs};
use crate::input::Sample;
use crate::metrics::{Exact, Keys, Metrics, measure, role_name};
use crate::progress::Progress;
use crate::timing::{Op, best, runner};
use crate::{files, report, table};
use clap::Args;
use octaplex::{Backend, Center, CodecSpec, Role};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// What runs when `--codecs` is not given.
pub(crate) const DEFAULT_CODECS: &str = "f16; \
    trellis:m=2; trellis; trellis:m=8; trellis:m=16; turboquant:bits=2; turboquant:bits=3; turboquant; \
    turboquant:bits=6; turboquant:bits=8; \
    turboquant-qjl:bits=4; qjl; octopus; octopus:split=even; octopus-qjl; polarquant:bits=3; polarquant; \
    hqmq:s=24,r=3; hqmq:secondary=optimised; hqmq:r=6,med=3; tq3_0; tq3_0:variant=3bit; \
    int:bits=3; int; int:asymmetric=true; int:group=32; int:rotate=true; int8; \
    q8_0; q5_0; q4_0; q4_0:rotate=keys; q4_0:rotate=values; iq4_nl; fp8; fp8:scale=token";

/// Whether a row of the default table is for this role: an engine's rotation of keys is not for values.
fn is_for(role: Role, spec: &str) -> bool {
    !spec.ends_with(if role == Role::Keys { "rotate=values" } else { "rotate=keys" })
}

/// What goes in and what the numbers mean.
const HELP: &str = "\
Input: tensors k, v [layers, kv_heads, tokens, width] and q [layers, q_heads, queries, width] in f16, bf16
or f32, and q_pos, the token of each query (without it: the last tokens); query head h uses key/value head
h / (q_heads / kv_heads). An .npy array [..., width] is plain vectors, taken as keys and as values; it has
no queries, so no columns about scores and attention.

bits_per_value  everything stored counted
distortion      sum of |x-x^|^2 / sum of |x|^2
cosine          mean over vectors
score_error     mean |q.k - score|, q.k not scaled, the score computed on compressed bytes
attention_kl    nats; weights are softmax(q.k / sqrt(width)) over the tokens up to the query's own; mean
                over layers, query heads and queries
output_error    sum of |o-o^|^2 / sum of |o|^2 over a head's queries, mean over layers and query heads;
                keys: exact values; values: exact weights
*_ns            per vector on one core: encode in pages of 64, decode one by one, one query's scores";

/// Arguments of `compare`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Compare {
    /// Tensors k, v and q in a safetensors file, or plain vectors in an .npy one; without it, the bundled sample
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// The codecs, as "SPEC;SPEC"
    #[arg(long, value_name = "SPECS")]
    codecs: Option<String>,
    /// Subtract from keys: off, prefix (one mean of the first 128 tokens) or page (each page's own)
    #[arg(long, value_name = "WHAT", default_value = "off", value_parser = parse_center)]
    center: Center,
    /// Tokens of a page that has a centre: 64, 128 or 256
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = parse_page)]
    page: usize,
    /// Balance the channels of keys, from the first 256 tokens and half of the queries; measured on the other half
    #[arg(long)]
    balance: bool,
    /// Write the rows as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The page with the plots
    #[arg(long, value_name = "FILE", default_value = "octaplex-report.html")]
    html: PathBuf,
    /// One plot of the values' rate and distortion, as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Instructions to use; `octaplex backends` lists them
    #[arg(long, value_name = "NAME", value_parser = crate::parse_backend)]
    backend: Option<Backend>,
}

pub(crate) fn parse_center(text: &str) -> std::result::Result<Center, String> {
    match text {
        "off" => Ok(Center::Off),
        "prefix" => Ok(Center::Prefix),
        "page" => Ok(Center::Page),
        _ => Err("off, prefix or page".into()),
    }
}

pub(crate) fn center_name(center: Center) -> &'static str {
    match center {
        Center::Off => "off",
        Center::Prefix => "prefix",
        Center::Page => "page",
    }
}

pub(crate) fn parse_page(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(page @ (64 | 128 | 256)) => Ok(page),
        _ => Err("64, 128 or 256".into()),
    }
}

/// A codec in one role.
pub(crate) struct Row {
    /// The spec as it was given.
    pub(crate) codec: String,
    pub(crate) spec: CodecSpec,
    pub(crate) role: Role,
    pub(crate) metrics: Metrics,
    /// Nanoseconds a vector.
    pub(crate) encode_ns: f64,
    pub(crate) decode_ns: f64,
    pub(crate) score_ns: f64,
    pub(crate) accumulate_ns: f64,
}

/// Time given to each operation of each row.
const BUDGET: Duration = Duration::from_millis(20);

/// Vectors that operations are timed on, at most.
const TIMED_VECTORS: usize = 4096;

pub(crate) fn run(arguments: &Compare) -> Result<()> {
    let backend = arguments.backend.unwrap_or_else(Backend::detect);
    let sample = Sample::load(arguments.input.as_deref())?;
    let mut specs = parse_specs(arguments.codecs.as_deref().unwrap_or(DEFAULT_CODECS))?;
    let mut left_out = Vec::new();
    if arguments.codecs.is_none() {
        // Some of the default ones do not exist at every width.
        specs.retain(|(text, spec)| {
            let exists = build(text, *spec, sample.dim, backend).is_ok();
            if !exists {
                left_out.push(text.clone());
            }
            exists
        });
        if specs.is_empty() {
            return Err(Failure(octaplex::Error::Width { actual: sample.dim }.to_string()));
        }
    }

    if arguments.balance && sample.queries.as_ref().is_some_and(|queries| queries.positions.len() < 2) {
        fail!("--balance takes every second query and measures on the others; the file has one");
    }
    let prepared = Keys { center: arguments.center, page: arguments.page, balance: arguments.balance };
    let both = |(text, _): &&(String, CodecSpec)| is_for(Role::Keys, text) && is_for(Role::Values, text);
    let one_role =
        if arguments.codecs.is_some() { 0 } else { specs.iter().filter(|spec| !both(spec)).count() };
    let mut progress = Progress::shown(2 * specs.len() - one_role + 1);
    progress.doing("exact attention", 1);
    let exact = Exact::new(&sample);
    let mut rows = Vec::new();
    for role in [Role::Keys, Role::Values] {
        let shown = |text: &str| arguments.codecs.is_some() || is_for(role, text);
        for (text, spec) in specs.iter().filter(|(text, _)| shown(text)) {
            progress.doing(&format!("{text}, {}", role_name(role)), 1);
            let codec = build(text, *spec, sample.dim, backend)?;
            let metrics = measure(&sample, exact.as_ref(), role, &*codec, prepared, backend).at(text)?;
            let timed = sample.heads(role)[0].chunks(TIMED_VECTORS * sample.dim).next().unwrap_or(&[]);
            let mut runner = runner(codec, timed).at(text)?;
            let mut ns = |op| best(&mut *runner, op, BUDGET).at(text);
            rows.push(Row {
                codec: text.clone(),
                spec: *spec,
                role,
                metrics,
                encode_ns: ns(Op::EncodePage)?,
                decode_ns: ns(Op::Decode)?,
                score_ns: ns(Op::Score)?,
                accumulate_ns: ns(Op::Accumulate)?,
            });
        }
    }
    drop(progress);
    // By role, then by what is really stored.
    rows.sort_by(|a, b| {
        let bits = |row: &Row| row.metrics.bits_per_value;
        (a.role as u8).cmp(&(b.role as u8)).then(bits(a).total_cmp(&bits(b)))
    });

    if let Some(path) = &arguments.json {
        let rows: Vec<_> = rows.iter().map(|row| row_json(row, sample.dim, prepared)).collect();
        files::write(path, format!("{:#}\n", json!({"rows": rows})).as_bytes())?;
    }
    if let Some(path) = &arguments.svg {
        files::write(path, report::chart(&sample, &rows).as_bytes())?;
    }
    files::write(&arguments.html, report::page(&sample, &rows, backend).as_bytes())?;
    let mut text = table::compare(&sample, &rows, backend);
    if !prepared.is_plain() {
        let balance = if prepared.balance { ", balanced" } else { "" };
        let center = center_name(prepared.center);
        text += &format!("\nKeys in pages of {}: centre {center}{balance}; counted in bits\n", prepared.page);
    }
    if !left_out.is_empty() {
        text += &format!("\nNot offered at width {}, so left out: {}\n", sample.dim, left_out.join("; "));
    }
    files::print(format!("{text}\nPage with plots: {}\n", arguments.html.display()))
}

fn row_json(row: &Row, dim: usize, prepared: Keys) -> Value {
    let metrics = &row.metrics;
    let attention = metrics.attention.as_ref();
    let prepared = if row.role == Role::Keys { prepared } else { Keys::PLAIN };
    json!({
        "codec": row.codec,
        "role": role_name(row.role),
        "bits_per_value": metrics.bits_per_value,
        "distortion": metrics.distortion,
        "cosine": metrics.cosine,
        "score_error": attention.map(|attention| attention.score_error),
        "attention_kl": attention.map(|attention| attention.kl),
        "output_error": attention.map(|attention| attention.output_error),
        "encode_ns": row.encode_ns,
        "decode_ns": row.decode_ns,
        "score_ns": row.score_ns,
        "accumulate_ns": row.accumulate_ns,
        "dim": dim,
        "center": center_name(prepared.center),
        "page": prepared.page,
        "balance": prepared.balance,
        "seed": seed(row.spec),
        "stored_bytes": metrics.stored_bytes,
    })
}

/// The seed of a spec; 0 where nothing is random.
fn seed(spec: CodecSpec) -> u64 {
    let full = spec.full().to_string();
    let seed = full.split([':', ',']).find_map(|part| part.strip_prefix("seed="));
    seed.and_then(|seed| seed.parse().ok()).unwrap_or(0)
}
