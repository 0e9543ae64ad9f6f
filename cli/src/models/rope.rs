//! Rotary position embedding: pairs of channels turned by an angle that grows with the position.

use super::gguf::Gguf;
use crate::failure::Result;

/// How fast each pair turns, and which channels are a pair.
pub(crate) struct Rope {
    /// Radians a position.
    frequencies: Vec<f64>,
    /// Neighbours (2i, 2i+1), as Llama's weights are stored in GGUF; otherwise the halves (i, i + n/2).
    neighbours: bool,
}

impl Rope {
    /// Pair i of n turns by base^(-i/n) radians a position.
    pub(crate) fn new(gguf: &mut Gguf, architecture: &str, head_dim: usize, base: f32) -> Result<Self> {
        let key = |name: &str| format!("{architecture}.rope.{name}");
        match gguf.text(&key("scaling.type")) {
            None | Some("none") => {}
            Some(other) => {
                let why = format!("its rotary embedding is scaled by \"{other}\", which is not supported");
                return gguf.refuse(why);
            }
        }
        let turned = gguf.optional_count(&key("dimension_count")).unwrap_or(head_dim);
        if turned > head_dim || !turned.is_multiple_of(2) {
            return gguf.refuse(format!("{turned} channels of {head_dim} are turned by position"));
        }
        // Llama 3.1 and later slow the slow pairs down.
        let factors = gguf.optional_vector("rope_freqs.weight", turned / 2)?;
        let frequency = |pair: usize| {
            let slower = factors.as_ref().map_or(1.0, |factors| f64::from(factors[pair]));
            f64::from(base).powf(-2.0 * pair as f64 / turned as f64) / slower
        };
        let frequencies = (0..turned / 2).map(frequency).collect();
        Ok(Self { frequencies, neighbours: architecture == "llama" })
    }

    /// Turns \[heads]\[tokens]\[width], the first token at `position`.
    pub(crate) fn turn(&self, rows: &mut [f32], width: usize, tokens: usize, position: usize) {
        let pairs = self.frequencies.len();
        let angles: Vec<(f32, f32)> = (position..position + tokens)
            .flat_map(|position| self.frequencies.iter().map(move |frequency| frequency * position as f64))
            .map(|angle| (angle.sin() as f32, angle.cos() as f32))
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
            let rope = Rope { frequencies: vec![1.0, 0.25], neighbours };
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
