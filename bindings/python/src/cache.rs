//! The cache of a model. Threads may call it at once; a call that changes it waits for the others.

use crate::arrays::{Floats, FloatsMut, bytes, floats};
use crate::work::{Call, Waiting, waiting, work};
use crate::{Error, OrRaise, Result, os_error, raised, spec};
use numpy::PyReadonlyArray1;
use octaplex::cache::{Center, Choice};
use octaplex::{Attend, Backend, CacheConfig, FloatsMut as TensorMut, KvCache, LayerConfig, Profile, Stats};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

#[pyclass(frozen, module = "octaplex._octaplex")]
pub(crate) struct Cache(Box<RwLock<KvCache>>); // boxed, because a KvCache needs a larger alignment than Python's objects

pub(crate) fn center(name: &str) -> Result<Center> {
    match name {
        "off" => Ok(Center::Off),
        "prefix" => Ok(Center::Prefix),
        "page" => Ok(Center::Page),
        other => Err(Error::new_err(format!("center is \"{other}\": pass \"off\", \"prefix\" or \"page\""))),
    }
}

impl Cache {
    pub(crate) fn of(cache: KvCache) -> Self {
        Self(Box::new(RwLock::new(cache)))
    }

    /// Reads the cache without the interpreter's lock, which a thread that holds the cache's lock may need.
    pub(crate) fn read<T: Send>(&self, py: Python, call: impl FnOnce(&KvCache) -> T + Send) -> Result<T> {
        work(py, || call(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }

    fn change<T: Send>(&self, py: Python, call: impl FnOnce(&mut KvCache) -> T + Send) -> Result<T> {
        work(py, || call(&mut self.0.write().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The largest number of layers in a cache.
const MAX_LAYERS: usize = 1 << 16;

/// Options of attention.
#[derive(FromPyObject)]
pub(crate) struct Options {
    #[pyo3(item)]
    queries: usize,
    #[pyo3(item)]
    scale: Option<f64>,
    #[pyo3(item)]
    soft_cap: Option<f64>,
    #[pyo3(item)]
    window: Option<usize>,
    #[pyo3(item)]
    keep_sinks: bool,
    #[pyo3(item)]
    position: Option<usize>,
}

/// Settings of a cache, without its size.
#[derive(FromPyObject)]
pub(crate) struct Settings {
    #[pyo3(item)]
    pub(crate) keys: Option<String>,
    #[pyo3(item)]
    values: Option<String>,
    #[pyo3(item)]
    pub(crate) bits: Option<f64>,
    /// The text of one.
    #[pyo3(item)]
    profile: Option<String>,
    /// The numbers of the layers that hold keys and values, where others stand between them: they alone count.
    #[pyo3(item)]
    held_layers: Option<Vec<usize>>,
    /// The width of values, if it differs from that of keys.
    #[pyo3(item)]
    value_dim: Option<usize>,
    #[pyo3(item)]
    page: usize,
    #[pyo3(item)]
    sink_tokens: usize,
    #[pyo3(item)]
    recent_window: usize,
    #[pyo3(item)]
    max_rollback: usize,
    #[pyo3(item)]
    sliding_window: Option<usize>,
    #[pyo3(item)]
    center: String,
    #[pyo3(item)]
    balance: bool,
    #[pyo3(item)]
    boundary_layers: usize,
}

impl Settings {
    /// Returns the configurations of all layers of a cache with this size.
    pub(crate) fn layers(
        &self,
        layers: usize,
        (kv_heads, head_dim): (usize, usize),
        capacity: usize,
    ) -> Result<Vec<LayerConfig>> {
        let default = LayerConfig::new(kv_heads, head_dim, capacity);
        let mut each = default
            .value_dim(self.value_dim.unwrap_or(head_dim))
            .page(self.page)
            .sink_tokens(self.sink_tokens)
            .recent_window(self.recent_window)
            .max_rollback(self.max_rollback)
            .center(center(&self.center)?)
            .balance(self.balance);
        each.sliding_window = self.sliding_window;
        let count = self.held_layers.as_ref().map_or(layers, Vec::len);
        let mut config = CacheConfig::new(count, kv_heads, head_dim, capacity)
            .each(each)
            .boundary_layers(self.boundary_layers);
        let spec_of = |text: &Option<String>| text.as_deref().map(spec).transpose();
        let choice = Choice {
            keys: spec_of(&self.keys)?,
            values: spec_of(&self.values)?,
            bits: self.bits,
            profile: self.profile.as_deref().map(str::parse::<Profile>).transpose().or_raise()?,
        };
        let chosen = config.choose(&choice).or_raise()?;
        let Some(held) = &self.held_layers else { return Ok(chosen) };
        config.layers = layers;
        let mut all: Vec<LayerConfig> = config.layers().take(MAX_LAYERS + 1).collect(); // more are refused below
        for (&number, mut layer) in held.iter().zip(chosen) {
            let place = all.get_mut(number).ok_or_else(|| Error::new_err("held_layers: no such layer"))?;
            layer.layer = place.layer;
            *place = layer;
        }
        Ok(all)
    }
}

impl Options {
    /// Returns whether each head has one query, at the newest token.
    pub(crate) fn is_step(&self) -> bool {
        self.queries == 1 && self.position.is_none()
    }

    /// Converts the options to the library's.
    pub(crate) fn attend<'a>(&self, sink_logits: &'a [f32], bias: &'a [f32]) -> Attend<'a> {
        let mut attend = Attend::default().queries(self.queries).keep_sinks(self.keep_sinks);
        attend.scale = self.scale.map(|scale| scale as f32); // here, where the environment rounds to nearest
        attend.soft_cap = self.soft_cap.map(|cap| cap as f32);
        (attend.window, attend.position) = (self.window, self.position);
        attend.sink_logits(sink_logits).bias(bias)
    }
}

#[pymethods]
impl Cache {
    #[new]
    fn new(
        py: Python,
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        capacity: usize,
        settings: Settings,
    ) -> Result<Self> {
        let new = || {
            let layers = settings.layers(layers, (kv_heads, head_dim), capacity)?;
            KvCache::new(layers, Backend::detect()).or_raise()
        };
        Ok(Self::of(work(py, new)??))
    }

    /// Returns the number of layers, and the first layer's key/value heads and widths of keys and values.
    fn shape(&self, py: Python) -> Result<(usize, usize, usize, usize)> {
        self.read(py, |cache| {
            let config = cache.layers().first().map(octaplex::cache::SharedLayer::config);
            let (heads, key, value) = config.map_or((0, 0, 0), |c| (c.kv_heads, c.key_dim, c.value_dim));
            (cache.layers().len(), heads, key, value)
        })
    }

    /// Returns the specs of each layer's keys and values.
    fn specs(&self, py: Python) -> Result<Vec<(String, String)>> {
        self.read(py, |cache| {
            let configs = cache.layers().iter().map(octaplex::cache::SharedLayer::config);
            configs.map(|config| (config.keys.to_string(), config.values.to_string())).collect()
        })
    }

    /// Returns the bits a value in pages, the mean over all layers.
    fn page_bits(&self, py: Python) -> Result<f64> {
        self.read(py, |cache| page_bits(cache.layers().iter().map(octaplex::cache::SharedLayer::config)))
    }

    fn append(&self, py: Python, layer: usize, keys: Floats, values: Floats) -> Result<()> {
        let (keys, values) = (keys.tensor()?, values.tensor()?);
        self.change(py, |cache| cache.append(layer, keys, values))?.or_raise()
    }

    fn append_chunk(&self, py: Python, blob: PyReadonlyArray1<u8>) -> Result<()> {
        let blob = bytes(&blob)?;
        self.change(py, |cache| cache.append_chunk(blob))?.or_raise()
    }

    fn calibrate(&self, py: Python, layer: usize, keys: Floats, queries: Floats) -> Result<()> {
        let (keys, queries) = (keys.tensor()?, queries.tensor()?);
        self.change(py, |cache| cache.calibrate(layer, &floats(keys), &floats(queries)))?.or_raise()
    }

    #[allow(clippy::too_many_arguments)] // Python's keywords
    fn attend(
        &self,
        py: Python,
        layer: usize,
        queries: Floats,
        options: Options,
        sink_logits: Option<Floats>,
        bias: Option<Floats>,
        mut output: FloatsMut,
    ) -> Result<()> {
        let (queries, TensorMut::F32(output)) = (queries.tensor()?, output.tensor()?) else {
            return Err(Error::new_err("out has the wrong type: pass float32"));
        };
        let more = |floats: &'_ Option<Floats>| {
            floats
                .as_ref()
                .map(|floats| floats.tensor().map(|x| crate::arrays::floats(x).into_owned()))
                .transpose()
        };
        let (sink_logits, bias) = (more(&sink_logits)?.unwrap_or_default(), more(&bias)?.unwrap_or_default());
        let attend = |cache: &KvCache| {
            let attend = options.attend(&sink_logits, &bias);
            cache.attend_with(layer, &*floats(queries), &attend, output)
        };
        self.read(py, attend)?.or_raise()
    }

    fn truncate(&self, py: Python, position: usize) -> Result<()> {
        self.change(py, |cache| cache.truncate(position))?.or_raise()
    }

    fn evict(&self, py: Python, start: usize, end: usize) -> Result<usize> {
        self.change(py, |cache| cache.evict(start..end))
    }

    fn clear(&self, py: Python) -> Result<()> {
        self.change(py, KvCache::clear)
    }

    fn fork(&self, py: Python) -> Result<Self> {
        Ok(Self::of(self.read(py, KvCache::try_fork)?.or_raise()?))
    }

    fn save<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyBytes>> {
        let snapshot = self.read(py, KvCache::try_save)?.or_raise()?;
        // Unlike `PyBytes::new`, this raises MemoryError where memory is missing.
        PyBytes::new_with(py, snapshot.len(), |bytes| {
            bytes.copy_from_slice(&snapshot);
            Ok(())
        })
    }

    #[staticmethod]
    fn load(py: Python, snapshot: PyReadonlyArray1<u8>) -> Result<Self> {
        let snapshot = bytes(&snapshot)?;
        let cache = work(py, || KvCache::load(snapshot, Backend::detect()))?.or_raise()?;
        Ok(Self::of(cache))
    }

    fn save_file(&self, py: Python, path: PathBuf) -> Result<()> {
        // A pipe may keep the call waiting, and then forks and other calls of this cache must not wait.
        let cache = self.read(py, KvCache::try_fork)?.or_raise()?;
        let fill = |file: &mut dyn Write| {
            let _call = Call::begin();
            cache.save_to(&mut Waiting(file))
        };
        work(py, || waiting(|| octaplex_files::write(&path, fill)))?.map_err(|error| os_error(error, &path))
    }

    #[staticmethod]
    fn load_file(py: Python, path: PathBuf) -> Result<Self> {
        let read = || {
            let file = waiting(|| File::open(&path))?;
            KvCache::load_from(&mut BufReader::new(Waiting(file)), Backend::detect())
        };
        let name = path.display();
        match work(py, read)?
            .map_err(|error| (error.get_ref().and_then(|inner| inner.downcast_ref().copied()), error))
        {
            Ok(cache) => Ok(Self::of(cache)),
            Err((Some(inner), _)) => Err(raised(inner, &format!("{name}: "))),
            Err((_, error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(Error::new_err(format!("{name}: the file is truncated, or not a snapshot of a cache")))
            }
            Err((_, error)) => Err(os_error(error, &path)),
        }
    }

    fn next_position(&self, py: Python, layer: usize) -> Result<usize> {
        self.read(py, |cache| cache.next_position(layer))?.or_raise()
    }

    /// Returns the counts in the order of the Python class's fields.
    fn stats(&self, py: Python) -> Result<Vec<usize>> {
        Ok(numbers(&self.read(py, KvCache::stats)?))
    }
}

/// Returns the mean of the bits a value in pages.
pub(crate) fn page_bits<'a>(configs: impl ExactSizeIterator<Item = &'a LayerConfig>) -> f64 {
    let count = configs.len().max(1) as f64;
    configs.map(|config| config.page_bits() / count).sum()
}

/// Returns counts in the order of the Python class's fields.
pub(crate) fn numbers(stats: &Stats) -> Vec<usize> {
    vec![
        stats.tokens,
        stats.paged_tokens,
        stats.exact_tokens,
        stats.next_position,
        stats.evicted_tokens,
        stats.decoded_tokens,
        stats.bytes,
        stats.paged_bytes,
        stats.shared_bytes,
        stats.values,
        stats.balanced_heads,
    ]
}
