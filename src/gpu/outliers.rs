//! Pages with outliers. On the GPU all rows have the same length; outliers lie in a separate list, without
//! flags.
//!
//! So `take` splits pages on their way to the GPU, and `put` joins them on their way back.
//!
//! ```text
//! CPU    position │ head 0: keys │ flags │ outliers │ values │ flags │ outliers │ head 1 … │ centres, norms
//!                             │      └───────┴────────────────────┴───────┴──────► list of outliers
//! GPU    position │ head 0: keys │ values │ head 1 … │ centres, norms
//! ```

use super::{Error, Layer};
use crate::cache::layout::Layout;
use crate::codec::outliers::{Outliers, Page};
use crate::{CodecSpec, LayerConfig};
use alloc::vec;
use alloc::vec::Vec;
use octaplex_device::Outlier;

/// Bytes of a page's position.
const POSITION: usize = 8;
/// Bytes of an outlier after the blocks of a page.
const BYTES: usize = 8;

/// The offsets of the parts of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apart {
    layout: Layout,
    /// For keys and values, where blocks have their flags.
    sides: [Option<Outliers>; 2],
}

impl Apart {
    pub(super) fn new(config: &LayerConfig, layout: &Layout) -> Self {
        let of = |spec: CodecSpec, dim: usize| {
            let med = match spec {
                CodecSpec::Int(int) => int.med,
                CodecSpec::Hqmq(hqmq) => hqmq.med,
                _ => 0,
            };
            let (block_bytes, chunks) = (spec.block_bytes(dim), dim.div_ceil(4));
            let flags_at = block_bytes.saturating_sub(chunks.div_ceil(8));
            (med > 0).then_some(Outliers { block_bytes, flags_at, chunks })
        };
        let sides = [of(config.keys, config.key_dim), of(config.values, config.value_dim)];
        Self { layout: *layout, sides }
    }

    /// Returns whether keys, and values, have outliers.
    pub(super) fn sides(&self) -> [bool; 2] {
        self.sides.map(|side| side.is_some())
    }

    fn is_any(&self) -> bool {
        self.sides().contains(&true)
    }

    /// Returns the bytes of a head's keys, and of its values, without flags.
    fn rows(&self) -> [usize; 2] {
        let Layout { keys, values, page, .. } = &self.layout;
        let of = |outliers: Option<Outliers>, rows| outliers.map_or(rows, |own| page * own.flags_at);
        [of(self.sides[0], keys.rows), of(self.sides[1], values.rows)]
    }

    /// Returns the bytes of the parts after all rows, of a head: centre, norms of keys, norms of values.
    fn extra(&self) -> [usize; 3] {
        [self.layout.centre_bytes, self.layout.keys.norms, self.layout.values.norms]
    }

    /// Returns the bytes of a page without flags and outliers, as the GPU kernels read it.
    pub(super) fn page_bytes(&self) -> usize {
        if !self.is_any() {
            return self.layout.page_bytes;
        }
        let each: usize = self.rows().iter().chain(&self.extra()).sum();
        POSITION + self.layout.heads * each
    }

    /// Returns the bytes of a page up to the length that it states.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`].
    pub(super) fn page<'a>(&self, bytes: &'a [u8], index: usize) -> Result<&'a [u8], crate::Error> {
        let page = bytes.get(..self.layout.page_length(bytes)).filter(|page| self.layout.is_sound(page));
        page.ok_or(crate::Error::Corrupt { block: index * self.layout.page })
    }

    /// Splits rows of a head, keys and values, into blocks and lists.
    fn split<'a>(&self, rows: [&'a [u8]; 2]) -> Result<[Option<Page<'a>>; 2], crate::Error> {
        let split = |side: usize| match self.sides[side] {
            None => Ok(None),
            Some(own) => match own.split(rows[side], self.layout.page) {
                // The length of the rows contradicts their flags.
                Err(crate::Error::Length { .. }) => Err(crate::Error::Corrupt { block: 0 }),
                split => split.map(Some),
            },
        };
        Ok([split(0)?, split(1)?])
    }

    /// Returns rows of a head, keys and values, without lists of outliers.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] for outliers and flags that no encoder writes.
    pub(super) fn blocks<'a>(&self, rows: [&'a [u8]; 2]) -> Result<[&'a [u8]; 2], crate::Error> {
        let [keys, values] = self.split(rows)?;
        Ok([keys.map_or(rows[0], |page| page.blocks), values.map_or(rows[1], |page| page.blocks)])
    }

    /// Appends a page's bytes without flags and outliers to `bytes`, and its outliers to `lists` if the
    /// codecs have any.
    ///
    /// # Errors
    /// As [`blocks`](Self::blocks).
    pub(super) fn take(
        &self,
        page: &[u8],
        bytes: &mut Vec<u8>,
        lists: &mut Vec<Vec<Outlier>>,
    ) -> Result<(), crate::Error> {
        if !self.is_any() {
            bytes.extend_from_slice(page);
            return Ok(());
        }
        let (layout, mut list) = (&self.layout, Vec::new());
        bytes.extend_from_slice(&page[..POSITION]);
        for number in 0..layout.heads {
            let head = layout.head(page, number);
            let rows = [head.keys.rows, head.values.rows];
            for (side, split) in self.split(rows)?.into_iter().enumerate() {
                let Some((page, own)) = split.zip(self.sides[side]) else {
                    // Rows of planes start with two bytes more, which stay here.
                    bytes.extend_from_slice(&rows[side][rows[side].len() - self.rows()[side]..]);
                    continue;
                };
                page.blocks
                    .chunks_exact(own.block_bytes)
                    .for_each(|block| bytes.extend_from_slice(&block[..own.flags_at]));
                page.for_each_exactly(|token, chunk, values| {
                    let (head, token, chunk) = (number as u16, token as u16, chunk as u16);
                    list.push(Outlier { head, of_value: side == 1, token, chunk, values });
                });
            }
        }
        for number in 0..layout.heads {
            let head = layout.head(page, number);
            [head.keys.centre, head.keys.norms, head.values.norms]
                .iter()
                .for_each(|part| bytes.extend_from_slice(part));
        }
        lists.push(list);
        Ok(())
    }

    /// Joins bytes and outliers into a page, and returns its length.
    ///
    /// `page` has space for the longest page. Outliers are sorted by head, keys before values, then token
    /// and chunk.
    pub(super) fn put(&self, bytes: &[u8], list: &[Outlier], page: &mut [u8]) -> usize {
        let layout = &self.layout;
        if !self.is_any() {
            page.copy_from_slice(bytes);
            return page.len();
        }
        page[..layout.header].fill(0);
        page[..POSITION].copy_from_slice(&bytes[..POSITION]);
        let (rows, extra): (usize, usize) = (self.rows().iter().sum(), self.extra().iter().sum());
        let (all_rows, extras) = bytes[POSITION..].split_at(layout.heads * rows);
        let parts =
            all_rows.chunks_exact(rows).zip(extras.chunks(extra.max(1)).chain(core::iter::repeat(&[][..])));
        let mut rest = list;
        for ((number, head), (rows, extra)) in layout.heads_mut(page).enumerate().zip(parts) {
            let (keys, values) = rows.split_at(self.rows()[0]);
            let sides = [(false, keys, head.keys.rows), (true, values, head.values.rows)];
            let lengths = sides.map(|(of_value, rows, to)| {
                let count =
                    rest.iter().take_while(|own| (usize::from(own.head), own.of_value) == (number, of_value));
                let own;
                (own, rest) = rest.split_at(count.count());
                put_side(self.sides[usize::from(of_value)], rows, own, to)
            });
            let mut at = 0;
            for part in [head.keys.centre, head.keys.norms, head.values.norms] {
                part.copy_from_slice(&extra[at..at + part.len()]);
                at += part.len();
            }
            for (to, length) in head.lengths.as_chunks_mut::<4>().0.iter_mut().zip(lengths) {
                *to = (length as u32).to_le_bytes();
            }
        }
        layout.pack(page);
        layout.page_length(page)
    }
}

/// Writes the rows of one side, with flags and a list if it has outliers, and returns their bytes.
fn put_side(outliers: Option<Outliers>, rows: &[u8], list: &[Outlier], to: &mut [u8]) -> usize {
    let Some(Outliers { block_bytes, flags_at, .. }) = outliers else {
        to.copy_from_slice(rows);
        return rows.len();
    };
    let blocks = rows.len() / flags_at * block_bytes;
    let (to, behind) = to.split_at_mut(blocks);
    for (block, row) in to.chunks_exact_mut(block_bytes).zip(rows.chunks_exact(flags_at)) {
        block[..flags_at].copy_from_slice(row);
        block[flags_at..].fill(0);
    }
    for (outlier, bytes) in list.iter().zip(behind.as_chunks_mut::<BYTES>().0) {
        let chunk = usize::from(outlier.chunk);
        to[usize::from(outlier.token) * block_bytes + flags_at + chunk / 8] |= 1 << (chunk % 8);
        for (bytes, half) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(outlier.values) {
            *bytes = half.to_le_bytes();
        }
    }
    blocks + list.len() * BYTES
}

impl Layer {
    /// Reads the page in a place, as the CPU stores it.
    pub(super) fn whole_page(&mut self, place: u32) -> Result<Vec<u8>, Error> {
        let (mut bytes, mut page) = (vec![0; self.apart.page_bytes()], vec![0; self.layout.page_bytes]);
        self.paged.download(&[place], &mut bytes)?;
        let length = self.apart.put(&bytes, &self.paged.outliers(place)?, &mut page);
        page.truncate(length);
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;
    use crate::cache::storage::Storage;
    use crate::cache::{Center, SharedLayer};

    /// Pages of all combinations of sides are joined as they were split, in whatever order the GPU has the
    /// outliers.
    #[test]
    fn pages_come_together_as_they_were() {
        let specs = [
            ("int:med=3", "int:bits=8,med=2"),
            ("hqmq:med=2", "int:bits=3,group=16,med=3"),
            ("hqmq:s=24,r=3,med=3", "turboquant"),
            ("turboquant", "int:med=1"),
            ("int:bits=2,group=16,med=3", "int:asymmetric=true"),
            ("turboquant", "trellis"),
        ];
        let mut outliers = 0;
        for (number, (keys, values)) in specs.into_iter().enumerate() {
            for dim in [64, 80, 128] {
                let config = LayerConfig::new(3, dim, 2000)
                    .page([64, 128, 256][(number + dim / 64) % 3])
                    .center([Center::Page, Center::Off, Center::Prefix][number % 3])
                    .keys(keys.parse().expect("a codec"))
                    .values(values.parse().expect("a codec"));
                let mut layer = SharedLayer::on_heap(&config, Backend::detect()).expect("a layer");
                let rows: Vec<f32> = (0..3 * 700 * dim)
                    .map(|n| {
                        ((n * n) % 37) as f32 - 18.0 + if n % dim == 9 || n % 371 == 5 { 90.0 } else { 0.0 }
                    })
                    .collect();
                let mut scratch = vec![0.0; config.scratch_len(3)];
                layer.append(&rows, &rows, &mut scratch).expect("rows");
                let apart = Apart::new(&config, &layer.layout);
                for index in 0..layer.store.pages() {
                    let page = apart.page(layer.store.page(index), index).expect("a page");
                    let (mut bytes, mut lists) = (Vec::new(), Vec::new());
                    apart.take(page, &mut bytes, &mut lists).expect("a page");
                    assert_eq!(bytes.len(), apart.page_bytes());
                    let mut list = lists.pop().unwrap_or_default();
                    assert_eq!(lists.len(), 0);
                    list.sort_unstable();
                    outliers += list.len();
                    let mut again = vec![0xaa; layer.layout.page_bytes];
                    let length = apart.put(&bytes, &list, &mut again);
                    assert!(again[..length] == *page, "{keys}, {values}, width {dim}, page {index}");
                    // Shorter than the page states, and than its lists need.
                    assert!(apart.page(&page[..page.len() - 1], index).is_err());
                }
                assert!(layer.store.pages() > 1);
            }
        }
        assert!(outliers > 5000, "{outliers}");
    }
}
