//! Sessions: tokens and their compressed cache in a file, so that a later run continues without computing them again.

use super::attention::Cached;
use crate::console::is_dash;
use crate::failure::{Failure, Result, fail, shown};
use crate::files;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file begins with `octasess`, then version and checksum of the rest as u32. The head as JSON and each layer's
/// snapshot follow, with a length of u64 before each.
const MAGIC: &[u8; 8] = b"octasess";
const VERSION: u32 = 1;
const START: usize = 16;

/// A file that stores a cache between runs.
pub(crate) struct Session {
    path: PathBuf,
    head: Head,
    /// The whole file, and the place where the layers begin; empty for a new file.
    bytes: Vec<u8>,
    layers: usize,
}

#[derive(Serialize, Deserialize)]
struct Head {
    /// Model, codecs and layout, which all runs of a session share.
    run: Value,
    tokens: Vec<u32>,
    prefill: Prefill,
}

/// A number of tokens that were read at once, and the time.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Prefill {
    pub(crate) tokens: usize,
    pub(crate) seconds: f64,
}

impl Prefill {
    pub(crate) fn new(tokens: usize, time: Duration) -> Self {
        Self { tokens, seconds: time.as_secs_f64() }
    }

    /// Estimates the seconds to read `tokens` tokens.
    pub(crate) fn seconds_for(&self, tokens: usize) -> f64 {
        self.seconds * tokens as f64 / self.tokens.max(1) as f64
    }
}

impl Session {
    /// Opens the session at `path`, if the file exists. It must be of a run like this one.
    pub(crate) fn open(path: &Path, run: Value) -> Result<Self> {
        if is_dash(path) {
            fail!("--session {}: a session is a file", path.display());
        }
        let head = Head { run, tokens: Vec::new(), prefill: Prefill::default() };
        let mut session = Self { path: path.to_owned(), head, bytes: Vec::new(), layers: 0 };
        if path.try_exists().map_err(|error| files::at_path(path, &error))? {
            session.bytes = files::read_regular(path, u64::MAX)?;
            session.read_head()?;
        }
        Ok(session)
    }

    /// Adds advice to a failure.
    fn refuse<T>(&self, why: impl std::fmt::Display) -> Result<T> {
        let path = self.path.display();
        fail!("{path}: {why}; it stays as it is: name another file with --session, or delete this one")
    }

    fn read_head(&mut self) -> Result<()> {
        let word = |at: usize| self.bytes.get(at..at + 4)?.first_chunk().map(|b| u32::from_le_bytes(*b));
        let (version, checksum) = (word(8), word(12));
        if self.bytes.get(..8) != Some(MAGIC) {
            return self.refuse("not a session of octaplex generate");
        }
        if let Some(version) = version.filter(|version| *version != VERSION) {
            return self.refuse(format!("a session of version {version}, and this program knows {VERSION}"));
        }
        if checksum.is_none_or(|sum| sum != crc32fast::hash(&self.bytes[START..])) {
            return self.refuse("a damaged session (its checksum is another one)");
        }
        let mut at = START;
        let head = self.section(&mut at).and_then(|bytes| serde_json::from_slice::<Head>(bytes).ok());
        let Some(head) = head else { return self.refuse("a damaged session (no head)") };
        let differs = |(key, now): (&String, &Value)| {
            let then = &head.run[key];
            (then != now).then(|| format!("{key} {} and not {now}", shown(&then.to_string())))
        };
        let differing: Vec<_> = self.head.run.as_object().into_iter().flatten().filter_map(differs).collect();
        if !differing.is_empty() {
            return self.refuse(format!("a session of another run, with {}", differing.join(", ")));
        }
        (self.head, self.layers) = (head, at);
        Ok(())
    }

    /// Returns the bytes behind the length at `at`, and moves `at` behind them.
    fn section(&self, at: &mut usize) -> Option<&[u8]> {
        let length = u64::from_le_bytes(*self.bytes.get(*at..)?.first_chunk()?);
        let start = *at + 8;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        let section = self.bytes.get(start..end)?;
        *at = end;
        Some(section)
    }

    /// Returns the tokens of the session.
    pub(crate) fn tokens(&self) -> usize {
        self.head.tokens.len()
    }

    /// Returns the largest of its prefills.
    pub(crate) fn prefill(&self) -> Prefill {
        self.head.prefill
    }

    /// Fills an empty cache with the common start of the prompt and the session, without the prompt's last token, whose
    /// logits are needed. Returns the number of these tokens, and a note about the others.
    pub(crate) fn resume(
        &mut self,
        cache: &mut Cached,
        layers: usize,
        prompt: &[u32],
    ) -> Result<(usize, String)> {
        let saved = self.tokens();
        if saved == 0 {
            return Ok((0, "new".into()));
        }
        let mut at = self.layers;
        for layer in 0..layers {
            let loaded = match self.section(&mut at) {
                Some(bytes) => cache.load(layer, saved, bytes),
                None => Err(Failure(format!("no layer {layer}"))),
            };
            loaded.or_else(|failure| self.refuse(format!("a damaged session ({failure})")))?;
        }
        if at != self.bytes.len() {
            return self.refuse("a damaged session (bytes behind its end)");
        }
        self.bytes = Vec::new();
        let same = self.head.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let wanted = same.min(prompt.len() - 1);
        let cut = if wanted < saved { cache.keep(wanted) } else { Ok(saved) };
        let kept = cut.unwrap_or(0);
        let mut note = format!("{kept} of {saved} saved tokens taken over");
        if same < saved.min(prompt.len()) {
            note += &format!("; the prompt differs from its token {} on", same + 1);
        } else if same < saved {
            note += "; the prompt ends before the others";
        }
        if let Err(why) = cut {
            note += &format!("; all computed anew: {why}");
        }
        Ok((kept, note))
    }

    /// Writes a new file under another name first, so that an interruption keeps the old one. Returns its bytes.
    pub(crate) fn save(&mut self, cache: &Cached, tokens: &[u32], prefill: Prefill) -> Result<usize> {
        self.head.tokens = tokens.to_vec();
        if prefill.tokens >= self.head.prefill.tokens {
            self.head.prefill = prefill;
        }
        let head = serde_json::to_vec(&self.head).map_err(|error| Failure(error.to_string()))?;
        let mut bytes = vec![0; START];
        for section in std::iter::once(head).chain(cache.save()) {
            bytes.extend((section.len() as u64).to_le_bytes());
            bytes.extend(section);
        }
        let checksum = crc32fast::hash(&bytes[START..]);
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..START].copy_from_slice(&checksum.to_le_bytes());
        files::write(&self.path, &bytes)?;
        Ok(bytes.len())
    }
}
