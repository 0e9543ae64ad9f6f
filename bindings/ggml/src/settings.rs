//! What environment variables say.

use octaplex::codecs::{F16Spec, GradedSpec, Role, TrellisSpec};
use octaplex::{CacheConfig, CodecSpec};
use std::env;

/// How caches are kept.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Codecs that are named.
    keys: Option<CodecSpec>,
    values: Option<CodecSpec>,
    /// At most so many bits a value, for codecs that are not named.
    bits: Option<f64>,
    /// Cells at the beginning of a stream that stay exact.
    pub(crate) sinks: usize,
    /// At least so many of the newest tokens stay exact.
    window: usize,
}

impl Settings {
    pub(crate) fn from_environment() -> Result<Self, String> {
        Self::from(|name| env::var(name).ok())
    }

    fn from(read: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let read = |name: &str| read(name).filter(|text| !text.trim().is_empty());
        let codec = |name: &str| match read(name) {
            Some(text) => match text.trim().parse::<CodecSpec>() {
                Ok(codec) => Ok(Some(codec)),
                Err(why) => Err(format!("{name}={text}: {why}")),
            },
            None => Ok(None),
        };
        let number = |name: &str, otherwise: usize, most: usize| match read(name) {
            Some(text) => match text.trim().parse::<usize>() {
                Ok(number) if number <= most => Ok(number),
                _ => Err(format!("{name}={text}: expected a number from 0 to {most}")),
            },
            None => Ok(otherwise),
        };
        let bits = match read("OCTAPLEX_BITS") {
            Some(text) => match text.trim().parse::<f64>() {
                Ok(bits) if (2.3..=16.0).contains(&bits) => Some(bits),
                _ => return Err(format!("OCTAPLEX_BITS={text}: expected a number from 2.3 to 16")),
            },
            None => None,
        };
        Ok(Self {
            keys: codec("OCTAPLEX_KEYS")?,
            values: codec("OCTAPLEX_VALUES")?,
            bits,
            sinks: number("OCTAPLEX_SINKS", 4, 64)?,
            window: number("OCTAPLEX_WINDOW", 64, 1 << 20)?,
        })
    }

    /// The codec of keys or values of so many heads of a width.
    pub(crate) fn codec(&self, role: Role, heads: usize, dim: usize) -> Result<CodecSpec, String> {
        let named = if role == Role::Keys { self.keys } else { self.values };
        if let Some(codec) = named {
            return Ok(codec);
        }
        let Some(bits) = self.bits else {
            // What the README recommends for any model.
            let graded = CodecSpec::from(GradedSpec::default());
            let has_grades = graded.block_bytes(dim) > 0;
            return Ok(if role == Role::Keys && has_grades { graded } else { TrellisSpec::default().into() });
        };
        if bits >= 16.0 {
            return Ok(CodecSpec::F16(F16Spec));
        }
        let config = CacheConfig::new(1, heads, dim, 4096).for_bits(bits);
        let each = config.map_err(|why| format!("{bits} bits at a width of {dim}: {why}"))?.each;
        Ok(if role == Role::Keys { each.keys } else { each.values })
    }

    /// Pages that stay open, of so many streams.
    pub(crate) fn open_pages(&self, streams: usize) -> usize {
        streams.max(1) * (1 + self.window.div_ceil(64))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::from(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.into()))
    }

    fn codecs(pairs: &[(&str, &str)], dim: usize) -> [String; 2] {
        let settings = of(pairs).unwrap();
        [Role::Keys, Role::Values].map(|role| settings.codec(role, 2, dim).unwrap().to_string())
    }

    #[test]
    fn codecs_are_named_or_follow_from_bits() {
        assert_eq!(
            codecs(&[("OCTAPLEX_KEYS", "f16"), ("OCTAPLEX_VALUES", " trellis ")], 64),
            ["f16", "trellis"]
        );
        assert_eq!(codecs(&[("OCTAPLEX_BITS", "16")], 128), ["f16", "f16"]);
        assert_eq!(codecs(&[("OCTAPLEX_BITS", "2.7")], 128), ["graded", "trellis:m=2"]);
        assert_eq!(codecs(&[("OCTAPLEX_BITS", "3.3"), ("OCTAPLEX_KEYS", "")], 80)[0], "trellis");
        assert_eq!(codecs(&[], 128), ["graded", "trellis"]);
        assert_eq!(codecs(&[], 80), ["trellis", "trellis"]);
        assert_eq!(of(&[("OCTAPLEX_WINDOW", "65")]).unwrap().open_pages(2), 6);
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        for (name, text, why) in [
            ("OCTAPLEX_KEYS", "trelis", "no such codec"),
            ("OCTAPLEX_BITS", "1", "2.3 to 16"),
            ("OCTAPLEX_BITS", "NaN", "2.3 to 16"),
            ("OCTAPLEX_SINKS", "65", "0 to 64"),
            ("OCTAPLEX_WINDOW", "-1", "0 to"),
        ] {
            let error = of(&[(name, text)]).unwrap_err();
            assert!(error.starts_with(&format!("{name}={text}: ")) && error.contains(why), "{error}");
        }
    }
}
