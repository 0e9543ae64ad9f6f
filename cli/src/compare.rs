//! `compare`: measures codecs on the same keys, values and queries. It prints a table, and writes files for programs. With `--cache` it measures a whole cache.

mod cache;
mod chart;
#[cfg(feature = "gpu")]
mod gpu;

use crate::advice::{Advice, USUAL_BITS};
use crate::codecs::{
    ALL_CODECS, build, for_bits, is_float, is_for, is_recommended, parse_budget, parse_specs, shown_spec,
};
use crate::columns::F16;
use crate::console::{Console, wrap};
use crate::device::Device;
use crate::failure::{At, Failure, Result, fail};
use crate::input::{FEWEST, Sample, role_name};
use crate::keys::{KeyOptions, Keys, center_name, parse_page};
use crate::metrics::{Exact, Metrics, measure};
use crate::progress::Progress;
use crate::reconstructed::{Reconstructed, parse_bits};
use crate::row::Row;
use crate::store::Store;
use crate::{comparison, files, paged, provenance};
use clap::Args;
use octaplex::cache::Finer;
use octaplex::codecs::{PAGE, Role};
use octaplex::{Backend, CacheConfig, CodecSpec};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The end of the help of `compare`: examples, the input, and the meaning of the numbers.
const HELP: &str = "\
Examples:
  octaplex compare --input kv.safetensors
  octaplex compare --all --wide
  octaplex compare --codecs \"trellis:bits=2; int:bits=4,group=32\" --json -
  octaplex compare --budget 3
  octaplex compare --cache --k graded:bits=3 --v trellis:bits=3
  octaplex compare --input kv.safetensors --reconstructed other.safetensors \\
      --reconstructed-bits 4.25 --reconstructed-name other
  octaplex compare --device cuda --codecs \"turboquant; trellis\"

Input: a safetensors file with tensors in f16, bf16, f32 or f64, which
`octaplex capture` and `python -m octaplex.capture` write from a model:
  k, v   keys (after the rotary embedding) and values:
         [layers, kv_heads, tokens, width], [tokens, kv_heads, width] of one
         layer, or [tokens, width] of one head
  q      queries of the same number of dimensions and the same width: heads and
         queries in the places of kv_heads and tokens. Query head h uses
         key/value head h / (q_heads / kv_heads). Without q the table has
         distortion alone
  q_pos  the token of each query, I32 or I64; without it, the last tokens
An .npy array [..., width] is plain vectors, taken as keys and as values. So are
raw little-endian f32 rows, whose width --dim tells.

Keys are measured as the cache stores them. Tokens that do not fill a page stay
in f16. The first 256 tokens and every second query decide the balance;
both KL columns are over the other queries.

The legend below the table explains its columns. The JSON has more digits:
bits_per_value    everything stored counted: centres, balance, page headers
distortion        sum of |x-x^|^2 / sum of |x|^2
cosine            mean over vectors
score_error       mean |q.k - score|, q.k not scaled, the score computed on
                  compressed bytes
attention_kl      nats; weights are softmax(q.k / sqrt(width)) over the tokens
                  up to the query's own; mean over layers, heads and queries
attention_kl_raw  the same with keys as they are
output_error      sum of |o-o^|^2 / sum of |o|^2 over a head's queries, mean
                  over heads; keys: exact values; values: exact weights
*_ns              on one core, in a cache of 4,096 tokens of one head: to append
                  a token (the other side in f16), to score a key with a query,
                  to add a value to an output

With --cache each key/value head gets a cache. Tokens are appended in order, and
the queries at a token attend as soon as it is there. bits_per_value is then of
the whole cache at the end, exact tokens included.

With --device cuda or hip (a build with that feature), a second table compares
output_error of the GPU and of the CPU on the same pages, for each codec that
the GPU supports. All other numbers are the CPU's.";

/// Arguments of `compare`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Compare {
    /// Tensors k, v and q in a safetensors file, or plain vectors in an .npy one or, with --dim, in raw f32 rows; without it, the
    /// bundled sample
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Width of a vector in an input of raw f32 rows; other files tell their own
    #[arg(long, value_name = "D", requires = "input")]
    dim: Option<usize>,
    /// The codecs, as "SPEC;SPEC"
    #[arg(long, value_name = "SPECS")]
    codecs: Option<String>,
    /// Every codec, in place of the ten rows that matter
    #[arg(long, conflicts_with = "codecs")]
    all: bool,
    #[command(flatten)]
    keys: KeyOptions,
    /// Tokens of a page: 64, 128 or 256
    #[arg(long, value_name = "TOKENS", default_value_t = PAGE, value_parser = parse_page)]
    page: usize,
    /// Add a row for another program: the keys and values that it decoded (tensors k and v, or .npy [2, ...]); may be repeated
    #[arg(
        help_heading = "Compared with another program",
        long,
        value_name = "FILE",
        requires = "reconstructed_bits"
    )]
    reconstructed: Vec<PathBuf>,
    /// Bits a value that this program stored, everything counted: 4.25, or 4.25/3.5 for keys/values; one for each file
    #[arg(help_heading = "Compared with another program", long, value_name = "BITS", requires = "reconstructed", value_parser = parse_bits)]
    reconstructed_bits: Vec<(f64, f64)>,
    /// Name of this row [default: the file's name]
    #[arg(
        help_heading = "Compared with another program",
        long,
        value_name = "NAME",
        requires = "reconstructed"
    )]
    reconstructed_name: Vec<String>,
    /// Recommend codecs for this many bits a value; also print what the library chooses for it [default: 3.2]
    #[arg(long, value_name = "BITS", value_parser = parse_budget)]
    budget: Option<f64>,
    /// Show all columns, however wide the terminal is
    #[arg(long)]
    wide: bool,
    /// Write the rows as JSON; - is standard output
    #[arg(help_heading = "Files to write", long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// One plot of the values' rate and distortion, as a picture
    #[arg(help_heading = "Files to write", long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Instructions to use; `octaplex info` lists them
    #[arg(help_heading = "This machine", long, value_name = "NAME", value_parser = crate::backend::parse)]
    backend: Option<Backend>,
    /// Also measures attention on this device
    #[arg(help_heading = "This machine", long, value_enum, default_value_t = Device::Cpu)]
    device: Device,
    #[command(flatten)]
    cache: cache::CacheOptions,
}

/// A sample, and the settings for measuring codecs on it.
struct Bench<'a> {
    sample: &'a Sample,
    exact: Option<&'a Exact>,
    keys: Keys,
    page: usize,
    backend: Backend,
}

pub(crate) fn run(arguments: &Compare) -> Result<()> {
    let outputs = [&arguments.json, &arguments.svg].map(Option::as_deref);
    let inputs: Vec<_> = arguments.input.iter().chain(&arguments.reconstructed).cloned().collect();
    let console = Console::beside(&inputs, &outputs)?;
    arguments.device.check()?;
    let backend = arguments.backend.unwrap_or_else(Backend::detect);
    let sample = Sample::load(arguments.input.as_deref(), arguments.dim)?;
    if arguments.cache.cache {
        let keys = arguments.keys.keys()?;
        let setup = cache::Setup { sample: &sample, keys, page: arguments.page, backend, console };
        return cache::run(&arguments.cache, &setup, arguments.json.as_deref());
    }
    if arguments.device != Device::Cpu && sample.queries.is_none() {
        fail!(
            "--device {}: {} has no queries, so nothing attends: tensors k, v and q are expected",
            arguments.device.name(),
            sample.name
        );
    }
    let (specs, left_out) = specs(arguments, &sample, backend)?;
    let others = reconstructed(arguments, &sample)?;
    // Plain vectors may be of any kind.
    let is_plain = sample.is_plain() && !arguments.keys.are_given();
    let keys = if is_plain { Keys::RAW } else { arguments.keys.keys()? };

    let roles = [Role::Keys, Role::Values];
    let is_shown = |role: Role, text: &str| {
        arguments.codecs.is_some()
            || is_for(role, text) && (arguments.all || is_recommended(role, text, sample.dim))
    };
    let shown = |role| specs.iter().filter(move |(text, _)| is_shown(role, text));
    let progress = Progress::new(roles.into_iter().flat_map(shown).count() + 1, "measurements");
    progress.about("exact attention");
    let exact = Exact::new(&sample)?;
    progress.step(1);
    let bench = Bench { sample: &sample, exact: exact.as_ref(), keys, page: arguments.page, backend };
    let mut rows = Vec::new();
    for role in roles {
        for (text, spec) in shown(role) {
            progress.about(&format!("{text}, {}", role_name(role)));
            rows.push(bench.row(text, *spec, role)?);
            progress.step(1);
        }
        for other in &others {
            rows.extend(bench.other_row(other, role)?);
        }
    }
    drop(progress);
    let (on_gpu, gpu_output) = bench.on_gpu(arguments, &specs)?;
    // Sort by role, then by stored bits.
    rows.sort_by(|a, b| {
        let bits = |row: &Row| row.metrics.bits_per_value;
        (a.role as u8).cmp(&(b.role as u8)).then(bits(a).total_cmp(&bits(b)))
    });

    if let Some(path) = &arguments.json {
        let options = json!({
            "center": center_name(keys.center), "balance": keys.balance, "page": arguments.page,
            "codecs": specs.iter().map(|(text, _)| text).collect::<Vec<_>>(), "dim": sample.dim,
        });
        let run = provenance::json(&sample.describe(), backend, options);
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        let mut json = json!({"run": run, "rows": rows});
        if let Some(gpu) = on_gpu {
            json["gpu"] = gpu;
        }
        files::write(path, format!("{json:#}\n").as_bytes())?;
    }
    if let Some(path) = &arguments.svg {
        files::write(path, chart::chart(&sample, &rows).as_bytes())?;
    }
    let unadvised = sample.unadvised();
    let advice = match &unadvised {
        Some(_) => None,
        None => Advice::within(arguments.budget.unwrap_or(USUAL_BITS), &rows),
    };
    let sentence = match (&advice, unadvised) {
        (_, Some(why)) => why,
        (Some(advice), None) => advice.text(&rows, sample.tokens),
        (None, None) if arguments.codecs.is_some() => String::new(),
        (None, None) => match arguments.budget {
            Some(bits) => {
                format!("No codecs here have so few bits a value: ask for more than --budget {bits}.")
            }
            None => "No codecs here have so few bits a value: ask for more with --budget BITS.".into(),
        },
    };
    let mut notes = String::new();
    if arguments.codecs.is_none() && !arguments.all {
        notes += &format!("The rows that matter; all {} codecs: add --all\n", specs.len());
    }
    if !left_out.is_empty() && arguments.all {
        notes += &format!("Not offered at width {}, so left out: {}\n", sample.dim, left_out.join("; "));
    }
    let unpaged = if keys == Keys::RAW { 0 } else { sample.tokens % arguments.page };
    if unpaged > 0 {
        notes += &format!(
            "The last {unpaged} of {} tokens fill no page of {}: their keys and values stay in f16, as in the cache\n",
            sample.tokens, arguments.page
        );
    }
    if let Some(bits) = arguments.budget {
        notes += &within_budget(bits, sample.dim)?;
    }
    let text = comparison::text(&sample, &rows, keys, backend, arguments.wide);
    let next = next_step(arguments, &sample, advice.as_ref());
    let last = wrap(&format!("{notes}\n{sentence}{}", if sentence.is_empty() { "" } else { "\n" }));
    // Users copy commands, so their lines are not broken.
    console.say(&format!("{text}\n{gpu_output}{last}Next: {next}\n"))
}

/// Returns the command or the data to try next.
fn next_step(arguments: &Compare, sample: &Sample, advice: Option<&Advice>) -> String {
    let Some(path) = &arguments.input else {
        return "octaplex compare --input your.safetensors\n\
            (octaplex capture, or python -m octaplex.capture, writes one from your model)\n\
            Gigabytes of your model's cache: octaplex memory model.gguf"
            .into();
    };
    if sample.queries.is_none() {
        return match sample.is_plain() {
            true => "tensors k, v and q in a safetensors file: then the table has KL and output error".into(),
            false => "add queries, the tensor q: then the table has KL and output error".into(),
        };
    }
    if sample.tokens < FEWEST {
        return "more tokens: 1,024 are usual".into();
    }
    let rows = advice.map(|advice| [advice.keys, advice.values]);
    let codecs = match rows.filter(|rows| rows.iter().all(|row| row.spec.is_some())) {
        Some([keys, values]) => format!(" --k {} --v {}", keys.codec, values.codec),
        None => String::new(),
    };
    format!("octaplex compare --cache --input {}{codecs}", path.display())
}

/// Says in words which codecs the library chooses for `bits` bits a value.
fn within_budget(bits: f64, dim: usize) -> Result<String> {
    let config = for_bits(CacheConfig::new(100, 1, dim, 1000), bits)?;
    let finer = config.finer.map(|Finer { layers, keys, values }| {
        let (keys, values) = (shown_spec(keys), shown_spec(values));
        format!(", in {layers} of 100 layers {keys} and {values}")
    });
    Ok(format!(
        "Within {bits} bits a value: {} for keys and {} for values{}, {:.3} bits in pages; of what was measured on whole models, \
         the most accurate that fits (docs/accuracy.md)\n",
        shown_spec(config.each.keys),
        shown_spec(config.each.values),
        finer.unwrap_or_default(),
        config.page_bits()
    ))
}

type Specs = Vec<(String, CodecSpec)>;

/// Returns the codecs, and the default ones that do not exist at this width.
fn specs(arguments: &Compare, sample: &Sample, backend: Backend) -> Result<(Specs, Vec<String>)> {
    let specs = parse_specs(arguments.codecs.as_deref().unwrap_or(ALL_CODECS))?;
    if arguments.codecs.is_some() {
        return Ok((specs, Vec::new()));
    }
    let (specs, left_out): (Specs, Specs) =
        specs.into_iter().partition(|(text, spec)| build(text, *spec, sample.dim, backend).is_ok());
    if specs.is_empty() {
        return Err(Failure(octaplex::Error::Width { actual: sample.dim }.to_string()));
    }
    Ok((specs, left_out.into_iter().map(|(text, _)| text).collect()))
}

fn reconstructed(arguments: &Compare, sample: &Sample) -> Result<Vec<Reconstructed>> {
    let Compare { reconstructed: paths, reconstructed_bits: bits, reconstructed_name: names, .. } = arguments;
    if bits.len() != paths.len() || ![0, paths.len()].contains(&names.len()) {
        fail!(
            "{} --reconstructed files, {} --reconstructed-bits and {} --reconstructed-name: one for each is needed",
            paths.len(),
            bits.len(),
            names.len()
        );
    }
    let load = |(index, path): (usize, &PathBuf)| {
        Reconstructed::load(path, names.get(index).map(String::as_str), bits[index], sample)
    };
    paths.iter().enumerate().map(load).collect()
}

impl Bench<'_> {
    /// Runs these codecs on the GPU, and returns the results as JSON and as text; nothing on the CPU.
    #[cfg(feature = "gpu")]
    fn on_gpu(&self, arguments: &Compare, specs: &[(String, CodecSpec)]) -> Result<(Option<Value>, String)> {
        let (true, Some(queries), Some(exact)) =
            (arguments.device != Device::Cpu, &self.sample.queries, self.exact)
        else {
            return Ok((None, String::new()));
        };
        let gpu = gpu::run(
            arguments.device,
            specs,
            &gpu::Setup {
                sample: self.sample,
                queries,
                exact,
                keys: self.keys,
                page: self.page,
                backend: self.backend,
                calibration: &|index| self.calibration(index),
                measured: self.queries(),
            },
        )?;
        Ok((Some(gpu.json()), format!("{}\n", gpu.text())))
    }

    #[cfg(not(feature = "gpu"))]
    fn on_gpu(&self, _: &Compare, _: &[(String, CodecSpec)]) -> Result<(Option<Value>, String)> {
        Ok((None, String::new()))
    }

    /// Returns the queries that keys are measured on. If some queries decide the balance, these are the others.
    fn queries(&self) -> (usize, usize) {
        let count = self.sample.queries.as_ref().map_or(0, |queries| queries.positions.len());
        if self.keys.balance && count > 1 { (1, 2) } else { (0, 1) }
    }

    /// Returns every second query of all query heads that share a key/value head.
    fn calibration(&self, index: usize) -> Vec<f32> {
        let Some(queries) = &self.sample.queries else { return Vec::new() };
        if self.queries() == (0, 1) {
            return Vec::new();
        }
        let heads = &queries.heads[index * queries.group..(index + 1) * queries.group];
        heads
            .iter()
            .flat_map(|rows| rows.chunks_exact(self.sample.dim).step_by(2))
            .flatten()
            .copied()
            .collect()
    }

    /// Bits a value without the tokens that fill no page, which are in f16.
    fn paged_bits(&self, spec: CodecSpec, bits: f64) -> f64 {
        let tokens = self.sample.tokens;
        let unpaged = if self.keys == Keys::RAW || is_float(spec) { 0 } else { tokens % self.page };
        if unpaged == tokens {
            return bits;
        }
        let share = unpaged as f64 / tokens as f64;
        (bits - F16 * share) / (1.0 - share)
    }

    fn row(&self, text: &str, spec: CodecSpec, role: Role) -> Result<Row> {
        let Self { sample, exact, backend, page, .. } = *self;
        let codec = build(text, spec, sample.dim, backend)?;
        let plain = |_: usize, rows: &[f32]| Store::new(&codec, rows);
        let cached = |index: usize, rows: &[f32]| {
            Store::cached((spec, &codec), (role, self.keys, page), rows, &self.calibration(index), backend)
        };
        let keys = if role == Role::Values || is_float(spec) { Keys::RAW } else { self.keys };
        let metrics = match role {
            Role::Keys => measure(sample, exact, role, self.queries(), cached).at(text)?,
            Role::Values => measure(sample, exact, role, (0, 1), cached).at(text)?,
        };
        let kl = |metrics: &Metrics| metrics.attention.map(|attention| attention.kl);
        let kl_raw = match role {
            Role::Values => None,
            Role::Keys if keys == Keys::RAW => kl(&metrics),
            Role::Keys => kl(&measure(sample, exact, role, self.queries(), plain).at(text)?),
        };
        let rows = &sample.heads(role)[0];
        let times = paged::Setup { role, keys: self.keys, page, rows, dim: sample.dim, backend }.times(spec);
        Ok(Row {
            codec: text.to_owned(),
            spec: Some(spec),
            role,
            keys,
            page,
            paged_bits: self.paged_bits(spec, metrics.bits_per_value),
            metrics,
            kl_raw,
            dim: sample.dim,
            times: Some(times.at(text)?),
        })
    }

    /// Returns the row of another program, if it decoded this role.
    fn other_row(&self, other: &Reconstructed, role: Role) -> Result<Option<Row>> {
        let Some(heads) = other.heads(role) else { return Ok(None) };
        let (sample, bits) = (self.sample, other.bits(role));
        let queries = if role == Role::Keys { self.queries() } else { (0, 1) };
        let store = |index: usize, rows: &[f32]| {
            let bytes = (bits * rows.len() as f64 / 8.0).round() as usize;
            Ok(Store::Decoded { rows: &heads[index], dim: sample.dim, bytes })
        };
        let metrics = measure(sample, self.exact, role, queries, store).at(&other.name)?;
        Ok(Some(Row {
            codec: other.name.clone(),
            spec: None,
            role,
            keys: Keys::RAW,
            page: self.page,
            paged_bits: bits,
            metrics: Metrics { bits_per_value: bits, ..metrics },
            kl_raw: None,
            dim: sample.dim,
            times: None,
        }))
    }
}
