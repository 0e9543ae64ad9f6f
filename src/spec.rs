//! Parses and prints specs, `name:key=value,key=value`. The files of codecs say what keys mean, and `codecs.rs` lists
//! the codecs.

use crate::Error;
use core::fmt;
use core::ops::RangeInclusive;
use octaplex_arch::Packing;

/// Describes a key of a codec's spec. [`CodecInfo`] has an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// The key's name.
    pub name: &'static str,
    /// The values that the key takes, in words.
    pub values: &'static str,
    /// Names of keys that set the same parameter in another way, and so cannot be given together with this one. They stand
    /// before it.
    excludes: &'static [&'static str],
}

impl Key {
    pub(crate) const fn new(name: &'static str, values: &'static str) -> Self {
        Self { name, values, excludes: &[] }
    }

    /// Returns the key, excluding the keys with these names.
    pub(crate) const fn excludes(self, keys: &'static [&'static str]) -> Self {
        Self { excludes: keys, ..self }
    }

    /// Returns the error of an invalid value at byte `at` of a spec.
    pub(crate) const fn error(self, at: usize) -> Error {
        Error::Value { at, key: self.name, allowed: self.values }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.values)
    }
}

/// Implements `TryFrom<&str>` and serde's traits for a type with [`FromStr`](core::str::FromStr) and `Display`.
///
/// `$expected` describes the text in serde's errors.
macro_rules! as_text {
    ($type:ident, $expected:literal) => {
        impl TryFrom<&str> for $type {
            type Error = $crate::Error;

            /// Parses the text with [`FromStr`](core::str::FromStr).
            fn try_from(text: &str) -> Result<Self, $crate::Error> {
                text.parse()
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;

                    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}
pub(crate) use as_text;

/// Implements one builder method for each field.
macro_rules! builders {
    ($($field:ident: $type:ty $(=> $wrap:ident)?;)+) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), "), and returns the result.")]
        #[must_use]
        pub const fn $field(self, $field: $type) -> Self {
            Self { $field: $($wrap)?($field), ..self }
        }
    )+};
}
pub(crate) use builders;

/// A spec as text, and a width that the codec supports.
pub(crate) type Sample = (&'static str, usize);

/// The value of a key, for printing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// The key does not apply here.
    Absent,
    Int(u64),
    Word(&'static str),
}

impl Value {
    /// Returns the name of `value` in a list of names.
    pub(crate) fn word<T: PartialEq>(value: T, names: &[(&'static str, T)]) -> Self {
        names.iter().find(|(_, v)| *v == value).map_or(Self::Absent, |(name, _)| Self::Word(name))
    }

    pub(crate) fn flag(value: bool) -> Self {
        Self::Word(if value { "true" } else { "false" })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => Ok(()),
            Self::Int(value) => write!(f, "{value}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// Parses a whole number in a range, written in plain digits.
pub(crate) fn parse_int(text: &str, range: RangeInclusive<u64>) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|value| digits && range.contains(value))
}

/// Returns the value of a name in a list.
pub(crate) fn one_of<T: Copy>(text: &str, names: &[(&'static str, T)]) -> Option<T> {
    names.iter().find(|(name, _)| *name == text).map(|&(_, value)| value)
}

/// Parses `true` or `false`.
pub(crate) fn parse_flag(text: &str) -> Option<bool> {
    text.parse().ok()
}

/// The interface of a codec's spec type, for parsing and printing.
pub(crate) trait Spec: Copy + Default {
    const NAME: &'static str;
    /// A description of the codec in a few words.
    const SUMMARY: &'static str;
    /// See [`CodecInfo::samples`].
    const SAMPLES: &'static [Sample];
    /// The keys, in the order in which they are printed.
    const KEYS: &'static [Key];
    /// Sets key number `key`. Returns `None` for an invalid value.
    fn set(&mut self, key: usize, value: &str) -> Option<()>;
    /// Returns the value of key number `key`.
    fn get(&self, key: usize) -> Value;
    /// Returns whether the spec means the same without key number `key`.
    fn is_default(&self, key: usize) -> bool {
        self.get(key) == Self::default().get(key)
    }
    /// Completes the spec when all keys are set, for defaults that depend on other keys.
    ///
    /// Bit i of `given` is set if the text has key number i.
    fn complete(self, _given: u32) -> Self {
        self
    }
    /// Calls `line` with the bytes and the meaning of each part of a block, in order.
    fn layout(&self, dim: usize, line: &mut dyn FnMut(usize, &str));
}

/// Calls `line` with the bytes and the meaning of each of a block's code planes.
pub(crate) fn describe_planes(packing: Packing, dim: usize, line: &mut dyn FnMut(usize, &str)) {
    let raw = packing.raw_bytes(dim);
    if raw > 0 {
        line(
            raw,
            [
                "",
                "raw plane, 1 bit a code",
                "raw plane, 2 bits a code",
                "raw plane, 3 bits a code",
                "raw plane, 4 bits a code",
                "raw plane, 5 bits a code",
                "raw plane, 6 bits a code",
                "raw plane, 7 bits a code",
                "raw plane, 8 bits a code",
            ][packing.raw_bits() as usize],
        );
    }
    match packing.radix() {
        3 => line(packing.bytes(dim) - raw, "base-3 digits, five to a byte"),
        5 => line(packing.bytes(dim) - raw, "base-5 digits, three to 7 bits"),
        9 => line(packing.bytes(dim) - raw, "base-9 digits, two to 7 bits"),
        _ => {}
    }
}

/// Parses `key=value,key=value`, which starts at byte `at` of the spec. The keys of an alias come first.
pub(crate) fn parse_keys<S: Spec>(alias: Option<&str>, text: Option<&str>, at: usize) -> Result<S, Error> {
    let mut spec = S::default();
    let mut given = 0u32;
    let mut next = at;
    let own = text.into_iter().flat_map(|text| text.split(',')).map(|part| {
        let at = next;
        next += part.len() + 1;
        (at, part)
    });
    for (at, part) in alias.into_iter().flat_map(|keys| keys.split(',')).map(|part| (0, part)).chain(own) {
        let name = part.split('=').next().unwrap_or(part);
        let unknown = Error::UnknownKey { at, codec: S::NAME, allowed: S::KEYS };
        let index = S::KEYS.iter().position(|key| key.name == name).ok_or(unknown)?;
        let key = S::KEYS[index];
        let value = part[name.len()..].strip_prefix('=').unwrap_or("");
        for (other, earlier) in S::KEYS.iter().enumerate().filter(|(other, _)| given & (1 << other) != 0) {
            let (low, high) = (index.min(other), index.max(other));
            if low == high || S::KEYS[high].excludes.contains(&S::KEYS[low].name) {
                return Err(Error::Conflict { at, key: key.name, with: earlier.name });
            }
        }
        spec.set(index, value).ok_or(key.error((at + name.len() + 1).min(at + part.len())))?;
        given |= 1 << index;
    }
    Ok(if given == 0 { spec } else { spec.complete(given) })
}

/// Prints the name, and the keys that differ from the default. With `all`, prints every key that applies.
pub(crate) fn print_keys<S: Spec>(spec: &S, all: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(S::NAME)?;
    let mut separator = ':';
    for (index, key) in S::KEYS.iter().enumerate() {
        let value = spec.get(index);
        if value != Value::Absent && (all || !spec.is_default(index)) {
            write!(f, "{separator}{}={value}", key.name)?;
            separator = ',';
        }
    }
    Ok(())
}

/// Describes a codec in the list of all codecs.
///
/// ```
/// use octaplex::CodecSpec;
///
/// let int = CodecSpec::all().iter().find(|codec| codec.name == "int").unwrap();
/// assert_eq!(int.keys[0].to_string(), "bits=2..=8");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodecInfo {
    /// The codec's name in specs.
    pub name: &'static str,
    /// A description in a few words.
    pub summary: &'static str,
    /// The keys of the codec's spec.
    pub keys: &'static [Key],
    /// Specs that together reach every branch of the codec, and a width for each.
    ///
    /// The default spec comes first. Tests and checksums use these specs. Dense rotations and sketches are not among
    /// them, because they need a heap.
    pub samples: &'static [Sample],
}

#[cfg(test)]
mod tests {
    use crate::CodecSpec;

    #[test]
    fn keys_exclude_keys_before_them() {
        let mut count = 0;
        for codec in CodecSpec::all() {
            for (number, key) in codec.keys.iter().enumerate() {
                for name in key.excludes {
                    let exists = codec.keys[..number].iter().any(|earlier| earlier.name == *name);
                    assert!(exists, "{}: no key `{name}` before `{}`", codec.name, key.name);
                    count += 1;
                }
            }
        }
        assert!(count >= 8, "{count}");
    }
}
