//! Encodes rows as pages on the GPU.

use super::compile::{Job, Numbers, Source, load};
use super::driver::{Buffer, time};
use super::failure::Failure;
use super::held::{Encoder, Incoming, Part};
use super::inputs::Rows;
use super::layout::{Encode, SLOT_TOKENS};
use super::paged::Paged;
use super::tables::{CodeShape, Tables};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

const NAMES: [&core::ffi::CStr; 2] = [c"encode_keys", c"encode_values"];
/// Bytes of rows on the GPU at a time, if they are more than one page.
pub const ROW_BYTES_AT_ONCE: usize = 1 << 27;
/// Numbers in `refused` of each page, head and side: its centre, then at most 256 rows.
const REFUSABLE: u32 = 256 + 1;

/// Kernels that are compiled together: each encodes a part, with this many bytes of shared memory.
struct Image {
    numbers: Numbers,
    names: &'static [&'static core::ffi::CStr],
    parts: Vec<(Part, usize)>,
}

/// A row that its codec cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRow {
    /// The page, from 0.
    pub page: usize,
    /// The key/value head.
    pub head: usize,
    /// Whether the row is a key.
    pub key: bool,
    /// The row of the page, or `None` for the mean of the rows.
    pub row: Option<usize>,
}

/// Addresses of what encoding reads: rows, slots, balances and prefix centres, and of the number of a row that was refused.
/// `lost` is 0, or the address of two words for each slot of the pool: all bits are set in those of slots with such a row.
pub(super) struct Encoded {
    pub(super) rows: u64,
    pub(super) slots: u64,
    pub(super) front: u64,
    pub(super) refused: u64,
    pub(super) lost: u64,
    pub(super) position: u64,
}

impl Paged {
    /// Returns the values of the rows of a page.
    fn page_values(&self) -> usize {
        self.shape.page_tokens * self.shape.kv_heads * 2 * self.shape.dim
    }

    fn incoming(&self, pages: usize) -> Result<Arc<Incoming>, Failure> {
        Ok(Arc::new(Incoming {
            rows: Buffer::new(&self.device, pages * self.page_values())?,
            slots: Buffer::new(&self.device, pages * self.shape.slots_of_page())?,
            front: Buffer::new(&self.device, self.shape.front_values())?,
            refused: Buffer::new(&self.device, 1)?,
        }))
    }

    /// Returns what encoders are compiled from.
    fn encoder_images(&self) -> Vec<Image> {
        let (shape, numbers) = (&self.shape, self.numbers());
        let of_values = row_bytes(shape.dim, &self.values, false);
        let of_keys = |dim, keys| row_bytes(dim, keys, shape.centres);
        let (Some(halves), Some(numbers_of)) = (&self.keys.halves, &numbers.halves) else {
            let parts = vec![(Part::Keys, of_keys(shape.dim, &self.keys)), (Part::Values, of_values)];
            return vec![Image { numbers, names: &NAMES, parts }];
        };
        let whole = Numbers { halves: None, ..numbers.clone() };
        let mut images =
            vec![Image { numbers: whole, names: &NAMES[1..], parts: vec![(Part::Values, of_values)] }];
        let slot = shape.slot_bytes(self.keys.shape, self.values.shape) as u32;
        for (half, tables) in halves.iter().enumerate() {
            let mut own = numbers_of[half].clone();
            let first = half * shape.dim / 2;
            own.extend([("CENTRES", shape.centres.into()), ("TRIPLETS", 0), ("SLOT_BYTES", slot)]);
            own.extend([("WHOLE", shape.dim as u32), ("HALF_AT", first as u32)]);
            images.push(Image {
                numbers: Numbers { whole: own, halves: None },
                names: &NAMES[..1],
                parts: vec![(Part::Half(half), of_keys(shape.dim / 2, tables))],
            });
        }
        images
    }

    /// Returns what [`encoders`](Self::encoders) compiles.
    pub(super) fn encoder_jobs(&self) -> Vec<Job> {
        let job = |image: Image| Job {
            source: Source::Encode,
            target: self.target.clone(),
            numbers: image.numbers,
        };
        self.encoder_images().into_iter().map(job).collect()
    }

    pub(super) fn encoders(&mut self) -> Result<Arc<[Encoder]>, Failure> {
        if let Some(encoders) = &self.encoders {
            return Ok(encoders.clone());
        }
        let mut encoders = Vec::new();
        for Image { numbers, names, parts } in self.encoder_images() {
            let mut kernels = load(&self.device, Source::Encode, &self.target, &numbers, names)?;
            for (kernel, (_, bytes)) in parts.iter().enumerate() {
                kernels.share(kernel, *bytes)?;
            }
            let kernels = Arc::new(kernels);
            let encoder = |(kernel, (part, _))| Encoder { kernels: kernels.clone(), kernel, part };
            encoders.extend(parts.into_iter().enumerate().map(encoder));
        }
        let encoders: Arc<[Encoder]> = encoders.into();
        self.encoders = Some(encoders.clone());
        Ok(encoders)
    }

    /// Compiles the encoding kernels, and allocates memory for the rows of one page.
    ///
    /// # Errors
    /// Errors of the compiler; [`Failure::Memory`].
    pub fn prepare_encoding(&mut self) -> Result<(), Failure> {
        self.encoders()?;
        if self.incoming.is_none() {
            self.incoming = Some(self.incoming(1)?);
        }
        Ok(())
    }

    /// Encodes rows of consecutive tokens as pages in these places.
    ///
    /// If a codec cannot hold a row, it returns that row, and the contents of the places are unspecified.
    ///
    /// # Errors
    /// Errors of the compiler and the driver; [`Failure::Memory`].
    ///
    /// # Panics
    /// Panics for places beyond the pool, and for wrong lengths.
    pub fn encode(&mut self, places: &[u32], rows: &Rows) -> Result<Option<InvalidRow>, Failure> {
        let mut done = 0;
        while done < places.len() {
            let (incoming, count) = self.bring_pages(&places[done..], rows, done)?;
            let position = rows.position + (done * self.shape.page_tokens) as u64;
            let encoders = self.encoders()?;
            self.launch_encoders(&encoders, &incoming, count, position)?;
            let mut refused = [0];
            incoming.refused.read(0, &mut refused)?;
            if refused[0] != u32::MAX {
                let (head, row) = (refused[0] / REFUSABLE / 2, (refused[0] % REFUSABLE) as usize);
                return Ok(Some(InvalidRow {
                    page: done + head as usize / self.shape.kv_heads,
                    head: head as usize % self.shape.kv_heads,
                    key: (refused[0] / REFUSABLE).is_multiple_of(2),
                    row: row.checked_sub(1),
                }));
            }
            done += count;
        }
        Ok(None)
    }

    /// Measures `times` runs of the kernels that encode these rows, in microseconds of the GPU's clock.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    ///
    /// # Panics
    /// As [`encode`](Self::encode), and if the rows are more than `ROW_BYTES_AT_ONCE` bytes.
    pub fn time_encoding(&mut self, places: &[u32], rows: &Rows, times: usize) -> Result<Vec<f32>, Failure> {
        let (incoming, count) = self.bring_pages(places, rows, 0)?;
        assert_eq!(count, places.len(), "too many rows at once");
        let encoders = self.encoders()?;
        time(&self.device, times, || self.launch_encoders(&encoders, &incoming, count, rows.position))
    }

    /// Copies the rows of the next pages, from number `done` on, and returns the number of these pages.
    fn bring_pages(
        &mut self,
        places: &[u32],
        rows: &Rows,
        done: usize,
    ) -> Result<(Arc<Incoming>, usize), Failure> {
        self.prepare_encoding()?;
        let tokens = self.shape.page_tokens;
        let count = places.len().min((ROW_BYTES_AT_ONCE / 2 / self.page_values()).max(1));
        assert_eq!(rows.tokens(), (done + places.len()) * tokens);
        let slots: Vec<u32> = places[..count].iter().flat_map(|page| self.slots_of(*page)).collect();
        let incoming = match &self.incoming {
            Some(incoming) if count == 1 => incoming.clone(),
            _ => self.incoming(count)?,
        };
        self.gather(&incoming.rows, rows, done * tokens..(done + count) * tokens)?;
        incoming.slots.write(0, &slots)?;
        incoming.front.write(0, rows.front)?;
        incoming.refused.write(0, &[u32::MAX])?;
        Ok((incoming, count))
    }

    fn launch_encoders(
        &self,
        encoders: &[Encoder],
        incoming: &Incoming,
        pages: usize,
        position: u64,
    ) -> Result<(), Failure> {
        assert!(incoming.front.len() == self.shape.front_values());
        let from = Encoded {
            rows: incoming.rows.address(),
            slots: incoming.slots.address(),
            front: incoming.front.address(),
            refused: incoming.refused.address(),
            lost: 0,
            position,
        };
        // SAFETY: slots are below the pool's. `bring_pages` sized the buffers for these pages. Freeing them waits for the
        // kernels.
        unsafe { self.launch_encoders_on(encoders, &from, pages) }
    }

    /// Launches the kernels that encode pages.
    ///
    /// # Safety
    /// At these addresses is what kernels read, for this number of pages, until they have run. Slots are below the pool's.
    pub(super) unsafe fn launch_encoders_on(
        &self,
        encoders: &[Encoder],
        from: &Encoded,
        pages: usize,
    ) -> Result<(), Failure> {
        let shape = &self.shape;
        let halves = self.keys.halves.as_deref().map(<[_; 2]>::as_slice).unwrap_or_default();
        for Encoder { kernels, kernel, part } in encoders {
            // The tables, where a slot has this part, and where its search tables begin.
            let (tables, at, search) = match *part {
                Part::Keys => (&self.keys, 0, 0),
                Part::Values => (&self.values, 0, self.keys.search.len()),
                Part::Half(half) => {
                    let before = &halves[..half];
                    let at = if half > 0 { shape.coarse_at(self.keys.shape, self.values.shape) } else { 0 };
                    (&halves[half], at, before.iter().map(|tables| tables.search.len()).sum())
                }
            };
            let parameters = Encode {
                rows: from.rows,
                pool: self.held.pool.address() + at as u64,
                slots: from.slots,
                steps: self.steps.address(),
                book: self.book.address(),
                book_thresholds: self.book_thresholds.address(),
                front: from.front,
                refused: from.refused,
                lost: from.lost,
                search: self.search.address() + 4 * search as u64,
                position: from.position,
                kv_heads: shape.kv_heads as u32,
                page_tokens: shape.page_tokens as u32,
                rounds: tables.rounds,
                gain: tables.gain,
                unit: tables.unit,
                kappa: tables.kappa,
                book_unit: self.centre_unit,
                signs: tables.signs,
                centroids: tables.centroids,
                cells: tables.cells,
            };
            let grid = [pages, shape.kv_heads, 1];
            // SAFETY: these kernels take an Encode, and the caller promises what it leads to.
            unsafe {
                kernels.launch(self.device.stream(), *kernel, grid, threads(tables), false, &parameters)
            }?;
        }
        Ok(())
    }
}

/// Returns the threads of a block that encodes. A trellis search takes one thread for each row of a slot.
fn threads(tables: &Tables) -> usize {
    match tables.shape {
        CodeShape::Trellis(_) => 64,
        _ => 256,
    }
}

/// Returns the bytes of shared memory for the rows of a slot.
///
/// Rows are floats if the kernel finds a centre or a path among them, or if a lane cannot hold the base of
/// their rotation. Otherwise they are codes of one byte.
///
/// A row has one more word, so that a column uses all banks. Triplets and chunks take eight more: then
/// triplets of four rows use all banks, and chunks are whole.
fn row_bytes(dim: usize, tables: &Tables, centre: bool) -> usize {
    let floats = centre || !dim.is_power_of_two();
    let words = match tables.shape {
        CodeShape::Triplets(_) | CodeShape::Chunks(_) => dim + 8,
        CodeShape::Codes(_)
        | CodeShape::Levels(_)
        | CodeShape::Int(_)
        | CodeShape::Groups(_)
        | CodeShape::Blocks
            if !floats =>
        {
            dim / 4 + 1
        }
        _ => dim + 1,
    };
    SLOT_TOKENS * 4 * words
}
