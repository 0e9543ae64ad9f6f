//! The arguments of a caller: slices and rows in the GPU's memory, and rows of tokens to append.

use core::ops::Range;
use octaplex_arch::Float;

/// A caller's floats in the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    address: u64,
    len: usize,
    float: Float,
}

impl DeviceSlice {
    /// Describes `len` floats from `address` on: f32, f16 or bf16. Rows are aligned to their floats;
    /// queries and outputs to 16 bytes.
    ///
    /// # Safety
    /// * The floats lie in memory of the GPU of the [`Device`](super::Device), in its primary context.
    ///   CUDA's runtime and PyTorch use that context.
    /// * They stay there until the work is done. A call with a [`CallerStream`](super::CallerStream) is
    ///   done when that stream has finished what it held when the call returned. A graph captured from the
    ///   stream needs them as long as it is launched.
    /// * Nobody writes what is read, and nobody reads or writes what is written, except on that stream
    ///   before or after the call.
    #[must_use]
    pub const unsafe fn new(address: u64, len: usize, float: Float) -> Self {
        Self { address, len, float }
    }

    /// Returns the number of floats.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the slice is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Returns whether kernels can read rows in pieces of 16 bytes.
    #[must_use]
    pub const fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(16)
    }

    /// Returns whether the address is aligned to the float type.
    #[must_use]
    pub const fn is_at_a_float(&self) -> bool {
        self.address.is_multiple_of(if matches!(self.float, Float::F32) { 4 } else { 2 })
    }

    /// Returns the number that kernels use for the float type.
    pub(super) const fn number(&self) -> u32 {
        match self.float {
            Float::F32 => 0,
            Float::F16 => 1,
            Float::Bf16 => 2,
        }
    }
}

/// Keys and values of consecutive tokens in the GPU's memory.
///
/// The row of head h and token t starts at h · `head_stride` + t · `token_stride`, for keys and for values.
///
/// ```text
///           token 0   token 1   token 2
/// head 0    │ dim │   │ dim │   │ dim │     token_stride floats from column to column
/// head 1    │ dim │   │ dim │   │ dim │     head_stride floats from line to line
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRows {
    /// Keys.
    pub keys: DeviceSlice,
    /// Values, of the same float type.
    pub values: DeviceSlice,
    /// The number of tokens.
    pub tokens: usize,
    /// Floats from a token to the next.
    pub token_stride: usize,
    /// Floats from a key/value head to the next.
    pub head_stride: usize,
}

impl DeviceRows {
    /// Returns how many floats keys, and values, need at least; `None` if that overflows.
    #[must_use]
    pub fn extent(&self, heads: usize, dim: usize) -> Option<usize> {
        let Some(last) = self.tokens.checked_sub(1) else { return Some(0) };
        let token = last.checked_mul(self.token_stride)?;
        heads.checked_sub(1)?.checked_mul(self.head_stride)?.checked_add(token)?.checked_add(dim)
    }

    /// Returns whether keys and values have the same float type.
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

/// New tokens: rows in f16 on the host, \[tokens]\[kv heads]\[keys, values]\[width], or rows on the GPU.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// On the host.
    Host(&'a [u16]),
    /// On the GPU.
    Device(&'a DeviceRows),
}

/// Rows of consecutive tokens; whole pages if they are encoded.
///
/// ```text
/// tokens   held[0] │ held[1] │ new             held: places in the ring of `sequence`, in two ranges if it wraps
///                                              new:  tokens of `input`
/// ```
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    /// The sequence that has the first rows.
    pub sequence: usize,
    /// The places of these rows in the sequence's ring.
    pub held: [Range<usize>; 2],
    /// The source of the other rows.
    pub input: Input<'a>,
    /// The tokens of `input`.
    pub new: Range<usize>,
    /// Position of the first token.
    pub position: u64,
    /// f32 \[kv heads]\[balance, prefix centre]\[width].
    pub front: &'a [f32],
}

impl Rows<'_> {
    /// Returns the number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.held.iter().map(Range::len).sum::<usize>() + self.new.len()
    }
}
