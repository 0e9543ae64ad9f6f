//! Prints and parses profiles.

use super::{Decimal, Profile, check_codec};
use crate::spec::as_text;
use crate::{CodecSpec, Error};
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::str::FromStr;

const FIRST_LINE: &str = "octaplex-profile 1";
const ROLES: [&str; 2] = ["keys", "values"];

impl Profile {
    /// Writes all lines except the digest.
    fn write_body(&self, f: &mut impl Write) -> fmt::Result {
        writeln!(f, "{FIRST_LINE}")?;
        writeln!(f, "model {}", self.model)?;
        writeln!(f, "layers {}", self.layers.len())?;
        writeln!(f, "kv_heads {}", self.kv_heads)?;
        writeln!(f, "key_dim {}", self.dims[0])?;
        writeln!(f, "value_dim {}", self.dims[1])?;
        writeln!(f, "# codecs and their factors: the divergence beside that of the codec with factor 1")?;
        for (role, curve) in ROLES.iter().zip(&self.curves) {
            curve.iter().try_for_each(|(spec, factor)| writeln!(f, "{role} {spec} {factor}"))?;
        }
        writeln!(f, "# layers, the sensitivities of their keys and of their values, in nats")?;
        let mut layers = self.layers.iter().enumerate();
        layers.try_for_each(|(layer, [keys, values])| writeln!(f, "layer {layer} {keys} {values}"))
    }

    /// Returns the CRC-32 of the body as [`write_body`](Self::write_body) prints it.
    ///
    /// So comments and spaces of a file do not matter. But the two comments that `write_body` prints are part of the
    /// digest: never change them.
    fn digest(&self) -> u32 {
        struct Digest(crc32fast::Hasher);
        impl Write for Digest {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.update(text.as_bytes());
                Ok(())
            }
        }
        let mut digest = Digest(crc32fast::Hasher::new());
        let _ = self.write_body(&mut digest); // this cannot fail
        digest.0.finalize()
    }
}

/// Prints the profile as text. [`FromStr`] parses it.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_body(f)?;
        writeln!(f, "digest {:08x}", self.digest())
    }
}

/// Prints up to nine digits after the point, without zeros at the end.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, mut rest, mut digits) = (self.0 / Self::ONE, self.0 % Self::ONE, 9);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        while rest % 10 == 0 {
            (rest, digits) = (rest / 10, digits - 1);
        }
        write!(f, "{whole}.{rest:0digits$}")
    }
}

impl Decimal {
    /// Parses one to four digits, and optionally a point and one to nine digits.
    fn parse(text: &str) -> Option<Self> {
        let (whole, digits) = text.split_once('.').unwrap_or((text, "0"));
        let number = |text: &str, longest| {
            let is_plain =
                (1..=longest).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
            if is_plain { text.parse::<u64>().ok() } else { None }
        };
        let rest = number(digits, 9)? * 10u64.pow(9 - digits.len() as u32);
        Some(Self(number(whole, 4)? * Self::ONE + rest))
    }
}

/// The lines of a text except empty lines and comments, with their numbers from 1.
struct Lines<'a> {
    lines: core::iter::Enumerate<core::str::Lines<'a>>,
    /// Number of the line that was read last.
    number: usize,
}

impl<'a> Lines<'a> {
    /// Returns the number and the text of the next line, without reading it.
    fn peek(&self) -> Option<(usize, &'a str)> {
        let has_content = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let mut lines = self.lines.clone().map(|(number, line)| (number + 1, line.trim()));
        lines.find(|(_, line)| has_content(line))
    }

    /// Reads the next line if it begins with `word`, and returns the rest of it.
    fn next_if(&mut self, word: &str) -> Option<&'a str> {
        let (number, line) = self.peek()?;
        let rest = line.strip_prefix(word)?;
        if !rest.is_empty() && !rest.starts_with(' ') {
            return None;
        }
        while self.number < number {
            self.lines.next();
            self.number += 1;
        }
        Some(rest.trim_start())
    }

    /// Reads the next line, which must begin with `word`, and returns the rest of it.
    fn expect(&mut self, word: &str, why: &'static str) -> Result<&'a str, Error> {
        match self.next_if(word) {
            Some(rest) => Ok(rest),
            None if self.peek().is_none() => {
                Err(Error::Profile { line: self.number + 1, why: "the text ends here: it is truncated" })
            }
            None => {
                self.number = self.peek().map_or(0, |(number, _)| number);
                self.refuse(why)
            }
        }
    }

    /// Reads a line of `word` and a number from 1 to 65,536.
    fn number(&mut self, word: &str, why: &'static str) -> Result<usize, Error> {
        let text = self.expect(word, why)?;
        crate::spec::parse_int(text, 1..=1 << 16)
            .map_or_else(|| self.refuse(why), |number| Ok(number as usize))
    }

    const fn refuse<T>(&self, why: &'static str) -> Result<T, Error> {
        Err(Error::Profile { line: self.number, why })
    }

    fn decimal(&self, text: &str) -> Result<Decimal, Error> {
        let why = "expected a number from 0 to 10,000 with at most nine digits after the point";
        Decimal::parse(text).map_or_else(|| self.refuse(why), Ok)
    }
}

/// Parses a profile. It skips empty lines and lines that begin with `#`.
impl FromStr for Profile {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut lines = Lines { lines: text.lines().enumerate(), number: 0 };
        let version =
            lines.expect("octaplex-profile", "expected \"octaplex-profile 1\": this is no profile")?;
        if version != "1" {
            return lines.refuse("the profile is of another version: this library reads version 1");
        }
        let model = lines.expect("model", "expected \"model\" and its name")?.into();
        let count = lines.number("layers", "expected \"layers\" and their number, 1 to 65,536")?;
        let kv_heads = lines.number("kv_heads", "expected \"kv_heads\" and their number, 1 to 65,536")?;
        let dims = [
            lines.number("key_dim", "expected \"key_dim\" and the width of a key")?,
            lines.number("value_dim", "expected \"value_dim\" and the width of a value")?,
        ];
        let mut curves = [Vec::new(), Vec::new()];
        for (role, curve) in curves.iter_mut().enumerate() {
            while let Some(rest) = lines.next_if(ROLES[role]) {
                let Some((spec, factor)) = rest.split_once(' ') else {
                    return lines.refuse("expected a codec and its factor");
                };
                let Ok(spec) = spec.parse::<CodecSpec>() else {
                    return lines.refuse("this version has no such codec");
                };
                check_codec(spec, dims[role]).or_else(|why| lines.refuse(why))?;
                curve.push((spec, lines.decimal(factor.trim_start())?));
            }
        }
        let mut layers = Vec::new();
        for number in 0..count {
            const WHY: &str =
                "expected \"layer\", the next layer's number, and the sensitivities of its keys and values";
            let mut words = lines.expect("layer", WHY)?.split(' ').filter(|word| !word.is_empty());
            let [found, keys, values, None] = [words.next(), words.next(), words.next(), words.next()] else {
                return lines.refuse(WHY);
            };
            if found.and_then(|found| crate::spec::parse_int(found, 0..=1 << 16)) != Some(number as u64) {
                return lines.refuse(WHY);
            }
            let of = |word: Option<&str>| word.map_or_else(|| lines.refuse(WHY), |word| lines.decimal(word));
            layers.push([of(keys)?, of(values)?]);
        }
        let digest =
            lines.expect("digest", "expected \"digest\": there are more layers than \"layers\" says")?;
        let profile = Self { model, kv_heads, dims, curves, layers };
        profile.check().or_else(|why| lines.refuse(why))?;
        if digest != alloc::format!("{:08x}", profile.digest()) {
            return lines.refuse("the digest does not match: the file was changed");
        }
        match lines.peek() {
            Some((line, _)) => {
                Err(Error::Profile { line, why: "a line follows the digest, which must be the last" })
            }
            None => Ok(profile),
        }
    }
}

as_text!(Profile, "the text of a profile");
