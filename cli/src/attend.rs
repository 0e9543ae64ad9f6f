//! `attend`: a whole cache as an engine runs it, token by token, beside exact attention.

use crate::codecs::parse_spec;
use crate::console::{Console, wrap};
use crate::failure::{At, Result, fail};
use crate::input::Sample;
use crate::keys::{KeyOptions, center_name, parse_page};
use crate::metrics::Exact;
use crate::{files, provenance};
use clap::Args;
use octaplex::cache::SharedLayer;
use octaplex::codecs::Role;
use octaplex::{Backend, LayerConfig, Stats};
use octaplex_metrics::relative_error;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

/// What the numbers mean.
const HELP: &str = "\
Examples:
  octaplex attend --k trellis --v trellis
  octaplex attend --input kv.safetensors --k int --v int:bits=3 --keys raw

Each key/value head of the sample gets a cache; tokens are appended in order,
and the queries at a token attend as soon as it is there.

attention_kl    nats, the mean over layers, query heads and queries
output_error    sum of |o-o^|^2 / sum of |o|^2 over a head's queries, the mean
                over layers and query heads
bits_per_value  of the full cache at the end: exact rows, centres, headers of
                pages and balance counted";

/// Arguments of `attend`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct AttendArguments {
    /// Codec of keys
    #[arg(long, value_name = "SPEC")]
    k: String,
    /// Codec of values
    #[arg(long, value_name = "SPEC")]
    v: String,
    /// Tensors k, v and q in a safetensors file; without it, the bundled sample
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyOptions,
    /// Tokens of a page: 64, 128 or 256
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = parse_page)]
    page: usize,
    /// First tokens that stay exact
    #[arg(long, value_name = "TOKENS", default_value_t = 4)]
    sinks: usize,
    /// Newest tokens that stay exact
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    window: usize,
    /// Write the numbers as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Instructions to use; `octaplex backends` lists them
    #[arg(long, value_name = "NAME", value_parser = crate::backend::parse)]
    backend: Option<Backend>,
}

pub(crate) fn run(arguments: &AttendArguments) -> Result<()> {
    let console = Console::beside(&[arguments.json.as_deref()])?;
    let backend = arguments.backend.unwrap_or_else(Backend::detect);
    let keys = arguments.keys.keys()?;
    let sample = Sample::load(arguments.input.as_deref())?;
    let (Some(queries), Some(exact)) = (&sample.queries, Exact::new(&sample)?) else {
        fail!("{} has no queries, so nothing attends: tensors k, v and q are expected", sample.name);
    };
    let (dim, tokens) = (sample.dim, sample.tokens);
    let kept = arguments.sinks.saturating_add(arguments.window);
    let config = LayerConfig::new(1, dim, tokens.max(kept.saturating_add(arguments.page)))
        .keys(parse_spec(&arguments.k)?)
        .values(parse_spec(&arguments.v)?)
        .page(arguments.page)
        .sink_tokens(arguments.sinks)
        .recent_window(arguments.window)
        .center(keys.center)
        .balance(keys.balance);
    let mut scratch = vec![0.0; config.scratch_len(queries.group)];
    let (mut error, mut kl, mut bytes, mut values, mut seconds) = (0.0, 0.0, 0, 0, 0.0);
    let mut scores = vec![0.0; queries.group * tokens];
    let (all_keys, all_values) = (sample.heads(Role::Keys), sample.heads(Role::Values));
    for (index, (head_keys, head_values)) in all_keys.iter().zip(all_values).enumerate() {
        let place = format!("head {index}");
        let mut layer = SharedLayer::on_heap(&config, backend).at(&place)?;
        let heads = index * queries.group..(index + 1) * queries.group;
        let mut outputs = vec![vec![vec![0.0; dim]; queries.positions.len()]; queries.group];
        let mut order: Vec<usize> = (0..queries.positions.len()).collect();
        order.sort_by_key(|&query| queries.positions[query]);
        for query in order {
            let range = layer.next_position() * dim..(queries.positions[query] + 1) * dim;
            if !range.is_empty() {
                layer.append(&head_keys[range.clone()], &head_values[range], &mut scratch).at(&place)?;
            }
            let rows: Vec<f32> = heads
                .clone()
                .flat_map(|head| &queries.heads[head][query * dim..(query + 1) * dim])
                .copied()
                .collect();
            let mut output = vec![0.0; rows.len()];
            let start = Instant::now();
            layer.attend(&rows, &mut output, &mut scratch).at(&place)?;
            seconds += start.elapsed().as_secs_f64();
            let seen = layer.tokens();
            let scores = &mut scores[..queries.group * seen];
            layer.scores(0, &rows, scores, &mut scratch).at(&place)?;
            for (head, scores) in heads.clone().zip(scores.chunks_exact(seen)) {
                kl += exact.heads[head].divergence(query, scores).at(&place)?;
            }
            for (head, row) in output.chunks_exact(dim).enumerate() {
                outputs[head][query] = row.iter().map(|&x| f64::from(x)).collect();
            }
        }
        let rest = layer.next_position() * dim..tokens * dim;
        layer.append(&head_keys[rest.clone()], &head_values[rest], &mut scratch).at(&place)?;
        let stats: Stats = layer.stats();
        bytes += stats.bytes;
        values += stats.values;
        for (head, outputs) in heads.zip(&outputs) {
            error += relative_error(exact.heads[head].outputs(), outputs);
        }
    }
    let count = exact.heads.len();
    let queries = count * queries.positions.len();
    let (error, kl) = (error / count as f64, kl / queries as f64);
    let bits = 8.0 * bytes as f64 / values as f64;
    let ns = seconds * 1e9 / queries as f64;
    if let Some(path) = &arguments.json {
        let row = json!({
            "k": config.keys.to_string(), "v": config.values.to_string(), "center": center_name(keys.center),
            "page": config.page, "balance": config.balance, "sinks": config.sink_tokens,
            "window": config.recent_window, "bits_per_value": bits, "attention_kl": kl,
            "output_error": error, "ns_per_query": ns, "tokens": tokens, "dim": dim, "stored_bytes": bytes,
            "run": provenance::json(&sample.describe(), backend, json!({})),
        });
        files::write(path, format!("{row:#}\n").as_bytes())?;
    }
    let about = format!(
        "{}\nkeys {}, {}; values {}; pages of {}, {} sinks, window {}",
        sample.describe(),
        config.keys,
        keys.describe(),
        config.values,
        config.page,
        config.sink_tokens,
        config.recent_window,
    );
    console.say(&format!(
        "{}\n\nbits per value   {bits:.3}  (sinks, window, centres, balance, headers counted)\n\
         attention KL     {kl:.3e} nats\noutput error     {error:.3e}\n\
         time             {:.1} us a query head and query, {}\n",
        wrap(&about),
        ns / 1000.0,
        backend.name(),
    ))
}
