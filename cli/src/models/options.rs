//! What the commands on models have in common: the model, and the cache in its loop.

use super::attention::Cached;
use super::forward::Model;
use crate::compare::{center_name, parse_center, parse_page};
use crate::failure::{At, Result, parse_spec};
use clap::Args;
use octaplex::{Backend, CacheConfig, Center, CodecSpec, KvCache, LayerConfig};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The model and how its cache is laid out; which codecs, each command says.
#[derive(Args, Clone)]
pub(crate) struct ModelOptions {
    /// A language model: a GGUF file of the families Llama, Qwen2 or Qwen3
    #[arg(long, value_name = "GGUF")]
    pub(crate) model: PathBuf,
    /// Tokens of a page: 64, 128 or 256
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = parse_page)]
    page: usize,
    /// First tokens that stay exact
    #[arg(long, value_name = "TOKENS", default_value_t = 4)]
    sinks: usize,
    /// Newest tokens that stay exact
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    window: usize,
    /// So many layers at each end stay in f16
    #[arg(long, value_name = "LAYERS", default_value_t = 0)]
    boundary: usize,
    /// Tokens of a prompt that are appended at once; by default up to the next page that closes, so that every token
    /// sees what it would see in decoding
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    block: Option<u32>,
    /// Instructions to use; `octaplex backends` lists them
    #[arg(long, value_name = "NAME", value_parser = crate::parse_backend)]
    backend: Option<Backend>,
}

/// The codecs of a cache, and what is done to keys before.
#[derive(Args, Clone)]
pub(crate) struct CodecOptions {
    /// Codec of keys
    #[arg(long, value_name = "SPEC", default_value = "turboquant", value_parser = spec)]
    pub(crate) k: CodecSpec,
    /// Codec of values
    #[arg(long, value_name = "SPEC", default_value = "turboquant", value_parser = spec)]
    pub(crate) v: CodecSpec,
    /// Subtract from keys: off, prefix or page
    #[arg(long, value_name = "WHAT", default_value = "page", value_parser = parse_center)]
    pub(crate) center: Center,
    /// Balance the channels of keys
    #[arg(long)]
    pub(crate) balance: bool,
}

fn spec(text: &str) -> std::result::Result<CodecSpec, String> {
    parse_spec(text).map_err(|failure| failure.0)
}

impl CodecOptions {
    /// Nothing compressed.
    pub(crate) fn f16() -> Self {
        let f16 = CodecSpec::F16(Default::default());
        Self { k: f16, v: f16, center: Center::Off, balance: false }
    }

    pub(crate) fn is_f16(&self) -> bool {
        [self.k, self.v].iter().all(|spec| matches!(spec, CodecSpec::F16(_)))
    }

    /// In a line.
    pub(crate) fn describe(&self) -> String {
        if self.is_f16() {
            return "keys and values f16".into();
        }
        let balance = if self.balance { ", balanced" } else { "" };
        let keys = match self.k {
            CodecSpec::F16(_) | CodecSpec::Bf16(_) | CodecSpec::F32(_) => String::new(),
            _ => format!(", centre {}{balance}", center_name(self.center)),
        };
        format!("keys {}{keys}; values {}", self.k, self.v)
    }
}

impl ModelOptions {
    pub(crate) fn backend(&self) -> Backend {
        self.backend.unwrap_or_else(Backend::detect)
    }

    pub(crate) fn load(&self) -> Result<Model> {
        Model::load(&self.model)
    }

    /// An empty cache for so many tokens.
    pub(crate) fn cache(&self, model: &Model, codecs: &CodecOptions, tokens: usize) -> Result<Cached> {
        let shape = &model.shape;
        let config = CacheConfig {
            layers: shape.layers,
            boundary_layers: self.boundary,
            each: LayerConfig {
                keys: codecs.k,
                values: codecs.v,
                page: self.page,
                sink_tokens: self.sinks,
                recent_window: self.window,
                center: codecs.center,
                balance: codecs.balance,
                max_rollback: 0,
                ..LayerConfig::new(
                    shape.kv_heads,
                    shape.head_dim,
                    tokens.max(self.sinks.saturating_add(self.window)).saturating_add(self.page),
                )
            },
        };
        let cache = KvCache::new(config.layers(), self.backend()).at(codecs.describe())?;
        Ok(Cached::new(cache, shape, self.block.map(|block| block as usize)))
    }

    /// The layout of the cache, in words.
    pub(crate) fn describe(&self) -> String {
        let Self { page, sinks, window, boundary, .. } = self;
        let boundary = match boundary {
            0 => String::new(),
            layers => format!(", {layers} layers at each end in f16"),
        };
        format!("pages of {page}, {sinks} sinks, window {window}{boundary}")
    }

    /// What a row of results was measured with.
    pub(crate) fn json(&self, model: &Model, codecs: &CodecOptions) -> Value {
        json!({
            "model": model.name, "model_bytes": model.bytes, "k": codecs.k.to_string(), "v": codecs.v.to_string(),
            "center": center_name(codecs.center), "balance": codecs.balance, "page": self.page,
            "sinks": self.sinks, "window": self.window, "boundary": self.boundary, "block": self.block,
        })
    }
}
