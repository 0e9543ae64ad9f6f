//! `needle`: hides values in a long text, and asks for them by name.

use super::attention::Cached;
use super::forward::Model;
use super::generate::likeliest;
use super::options::{CodecOptions, Codecs, ModelOptions};
use crate::console::{Console, wrap};
use crate::failure::{Result, fail};
use crate::files;
use crate::progress::Progress;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// The end of the help of `needle`.
const HELP: &str = "\
Example:
  octaplex needle --model qwen.gguf --text wikitext2_raw_test.txt --k trellis \\
      --v trellis --tokens 2048,4096

As in the OCTOPUS paper's appendix H: a text with five sentences \"The magic
value for NAME is VALUE.\" at depths 0, 1/4, 1/2, 3/4 and 1, each VALUE eight
random letters and digits. After it, the model is asked for each NAME, every
time from the same cache (a fork), with the other four as distractors. An answer
counts if it begins with VALUE, exactly.";

/// Arguments of `needle`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Needle {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    codecs: CodecOptions,
    /// The text to hide values in
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Tokens of the context
    #[arg(long, value_name = "N,N,…", default_value = "2048,4096,8192", value_delimiter = ',')]
    tokens: Vec<usize>,
    /// Values hidden in each text
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=16))]
    needles: u8,
    /// Texts of each length, with values of their own
    #[arg(long, value_name = "N", default_value_t = 1)]
    texts: usize,
    /// Seed of the random values
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write the results as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The generator SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }
}

const NAMES: [&str; 16] = [
    "amber", "basalt", "cedar", "delta", "ember", "falcon", "garnet", "harbor", "indigo", "juniper", "kelp",
    "lagoon", "marble", "nectar", "orchid", "pebble",
];

/// A text with needles.
struct Haystack {
    tokens: Vec<u32>,
    /// (name, value)
    needles: Vec<(&'static str, String)>,
}

/// The most tokens of an answer, and the tokens that are reserved for the question.
const ANSWER: usize = 16;
const QUESTION: usize = 32;

impl Haystack {
    /// Returns `length` tokens of `text` with the needles among them.
    fn new(model: &Model, text: &[u32], length: usize, needles: usize, random: &mut Random) -> Result<Self> {
        let mut names = NAMES.to_vec();
        let needles: Vec<_> = (0..needles)
            .map(|_| {
                let name = names.swap_remove(random.below(names.len()));
                let letters = b"abcdefghijklmnopqrstuvwxyz0123456789";
                (name, (0..8).map(|_| char::from(letters[random.below(letters.len())])).collect::<String>())
            })
            .collect();
        let sentences = needles.iter().map(|(name, value)| {
            model.text.encode_part(&format!("\nThe magic value for {name} is {value}.\n"))
        });
        let sentences = sentences.collect::<Result<Vec<_>>>()?;
        let hay = length.saturating_sub(sentences.iter().map(Vec::len).sum());
        if hay > text.len() || hay < needles.len() {
            fail!("{} tokens of text for a context of {length}", text.len());
        }
        let before = model.text.before();
        let (mut tokens, mut from) = (text[..before].to_vec(), before);
        for (index, sentence) in sentences.iter().enumerate() {
            let to = before + (hay - before) * index / (sentences.len() - 1);
            tokens.extend(&text[from..to]);
            tokens.extend(sentence);
            from = to;
        }
        Ok(Self { tokens, needles })
    }

    /// Returns for each needle whether the model found it.
    fn ask(&self, model: &Model, mut cache: Cached, progress: &Progress) -> Result<Vec<bool>> {
        model.forward(&self.tokens, &mut cache, || progress.step(1))?;
        let mut found = Vec::new();
        for (name, value) in &self.needles {
            let mut cache = cache.fork();
            let mut next = model.text.encode_part(&format!(
                "\nQuestion: What is the magic value for {name}?\nAnswer: The magic value for {name} is"
            ))?;
            let mut answer = Vec::new();
            while answer.len() < ANSWER {
                let hidden = model.forward(&next, &mut cache, || ())?;
                let token = likeliest(&model.logits(&hidden[hidden.len() - model.shape.width..])?);
                answer.push(token);
                next = vec![token];
            }
            found.push(model.text.decode(&answer).trim_start().starts_with(value.as_str()));
        }
        Ok(found)
    }
}

pub(crate) fn run(arguments: &Needle) -> Result<()> {
    let options = &arguments.model;
    let inputs = options.inputs(arguments.codecs.profile().into_iter().chain([arguments.text.as_path()]));
    let console = Console::beside(&inputs, &[arguments.json.as_deref()])?;
    let codecs = arguments.codecs.codecs()?;
    let model = options.load()?;
    let codecs = options.settled(&model, codecs)?;
    let longest = arguments.tokens.iter().copied().max().unwrap_or(0);
    if arguments.texts == 0 || arguments.tokens.iter().any(|tokens| *tokens < 256) {
        fail!("--tokens and --texts: at least 256 tokens and one text");
    }
    model.check_context(longest)?;
    let text = model.text.of_file(&arguments.text, longest, "--tokens")?;
    let caches = [Codecs::f16(), codecs.clone()];
    let runs = if codecs.is_f16() { &caches[..1] } else { &caches[..] };
    let progress =
        Progress::new(arguments.tokens.len() * arguments.texts * runs.len() * model.shape.layers, "layers");
    let mut rows = Vec::new();
    for &tokens in &arguments.tokens {
        let mut recalls = vec![Vec::new(); runs.len()];
        for number in 0..arguments.texts {
            let mut random = Random(arguments.seed ^ (number as u64) << 32 ^ tokens as u64);
            let haystack = Haystack::new(&model, &text, tokens, arguments.needles.into(), &mut random)?;
            for (codecs, recall) in runs.iter().zip(&mut recalls) {
                progress.about(&format!("{tokens} tokens, {}", codecs.describe()));
                let cache = options.cache(&model, codecs, tokens + QUESTION + ANSWER)?;
                recall.extend(haystack.ask(&model, cache, &progress)?);
            }
        }
        rows.push((tokens, recalls));
    }
    drop(progress);
    let share = |found: &[bool]| found.iter().filter(|found| **found).count() as f64 / found.len() as f64;
    let about = format!(
        "{}\n{} values in each of {} texts, exact match\n{}; {}",
        model.describe(),
        arguments.needles,
        arguments.texts,
        codecs.describe(),
        options.describe()
    );
    let mut text = format!("{}\n\n   context   f16 cache  compressed\n", wrap(&about));
    for (tokens, recalls) in &rows {
        let last = recalls.last().map_or(0.0, |recall| share(recall));
        text += &format!("{tokens:>10} {:>11.2} {last:>11.2}\n", share(&recalls[0]));
    }
    if let Some(path) = &arguments.json {
        let rows = rows.iter().map(|(tokens, recalls)| {
            let recall = recalls.last().map(|recall| share(recall));
            json!({"tokens": tokens, "recall_f16": share(&recalls[0]), "recall": recall, "asked": recalls[0].len()})
        });
        let mut json = options.json_with_run(&model, &codecs);
        json["rows"] = rows.collect();
        files::write(path, format!("{json:#}\n").as_bytes())?;
    }
    console.say(&text)
}
