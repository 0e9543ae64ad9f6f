//! The shape of a model's cache: which heads each layer has, and how many tokens it holds.

use crate::failure::{Result, fail};

/// The most layers of a model, and the most heads or values a token of a layer.
pub(super) const LAYERS: usize = 4096;
pub(super) const MOST: usize = 1 << 20;
/// The largest number that a file may give for a count.
pub(super) const LARGEST: usize = MOST * 16;

/// A layer with keys and values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Layer {
    pub(super) kv_heads: usize,
    pub(super) key_dim: usize,
    /// 0 with latent attention, whose values are a part of its keys.
    pub(super) value_dim: usize,
    /// Tokens that the layer holds; `None` for all.
    pub(super) window: Option<usize>,
}

impl Layer {
    /// Returns the number of values a token.
    pub(super) fn values(&self) -> usize {
        self.kv_heads * (self.key_dim + self.value_dim)
    }

    /// Returns the number of tokens that the layer holds after `tokens`.
    pub(super) fn held(&self, tokens: usize) -> usize {
        self.window.map_or(tokens, |window| window.min(tokens))
    }
}

/// The layers of a model that have keys and values of their own.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) layers: Vec<Layer>,
    /// Tokens that the model was trained for.
    pub(super) context: Option<usize>,
    /// Sentences about what is assumed, and what is not counted.
    pub(super) notes: Vec<String>,
}

/// A layer's kind of attention.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Kind {
    Full,
    /// Its queries see the newest tokens only.
    Sliding,
    /// It has no keys and values that grow with the context. The name is for people.
    Other(String),
}

/// Kinds of layers whose last one of `period` is full.
pub(super) fn last_of(period: usize, layers: usize, others: &Kind) -> Vec<Kind> {
    let kind =
        |layer: usize| if (layer + 1).is_multiple_of(period.max(1)) { Kind::Full } else { others.clone() };
    (0..layers).map(kind).collect()
}

impl Shape {
    /// Joins the kinds of all layers with the sizes of each. `sizes` are heads, width of keys, and width of values.
    pub(super) fn new(
        kinds: &[Kind],
        window: Option<usize>,
        sizes: impl Fn(usize, &Kind) -> Result<[usize; 3]>,
        mut notes: Vec<String>,
    ) -> Result<Self> {
        let (mut layers, mut others) = (Vec::new(), Vec::<(&str, usize)>::new());
        for (number, kind) in kinds.iter().enumerate() {
            if let Kind::Other(name) = kind {
                match others.iter_mut().find(|(known, _)| known == name) {
                    Some((_, count)) => *count += 1,
                    None => others.push((name, 1)),
                }
                continue;
            }
            let [kv_heads, key_dim, value_dim] = sizes(number, kind)?;
            let values = kv_heads.saturating_mul(key_dim.saturating_add(value_dim));
            if values == 0 || values > MOST {
                fail!("layer {number} has {kv_heads} key/value heads of width {key_dim}");
            }
            let window = window.filter(|_| *kind == Kind::Sliding);
            layers.push(Layer { kv_heads, key_dim, value_dim, window });
        }
        for (name, count) in others {
            notes.push(format!("Not counted: {count} layers of {name}."));
        }
        if layers.is_empty() {
            fail!("no layer has keys and values");
        }
        Ok(Self { layers, context: None, notes })
    }

    /// Returns whether keys and values are one latent vector (MLA).
    pub(super) fn is_latent(&self) -> bool {
        self.layers.iter().any(|layer| layer.value_dim == 0)
    }

    /// Describes the layers: `24 layers, 8 key/value heads of width 128`.
    pub(super) fn describe(&self) -> String {
        let mut groups: Vec<(Layer, usize)> = Vec::new();
        for layer in &self.layers {
            match groups.iter_mut().find(|(known, _)| known == layer) {
                Some((_, count)) => *count += 1,
                None => groups.push((*layer, 1)),
            }
        }
        let group = |(layer, count): &(Layer, usize)| {
            let Layer { kv_heads, key_dim, value_dim, window } = *layer;
            let width = match value_dim {
                0 => format!("one latent vector of {key_dim} values a token"),
                _ if value_dim == key_dim => format!("{kv_heads} key/value heads of width {key_dim}"),
                _ => format!("{kv_heads} key/value heads, keys of width {key_dim}, values of {value_dim}"),
            };
            let window = window.map_or(String::new(), |window| format!(" and a sliding window of {window}"));
            format!("{count} layers with {width}{window}")
        };
        groups.iter().map(group).collect::<Vec<_>>().join("; ")
    }
}
