//! From a number of bits to codecs.

use super::{Decimal, Profile, product};
use crate::cache::CacheConfig;
use crate::{CodecSpec, Error, LayerConfig};
use alloc::vec::Vec;

/// A codec that the solver may take.
#[derive(Clone, Copy)]
struct Choice {
    spec: CodecSpec,
    /// Of a page's rows, beside what all choices have in common.
    bytes: usize,
    factor: Decimal,
}

/// The next better codec of a layer's keys or values.
struct Step {
    layer: usize,
    /// 0: keys, 1: values.
    role: usize,
    /// The choice that it leads to.
    choice: usize,
    bytes: usize,
    /// The divergence that it saves.
    saved: u128,
}

impl Profile {
    /// Returns each layer's configuration, with codecs whose pages take at most `bits` bits a value as the mean of all layers,
    /// and whose expected divergence is the least. [`CacheConfig::boundary_layers`](field@CacheConfig::boundary_layers) stay in
    /// f16 and count.
    ///
    /// It starts with the smallest codecs and takes the step that saves most for its bytes, until the bits are spent. With steps
    /// as small as a layer's that is as good as an exhaustive search, within a step.
    ///
    /// ```no_run
    /// use octaplex::{CacheConfig, Profile};
    ///
    /// let profile: Profile = std::fs::read_to_string("smollm2-135m.octaprofile")?.parse()?;
    /// let layers = profile.solve(&CacheConfig::new(30, 3, 64, 4096), 2.2)?; // 30 layers of 3 heads of width 64
    /// println!("{} {}", layers[0].keys, layers[0].values);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ProfileShape`] for a cache of another shape, [`Error::Unsupported`] for bits that are not finite or fewer than
    /// the profile's smallest codecs take, and for an impossible configuration.
    pub fn solve(&self, config: &CacheConfig, bits: f64) -> Result<Vec<LayerConfig>, Error> {
        if !bits.is_finite() {
            return Err(Error::Unsupported { why: "bits a value are a finite number" });
        }
        config.each.check()?;
        self.check_shape(config)?;
        let [keys, values] = self.choices(&config.each);
        let with = |keys: Choice, values: Choice| config.each.keys(keys.spec).values(values.spec);
        let mut layers: Vec<_> =
            CacheConfig { finer: None, each: with(keys[0], values[0]), ..*config }.layers().collect();
        let inner = config.boundary_layers..layers.len().saturating_sub(config.boundary_layers);

        let spent = layers.iter().fold(0usize, |sum, layer| sum.saturating_add(layer.page_bytes()));
        let total = bits * layers.len() as f64 * config.each.page_values() as f64 / 8.0;
        let why = "the profile's smallest codecs take more bits than that: give more";
        let mut left = (total as usize).checked_sub(spent).ok_or(Error::Unsupported { why })?;

        let choices = [keys, values];
        let mut taken = alloc::vec![[Some(0); 2]; layers.len()];
        for step in self.steps(inner, &choices) {
            let taken = &mut taken[step.layer][step.role];
            // A layer whose step did not fit takes no later one: that would skip it.
            if *taken != Some(step.choice - 1) {
                continue;
            }
            match left.checked_sub(step.bytes) {
                None => *taken = None,
                Some(rest) => {
                    (left, *taken) = (rest, Some(step.choice));
                    let layer = &mut layers[step.layer];
                    let spec = if step.role == 0 { &mut layer.keys } else { &mut layer.values };
                    *spec = choices[step.role][step.choice].spec;
                }
            }
        }
        Ok(layers)
    }

    fn check_shape(&self, config: &CacheConfig) -> Result<(), Error> {
        let LayerConfig { kv_heads, key_dim, value_dim, .. } = config.each;
        for (what, profile, cache) in [
            ("layers", self.layers.len(), config.layers),
            ("key/value heads", self.kv_heads, kv_heads),
            ("values in a key", self.dims[0], key_dim),
            ("values in a value vector", self.dims[1], value_dim),
        ] {
            if profile != cache {
                return Err(Error::ProfileShape { what, profile, cache });
            }
        }
        Ok(())
    }

    /// The codecs worth taking, from small to large: those on the lower convex hull of bytes and factors. Any other costs more
    /// for what it saves than the two around it. All layers have the same hull, because sensitivities only scale it.
    fn choices(&self, each: &LayerConfig) -> [Vec<Choice>; 2] {
        // The other role has any codec meanwhile: it takes the same bytes beside all choices.
        let other = [0, 1].map(|role| self.curves[role].iter().map(|(spec, _)| *spec).next());
        [0, 1].map(|role| {
            let of = |&(spec, factor): &(CodecSpec, Decimal)| {
                let (keys, values) = if role == 0 { (Some(spec), other[1]) } else { (other[0], Some(spec)) };
                let config = each.keys(keys.unwrap_or(each.keys)).values(values.unwrap_or(each.values));
                Choice { spec, bytes: config.page_bytes(), factor }
            };
            let key = |choice: &Choice| (choice.bytes, choice.factor.0);
            // Sorted as they come: they are few, and a second sort would be 2 kB of a WebAssembly module.
            let mut choices: Vec<Choice> = Vec::new();
            for choice in self.curves[role].iter().map(of) {
                let at = choices.partition_point(|before| key(before) <= key(&choice));
                choices.insert(at, choice);
            }
            hull(choices)
        })
    }

    /// All steps of all layers, the one that saves most for its bytes first.
    fn steps(&self, layers: core::ops::Range<usize>, choices: &[Vec<Choice>; 2]) -> Vec<Step> {
        let mut steps = Vec::new();
        for layer in layers {
            for (role, choices) in choices.iter().enumerate() {
                steps.extend(choices.windows(2).enumerate().map(|(number, pair)| Step {
                    layer,
                    role,
                    choice: number + 1,
                    bytes: pair[1].bytes - pair[0].bytes,
                    saved: product(self.layers[layer][role], Decimal(pair[0].factor.0 - pair[1].factor.0)),
                }));
            }
        }
        // Savings are below 2⁸⁸ and bytes below 2³¹. Where steps save alike, the order of layers decides, as the sort is stable.
        steps.sort_by(|a, b| (b.saved * a.bytes as u128).cmp(&(a.saved * b.bytes as u128)));
        steps
    }
}

/// Those of the choices, sorted by bytes, that lie on the lower convex hull.
fn hull(choices: Vec<Choice>) -> Vec<Choice> {
    let mut hull: Vec<Choice> = Vec::new();
    for next in choices {
        if hull.last().is_some_and(|last| last.factor.0 <= next.factor.0) {
            continue; // larger, and no better
        }
        while let [.., a, b] = hull[..]
            && saved_between(a, b) * (next.bytes - b.bytes) as u128
                <= saved_between(b, next) * (b.bytes - a.bytes) as u128
        {
            hull.pop();
        }
        hull.push(next);
    }
    hull
}

const fn saved_between(worse: Choice, better: Choice) -> u128 {
    (worse.factor.0 - better.factor.0) as u128
}
