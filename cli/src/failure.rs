//! What goes wrong, as the one line that the user sees; and specs, whose errors point at the offending word.

use octaplex::{Backend, Codec, CodecSpec, Error, Stream};
use std::fmt::Display;

/// A message in plain words, without a full stop.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Fails with a formatted message.
macro_rules! fail {
    ($($part:tt)*) => { return Err($crate::failure::Failure(format!($($part)*))) };
}
pub(crate) use fail;

/// Says where an error happened.
pub(crate) trait At<T> {
    /// `place: error`.
    fn at(self, place: impl Display) -> Result<T>;
}

impl<T, E: Display> At<T> for std::result::Result<T, E> {
    fn at(self, place: impl Display) -> Result<T> {
        self.map_err(|error| Failure(format!("{place}: {error}")))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses a spec; the error names the word that is wrong and what is allowed there.
pub(crate) fn parse_spec(text: &str) -> Result<CodecSpec> {
    text.parse().map_err(|error| {
        let word = match error {
            Error::UnknownCodec { at, .. }
            | Error::UnknownKey { at, .. }
            | Error::Value { at, .. }
            | Error::Conflict { at, .. } => text.get(at..).unwrap_or(""),
            _ => "",
        };
        let word = word.split([',', ':']).next().unwrap_or(word);
        match word {
            "" => Failure(format!("spec \"{text}\": {error}")),
            _ => Failure(format!("spec \"{text}\", at \"{word}\": {error}")),
        }
    })
}

/// Parses `SPEC;SPEC;…`, keeping each as it was written.
pub(crate) fn parse_specs(text: &str) -> Result<Vec<(String, CodecSpec)>> {
    let given = text.split(';').map(str::trim).filter(|spec| !spec.is_empty());
    let specs = given.map(|spec| Ok((spec.to_owned(), parse_spec(spec)?))).collect::<Result<Vec<_>>>()?;
    if specs.is_empty() {
        fail!("--codecs \"{text}\": no spec in it; give \"SPEC;SPEC\"");
    }
    Ok(specs)
}

/// The codec of a spec, which the user wrote as `text`.
pub(crate) fn build(text: &str, spec: CodecSpec, dim: usize, backend: Backend) -> Result<Box<dyn Codec>> {
    spec.build_dyn(dim, backend, Stream::default()).map_err(|error| match error {
        Error::Width { .. } => Failure(error.to_string()),
        error => Failure(format!("{text} at width {dim}: {error}")),
    })
}

/// The same error for a slice that starts at `row`, with a non-finite value's row and column.
pub(crate) fn in_rows(error: Error, row: usize, dim: usize) -> Failure {
    Failure(match error {
        Error::NonFinite { index } => {
            format!("row {}, column {} is NaN or infinite", row + index / dim, index % dim)
        }
        Error::Corrupt { block } => Error::Corrupt { block: row + block }.to_string(),
        other => other.to_string(),
    })
}
