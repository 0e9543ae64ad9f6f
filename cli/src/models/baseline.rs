//! Runs a model on a text with the f16 cache, layer by layer. Caches that differ in a few layers are measured against it.

use super::forward::Model;
use super::likelihood::divergence;
use super::matrix::{Dense, check_finite};
use super::options::{Codecs, ModelOptions};
use crate::backend::kernels;
use crate::failure::{Result, fail};
use crate::progress::Progress;
use rayon::prelude::*;

/// The results of the f16 cache on windows of a text.
pub(crate) struct Baseline<'a> {
    model: &'a Model,
    options: &'a ModelOptions,
    output: Dense,
    windows: Vec<Window>,
}

struct Window {
    tokens: usize,
    /// The inputs of each layer, and the output of the last.
    entering: Vec<Vec<f32>>,
    /// Logits from the first position that reads pages; earlier positions see exact tokens only.
    logits: Vec<f32>,
}

/// Rows whose logits are computed at once.
const ROWS: usize = 64;

impl<'a> Baseline<'a> {
    pub(crate) fn new(
        model: &'a Model,
        options: &'a ModelOptions,
        tokens: &[u32],
        windows: usize,
        progress: &Progress,
    ) -> Result<Self> {
        progress.about("f16 cache");
        let length = tokens.len() / windows;
        let mut cache = options.cache(model, &Codecs::f16(), length)?;
        let first = cache.first_paged_position();
        if first + 1 >= length {
            fail!("--tokens {length}: no page closes, and nothing is compressed; give at least 256");
        }
        let output = model.dense_output()?;
        let window = |tokens: &[u32]| {
            cache.clear();
            let mut entering = vec![model.embedded(tokens)?];
            let hidden = model.forward_from(0, entering[0].clone(), 0, &mut cache, |x| {
                entering.push(x.to_vec());
                progress.step(1);
            })?;
            let mut logits = Vec::new();
            for rows in paged(&hidden, first, model.shape.width) {
                output
                    .apply(rows, |found| check_finite(found).map(|()| logits.extend_from_slice(found)))??;
            }
            Ok(Window { tokens: tokens.len(), entering, logits })
        };
        let windows = tokens.chunks_exact(length).map(window).collect::<Result<_>>()?;
        Ok(Self { model, options, output, windows })
    }

    /// Computes the mean divergence of the next token with another cache, over the positions that read pages. Layers before the
    /// first one that is not exact are not computed again.
    pub(crate) fn divergence(&self, codecs: &Codecs, progress: &Progress) -> Result<f64> {
        progress.about(&codecs.describe());
        let (width, backend) = (self.model.shape.width, kernels(self.options.backend()));
        let start = codecs.exact_layers().min(self.model.shape.layers - 1);
        let mut cache = self.options.cache(self.model, codecs, self.windows[0].tokens)?;
        let first = cache.first_paged_position();
        let mut divergences: Vec<f64> = Vec::new();
        for window in &self.windows {
            cache.clear();
            progress.step(start);
            let entering = window.entering[start].clone();
            let hidden = self.model.forward_from(start, entering, 0, &mut cache, |_| progress.step(1))?;
            let vocabulary = window.logits.len() / (window.tokens - 1 - first);
            let references = window.logits.chunks(ROWS * vocabulary);
            for (reference, rows) in references.zip(paged(&hidden, first, width)) {
                let found = self.output.apply(rows, |logits| {
                    check_finite(logits)?;
                    let pairs =
                        reference.par_chunks_exact(vocabulary).zip(logits.par_chunks_exact(vocabulary));
                    Ok(pairs
                        .map(|(reference, logits)| divergence(reference, logits, backend))
                        .collect::<Vec<_>>())
                })??;
                divergences.extend(found);
            }
        }
        Ok(divergences.iter().sum::<f64>() / divergences.len() as f64)
    }
}

/// Returns the hidden states that predict a token of the window and have read pages, some rows at a time.
fn paged(hidden: &[f32], first: usize, width: usize) -> impl Iterator<Item = &[f32]> {
    hidden[first * width..hidden.len() - width].chunks(ROWS * width)
}
