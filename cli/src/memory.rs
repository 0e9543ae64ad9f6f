//! `memory`: the gigabytes that a model's cache takes, for each way to store it and several lengths of the context.

mod config;
mod model;
mod shape;

use crate::codecs::{parse_budget, parse_spec, shown_spec, too_few};
use crate::columns::F16;
use crate::console::{say, wrap};
use crate::failure::{At, Failure, Result, fail};
use crate::table::Table;
use crate::{files, gguf};
use clap::Args;
use octaplex::cache::{Choice, Finer};
use octaplex::{CacheConfig, CodecSpec, LayerConfig};
use shape::{Kind, LAYERS, MOST, Shape};
use std::io::{BufReader, Read, Seek};
use std::iter;
use std::path::{Path, PathBuf};

/// The end of the help of `memory`.
const HELP: &str = "\
Examples:
  octaplex memory model.gguf
  octaplex memory config.json --tokens 8k 64k --bits 2.5
  octaplex memory --layers 32 --kv-heads 8 --width 128

MODEL is a GGUF file, whose header is enough, or a config.json of Hugging Face,
or a folder with one. GB are 10^9 bytes, of one sequence. f16, q8_0 and q4_0 are
the cache types of llama.cpp. The other rows are octaplex's: they include the
first tokens and the newest ones, which stay in f16.";

/// Arguments of `memory`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Memory {
    /// A GGUF file or a config.json
    model: Option<PathBuf>,
    /// Without a file: attention layers
    #[arg(long, value_name = "N", requires_all = ["kv_heads", "width"], conflicts_with = "model")]
    layers: Option<usize>,
    /// Key/value heads of a layer
    #[arg(long, value_name = "N", requires = "layers")]
    kv_heads: Option<usize>,
    /// Width of a head
    #[arg(long, value_name = "D", requires = "layers")]
    width: Option<usize>,
    /// Lengths of the context, up to five: 32768 or 32k
    #[arg(long, value_name = "TOKENS", num_args = 1.., value_parser = parse_tokens, default_values = ["4k", "32k", "128k"])]
    tokens: Vec<usize>,
    /// Add a row: the most accurate codecs with at most this many bits a value in pages
    #[arg(long, visible_alias = "budget", value_name = "BITS", value_parser = parse_budget, conflicts_with_all = ["keys", "values"])]
    bits: Option<f64>,
    /// Add a row: this codec of keys
    #[arg(long, visible_alias = "k", value_name = "SPEC", value_parser = parse_codec)]
    keys: Option<CodecSpec>,
    /// Add a row: this codec of values
    #[arg(long, visible_alias = "v", value_name = "SPEC", value_parser = parse_codec)]
    values: Option<CodecSpec>,
    /// Say how many tokens fit this memory
    #[arg(long, value_name = "GB", default_value_t = 8.0, value_parser = parse_gigabytes)]
    fit: f64,
}

/// The most lengths of a table, so that it fits a terminal.
const LENGTHS: usize = 5;

/// The largest length of a context.
const LONGEST: usize = 1 << 30;

/// The most bytes of a config. They have a few thousand.
const CONFIG: u64 = 1 << 24;

fn parse_tokens(text: &str) -> std::result::Result<usize, String> {
    let (digits, unit) = text.strip_suffix(['k', 'K']).map_or((text, 1), |digits| (digits, 1024));
    let tokens = digits.replace([',', '_'], "").parse().ok().and_then(|count: usize| count.checked_mul(unit));
    tokens
        .filter(|tokens| (1..=LONGEST).contains(tokens))
        .ok_or("1 to 1,073,741,824 tokens, for example 32768 or 32k".into())
}

fn parse_gigabytes(text: &str) -> std::result::Result<f64, String> {
    text.parse().ok().filter(|size| (0.001..=1e6).contains(size)).ok_or("gigabytes: 0.001 to 1000000".into())
}

fn parse_codec(text: &str) -> std::result::Result<CodecSpec, String> {
    parse_spec(text).map_err(|failure| failure.0)
}

/// A way to store a cache.
struct Way {
    name: String,
    /// Bits a value, for octaplex in pages.
    bits: f64,
    store: Store,
}

enum Store {
    /// The same bits for every value.
    Plain,
    /// Layers of octaplex, whose capacity is left open.
    Pages(Vec<LayerConfig>),
}

impl Way {
    /// Returns the bytes of a context.
    fn bytes(&self, shape: &Shape, tokens: usize) -> f64 {
        match &self.store {
            Store::Plain => {
                let values =
                    shape.layers.iter().map(|layer| layer.values() as f64 * layer.held(tokens) as f64);
                values.sum::<f64>() * self.bits / 8.0
            }
            Store::Pages(layers) => layers.iter().map(|layer| bytes(*layer, tokens) as f64).sum(),
        }
    }

    /// Returns the longest context that fits; `None` if every one does, because all layers have windows.
    fn longest(&self, shape: &Shape, bytes: f64) -> Option<usize> {
        let fits = |tokens| self.bytes(shape, tokens) <= bytes;
        if fits(LONGEST) {
            return None;
        }
        let (mut most, mut least) = (LONGEST, 0);
        while most - least > 1 {
            let middle = usize::midpoint(least, most);
            if fits(middle) { least = middle } else { most = middle }
        }
        Some(least)
    }
}

/// Returns the bytes of a layer that holds this number of tokens: its pages, and the rows in f16.
fn bytes(layer: LayerConfig, tokens: usize) -> usize {
    let least = layer.sink_tokens + layer.recent_window + layer.page;
    layer.capacity(tokens.max(least)).required_bytes()
}

/// Returns the gigabytes of f16 and of these codecs for a model whose layers are alike.
pub(crate) fn gigabytes(
    [layers, kv_heads, width, tokens]: [usize; 4],
    keys: CodecSpec,
    values: CodecSpec,
) -> [f64; 2] {
    let exact = layers * kv_heads * 2 * width * tokens;
    let paged = layers * bytes(LayerConfig::new(kv_heads, width, tokens).keys(keys).values(values), tokens);
    [2 * exact, paged].map(|bytes| bytes as f64 / 1e9)
}

pub(crate) fn run(arguments: &Memory) -> Result<()> {
    if arguments.tokens.len() > LENGTHS {
        fail!("--tokens: {} lengths; at most {LENGTHS} fit a table", arguments.tokens.len());
    }
    let (name, shape) = arguments.shape()?;
    let mut ways = Vec::new();
    for (name, bits) in [("f16", F16), ("q8_0", 8.5), ("q4_0", 4.5)] {
        ways.push(Way { name: name.into(), bits, store: Store::Plain });
    }
    let mut notes = shape.notes.clone();
    match arguments.default_way(&shape) {
        Ok(default) => {
            for (way, about) in iter::once(default).chain(arguments.chosen_way(&shape)?) {
                notes.push(about);
                ways.push(way);
            }
        }
        Err(Failure(why)) => notes.push(format!("octaplex does not store this cache: {why}.")),
    }
    say(&arguments.text(&name, &shape, &ways, &notes))
}

impl Memory {
    /// Reads the shape of the cache, and returns the name of the model with it.
    fn shape(&self) -> Result<(String, Shape)> {
        if let (Some(layers), Some(kv_heads), Some(width)) = (self.layers, self.kv_heads, self.width) {
            if !(1..=LAYERS).contains(&layers) {
                fail!("--layers {layers}: 1 to {LAYERS} are supported");
            }
            if kv_heads.min(width) < 1 || kv_heads.max(width) > MOST {
                fail!("--kv-heads {kv_heads} --width {width}: 1 to {MOST} are supported");
            }
            let shape =
                Shape::new(&vec![Kind::Full; layers], None, |_, _| Ok([kv_heads, width, width]), Vec::new())?;
            return Ok(("a model".into(), shape));
        }
        let Some(path) = &self.model else {
            fail!(
                "give a GGUF file, a config.json, or --layers, --kv-heads and --width (see octaplex memory --help)"
            )
        };
        let path = if path.is_dir() { path.join("config.json") } else { path.clone() };
        Ok((files::name(&path), read(&path)?))
    }

    /// Returns the way to store the cache with default codecs, and a sentence that names them.
    fn default_way(&self, shape: &Shape) -> Result<(Way, String)> {
        if shape.is_latent() {
            fail!("latent attention (MLA) is left to the engine");
        }
        self.way("default", shape, &Choice::default())
    }

    /// Returns the same for the bits or codecs of the arguments, if there are any.
    fn chosen_way(&self, shape: &Shape) -> Result<Option<(Way, String)>> {
        let Self { keys, values, bits, .. } = *self;
        if bits.is_none() && keys.or(values).is_none() {
            return Ok(None);
        }
        let name = bits.map_or("--keys, --values".into(), |bits| format!("--bits {bits}"));
        self.way(&name, shape, &Choice { keys, values, bits, profile: None }).map(Some)
    }

    /// Chooses codecs, and returns the way to store the cache with them, and a sentence that names them.
    fn way(&self, name: &str, shape: &Shape, choice: &Choice) -> Result<(Way, String)> {
        let Some(first) = shape.layers.first() else { fail!("no layers") };
        let config = CacheConfig::new(shape.layers.len(), first.kv_heads, first.key_dim, LONGEST);
        let config = config.each(config.each.value_dim(first.value_dim));
        let chosen = config.with_codecs(choice).or_else(|error| match choice.bits {
            Some(bits) => too_few(config, bits, &error, |bits| config.for_bits(bits).is_ok()),
            None => Err(Failure(error.to_string())),
        })?;
        let (mut layers, mut bits, mut values) = (Vec::new(), 0.0, 0.0);
        for (layer, one) in shape.layers.iter().zip(chosen.layers()) {
            let mut one = one.key_dim(layer.key_dim).value_dim(layer.value_dim);
            (one.kv_heads, one.sliding_window) = (layer.kv_heads, layer.window);
            // The constructor of a layer says what is wrong with it; its memory is not touched.
            if bytes(one, LONGEST) == 0 {
                let reason = octaplex::cache::SharedLayer::on_heap(&one, octaplex::Backend::SCALAR);
                return Err(Failure(
                    reason.err().map_or("it is too large".into(), |error| error.to_string()),
                ));
            }
            bits += one.page_bits() * layer.values() as f64;
            values += layer.values() as f64;
            layers.push(one);
        }
        let finer = chosen.finer.map(|Finer { layers, keys, values }| {
            format!(
                ", in {layers} of {} layers {} and {}",
                chosen.layers,
                shown_spec(keys),
                shown_spec(values)
            )
        });
        let [keys, values_spec] = [chosen.each.keys, chosen.each.values].map(shown_spec);
        let about = format!("{name}: {keys} keys and {values_spec} values{}.", finer.unwrap_or_default());
        Ok((Way { name: name.into(), bits: bits / values, store: Store::Pages(layers) }, about))
    }

    fn text(&self, name: &str, shape: &Shape, ways: &[Way], notes: &[String]) -> String {
        let context =
            shape.context.map_or(String::new(), |tokens| format!("; trained for {} tokens", grouped(tokens)));
        let mut out =
            wrap(&format!("{name}: {}{context}\nGB of one sequence, by its tokens\n", shape.describe()));
        let lengths: Vec<_> = self.tokens.iter().map(|tokens| grouped(*tokens)).collect();
        let mut columns = vec![("bits", "a value", 8)];
        columns.extend(lengths.iter().map(|length| (length.as_str(), "GB", 9)));
        let mut table = Table::with_units("CACHE", &columns);
        for way in ways {
            let mut cells = vec![format!("{:.3}", way.bits)];
            cells.extend(self.tokens.iter().map(|tokens| gigabyte(way.bytes(shape, *tokens))));
            table.row(&way.name, false, &cells);
        }
        out += &format!("\n{}\n", table.text());
        let fits = ways.iter().map(|way| match way.longest(shape, self.fit * 1e9) {
            Some(tokens) => format!("{} in {}", grouped(tokens), way.name),
            None => format!("any number in {}", way.name),
        });
        let fits = fits.collect::<Vec<_>>().join(", ");
        let mut last = format!("Tokens that {} GB hold: {fits}.\n", self.fit);
        notes.iter().for_each(|note| last += &format!("{note}\n"));
        if let Some(Store::Pages(layers)) = ways.last().map(|way| &way.store)
            && let Some(LayerConfig { sink_tokens, recent_window, max_rollback, page, .. }) = layers.first()
        {
            last += &format!(
                "Included in f16: {sink_tokens} first tokens, {recent_window} to {} newest ones, and {max_rollback} that a \
                 rollback may bring back. A short context therefore takes more bits a value than its pages do.\n",
                recent_window + page - 1
            );
        }
        out + &wrap(&last)
    }
}

/// Reads the shape of a model's cache from a file.
fn read(path: &Path) -> Result<Shape> {
    let (file, about) = files::open_regular(path)?;
    let (mut file, mut magic) = (BufReader::new(file), Vec::new());
    file.by_ref().take(4).read_to_end(&mut magic).at(files::name(path))?;
    if magic != b"GGUF" {
        return config::read(&files::read_regular(path, CONFIG)?).at(files::name(path));
    }
    file.rewind().at(files::name(path))?;
    gguf::read(&mut file, about.len()).and_then(|header| model::read(&header)).at(files::name(path))
}

/// Formats a number with commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats bytes as gigabytes, with three digits.
fn gigabyte(bytes: f64) -> String {
    match bytes / 1e9 {
        size if size < 0.009_95 => format!("{size:.5}"),
        size if size < 0.999_5 => format!("{size:.3}"),
        size if size < 99.995 => format!("{size:.2}"),
        size => format!("{size:.0}"),
    }
}
