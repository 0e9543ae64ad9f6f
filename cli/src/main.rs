//! `octaplex`: compares codecs of key/value caches on real data, and encodes, decodes, scores and benchmarks.
#![forbid(unsafe_code)]

mod attend;
mod bench;
mod compare;
mod convert;
mod failure;
mod files;
mod info;
mod input;
mod labels;
mod metrics;
#[cfg(feature = "models")]
mod models;
mod npy;
mod plot;
mod progress;
mod rates;
mod report;
mod series;
mod table;
mod timing;

use clap::{Args, Parser, Subcommand, error::ErrorKind};
use convert::Coder;
use failure::Result;
use octaplex::Backend;
use std::path::PathBuf;
use std::process::ExitCode;

/// Compress the key/value cache of transformers. Without a command: compare
#[derive(Parser)]
#[command(name = "octaplex", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    compare: compare::Compare,
}

#[derive(Subcommand)]
enum Command {
    /// Compare codecs on keys, values and queries: a table, a page with plots, JSON
    Compare(compare::Compare),
    /// Attention through a whole cache (sinks, pages, exact window), token by token, beside exact attention
    Attend(attend::AttendArguments),
    /// Encode f32 rows (raw little-endian or .npy) into raw blocks, one after the other, without a header
    Encode {
        #[command(flatten)]
        coding: Coding,
        /// Rows to encode; - is standard input
        input: PathBuf,
        /// Where the blocks go; - is standard output
        output: PathBuf,
    },
    /// Decode raw blocks into raw little-endian f32 rows
    Decode {
        #[command(flatten)]
        coding: Coding,
        /// Blocks to decode; - is standard input
        input: PathBuf,
        /// Where the rows go; - is standard output
        output: PathBuf,
    },
    /// Score every query with every block: f32, queries × rows
    Score {
        #[command(flatten)]
        coding: Coding,
        /// Queries, f32 rows (raw little-endian or .npy)
        #[arg(long, value_name = "FILE")]
        query: PathBuf,
        /// Blocks; - is standard input
        input: PathBuf,
        /// Where the scores go; - is standard output
        output: PathBuf,
    },
    /// What a spec means and what its bytes are; without a spec, the codecs and their keys
    Info {
        /// For example turboquant:bits=3
        spec: Option<String>,
        /// Width of a vector
        #[arg(long, value_name = "D", default_value_t = 128)]
        dim: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// The instruction sets of this CPU that have kernels
    Backends,
    /// Draw rate and KL divergence of rows that `sweep --csv` wrote, as a picture
    Plot(rates::Plot),
    /// Nanoseconds per vector, in cache and in memory, beside an f16 dot product
    Bench(bench::Bench),
    /// A language model reads a text with a compressed cache: perplexity, KL divergence, bytes, beside f16
    #[cfg(feature = "models")]
    Perplexity(models::perplexity::Perplexity),
    /// A language model writes with a compressed cache: speed, and bytes as they grow
    #[cfg(feature = "models")]
    Generate(models::generate::Generate),
    /// A language model finds values hidden in a long text, with a compressed cache
    #[cfg(feature = "models")]
    Needle(models::needle::Needle),
    /// Perplexity and KL divergence of many codecs: a table, a page with plots; resumable
    #[cfg(feature = "models")]
    Sweep(models::sweep::Sweep),
}

/// What `encode`, `decode` and `score` share.
#[derive(Args)]
struct Coding {
    /// The codec, for example turboquant:bits=3
    spec: String,
    /// Width of a vector
    #[arg(long, value_name = "D")]
    dim: usize,
    /// Instructions to use; `octaplex backends` lists them
    #[arg(long, value_name = "NAME", value_parser = parse_backend)]
    backend: Option<Backend>,
}

impl Coding {
    fn coder(&self) -> Result<Coder> {
        Coder::new(&self.spec, self.dim, self.backend.unwrap_or_else(Backend::detect))
    }
}

fn parse_backend(name: &str) -> std::result::Result<Backend, String> {
    let names = || Backend::available().map(Backend::name).collect::<Vec<_>>().join(", ");
    Backend::named(name).ok_or_else(|| format!("this CPU has {}", names()))
}

/// The kernels behind a backend: for a baseline and for logits, which no codec has anything to do with.
fn kernels(backend: Backend) -> octaplex_arch::Backend {
    octaplex_arch::Backend::named(backend.name()).unwrap_or(octaplex_arch::Backend::SCALAR)
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                return exit_code(files::print(error.to_string()));
            }
            _ => return complain(&usage_error(&error.to_string())),
        },
    };
    exit_code(run(cli))
}

fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => complain(&failure.0),
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        None => compare::run(&cli.compare),
        Some(Command::Attend(arguments)) => attend::run(&arguments),
        Some(Command::Compare(compare)) => compare::run(&compare),
        Some(Command::Encode { coding, input, output }) => coding.coder()?.encode(&input, &output),
        Some(Command::Decode { coding, input, output }) => coding.coder()?.decode(&input, &output),
        Some(Command::Score { coding, query, input, output }) => {
            coding.coder()?.score(&query, &input, &output)
        }
        Some(Command::Info { spec: Some(spec), dim, json }) => files::print(info::spec(&spec, dim, json)?),
        Some(Command::Info { spec: None, json, .. }) => files::print(info::codecs(json)),
        Some(Command::Backends) => files::print(info::backends()),
        Some(Command::Plot(plot)) => rates::run(&plot),
        Some(Command::Bench(bench)) => bench::run(&bench),
        #[cfg(feature = "models")]
        Some(Command::Perplexity(perplexity)) => models::perplexity::run(&perplexity),
        #[cfg(feature = "models")]
        Some(Command::Generate(generate)) => models::generate::run(&generate),
        #[cfg(feature = "models")]
        Some(Command::Needle(needle)) => models::needle::run(&needle),
        #[cfg(feature = "models")]
        Some(Command::Sweep(sweep)) => models::sweep::run(&sweep),
    }
}

/// One line on standard error, exit code 2.
fn complain(message: &str) -> ExitCode {
    eprintln!("octaplex: {message}");
    ExitCode::from(2)
}

/// What the parser of arguments says, in one line.
fn usage_error(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let said = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let said: Vec<_> = said.map(str::trim).collect();
    format!("{} (see octaplex --help)", said.join(" ").trim().replace("  ", "; "))
}
