//! What a caller passes in: slices and rows in the GPU's memory, and rows of tokens to append.

use crate::Float;
use core::ops::Range;

/// Floats in the GPU's memory, a caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    address: u64,
    len: usize,
    float: Float,
}

impl DeviceSlice {
    /// `len` floats of a type from an address on: f32, f16 or bf16, aligned as floats are, and to 16 bytes where they are queries and outputs.
    ///
    /// # Safety
    /// They lie in memory of the GPU that the [`Device`](super::Device) is of, reachable in its primary context (which is the CUDA runtime's, and
    /// so PyTorch's), and stay there until what is asked with them has been done: for a call that takes a
    /// [`CallerStream`](super::CallerStream) until all that was on that stream when the call returned has been done, and for a graph
    /// captured from that stream as long as it is launched. Nobody writes what is read, or reads or writes what is written, but on that stream,
    /// before the call or behind it.
    #[must_use]
    pub const unsafe fn new(address: u64, len: usize, float: Float) -> Self {
        Self { address, len, float }
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Whether rows of them can be read in pieces of 16 bytes.
    #[must_use]
    pub const fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(16)
    }

    /// Whether the first lies where a float of the type can.
    #[must_use]
    pub const fn is_at_a_float(&self) -> bool {
        self.address.is_multiple_of(if matches!(self.float, Float::F32) { 4 } else { 2 })
    }

    /// As the kernels number the types.
    pub(super) const fn number(&self) -> u32 {
        match self.float {
            Float::F32 => 0,
            Float::F16 => 1,
            Float::Bf16 => 2,
        }
    }
}

/// Keys and values of tokens that follow each other, in the GPU's memory: those of head h and token t from h · `head_stride` +
/// t · `token_stride` on, the same for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRows {
    /// Keys.
    pub keys: DeviceSlice,
    /// Values, of the same type.
    pub values: DeviceSlice,
    /// How many tokens.
    pub tokens: usize,
    /// Floats from a token to the next.
    pub token_stride: usize,
    /// Floats from a key/value head to the next.
    pub head_stride: usize,
}

impl DeviceRows {
    /// Floats that keys, and values, have at least; `None` for more than there can be.
    #[must_use]
    pub fn extent(&self, heads: usize, dim: usize) -> Option<usize> {
        let Some(last) = self.tokens.checked_sub(1) else { return Some(0) };
        let token = last.checked_mul(self.token_stride)?;
        heads.checked_sub(1)?.checked_mul(self.head_stride)?.checked_add(token)?.checked_add(dim)
    }

    /// Whether keys and values are of one type.
    #[must_use]
    pub fn is_of_one_type(&self) -> bool {
        self.keys.float == self.values.float
    }

    pub(super) fn fits(&self, heads: usize, dim: usize) -> bool {
        let most = self.keys.len.min(self.values.len);
        let whole = self.keys.is_at_a_float() && self.values.is_at_a_float();
        whole && self.is_of_one_type() && self.extent(heads, dim).is_some_and(|extent| extent <= most)
    }
}

/// Tokens that come: rows of f16 on the host, \[tokens]\[kv heads]\[keys, values]\[width], or rows on the GPU.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// On the host.
    Host(&'a [u16]),
    /// On the GPU.
    Device(&'a DeviceRows),
}

/// Rows of tokens that follow each other, whole pages of them where they are encoded.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    /// The sequence that has the first ones.
    pub sequence: usize,
    /// Their places among its exact ones.
    pub held: [Range<usize>; 2],
    /// What has the others.
    pub input: Input<'a>,
    /// Which tokens of it.
    pub new: Range<usize>,
    /// Position of the first token.
    pub position: u64,
    /// f32 \[kv heads]\[balance, prefix centre]\[width].
    pub front: &'a [f32],
}

impl Rows<'_> {
    /// How many.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.held.iter().map(Range::len).sum::<usize>() + self.new.len()
    }
}
