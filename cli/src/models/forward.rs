//! The forward pass of Llama, Qwen2, Qwen3 and Gemma 3: layer by layer over all tokens given, so that a weight is decoded once.

use super::attention::Attention;
use super::gguf::Gguf;
use super::matrix::{Dense, Matrix, check_finite};
use super::rope::{Rope, Scaling};
use super::shape::{self, Local, Shape};
use super::text::Text;
use crate::failure::{Failure, Result, fail, first_line, shown};
use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use std::path::Path;

/// A linear layer: x·Wᵀ + b.
struct Linear {
    weight: Matrix,
    bias: Option<Vec<f32>>,
}

struct Layer {
    attention_norm: Vec<f32>,
    queries: Linear,
    keys: Linear,
    values: Linear,
    /// Norms of each head, before the rotary embedding (Qwen3, Gemma).
    query_norm: Option<Vec<f32>>,
    key_norm: Option<Vec<f32>>,
    output: Linear,
    /// Norms of the outputs of attention and of the feed-forward part, before the sum (Gemma).
    after_attention: Option<Vec<f32>>,
    after_feed: Option<Vec<f32>>,
    feed_norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// A language model.
pub(crate) struct Model {
    pub(crate) name: String,
    /// Size of the file: it tells the same model's quantisations apart.
    pub(crate) bytes: u64,
    /// Checksum of header and weights.
    pub(crate) checksum: u32,
    /// The type of most weights.
    pub(crate) weights: GgmlDType,
    pub(crate) shape: Shape,
    pub(crate) text: Text,
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// `None`: the embedding, transposed.
    output: Option<Matrix>,
    rope: Rope,
    /// Rotary embedding of the local layers.
    local_rope: Option<Rope>,
    /// A factor of queries, in addition to the usual 1/√width.
    query_scale: f32,
    /// Embeddings are multiplied by √width, and gates are GELU.
    gemma: bool,
}

/// Number of layers of Gemma 3 with 27 billion parameters; the file has no other sign of this model.
const GEMMA_LARGEST: usize = 62;

/// The base of Gemma's local layers, which its files leave out. It is that of the first transformers.
const GEMMA_LOCAL_BASE: f32 = 10_000.0;

impl Model {
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let mut gguf = Gguf::open(path)?;
        let architecture = shape::architecture(&gguf)?;
        let gemma = architecture == "gemma3";
        let key = |name: &str| format!("{architecture}.{name}");
        let shape = Shape::new(&gguf, &architecture)?;
        let Shape { width, head_dim, .. } = shape;
        let vocabulary = gguf.outputs("token_embd.weight")?;
        let text = Text::new(&gguf, vocabulary)?;
        let base = match gguf.value(&key("rope.freq_base")) {
            None if !gemma => 10_000.0,
            _ => gguf.number(&key("rope.freq_base"))?,
        };
        let scaling = Scaling::new(&gguf, &architecture, shape.context)?;
        let rope = Rope::new(&mut gguf, &architecture, head_dim, base, scaling)?;
        let local_rope = match shape.local {
            Some(_) => {
                let base = match gguf.value(&key("rope.freq_base_swa")) {
                    None => GEMMA_LOCAL_BASE,
                    Some(_) => gguf.number(&key("rope.freq_base_swa"))?,
                };
                // They see only positions within the first training.
                Some(Rope::new(&mut gguf, &architecture, head_dim, base, Scaling::Linear(1.0))?)
            }
            None => None,
        };
        let layers = (0..shape.layers).map(|number| Layer::load(&mut gguf, &shape, &architecture, number));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let name = gguf.optional_text("general.name")?.unwrap_or("a model without a name");
        let name = format!("{} ({architecture})", shown(name));
        let embedding = gguf.matrix("token_embd.weight", vocabulary, width)?;
        let norm = gguf.vector("output_norm.weight", width)?;
        let output = match gguf.has("output.weight") {
            true => Some(gguf.matrix("output.weight", vocabulary, width)?),
            false => None,
        };
        // Early conversions of Llama store the factors that their rotary embedding would compute anyway.
        if let Some(tensor) = gguf.unread().filter(|tensor| !tensor.contains(".attn_rot_embd.")) {
            let why = format!("it has a tensor that {architecture} does not have, {}", shown(tensor));
            return gguf.refuse(format!("{why}: it would compute something else without it"));
        }
        // The largest Gemma divides scores by the root of a head's share of the width, the others by the root of a head's
        // own width.
        let query_scale = match (gemma, shape.layers) {
            (true, GEMMA_LARGEST) => ((head_dim * shape.heads) as f32 / width as f32).sqrt(),
            _ => 1.0,
        };
        Ok(Self {
            name,
            bytes: gguf.bytes,
            checksum: gguf.checksum(),
            weights: gguf.weight_type(),
            shape,
            text,
            embedding,
            layers,
            norm,
            output,
            rope,
            local_rope,
            query_scale,
            gemma,
        })
    }

    /// Describes the model in a line.
    pub(crate) fn describe(&self) -> String {
        let Shape { layers, heads, kv_heads, head_dim, local, .. } = self.shape;
        let local = local.map_or(String::new(), |Local { window, .. }| {
            let count = (0..layers).filter(|&layer| self.shape.window(layer).is_some()).count();
            format!(" ({count} of them see {window} tokens)")
        });
        format!(
            "{}: {layers} layers{local}, {heads} query and {kv_heads} key/value heads of {head_dim}",
            self.name
        )
    }

    /// Refuses more tokens than the model was trained for.
    pub(crate) fn check_context(&self, tokens: usize) -> Result<()> {
        if tokens > self.shape.context {
            fail!("{tokens} tokens are more than the {} that the model was made for", self.shape.context);
        }
        Ok(())
    }

    /// Returns the next tokens' hidden states after the last norm, \[tokens]\[width].
    pub(crate) fn forward(
        &self,
        tokens: &[u32],
        attention: &mut impl Attention,
        mut after_layer: impl FnMut(),
    ) -> Result<Vec<f32>> {
        let position = attention.tokens();
        self.forward_from(0, self.embedded(tokens)?, position, attention, |_| after_layer())
    }

    /// Returns the input of the first layer.
    pub(crate) fn embedded(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut x = self.embedding.rows(tokens)?;
        if self.gemma {
            let scale = (self.shape.width as f32).sqrt();
            x.iter_mut().for_each(|x| *x *= scale);
        }
        Ok(x)
    }

    /// Does the same from layer `first` on, given that layer's input. The first token has this position. `after_layer` gets the
    /// output of each layer.
    pub(crate) fn forward_from(
        &self,
        first: usize,
        mut x: Vec<f32>,
        position: usize,
        attention: &mut impl Attention,
        mut after_layer: impl FnMut(&[f32]),
    ) -> Result<Vec<f32>> {
        let Shape { width, heads, kv_heads, head_dim, epsilon, .. } = self.shape;
        let count = x.len() / width;
        for (number, layer) in self.layers.iter().enumerate().skip(first) {
            let normed = norm(&x, &layer.attention_norm, epsilon);
            let local = self.local_rope.as_ref().filter(|_| self.shape.window(number).is_some());
            let rope = local.unwrap_or(&self.rope);
            let tensor = |rows: Vec<f32>, heads| {
                let tensor = Tensor::from_vec(rows, (1, heads, count, head_dim), &Device::Cpu);
                tensor.map_err(|error| Failure(first_line(&error)))
            };
            let turned =
                |linear: &Linear, heads, norm_weight: &Option<Vec<f32>>, scale: f32| -> Result<Tensor> {
                    let mut rows = transpose(&linear.apply(&normed)?, count, heads, head_dim);
                    if let Some(weight) = norm_weight {
                        rows = norm(&rows, weight, epsilon);
                    }
                    rope.turn(&mut rows, head_dim, count, position);
                    if scale != 1.0 {
                        rows.iter_mut().for_each(|x| *x *= scale);
                    }
                    tensor(rows, heads)
                };
            let queries = turned(&layer.queries, heads, &layer.query_norm, self.query_scale)?;
            let keys = turned(&layer.keys, kv_heads, &layer.key_norm, 1.0)?;
            let values = transpose(&layer.values.apply(&normed)?, count, kv_heads, head_dim);
            let values = tensor(values, kv_heads)?;
            let mixed = attention.attend(number, &queries, &keys, &values)?;
            let mixed = mixed.transpose(1, 2).and_then(|mixed| mixed.flatten_all()?.to_vec1());
            let mixed = layer.output.apply(&mixed.map_err(|error| Failure(first_line(&error)))?)?;
            add(&mut x, &optional_norm(mixed, &layer.after_attention, epsilon));
            let normed = norm(&x, &layer.feed_norm, epsilon);
            let (mut gate, up) = (layer.gate.apply(&normed)?, layer.up.apply(&normed)?);
            gate.par_chunks_mut(4096).zip(up.par_chunks(4096)).for_each(|(gate, up)| {
                gate.iter_mut().zip(up).for_each(|(gate, up)| *gate = activation(*gate, self.gemma) * up);
            });
            let fed = layer.down.apply(&gate)?;
            add(&mut x, &optional_norm(fed, &layer.after_feed, epsilon));
            after_layer(&x);
        }
        Ok(norm(&x, &self.norm, epsilon))
    }

    /// Returns the logits of the next token, \[rows]\[vocabulary].
    pub(crate) fn logits(&self, hidden: &[f32]) -> Result<Vec<f32>> {
        let logits = self.output.as_ref().unwrap_or(&self.embedding).apply(hidden)?;
        check_finite(&logits)?;
        Ok(logits)
    }

    /// Returns the matrix of the logits, decoded for many rows.
    pub(crate) fn dense_output(&self) -> Result<Dense> {
        self.output.as_ref().unwrap_or(&self.embedding).dense()
    }
}

impl Layer {
    fn load(gguf: &mut Gguf, shape: &Shape, architecture: &str, number: usize) -> Result<Self> {
        let Shape { width, heads, kv_heads, head_dim, feed, .. } = *shape;
        let name = |part: &str| format!("blk.{number}.{part}");
        let mut linear = |part: &str, outputs: usize, inputs: usize| -> Result<Linear> {
            let weight = gguf.matrix(&name(&format!("{part}.weight")), outputs, inputs)?;
            Ok(Linear { weight, bias: gguf.optional_vector(&name(&format!("{part}.bias")), outputs)? })
        };
        let (queries, keys, values) = (
            linear("attn_q", heads * head_dim, width)?,
            linear("attn_k", kv_heads * head_dim, width)?,
            linear("attn_v", kv_heads * head_dim, width)?,
        );
        let output = linear("attn_output", width, heads * head_dim)?;
        let (gate, up, down) = (
            linear("ffn_gate", feed, width)?,
            linear("ffn_up", feed, width)?,
            linear("ffn_down", width, feed)?,
        );
        let attention_norm = gguf.vector(&name("attn_norm.weight"), width)?;
        let feed_norm = gguf.vector(&name("ffn_norm.weight"), width)?;
        let mut norms =
            |part: &str, length, architectures: &[&str]| match architectures.contains(&architecture) {
                true => gguf.vector(&name(part), length).map(Some),
                false => Ok(None),
            };
        Ok(Self {
            queries,
            keys,
            values,
            output,
            gate,
            up,
            down,
            attention_norm,
            feed_norm,
            after_attention: norms("post_attention_norm.weight", width, &["gemma3"])?,
            after_feed: norms("post_ffw_norm.weight", width, &["gemma3"])?,
            query_norm: norms("attn_q_norm.weight", head_dim, &["qwen3", "gemma3"])?,
            key_norm: norms("attn_k_norm.weight", head_dim, &["qwen3", "gemma3"])?,
        })
    }
}

impl Linear {
    fn apply(&self, x: &[f32]) -> Result<Vec<f32>> {
        let mut rows = self.weight.apply(x)?;
        if let Some(bias) = &self.bias {
            rows.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
        }
        Ok(rows)
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Divides each row by its root mean square, and multiplies it by the weight.
fn norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mut normed = x.to_vec();
    for row in normed.chunks_exact_mut(weight.len()) {
        let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let scale = 1.0 / (squares / weight.len() as f64 + f64::from(epsilon)).sqrt();
        row.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale as f32 * weight);
    }
    normed
}

fn optional_norm(x: Vec<f32>, weight: &Option<Vec<f32>>, epsilon: f32) -> Vec<f32> {
    match weight {
        Some(weight) => norm(&x, weight, epsilon),
        None => x,
    }
}

/// Multiplies x by its logistic function (SiLU), or by that of a cubic, which is GELU's approximation by tanh.
fn activation(x: f32, gelu: bool) -> f32 {
    const STEEPNESS: f32 = 1.595_769; // 2√(2/π)
    let steepness = if gelu { STEEPNESS * (1.0 + 0.044_715 * x * x) } else { 1.0 };
    x / (1.0 + (-x * steepness).exp())
}

/// Reorders \[a]\[b]\[width] to \[b]\[a]\[width].
fn transpose(x: &[f32], a: usize, b: usize, width: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for j in 0..b {
        for i in 0..a {
            out.extend_from_slice(&x[(i * b + j) * width..][..width]);
        }
    }
    out
}
