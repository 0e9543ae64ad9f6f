//! Rotary position embedding: rotates pairs of channels by an angle that grows with the position.

use super::gguf::Gguf;
use crate::failure::{Result, shown};
use std::f64::consts::TAU;

/// The speed of each pair's rotation, and which channels are a pair.
pub(crate) struct Rope {
    /// Angle in radians per position.
    frequencies: Vec<f64>,
    /// The factor of the rotated channels. It is 1 except with yarn.
    magnitude: f64,
    /// Pairs are neighbours (2i, 2i+1), as Llama's weights are stored in GGUF; otherwise the halves (i, i + n/2).
    neighbours: bool,
}

/// The scaling of angles for texts that are longer than those of the model's first training.
#[derive(Clone, Copy)]
pub(crate) enum Scaling {
    /// The factor by which all pairs turn slower. It is 1 without scaling.
    Linear(f64),
    Yarn(Yarn),
}

/// Slow pairs turn slower, fast ones as before, those between by a mixture of both (<https://arxiv.org/abs/2309.00071>).
#[derive(Clone, Copy)]
pub(crate) struct Yarn {
    /// The angles of slow pairs are divided by this factor.
    factor: f64,
    /// Tokens of the first training.
    context: f64,
    /// Turns over these tokens: pairs with more than the first are fast, those with fewer than the second slow.
    fast: f64,
    slow: f64,
    /// Factor of the usual magnitude.
    magnitude: f64,
}

/// Entries under `rope.` that this file or the model reads. Others change the angles in unknown ways.
const KNOWN: [&str; 11] = [
    "dimension_count",
    "freq_base",
    "freq_base_swa",
    "scale_linear",
    "scaling.type",
    "scaling.factor",
    "scaling.finetuned",
    "scaling.original_context_length",
    "scaling.attn_factor",
    "scaling.yarn_beta_fast",
    "scaling.yarn_beta_slow",
];

impl Scaling {
    /// Reads the scaling of a file; `context` is the number of tokens that the model was trained for. Like llama.cpp, it
    /// takes a missing type as linear, and the older `scale_linear` if the factor is missing.
    pub(crate) fn new(gguf: &Gguf, architecture: &str, context: usize) -> Result<Self> {
        let start = format!("{architecture}.rope.");
        let key = |name: &str| format!("{start}{name}");
        let unknown = |key: &&str| !KNOWN.contains(&&key[start.len()..]);
        if let Some(key) = gguf.keys(&start).into_iter().find(unknown) {
            return gguf.refuse(format!("{}, which is not supported", shown(key)));
        }
        let number = |name: &str| Ok(gguf.optional_number(&key(name))?.filter(|number| *number > 0.0));
        let factor = match number("scaling.factor")? {
            None => number("scale_linear")?,
            factor => factor,
        };
        let factor = factor.map_or(1.0, f64::from);
        match gguf.optional_text(&key("scaling.type"))? {
            Some("none") => Ok(Self::Linear(1.0)),
            None | Some("linear") => Ok(Self::Linear(factor)),
            Some("yarn") => Ok(Self::Yarn(Yarn {
                factor,
                context: gguf.optional_count(&key("scaling.original_context_length"))?.unwrap_or(context)
                    as f64,
                fast: number("scaling.yarn_beta_fast")?.map_or(32.0, f64::from),
                slow: number("scaling.yarn_beta_slow")?.map_or(1.0, f64::from),
                magnitude: number("scaling.attn_factor")?.map_or(1.0, f64::from),
            })),
            Some(other) => gguf.refuse(format!(
                "its rotary embedding is scaled by \"{}\", which is not supported; linear and yarn are",
                shown(other)
            )),
        }
    }

    /// Returns the frequency of pair `pair` of `turned` channels after scaling.
    fn scale(&self, frequency: f64, pair: usize, turned: usize, base: f64) -> f64 {
        match *self {
            Self::Linear(factor) => frequency / factor,
            Self::Yarn(Yarn { factor, context, fast, slow, .. }) => {
                // The pair that makes this number of turns over the context.
                let pair_of = |turns: f64| turned as f64 * (context / (turns * TAU)).ln() / (2.0 * base.ln());
                let first = pair_of(fast).floor().max(0.0);
                let last = pair_of(slow).ceil().min(turned as f64 - 1.0);
                let slowed = ((pair as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
                frequency * (slowed / factor + 1.0 - slowed)
            }
        }
    }

    fn magnitude(&self) -> f64 {
        match self {
            Self::Linear(_) => 1.0,
            Self::Yarn(yarn) => yarn.magnitude * (1.0 + 0.1 * yarn.factor.max(1.0).ln()),
        }
    }
}

impl Rope {
    /// Pair i of n rotates by base^(-i/n) radians a position, before scaling.
    pub(crate) fn new(
        gguf: &mut Gguf,
        architecture: &str,
        head_dim: usize,
        base: f32,
        scaling: Scaling,
    ) -> Result<Self> {
        let count = format!("{architecture}.rope.dimension_count");
        let turned = gguf.optional_count(&count)?.unwrap_or(head_dim);
        if turned > head_dim || !turned.is_multiple_of(2) {
            return gguf.refuse(format!("{turned} channels of {head_dim} are turned by position"));
        }
        // Llama 3.1 and later rotate the slow pairs still more slowly.
        let factors = gguf.optional_vector("rope_freqs.weight", turned / 2)?;
        let base = f64::from(base);
        let frequency = |pair: usize| {
            let slower = factors.as_ref().map_or(1.0, |factors| f64::from(factors[pair]));
            scaling.scale(base.powf(-2.0 * pair as f64 / turned as f64) / slower, pair, turned, base)
        };
        let frequencies = (0..turned / 2).map(frequency).collect();
        Ok(Self { frequencies, magnitude: scaling.magnitude(), neighbours: architecture == "llama" })
    }

    /// Rotates \[heads]\[tokens]\[width]; the first token is at `position`.
    pub(crate) fn turn(&self, rows: &mut [f32], width: usize, tokens: usize, position: usize) {
        let pairs = self.frequencies.len();
        let angles: Vec<(f32, f32)> = (position..position + tokens)
            .flat_map(|position| self.frequencies.iter().map(move |frequency| frequency * position as f64))
            .map(|angle| ((angle.sin() * self.magnitude) as f32, (angle.cos() * self.magnitude) as f32))
            .collect();
        for (index, row) in rows.chunks_exact_mut(width).enumerate() {
            let angles = &angles[index % tokens * pairs..][..pairs];
            for (pair, (sin, cos)) in angles.iter().enumerate() {
                let (i, j) = if self.neighbours { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
                (row[i], row[j]) = (row[i] * cos - row[j] * sin, row[i] * sin + row[j] * cos);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_turn_and_keep_their_length() {
        for neighbours in [true, false] {
            let rope = Rope { frequencies: vec![1.0, 0.25], magnitude: 1.0, neighbours };
            let row = [1.0, 2.0, 3.0, 4.0, 5.0];
            let mut rows = [row, row].concat();
            rope.turn(&mut rows, 5, 2, 1);
            let pair = if neighbours { (0, 1) } else { (0, 2) };
            for (token, row) in rows.chunks_exact(5).enumerate() {
                let (x, y) = (1.0, if neighbours { 2.0 } else { 3.0 });
                let angle = token as f32 + 1.0;
                assert!((row[pair.0] - (x * angle.cos() - y * angle.sin())).abs() < 1e-6);
                assert!((row[pair.1] - (x * angle.sin() + y * angle.cos())).abs() < 1e-6);
                assert_eq!(row[4], 5.0);
            }
        }
    }
}
