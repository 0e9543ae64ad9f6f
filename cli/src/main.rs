//! `octaplex`: compares codecs of key/value caches on real data, and encodes, decodes, scores and benchmarks.
#![forbid(unsafe_code)]

mod attend;
mod backend;
mod bench;
mod codecs;
mod compare;
mod comparison;
mod console;
mod convert;
mod device;
mod failure;
mod files;
#[cfg(test)]
#[path = "../tests/fuzz_body/mod.rs"]
mod fuzz_body;
#[cfg(test)]
mod fuzz_replay;
mod info;
mod input;
mod keys;
mod labels;
mod metrics;
#[cfg(feature = "models")]
mod models;
mod npy;
mod plot;
mod progress;
mod provenance;
mod rates;
mod reconstructed;
mod report;
mod row;
mod series;
mod store;
mod table;
mod timing;
mod verify;

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use convert::Coding;
use failure::{Result, fail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where to begin.
const HELP: &str = "\
Examples:
  octaplex                          every codec on the bundled sample
  octaplex --input kv.safetensors   on your own keys, values and queries
  octaplex info                     the codecs, and what they can be told
  octaplex compare --help           what the figures mean";

/// Compress the key/value cache of transformers. Without a command: compare
#[derive(Parser)]
#[command(name = "octaplex", version, args_conflicts_with_subcommands = true, max_term_width = 100, after_help = HELP)]
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
    #[command(after_help = "Example:\n  octaplex encode trellis keys.npy keys.blocks")]
    Encode {
        #[command(flatten)]
        coding: Coding,
        /// Rows to encode; - is standard input
        input: PathBuf,
        /// Where the blocks go; - is standard output
        output: PathBuf,
    },
    /// Decode raw blocks into f32 rows: raw little-endian, or .npy if the name ends so
    #[command(after_help = "Example:\n  octaplex decode trellis --dim 128 keys.blocks keys.npy")]
    Decode {
        #[command(flatten)]
        coding: Coding,
        /// Blocks to decode; - is standard input
        input: PathBuf,
        /// Where the rows go; - is standard output
        output: PathBuf,
    },
    /// Score every query with every block: f32, queries × rows, raw or .npy
    #[command(after_help = "Example:\n  octaplex score trellis --query queries.npy keys.blocks scores.npy")]
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
    #[command(after_help = "Example:\n  octaplex info turboquant:bits=3 --dim 64")]
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
    #[command(after_help = "Example:\n  octaplex plot rows.csv rows.svg")]
    Plot(rates::Plot),
    /// Checksums of every codec's bytes and results, which are the same on every machine
    Verify(verify::Verify),
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
    /// A language model reads a text with a compressed cache (needs a build with the feature models)
    #[cfg(not(feature = "models"))]
    Perplexity(NeedsModels),
    /// A language model writes with a compressed cache (needs a build with the feature models)
    #[cfg(not(feature = "models"))]
    Generate(NeedsModels),
    /// A language model finds values hidden in a long text (needs a build with the feature models)
    #[cfg(not(feature = "models"))]
    Needle(NeedsModels),
    /// Perplexity of many codecs (needs a build with the feature models)
    #[cfg(not(feature = "models"))]
    Sweep(NeedsModels),
    /// Completions for a shell, to standard output
    #[command(
        after_help = "Example:\n  octaplex completions bash > ~/.local/share/bash-completion/completions/octaplex"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// The manual page, or that of a command, to standard output
    #[command(after_help = "Example:\n  octaplex man compare | man -l -")]
    Man {
        /// For example compare
        command: Option<String>,
    },
}

/// Arguments of a command that this build has not.
#[cfg(not(feature = "models"))]
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct NeedsModels {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<std::ffi::OsString>,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                return exit_code(console::finish(error.print()).map(|()| ExitCode::SUCCESS));
            }
            _ => return complain(&usage_error(&error.to_string())),
        },
    };
    exit_code(run(cli))
}

fn exit_code(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|failure| complain(&failure.0))
}

fn run(cli: Cli) -> Result<ExitCode> {
    #[cfg(feature = "models")]
    if let Some(Command::Perplexity(_) | Command::Generate(_) | Command::Needle(_) | Command::Sweep(_)) =
        cli.command
    {
        models::threads::settle();
    }
    let done = match cli.command {
        Some(Command::Verify(arguments)) => return verify::run(&arguments),
        None => compare::run(&cli.compare),
        Some(Command::Attend(arguments)) => attend::run(&arguments),
        Some(Command::Compare(compare)) => compare::run(&compare),
        Some(Command::Encode { coding, input, output }) => convert::encode(&coding, &input, &output),
        Some(Command::Decode { coding, input, output }) => convert::decode(&coding, &input, &output),
        Some(Command::Score { coding, query, input, output }) => {
            convert::score(&coding, &query, &input, &output)
        }
        Some(Command::Info { spec: Some(spec), dim, json }) => console::say(&info::spec(&spec, dim, json)?),
        Some(Command::Info { spec: None, json, .. }) => console::say(&info::codecs(json)),
        Some(Command::Backends) => console::say(&info::backends()),
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
        #[cfg(not(feature = "models"))]
        Some(Command::Perplexity(needs)) => needs_models("perplexity", &needs),
        #[cfg(not(feature = "models"))]
        Some(Command::Generate(needs)) => needs_models("generate", &needs),
        #[cfg(not(feature = "models"))]
        Some(Command::Needle(needs)) => needs_models("needle", &needs),
        #[cfg(not(feature = "models"))]
        Some(Command::Sweep(needs)) => needs_models("sweep", &needs),
        Some(Command::Completions { shell }) => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "octaplex", &mut text);
            files::write(Path::new("-"), &text)
        }
        Some(Command::Man { command }) => man(command.as_deref()),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// How to get what this build has not.
#[cfg(not(feature = "models"))]
fn needs_models(command: &str, needs: &NeedsModels) -> Result<()> {
    let arguments: Vec<_> = needs.arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    fail!(
        "{command} runs language models, which this build leaves out: cargo run --release -p octaplex-cli --features \
         models -- {command} {}",
        if arguments.is_empty() { "--help".into() } else { arguments.join(" ") }
    )
}

fn man(command: Option<&str>) -> Result<()> {
    let mut cli = Cli::command();
    cli.build();
    let page = match command {
        None => cli,
        Some(name) => match cli.find_subcommand(name) {
            Some(found) => found.clone(),
            None => {
                let names: Vec<_> = cli.get_subcommands().map(|command| command.get_name()).collect();
                fail!("there is no command {name}; the commands are {}", names.join(", "))
            }
        },
    };
    let mut text = Vec::new();
    console::finish(clap_mangen::Man::new(page).render(&mut text))?;
    files::write(Path::new("-"), &text)
}

/// Characters of a message: many more than any has whose texts from files are cut.
const LONGEST: usize = 2000;

/// One line on standard error, exit code 2.
fn complain(message: &str) -> ExitCode {
    // What files and arguments say is in some messages.
    let message = failure::cut(message, LONGEST);
    anstream::eprintln!("{} {message}", console::paint(console::RED, "octaplex:"));
    ExitCode::from(2)
}

/// What the parser of arguments says, in one line.
fn usage_error(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let said = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let said: Vec<_> = said.map(str::trim).collect();
    format!("{} (see octaplex --help)", said.join(" ").trim().replace("  ", "; "))
}
