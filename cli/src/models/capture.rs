//! `capture`: writes a model's keys, values and queries on a text, in the format that `compare --input` reads.

use super::attention::{Attention, Exact};
use super::forward::Model;
use super::gguf::files_of;
use super::shape::Shape;
use crate::failure::{At, Failure, Result, fail, first_line};
use crate::progress::Progress;
use crate::{console, files, table};
use candle_core::Tensor;
use clap::Args;
use octaplex::codecs::PAGE;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use std::collections::HashMap;
use std::path::PathBuf;

/// The end of the help of `capture`.
const HELP: &str = "\
Example:
  octaplex capture --model qwen.gguf --text mine.txt --out kv.safetensors
  octaplex compare --input kv.safetensors

Attention runs in f32 without a cache. The file has tensors in f32: k (after the
rotary embedding) and v [layers, kv_heads, tokens, width], q [layers, q_heads,
queries, width] and q_pos, the token of each query. `python -m octaplex.capture`
writes the same from a model of transformers.";

/// Arguments of `capture`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Capture {
    /// A language model: a GGUF file of the families Llama, Qwen2, Qwen3 or Gemma 3
    #[arg(long, value_name = "GGUF")]
    model: PathBuf,
    /// A text in UTF-8, read from its start
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Safetensors file for the tensors
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Tokens of the text [default: 1024, or as many pages of 64 as it fills]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Option<u32>,
    /// Layers, counted from 0, for example 0,12,23 [default: the first, the middle and the last]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    layers: Vec<usize>,
    /// Queries of each query head, at equal distances; the last is at the last token
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    queries: u32,
}

/// The most tokens by default: attention without a cache takes time by the square of them.
const TOKENS: usize = 1024;

/// Attention that stores its inputs in some layers.
struct Recorder {
    exact: Exact,
    wanted: Vec<usize>,
    /// Tokens whose queries are stored.
    positions: Vec<usize>,
    dim: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
}

impl Attention for Recorder {
    fn tokens(&self) -> usize {
        0
    }

    fn attend(&mut self, layer: usize, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        if self.wanted.contains(&layer) {
            let rows = |tensor: &Tensor| {
                let rows = tensor.flatten_all().and_then(|tensor| tensor.to_vec1::<f32>());
                rows.map_err(|error| Failure(first_line(&error)))
            };
            self.keys.extend(rows(keys)?);
            self.values.extend(rows(values)?);
            let (all, tokens) = (rows(queries)?, queries.dims()[2]);
            for head in all.chunks_exact(tokens * self.dim) {
                let of = |&position: &usize| &head[position * self.dim..][..self.dim];
                self.queries.extend(self.positions.iter().flat_map(of));
            }
        }
        self.exact.attend(layer, queries, keys, values)
    }
}

/// Returns the layers of `--layers` in order; by default the first, the middle and the last of those that see all tokens.
fn layers(asked: &[usize], shape: &Shape, tokens: usize) -> Result<Vec<usize>> {
    let sees_all = |layer: usize| shape.window(layer).is_none_or(|window| window >= tokens);
    if asked.is_empty() {
        let all: Vec<usize> = (0..shape.layers).filter(|&layer| sees_all(layer)).collect();
        let &[first, .., last] = &all[..] else { return Ok(all) };
        let mut chosen = vec![first, all[all.len() / 2], last];
        chosen.dedup();
        return Ok(chosen);
    }
    for &layer in asked {
        if layer >= shape.layers {
            fail!("--layers: layer {layer} is out of range (0..{})", shape.layers);
        }
        if let Some(window) = shape.window(layer).filter(|_| !sees_all(layer)) {
            fail!(
                "--layers: layer {layer} sees {window} tokens only, and compare takes all: leave it out, or give --tokens {window}"
            );
        }
    }
    let mut chosen = asked.to_vec();
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}

pub(crate) fn run(arguments: &Capture) -> Result<()> {
    let mut inputs = files_of(&arguments.model);
    inputs.push(arguments.text.clone());
    files::check(&inputs, &[&arguments.out])?;
    let model = Model::load(&arguments.model)?;
    let most = arguments.tokens.map_or(TOKENS.min(model.shape.context), |tokens| tokens as usize);
    model.check_context(most)?;
    let words = match arguments.tokens {
        Some(_) => model.text.of_file(&arguments.text, most, "--tokens")?,
        None => {
            let mut words = model.text.start_of_file(&arguments.text, most)?;
            // Tokens that fill no page would stay exact.
            words.truncate(match words.len() {
                few @ ..PAGE => few,
                many => many / PAGE * PAGE,
            });
            words
        }
    };
    if words.is_empty() {
        fail!("{}: no token in it", arguments.text.display());
    }
    let Shape { heads, kv_heads, head_dim: dim, .. } = model.shape;
    let (tokens, count) = (words.len(), (arguments.queries as usize).min(words.len()));
    let wanted = layers(&arguments.layers, &model.shape, tokens)?;
    if wanted.is_empty() {
        fail!("no layer sees all {tokens} tokens: give fewer with --tokens");
    }
    let positions = (1..=count).map(|query| query * tokens / count - 1).collect();
    let exact = Exact::new(&model.shape);
    let (keys, values, queries) = (Vec::new(), Vec::new(), Vec::new());
    let mut recorder = Recorder { exact, wanted, positions, dim, keys, values, queries };
    let progress = Progress::new(model.shape.layers, "layers");
    progress.about("reading the text");
    model.forward(&words, &mut recorder, || progress.step(1))?;
    drop(progress);

    let Recorder { wanted, positions, keys, values, queries, .. } = recorder;
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let of_keys = vec![wanted.len(), kv_heads, tokens, dim];
    let of_positions: Vec<u8> = positions.iter().flat_map(|&at| (at as i32).to_le_bytes()).collect();
    let tensors = [
        ("k", Dtype::F32, of_keys.clone(), bytes(&keys)),
        ("v", Dtype::F32, of_keys, bytes(&values)),
        ("q", Dtype::F32, vec![wanted.len(), heads, count, dim], bytes(&queries)),
        ("q_pos", Dtype::I32, vec![count], of_positions),
    ];
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        TensorView::new(*dtype, shape.clone(), bytes).map(|view| (*name, view))
    });
    let views = views.collect::<std::result::Result<Vec<_>, _>>().at(arguments.out.display())?;
    let list = wanted.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let text = arguments.text.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let metadata = [("model", model.name.clone()), ("text", text), ("layers", list.clone())];
    let metadata: HashMap<_, _> = metadata.map(|(key, value)| (key.to_owned(), value)).into();
    let file = serialize(views, Some(metadata)).at(arguments.out.display())?;
    files::write(&arguments.out, &file)?;
    if console::is_dash(&arguments.out) {
        return Ok(());
    }
    let out = arguments.out.display();
    let about = format!(
        "{}\n{out}: layers {list}, {tokens} tokens, {count} queries of each query head; {}\n",
        model.describe(),
        table::bytes(file.len()),
    );
    console::say(&format!("{}\nNext: octaplex compare --input {out}\n", console::wrap(&about)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;
    use crate::models::shape::Local;

    #[test]
    fn layers_that_see_less_are_left_out_or_refused() {
        let local = Some(Local { window: 100, period: 6 });
        let shape = |layers, local| Shape {
            layers,
            width: 64,
            heads: 2,
            kv_heads: 1,
            head_dim: 32,
            feed: 64,
            context: 1000,
            epsilon: 1e-6,
            local,
        };
        assert_eq!(layers(&[], &shape(24, None), 500).unwrap(), [0, 12, 23]);
        assert_eq!(layers(&[], &shape(2, None), 500).unwrap(), [0, 1]);
        assert_eq!(layers(&[], &shape(1, None), 500).unwrap(), [0]);
        assert_eq!(layers(&[], &shape(18, local), 500).unwrap(), [5, 11, 17]);
        assert_eq!(layers(&[], &shape(18, local), 100).unwrap(), [0, 9, 17]);
        assert_eq!(layers(&[7, 5, 7], &shape(18, local), 100).unwrap(), [5, 7]);
        let error = layers(&[7], &shape(18, local), 500).unwrap_err().0;
        assert!(error.contains("layer 7 sees 100 tokens") && error.contains("--tokens 100"), "{error}");
        assert!(layers(&[18], &shape(18, None), 9).unwrap_err().0.contains("(0..18)"));
    }
}
