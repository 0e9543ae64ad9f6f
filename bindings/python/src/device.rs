//! Caches on a GPU: layers of several sequences. The Python classes know which cache owns which sequence.

use crate::arrays::{Floats, OnDevice, RowsOnDevice, floats, stream};
use crate::cache::{Cache, Options, Settings, numbers, page_bits};
use crate::work::work;
use crate::{Error, OrRaise, Result, out_of_memory, raised};
use octaplex::gpu::{self, Device, Failure, Layer};
use octaplex::{Floats as Tensor, KvCache, Stats};
use pyo3::prelude::*;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tokens in pages for which a new layer allocates memory.
const FIRST: usize = 4096;

/// One device for each GPU in use. All its caches share a stream.
static DEVICES: Mutex<Option<HashMap<usize, Device>>> = Mutex::new(None);

impl<T> OrRaise<T> for core::result::Result<T, gpu::Error> {
    fn or_raise(self) -> Result<T> {
        self.map_err(|error| match error {
            gpu::Error::Device(Failure::Memory { .. }) => out_of_memory(error.to_string()),
            gpu::Error::Library(error) => raised(error, ""),
            error => Error::new_err(error.to_string()),
        })
    }
}

fn device(number: usize) -> Result<Device> {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = devices.get_or_insert_default();
    if let Some(device) = devices.get(&number) {
        return Ok(device.clone());
    }
    let device = Device::new(number).map_err(gpu::Error::from).or_raise()?;
    devices.insert(number, device.clone());
    Ok(device)
}

/// Returns the name of a GPU, and the architecture that kernels are compiled for.
#[pyfunction(name = "gpu")]
pub(crate) fn gpu_name(py: Python, number: usize) -> Result<(String, String)> {
    let device = work(py, || device(number))??;
    Ok((device.name().into(), device.architecture().into()))
}

/// Layers on a GPU. All have the same sequences.
#[pyclass(frozen, module = "octaplex._octaplex")]
pub(crate) struct DeviceCache {
    device: Device,
    layers: Vec<Mutex<Layer>>,
}

/// Runs `work`. While memory is too short, allocates a quarter more, or the least that is needed, and runs it again: a
/// call that closes pages of several sequences asks for them one after the other.
fn growing<T>(
    layer: &mut Layer,
    mut work: impl FnMut(&mut Layer) -> core::result::Result<T, gpu::Error>,
) -> core::result::Result<T, gpu::Error> {
    loop {
        let full = match work(layer) {
            Err(full @ gpu::Error::Full { .. }) => full,
            done => return done,
        };
        let gpu::Error::Full { needed, free } = full else { return Err(full) };
        let capacity = layer.paged_capacity();
        let least = capacity + needed.saturating_sub(free) * layer.config().page;
        // One sequence is spare, or a fork that shares its pages. So the others never fill more than this.
        let most = layer.config().capacity.saturating_mul(layer.sequences().saturating_sub(1).max(1));
        if layer.grow(least.max((capacity + capacity / 4).min(most))).is_err() {
            layer.grow(least)?;
        }
        if layer.paged_capacity() == capacity {
            return Err(full);
        }
    }
}

/// Replaces each sequence i with the former sequence `from[i]`. `spare` is an unused sequence.
fn pick(layer: &mut Layer, from: &[usize], spare: usize) -> core::result::Result<(), gpu::Error> {
    let mut left: Vec<(usize, usize)> =
        from.iter().copied().enumerate().filter(|(to, from)| to != from).collect();
    while let Some((to, source)) = left.first().copied() {
        match left.iter().position(|(to, _)| left.iter().all(|(_, from)| from != to)) {
            Some(free) => {
                let (to, source) = left.swap_remove(free);
                layer.fork(source, to)?;
            }
            None => {
                // A cycle: `spare` keeps the first sequence, and nothing reads its old place any more.
                layer.fork(to, spare)?;
                layer.fork(source, to)?;
                left.swap_remove(0);
                left.iter_mut().filter(|(_, from)| *from == to).for_each(|(_, from)| *from = spare);
            }
        }
    }
    layer.clear(spare)
}

fn widened(tensor: &Option<Floats>) -> Result<Vec<f32>> {
    let Some(tensor) = tensor else { return Ok(Vec::new()) };
    Ok(floats(tensor.tensor()?).into_owned())
}

impl DeviceCache {
    fn layer(&self, layer: usize) -> Result<MutexGuard<'_, Layer>> {
        let count = self.layers.len();
        let missing = octaplex::Error::Missing { what: "layer", number: layer, count };
        let found = self.layers.get(layer).ok_or(missing).or_raise()?;
        Ok(found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Works without the interpreter's lock, and then restores the thread's current GPU for other libraries.
    fn work<T: Send>(&self, py: Python, call: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        work(py, || self.device.keep_current(call).map_err(gpu::Error::from).or_raise()?)?
    }

    /// Calls `call` on all layers, one after the other. Each may first close pages of steps.
    fn each<T>(
        &self,
        mut call: impl FnMut(&mut Layer) -> core::result::Result<T, gpu::Error>,
    ) -> Result<Vec<T>> {
        (0..self.layers.len())
            .map(|number| growing(&mut *self.layer(number)?, &mut call).or_raise())
            .collect()
    }
}

#[pymethods]
impl DeviceCache {
    /// Creates all layers of a cache with this size, or only layer `only`.
    #[new]
    fn new(
        py: Python,
        number: usize,
        size: (usize, usize, usize, usize),
        settings: Settings,
        sequences: usize,
        only: Option<usize>,
    ) -> Result<Self> {
        let (layers, kv_heads, head_dim, capacity) = size;
        work(py, || {
            let device = device(number)?;
            let configs = settings.layers(layers, (kv_heads, head_dim), capacity)?;
            if configs.is_empty() || configs.len() < layers {
                return Err(Error::new_err("the number of layers is out of range: pass 1 to 65,536"));
            }
            let made = device.keep_current(|| {
                let mine = configs.iter().enumerate().filter(|(n, _)| only.is_none_or(|only| only == *n));
                let make = |(_, config)| {
                    let tokens = FIRST.min(capacity).max(1);
                    Layer::new(&device, config, sequences, tokens).map(Mutex::new).or_raise()
                };
                mine.map(make).collect::<Result<_>>()
            });
            let layers = made.map_err(gpu::Error::from).or_raise()??;
            Ok(Self { device, layers })
        })?
    }

    /// Creates empty layers with the configurations of a cache on the CPU.
    #[staticmethod]
    fn like(py: Python, number: usize, cache: &Cache, sequences: usize) -> Result<Self> {
        let device = work(py, || device(number))??;
        let make = |cache: &KvCache| {
            let make = |layer: &octaplex::cache::SharedLayer| {
                let tokens = FIRST.min(layer.config().capacity).max(1);
                Layer::new(&device, layer.config(), sequences, tokens).map(Mutex::new).or_raise()
            };
            cache.layers().iter().map(make).collect::<Result<Vec<_>>>()
        };
        let made = cache.read(py, |cache| device.keep_current(|| make(cache)))?;
        let layers = made.map_err(gpu::Error::from).or_raise()??;
        Ok(Self { device, layers })
    }

    /// Returns the number of layers, key/value heads and width.
    fn shape(&self, py: Python) -> Result<(usize, usize, usize)> {
        self.work(py, || {
            let config = *self.layer(0)?.config();
            Ok((self.layers.len(), config.kv_heads, config.key_dim))
        })
    }

    /// Returns the specs of each layer's keys and values.
    fn specs(&self, py: Python) -> Result<Vec<(String, String)>> {
        let specs =
            |layer: &mut Layer| Ok((layer.config().keys.to_string(), layer.config().values.to_string()));
        self.work(py, || self.each(specs))
    }

    /// Returns the bits a value in pages, the mean over all layers.
    fn page_bits(&self, py: Python) -> Result<f64> {
        self.work(py, || Ok(page_bits(self.each(|layer| Ok(*layer.config()))?.iter())))
    }

    /// Returns the number of sequences.
    fn sequences(&self, py: Python) -> Result<usize> {
        self.work(py, || Ok(self.layer(0)?.sequences()))
    }

    /// Appends tokens from the GPU's memory.
    fn append(&self, py: Python, layer: usize, sequence: usize, rows: RowsOnDevice, on: usize) -> Result<()> {
        let (rows, on) = (rows.rows()?, stream(on));
        self.work(py, || {
            growing(&mut *self.layer(layer)?, |layer| layer.append_on(sequence, &rows, on)).or_raise()
        })
    }

    /// Appends one token to each of these sequences. The GPU counts the tokens.
    fn append_step(
        &self,
        py: Python,
        layer: usize,
        sequences: (usize, usize),
        rows: RowsOnDevice,
        on: usize,
    ) -> Result<()> {
        let (rows, on) = (rows.rows()?, stream(on));
        let sequences = sequences.0..sequences.0 + sequences.1;
        self.work(py, || self.layer(layer)?.append_step_on(sequences, &rows, on).or_raise())
    }

    /// Returns how many steps may follow before `settle`, or `None` if a sequence has fewer tokens than sinks.
    fn steps_left(&self, py: Python, layer: usize, sequences: (usize, usize)) -> Result<Option<usize>> {
        self.work(py, || {
            let layer = self.layer(layer)?;
            let (sinks, mut numbers) = (layer.config().sink_tokens, sequences.0..sequences.0 + sequences.1);
            let has_sinks = |number| layer.next_position(number).is_ok_and(|next| next >= sinks);
            let left = numbers.clone().all(has_sinks).then(|| layer.steps_left(sequences.0..numbers.end));
            Ok(numbers.next().and(left))
        })
    }

    /// Reads the GPU's count of tokens, and closes full pages.
    fn settle(&self, py: Python, layer: usize, on: usize) -> Result<()> {
        let on = stream(on);
        self.work(py, || growing(&mut *self.layer(layer)?, |layer| layer.settle_on(on)).or_raise())
    }

    /// Allocates memory for `tokens` tokens of each of `sequences` sequences.
    fn reserve(&self, py: Python, tokens: usize, sequences: usize) -> Result<()> {
        let reserve = |layer: &mut Layer| layer.grow(tokens.saturating_mul(sequences));
        self.work(py, || self.each(reserve).map(drop))
    }

    /// Appends tokens from the host's memory.
    fn append_host(
        &self,
        py: Python,
        layer: usize,
        sequence: usize,
        keys: Floats,
        values: Floats,
    ) -> Result<()> {
        let (keys, values): (Tensor, Tensor) = (keys.tensor()?, values.tensor()?);
        self.work(py, || {
            growing(&mut *self.layer(layer)?, |layer| layer.append(sequence, keys, values)).or_raise()
        })
    }

    fn calibrate(
        &self,
        py: Python,
        layer: usize,
        sequence: usize,
        keys: Floats,
        queries: Floats,
    ) -> Result<()> {
        let (keys, queries): (Cow<[f32]>, Cow<[f32]>) = (floats(keys.tensor()?), floats(queries.tensor()?));
        self.work(py, || self.layer(layer)?.calibrate(sequence, &keys, &queries).or_raise())
    }

    /// Attends to `count` sequences from `first` on. Queries are \[sequences, query heads, queries, width].
    #[allow(clippy::too_many_arguments)] // Python's keywords
    fn attend(
        &self,
        py: Python,
        layer: usize,
        sequences: (usize, usize),
        queries: OnDevice,
        options: Options,
        sink_logits: Option<Floats>,
        bias: Option<Floats>,
        output: OnDevice,
        on: usize,
    ) -> Result<()> {
        let (queries, output, on) = (queries.slice()?, output.slice()?, stream(on));
        let (sink_logits, bias) = (widened(&sink_logits)?, widened(&bias)?);
        self.work(py, || {
            let mut layer = self.layer(layer)?;
            let attend = options.attend(&sink_logits, &bias);
            if options.is_step() {
                // This allocates once, and again only for another number of query heads.
                let heads = queries.len() / (sequences.1 * layer.config().key_dim).max(1);
                layer.reserve(heads).or_raise()?;
            }
            let sequences = sequences.0..sequences.0 + sequences.1;
            let attend = |layer: &mut Layer| {
                layer.attend_sequences_on(sequences.clone(), queries, &attend, output, on)
            };
            growing(&mut layer, attend).or_raise()
        })
    }

    /// Truncates every layer. After an error no layer has changed.
    fn truncate(&self, py: Python, sequence: usize, position: usize) -> Result<()> {
        self.work(py, || {
            self.each(|layer| layer.check_truncate(sequence, position))?;
            self.each(|layer| layer.truncate(sequence, position)).map(drop)
        })
    }

    /// Returns an error if `truncate` would fail.
    fn check_truncate(&self, py: Python, sequence: usize, position: usize) -> Result<()> {
        self.work(py, || self.each(|layer| layer.check_truncate(sequence, position)).map(drop))
    }

    fn evict(&self, py: Python, sequence: usize, start: usize, end: usize) -> Result<usize> {
        self.work(py, || Ok(self.each(|layer| layer.evict(sequence, start..end))?.iter().sum()))
    }

    fn clear(&self, py: Python, sequence: usize) -> Result<()> {
        self.work(py, || self.each(|layer| layer.clear(sequence)).map(drop))
    }

    fn fork(&self, py: Python, from: usize, to: usize) -> Result<()> {
        self.work(py, || self.each(|layer| layer.fork(from, to)).map(drop))
    }

    /// Replaces each sequence i with the former sequence `from[i]`. Empties the last sequence.
    fn pick(&self, py: Python, from: Vec<usize>) -> Result<()> {
        self.work(py, || {
            let refused = |layer: &mut Layer| {
                let spare = layer.sequences() - 1;
                let number = from.iter().copied().chain([from.len().saturating_sub(1)]).find(|n| *n >= spare);
                let missing = |number| octaplex::Error::Missing { what: "sequence", number, count: spare };
                number.map_or(Ok(()), |number| Err(gpu::Error::Library(missing(number))))
            };
            self.each(refused)?;
            self.each(|layer| pick(layer, &from, layer.sequences() - 1)).map(drop)
        })
    }

    /// Copies a sequence to a cache on the CPU.
    fn download(&self, py: Python, sequence: usize) -> Result<Cache> {
        self.work(py, || Ok(Cache::of(KvCache::from_layers(self.each(|layer| layer.download(sequence))?))))
    }

    /// Replaces a sequence with the contents of a cache on the CPU.
    fn upload(&self, py: Python, sequence: usize, cache: &Cache) -> Result<()> {
        let upload = |cache: &KvCache| {
            let (count, mine) = (cache.layers().len(), self.layers.len());
            if count != mine {
                return Err(Error::new_err(format!("expected a cache of {mine} layers, got {count}")));
            }
            for (number, from) in cache.layers().iter().enumerate() {
                growing(&mut *self.layer(number)?, |layer| layer.upload(sequence, from)).or_raise()?;
            }
            Ok(())
        };
        cache.read(py, |cache| {
            self.device.keep_current(|| upload(cache)).map_err(gpu::Error::from).or_raise()?
        })?
    }

    fn next_position(&self, py: Python, layer: usize, sequence: usize) -> Result<usize> {
        self.work(py, || self.layer(layer)?.next_position(sequence).or_raise())
    }

    /// Returns counts over all layers, in the order of the Python class's fields.
    fn stats(&self, py: Python, sequence: usize) -> Result<Vec<usize>> {
        self.work(py, || {
            let all = self.each(|layer| layer.stats(sequence))?;
            Ok(numbers(&all.into_iter().sum::<Stats>()))
        })
    }

    /// Returns the bytes of all layers' pages on the GPU, including free pages.
    fn page_bytes(&self, py: Python) -> Result<usize> {
        let bytes =
            |layer: &mut Layer| Ok(layer.paged_capacity() / layer.config().page * layer.gpu_page_bytes());
        self.work(py, || Ok(self.each(bytes)?.iter().sum()))
    }
}
