//! The kind of model in a file, and its sizes.

use super::gguf::Gguf;
use crate::failure::{Result, shown};
use octaplex::codebook::WIDTHS;

/// The sizes of a model.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Width of the layer between attention and attention.
    pub(crate) feed: usize,
    /// Tokens that the model was trained for.
    pub(crate) context: usize,
    /// Epsilon of its norms.
    pub(crate) epsilon: f32,
    /// `None`: all layers are global.
    pub(crate) local: Option<Local>,
}

/// Layers whose queries see the newest tokens only (Gemma).
#[derive(Clone, Copy)]
pub(crate) struct Local {
    /// The number of tokens that they see, their own included.
    pub(crate) window: usize,
    /// The last of every `period` layers is global.
    pub(crate) period: usize,
}

const ARCHITECTURES: &[&str] = &["llama", "qwen2", "qwen3", "gemma3"];

/// The period of global layers, which Gemma's files leave out.
const GEMMA_PERIOD: usize = 6;

/// Entries that change the results of other families' layers. Where they are 0 or false they change nothing.
const CHANGES: [&str; 8] = [
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
];

/// Returns the architecture's name, if it is a known one.
pub(crate) fn architecture(gguf: &Gguf) -> Result<String> {
    let architecture = gguf.optional_text("general.architecture")?.unwrap_or("").to_owned();
    let (name, known) = (shown(&architecture), ARCHITECTURES.join(", "));
    let has = |part: &str| !gguf.keys(&format!("{architecture}.{part}")).is_empty();
    // Other programs name dozens of these. The file has an entry for each property that they share.
    let experts = gguf.optional_count(&format!("{architecture}.expert_count"))?;
    let kind = if experts.is_some_and(|experts| experts > 0) {
        "is a mixture of experts"
    } else if has("ssm.") || has("wkv.") || has("shortconv.") {
        "has recurrent layers, alone or with attention"
    } else if ARCHITECTURES.contains(&architecture.as_str()) {
        return Ok(architecture);
    } else {
        return gguf.refuse(format!("unknown architecture \"{name}\"; these are known: {known}"));
    };
    gguf.refuse(format!("\"{name}\" {kind}, which is not supported; these are: {known}"))
}

impl Shape {
    /// Reads the sizes in a file of a known architecture.
    pub(crate) fn new(gguf: &Gguf, architecture: &str) -> Result<Self> {
        let gemma = architecture == "gemma3";
        let key = |name: &str| format!("{architecture}.{name}");
        for key in CHANGES.map(key) {
            if let Some(number) = gguf.optional_number(&key)?.filter(|number| *number != 0.0) {
                return gguf.refuse(format!("{key} is {number}, which is not supported"));
            }
        }
        if gguf.optional_bool(&key("attention.causal"))? == Some(false) {
            return gguf.refuse("its tokens see those after them, which is not supported");
        }
        let layers = gguf.count(&key("block_count"))?;
        let width = gguf.count(&key("embedding_length"))?;
        let heads = gguf.count_of_layers(&key("attention.head_count"), layers)?;
        let kv_heads = match gguf.value(&key("attention.head_count_kv")) {
            None => heads,
            Some(_) => gguf.count_of_layers(&key("attention.head_count_kv"), layers)?,
        };
        let head_dim = match gguf.value(&key("attention.key_length")) {
            None if !gemma => width / heads,
            _ => gguf.count(&key("attention.key_length"))?,
        };
        let value_dim = gguf.optional_count(&key("attention.value_length"))?.unwrap_or(head_dim);
        if !heads.is_multiple_of(kv_heads) || head_dim != value_dim {
            return gguf.refuse(format!(
                "{heads} query heads, {kv_heads} key/value heads, keys of {head_dim} and values of {value_dim}"
            ));
        }
        if !WIDTHS.contains(&head_dim) {
            return gguf.refuse(octaplex::Error::Width { actual: head_dim });
        }
        let local = match gemma {
            true => Some(Local {
                window: gguf.count(&key("attention.sliding_window"))?,
                period: match gguf.value(&key("attention.sliding_window_pattern")) {
                    None => GEMMA_PERIOD,
                    Some(_) => gguf.count(&key("attention.sliding_window_pattern"))?,
                },
            }),
            false => None,
        };
        Ok(Self {
            layers,
            width,
            heads,
            kv_heads,
            head_dim,
            feed: gguf.count_of_layers(&key("feed_forward_length"), layers)?,
            context: gguf.count(&key("context_length"))?,
            epsilon: gguf.number(&key("attention.layer_norm_rms_epsilon"))?,
            local,
        })
    }

    /// Returns the number of tokens that queries of a layer see, their own included; `None` for all.
    pub(crate) fn window(&self, layer: usize) -> Option<usize> {
        self.local.filter(|local| !(layer + 1).is_multiple_of(local.period)).map(|local| local.window)
    }
}
