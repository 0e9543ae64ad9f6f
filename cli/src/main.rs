//! `octaplex`: compares codecs of key/value caches on real data, and encodes, decodes, scores and benchmarks.
#![forbid(unsafe_code)]

mod advice;
mod backend;
mod bench;
mod codecs;
mod columns;
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
mod gguf;
mod info;
mod input;
mod keys;
mod labels;
mod memory;
mod metrics;
#[cfg(feature = "models")]
mod models;
mod npy;
mod paged;
mod paths;
mod plot;
mod progress;
mod provenance;
#[cfg(any(test, feature = "models"))]
mod rates;
mod reconstructed;
mod row;
mod series;
mod store;
mod table;
mod timing;
mod verify;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};
use convert::Coding;
use failure::{Result, fail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The end of the help: options without a command, and first examples.
const HELP: &str = "\
Without a command, octaplex takes the options of compare, and:
  -h, --help     Print help; octaplex COMMAND --help has a command's options
  -V, --version  Print version

Examples:
  octaplex                         codecs on the bundled sample: which to take
  octaplex --input kv.safetensors  the same on your keys, values and queries
  octaplex memory model.gguf       gigabytes of a model's cache
  octaplex compare --cache         a whole cache, token by token
  octaplex info trellis:bits=3     what a codec's bytes are";

/// Compare and test codecs for the key/value cache of transformers. Without a command: compare
#[derive(Parser)]
#[command(name = "octaplex", version, args_conflicts_with_subcommands = true, max_term_width = 100, after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    compare: compare::Compare,
}

/// All commands. Each enum is a group of the help.
#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Codecs(CodecCommand),
    #[command(flatten)]
    Models(ModelCommand),
    #[command(flatten)]
    Machine(MachineCommand),
}

/// Commands on codecs, and on keys and values in files.
#[derive(Subcommand)]
enum CodecCommand {
    /// Compare codecs on keys, values and queries: which to take
    Compare(Box<compare::Compare>),
    /// Compute the gigabytes of a model's cache, by codec and context
    Memory(memory::Memory),
    /// Describe a codec's bytes; without one, list codecs and backends
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
    /// Encode f32 rows (raw or .npy) into raw blocks
    #[command(
        after_help = "Blocks lie one after the other, without a header.\n\nExample:\n  octaplex encode trellis:bits=3 keys.npy keys.blocks"
    )]
    Encode {
        #[command(flatten)]
        coding: Coding,
        /// Rows to encode; - is standard input
        input: PathBuf,
        /// File for the blocks; - is standard output
        output: PathBuf,
    },
    /// Decode raw blocks into f32 rows (raw, or .npy)
    #[command(after_help = "Example:\n  octaplex decode trellis:bits=3 --dim 128 keys.blocks keys.npy")]
    Decode {
        #[command(flatten)]
        coding: Coding,
        /// Blocks to decode; - is standard input
        input: PathBuf,
        /// File for the rows, .npy if its name ends so, else raw; - is standard output
        output: PathBuf,
    },
    /// Score queries with blocks: f32 [queries, rows], raw or .npy
    #[command(
        after_help = "Example:\n  octaplex score trellis:bits=3 --query queries.npy keys.blocks scores.npy"
    )]
    Score {
        #[command(flatten)]
        coding: Coding,
        /// Queries, f32 rows (raw little-endian or .npy)
        #[arg(long, value_name = "FILE")]
        query: PathBuf,
        /// Blocks; - is standard input
        input: PathBuf,
        /// File for the scores; - is standard output
        output: PathBuf,
    },
}

/// Commands on this machine, and on the tool itself.
#[derive(Subcommand)]
enum MachineCommand {
    /// Time codecs in nanoseconds per vector, against an f16 dot product
    Bench(bench::Bench),
    /// Check that this machine gives the published results
    Verify(verify::Verify),
    /// Print completions for a shell
    #[command(
        after_help = "Example:\n  octaplex completions bash > ~/.local/share/bash-completion/completions/octaplex"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of octaplex or of a command
    #[command(after_help = "Example:\n  octaplex man compare | man -l -")]
    Man {
        /// For example compare
        command: Option<String>,
    },
}

/// Commands that run a language model, from a GGUF file.
#[derive(Subcommand)]
enum ModelCommand {
    /// Write a model's keys, values and queries on a text, for compare
    Capture(models::Capture),
    /// Measure which layers need more bits, and write a profile
    Calibrate(models::Calibrate),
    /// Measure perplexity and KL with a compressed cache, against f16
    Perplexity(models::Perplexity),
    /// Generate text with a compressed cache; report speed and memory
    Generate(models::Generate),
    /// Test retrieval from a long text with a compressed cache
    Needle(models::Needle),
    /// Measure perplexity for many codecs; an interrupted run resumes
    Sweep(models::Sweep),
}

/// In a build without models, their commands take any arguments, and fail.
#[cfg(not(feature = "models"))]
mod models {
    pub(crate) use super::{
        AnyArguments as Calibrate, AnyArguments as Capture, AnyArguments as Generate, AnyArguments as Needle,
        AnyArguments as Perplexity, AnyArguments as Sweep,
    };
}

#[cfg(not(feature = "models"))]
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
struct AnyArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<std::ffi::OsString>,
}

/// The commands, with their help in groups.
fn command() -> clap::Command {
    let command = Cli::command();
    let styles = command.get_styles();
    let (header, literal) = (*styles.get_header(), *styles.get_literal());
    let mut groups = String::new();
    let models = if cfg!(feature = "models") {
        ""
    } else {
        " (not in this build: cargo install --path cli --features models)"
    };
    let empty = clap::Command::default;
    for (title, note, group) in [
        ("Codecs", "", CodecCommand::augment_subcommands(empty())),
        ("Models", models, ModelCommand::augment_subcommands(empty())),
        ("This machine", "", MachineCommand::augment_subcommands(empty())),
    ] {
        groups += &format!("\n{header}{title}{header:#}{note}\n");
        for command in group.get_subcommands() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            groups += &format!("  {literal}{:12}{literal:#} {about}\n", command.get_name());
        }
    }
    // So that an error for a negative number names the option's values.
    let with_numbers = |command: clap::Command| {
        command.mut_args(|arg| match arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
    };
    with_numbers(command)
        .mut_subcommands(with_numbers)
        .help_template(format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}{{after-help}}"))
}

fn main() -> ExitCode {
    let cli = match command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                return exit_code(console::finish(error.print()).map(|()| ExitCode::SUCCESS));
            }
            kind => return complain(&usage_error(&error.to_string(), kind)),
        },
    };
    exit_code(run(cli))
}

fn exit_code(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|failure| complain(&failure.0))
}

fn run(cli: Cli) -> Result<ExitCode> {
    let done = match cli.command {
        None => compare::run(&cli.compare),
        Some(Command::Codecs(command)) => run_codecs(command),
        Some(Command::Models(command)) => run_models(&command),
        Some(Command::Machine(MachineCommand::Verify(arguments))) => return verify::run(&arguments),
        Some(Command::Machine(MachineCommand::Bench(bench))) => bench::run(&bench),
        Some(Command::Machine(MachineCommand::Completions { shell })) => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "octaplex", &mut text);
            files::write(Path::new("-"), &text)
        }
        Some(Command::Machine(MachineCommand::Man { command })) => man(command.as_deref()),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn run_codecs(command: CodecCommand) -> Result<()> {
    match command {
        CodecCommand::Compare(compare) => compare::run(&compare),
        CodecCommand::Memory(memory) => memory::run(&memory),
        CodecCommand::Info { spec: Some(spec), dim, json } => console::say(&info::spec(&spec, dim, json)?),
        CodecCommand::Info { spec: None, json, .. } => console::say(&info::all(json)),
        CodecCommand::Encode { coding, input, output } => convert::encode(&coding, &input, &output),
        CodecCommand::Decode { coding, input, output } => convert::decode(&coding, &input, &output),
        CodecCommand::Score { coding, query, input, output } => {
            convert::score(&coding, &query, &input, &output)
        }
    }
}

#[cfg(feature = "models")]
fn run_models(command: &ModelCommand) -> Result<()> {
    models::threads::settle();
    match command {
        ModelCommand::Capture(capture) => models::capture::run(capture),
        ModelCommand::Calibrate(calibrate) => models::calibrate::run(calibrate),
        ModelCommand::Perplexity(perplexity) => models::perplexity::run(perplexity),
        ModelCommand::Generate(generate) => models::generate::run(generate),
        ModelCommand::Needle(needle) => models::needle::run(needle),
        ModelCommand::Sweep(sweep) => models::sweep::run(sweep),
    }
}

/// Fails with the command that builds the tool with language models.
#[cfg(not(feature = "models"))]
fn run_models(_: &ModelCommand) -> Result<()> {
    let mut arguments: Vec<_> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let command = arguments.first().cloned().unwrap_or_default();
    if arguments.len() == 1 {
        arguments.push("--help".into());
    }
    fail!(
        "{command} runs language models, which this build leaves out: cargo run --release -p octaplex-cli --features \
         models -- {}",
        arguments.join(" ")
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

/// The most characters of a message. Messages whose texts from files are cut are much shorter.
const LONGEST: usize = 2000;

/// Prints one line to standard error, and returns exit code 2.
fn complain(message: &str) -> ExitCode {
    // Some messages contain text from files and arguments.
    let message = failure::cut(message, LONGEST);
    anstream::eprintln!("{} {message}", console::paint(console::RED, "octaplex:"));
    ExitCode::from(2)
}

/// Returns the message of the argument parser in one line.
fn usage_error(text: &str, kind: ErrorKind) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let said = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    // The parser finds most commands similar to any word.
    let is_idle = |line: &str| {
        line.starts_with("tip: to pass") || line.starts_with("tip:") && kind == ErrorKind::InvalidSubcommand
    };
    let said: Vec<_> = said.map(str::trim).filter(|line| !is_idle(line)).collect();
    let said = said.join(" ").trim().replace("  ", "; ");
    let meant = match kind {
        ErrorKind::InvalidSubcommand => {
            let first = std::env::args_os().nth(1).unwrap_or_default();
            let names = Cli::command();
            let names = names.get_subcommands().map(clap::Command::get_name);
            codecs::did_you_mean(&first.to_string_lossy(), names)
        }
        _ => String::new(),
    };
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
    let usage = usage.filter(|_| kind != ErrorKind::InvalidSubcommand);
    let usage = usage.map_or(String::new(), |usage| format!("; usage: {usage}"));
    format!("{meant}{said}{usage} (see {} --help)", asked_command())
}

/// Returns the command whose help has the given options. Without a command they are those of compare.
fn asked_command() -> String {
    let first = std::env::args_os().nth(1).unwrap_or_default().to_string_lossy().into_owned();
    match first {
        option if option.starts_with('-') => "octaplex compare".into(),
        name if Cli::command().find_subcommand(&name).is_some() => format!("octaplex {name}"),
        _ => "octaplex".into(),
    }
}
