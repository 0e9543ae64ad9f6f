//! Options that the commands on models share: the model, and its cache.

use super::attention::Cached;
use super::forward::Model;
use super::gguf::files_of;
use super::profiles::{Pair, all_layers, read_profile};
use super::shape::Shape;
use crate::codecs::{for_bits, is_float, parse_budget, parse_spec, recommended, shown_spec, too_few};
use crate::failure::{At, Result, first_line};
use crate::keys::{KeyOptions, Keys, center_name, parse_page};
use crate::provenance;
use clap::Args;
use octaplex::cache::Finer;
use octaplex::codecs::PAGE;
use octaplex::{Backend, CacheConfig, CodecSpec, Error, LayerConfig, Profile};
use octaplex_candle::KvCache;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tokens of a prompt that decide the balance by default.
pub(crate) const CALIBRATION: usize = 256;

/// The model and the layout of its cache. Each command adds the codecs.
#[derive(Args, Clone)]
pub(crate) struct ModelOptions {
    /// A language model: a GGUF file of the families Llama, Qwen2, Qwen3 or Gemma 3
    #[arg(long, value_name = "GGUF")]
    pub(crate) model: PathBuf,
    /// Tokens of a page: 64, 128 or 256
    #[arg(long, value_name = "TOKENS", default_value_t = PAGE, value_parser = parse_page)]
    page: usize,
    /// First tokens that stay exact
    #[arg(long, value_name = "TOKENS", default_value_t = 4)]
    sinks: usize,
    /// Newest tokens that stay exact
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    window: usize,
    /// n: the first n and the last n layers stay in f16
    #[arg(long, value_name = "LAYERS", default_value_t = 0)]
    boundary: usize,
    /// Tokens of a prompt that are appended at once; by default up to the next page that closes, so that every token
    /// sees what it would see in decoding
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    block: Option<u32>,
    /// Balance keys by the first N tokens of a prompt, their keys and queries; 0: by the first page's keys alone
    #[arg(long, value_name = "TOKENS", default_value_t = CALIBRATION)]
    calibrate: usize,
    /// Instructions to use; `octaplex info` lists them
    #[arg(long, value_name = "NAME", value_parser = crate::backend::parse)]
    backend: Option<Backend>,
}

/// The arguments of a cache's codecs.
#[derive(Args)]
pub(crate) struct CodecOptions {
    /// Codec of keys [default: graded:bits=3, or trellis:bits=3 at widths that graded does not support]
    #[arg(long, value_name = "SPEC", value_parser = spec)]
    k: Option<CodecSpec>,
    /// Codec of values [default: trellis:bits=3]
    #[arg(long, value_name = "SPEC", value_parser = spec)]
    v: Option<CodecSpec>,
    /// Instead of --k and --v: choose the most accurate codecs with at most this many bits a value in pages
    #[arg(long, value_name = "BITS", conflicts_with_all = ["k", "v"], value_parser = parse_budget)]
    budget: Option<f64>,
    /// A profile of this model, from octaplex calibrate: it spends the budget where the model needs it
    #[arg(long, value_name = "FILE", requires = "budget")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyOptions,
}

fn spec(text: &str) -> std::result::Result<CodecSpec, String> {
    parse_spec(text).map_err(|failure| failure.0)
}

impl CodecOptions {
    /// Reads the file of --profile.
    pub(crate) fn profile(&self) -> Option<&Path> {
        self.profile.as_deref()
    }

    pub(crate) fn codecs(&self) -> Result<Codecs> {
        let (f16, keys) = (Codecs::f16(), self.keys.keys()?);
        Ok(Codecs {
            k: self.k.unwrap_or(f16.k),
            v: self.v.unwrap_or(f16.v),
            open: [self.k.is_none(), self.v.is_none()],
            finer: None,
            layers: None,
            budget: self.budget,
            profile: self.profile.as_deref().map(read_profile).transpose()?,
            keys,
        })
    }
}

/// The codecs of a cache, and the preparation of keys.
#[derive(Clone)]
pub(crate) struct Codecs {
    pub(crate) k: CodecSpec,
    pub(crate) v: CodecSpec,
    /// Keys or values take the recommended codec, once the model is known: [`ModelOptions::settled`].
    open: [bool; 2],
    /// Layers with other codecs.
    finer: Option<Finer>,
    /// Codecs of each layer, in place of all these.
    layers: Option<Arc<[Pair]>>,
    /// Bits that decide all of this once the model is known, and the profile that spends them.
    budget: Option<f64>,
    profile: Option<Arc<Profile>>,
    pub(crate) keys: Keys,
}

impl Codecs {
    /// Returns exact codecs.
    pub(crate) fn f16() -> Self {
        let f16 = CodecSpec::F16(Default::default());
        Self::of(f16, f16, Keys::RAW)
    }

    /// Returns these codecs for all layers.
    pub(crate) fn of(k: CodecSpec, v: CodecSpec, keys: Keys) -> Self {
        Self { k, v, open: [false; 2], finer: None, layers: None, budget: None, profile: None, keys }
    }

    /// Returns each layer's own codecs.
    pub(crate) fn of_layers(layers: Vec<Pair>, keys: Keys) -> Self {
        let f16 = Codecs::f16();
        Self { layers: Some(layers.into()), ..Self::of(f16.k, f16.v, keys) }
    }

    /// Returns the most accurate codecs within `bits` bits a value.
    pub(crate) fn within(bits: f64, profile: Option<Arc<Profile>>, keys: Keys) -> Self {
        Self { budget: Some(bits), profile, ..Self::of(Codecs::f16().k, Codecs::f16().v, keys) }
    }

    pub(crate) fn is_f16(&self) -> bool {
        self.budget.is_none()
            && self.layers.is_none()
            && self.open == [false; 2]
            && [self.k, self.v].iter().all(|spec| matches!(spec, CodecSpec::F16(_)))
    }

    /// Sets the first layers, which are exact.
    pub(crate) fn exact_layers(&self) -> usize {
        let f16 = CodecSpec::F16(Default::default());
        let layers = self.layers.iter().flat_map(|layers| layers.iter());
        layers.take_while(|pair| **pair == [f16; 2]).count()
    }

    /// Describes the codecs in a line.
    pub(crate) fn describe(&self) -> String {
        if let Some(layers) = &self.layers {
            let [k, v] = all_layers(layers);
            return format!("keys {k}, {}; values {v}", self.keys.describe());
        }
        let (k, v) = (shown_spec(self.k), shown_spec(self.v));
        let all = match (self.is_f16(), is_float(self.k)) {
            (true, _) => "keys and values f16".into(),
            (false, true) => format!("keys {k}; values {v}"),
            (false, false) => format!("keys {k}, {}; values {v}", self.keys.describe()),
        };
        let finer = self.finer.map(|Finer { layers, keys, values }| {
            format!("; in {layers} layers {} and {}", shown_spec(keys), shown_spec(values))
        });
        all + &finer.unwrap_or_default()
    }

    /// Joins a codec of all layers and that of some.
    fn name(all: CodecSpec, finer: Option<(usize, CodecSpec)>) -> String {
        match finer {
            Some((layers, spec)) if spec != all => format!("{all}, {layers} layers {spec}"),
            _ => all.to_string(),
        }
    }
}

impl ModelOptions {
    pub(crate) fn backend(&self) -> Backend {
        self.backend.unwrap_or_else(Backend::detect)
    }

    /// Returns the model's files, and others that a command reads.
    pub(crate) fn inputs<'a>(&self, others: impl IntoIterator<Item = &'a Path>) -> Vec<PathBuf> {
        let mut all = files_of(&self.model);
        all.extend(others.into_iter().map(Path::to_owned));
        all
    }

    pub(crate) fn load(&self) -> Result<Model> {
        Model::load(&self.model)
    }

    /// Resolves a budget, or the default codecs, for this model. Other codecs stay as they are.
    pub(crate) fn settled(&self, model: &Model, codecs: Codecs) -> Result<Codecs> {
        let Some(bits) = codecs.budget else {
            let [k, v] = recommended(model.shape.head_dim).map(parse_spec);
            let of = |open, usual: Result<CodecSpec>, given| if open { usual } else { Ok(given) };
            let [open_k, open_v] = codecs.open;
            return Ok(Codecs {
                k: of(open_k, k, codecs.k)?,
                v: of(open_v, v, codecs.v)?,
                open: [false; 2],
                ..codecs
            });
        };
        let config = self.config_of(model);
        if let Some(profile) = &codecs.profile {
            let layers = profile.solve(&config, bits).or_else(|error| match error {
                Error::Unsupported { .. } => {
                    too_few(config, bits, &error, |bits| profile.solve(&config, bits).is_ok())
                }
                error => Err(error).at("--profile"),
            })?;
            let pairs = layers.iter().map(|layer| [layer.keys, layer.values]).collect();
            return Ok(Codecs::of_layers(pairs, codecs.keys));
        }
        let config = for_bits(config, bits)?;
        let CacheConfig { each, finer, .. } = config;
        Ok(Codecs { k: each.keys, v: each.values, open: [false; 2], finer, budget: None, ..codecs })
    }

    /// Returns the configuration that decides how many bits a page takes.
    pub(crate) fn config_of(&self, model: &Model) -> CacheConfig {
        let Shape { layers, kv_heads, head_dim, .. } = model.shape;
        let config = CacheConfig::new(layers, kv_heads, head_dim, 1 << 20).boundary_layers(self.boundary);
        config.each(config.each.page(self.page))
    }

    /// Creates an empty cache for `tokens` tokens.
    pub(crate) fn cache(&self, model: &Model, codecs: &Codecs, tokens: usize) -> Result<Cached> {
        let shape = &model.shape;
        let capacity = tokens.max(self.sinks.saturating_add(self.window)).saturating_add(self.page);
        let each = LayerConfig::new(shape.kv_heads, shape.head_dim, capacity)
            .keys(codecs.k)
            .values(codecs.v)
            .page(self.page)
            .sink_tokens(self.sinks)
            .recent_window(self.window)
            .max_rollback(0) // nothing here drafts
            .center(codecs.keys.center)
            .balance(codecs.keys.balance);
        let mut config = CacheConfig::new(shape.layers, shape.kv_heads, shape.head_dim, capacity)
            .boundary_layers(self.boundary)
            .each(each);
        config.finer = codecs.finer;
        let own = |number: usize, layer: LayerConfig| match &codecs.layers {
            Some(layers) => layer.keys(layers[number][0]).values(layers[number][1]),
            None => layer,
        };
        let layers = config.layers().enumerate().map(|(number, layer)| (number, own(number, layer)));
        let layers = layers.map(|(number, layer)| match shape.window(number) {
            Some(window) => layer.sliding_window(window),
            None => layer,
        });
        let block = self.block.map(|block| block as usize);
        let layers = layers.map(|layer| {
            let cache = KvCache::with_backend(&layer, self.backend())?.calibration(self.calibrate);
            Ok(match block {
                Some(block) => cache.max_append(block),
                None => cache,
            })
        });
        let layers: candle_core::Result<Vec<_>> = layers.collect();
        Ok(Cached::new(layers.map_err(|error| first_line(&error)).at(codecs.describe())?, block))
    }

    /// Describes the layout of the cache.
    pub(crate) fn describe(&self) -> String {
        let Self { page, sinks, window, boundary, calibrate, .. } = self;
        let boundary = match boundary {
            0 => String::new(),
            layers => format!(", {layers} layers at each end in f16"),
        };
        let calibrate = if *calibrate == 0 { ", balance from keys alone" } else { "" };
        format!("pages of {page}, {sinks} sinks, window {window}{boundary}{calibrate}")
    }

    /// Returns the settings of a row of results.
    pub(crate) fn json(&self, model: &Model, codecs: &Codecs) -> Value {
        let finer = codecs.finer;
        let k = Codecs::name(codecs.k, finer.map(|finer| (finer.layers, finer.keys)));
        let v = Codecs::name(codecs.v, finer.map(|finer| (finer.layers, finer.values)));
        let [k, v] = codecs.layers.as_deref().map_or([k, v], all_layers);
        let mut json = json!({
            "model": model.name, "model_bytes": model.bytes, "k": k, "v": v,
            "center": center_name(codecs.keys.center), "balance": codecs.keys.balance, "page": self.page,
            "sinks": self.sinks, "window": self.window, "boundary": self.boundary, "block": self.block,
            "calibrate": self.calibrate,
        });
        if let Some(layers) = &codecs.layers {
            json["layers"] = layers.iter().map(|[k, v]| format!("{k}/{v}")).collect();
        }
        json
    }

    /// Returns the settings that all runs of a session share.
    pub(crate) fn json_of_session(&self, model: &Model, codecs: &Codecs) -> Value {
        let mut json = self.json(model, codecs);
        json["weights"] = model.checksum.into();
        json
    }

    /// Returns the same for a file of its own, with the origin of the numbers.
    pub(crate) fn json_with_run(&self, model: &Model, codecs: &Codecs) -> Value {
        let mut json = self.json(model, codecs);
        json["run"] = provenance::json(&self.model.display().to_string(), self.backend(), json!({}));
        json
    }
}
