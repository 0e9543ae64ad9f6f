//! Chooses codecs for a number of bits.

use super::{Decimal, Profile, product};
use crate::cache::CacheConfig;
use crate::{CodecSpec, Error, LayerConfig};
use alloc::vec::Vec;

/// A codec that the solver can choose.
#[derive(Clone, Copy)]
struct Choice {
    spec: CodecSpec,
    /// Bytes of a page with this codec. They include bytes that are the same for all choices, so only differences
    /// count.
    bytes: usize,
    factor: Decimal,
}

/// A change to the next better codec of a layer's keys or values.
struct Step {
    layer: usize,
    /// 0 for keys, 1 for values.
    role: usize,
    /// Index of the better codec among the choices.
    choice: usize,
    /// Extra bytes of a page.
    bytes: usize,
    /// The divergence that the step saves.
    saved: u128,
}

impl Profile {
    /// Chooses codecs with the least expected divergence whose pages take at most `bits` bits a value, as the mean of
    /// all layers. Returns each layer's configuration.
    ///
    /// [`CacheConfig::boundary_layers`](field@CacheConfig::boundary_layers) stay in f16, and their bits count.
    ///
    /// The search starts with the smallest codecs. It takes the step that saves most divergence for its bytes, until
    /// the bits are spent:
    ///
    /// ```text
    ///  divergence │ a           a: the smallest codec; a → b, then b → d are the steps of one layer's keys or values
    ///             │    b   c    c: never chosen, because it lies above the line from b to d
    ///             │          d
    ///             └─────────── bytes
    /// ```
    ///
    /// Each step changes only the keys or the values of one layer. So the result is as good as that of an exhaustive
    /// search, within one step.
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
    /// * [`Error::ProfileShape`] if the cache has other layers, heads or widths than the profile.
    /// * [`Error::Unsupported`] if `bits` is not finite, or less than the profile's smallest codecs take.
    /// * [`Error::Unsupported`], [`Error::Width`] and others for an impossible configuration.
    pub fn solve(&self, config: &CacheConfig, bits: f64) -> Result<Vec<LayerConfig>, Error> {
        if !bits.is_finite() {
            return Err(Error::Unsupported { why: "the bits a value must be a finite number" });
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
        let why = "the profile's smallest codecs take more bits than this: give more bits";
        let mut left = (total as usize).checked_sub(spent).ok_or(Error::Unsupported { why })?;

        let choices = [keys, values];
        let mut taken = alloc::vec![[Some(0); 2]; layers.len()];
        for step in self.steps(inner, &choices) {
            let taken = &mut taken[step.layer][step.role];
            // If a step did not fit, skip the later steps of this layer and role: they start from its codec.
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

    /// Returns the codecs of keys and of values on the lower convex hull of bytes and factors, smallest first.
    ///
    /// Any other codec costs more bytes for the divergence it saves than its two neighbours on the hull. All layers
    /// have the same hull, because sensitivities only scale it.
    fn choices(&self, each: &LayerConfig) -> [Vec<Choice>; 2] {
        // The codec of the other role does not matter: it adds the same bytes to all choices.
        let other = [0, 1].map(|role| self.curves[role].iter().map(|(spec, _)| *spec).next());
        [0, 1].map(|role| {
            let of = |&(spec, factor): &(CodecSpec, Decimal)| {
                let (keys, values) = if role == 0 { (Some(spec), other[1]) } else { (other[0], Some(spec)) };
                let config = each.keys(keys.unwrap_or(each.keys)).values(values.unwrap_or(each.values));
                Choice { spec, bytes: config.page_bytes(), factor }
            };
            let key = |choice: &Choice| (choice.bytes, choice.factor.0);
            // Insert in order. There are few, and calling `sort` here would add 2 kB to a WebAssembly module.
            let mut choices: Vec<Choice> = Vec::new();
            for choice in self.curves[role].iter().map(of) {
                let at = choices.partition_point(|before| key(before) <= key(&choice));
                choices.insert(at, choice);
            }
            hull(choices)
        })
    }

    /// Returns the steps of all layers. The step that saves most divergence for its bytes comes first.
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
        // Savings are below 2⁸⁸ and bytes below 2³¹, so products fit u128. The sort is stable: among equal steps, the
        // first layer comes first.
        steps.sort_by(|a, b| (b.saved * a.bytes as u128).cmp(&(a.saved * b.bytes as u128)));
        steps
    }
}

/// Returns the choices that lie on the lower convex hull. They are sorted by bytes, and so is the result.
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
