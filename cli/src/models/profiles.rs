//! Profiles of models: which layers lose less than others.

use crate::codecs::shown_spec;
use crate::failure::{At, Result};
use crate::files;
use octaplex::{CodecSpec, Profile};
use std::path::Path;
use std::sync::Arc;

/// Codecs of a layer's keys and values.
pub(crate) type Pair = [CodecSpec; 2];

/// The most bytes of a profile; usual ones have a few thousand.
const LARGEST: u64 = 1 << 20;

/// Reads the profile in a file.
pub(crate) fn read_profile(path: &Path) -> Result<Arc<Profile>> {
    let text = files::text(path, files::read_regular(path, LARGEST)?)?;
    Ok(Arc::new(text.parse().at(path.display())?))
}

/// Lists the codecs of keys and of values of all layers, the smallest first.
pub(crate) fn all_layers(layers: &[Pair]) -> [String; 2] {
    [0, 1].map(|role| {
        let mut counts: Vec<(CodecSpec, usize)> = Vec::new();
        for spec in layers.iter().map(|pair| pair[role]) {
            match counts.iter_mut().find(|(other, _)| *other == spec) {
                Some((_, count)) => *count += 1,
                None => counts.push((spec, 1)),
            }
        }
        counts.sort_by_key(|(spec, _)| spec.block_bytes(64));
        let name = |(spec, count): &(CodecSpec, usize)| format!("{} in {count}", shown_spec(*spec));
        counts.iter().map(name).collect::<Vec<_>>().join(", ")
            + if layers.len() == 1 { " layer" } else { " layers" }
    })
}

/// Draws a line for each layer: the bits of its keys and of its values, as bars.
pub(crate) fn picture(layers: &[Pair], dim: usize) -> String {
    let bar = |spec: CodecSpec| {
        // Without the norms of rows, which differ by the kind of page.
        let bits = spec.bits_per_value(dim);
        format!("{} {bits:.1}", "▇".repeat((3.0 * bits).round() as usize))
    };
    let rows =
        layers.iter().enumerate().map(|(layer, [k, v])| format!("{layer:>4}  {:<26} {}\n", bar(*k), bar(*v)));
    format!("      {:<26} values\n{}", "keys", rows.collect::<String>())
}
