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
}
