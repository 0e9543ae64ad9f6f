//! Calls for engines with their own memory and streams on the GPU. Tokens, queries and outputs never leave
//! it.

use super::{Error, Layer, is_block, refuse};
use crate::Attend;
use crate::cache::Center;
use crate::cache::window::surely_short;
use core::ops::Range;
use octaplex_device::{CallerStream, DeviceRows, DeviceSlice, Input, Queries};

/// Checks that rows lie within their memory, and that kernels can read them.
pub(super) fn check_rows(rows: &DeviceRows, heads: usize, dim: usize) -> Result<(), Error> {
    let extent = rows.extent(heads, dim).unwrap_or(usize::MAX);
    for (what, side) in [("values of keys", rows.keys), ("values of values", rows.values)] {
        if side.len() < extent {
            return Err(crate::Error::Length { what, expected: extent, actual: side.len() }.into());
        }
    }
    if !rows.is_of_one_type() {
        return refuse("keys and values on the GPU must have the same float type");
    }
    if !rows.keys.is_at_a_float() || !rows.values.is_at_a_float() {
        return refuse("keys and values on the GPU must be aligned to their float type");
    }
    if rows.tokens.saturating_mul(heads) >= 1 << 31 {
        return refuse("one call takes fewer than 2^31 rows: append in pieces");
    }
    Ok(())
}

impl Layer {
    /// Appends tokens that lie on the GPU, as [`append`](Self::append) does, without a copy through the
    /// host.
    ///
    /// The call reads after all earlier work on the caller's stream. Later work on the stream runs after
    /// it. The call waits until the rows are read, so it cannot be captured in a graph.
    ///
    /// The GPU checks the rows. It accepts them if all values are finite and all norms are small: below
    /// about 1,024, and half of that for centred keys. A balance multiplies the limit of keys by its
    /// smallest factor. Otherwise the call copies all rows to the host, which decides and returns the error
    /// as `append` does.
    ///
    /// The first page that closes copies the keys of one window to the host, for balance and prefix centre.
    /// Pages that the GPU cannot encode are copied to the host when they close.
    ///
    /// ```text
    /// caller's stream   writes rows ──► event ┄┄┐                ┌┄┄► later work
    ///                                           ▼                ┊
    /// layer's stream                            append ──► event ┘
    /// ```
    ///
    /// ```no_run
    /// use octaplex::LayerConfig;
    /// use octaplex::gpu::{CallerStream, Device, DeviceRows, DeviceSlice, Float, Layer};
    ///
    /// # fn engine(stream: usize, keys: u64, values: u64) -> Result<(), octaplex::gpu::Error> {
    /// let mut layer = Layer::new(&Device::new(0)?, &LayerConfig::new(2, 64, 4096), 1, 4096)?;
    /// // SAFETY: 300 tokens of two heads in this GPU's primary context, alive until the stream is done.
    /// let (stream, keys, values) = unsafe {
    ///     let slice = |at| DeviceSlice::new(at, 300 * 2 * 64, Float::Bf16);
    ///     (CallerStream::new(stream), slice(keys), slice(values))
    /// };
    /// // [tokens][heads][width]
    /// let rows = DeviceRows { keys, values, tokens: 300, token_stride: 2 * 64, head_stride: 64 };
    /// layer.append_on(0, &rows, stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// * The errors of [`append`](Self::append).
    /// * [`crate::Error::Length`] if the rows exceed their memory.
    /// * [`Error::Unsupported`] for keys and values of two types, for unaligned addresses, and for 2³¹ rows
    ///   or more.
    /// * [`Error::Unsupported`] while the stream is captured.
    /// * [`Error::Device`]; then [clear](Self::clear) the sequence.
    ///
    /// After other errors the layer is as it was.
    pub fn append_on(
        &mut self,
        sequence: usize,
        rows: &DeviceRows,
        stream: CallerStream,
    ) -> Result<(), Error> {
        self.sequence(sequence)?;
        let (heads, dim) = (self.config.kv_heads, self.config.key_dim);
        check_rows(rows, heads, dim)?;
        if self.paged.is_captured(stream)? {
            return refuse("append_on waits for the GPU: call it while the stream is not captured");
        }
        if rows.tokens == 0 {
            return Ok(());
        }
        self.settle_on(stream)?;
        // Errors of the plan return before the GPU gets any work.
        self.plan(&self.sequences[sequence], rows.tokens)?;
        self.paged.after(stream)?;
        let done = self.take_on(sequence, rows);
        let ordered = self.paged.before(stream);
        done?;
        Ok(ordered?)
    }

    /// Returns squared norms of keys and of values. Sequences surely accept rows below them.
    pub(super) fn bounds(&self, of: Range<usize>) -> [f32; 2] {
        let dim = self.config.key_dim;
        let leasts = self.sequences[of].iter().flat_map(|held| held.balances(dim).map(|(_, least)| least));
        let least = leasts.fold(f32::INFINITY, f32::min);
        let centred = self.config.centers() != Center::Off;
        // The GPU sums in another order. One percent is far more than that changes.
        [surely_short(centred, least), surely_short(false, 1.0)].map(|bound| 0.99 * bound)
    }

    fn take_on(&mut self, sequence: usize, rows: &DeviceRows) -> Result<(), Error> {
        let bounds = self.bounds(sequence..sequence + 1);
        if self.paged.check_rows(rows, bounds)? {
            return self.add(sequence, Input::Device(rows), rows.tokens);
        }
        let [keys, values] = self.paged.widen(rows)?;
        self.append(sequence, &keys, &values)
    }

    /// Computes attention of queries on the GPU into an output on the GPU, as [`attend`](Self::attend)
    /// does.
    ///
    /// Queries and output have one of three float types each. The result has the bits of `attend`, rounded
    /// once to the output's type. The kernels run on the caller's stream. Later calls of this layer run
    /// after them. The call does not wait or allocate, once a step with such options has compiled its
    /// kernels outside of a capture.
    ///
    /// So a caller's graph can contain a decode step between its own kernels. Each launch sees what the
    /// sequences hold at that time. The graph uses the memory of this layer, so follow these rules:
    ///
    /// * Call [`reserve`](Self::reserve) before the capture, and not again while the graph is launched.
    ///   Keep the layer alive.
    /// * Run one step of a layer at a time, and no other call of the layer at the same time.
    /// * Launch the graph on one stream, and pass that stream to [`append_on`](Self::append_on). Wait for
    ///   it before other calls.
    ///
    /// Three things cannot be captured: blocks of queries, for which the call waits; sink logits and
    /// biases, which it copies from the host; and a step while no sequence has a token.
    ///
    /// Queries are not checked. A non-finite query, or one beyond the limit of `attend`, makes the output
    /// of its own head meaningless; other heads are not affected.
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend), except those about the values of queries.
    /// [`Error::Unsupported`] for addresses that are not multiples of 16, and for what cannot be captured.
    pub fn attend_on(
        &mut self,
        queries: DeviceSlice,
        options: &Attend,
        output: DeviceSlice,
        stream: CallerStream,
    ) -> Result<(), Error> {
        let all = 0..self.sequences.len();
        self.attend_sequences_on(all, queries, options, output, stream)
    }

    /// Computes attention of consecutive sequences, as [`attend_on`](Self::attend_on) does for all.
    ///
    /// `queries` and `output` belong to these sequences alone. So sequences with different lifetimes can
    /// share a layer. The result is bit-exact with `attend_on`.
    ///
    /// ```no_run
    /// use octaplex::gpu::{CallerStream, Device, DeviceSlice, Float, Layer};
    /// use octaplex::{Attend, LayerConfig};
    ///
    /// # fn engine(stream: usize, queries: u64, output: u64) -> Result<(), octaplex::gpu::Error> {
    /// let mut layer = Layer::new(&Device::new(0)?, &LayerConfig::new(1, 64, 4096), 8, 8 * 4096)?;
    /// layer.append(3, &[0.5; 100 * 64], &[0.5; 100 * 64])?;
    /// layer.reserve(4)?;
    /// // SAFETY: four rows of 64 in this GPU's primary context, alive until the stream is done.
    /// let (stream, row) = unsafe { (CallerStream::new(stream), |at| DeviceSlice::new(at, 4 * 64, Float::Bf16)) };
    /// layer.attend_sequences_on(3..4, row(queries), &Attend::default(), row(output), stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`attend_on`](Self::attend_on); [`crate::Error::Missing`] if a sequence does not
    /// exist; [`Error::Unsupported`] for an empty range.
    pub fn attend_sequences_on(
        &mut self,
        sequences: Range<usize>,
        queries: DeviceSlice,
        options: &Attend,
        output: DeviceSlice,
        stream: CallerStream,
    ) -> Result<(), Error> {
        crate::Error::expect_length("values of the output", queries.len(), output.len())?;
        if sequences.is_empty() {
            return refuse("the range of sequences is empty: a call needs at least one");
        }
        self.sequence(sequences.end - 1)?;
        if !queries.is_aligned() || !output.is_aligned() {
            return refuse("addresses of queries and outputs on the GPU must be multiples of 16 bytes");
        }
        let more = is_block(options) || !options.sink_logits.is_empty() || !options.bias.is_empty();
        if more && self.paged.is_captured(stream)? {
            return refuse("a captured stream takes decode steps only, without sink logits and biases");
        }
        if more {
            self.settle_on(stream)?;
        }
        if is_block(options) {
            return self.attend_block_on(sequences, queries, options, output, stream);
        }
        let attention = self.attention(options)?;
        self.check_step(Queries::Device(queries), options, sequences.clone())?;
        Ok(self.paged.attend_on(&attention, queries, output, stream, sequences)?)
    }
}
