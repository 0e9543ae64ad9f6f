//! Chooses the pair of rows of `compare` with the least error, and says what it means.

use crate::memory::gigabytes;
use crate::row::Row;
use crate::table::fixed;
use octaplex::LayerConfig;
use octaplex::codecs::Role;

/// Bits a value that the advice is for if no number is given.
pub(crate) const USUAL_BITS: f64 = 3.2;

/// A model that many know, and a long text: layers, key/value heads, width, tokens.
const KNOWN: (&str, [usize; 4]) = ("Llama-3-8B", [32, 8, 128, 32_768]);

/// The pair of rows, one for keys and one for values, with the least error within a number of bits a value.
pub(crate) struct Advice<'a> {
    pub(crate) keys: &'a Row,
    pub(crate) values: &'a Row,
}

impl<'a> Advice<'a> {
    /// Chooses the pair of rows with the least error within `bits` bits a value, or `None` if no pair has so few.
    pub(crate) fn within(bits: f64, rows: &'a [Row]) -> Option<Self> {
        // Both errors are of attention's output, so that they add up.
        let error =
            |row: &Row| row.metrics.attention.map_or(row.metrics.distortion, |found| found.output_error);
        let of = |role| rows.iter().filter(move |row: &&Row| row.role == role);
        let pairs = of(Role::Keys).flat_map(|keys| of(Role::Values).map(move |values| Self { keys, values }));
        // Bits are shown to a tenth, so the limit is rounded alike.
        pairs.filter(|pair| pair.bits() < bits + 0.05).min_by(|a, b| {
            let sum = |pair: &Self| error(pair.keys) + error(pair.values);
            sum(a).total_cmp(&sum(b))
        })
    }

    /// Bits a value in pages, keys and values together.
    fn bits(&self) -> f64 {
        (self.keys.paged_bits + self.values.paged_bits) / 2.0
    }

    /// Says the choice, and a line each on its error, its memory and its bits. `tokens` are those of a head.
    pub(crate) fn text(&self, rows: &[Row], tokens: usize) -> String {
        let lines = [Some(self.sentence()), self.error(rows), self.memory(), self.in_pages(tokens)];
        lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
    }

    /// Compares the error with that of llama.cpp's types, which many know.
    fn error(&self, rows: &[Row]) -> Option<String> {
        let kl = |codec: &str| {
            let row = rows.iter().find(|row| row.role == Role::Keys && row.codec == codec)?;
            Some(format!("{codec} keys have {}", fixed(row.metrics.attention?.kl)))
        };
        Some(format!("Is that KL good? Here {} and {}.", kl("q8_0")?, kl("q4_0")?))
    }

    /// Says what the codecs take for a model that many know.
    fn memory(&self) -> Option<String> {
        let (name, shape) = KNOWN;
        let [exact, paged] = gigabytes(shape, self.keys.spec?, self.values.spec?);
        Some(format!("{name} with 32,768 tokens: {exact:.2} GB in f16, {paged:.2} GB with these codecs."))
    }

    /// Says that a long text has fewer bits a value, if it has.
    fn in_pages(&self, tokens: usize) -> Option<String> {
        let Row { keys, page, dim, .. } = *self.keys;
        let config = LayerConfig::new(1, dim, 1000).keys(self.keys.spec?).values(self.values.spec?);
        let config = config.page(page).center(keys.center).balance(keys.balance);
        let [here, long] = [self.bits(), config.page_bits()].map(|bits| format!("{bits:.1}"));
        (long < here).then(|| {
            format!("{here} bits with {tokens} tokens, {long} with more: each head stores its balance once.")
        })
    }

    /// Says the choice in a sentence, with the rows' figures.
    fn sentence(&self) -> String {
        let bits = self.bits();
        let (keys, values) = (&self.keys.codec, &self.values.codec);
        let error = match self.keys.metrics.attention {
            Some(attention) => format!("KL {:.3} nats", attention.kl),
            None => format!("distortion {:.3}", self.keys.metrics.distortion),
        };
        let smaller = crate::columns::F16 / bits;
        let what = if keys == values {
            format!("{keys} for both")
        } else {
            format!("{keys} keys and {values} values")
        };
        let default = if self.keys.is_default() && self.values.is_default() { "the default, " } else { "" };
        format!("For {bits:.1} bits a value take {what}: {default}{smaller:.1}x smaller than f16, {error}.")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;
    use crate::keys::Keys;
    use crate::metrics::{AttentionMetrics, Metrics};

    fn row(codec: &str, role: Role, bits: f64, error: f64) -> Row {
        let attention = Some(AttentionMetrics { score_error: 0.0, kl: 2.0 * error, output_error: error });
        let metrics =
            Metrics { stored_bytes: 1, bits_per_value: bits, distortion: error, cosine: 1.0, attention };
        Row {
            codec: codec.into(),
            spec: None,
            role,
            keys: Keys::RAW,
            page: 64,
            metrics,
            paged_bits: bits,
            kl_raw: None,
            dim: 128,
            times: None,
        }
    }

    #[test]
    fn figures_are_the_rows_own() {
        let rows = [
            row("a", Role::Keys, 4.0, 0.001),
            row("b", Role::Keys, 3.3, 0.0046),
            row("c", Role::Keys, 2.0, 0.5),
            row("a", Role::Values, 3.1, 0.01),
            row("b", Role::Values, 2.0, 0.03),
        ];
        let sentence = |bits| Advice::within(bits, &rows).map(|advice| advice.sentence());
        assert_eq!(
            sentence(3.2).unwrap(),
            "For 3.2 bits a value take b keys and a values: 5.0x smaller than f16, KL 0.009 nats."
        );
        assert!(sentence(8.0).unwrap().starts_with("For 3.5 bits a value take a for both: 4.5x smaller"));
        assert!(sentence(2.0).unwrap().contains("c keys and b values"));
        assert!(sentence(1.9).is_none() && Advice::within(9.0, &rows[..3]).is_none());
    }

    #[test]
    fn without_queries_distortion_decides() {
        let mut rows = [row("a", Role::Keys, 3.0, 0.02), row("a", Role::Values, 3.0, 0.02)];
        rows.iter_mut().for_each(|row| row.metrics.attention = None);
        assert!(Advice::within(3.0, &rows).unwrap().sentence().ends_with("than f16, distortion 0.020."));
    }
}
