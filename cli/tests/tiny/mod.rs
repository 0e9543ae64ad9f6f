//! Language models of a few layers with random weights: as GGUF files, and as an oracle in f64, token by token.

use half::f16;
use std::path::Path;

const WIDTH: usize = 64;
/// Vectors, token by token.
pub(crate) type Rows = Vec<Vec<f64>>;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const FEED: usize = 96;
const EPSILON: f64 = 1e-5;
const BASE: f64 = 10_000.0;
/// Of Gemma's global layers, every sixth.
const GLOBAL_BASE: f64 = 1_000_000.0;

/// A tensor as the model has it: after it was stored in Q8_0, or in f32.
struct Tensor {
    name: String,
    /// (outputs, inputs); vectors have one output.
    shape: (usize, usize),
    values: Vec<f64>,
    bytes: Vec<u8>,
    kind: u32,
}

pub(crate) struct Tiny {
    pub(crate) architecture: &'static str,
    /// Tokens that Gemma's local layers see.
    pub(crate) window: usize,
    /// An entry that the file lacks.
    pub(crate) without: &'static str,
    /// Further entries, or replacements of existing ones: names, types and bytes.
    pub(crate) also: Vec<(&'static str, u32, Vec<u8>)>,
    /// The scaling of the angles of all layers except Gemma's local ones.
    pub(crate) scaling: Scaling,
    layers: usize,
    dim: usize,
    tensors: Vec<Tensor>,
    tokens: Vec<String>,
}

/// The ways to stretch positions.
#[derive(Clone, Copy)]
pub(crate) enum Scaling {
    /// By a factor; 1 by default.
    Linear(f64),
    /// By a factor, for texts longer than a first context.
    Yarn(f64, f64),
}

/// Numbers in -1..1, the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Blocks of 32: an f16 scale and signed bytes.
fn q8_0(values: &[f32]) -> (Vec<u8>, Vec<f64>) {
    let (mut bytes, mut decoded) = (Vec::new(), Vec::new());
    for block in values.chunks(32) {
        let scale = f16::from_f32(block.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 127.0);
        bytes.extend(scale.to_le_bytes());
        for x in block {
            let code = (x / scale.to_f32()).round() as i8;
            bytes.push(code as u8);
            decoded.push(f64::from(code) * f64::from(scale.to_f32()));
        }
    }
    (bytes, decoded)
}

/// GPT-2's names of bytes.
fn byte_name(byte: u8) -> char {
    let shown = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if shown(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !shown(*byte)).count() as u32;
    char::from_u32(256 + before).unwrap()
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn is_left_out(without: &str, name: &str) -> bool {
    !without.is_empty() && name.contains(without)
}

/// A file.
fn file(entries: &Entries, tensors: &[&Tensor]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(entries.count.to_le_bytes());
    file.extend(&entries.bytes);
    let mut offset = 0u64;
    for tensor in tensors {
        file.extend(text(&tensor.name));
        let (outputs, inputs) = (tensor.shape.0 as u64, tensor.shape.1 as u64);
        let dims: &[u64] = if tensor.kind == 0 { &[inputs] } else { &[inputs, outputs] };
        file.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| file.extend(dim.to_le_bytes()));
        file.extend(tensor.kind.to_le_bytes());
        file.extend(offset.to_le_bytes());
        offset += tensor.bytes.len().next_multiple_of(32) as u64;
    }
    for tensor in tensors {
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&tensor.bytes);
    }
    file
}

/// The metadata of a file.
struct Entries<'a> {
    without: &'static str,
    also: &'a [(&'static str, u32, Vec<u8>)],
    count: u64,
    bytes: Vec<u8>,
}

impl Entries<'_> {
    fn add(&mut self, name: &str, kind: u32, value: &[u8]) {
        if !is_left_out(self.without, name) && self.also.iter().all(|(other, ..)| *other != name) {
            self.put(name, kind, value);
        }
    }

    fn put(&mut self, name: &str, kind: u32, value: &[u8]) {
        self.count += 1;
        self.bytes.extend([&text(name), &kind.to_le_bytes()[..], value].concat());
    }

    fn add_list(&mut self, name: &str, kind: u32, count: usize, values: &[u8]) {
        self.add(name, 9, &[&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), values].concat());
    }
}

impl Tiny {
    /// Heads of width 32.
    pub(crate) fn new(architecture: &'static str, seed: u64) -> Self {
        Self::of_width(architecture, seed, 32)
    }

    pub(crate) fn of_width(architecture: &'static str, seed: u64, dim: usize) -> Self {
        Self::of_layers(architecture, seed, dim, if architecture == "gemma3" { 7 } else { 2 })
    }

    pub(crate) fn of_layers(architecture: &'static str, seed: u64, dim: usize, layers: usize) -> Self {
        let gemma = architecture == "gemma3";
        let mut tokens: Vec<String> = (0..=255).map(|byte| byte_name(byte).to_string()).collect();
        tokens.extend(["QZ".into(), "<|endoftext|>".into()]);
        if gemma {
            // SentencePiece's space, a token for a new line, and bytes for all that has none.
            (tokens[32], tokens[10]) = ("\u{2581}".into(), "\n".into());
            tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        }
        let mut tiny = Self {
            architecture,
            window: 100,
            without: "",
            also: Vec::new(),
            scaling: Scaling::Linear(1.0),
            layers,
            dim,
            tensors: Vec::new(),
            tokens,
        };
        let mut random = Random(seed);
        let vocabulary = tiny.tokens.len();
        let mut matrix = |tiny: &mut Self, name: String, outputs: usize, inputs: usize, size: f32| {
            let values: Vec<f32> = (0..outputs * inputs).map(|_| random.next() * size).collect();
            let (bytes, values) = q8_0(&values);
            tiny.tensors.push(Tensor { name, shape: (outputs, inputs), values, bytes, kind: 8 });
        };
        matrix(&mut tiny, "token_embd.weight".into(), vocabulary, WIDTH, 1.0);
        if !matches!(architecture, "llama" | "gemma3") {
            matrix(&mut tiny, "output.weight".into(), vocabulary, WIDTH, 0.5);
        }
        for layer in 0..layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            for (part, outputs, inputs) in [
                ("attn_q", HEADS * dim, WIDTH),
                ("attn_k", KV_HEADS * dim, WIDTH),
                ("attn_v", KV_HEADS * dim, WIDTH),
                ("attn_output", WIDTH, HEADS * dim),
                ("ffn_gate", FEED, WIDTH),
                ("ffn_up", FEED, WIDTH),
                ("ffn_down", WIDTH, FEED),
            ] {
                matrix(&mut tiny, name(part), outputs, inputs, 0.4);
            }
        }
        let mut vector = |tiny: &mut Self, name: String, length: usize, middle: f32| {
            let values: Vec<f32> = (0..length).map(|_| middle + 0.3 * random.next()).collect();
            let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            let values = values.into_iter().map(f64::from).collect();
            tiny.tensors.push(Tensor { name, shape: (1, length), values, bytes, kind: 0 });
        };
        vector(&mut tiny, "output_norm.weight".into(), WIDTH, 1.0);
        for layer in 0..layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            vector(&mut tiny, name("attn_norm.weight"), WIDTH, 1.0);
            vector(&mut tiny, name("ffn_norm.weight"), WIDTH, 1.0);
            if architecture == "qwen2" {
                vector(&mut tiny, name("attn_q.bias"), HEADS * dim, 0.0);
                vector(&mut tiny, name("attn_k.bias"), KV_HEADS * dim, 2.0);
                vector(&mut tiny, name("attn_v.bias"), KV_HEADS * dim, 0.0);
            }
            if gemma {
                vector(&mut tiny, name("post_attention_norm.weight"), WIDTH, 1.0);
                vector(&mut tiny, name("post_ffw_norm.weight"), WIDTH, 1.0);
            }
            if matches!(architecture, "qwen3" | "gemma3") {
                vector(&mut tiny, name("attn_q_norm.weight"), dim, 1.0);
                vector(&mut tiny, name("attn_k_norm.weight"), dim, 1.0);
            }
        }
        tiny
    }

    /// The file's bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes_with(&self.tensors)
    }

    fn bytes_with(&self, tensors: &[Tensor]) -> Vec<u8> {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let gemma = self.architecture == "gemma3";
        let words = match self.architecture {
            "qwen2" => "qwen2",
            "qwen3" => "llama-bpe",
            _ => "smollm",
        };
        let mut entries = Entries { without: self.without, also: &self.also, count: 0, bytes: Vec::new() };
        for (name, value) in [
            ("block_count", self.layers),
            ("context_length", 4096),
            ("embedding_length", WIDTH),
            ("feed_forward_length", FEED),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", KV_HEADS),
            ("attention.key_length", self.dim),
            ("attention.value_length", self.dim),
        ] {
            entries.add(&key(name), 4, &(value as u32).to_le_bytes());
        }
        let base = if gemma { GLOBAL_BASE } else { BASE };
        for (name, value) in [("attention.layer_norm_rms_epsilon", EPSILON), ("rope.freq_base", base)] {
            entries.add(&key(name), 6, &(value as f32).to_le_bytes());
        }
        let model = if gemma { "llama" } else { "gpt2" };
        for (name, value) in [
            ("general.architecture", self.architecture),
            ("general.name", "Tiny"),
            ("tokenizer.ggml.model", model),
            ("tokenizer.ggml.pre", words),
        ] {
            entries.add(name, 8, &text(value));
        }
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| text(token)).collect();
        entries.add_list("tokenizer.ggml.tokens", 8, self.tokens.len(), &tokens);
        if gemma {
            entries.add(&key("attention.sliding_window"), 4, &(self.window as u32).to_le_bytes());
            entries.add("tokenizer.ggml.add_space_prefix", 7, &[0]);
            entries.add("tokenizer.ggml.add_bos_token", 7, &[0]);
            let kinds = (0..self.tokens.len()).map(|token| match token {
                10 => 4,    // found before anything is merged
                257 => 3,   // control
                258.. => 6, // a byte
                _ => 1i32,
            });
            let kinds: Vec<u8> = kinds.flat_map(i32::to_le_bytes).collect();
            entries.add_list("tokenizer.ggml.token_type", 5, self.tokens.len(), &kinds);
            let scores: Vec<u8> =
                (0..self.tokens.len()).flat_map(|token| (-(token as f32)).to_le_bytes()).collect();
            entries.add_list("tokenizer.ggml.scores", 6, self.tokens.len(), &scores);
        } else {
            entries.add_list("tokenizer.ggml.merges", 8, 1, &text("Q Z"));
        }
        for (name, kind, value) in &self.also {
            entries.put(name, *kind, value);
        }
        let tensors = tensors.iter().filter(|tensor| !is_left_out(self.without, &tensor.name));
        file(&entries, &tensors.collect::<Vec<_>>())
    }

    /// The same in two files, as llama.cpp splits them: all but the tensors in the first.
    pub(crate) fn write_split(&mut self, folder: &Path, name: &str) {
        let number = |number: u16| ("split.no", 2, number.to_le_bytes().to_vec());
        let count = ("split.count", 2, 2u16.to_le_bytes().to_vec());
        let tensors = std::mem::take(&mut self.tensors);
        self.also = vec![number(0), count.clone()];
        let total = (tensors.len() as i32).to_le_bytes().to_vec();
        self.also.push(("split.tensors.count", 5, total));
        let (first, second) = tensors.split_at(tensors.len() / 2);
        std::fs::write(folder.join(format!("{name}-00001-of-00002.gguf")), self.bytes_with(first)).unwrap();
        let mut entries = Entries { without: "", also: &[], count: 0, bytes: Vec::new() };
        for (name, kind, value) in [number(1), count] {
            entries.put(name, kind, &value);
        }
        let second = file(&entries, &second.iter().collect::<Vec<_>>());
        std::fs::write(folder.join(format!("{name}-00002-of-00002.gguf")), second).unwrap();
        self.tensors = tensors;
    }

    /// Another tensor, of ones.
    pub(crate) fn add_vector(&mut self, name: &str, length: usize) {
        let bytes = [1f32; 1].map(f32::to_le_bytes).concat().repeat(length);
        let name = name.to_owned();
        self.tensors.push(Tensor { name, shape: (1, length), values: vec![1.0; length], bytes, kind: 0 });
    }

    /// Another token of this number.
    pub(crate) fn set_token(&mut self, number: usize, token: &str) {
        self.tokens[number] = token.into();
    }

    /// One tensor's bytes in place of another's.
    pub(crate) fn set_bytes(&mut self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap().bytes);
    }

    pub(crate) fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }

    fn find(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn vector(&self, name: &str) -> &[f64] {
        &self.find(name).unwrap().values
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weights = self.vector(&format!("{name}.weight")).chunks_exact(x.len());
        let mut y: Vec<f64> = weights.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
        if let Some(bias) = self.find(&format!("{name}.bias")) {
            y.iter_mut().zip(&bias.values).for_each(|(y, bias)| *y += bias);
        }
        y
    }

    /// Applies Gemma's second norm, to the output of attention and of the feed-forward part.
    fn normed_again(&self, name: &str, x: Vec<f64>) -> Vec<f64> {
        let weight = self.find(&format!("{name}.weight"));
        weight.map(|weight| norm(&x, &weight.values)).unwrap_or(x)
    }

    /// Channels of each head turned by position, after the head's norm.
    fn turned(
        &self,
        mut x: Vec<f64>,
        norm_name: &str,
        position: usize,
        (base, scaling): (f64, Scaling),
    ) -> Vec<f64> {
        for head in x.chunks_exact_mut(self.dim) {
            if let Some(weight) = self.find(norm_name) {
                head.copy_from_slice(&norm(head, &weight.values));
            }
            for pair in 0..self.dim / 2 {
                let (i, j) = if self.architecture == "llama" {
                    (2 * pair, 2 * pair + 1)
                } else {
                    (pair, pair + self.dim / 2)
                };
                let frequency = base.powf(-2.0 * pair as f64 / self.dim as f64);
                let (frequency, size) = match scaling {
                    Scaling::Linear(factor) => (frequency / factor, 1.0),
                    Scaling::Yarn(factor, context) => yarn(frequency, pair, self.dim, base, factor, context),
                };
                let angle = position as f64 * frequency;
                (head[i], head[j]) = (
                    size * (head[i] * angle.cos() - head[j] * angle.sin()),
                    size * (head[i] * angle.sin() + head[j] * angle.cos()),
                );
            }
        }
        x
    }

    /// Logits after each token.
    pub(crate) fn logits(&self, tokens: &[u8]) -> Vec<Vec<f64>> {
        self.run(tokens).0
    }

    /// The same, and each layer's keys, values and queries, token by token.
    pub(crate) fn run(&self, tokens: &[u8]) -> (Rows, Vec<[Rows; 3]>) {
        let gemma = self.architecture == "gemma3";
        let mut caches = vec![[const { Vec::<Vec<f64>>::new() }; 3]; self.layers];
        let logits = tokens.iter().enumerate().map(|(position, &token)| {
            let embedding = self.vector("token_embd.weight");
            let mut x = embedding[usize::from(token) * WIDTH..][..WIDTH].to_vec();
            if gemma {
                x.iter_mut().for_each(|x| *x *= (WIDTH as f64).sqrt());
            }
            for (layer, [keys, values, all_queries]) in caches.iter_mut().enumerate() {
                let name = |part: &str| format!("blk.{layer}.{part}");
                let (window, base) = match gemma {
                    true if layer % 6 == 5 => (usize::MAX, (GLOBAL_BASE, self.scaling)),
                    true => (self.window, (BASE, Scaling::Linear(1.0))),
                    false => (usize::MAX, (BASE, self.scaling)),
                };
                // The largest Gemma 3.
                let width = if self.layers == 62 { WIDTH / HEADS } else { self.dim };
                let normed = norm(&x, self.vector(&name("attn_norm.weight")));
                let queries = self.product(&name("attn_q"), &normed);
                let queries = self.turned(queries, &name("attn_q_norm.weight"), position, base);
                let key = self.product(&name("attn_k"), &normed);
                keys.push(self.turned(key, &name("attn_k_norm.weight"), position, base));
                values.push(self.product(&name("attn_v"), &normed));
                all_queries.push(queries.clone());
                let first = (position + 1).saturating_sub(window);
                let (keys, values) = (&keys[first..], &values[first..]);
                let mut mixed = Vec::new();
                for (head, query) in queries.chunks_exact(self.dim).enumerate() {
                    let at = head / (HEADS / KV_HEADS) * self.dim;
                    let dot = |key: &Vec<f64>| query.iter().zip(&key[at..]).map(|(q, k)| q * k).sum::<f64>();
                    let weights: Vec<f64> =
                        keys.iter().map(|key| (dot(key) / (width as f64).sqrt()).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    mixed.extend((at..at + self.dim).map(|channel| {
                        weights.iter().zip(values).map(|(w, v)| w / sum * v[channel]).sum::<f64>()
                    }));
                }
                let out = self
                    .normed_again(&name("post_attention_norm"), self.product(&name("attn_output"), &mixed));
                x.iter_mut().zip(out).for_each(|(x, y)| *x += y);
                let normed = norm(&x, self.vector(&name("ffn_norm.weight")));
                let up = self.product(&name("ffn_up"), &normed);
                let gated = self.product(&name("ffn_gate"), &normed).into_iter().zip(up);
                let activation = if gemma { gelu } else { silu };
                let gated: Vec<f64> = gated.map(|(gate, up)| activation(gate) * up).collect();
                let out = self.normed_again(&name("post_ffw_norm"), self.product(&name("ffn_down"), &gated));
                x.iter_mut().zip(out).for_each(|(x, y)| *x += y);
            }
            let x = norm(&x, self.vector("output_norm.weight"));
            let output = if self.find("output.weight").is_some() { "output" } else { "token_embd" };
            self.product(output, &x)
        });
        (logits.collect(), caches)
    }

    /// exp of the mean loss of all tokens but the first.
    pub(crate) fn perplexity(&self, tokens: &[u8]) -> f64 {
        let logits = self.logits(tokens);
        let loss = logits.iter().zip(&tokens[1..]).map(|(logits, &next)| {
            logits.iter().map(|x| x.exp()).sum::<f64>().ln() - logits[usize::from(next)]
        });
        (loss.sum::<f64>() / (tokens.len() - 1) as f64).exp()
    }
}

/// The paper's formulas (arXiv 2309.00071, with α = 1 and β = 32; the ramp between whole pairs, as all programs have it):
/// frequency, and the factor of the channels.
fn yarn(frequency: f64, pair: usize, dim: usize, base: f64, factor: f64, context: f64) -> (f64, f64) {
    let pair_with_turns =
        |turns: f64| dim as f64 * (context / (2.0 * std::f64::consts::PI * turns)).ln() / (2.0 * base.ln());
    let (low, high) = (pair_with_turns(32.0).floor().max(0.0), pair_with_turns(1.0).ceil());
    let high = high.min(dim as f64 - 1.0);
    let keeps = 1.0 - ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
    ((1.0 - keeps) * frequency / factor + keeps * frequency, 0.1 * factor.ln() + 1.0)
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// In the form with tanh.
fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

fn norm(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(x, weight)| x / (mean + EPSILON).sqrt() * weight).collect()
}
