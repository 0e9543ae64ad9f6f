//! `generate`: writes text with a compressed cache, and reports speed and the growth of the cache.

use super::attention::Cached;
use super::forward::Model;
use super::options::{CodecOptions, Codecs, ModelOptions};
use super::session::{Prefill, Session};
use crate::console::{Console, wrap};
use crate::failure::{Result, fail};
use crate::files;
use crate::progress::Progress;
use crate::table::bytes as words;
use candle_core::quantized::GgmlDType;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The end of the help of `generate`.
const HELP: &str = "\
Examples:
  octaplex generate --model smollm2.gguf --text story.txt --tokens 1024
  octaplex generate --model smollm2.gguf --prompt \"The capital of France is\" \\
      --k trellis:bits=4 --v turboquant:bits=3

The next token is always the likeliest one, so every run writes the same text.
The text goes to standard output. Its speed and the bytes of the cache follow;
the JSON also has how the bytes grew. The cache compresses nothing before the
first 132 tokens are there, so use a longer prompt to see savings. --beside-f16
runs a second cache in f16 on the same tokens. The two take turns, so a busy
machine slows both. The times are of decoding, without the prompt.

--session FILE keeps all tokens and their compressed cache in FILE. A later run
whose prompt begins with the same tokens computes only the others. If the prompt
differs somewhere, the tokens before that place are kept, if need be only up to
the start of a page. The newest of them may then be compressed, where a new
cache would have them in f16. Model, codecs and layout must be the same. The
run also says how long the prompt would take from an empty cache. This is an
estimate from the session's longest prompt; --beside-fresh measures it.";

/// Arguments of `generate`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Generate {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    codecs: CodecOptions,
    /// Text that the model continues; <|im_start|> and the like are tokens of their own
    #[arg(long, value_name = "TEXT", required_unless_present = "text", conflicts_with = "text")]
    prompt: Option<String>,
    /// Continue the start of this file instead
    #[arg(long, value_name = "FILE", requires = "tokens")]
    text: Option<PathBuf>,
    /// Tokens to read from that file
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// Tokens to write, at most
    #[arg(long, value_name = "N", default_value_t = 128)]
    new: usize,
    /// Also run a cache in f16, to compare speed and bytes
    #[arg(long)]
    beside_f16: bool,
    /// Keep tokens and cache in this file; continue from it if it exists
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    /// Also read the prompt into an empty cache, and time that
    #[arg(long, requires = "session")]
    beside_fresh: bool,
    /// Write speed and bytes as JSON; - is standard output, the text then standard error
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A cache, and its times.
struct Run {
    cache: Cached,
    /// Tokens of the prompt, and those after it.
    tokens: Vec<u32>,
    /// Tokens that a session provided, and the note about them.
    kept: (usize, String),
    /// Time from an empty cache, or a file, to the logits of the first token.
    first: Duration,
    /// Times of each token: in the cache alone, and in all.
    in_cache: Vec<Duration>,
    whole: Vec<Duration>,
}

impl Run {
    /// Creates a cache with the prompt in it, and returns the logits after it.
    fn start(
        arguments: &Generate,
        codecs: &Codecs,
        model: &Model,
        prompt: &[u32],
        session: Option<&mut Session>,
    ) -> Result<(Self, Vec<f32>)> {
        let progress = Progress::new(model.shape.layers, "layers");
        progress.about("reading the prompt");
        let start = Instant::now();
        let saved = session.as_ref().map_or(0, |session| session.tokens());
        let tokens = saved.max(prompt.len() + arguments.new);
        let mut cache = arguments.model.cache(model, codecs, tokens)?;
        let kept = match session {
            Some(session) => session.resume(&mut cache, model.shape.layers, prompt)?,
            None => (0, String::new()),
        };
        let hidden = model.forward(&prompt[kept.0..], &mut cache, || progress.step(1))?;
        let logits = model.logits(&hidden[hidden.len() - model.shape.width..])?;
        let first = start.elapsed();
        let tokens = prompt.to_vec();
        Ok((Self { cache, tokens, kept, first, in_cache: Vec::new(), whole: Vec::new() }, logits))
    }

    /// Returns the tokens of the prompt.
    fn prompt(&self) -> usize {
        self.tokens.len() - self.whole.len()
    }

    /// Returns the logits after one more token.
    fn step(&mut self, model: &Model, token: u32) -> Result<Vec<f32>> {
        let (start, before) = (Instant::now(), self.cache.time());
        let hidden = model.forward(&[token], &mut self.cache, || ())?;
        let logits = model.logits(&hidden);
        self.in_cache.push(self.cache.time() - before);
        self.whole.push(start.elapsed());
        self.tokens.push(token);
        logits
    }
}

/// Returns the median in milliseconds: a busy machine disturbs it less than a mean.
fn median(times: &[Duration]) -> f64 {
    let mut times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the likeliest token.
pub(crate) fn likeliest(logits: &[f32]) -> u32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|logit| *logit == max).unwrap_or(0) as u32
}

/// Tokens between two records of the cache's growth.
const EVERY: usize = 64;

pub(crate) fn run(arguments: &Generate) -> Result<()> {
    let read = arguments.codecs.profile().into_iter().chain(arguments.text.as_deref());
    let inputs = arguments.model.inputs(read);
    let console = Console::beside(&inputs, &[arguments.json.as_deref(), arguments.session.as_deref()])?;
    let codecs = arguments.codecs.codecs()?;
    let model = arguments.model.load()?;
    let codecs = arguments.model.settled(&model, codecs)?;
    let prompt = match (&arguments.prompt, &arguments.text, arguments.tokens) {
        (Some(prompt), _, _) => model.text.encode(prompt)?,
        (None, Some(text), Some(tokens)) => model.text.of_file(text, tokens, "--tokens")?,
        _ => fail!("give --prompt, or --text and --tokens"),
    };
    if prompt.is_empty() {
        fail!("the prompt is empty");
    }
    model.check_context(prompt.len() + arguments.new)?;
    let mut session = match &arguments.session {
        Some(path) => Some(Session::open(path, arguments.model.json_of_session(&model, &codecs))?),
        None => None,
    };
    let (mut main, mut logits) = Run::start(arguments, &codecs, &model, &prompt, session.as_mut())?;
    let mut beside = match arguments.beside_f16 {
        true => Some(Run::start(arguments, &Codecs::f16(), &model, &prompt, None)?.0),
        false => None,
    };
    if let Some(text) = &arguments.prompt {
        console.say(text)?;
    }
    let mut growth = vec![Size::of(&main.cache)];
    let mut pending = Vec::new();
    while main.tokens.len() < prompt.len() + arguments.new {
        let token = likeliest(&logits);
        if model.text.is_last(token) {
            break;
        }
        pending.push(token);
        let text = model.text.decode(&pending);
        if !text.ends_with('\u{fffd}') {
            console.say(&text)?;
            pending.clear();
        }
        logits = main.step(&model, token)?;
        if let Some(beside) = &mut beside {
            beside.step(&model, token)?;
        }
        if main.whole.len() % EVERY == 0 {
            growth.push(Size::of(&main.cache));
        }
    }
    if main.whole.len() % EVERY != 0 {
        growth.push(Size::of(&main.cache));
    }
    let (kept, json_of_session) = match &mut session {
        Some(session) => {
            let bytes = session.save(
                &main.cache,
                &main.tokens,
                Prefill::new(prompt.len() - main.kept.0, main.first),
            )?;
            let fresh = match arguments.beside_fresh {
                true => Some(Run::start(arguments, &codecs, &model, &prompt, None)?.0.first),
                false => None,
            };
            to_first_token(&main, prompt.len(), fresh, session.prefill(), bytes)
        }
        None => (String::new(), Value::Null),
    };
    let text = finish(arguments, &model, &codecs, &main, beside.as_ref(), &growth, json_of_session)?;
    console.say(&format!("{text}{kept}"))
}

/// Reports the time and memory that a session saved, as text and as JSON.
fn to_first_token(
    run: &Run,
    prompt: usize,
    fresh: Option<Duration>,
    longest: Prefill,
    bytes: usize,
) -> (String, Value) {
    let ((kept, note), first) = (&run.kept, run.first.as_secs_f64());
    let read = prompt - kept;
    let (seconds, how) = match fresh {
        Some(fresh) => (fresh.as_secs_f64(), "measured in this run".into()),
        None if read == prompt => (first, "this was one".into()),
        None => {
            let Prefill { tokens, seconds } = longest;
            let from = format!("estimated: the session's longest, {tokens} tokens, took {seconds:.3} s");
            (longest.seconds_for(prompt), from)
        }
    };
    let text = format!(
        "\nsession: {note}; {bytes} bytes written\nfirst token after {first:.3} s, {read} tokens read\n\
         a fresh prefill of all {prompt}: {seconds:.3} s ({how})\n"
    );
    let json = json!({
        "tokens_kept": kept, "tokens_read": read, "bytes": bytes, "seconds_to_first_token": first,
        "seconds_of_a_fresh_prefill": seconds, "fresh_prefill": how,
    });
    (text, json)
}

/// The size of a cache at one time.
struct Size {
    tokens: usize,
    bytes: usize,
    /// Bytes of the same cache in f16.
    in_f16: usize,
    has_pages: bool,
    /// Bits a value of the whole cache, and of its pages alone.
    bits: f64,
    in_pages: f64,
}

impl Size {
    fn of(cache: &Cached) -> Self {
        let stats = cache.stats();
        let (in_f16, has_pages) = (2 * stats.values, stats.paged_tokens > 0);
        let (bits, in_pages) = (stats.bits_per_value(), cache.page_bits());
        Self { tokens: stats.tokens, bytes: stats.bytes, in_f16, has_pages, bits, in_pages }
    }

    /// Describes the growth.
    fn sentence(&self) -> String {
        let Self { tokens, bytes, in_f16, has_pages, bits, in_pages } = *self;
        let (held, exact) = (words(bytes), words(in_f16));
        match has_pages {
            true => {
                let times = in_f16 as f64 / bytes as f64;
                format!(
                    "The cache holds {tokens} tokens in {held}: {times:.1}x smaller than f16, which takes {exact}. \
                     That is {bits:.2} bits a value. In pages it is {in_pages:.2}, which a long context tends to."
                )
            }
            // Exact tokens alone take a little more than in f16, because of the parts that a head has once.
            false => format!(
                "The cache holds {tokens} tokens in {held}, as f16 would: no page has closed yet, so all tokens are exact. A longer \
                 prompt shows the saving: pages take {in_pages:.2} bits a value."
            ),
        }
    }
}

/// Says how long a token took.
fn speed(run: &Run) -> String {
    let (whole, in_cache) = (median(&run.whole), median(&run.in_cache));
    let in_model = whole - in_cache;
    format!(
        "{:.1} tokens a second: {whole:.2} ms a token (median), {in_cache:.2} in the cache and {in_model:.2} in the model's weights",
        1e3 / whole
    )
}

/// Suggests other weights if the present ones take the time.
fn about_weights(run: &Run, weights: GgmlDType) -> String {
    let (whole, in_cache) = (median(&run.whole), median(&run.in_cache));
    let share = 100.0 * (whole - in_cache) / whole.max(f64::MIN_POSITIVE);
    if run.whole.is_empty() || share < 50.0 {
        return String::new();
    }
    let note = match weights {
        GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => {
            "multiplied in f32, 4 bytes a weight: a quantised file of this model is faster (Q4_0, Q8_0, Q4_K_M)"
        }
        GgmlDType::Q4_1 => "multiplied as Q4_0 and minima, which is exact and has vector instructions",
        GgmlDType::Q5_0 | GgmlDType::Q5_1 => {
            "multiplied as Q8_0, a byte a weight: Q4_0 and Q4_K_M are smaller, and have vector instructions too"
        }
        _ => "multiplied by vector instructions, the fast case (Q4_0, Q8_0 and K types)",
    };
    format!(
        "The weights take {share:.0}% of the time, whatever the cache does. They are {weights:?}, {note}.\n"
    )
}

/// Reports time and memory as text, and as JSON in a file.
fn finish(
    arguments: &Generate,
    model: &Model,
    codecs: &Codecs,
    main: &Run,
    beside: Option<&Run>,
    growth: &[Size],
    session: Value,
) -> Result<String> {
    let about = format!("{}\n{}; {}", model.describe(), codecs.describe(), arguments.model.describe());
    let mut said =
        format!("The prompt of {} tokens took {:.1} s.\n", main.prompt(), main.first.as_secs_f64());
    if !main.whole.is_empty() {
        said += &format!("Wrote {} tokens, {}.\n", main.whole.len(), speed(main));
        said += &beside.map_or(String::new(), |beside| format!("With an f16 cache {}.\n", speed(beside)));
    }
    said += &growth.last().map_or(String::new(), |size| format!("{}\n", size.sentence()));
    said += &about_weights(main, model.weights);
    let text = format!("\n\n{}\n\n{}", wrap(&about), wrap(&said));
    if let Some(path) = &arguments.json {
        let times =
            |run: &Run| json!({"ms_per_token": median(&run.whole), "ms_in_cache": median(&run.in_cache)});
        let rows = growth.iter().map(|Size { tokens, bytes, in_f16, .. }| {
            json!({"tokens": tokens, "kv_bytes": bytes, "kv_bytes_f16": in_f16})
        });
        let mut json = arguments.model.json_with_run(model, codecs);
        json["growth"] = rows.collect();
        let (prompt, written) = main.tokens.split_at(main.prompt());
        json["written"] = written.len().into();
        json["tokens"] = json!({ "prompt": prompt, "written": written });
        json["session"] = session;
        json["time"] = times(main);
        json["time_f16"] = beside.map_or(Value::Null, times);
        files::write(path, format!("{json:#}\n").as_bytes())?;
    }
    Ok(text)
}
