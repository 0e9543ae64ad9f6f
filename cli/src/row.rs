//! A row of `compare`: a codec in one role, and its errors.

use crate::codecs::{is_default, seed};
use crate::input::role_name;
use crate::keys::{Keys, center_name};
use crate::metrics::Metrics;
use crate::paged::Times;
use octaplex::CodecSpec;
use octaplex::codecs::Role;
use serde_json::{Value, json};

pub(crate) struct Row {
    /// The spec that the user gave, or a name.
    pub(crate) codec: String,
    /// `None` for another program.
    pub(crate) spec: Option<CodecSpec>,
    pub(crate) role: Role,
    /// The preparation of keys. Values and floats have none.
    pub(crate) keys: Keys,
    /// Tokens of a page, if keys are prepared.
    pub(crate) page: usize,
    pub(crate) metrics: Metrics,
    /// Bits a value without the tokens that fill no page. A long context approaches this number.
    pub(crate) paged_bits: f64,
    /// KL divergence with raw keys, if `metrics` has that of prepared ones.
    pub(crate) kl_raw: Option<f64>,
    pub(crate) dim: usize,
    /// Nanoseconds a vector in the pages of a cache; `None` for another program.
    pub(crate) times: Option<Times>,
}

impl Row {
    /// Returns whether the library takes this codec by default.
    pub(crate) fn is_default(&self) -> bool {
        self.spec.is_some_and(|spec| is_default(spec, self.role, self.dim))
    }

    /// Returns the error that matters for its role: of attention weights or of outputs, and of vectors without queries.
    pub(crate) fn error(&self) -> f64 {
        match (&self.metrics.attention, self.role) {
            (None, _) => self.metrics.distortion,
            (Some(attention), Role::Keys) => attention.kl,
            (Some(attention), Role::Values) => attention.output_error,
        }
    }

    /// Returns whether no other row of the same role has as few bits and as small an error.
    pub(crate) fn leads<'a>(&self, rows: impl IntoIterator<Item = &'a Self>) -> bool {
        let of = |row: &Self| (row.metrics.bits_per_value, row.error());
        let (bits, error) = of(self);
        !rows.into_iter().filter(|row| row.role == self.role).any(|row| {
            let other = of(row);
            other.0 <= bits && other.1 <= error && other != (bits, error)
        })
    }

    pub(crate) fn json(&self) -> Value {
        let (metrics, attention) = (&self.metrics, self.metrics.attention.as_ref());
        json!({
            "codec": self.codec,
            "role": role_name(self.role),
            "bits_per_value": metrics.bits_per_value,
            "bits_per_value_pages": self.paged_bits,
            "distortion": metrics.distortion,
            "cosine": metrics.cosine,
            "score_error": attention.map(|attention| attention.score_error),
            "attention_kl": attention.map(|attention| attention.kl),
            "attention_kl_raw": self.kl_raw,
            "output_error": attention.map(|attention| attention.output_error),
            "encode_ns": self.times.map(|times| times.encode),
            "score_ns": self.times.filter(|_| self.role == Role::Keys).map(|times| times.read),
            "accumulate_ns": self.times.filter(|_| self.role == Role::Values).map(|times| times.read),
            "dim": self.dim,
            "center": center_name(self.keys.center),
            "page": self.page,
            "balance": self.keys.balance,
            "seed": self.spec.map(seed),
            "stored_bytes": metrics.stored_bytes,
        })
    }
}
