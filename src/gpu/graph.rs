//! Decode steps as captured graphs, and their times.

use super::{Error, Layer, is_block, refuse};
use crate::Attend;
use crate::codec::check_values;
use alloc::vec::Vec;
use octaplex_device::{Paged, Step};

impl Layer {
    /// Captures a decode step with these options as a graph.
    ///
    /// [`launch`](Self::launch) runs the graph on the queries, pages and exact tokens of that time.
    ///
    /// ```text
    /// capture   options ──► Step: launches of the kernels, with the addresses of the layer's buffers
    /// launch    queries ──► buffers ──► Step ──► output        as often as needed
    /// ```
    ///
    /// ```no_run
    /// use octaplex::{Attend, LayerConfig, gpu};
    ///
    /// let mut layer = gpu::Layer::new(&gpu::Device::new(0)?, &LayerConfig::new(1, 64, 4096), 1, 4096)?;
    /// layer.reserve(4)?; // query heads
    /// let step = layer.capture(&Attend::default())?;
    /// let mut output = [0.0; 4 * 64];
    /// for _ in 0..100 {
    ///     layer.append(0, &[0.5; 64], &[0.5; 64])?;
    ///     layer.launch(&step, &[0.1; 4 * 64], &mut output)?;
    /// }
    /// # Ok::<(), gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`attend_with`](Self::attend_with); [`Error::Unsupported`] for blocks of queries and
    /// for biases.
    pub fn capture(&mut self, options: &Attend) -> Result<Step, Error> {
        Self::capture_all(&mut [self], options)
    }

    /// Captures decode steps of several layers, one after the other, as one graph.
    ///
    /// # Errors
    /// The errors of [`attend_with`](Self::attend_with). [`Error::Unsupported`] for layers on different
    /// devices, or with another scale or sliding window than the first.
    pub fn capture_all(layers: &mut [&mut Self], options: &Attend) -> Result<Step, Error> {
        if is_block(options) {
            return refuse("a graph holds decode steps only: one query a head, at the newest token");
        }
        if !options.bias.is_empty() {
            return refuse("a graph takes no biases, because each token adds some");
        }
        let mut attention = None;
        for layer in layers.iter_mut() {
            if layer.query_heads == 0 {
                return refuse("the number of query heads is unknown: call `reserve` before a step");
            }
            let mine = layer.attention(options)?;
            if *attention.get_or_insert(mine) != mine {
                return refuse("layers of one graph need the same scale and sliding window");
            }
            if mine.sink_logits {
                crate::Error::expect_length("sink logits", layer.query_heads, options.sink_logits.len())?;
                check_values(options.sink_logits, f32::INFINITY)?;
                layer.paged.set_sink_logits(options.sink_logits)?;
            }
        }
        let Some(attention) = attention else { return refuse("a graph needs at least one layer") };
        if !layers.iter().all(|layer| layer.paged.is_on_device_of(&layers[0].paged)) {
            return refuse("layers of one graph must be on one device");
        }
        let mut paged: Vec<&mut Paged> = layers.iter_mut().map(|layer| &mut layer.paged).collect();
        Ok(Paged::capture(&mut paged, &attention)?)
    }

    /// Launches a captured step of this layer.
    ///
    /// # Errors
    /// The errors of [`attend`](Self::attend). [`Error::Unsupported`] for a step of another layer, or from
    /// before the last [`reserve`](Self::reserve).
    pub fn launch(&mut self, step: &Step, queries: &[f32], output: &mut [f32]) -> Result<(), Error> {
        crate::Error::expect_length("values of the output", queries.len(), output.len())?;
        self.set(queries, &Attend::default())?;
        if !self.paged.is_of(step) {
            return refuse("the step was captured from another layer, or before `reserve`: capture again");
        }
        self.paged.launch(step)?;
        Ok(self.paged.output(output)?)
    }

    /// Measures `times` launches of a captured step on the current data, in microseconds of the GPU's
    /// clock.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn time(&mut self, step: &Step, times: usize) -> Result<Vec<f32>, Error> {
        Ok(self.paged.time(step, times)?)
    }
}
