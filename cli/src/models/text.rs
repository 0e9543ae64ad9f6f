//! Converts text to tokens and back, with the tokenizer of a GGUF file.

use super::gguf::Gguf;
use super::sentencepiece;
use crate::failure::{Failure, Result, fail, first_line, shown};
use crate::files;
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use std::path::Path;
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

/// Converts text to tokens and back.
pub(crate) struct Text {
    tokenizer: Tokenizer,
    /// The token before every text, for models that were trained so.
    first: Option<u32>,
    /// Tokens that end the model's text.
    last: Vec<u32>,
}

/// Llama 3 splits words like Qwen2, and digits in groups of up to three.
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Text {
    /// Reads the tokenizer of a model whose embedding has `vocabulary` tokens.
    pub(crate) fn new(gguf: &Gguf, vocabulary: usize) -> Result<Self> {
        let token = |key: &str| match gguf.optional_count(key)? {
            Some(token) if token >= vocabulary => {
                gguf.refuse(format!("{key} is {token}, of {vocabulary} tokens"))
            }
            token => Ok(token.map(|token| token as u32)),
        };
        let (begin, end) = ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id");
        let (add, begin_id, end_id) =
            (gguf.optional_bool("tokenizer.ggml.add_bos_token")?, token(begin)?, token(end)?);
        let (tokenizer, starts) = match gguf.optional_text("tokenizer.ggml.model")? {
            Some("gpt2") => byte_level(gguf)?,
            Some("llama") => (sentencepiece::tokenizer(gguf)?, true),
            Some(other) => {
                return gguf.refuse(format!(
                    "its tokenizer is \"{}\"; byte-level ones (gpt2) and SentencePiece's (llama) are supported",
                    shown(other)
                ));
            }
            None => return gguf.refuse("no tokenizer in it"),
        };
        if tokenizer.get_vocab_size(true) > vocabulary {
            let tokens = tokenizer.get_vocab_size(true);
            return gguf.refuse(format!("{tokens} tokens, but an embedding of {vocabulary}"));
        }
        let first = match (add, begin_id) {
            (Some(true), None) => return gguf.refuse(format!("no {begin}, which begins every text")),
            (given, first) => first.filter(|_| given.unwrap_or(starts)),
        };
        let ends = ["<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>"];
        let last = ends.iter().filter_map(|end| tokenizer.token_to_id(end));
        let last = last.chain(end_id).collect();
        Ok(Self { tokenizer, first, last })
    }

    /// Returns the tokens of a text from its start, with those that the model needs before it.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.first.into_iter().chain(self.encode_part(text)?).collect())
    }

    /// Returns the tokens of a text in the middle of another.
    pub(crate) fn encode_part(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_fast(text, false);
        Ok(encoding.map_err(|error| Failure(first_line(&error)))?.get_ids().to_vec())
    }

    /// Returns the tokens before every text.
    pub(crate) fn before(&self) -> usize {
        usize::from(self.first.is_some())
    }

    pub(crate) fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, true).unwrap_or_default()
    }

    pub(crate) fn is_last(&self, token: u32) -> bool {
        self.last.contains(&token)
    }

    /// Returns the first `count` tokens of a file; `asked` names the option of the count.
    pub(crate) fn of_file(&self, path: &Path, count: usize, asked: &str) -> Result<Vec<u32>> {
        let tokens = self.start_of_file(path, count)?;
        if tokens.len() < count {
            let (name, found) = (files::name(path), tokens.len());
            fail!("{name}: {found} tokens, but {count} are needed: give a longer text, or less with {asked}");
        }
        Ok(tokens)
    }

    /// Returns the first `most` tokens of a file, or all of a shorter one.
    pub(crate) fn start_of_file(&self, path: &Path, most: usize) -> Result<Vec<u32>> {
        let text = files::text(path, files::read(path)?)?;
        let mut tokens = self.encode(&text)?;
        tokens.truncate(most);
        Ok(tokens)
    }
}

/// Returns a byte-level tokenizer with the rule that its name stands for, and whether a token begins every text if the file
/// does not say so.
fn byte_level(gguf: &Gguf) -> Result<(Tokenizer, bool)> {
    // Candle ignores entries of other types.
    gguf.optional_list("tokenizer.ggml.token_type")?;
    let tokenizer = Tokenizer::from_gguf(&gguf.content);
    let mut tokenizer =
        tokenizer.or_else(|error| gguf.refuse(format!("its tokenizer: {}", first_line(&error))))?;
    let bytes = |words: bool| PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, words));
    // The file names the rule that cuts text into words, and does not contain it.
    let name = gguf.optional_text("tokenizer.ggml.pre")?;
    let is_llama3 = matches!(name, Some("llama3" | "llama-v3" | "llama-bpe"));
    let words = match name {
        Some("qwen2") => None,
        Some("smollm") => Some(vec![PreTokenizerWrapper::Digits(Digits::new(true)), bytes(true)]),
        Some("gpt-2" | "default") | None => Some(vec![bytes(true)]),
        _ if is_llama3 => {
            let pattern = SplitPattern::Regex(LLAMA3.into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            let split = split.map_err(|error| Failure(first_line(&error)))?;
            Some(vec![PreTokenizerWrapper::Split(split), bytes(false)])
        }
        Some(other) => {
            return gguf.refuse(format!(
                "its tokenizer cuts words by \"{}\"; qwen2, smollm, gpt-2 and llama-bpe are supported",
                shown(other)
            ));
        }
    };
    if let Some(words) = words {
        tokenizer.with_pre_tokenizer(Some(Sequence::new(words)));
    }
    // Words that are tokens are taken whole, even if no merges lead to them.
    if let (true, ModelWrapper::BPE(model)) = (is_llama3, tokenizer.get_model()) {
        let mut model = model.clone();
        model.ignore_merges = true;
        tokenizer.with_model(model);
    }
    Ok((tokenizer, is_llama3))
}
