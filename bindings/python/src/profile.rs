//! Profiles of models: what is measured, the text that follows, and what it expects.

use crate::{OrRaise, Result, spec};
use octaplex::codecs::Role;
use octaplex::{LayerConfig, Profile, profile};
use pyo3::prelude::*;

#[pyclass(frozen, module = "octaplex._octaplex")]
pub(crate) struct Calibration(profile::Calibration);

#[pymethods]
impl Calibration {
    #[new]
    fn new(layers: usize, kv_heads: usize, head_dim: usize) -> Result<Self> {
        profile::Calibration::new(layers, &LayerConfig::new(kv_heads, head_dim, 0)).or_raise().map(Self)
    }

    /// (role, codec, layer) of each measurement.
    fn cases(&self) -> Vec<(&'static str, String, Option<usize>)> {
        let name = |role| match role {
            Role::Keys => "keys",
            Role::Values => "values",
        };
        self.0.cases().map(|case| (name(case.role), case.codec.to_string(), case.layer)).collect()
    }

    /// The text of the profile.
    fn profile(&self, model: &str, divergences: Vec<f64>) -> Result<String> {
        Ok(self.0.profile(model, &divergences).or_raise()?.to_string())
    }
}

/// The divergence that a profile expects of these codecs of each layer's keys and values.
#[pyfunction]
pub(crate) fn expected_divergence(profile: &str, specs: Vec<(String, String)>) -> Result<Option<f64>> {
    let profile = profile.parse::<Profile>().or_raise()?;
    let layer = LayerConfig::new(profile.kv_heads(), profile.key_dim(), 0);
    let layers = specs.iter().map(|(keys, values)| Ok(layer.keys(spec(keys)?).values(spec(values)?)));
    Ok(profile.divergence(&layers.collect::<Result<Vec<_>>>()?))
}
