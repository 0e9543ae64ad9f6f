//! Rows that a caller passes: floats of one of three types, in the order of the caller's engine.

use crate::Error;
use crate::backend::Kernels;
use core::ops::Range;
use half::{bf16, f16};
use octaplex_arch::{Float, MAX_DIM};

/// Holds floats to read. Slices of f32, f16 and bf16 convert into this type.
///
/// Values to store must be below 65,520 in magnitude. [`Rows`] has an example.
#[derive(Clone, Copy, Debug)]
pub enum Floats<'a> {
    /// Values in f32.
    F32(&'a [f32]),
    /// Values in f16.
    F16(&'a [f16]),
    /// Values in bf16.
    Bf16(&'a [bf16]),
}

/// Holds floats to write. Mutable slices of f32, f16 and bf16 convert into this type. [`Rows`] has an example.
#[cfg(feature = "alloc")]
#[derive(Debug)]
pub enum FloatsMut<'a> {
    /// Values in f32.
    F32(&'a mut [f32]),
    /// Values in f16.
    F16(&'a mut [f16]),
    /// Values in bf16.
    Bf16(&'a mut [bf16]),
}

/// Names the order of the rows of several heads:
///
/// ```text
///  HeadsFirst    │ head 0: token 0, token 1, … │ head 1: token 0, token 1, … │
///  TokensFirst   │ token 0: head 0, head 1, … │ token 1: head 0, head 1, … │
///  Strided       │ head 0, token 0 │ … │ head 1, token 0 │ … │ head 0, token 1 │ …
///                0                     heads                 step
/// ```
#[derive(Clone, Copy, Debug)]
enum Order {
    /// \[heads]\[tokens]\[width].
    HeadsFirst,
    /// \[tokens]\[heads]\[width].
    TokensFirst,
    /// The row of `token` and `head` begins at value `head · heads + token · step`.
    Strided { tokens: usize, heads: usize, step: usize },
}

/// Holds the keys, values or queries of all heads, to read: floats and their order.
///
/// A slice or a `&Vec` of f32, f16 or bf16 converts into rows in the order \[heads]\[tokens]\[width]. If your engine
/// keeps the heads of each token together, use [`tokens_first`](Self::tokens_first).
///
/// ```
/// use octaplex::{Error, KvCache, Rows, RowsMut, f16};
///
/// let mut cache = KvCache::builder(1, 2, 64, 1000).query_heads(4).build()?;
/// let rows = vec![f16::ONE; 10 * 2 * 64]; // [tokens][heads][width]
/// cache.append(0, Rows::tokens_first(&rows), Rows::tokens_first(&rows))?;
///
/// let (queries, mut output) = (vec![0.1; 3 * 4 * 64], vec![f16::ZERO; 3 * 4 * 64]); // the newest three tokens' queries
/// cache.attend(0, Rows::tokens_first(&queries), RowsMut::tokens_first(&mut output))?;
/// assert!(output.iter().all(|x| *x == f16::ONE));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    floats: Floats<'a>,
    order: Order,
}

/// Holds the outputs of all query heads, to write: floats and their order. [`Rows`] has an example.
#[cfg(feature = "alloc")]
#[derive(Debug)]
pub struct RowsMut<'a> {
    floats: FloatsMut<'a>,
    order: Order,
}

impl<'a> Rows<'a> {
    /// Creates rows in the order \[heads]\[tokens]\[width].
    #[must_use]
    pub fn heads_first(floats: impl Into<Floats<'a>>) -> Self {
        Self { floats: floats.into(), order: Order::HeadsFirst }
    }

    /// Creates rows in the order \[tokens]\[heads]\[width].
    #[must_use]
    pub fn tokens_first(floats: impl Into<Floats<'a>>) -> Self {
        Self { floats: floats.into(), order: Order::TokensFirst }
    }

    /// Creates rows of `tokens` tokens in any order.
    ///
    /// The row of a token and a head begins at value `head · head_stride + token · token_stride`. Strides count values,
    /// not bytes.
    ///
    /// ```
    /// use octaplex::{Error, KvCache, Rows};
    ///
    /// let mut cache = KvCache::builder(1, 2, 64, 1000).build()?;
    /// let fused = vec![0.5; 10 * 3 * 2 * 64]; // [tokens][queries, keys, values][heads][width]
    /// let part = |number: usize| Rows::strided(&fused[number * 2 * 64..], 10, 64, 3 * 2 * 64);
    /// cache.append(0, part(1), part(2))?;
    /// assert_eq!(cache.next_position(0)?, 10);
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn strided(
        floats: impl Into<Floats<'a>>,
        tokens: usize,
        head_stride: usize,
        token_stride: usize,
    ) -> Self {
        let order = Order::Strided { tokens, heads: head_stride, step: token_stride };
        Self { floats: floats.into(), order }
    }

    /// Returns the rows of `heads` heads as a grid. With `each`, every head must have that many tokens.
    ///
    /// # Errors
    /// [`Error::Rows`] or [`Error::Length`] if the number of floats does not match.
    pub(crate) fn grid(
        self,
        what: &'static str,
        (heads, width): (usize, usize),
        each: Option<usize>,
    ) -> Result<Grid<'a>, Error> {
        let place = self.order.place(what, (heads, width), each, self.floats.len())?;
        Ok(Grid { floats: self.floats, place, heads, width })
    }

    /// Returns the floats if they are f32 in the order \[heads]\[tokens]\[width].
    #[cfg(feature = "alloc")]
    pub(crate) fn plain(&self) -> Option<&'a [f32]> {
        match (self.order, self.floats) {
            (Order::HeadsFirst, Floats::F32(values)) => Some(values),
            _ => None,
        }
    }

    /// Returns the number of rows of all heads together, or `None` for strided rows.
    #[cfg(feature = "alloc")]
    pub(crate) fn count(&self, width: usize) -> Option<usize> {
        match self.order {
            Order::Strided { .. } => None,
            _ => Some(self.floats.len() / width),
        }
    }

    /// Returns the number of tokens of strided rows, or `None` for other orders.
    #[cfg(feature = "alloc")]
    pub(crate) fn tokens(&self) -> Option<usize> {
        match self.order {
            Order::Strided { tokens, .. } => Some(tokens),
            _ => None,
        }
    }
}

#[cfg(feature = "alloc")]
impl<'a> RowsMut<'a> {
    /// Creates rows in the order \[heads]\[tokens]\[width].
    #[must_use]
    pub fn heads_first(floats: impl Into<FloatsMut<'a>>) -> Self {
        Self { floats: floats.into(), order: Order::HeadsFirst }
    }

    /// Creates rows in the order \[tokens]\[heads]\[width].
    #[must_use]
    pub fn tokens_first(floats: impl Into<FloatsMut<'a>>) -> Self {
        Self { floats: floats.into(), order: Order::TokensFirst }
    }

    /// Creates rows of `tokens` tokens in any order, as [`Rows::strided`] does.
    ///
    /// If rows overlap, a later row overwrites an earlier one.
    #[must_use]
    pub fn strided(
        floats: impl Into<FloatsMut<'a>>,
        tokens: usize,
        head_stride: usize,
        token_stride: usize,
    ) -> Self {
        let order = Order::Strided { tokens, heads: head_stride, step: token_stride };
        Self { floats: floats.into(), order }
    }
}

/// The positions of rows among floats. Distances count values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) tokens: usize,
    /// Distance between heads.
    head: usize,
    /// Distance between tokens.
    step: usize,
}

impl Place {
    /// Returns the index of the first value of a row.
    pub(crate) const fn at(&self, head: usize, token: usize) -> usize {
        head * self.head + token * self.step
    }
}

impl Order {
    fn place(
        self,
        what: &'static str,
        (heads, width): (usize, usize),
        each: Option<usize>,
        actual: usize,
    ) -> Result<Place, Error> {
        let all = heads.saturating_mul(width);
        let wrong = Err(Error::Rows { what, heads, width, each, actual });
        match self {
            Self::HeadsFirst | Self::TokensFirst => {
                let tokens = actual.checked_div(all).unwrap_or(0);
                if tokens * all != actual || each.is_some_and(|each| each != tokens) {
                    return wrong;
                }
                let heads_first = matches!(self, Self::HeadsFirst);
                let (head, step) = if heads_first { (tokens * width, width) } else { (width, all) };
                Ok(Place { tokens, head, step })
            }
            Self::Strided { tokens, heads: head, step } => {
                if let Some(expected) = each
                    && expected != tokens
                {
                    return Err(Error::Length { what: "tokens of strided rows", expected, actual: tokens });
                }
                if tokens == 0 || heads == 0 {
                    return Ok(Place { tokens: 0, head, step });
                }
                let first =
                    (heads - 1).saturating_mul(head).saturating_add((tokens - 1).saturating_mul(step));
                let expected = first.saturating_add(width);
                if expected > actual {
                    return Err(Error::Length { what: "values of strided rows", expected, actual });
                }
                Ok(Place { tokens, head, step })
            }
        }
    }
}

/// Rows of several heads. All lie within the floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid<'a> {
    floats: Floats<'a>,
    place: Place,
    heads: usize,
    pub(crate) width: usize,
}

impl Grid<'_> {
    pub(crate) const fn tokens(&self) -> usize {
        self.place.tokens
    }

    /// Checks that the floats are at least as many as the tokens of a head.
    ///
    /// A stride of 0 could claim any number of tokens, and each of them takes time.
    ///
    /// # Errors
    /// [`Error::Length`] if there are fewer floats.
    pub(crate) fn check_count(&self, what: &'static str) -> Result<(), Error> {
        let (expected, actual) = (self.place.tokens, self.floats.len());
        let what = match what {
            "keys" => "values of strided keys, at least one a token",
            "values" => "values of strided values, at least one a token",
            _ => "values of strided queries, at least one a query",
        };
        if expected > actual { Err(Error::Length { what, expected, actual }) } else { Ok(()) }
    }

    /// Returns a row if it is f32.
    pub(crate) fn f32_row(&self, head: usize, token: usize) -> Option<&[f32]> {
        match self.floats {
            Floats::F32(values) => Some(&values[self.place.at(head, token)..][..self.width]),
            _ => None,
        }
    }

    /// Returns the index of the first value that f16 cannot hold, and whether the value is finite.
    ///
    /// The index counts values in the order \[heads]\[tokens]\[width].
    pub(crate) fn first_unfit(&self) -> Option<(usize, bool)> {
        let (tokens, width) = (self.place.tokens, self.width);
        let all = self.heads.saturating_mul(tokens).saturating_mul(width);
        if self.floats.len() == all && self.place.step == width {
            return self.floats.first_unfit();
        }
        let rows = (0..self.heads).flat_map(|head| (0..tokens).map(move |token| (head, token)));
        rows.enumerate().find_map(|(row, (head, token))| {
            let at = self.place.at(head, token);
            let (channel, finite) = self.floats.slice(at..at + width).first_unfit()?;
            Some((row * width + channel, finite))
        })
    }

    /// Writes a row as f16.
    pub(crate) fn write(&self, backend: Kernels, head: usize, token: usize, bytes: &mut [u8]) {
        self.floats.write(backend, self.place.at(head, token), bytes);
    }

    /// Copies rows of a head from `token` on, rounded to f16.
    pub(crate) fn read(&self, backend: Kernels, head: usize, token: usize, out: &mut [f32]) {
        let (from, stride) = (self.place.at(head, token), self.place.step);
        self.floats.read(backend, from, (stride, self.width), out);
    }

    /// Copies all rows as f32, in the order \[heads]\[tokens]\[width].
    #[cfg(feature = "alloc")]
    pub(crate) fn to_f32(self, backend: Kernels, out: &mut [f32]) {
        for (row, out) in out.chunks_exact_mut(self.width).enumerate() {
            let (head, token) = (row / self.place.tokens, row % self.place.tokens);
            let at = self.place.at(head, token);
            self.floats.slice(at..at + self.width).widen(backend, out);
        }
    }
}

#[cfg(feature = "alloc")]
impl RowsMut<'_> {
    /// Returns the floats if they are f32 in the order \[heads]\[tokens]\[width].
    pub(crate) fn plain(&mut self) -> Option<&mut [f32]> {
        match (self.order, &mut self.floats) {
            (Order::HeadsFirst, FloatsMut::F32(values)) => Some(values),
            _ => None,
        }
    }

    /// Returns the place of the rows of `heads` heads, each with `each` rows.
    pub(crate) fn place(&self, (heads, width): (usize, usize), each: usize) -> Result<Place, Error> {
        self.order.place("output", (heads, width), Some(each), self.floats.len())
    }

    /// Writes rows from \[heads]\[tokens]\[width].
    pub(crate) fn write(&mut self, backend: Kernels, place: Place, width: usize, rows: &[f32]) {
        for (row, x) in rows.chunks_exact(width).enumerate() {
            let at = place.at(row / place.tokens, row % place.tokens);
            self.floats.write(backend, at, x);
        }
    }
}

macro_rules! conversions {
    ($($variant:ident($float:ty)),*) => {$(
        impl<'a> From<&'a [$float]> for Floats<'a> {
            fn from(values: &'a [$float]) -> Self {
                Self::$variant(values)
            }
        }

        impl<'a, const N: usize> From<&'a [$float; N]> for Floats<'a> {
            fn from(values: &'a [$float; N]) -> Self {
                Self::$variant(values)
            }
        }

        #[cfg(feature = "alloc")]
        impl<'a> From<&'a alloc::vec::Vec<$float>> for Floats<'a> {
            fn from(values: &'a alloc::vec::Vec<$float>) -> Self {
                Self::$variant(values)
            }
        }

        #[cfg(feature = "alloc")]
        impl<'a> From<&'a mut [$float]> for FloatsMut<'a> {
            fn from(values: &'a mut [$float]) -> Self {
                Self::$variant(values)
            }
        }

        #[cfg(feature = "alloc")]
        impl<'a, const N: usize> From<&'a mut [$float; N]> for FloatsMut<'a> {
            fn from(values: &'a mut [$float; N]) -> Self {
                Self::$variant(values)
            }
        }

        #[cfg(feature = "alloc")]
        impl<'a> From<&'a mut alloc::vec::Vec<$float>> for FloatsMut<'a> {
            fn from(values: &'a mut alloc::vec::Vec<$float>) -> Self {
                Self::$variant(values)
            }
        }

        impl<'a> From<&'a [$float]> for Rows<'a> {
            fn from(values: &'a [$float]) -> Self {
                Self::heads_first(values)
            }
        }

        impl<'a, const N: usize> From<&'a [$float; N]> for Rows<'a> {
            fn from(values: &'a [$float; N]) -> Self {
                Self::heads_first(values)
            }
        }

        #[cfg(feature = "alloc")]
        impl<'a> From<&'a alloc::vec::Vec<$float>> for Rows<'a> {
            fn from(values: &'a alloc::vec::Vec<$float>) -> Self {
                Self::heads_first(values)
            }
        }

        #[cfg(feature = "alloc")]
        impl<'a> From<&'a mut [$float]> for RowsMut<'a> {
            fn from(values: &'a mut [$float]) -> Self {
                Self::heads_first(values)
            }
        }

        #[cfg(feature = "alloc")]
        impl<'a, const N: usize> From<&'a mut [$float; N]> for RowsMut<'a> {
            fn from(values: &'a mut [$float; N]) -> Self {
                Self::heads_first(values)
            }
        }

        #[cfg(feature = "alloc")]
        impl<'a> From<&'a mut alloc::vec::Vec<$float>> for RowsMut<'a> {
            fn from(values: &'a mut alloc::vec::Vec<$float>) -> Self {
                Self::heads_first(values)
            }
        }
    )*};
}
conversions!(F32(f32), F16(f16), Bf16(bf16));

#[cfg(feature = "alloc")]
impl<'a> From<FloatsMut<'a>> for RowsMut<'a> {
    fn from(floats: FloatsMut<'a>) -> Self {
        Self::heads_first(floats)
    }
}

impl<'a> From<Floats<'a>> for Rows<'a> {
    fn from(floats: Floats<'a>) -> Self {
        Self::heads_first(floats)
    }
}

/// The smallest value that f16 rounds to infinity.
pub(crate) const LIMIT: f32 = 65520.0;

/// The number of values in a buffer on the stack. Most rows fit, and few zeros are cleared for shorter ones.
const BUFFER: usize = 128;

impl Floats<'_> {
    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Returns whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a range of the values.
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        match *self {
            Self::F32(values) => Self::F32(&values[range]),
            Self::F16(values) => Self::F16(&values[range]),
            Self::Bf16(values) => Self::Bf16(&values[range]),
        }
    }

    /// Writes the values as f32, exactly.
    #[cfg(feature = "alloc")]
    fn widen(&self, backend: Kernels, out: &mut [f32]) {
        match self {
            Self::F32(values) => out.copy_from_slice(values),
            Self::F16(values) => {
                for (values, out) in values.chunks(BUFFER).zip(out.chunks_mut(BUFFER)) {
                    let mut bytes = [0; 2 * BUFFER];
                    let bytes = &mut bytes[..2 * values.len()];
                    let halves = values.iter().zip(bytes.as_chunks_mut::<2>().0);
                    halves.for_each(|(x, bytes)| *bytes = x.to_le_bytes());
                    backend.decode_floats(Float::F16, bytes, out);
                }
            }
            Self::Bf16(values) => {
                values
                    .iter()
                    .zip(out)
                    .for_each(|(x, out)| *out = f32::from_bits(u32::from(x.to_bits()) << 16));
            }
        }
    }

    /// Returns the index of the first value that f16 cannot hold, and whether the value is finite.
    pub(crate) fn first_unfit(&self) -> Option<(usize, bool)> {
        fn first(values: impl Iterator<Item = f32>) -> Option<(usize, bool)> {
            values
                .enumerate()
                .find(|(_, x)| x.is_nan() || x.abs() >= LIMIT)
                .map(|(at, x)| (at, x.is_finite()))
        }
        // Compilers vectorise this test, because it works on bits and has no early exit. 0x4780 is 65536, the smallest
        // bf16 that is at least LIMIT.
        let is_fit = match self {
            Self::F32(values) => values.iter().fold(true, |fit, x| fit & (x.abs() < LIMIT)),
            Self::F16(values) => values.iter().fold(true, |fit, x| fit & (x.to_bits() & 0x7c00 < 0x7c00)),
            Self::Bf16(values) => values.iter().fold(true, |fit, x| fit & (x.to_bits() & 0x7fff < 0x4780)),
        };
        match self {
            _ if is_fit => None,
            Self::F32(values) => first(values.iter().copied()),
            Self::F16(values) => first(values.iter().map(|x| x.to_f32())),
            Self::Bf16(values) => first(values.iter().map(|x| x.to_f32())),
        }
    }

    /// Writes values `from..from + bytes.len() / 2` as f16.
    pub(crate) fn write(&self, backend: Kernels, from: usize, bytes: &mut [u8]) {
        let range = from..from + bytes.len() / 2;
        match self {
            Self::F32(values) => backend.encode_floats(Float::F16, &values[range], bytes),
            Self::F16(values) => {
                for (x, bytes) in values[range].iter().zip(bytes.as_chunks_mut::<2>().0) {
                    *bytes = x.to_le_bytes();
                }
            }
            Self::Bf16(values) => {
                let mut row = [0.0; BUFFER];
                for (values, bytes) in values[range].chunks(BUFFER).zip(bytes.chunks_mut(2 * BUFFER)) {
                    let row = &mut row[..values.len()];
                    let finite = values.iter().map(|x| f32::from_bits(u32::from(x.to_bits()) << 16));
                    row.iter_mut().zip(finite).for_each(|(slot, x)| *slot = x);
                    backend.encode_floats(Float::F16, row, bytes);
                }
            }
        }
    }

    /// Copies rows of `dim` values, rounded to f16. The first begins at value `from`, and each next one `stride` later.
    pub(crate) fn read(&self, backend: Kernels, from: usize, (stride, dim): (usize, usize), out: &mut [f32]) {
        let mut bytes = [0; 2 * MAX_DIM];
        for (row, out) in out.chunks_exact_mut(dim).enumerate() {
            self.write(backend, from + row * stride, &mut bytes[..2 * dim]);
            backend.decode_floats(Float::F16, &bytes[..2 * dim], out);
        }
    }
}

/// The largest f16. Larger outputs are clamped to it.
#[cfg(feature = "alloc")]
const LARGEST: f32 = 65504.0;

#[cfg(feature = "alloc")]
impl FloatsMut<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Writes values from index `at` on, rounded to the nearest value of the type.
    fn write(&mut self, backend: Kernels, at: usize, x: &[f32]) {
        match self {
            Self::F32(values) => values[at..at + x.len()].copy_from_slice(x),
            Self::F16(values) => {
                let mut row = [0.0; BUFFER];
                let mut bytes = [0; 2 * BUFFER];
                for (x, values) in x.chunks(BUFFER).zip(values[at..at + x.len()].chunks_mut(BUFFER)) {
                    let (row, bytes) = (&mut row[..x.len()], &mut bytes[..2 * x.len()]);
                    row.iter_mut().zip(x).for_each(|(slot, x)| *slot = x.clamp(-LARGEST, LARGEST));
                    backend.encode_floats(Float::F16, row, bytes);
                    let halves = values.iter_mut().zip(bytes.as_chunks::<2>().0);
                    halves.for_each(|(slot, bytes)| *slot = f16::from_le_bytes(*bytes));
                }
            }
            Self::Bf16(values) => {
                let values = &mut values[at..at + x.len()];
                values.iter_mut().zip(x).for_each(|(slot, x)| *slot = bf16::from_f32(*x));
            }
        }
    }
}
