//! Runs candle-transformers' quantised Qwen2 with the compressed cache instead of its own.
//!
//! `model.rs` is that crate's file with 41 changed lines, counting removed and added ones; most contain
//! `octaplex`. Both models continue the same text in turn.
//!
//! ```sh
//! cargo run --release -p octaplex-candle --features rayon --example qwen2 -- qwen2.5-0.5b.gguf text.txt 2048 64
//! ```
#![allow(missing_docs)]

#[allow(unreachable_pub, dead_code)]
#[rustfmt::skip] // as candle-transformers has it, so that a diff shows what is changed
mod model;

use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::{D, Device, Error, Result, Tensor, bail};
use model::ModelWeights;
use std::fs::File;
use std::time::Instant;
use tokenizers::Tokenizer;

/// A model, the tokens that it has written, and the times of the prompt and of each token.
struct Run {
    model: ModelWeights,
    tokens: Vec<u32>,
    prefill: f64,
    each: Vec<f64>,
}

impl Run {
    /// Reads a prompt.
    fn start(mut model: ModelWeights, prompt: &[u32]) -> Result<Self> {
        let start = Instant::now();
        let logits = model.forward(&Tensor::new(prompt, &Device::Cpu)?.unsqueeze(0)?, 0)?;
        let tokens = vec![likeliest(&logits)?];
        Ok(Self { model, tokens, prefill: start.elapsed().as_secs_f64(), each: Vec::new() })
    }

    /// Runs the model on a token at a position and returns the logits. The likeliest next token is the
    /// run's own.
    fn step(&mut self, token: u32, position: usize) -> Result<()> {
        let start = Instant::now();
        let logits = self.model.forward(&Tensor::new(&[token], &Device::Cpu)?.unsqueeze(0)?, position)?;
        self.each.push(start.elapsed().as_secs_f64());
        self.tokens.push(likeliest(&logits)?);
        Ok(())
    }

    /// Returns the median in milliseconds.
    fn ms(&self) -> f64 {
        let mut each = self.each.clone();
        each.sort_by(f64::total_cmp);
        1e3 * each.get(each.len() / 2).copied().unwrap_or(0.0)
    }
}

fn likeliest(logits: &Tensor) -> Result<u32> {
    logits.argmax(D::Minus1)?.squeeze(0)?.to_scalar()
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, prompt, new] = &arguments[..] else {
        bail!("give MODEL.gguf TEXT.txt, tokens of the text to read, and tokens to write");
    };
    let (prompt, new) = match (prompt.parse::<usize>(), new.parse::<usize>()) {
        (Ok(prompt @ 1..), Ok(new)) => (prompt, new),
        _ => bail!("{prompt} and {new} are not numbers of tokens"),
    };
    let mut file = File::open(model)?;
    let content = Content::read(&mut file)?;
    let tokenizer = Tokenizer::from_gguf(&content)?;
    let encoding = tokenizer.encode_fast(std::fs::read_to_string(text)?, false).map_err(Error::msg)?;
    let Some(prompt) = encoding.get_ids().get(..prompt) else {
        bail!("{text} has {} tokens only", encoding.get_ids().len());
    };
    let mut compressed = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let own = compressed.clone(); // shares the weights
    let four_bits = "turboquant".parse::<octaplex_candle::CodecSpec>().map_err(Error::wrap)?; // docs/peers.md has its times
    compressed.compress(|each| each.keys(four_bits).values(four_bits))?;
    let mut own = Run::start(own, prompt)?;
    let mut compressed = Run::start(compressed, prompt)?;
    // Both read the tokens of candle's own cache, so that both predict after the same tokens.
    for number in 0..new {
        let (token, position) = (own.tokens[number], prompt.len() + number);
        own.step(token, position)?;
        compressed.step(token, position)?;
    }
    let same = own.tokens.iter().zip(&compressed.tokens).filter(|(a, b)| a == b).count();
    println!("{}", tokenizer.decode(&own.tokens, true).map_err(Error::msg)?);
    println!("\n{same} of {} tokens are the same", own.tokens.len());
    let stats = compressed.model.stats();
    println!("            prefill s   ms a token   bytes of the cache");
    println!("candle      {:>9.2} {:>12.2} {:>20}", own.prefill, own.ms(), 4 * stats.values);
    println!("octaplex    {:>9.2} {:>12.2} {:>20}", compressed.prefill, compressed.ms(), stats.bytes);
    println!("in f16: {} bytes", 2 * stats.values);
    Ok(())
}
