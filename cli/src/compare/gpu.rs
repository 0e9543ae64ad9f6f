//! `compare --device cuda`, or `hip`: compares the errors of attention's output on a GPU and on the CPU, with the same pages.

use crate::console::wrap;
use crate::device::Device;
use crate::failure::{At, Result, fail};
use crate::input::{Queries, Sample};
use crate::keys::Keys;
use crate::metrics::Exact;
use crate::progress::Progress;
use crate::store::BALANCED_FROM;
use crate::table::{Table, number};
use octaplex::cache::SharedLayer;
use octaplex::codecs::Role;
use octaplex::{Attend, Backend, CodecSpec, LayerConfig, gpu};
use octaplex_metrics::relative_error;
use serde_json::{Value, json};

/// The keys, values and queries of a run, and its settings.
pub(super) struct Setup<'a> {
    pub(super) sample: &'a Sample,
    pub(super) queries: &'a Queries,
    pub(super) exact: &'a Exact,
    pub(super) keys: Keys,
    pub(super) page: usize,
    pub(super) backend: Backend,
    /// Of each key/value head, the queries that decide its balance.
    pub(super) calibration: &'a dyn Fn(usize) -> Vec<f32>,
    /// The first of the other queries, and how many further the next is.
    pub(super) measured: (usize, usize),
}

/// Codecs on a GPU, and those that it has no kernels for.
pub(super) struct Gpu {
    name: String,
    dim: usize,
    rows: Vec<Row>,
    left_out: Vec<(String, String)>,
}

struct Row {
    codec: String,
    bits: f64,
    errors: Errors,
}

/// Means over heads of Σ‖o-ô‖²/Σ‖o‖².
#[derive(Clone, Copy, Default)]
struct Errors {
    gpu: f64,
    cpu: f64,
    /// Of the GPU's output from the CPU's.
    apart: f64,
}

/// Values for keys of codecs that GPUs take for keys alone.
const VALUES: &str = "turboquant";

/// Measures these codecs, each for keys and values. Codecs for keys only take [`VALUES`] as values.
pub(super) fn run(device: Device, specs: &[(String, CodecSpec)], setup: &Setup) -> Result<Gpu> {
    let device = device.gpu()?;
    let values = crate::codecs::parse_spec(VALUES)?;
    let progress = Progress::new(specs.len(), "codecs");
    let mut gpu = Gpu { name: device.name().into(), dim: setup.sample.dim, rows: vec![], left_out: vec![] };
    for (text, spec) in specs {
        progress.about(&format!("{text}, on the GPU"));
        let both = (text.clone(), *spec);
        let alone = (format!("{text}, values {VALUES}"), values);
        let mut refused = None;
        for (name, values) in [both, alone] {
            let config = config(*spec, values, setup);
            match measure(&device, &config, setup) {
                Ok((bits, errors)) => {
                    gpu.rows.push(Row { codec: name, bits, errors });
                    refused = None;
                    break;
                }
                Err(gpu::Error::Unsupported { why }) => refused = refused.or(Some(why)),
                Err(error) => return Err(error).at(text),
            }
        }
        gpu.left_out.extend(refused.map(|why| (text.clone(), why.to_owned())));
        progress.step(1);
    }
    if let (true, Some((_, why))) = (gpu.rows.is_empty(), gpu.left_out.first()) {
        fail!("none of these codecs runs on a GPU at width {}: {why}", gpu.dim);
    }
    Ok(gpu)
}

/// A layer of the sample. All its tokens are in pages, except those that fill none.
fn config(keys: CodecSpec, values: CodecSpec, setup: &Setup) -> LayerConfig {
    let [_, heads, tokens, dim] = setup.sample.shape;
    LayerConfig::new(heads, dim, tokens.max(setup.page))
        .keys(keys)
        .values(values)
        .page(setup.page)
        .sink_tokens(0)
        .recent_window(0)
        .max_rollback(0)
        .center(setup.keys.center)
        .balance(setup.keys.balance)
}

/// Bits a value of the pages that there are, outliers too, and errors.
fn measure(
    device: &gpu::Device,
    config: &LayerConfig,
    setup: &Setup,
) -> std::result::Result<(f64, Errors), gpu::Error> {
    let Setup { sample, queries, exact, measured: (first, step), .. } = *setup;
    let [layers, kv_heads, tokens, dim] = sample.shape;
    let mut gpu = gpu::Layer::new(device, config, 1, tokens)?;
    let each = kv_heads * queries.group;
    let mut scratch = vec![0.0; config.scratch_len(each)];
    let mut sum = Errors::default();
    let mut paged = (0, 0);
    for layer in 0..layers {
        let heads = layer * kv_heads..(layer + 1) * kv_heads;
        let [keys, values] =
            [Role::Keys, Role::Values].map(|role| sample.heads(role)[heads.clone()].concat());
        let mut cpu = SharedLayer::on_heap(config, setup.backend)?;
        if config.balance {
            let few = tokens.min(BALANCED_FROM) * dim;
            let rows = sample.heads(Role::Keys)[heads.clone()].iter().flat_map(|rows| &rows[..few]);
            let asked: Vec<f32> = heads.flat_map(setup.calibration).collect();
            cpu.calibrate(&rows.copied().collect::<Vec<_>>(), &asked)?;
        }
        cpu.append(&keys, &values, &mut scratch)?;
        let stats = cpu.stats();
        paged = (paged.0 + stats.paged_bytes, paged.1 + 2 * kv_heads * dim * stats.paged_tokens);
        gpu.clear(0)?;
        gpu.upload(0, &cpu)?;
        let mut outputs = vec![[Vec::new(), Vec::new(), Vec::new()]; each];
        for query in (first..queries.positions.len()).step_by(step) {
            let of_heads = queries.heads[layer * each..(layer + 1) * each].iter();
            let rows: Vec<f32> =
                of_heads.flat_map(|rows| &rows[query * dim..(query + 1) * dim]).copied().collect();
            let options = Attend::default().position(queries.positions[query]);
            let [mut on_gpu, mut on_cpu] = [vec![0.0; rows.len()], vec![0.0; rows.len()]];
            gpu.attend_with(&rows, &options, &mut on_gpu)?;
            cpu.attend_with(&rows, &options, &mut on_cpu, &mut scratch)?;
            for (head, outputs) in outputs.iter_mut().enumerate() {
                let mine = |rows: &[f32]| {
                    rows[head * dim..][..dim].iter().map(|x| f64::from(*x)).collect::<Vec<_>>()
                };
                outputs[0].push(mine(&on_gpu));
                outputs[1].push(mine(&on_cpu));
                outputs[2].push(exact.heads[layer * each + head].outputs()[query].clone());
            }
        }
        for [on_gpu, on_cpu, exact] in &outputs {
            sum.gpu += relative_error(exact, on_gpu);
            sum.cpu += relative_error(exact, on_cpu);
            sum.apart += relative_error(on_cpu, on_gpu);
        }
    }
    let count = (layers * each) as f64;
    let bits = if paged.1 > 0 { 8.0 * paged.0 as f64 / paged.1 as f64 } else { config.page_bits() };
    Ok((bits, Errors { gpu: sum.gpu / count, cpu: sum.cpu / count, apart: sum.apart / count }))
}

impl Gpu {
    /// For people.
    pub(super) fn text(&self) -> String {
        let about = format!(
            "On {}: attention's output with keys and values of a codec in pages, everything counted in bits; CPU: here, on the same \
             pages; apart: ‖a-b‖²/‖b‖² of the GPU's from the CPU's\n",
            self.name
        );
        let columns = [("bits", 7), ("out err", 10), ("CPU", 10), ("apart", 10)];
        let mut table = Table::new("ON A GPU", &columns);
        for Row { codec, bits, errors } in &self.rows {
            let errors = [errors.gpu, errors.cpu, errors.apart].map(number);
            table.row(codec, false, &[&[format!("{bits:.3}")], &errors[..]].concat());
        }
        let mut out = format!("{}\n{}", wrap(&about), table.text());
        for (number, (_, reason)) in self.left_out.iter().enumerate() {
            if self.left_out[..number].iter().any(|(_, why)| why == reason) {
                continue;
            }
            let those = self.left_out.iter().filter(|(_, why)| why == reason).map(|(codec, _)| &**codec);
            out += &wrap(&format!("\nNot on a GPU: {}: {reason}\n", those.collect::<Vec<_>>().join("; ")));
        }
        out
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|Row { codec, bits, errors }| {
            json!({
                "codec": codec, "bits_per_value": bits, "output_error": errors.gpu,
                "output_error_cpu": errors.cpu, "apart": errors.apart,
            })
        });
        let left_out = self.left_out.iter().map(|(codec, why)| json!({"codec": codec, "unsupported": why}));
        json!({"gpu": self.name, "rows": rows.chain(left_out).collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    use super::{Errors, Gpu, Row};

    #[test]
    fn codecs_with_errors_are_rows_and_others_say_why() {
        let errors = Errors { gpu: 0.011_04, cpu: 0.011_1, apart: 1.2e-5 };
        let left_out = |codec: &str, why: &str| (codec.to_owned(), why.to_owned());
        let gpu = Gpu {
            name: "a GPU".into(),
            dim: 128,
            rows: vec![Row { codec: "turboquant".into(), bits: 4.1289, errors }],
            left_out: vec![left_out("f16", "no kernels"), left_out("q8_0", "no kernels")],
        };
        let text = gpu.text();
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or("").to_owned();
        let cells = line("turboquant");
        assert_eq!(
            cells.split_whitespace().collect::<Vec<_>>(),
            ["turboquant", "4.129", "0.0110", "0.0111", "1.2e-5"],
            "{text}"
        );
        assert!(text.starts_with("On a GPU: ") && text.contains("ON A GPU"), "{text}");
        assert_eq!(line("Not on"), "Not on a GPU: f16; q8_0: no kernels", "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let json = gpu.json();
        assert_eq!((&json["gpu"], &json["rows"][0]["output_error"]), (&"a GPU".into(), &0.011_04.into()));
        assert_eq!(json["rows"][2]["unsupported"], "no kernels");
    }
}
