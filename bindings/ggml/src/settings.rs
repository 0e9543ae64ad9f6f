//! Settings from environment variables.

use octaplex::cache::Choice;
use octaplex::cells::PAGE;
use octaplex::codecs::{F16Spec, Role};
use octaplex::{Backend, CacheConfig, CodecSpec, LayerConfig, Profile};
use std::{env, fs};

const NAMES: [&str; 9] = [
    "OCTAPLEX_KEYS",
    "OCTAPLEX_VALUES",
    "OCTAPLEX_BITS",
    "OCTAPLEX_PROFILE",
    "OCTAPLEX_SINKS",
    "OCTAPLEX_WINDOW",
    "OCTAPLEX_BACKEND",
    "OCTAPLEX_ONLY_KNOWN",
    "OCTAPLEX_GPU",
];

/// The settings of all caches.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The choice of codecs.
    choice: Choice,
    /// The layers of the model that a profile is of, with their codecs.
    layers: Vec<LayerConfig>,
    /// First tokens of a sequence, which stay exact.
    pub(crate) sinks: usize,
    /// At least this many of the newest tokens stay exact.
    window: usize,
    /// The instruction set.
    pub(crate) backend: Backend,
    /// Whether versions of ggml that no test has seen are refused.
    pub(crate) only_known: bool,
    /// Whether caches on GPUs are compressed.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) gpu: bool,
}

/// Bytes of a profile, which has a few thousand.
const LARGEST_PROFILE: u64 = 1 << 20;

fn read_profile(path: &str) -> Result<Profile, String> {
    // Opening a pipe may take for ever, and a device may have no end.
    let about = fs::metadata(path).map_err(|why| why.to_string())?;
    if !about.is_file() || about.len() > LARGEST_PROFILE {
        return Err(format!("not a regular file of at most {LARGEST_PROFILE} bytes"));
    }
    let text = fs::read_to_string(path).map_err(|why| why.to_string())?;
    text.parse().map_err(|why| format!("{why}"))
}

impl Settings {
    pub(crate) fn from_environment() -> Result<Self, String> {
        for name in NAMES {
            if let Some(Err(text)) = env::var_os(name).map(std::ffi::OsString::into_string) {
                return Err(format!("{name}={}: the value is not UTF-8", text.to_string_lossy()));
            }
        }
        Self::from(|name| env::var(name).ok())
    }

    /// Returns the settings without any variable.
    pub(crate) fn none() -> Self {
        Self {
            choice: Choice::default(),
            layers: Vec::new(),
            sinks: 4,
            window: 64,
            backend: Backend::detect(),
            only_known: false,
            gpu: false,
        }
    }

    fn from(read: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let none = Self::none();
        let read = |name: &str| {
            debug_assert!(NAMES.contains(&name), "{name} is not in the list");
            read(name).filter(|text| !text.trim().is_empty())
        };
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
        let path = read("OCTAPLEX_PROFILE");
        // A profile has smaller codecs, for the layers that can do with them.
        let least = if path.is_some() { 1.0 } else { 2.3 };
        let bits = match read("OCTAPLEX_BITS") {
            Some(text) => match text.trim().parse::<f64>() {
                Ok(bits) if (least..=16.0).contains(&bits) => Some(bits),
                _ => return Err(format!("OCTAPLEX_BITS={text}: expected a number from {least} to 16")),
            },
            None => None,
        };
        let mut choice =
            Choice { keys: codec("OCTAPLEX_KEYS")?, values: codec("OCTAPLEX_VALUES")?, bits, profile: None };
        let mut layers = Vec::new();
        if let Some(path) = path {
            let wrong = |why: String| format!("OCTAPLEX_PROFILE={path}: {why}");
            let profile = read_profile(path.trim()).map_err(wrong)?;
            let mut config = CacheConfig::new(profile.layers(), profile.kv_heads(), profile.key_dim(), 4096);
            config.each.value_dim = profile.value_dim();
            choice.profile = Some(profile);
            layers = config.choose(&choice).map_err(|why| wrong(why.to_string()))?;
        } else if let Choice { keys: None, values: None, bits: Some(16.0), .. } = choice {
            let exact = Some(CodecSpec::F16(F16Spec));
            choice = Choice { keys: exact, values: exact, ..Choice::default() };
        } else if let (Err(why), Some(bits)) = (with_codecs(&choice, 1, 128), bits) {
            return Err(format!("OCTAPLEX_BITS={bits}: {why}"));
        }
        let backend = match read("OCTAPLEX_BACKEND") {
            Some(text) => Backend::named(text.trim()).ok_or_else(|| {
                let names: Vec<_> = Backend::available().map(Backend::name).collect();
                format!("OCTAPLEX_BACKEND={text}: expected one of {}", names.join(", "))
            })?,
            None => none.backend,
        };
        Ok(Self {
            choice,
            layers,
            sinks: number("OCTAPLEX_SINKS", none.sinks, PAGE)?,
            window: number("OCTAPLEX_WINDOW", none.window, 1 << 20)?,
            backend,
            only_known: number("OCTAPLEX_ONLY_KNOWN", 0, 1)? == 1,
            gpu: number("OCTAPLEX_GPU", none.gpu.into(), 1)? == 1,
        })
    }

    /// Returns the codec of a layer's keys or values, with `heads` heads of width `dim`.
    pub(crate) fn codec(
        &self,
        role: Role,
        layer: u32,
        heads: usize,
        dim: usize,
    ) -> Result<CodecSpec, String> {
        let each = if self.choice.profile.is_some() {
            let (config, number) = (self.layers.first(), self.layers.len());
            let width = |config: &LayerConfig| {
                if role == Role::Keys { config.key_dim } else { config.value_dim }
            };
            match self.layers.get(layer as usize) {
                Some(config) if (heads, dim) == (config.kv_heads, width(config)) => *config,
                _ => {
                    return Err(format!(
                        "OCTAPLEX_PROFILE is of another model: it has {number} layers of {} heads of width {}, and layer \
                         {layer} has {heads} of width {dim}",
                        config.map_or(0, |config| config.kv_heads),
                        config.map_or(0, width)
                    ));
                }
            }
        } else {
            with_codecs(&self.choice, heads, dim).map_err(|why| match self.choice.bits {
                Some(bits) => format!("{bits} bits at a width of {dim}: {why}"),
                None => why,
            })?
        };
        Ok(if role == Role::Keys { each.keys } else { each.values })
    }

    /// Returns how many pages of `streams` streams stay open.
    pub(crate) fn open_pages(&self, streams: usize) -> usize {
        streams.max(1) * (1 + self.window.div_ceil(PAGE))
    }
}

/// Returns the configuration of a layer with the codecs of a choice that has no profile.
fn with_codecs(choice: &Choice, heads: usize, dim: usize) -> Result<LayerConfig, String> {
    let config = CacheConfig::new(1, heads, dim, 4096).with_codecs(choice);
    config.map(|config| config.each).map_err(|why| why.to_string())
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
        [Role::Keys, Role::Values].map(|role| settings.codec(role, 0, 2, dim).unwrap().to_string())
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
        let backend = |name| of(&[("OCTAPLEX_BACKEND", name)]).unwrap().backend;
        assert_eq!(["scalar", " portable"].map(backend).map(Backend::name), ["scalar", "portable"]);
    }

    #[test]
    fn a_profile_spends_the_bits() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/smollm2-135m.octaprofile");
        let settings = of(&[("OCTAPLEX_PROFILE", path), ("OCTAPLEX_BITS", "1.9")]).unwrap();
        let codec = |layer, heads, dim| settings.codec(Role::Values, layer, heads, dim);
        let rates: Vec<_> = (0..30).map(|layer| codec(layer, 3, 64).unwrap().bits_per_value(64)).collect();
        assert!(rates.iter().any(|rate| *rate < 1.5) && rates.iter().any(|rate| *rate > 2.0), "{rates:?}");
        for (layer, heads, dim) in [(30, 3, 64), (0, 2, 64), (0, 3, 128)] {
            assert!(codec(layer, heads, dim).unwrap_err().contains("another model"));
        }
        let refused = |path, bits| of(&[("OCTAPLEX_PROFILE", path), ("OCTAPLEX_BITS", bits)]).unwrap_err();
        assert!(refused(path, "1.0").contains("more bits"), "{}", refused(path, "1.0"));
        assert!(refused("no such file", "2.5").starts_with("OCTAPLEX_PROFILE=no such file: "));
        assert!(refused(".", "2.5").contains("not a regular file"));
        #[cfg(unix)]
        assert!(refused("/dev/zero", "2.5").contains("not a regular file"));
        assert!(refused(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "2.5").contains("no profile"));
        assert!(of(&[("OCTAPLEX_PROFILE", path)]).unwrap_err().contains("set bits as well"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let both = of(&[("OCTAPLEX_BITS", "4"), ("OCTAPLEX_KEYS", "f16")]).unwrap_err();
        assert!(both.starts_with("OCTAPLEX_BITS=4: ") && both.contains("either bits or codecs"), "{both}");
        for (name, text, why) in [
            ("OCTAPLEX_KEYS", "trelis", "no such codec"),
            ("OCTAPLEX_BITS", "1", "2.3 to 16"),
            ("OCTAPLEX_BITS", "NaN", "2.3 to 16"),
            ("OCTAPLEX_SINKS", "65", "0 to 64"),
            ("OCTAPLEX_WINDOW", "-1", "0 to"),
            ("OCTAPLEX_PROFILE", "none", "o such file"),
            ("OCTAPLEX_BACKEND", "avx1024", "scalar"),
            ("OCTAPLEX_ONLY_KNOWN", "yes", "0 to 1"),
        ] {
            let error = of(&[(name, text)]).unwrap_err();
            assert!(error.starts_with(&format!("{name}={text}: ")) && error.contains(why), "{error}");
        }
    }
}
