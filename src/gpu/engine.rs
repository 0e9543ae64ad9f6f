//! What engines that have their own memory and streams on the GPU use: tokens, queries and outputs that never leave it.

use super::{Error, Layer, is_block, refuse};
use crate::Attend;
use crate::cache::Center;
use crate::cache::window::surely_short;
use core::ops::Range;
use octaplex_arch::device::{CallerStream, DeviceRows, DeviceSlice, Input, Queries};

/// Rows that lie within their memory, and that kernels can read.
pub(super) fn check_rows(rows: &DeviceRows, heads: usize, dim: usize) -> Result<(), Error> {
    let extent = rows.extent(heads, dim).unwrap_or(usize::MAX);
    for (what, side) in [("values of keys", rows.keys), ("values of values", rows.values)] {
        if side.len() < extent {
            return Err(crate::Error::Length { what, expected: extent, actual: side.len() }.into());
        }
    }
    if !rows.is_of_one_type() {
        return refuse("keys and values on the GPU are of one type of floats");
    }
    if !rows.keys.is_at_a_float() || !rows.values.is_at_a_float() {
        return refuse("keys and values on the GPU begin at multiples of their floats' bytes");
    }
    if rows.tokens.saturating_mul(heads) >= 1 << 31 {
        return refuse("one call takes less than 2^31 rows: append in pieces");
    }
    Ok(())
}

impl Layer {
    /// [`append`](Self::append) of tokens that lie on the GPU: the same bytes, without a copy through the host. What is read comes
    /// after what the caller's stream has been asked so far, and what that stream is asked next comes after it.
    ///
    /// The call waits until the rows are taken, so it cannot be captured into a graph: whether they are fit is looked at on the
    /// GPU, and where any may not be (not finite, a norm from 512 or 1,024 on, of keys times the least that a channel is divided by: from
    /// 2 on, at worst) all rows of the call are brought to the host, which then decides and says what is wrong, as `append` does. The first page that closes brings the keys of one window to the host, for
    /// balance and prefix centre; pages of codecs that the GPU does not encode are brought there when they close.
    ///
    /// # Errors
    /// As [`append`](Self::append); [`crate::Error::Length`] for rows beyond their memory, [`Error::Unsupported`] for keys and values
    /// of two types, at addresses where no float can be, or in 2³¹ rows and more, and while the stream is captured. The layer is then as it was; after
    /// [`Error::Device`] the sequence is to be [cleared](Self::clear).
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
            return refuse("tokens are not appended while the stream is captured");
        }
        if rows.tokens == 0 {
            return Ok(());
        }
        self.settle_on(stream)?;
        // More are refused below, before anything is asked.
        self.plan(&self.sequences[sequence], rows.tokens)?;
        self.paged.after(stream)?;
        let done = self.take_on(sequence, rows);
        let ordered = self.paged.before(stream);
        done?;
        Ok(ordered?)
    }

    /// Squares of norms of keys and of values below which some sequences take a row for sure.
    pub(super) fn bounds(&self, of: Range<usize>) -> [f32; 2] {
        let dim = self.config.key_dim;
        let leasts = self.sequences[of].iter().flat_map(|held| held.balances(dim).map(|(_, least)| least));
        let least = leasts.fold(f32::INFINITY, f32::min);
        let centred = self.config.centers() != Center::Off;
        // Sums in another order: a hundredth is far more than that.
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

    /// [`attend`](Self::attend) of queries that lie on the GPU, to an output there, of one of three types of floats each: the same
    /// bits, rounded once to the output's type. The kernels are launched on the caller's stream, nothing is waited for and nothing
    /// allocated, once a step with such options has compiled them (outside of a capture); what this layer is asked next comes after them.
    ///
    /// So a decode step can be captured into a graph of the caller's, with its own kernels before and behind. The graph sees what the
    /// sequences hold when it is launched. As it works in this layer's memory: [`reserve`](Self::reserve) first, without another one as long as
    /// the graph is launched, nor the layer dropped; and no two steps of a layer at once, nor a step beside another call of the
    /// layer: it is launched on one stream, which [`append_on`](Self::append_on) is given as well, and waited for before other calls. Blocks
    /// of queries are waited for here and cannot be captured; nor can sink logits and biases, which are copied from the host at each call; nor a step while no
    /// sequence has a token.
    ///
    /// Queries are not looked at: one that is not finite, or beyond what `attend` takes, makes its head's output meaningless,
    /// and no other's.
    ///
    /// # Errors
    /// As [`attend`](Self::attend), but for values of queries; [`Error::Unsupported`] for addresses that are not multiples of 16, and
    /// for what cannot be captured.
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

    /// [`attend_on`](Self::attend_on) of some sequences, which follow each other: `queries` and `output` are theirs alone. So sequences that come and
    /// go share a layer, and one of them is asked without the others. The bits are those of `attend_on`.
    ///
    /// ```no_run
    /// use octaplex::gpu::{CallerStream, Device, DeviceSlice, Float, Layer};
    /// use octaplex::{Attend, LayerConfig};
    ///
    /// # fn engine(stream: usize, queries: u64, output: u64) -> Result<(), octaplex::gpu::Error> {
    /// let mut layer = Layer::new(&Device::new(0)?, &LayerConfig::new(1, 64, 4096), 8, 8 * 4096)?;
    /// layer.append(3, &[0.5; 100 * 64], &[0.5; 100 * 64])?;
    /// layer.reserve(4)?;
    /// // SAFETY: of this GPU's primary context, four rows of 64 each, alive until the stream is done.
    /// let (stream, row) = unsafe { (CallerStream::new(stream), |at| DeviceSlice::new(at, 4 * 64, Float::Bf16)) };
    /// layer.attend_sequences_on(3..4, row(queries), &Attend::default(), row(output), stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`attend_on`](Self::attend_on); [`crate::Error::Missing`] for sequences that there are not, [`Error::Unsupported`] for none.
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
            return refuse("a call is for at least one sequence");
        }
        self.sequence(sequences.end - 1)?;
        if !queries.is_aligned() || !output.is_aligned() {
            return refuse("queries and outputs on the GPU begin at multiples of 16 bytes");
        }
        let more = is_block(options) || !options.sink_logits.is_empty() || !options.bias.is_empty();
        if more && self.paged.is_captured(stream)? {
            return refuse(
                "only decode steps without sink logits and biases go into a captured stream's graph",
            );
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
