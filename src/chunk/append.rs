//! Appends chunks to a cache, as pages that are not decoded.

use super::blob::Section;
use super::decode::clamp;
use super::*;
use crate::KvCache;
use crate::cache::SharedLayer;
use crate::cache::decode::Decoder;
use crate::cache::snapshot::{OTHER_BALANCE, damaged};

impl KvCache {
    /// Appends a chunk to the layers with its layer numbers.
    ///
    /// Full pages are adopted without decoding. A shorter last page is decoded into the exact
    /// window. Pages get the positions at which they are appended, so their keys must have the
    /// rotary embedding of these positions. Pages that a sliding window no longer shows are
    /// dropped, as when tokens are appended.
    ///
    /// The layers must have the chunk's heads, width, codecs, page size, centre and balance. Full
    /// pages also need:
    ///
    /// * an empty exact window, as in a cache without sinks to which only chunks were appended;
    /// * layers that have not decided another balance and prefix centre. If several chunks of a
    ///   prompt decided their own, only the first fits.
    ///
    /// If one of these does not hold, [`decode`](ChunkCodec::decode) the chunk and
    /// [`append`](Self::append) its rows, which encodes them a second time.
    ///
    /// ```
    /// use octaplex::chunk::{ChunkCodec, ChunkConfig};
    /// use octaplex::{Backend, Error, KvCache, LayerConfig};
    ///
    /// let codec = ChunkCodec::new(ChunkConfig::new(1, 2, 64), Backend::detect())?;
    /// let blob = codec.encode(&[0.5; 2 * 130 * 2 * 64])?; // 130 tokens of one layer
    /// let mut cache = KvCache::new([LayerConfig::new(2, 64, 1000).sink_tokens(0)], Backend::detect())?;
    /// cache.append_chunk(&blob)?;
    /// let stats = cache.stats();
    /// assert_eq!((stats.tokens, stats.paged_tokens), (130, 128));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::Snapshot`] for bytes that are no chunk, are damaged, or do not fit the layers.
    /// * [`Error::Missing`] for a layer number that the cache does not have.
    /// * [`Error::Full`] if the capacity is exceeded; [`Error::Memory`] if the machine has too little
    ///   memory for the pages.
    /// * [`Error::Corrupt`], with the block counted within a page of a head, and errors of
    ///   [`append`](Self::append), for the last page.
    ///
    /// The cache is then as it was.
    pub fn append_chunk(&mut self, blob: &[u8]) -> Result<(), Error> {
        let info = ChunkInfo::parse(blob)?;
        let plan = Plan::new(&info.config, info.tokens);
        let sections = plan.sections(blob, &info)?;
        let mut cache = self.try_fork()?;
        for (index, section) in sections.iter().enumerate() {
            let config = info.config.layer(index);
            let (number, count) = (config.layer as usize, cache.layers.len());
            let place = cache.layers.iter().position(|layer| layer.config.layer == config.layer);
            let place = place.ok_or(Error::Missing { what: "layer", number, count })?;
            adopt(&mut cache.layers[place], &config, &plan, section)?;
            let (keys, values) = tail(&cache.layers[place], &plan, section)?;
            cache.append(place, &keys, &values)?;
        }
        self.layers = cache.layers;
        Ok(())
    }
}

/// Appends the full pages of a section to a layer.
fn adopt(layer: &mut SharedLayer, config: &LayerConfig, plan: &Plan, section: &Section) -> Result<(), Error> {
    layer.check_codecs()?;
    // A chunk says nothing about these.
    let own = layer.config;
    let config = LayerConfig {
        sink_tokens: own.sink_tokens,
        recent_window: own.recent_window,
        max_rollback: own.max_rollback,
        sliding_window: own.sliding_window,
        capacity: own.capacity,
        query_heads: own.query_heads,
        ..*config
    };
    if config != own {
        return damaged(
            12,
            "the chunk has other codecs or another shape than the cache: decode it, and append its rows",
        );
    }
    if plan.pages == 0 {
        return Ok(());
    }
    let again = |error| match error {
        Error::Snapshot { why: OTHER_BALANCE, .. } => Error::Snapshot {
            at: section.start,
            why: "the chunk has another balance or prefix centre than the cache: decode it, and append its rows",
        },
        Error::Snapshot { .. } => Error::Snapshot {
            at: section.start,
            why: "full pages cannot follow missing sinks or a window that is not empty: decode the chunk, and append its rows",
        },
        other => other,
    };
    layer.check_decided(&mut section.decided()).map_err(again)?;
    let follows = layer.check_follows(section.start, layer.state.next, plan.pages).map_err(again)?;
    layer.adopt(&mut section.decided(), section.pages.iter().copied().take(plan.pages), &follows)
}

/// Decodes the last page if it is not full: keys and values, \[heads]\[tokens]\[width].
fn tail(layer: &SharedLayer, plan: &Plan, section: &Section) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for ((layout, _), page) in plan.layouts().zip(&section.pages).skip(plan.pages) {
        let (key, value) = (layout.page * layout.key_dim, layout.page * layout.value_dim);
        keys.resize(layout.heads * key, 0.0);
        values.resize(layout.heads * value, 0.0);
        let decoder = Decoder { layout, backend: layer.backend, codecs: (&*layer.keys, &*layer.values) };
        for (head, (keys, values)) in
            keys.chunks_exact_mut(key).zip(values.chunks_exact_mut(value)).enumerate()
        {
            let decided = section.of_head(layout, head);
            decoder.decode(&layout.head(page, head), decided, 0..layout.page, keys, values)?;
            clamp(keys);
            clamp(values);
        }
    }
    Ok((keys, values))
}
