//! The sizes of a model.

/// The sizes of a model.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Tokens that it was trained for.
    pub(crate) context: usize,
    /// Of its norms.
    pub(crate) epsilon: f32,
    /// None: all layers are global.
    pub(crate) local: Option<Local>,
}

/// Layers whose queries see the newest tokens only (Gemma).
#[derive(Clone, Copy)]
pub(crate) struct Local {
    /// Tokens that they see, their own included.
    pub(crate) window: usize,
    /// The last of so many layers is global.
    pub(crate) period: usize,
}

impl Shape {
    /// Tokens that queries of a layer see, their own included; `None` for all.
    pub(crate) fn window(&self, layer: usize) -> Option<usize> {
        self.local.filter(|local| !(layer + 1).is_multiple_of(local.period)).map(|local| local.window)
    }
}
