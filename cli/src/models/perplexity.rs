//! `perplexity`: compares a model that reads a text with a compressed cache to the same model with an f16 cache.

use super::forward::Model;
use super::likelihood::{Outcome, Reference};
use super::options::{CodecOptions, ModelOptions};
use crate::console::{Console, wrap};
use crate::device::Device;
use crate::failure::{Result, fail};
use crate::files;
use crate::progress::Progress;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

/// The end of the help of `perplexity`.
const HELP: &str = "\
Example:
  octaplex perplexity --model smollm2.gguf --text wikitext2_raw_test.txt \\
      --k trellis --v trellis

The text is cut into windows, and each starts with an empty cache. Every token
except a window's first is predicted from those before it. Attention reads only
the cache, so it sees the compressed keys and values.

perplexity      exp of the mean -ln p(token), nats
kl_mean, kl_p99 KL divergence of the next token's distribution from that with
                the f16 cache, nats
kl_paged        its mean over the positions that read pages: the first ones see
                exact tokens only, and dilute kl_mean
top1_agreement  share of positions where both caches make the same token the
                likeliest
kv_bytes        of the cache at the end of a window, everything counted
bits_per_value  of the whole cache; in pages: without the exact tokens, what a
                long context tends to";

/// Arguments of `perplexity`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Perplexity {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    codecs: CodecOptions,
    /// A text in UTF-8, read from its start
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 1024)]
    tokens: usize,
    /// Windows, one after the other
    #[arg(long, value_name = "N", default_value_t = 1)]
    windows: usize,
    /// Also run attention in f32, without any cache
    #[arg(long)]
    exact: bool,
    /// Device for attention on the compressed cache; everything else runs on the CPU, also the f16 cache
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    device: Device,
    /// Write the numbers of the tokens, one a line, so that another engine can read the same tokens
    #[arg(long, value_name = "FILE")]
    write_tokens: Option<PathBuf>,
    /// Write the results as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Checks `--tokens` and `--windows`.
pub(crate) fn check_windows(model: &Model, tokens: usize, windows: usize) -> Result<()> {
    if tokens < 2 || windows == 0 || tokens.checked_mul(windows).is_none() {
        fail!("--tokens {tokens} --windows {windows}: at least one window of 2 tokens");
    }
    model.check_context(tokens)?;
    Ok(())
}

pub(crate) fn run(arguments: &Perplexity) -> Result<()> {
    let Perplexity { model: options, text, tokens, windows, device, .. } = arguments;
    let inputs = options.inputs(arguments.codecs.profile().into_iter().chain([text.as_path()]));
    let console = Console::beside(&inputs, &[arguments.json.as_deref(), arguments.write_tokens.as_deref()])?;
    let codecs = arguments.codecs.codecs()?;
    device.check()?;
    let start = Instant::now();
    let model = options.load()?;
    let codecs = options.settled(&model, codecs)?;
    check_windows(&model, *tokens, *windows)?;
    let words = model.text.of_file(text, tokens * windows, "--tokens or --windows")?;
    if let Some(path) = &arguments.write_tokens {
        let lines: String = words.iter().map(|token| format!("{token}\n")).collect();
        files::write(path, lines.as_bytes())?;
    }
    if *device != Device::Cpu {
        options.cache(&model, &codecs, *tokens)?.on(*device)?; // what it does not take is said before the model reads
    }
    let runs = if arguments.exact { 3 } else { 2 };
    let progress = Progress::new(runs * Reference::steps(&model, *windows), "layers");
    let reference = Reference::new(&model, options, &words, *windows, &progress)?;
    let outcome = reference.measure(&codecs, *device, &progress)?;
    let exact = match arguments.exact {
        true => Some(reference.exact_perplexity(&progress)?),
        false => None,
    };
    drop(progress);
    if let Some(path) = &arguments.json {
        let mut json = options.json_with_run(&model, &codecs);
        if let (Some(json), Some(found)) = (json.as_object_mut(), outcome.json().as_object()) {
            json.extend(found.clone());
            json.insert("window_tokens".into(), (*tokens).into());
            json.insert("windows".into(), (*windows).into());
            json.insert("perplexity_f32".into(), json!(exact));
            json.insert("device".into(), device.name().into());
        }
        files::write(path, format!("{json:#}\n").as_bytes())?;
    }
    let about = format!(
        "{}\n{}; {windows} windows of {tokens} tokens\n{}; {}",
        model.describe(),
        text.display(),
        codecs.describe(),
        options.describe()
    );
    let exact =
        exact.map_or(String::new(), |exact| format!("\nperplexity without a cache, in f32: {exact:.4}\n"));
    let (about, seconds) = (wrap(&about), start.elapsed().as_secs_f64());
    console.say(&format!("{about}\n\n{}{exact}\n{seconds:.0} s\n", table(&outcome)))
}

fn table(outcome: &Outcome) -> String {
    let change = 100.0 * (outcome.perplexity / outcome.perplexity_f16 - 1.0);
    let smaller = match outcome.kl_paged {
        None if outcome.kv_bytes > outcome.kv_bytes_f16 => "no page has closed: all tokens are exact".into(),
        _ => format!("{:.2} times smaller", outcome.kv_bytes_f16 as f64 / outcome.kv_bytes as f64),
    };
    format!(
        "                  f16 cache   compressed\n\
         perplexity     {:>12.4} {:>12.4}   {change:+.2}%\n\
         KV bytes       {:>12} {:>12}   {smaller}\n\
         bits per value {:>12} {:>12.3}   in pages {:.3}\n\
         KL divergence, nats: mean {:.5}, 99th percentile {:.4}; mean where pages are read {}\n\
         the same likeliest token: {:.2}% of {} predictions\n",
        outcome.perplexity_f16,
        outcome.perplexity,
        outcome.kv_bytes_f16,
        outcome.kv_bytes,
        16,
        outcome.bits_per_value,
        outcome.bits_per_value_pages,
        outcome.kl_mean,
        outcome.kl_p99,
        outcome.kl_paged.map_or("-".into(), |kl| format!("{kl:.5}")),
        100.0 * outcome.top1_agreement,
        outcome.tokens,
    )
}
