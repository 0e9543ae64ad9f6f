//! `compare --cache`: compares a whole cache, filled token by token as an engine does, with exact attention.

use crate::codecs::{parse_spec, recommended, shown_spec};
use crate::columns::F16;
use crate::console::{Console, wrap};
use crate::failure::{At, Result, fail};
use crate::input::Sample;
use crate::keys::{Keys, center_name};
use crate::metrics::Exact;
use crate::progress::Progress;
use crate::table::fixed;
use crate::{files, provenance};
use clap::Args;
use octaplex::cache::SharedLayer;
use octaplex::codecs::Role;
use octaplex::{Backend, LayerConfig, Stats};
use octaplex_metrics::relative_error;
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// Arguments of `compare --cache`.
#[derive(Args)]
pub(super) struct CacheOptions {
    /// Measure one whole cache, token by token as an engine runs it: the first and newest tokens exact, the others in pages
    #[arg(help_heading = "A whole cache", long, conflicts_with_all = ["codecs", "all", "wide", "svg", "budget", "reconstructed", "device"])]
    pub(super) cache: bool,
    /// Codec of the cache's keys [default: graded:bits=3, or trellis:bits=3 at widths that graded does not support]
    #[arg(help_heading = "A whole cache", long, value_name = "SPEC", requires = "cache")]
    k: Option<String>,
    /// Codec of its values [default: trellis:bits=3]
    #[arg(help_heading = "A whole cache", long, value_name = "SPEC", requires = "cache")]
    v: Option<String>,
    /// First tokens that stay exact, with --cache
    #[arg(
        help_heading = "A whole cache",
        long,
        value_name = "TOKENS",
        default_value_t = 4,
        requires = "cache"
    )]
    sinks: usize,
    /// Newest tokens that stay exact, with --cache
    #[arg(
        help_heading = "A whole cache",
        long,
        value_name = "TOKENS",
        default_value_t = 64,
        requires = "cache"
    )]
    window: usize,
}

/// The sample and the settings of a run.
pub(super) struct Setup<'a> {
    pub(super) sample: &'a Sample,
    pub(super) keys: Keys,
    pub(super) page: usize,
    pub(super) backend: Backend,
    pub(super) console: Console,
}

pub(super) fn run(options: &CacheOptions, setup: &Setup, json: Option<&Path>) -> Result<()> {
    let Setup { sample, keys, page, backend, console } = *setup;
    let (Some(queries), Some(exact)) = (&sample.queries, Exact::new(sample)?) else {
        fail!("--cache: {} has no queries, so nothing attends: tensors k, v and q are expected", sample.name);
    };
    let [key_spec, value_spec] = recommended(sample.dim);
    let (key_spec, value_spec) =
        (options.k.as_deref().unwrap_or(key_spec), options.v.as_deref().unwrap_or(value_spec));
    let (dim, tokens) = (sample.dim, sample.tokens);
    let kept = options.sinks.saturating_add(options.window);
    let config = LayerConfig::new(1, dim, tokens.max(kept.saturating_add(page)))
        .keys(parse_spec(key_spec)?)
        .values(parse_spec(value_spec)?)
        .page(page)
        .sink_tokens(options.sinks)
        .recent_window(options.window)
        .center(keys.center)
        .balance(keys.balance);
    let mut scratch = vec![0.0; config.scratch_len(queries.group)];
    let (mut error, mut kl, mut bytes, mut values, mut seconds) = (0.0, 0.0, 0, 0, 0.0);
    let mut scores = vec![0.0; queries.group * tokens];
    let (all_keys, all_values) = (sample.heads(Role::Keys), sample.heads(Role::Values));
    let progress = Progress::new(all_keys.len(), "heads");
    for (index, (head_keys, head_values)) in all_keys.iter().zip(all_values).enumerate() {
        let place = format!("head {index}");
        progress.about(&place);
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
        progress.step(1);
    }
    drop(progress);
    let count = exact.heads.len();
    let queries = count * queries.positions.len();
    let (error, kl) = (error / count as f64, kl / queries as f64);
    let bits = 8.0 * bytes as f64 / values as f64;
    let ns = seconds * 1e9 / queries as f64;
    if let Some(path) = json {
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
        "{}\nkeys {}, {}; values {}; pages of {}, the first {} and the newest {} tokens exact",
        sample.describe(),
        shown_spec(config.keys),
        keys.describe(),
        shown_spec(config.values),
        config.page,
        config.sink_tokens,
        config.recent_window,
    );
    console.say(&format!(
        "{}\n\n\
         bits a value    {bits:8.3}  everything counted, exact tokens too\n\
         in pages        {:8.3}  without the exact tokens: what a long context tends to\n\
         smaller         {:>8}  than f16, all in all\n\
         KL, nats        {:>8}  of attention's weights from the exact ones\n\
         output error    {:>8}  of attention's output: sum of |o-o^|^2 / sum of |o|^2\n\
         attention, us   {:8.1}  a query of one head, {}\n",
        wrap(&about),
        config.page_bits(),
        format!("{:.1}x", F16 / bits),
        fixed(kl),
        fixed(error),
        ns / 1000.0,
        backend.name(),
    ))
}
