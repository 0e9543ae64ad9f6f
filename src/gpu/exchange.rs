//! Copies sequences from layers on the CPU and back, and writes and reads snapshots.

use super::append::places_of;
use super::{Error, Held, Layer, refuse};
use crate::backend::Kernels;
use crate::cache::layout::Layout;
use crate::cache::storage::Storage;
use crate::cache::{SharedLayer, State};
use crate::codec::{Codec, in_page, read_f16};
use crate::page::read_balance;
use crate::{Backend, CodecSpec, LayerConfig};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use octaplex_arch::{BLOCK_BYTES, Float, Packing};
use octaplex_device::{Input, WIDTHS};

/// Bytes of pages on the host at a time, if they are more than one page.
const BYTES_AT_ONCE: usize = 1 << 24;
const WIDEST: usize = WIDTHS[WIDTHS.len() - 1];

impl Layer {
    /// Makes a sequence equal to a layer on the CPU: pages, exact tokens, balance and centres.
    ///
    /// The sequence keeps its old pages during the copy, so the new pages need free places.
    ///
    /// # Errors
    /// * [`Error::Unsupported`] if the layer has its own codecs, or another configuration. `capacity`,
    ///   `query_heads` and `sliding_window` may differ.
    /// * [`Error::Unsupported`] if it holds more tokens than the capacity and sliding window of this layer
    ///   allow.
    /// * [`crate::Error::Corrupt`] for pages that no encoder writes: with norms or outliers that are not
    ///   finite, with flags beyond the last chunk, or with invalid digits. The same holds for rows of
    ///   `hqmq` with a direction without a radius, or with spare bits.
    /// * [`Error::Full`], [`Error::Device`].
    pub fn upload<K: Codec, V: Codec, S: Storage>(
        &mut self,
        sequence: usize,
        layer: &crate::cache::Layer<K, V, S>,
    ) -> Result<(), Error> {
        self.sequence(sequence)?;
        self.settle_without(Some(sequence))?;
        let alike = LayerConfig {
            capacity: self.config.capacity,
            query_heads: self.config.query_heads,
            sliding_window: self.config.sliding_window,
            ..layer.config
        };
        if alike != self.config || layer.own_codecs {
            return refuse("the layer on the GPU has another configuration, or other codecs");
        }
        let (layout, view, dim) = (self.layout, layer.view(), self.config.key_dim);
        let (pages, exact) = (layer.store.pages(), view.exact());
        if exact > layout.sinks + self.config.recent_window + layout.page
            || exact + pages * layout.page > self.config.capacity
            || pages > layout.most_pages(&self.config).min(self.pages_each)
        {
            return refuse(
                "the layer holds more tokens than the capacity or the sliding window of the layer on the GPU",
            );
        }
        let memory = layer.store.front();
        let mut held = Held::empty(&layout);
        for (head, front) in held.front.chunks_exact_mut(2 * dim).enumerate() {
            let (balance, prefix) = front.split_at_mut(dim);
            if view.balanced {
                read_balance(layer.backend, &memory[layout.balance(head)], balance);
            }
            let bytes = &memory[layout.prefix(head)];
            if !bytes.is_empty() {
                layer.backend.decode_floats(Float::F16, bytes, prefix);
            }
        }
        held.sequence.pages = self.free(pages)?;
        held.positions = (0..pages).map(|index| layer.page_position(index)).collect();
        held.enter(&layout, layer.state);
        let (mut bytes, mut lists) = (Vec::new(), Vec::new());
        for index in 0..pages {
            let page = self.apart.page(layer.store.page(index), index)?;
            self.check_page(page, index)?;
            self.apart.take(page, &mut bytes, &mut lists)?;
            if bytes.len() >= BYTES_AT_ONCE || index + 1 == pages {
                let count = bytes.len() / self.apart.page_bytes();
                let places = &held.sequence.pages[index + 1 - count..=index];
                self.paged.upload(places, &bytes, &lists)?;
                bytes.clear();
                lists.clear();
            }
        }
        self.upload_exact(sequence, layer)?;
        self.place(sequence, held)
    }

    /// Copies the exact rows of a layer on the CPU to a sequence.
    pub(super) fn upload_exact<K: Codec, V: Codec, S: Storage>(
        &mut self,
        sequence: usize,
        layer: &crate::cache::Layer<K, V, S>,
    ) -> Result<(), Error> {
        let (layout, state, memory) = (self.layout, &layer.state, layer.store.front());
        let mut rows = Vec::new();
        for row in exact_rows(layout, *state) {
            let halves = memory[row].as_chunks::<2>().0.iter();
            rows.extend(halves.map(|bytes| u16::from_le_bytes(*bytes)));
        }
        let (input, sinks) = (Input::Host(&rows), state.next.min(layout.sinks));
        self.paged.store(sequence, layout.ring, input, 0..sinks)?;
        self.store_from(sequence, state, in_ring(state), input, sinks)
    }

    /// Returns a layer on the CPU that equals a sequence, bit for bit: the reverse of
    /// [`upload`](Self::upload).
    ///
    /// `KvCache::from_layers` makes a cache of several such layers.
    ///
    /// ```no_run
    /// use octaplex::{LayerConfig, gpu};
    ///
    /// let mut layer = gpu::Layer::new(&gpu::Device::new(0)?, &LayerConfig::new(1, 64, 4096), 2, 8192)?;
    /// layer.append(0, &[0.5; 1000 * 64], &[0.5; 1000 * 64])?;
    /// let on_cpu = layer.download(0)?;
    /// layer.upload(1, &on_cpu)?; // sequence 1 equals sequence 0
    /// # Ok::<(), gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Missing`], [`Error::Device`].
    pub fn download(&mut self, sequence: usize) -> Result<SharedLayer, Error> {
        self.sequence(sequence)?;
        self.settle()?;
        let pages = self.sequence(sequence)?.pages.len();
        self.download_some(sequence, 0..pages)
    }

    /// Returns such a layer with a range of the pages.
    pub(super) fn download_some(
        &mut self,
        sequence: usize,
        pages: Range<usize>,
    ) -> Result<SharedLayer, Error> {
        let (mut layer, layout, dim) = (self.empty_on_cpu()?, self.layout, self.config.key_dim);
        let held = &self.sequences[sequence];
        layer.state = held.state;
        let sinks = layout.ring..layout.ring + held.sequence.sinks;
        let window = places_of(&layout, &held.state, in_ring(&held.state));
        let mut rows = Vec::new();
        for places in [sinks].into_iter().chain(window).filter(|places| !places.is_empty()) {
            rows.extend(self.paged.load(sequence, places)?);
        }
        let (balanced, closed) = (layer.is_balanced(), layer.state.has_closed(&layout));
        let memory = layer.store.front_mut();
        for (place, row) in exact_rows(layout, held.state).zip(rows.chunks_exact(dim)) {
            let bytes = memory[place].as_chunks_mut::<2>().0.iter_mut();
            bytes.zip(row).for_each(|(bytes, half)| *bytes = half.to_le_bytes());
        }
        for (head, front) in held.front.chunks_exact(2 * dim).enumerate() {
            let (balance, prefix) = front.split_at(dim);
            let (of_balance, of_prefix) = (layout.balance(head), layout.prefix(head));
            if balanced {
                self.backend.encode_floats(Float::F16, balance, &mut memory[of_balance]);
            }
            if closed && !of_prefix.is_empty() {
                self.backend.encode_floats(Float::F16, prefix, &mut memory[of_prefix]);
            }
        }
        let each = self.apart.page_bytes();
        for places in held.sequence.pages[pages].chunks((BYTES_AT_ONCE / each).max(1)) {
            let mut bytes = vec![0; places.len() * each];
            self.paged.download(places, &mut bytes)?;
            for (place, page) in places.iter().zip(bytes.chunks_exact(each)) {
                let list = self.paged.outliers(*place)?;
                self.apart.put(page, &list, layer.store.front_and_draft(0).1);
                layer.store.commit(1);
            }
        }
        Ok(layer)
    }

    /// Calls `write` with the pieces of a sequence's snapshot.
    ///
    /// [`Layer::save`](crate::cache::Layer::save) writes the same bytes for the same tokens on the CPU, and
    /// [`Layer::load`](crate::cache::Layer::load) reads them.
    ///
    /// ```no_run
    /// use octaplex::cache::SharedLayer;
    /// use octaplex::{Backend, LayerConfig, gpu};
    ///
    /// let config = LayerConfig::new(1, 64, 4096);
    /// let mut layer = gpu::Layer::new(&gpu::Device::new(0)?, &config, 2, 4096)?;
    /// layer.append(0, &[0.5; 1000 * 64], &[0.5; 1000 * 64])?;
    /// let mut bytes = Vec::new();
    /// layer.save(0, &mut |piece| bytes.extend_from_slice(piece))?;
    /// layer.load(1, &bytes)?; // into another sequence on the GPU
    /// SharedLayer::on_heap(&config, Backend::detect())?.load(&bytes)?; // or into a layer on the CPU
    /// # Ok::<(), gpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Missing`], [`Error::Device`]; `write` is then not called.
    pub fn save(&mut self, sequence: usize, write: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        self.download(sequence)?.save(write);
        Ok(())
    }

    /// Replaces a sequence with the contents of a snapshot, from a GPU or a CPU.
    ///
    /// The snapshot's layer must have the same configuration; its capacity may differ. The sequence keeps
    /// its old pages during the call, so the new pages need free places.
    ///
    /// # Errors
    /// * [`crate::Error::Snapshot`] and [`crate::Error::Full`], as
    ///   [`Layer::load`](crate::cache::Layer::load) returns them.
    /// * [`crate::Error::Missing`]; [`Error::Full`] if there are not enough free pages.
    /// * [`crate::Error::Corrupt`] for negative norms, and as [`upload`](Self::upload) returns it.
    /// * [`Error::Device`]; then [clear](Self::clear) the sequence.
    ///
    /// After other errors the layer is as it was.
    pub fn load(&mut self, sequence: usize, bytes: &[u8]) -> Result<(), Error> {
        self.sequence(sequence)?;
        let mut layer = self.empty_on_cpu()?;
        layer.load(bytes)?;
        self.upload(sequence, &layer)
    }

    fn empty_on_cpu(&self) -> Result<SharedLayer, crate::Error> {
        let [keys, values] = self.codecs.clone();
        SharedLayer::empty(&self.config, self.layout, keys, values, Backend::detect())
    }

    /// Checks that norms and centres are finite, so that no sum on a GPU is not. Checks that the GPU can
    /// store all digits.
    fn check_page(&self, page: &[u8], index: usize) -> Result<(), Error> {
        let block = index * self.config.page;
        for head in 0..self.layout.heads {
            let head = self.layout.head(page, head);
            let rows = self.apart.blocks([head.keys.rows, head.values.rows]);
            let [keys, values] = rows.map_err(|error| in_page(error, index, self.config.page))?;
            let sides = [
                (&self.layout.keys, &self.config.keys, keys, head.keys),
                (&self.layout.values, &self.config.values, values, head.values),
            ];
            let norms = sides.iter().all(|(shape, spec, rows, part)| match part.norms.is_empty() {
                false => shape.largest_norms(part).all(|largest| is_norm(largest)),
                true => rows
                    .chunks_exact(rows.len() / self.config.page)
                    .all(|row| has_norms(spec, self.config.key_dim, row)),
            });
            let centre = self.layout.keys.is_sound(&head.keys);
            let (dim, tokens) = (self.config.key_dim, self.config.page);
            let digits = sides.iter().all(|(side, spec, rows, _)| {
                are_digits(self.backend, **spec, dim, tokens, &rows[side.lead()..])
            });
            if !norms || !centre || !digits {
                return Err(crate::Error::Corrupt { block }.into());
            }
        }
        Ok(())
    }
}

/// Returns whether a norm is finite and not negative. Kernels compare the bits of norms.
fn is_norm(bytes: &[u8]) -> bool {
    read_f16(bytes).is_finite() && !read_f16(bytes).is_sign_negative()
}

/// Returns whether all scales of a row are norms.
fn has_norms(spec: &CodecSpec, dim: usize, row: &[u8]) -> bool {
    match spec {
        // No encoder writes a row that the GPU's fields cannot store.
        CodecSpec::Hqmq(spec) => {
            is_norm(row) && spec.chunk_layout(dim).is_some_and(|layout| layout.is_packed(row))
        }
        CodecSpec::Int(spec) => {
            let groups = spec.group.map_or(1, |group| dim / usize::from(group));
            let (fields, zeros) = (if spec.asymmetric { 2 * groups } else { groups }, spec.asymmetric);
            // Every second field is then a zero point, which may be negative.
            row.chunks_exact(2).take(fields).enumerate().all(|(field, bytes)| match zeros && field % 2 == 1 {
                true => read_f16(bytes).is_finite(),
                false => is_norm(bytes),
            })
        }
        CodecSpec::Tq3(_) => row.chunks_exact(BLOCK_BYTES).all(|block| is_norm(&block[BLOCK_BYTES - 2..])),
        _ => is_norm(row),
    }
}

/// Returns whether the rows of a page have digits as an encoder packs them. Codecs without digits pass.
///
/// Different packed bytes can stand for the same digits. A GPU keeps the digits, so it would write back
/// other bytes.
fn are_digits(backend: Kernels, spec: CodecSpec, dim: usize, page: usize, rows: &[u8]) -> bool {
    let levels = match spec {
        CodecSpec::TurboQuant(spec) => spec.levels.into(),
        CodecSpec::Trellis(spec) => spec.m.into(),
        _ => return true,
    };
    let Some(packing) = Packing::for_levels(levels).filter(|packing| packing.radix() > 1) else {
        return true;
    };
    let (mut codes, mut packed) = ([0; WIDEST], [0; WIDEST]);
    let (codes, packed) = (&mut codes[..dim], &mut packed[..packing.bytes(dim)]);
    rows.chunks_exact(rows.len() / page).all(|row| {
        let planes = &row[row.len() - packed.len()..];
        backend.unpack(packing, planes, codes);
        backend.pack(packing, codes, packed);
        *planes == *packed
    })
}

/// Returns the positions whose rows are in the ring.
fn in_ring(state: &State) -> Range<usize> {
    state.kept..state.next.max(state.kept)
}

/// Returns where the CPU has the exact rows of a layer in this state, in the GPU's order: \[sinks,
/// ring]\[kv heads]\[keys, values].
fn exact_rows(layout: Layout, state: State) -> impl Iterator<Item = Range<usize>> {
    let sinks = state.next.min(layout.sinks);
    (0..sinks).chain(in_ring(&state)).flat_map(move |position| {
        (0..layout.heads).flat_map(move |head| {
            if position < sinks {
                return [layout.sink_keys(head, position, 1), layout.sink_values(head, position, 1)];
            }
            let place = state.place_of(&layout, position);
            [layout.window_keys(head, place, 1), layout.window_values(head, place, 1)]
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::trellis::TrellisSpec;
    use crate::codec::turboquant::TurboQuantSpec;
    use crate::random::HeadId;

    /// Every scale of a row is checked. Bytes that a slot cannot give back are errors.
    #[test]
    fn rows_that_slots_hold() {
        let x: Vec<f32> = (0..64).map(|i| (i * 37 % 64) as f32 - 31.0).collect();
        for (spec, scales) in
            [("tq3_0", vec![12, 26]), ("tq3_0:variant=3bit", vec![12, 26]), ("hqmq", vec![0])]
        {
            let spec: CodecSpec = spec.parse().expect("a codec");
            let codec = spec.build_dyn(64, Backend::detect(), HeadId::default()).expect("a codec");
            let mut row = vec![0; codec.block_bytes()];
            codec.encode(&x, &mut row).expect("a row");
            assert!(has_norms(&spec, 64, &row), "{spec}");
            for at in scales {
                for high in [0x7c, 0x7e, 0x80, 0xfc] {
                    let mut other = row.clone();
                    other[at + 1] = high;
                    assert!(!has_norms(&spec, 64, &other), "{spec}, byte {at}: {high:x}");
                }
            }
            if matches!(spec, CodecSpec::Hqmq(_)) {
                // The last byte of the digits' plane has two of the 32 digits; each byte before it has
                // five.
                let digits = 2 + 16;
                for (at, value) in [(digits, 243), (digits, 255), (digits + 6, 9)] {
                    let mut other = row.clone();
                    other[at] = value;
                    assert!(!has_norms(&spec, 64, &other), "byte {at}: {value}");
                }
                let mut other = row.clone();
                *other.last_mut().expect("a radius") &= 0x0f;
                other[digits - 1] |= 1;
                assert!(!has_norms(&spec, 64, &other), "a direction without a radius");
            }
        }
    }

    /// The largest digits fit in the first group of the first row and in the last group of the last row.
    /// Larger ones are errors, and so are bits after the last digit.
    #[test]
    fn digits_are_those_of_an_encoder() {
        let backend = Backend::detect().kernels();
        let trellises = [3, 4, 6, 12].map(|m| (m.into(), CodecSpec::Trellis(TrellisSpec::new(m, 8))));
        let codes = [2, 3, 4, 5, 6, 10, 12, 32];
        let codes = codes.map(|n| (n.into(), CodecSpec::TurboQuant(TurboQuantSpec::new(4).levels(n))));
        for (dim, (levels, spec)) in
            WIDTHS.into_iter().flat_map(|dim| trellises.into_iter().chain(codes).map(move |of| (dim, of)))
        {
            let codec = spec.build_dyn(dim, Backend::detect(), HeadId::default()).expect("a codec");
            let rows: Vec<f32> = (0..64 * dim).map(|n| ((n * n) % 37) as f32 - 18.0).collect();
            let mut blocks = vec![0; 64 * codec.block_bytes()];
            codec.encode_page(&rows, &mut blocks).expect("a page");
            // In a page the norms lie apart.
            let mut planes: Vec<u8> =
                blocks.chunks_exact(codec.block_bytes()).flat_map(|block| block[2..].to_vec()).collect();
            let are = |planes: &[u8]| are_digits(backend, spec, dim, 64, planes);
            assert!(are(&planes), "{spec}, width {dim}");
            let packing = Packing::for_levels(levels).expect("levels");
            let (group, bits) = packing.digit_group();
            let last = (dim - 1) % group + 1;
            let short = packing.short_group_bits(last);
            let digits = codec.block_bytes() - 2 - (packing.bytes(dim) - packing.raw_bytes(dim));
            let end = 63 * (codec.block_bytes() - 2) + digits;
            let groups = dim.div_ceil(group) as u32;
            for (at, digits, bits) in
                [(8 * digits as u32, group, bits), (8 * end as u32 + (groups - 1) * bits, last, short)]
            {
                let most = packing.radix().pow(digits as u32);
                let was = planes.clone();
                for (number, good) in [(most - 1, true), (most, false)] {
                    for bit in 0..bits {
                        let byte = &mut planes[((at + bit) / 8) as usize];
                        *byte = *byte & !(1 << ((at + bit) % 8))
                            | ((number >> bit & 1) as u8) << ((at + bit) % 8);
                    }
                    assert_eq!(are(&planes), good || packing.radix() == 1, "{spec}, width {dim}: {number}");
                }
                planes = was;
            }
            let behind = 8 * end as u32 + (groups - 1) * bits + short;
            if packing.radix() > 1 && !behind.is_multiple_of(8) {
                *planes.last_mut().expect("a byte") |= 0x80;
                assert!(!are(&planes), "{spec}, width {dim}: a bit behind the last digit");
            }
        }
    }
}
