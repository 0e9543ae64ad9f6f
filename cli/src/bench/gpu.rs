//! `bench --device cuda`, or `hip`: one line a codec, microseconds on the GPU's clock.
//!
//! A decode step is captured for as many layers as exceed the GPU's cache several times, one after the other in one graph: the
//! median of 50 launches, a layer's share. Encoding is the kernels' time for 65,536 tokens, keys and values, that are on the GPU
//! in f16: the median of 20.

use crate::console::wrap;
use crate::device::Device;
use crate::failure::{At, Result, fail};
use crate::progress::Progress;
use crate::table::Table;
use octaplex::{Attend, CodecSpec, LayerConfig, gpu};

const HEADS: usize = 28;
const KV_HEADS: usize = 4;
const TOKENS: usize = 65_536;
/// Bytes that all layers of a graph have at least, as in `benches/gpu.rs`, which times more shapes in the same way.
const BYTES: f64 = 400e6;

/// The times of one codec, or the reason why it does not run on the GPU.
pub(super) struct Row {
    pub(super) codec: String,
    pub(super) times: std::result::Result<Times, String>,
}

pub(super) struct Times {
    pub(super) step: f64,
    /// `None` where the CPU encodes.
    pub(super) encode: Option<f64>,
}

/// The GPU's name, and its times on rows of these values, repeated.
pub(super) fn run(
    device: Device,
    specs: &[(String, CodecSpec)],
    dim: usize,
    few: &[f32],
) -> Result<(String, Vec<Row>)> {
    let device = device.gpu()?;
    let progress = Progress::new(specs.len(), "codecs");
    let mut rows = Vec::new();
    for (text, spec) in specs {
        progress.about(text);
        let times = match times(&device, *spec, dim, few) {
            Ok(times) => Ok(times),
            Err(error @ gpu::Error::Unsupported { .. }) => Err(error.to_string()),
            Err(error) => return Err(error).at(text),
        };
        rows.push(Row { codec: text.clone(), times });
        progress.step(1);
    }
    if let Some(Err(why)) = rows.iter().all(|row| row.times.is_err()).then(|| &rows[0].times) {
        fail!("none of these codecs runs on a GPU at width {dim}: {why}");
    }
    Ok((device.name().to_string(), rows))
}

fn times(
    device: &gpu::Device,
    spec: CodecSpec,
    dim: usize,
    few: &[f32],
) -> std::result::Result<Times, gpu::Error> {
    let config = LayerConfig::new(KV_HEADS, dim, TOKENS + 256).keys(spec).values(spec);
    let rows: Vec<f32> = few.iter().copied().cycle().take(KV_HEADS * TOKENS * dim).collect();
    let bytes = (TOKENS * KV_HEADS * dim) as f64 / 4.0 * config.page_bits();
    let mut layers = Vec::new();
    let mut encode = None;
    for _ in 0..(BYTES / bytes).ceil().clamp(1.0, 100.0) as usize {
        let mut layer = gpu::Layer::new(device, &config, 1, TOKENS)?;
        if layers.is_empty() {
            encode = match layer.time_append(&rows, &rows, 20) {
                Ok(times) => Some(median(times)),
                Err(gpu::Error::Unsupported { .. }) => None,
                Err(error) => return Err(error),
            };
        }
        layer.append(0, &rows, &rows)?;
        layer.reserve(HEADS)?;
        layers.push(layer);
    }
    let (count, queries) = (layers.len(), &few[..HEADS * dim]);
    let mut output = vec![0.0; queries.len()];
    for layer in &mut layers {
        layer.attend(queries, &mut output)?;
    }
    let step = gpu::Layer::capture_all(&mut layers.iter_mut().collect::<Vec<_>>(), &Attend::default())?;
    layers[0].time(&step, 10)?;
    let steps = layers[0].time(&step, 50)?;
    Ok(Times { step: median(steps) / count as f64, encode })
}

fn median(mut times: Vec<f32>) -> f64 {
    times.sort_by(f32::total_cmp);
    f64::from(times[times.len() / 2])
}

pub(super) fn table(rows: &[Row], dim: usize, gpu: &str) -> String {
    let mut out = wrap(&format!(
        "Microseconds on {gpu}, width {dim}. step: a decode step of {HEADS} query heads on {KV_HEADS} key/value heads with {TOKENS} \
         tokens; encode: these tokens to pages, keys and values, - where the CPU encodes\n"
    ));
    let mut table = Table::new("ONE LAYER", &[("step", 8), ("encode", 8)]);
    for row in rows.iter() {
        if let Ok(times) = &row.times {
            table.row(
                &row.codec,
                false,
                &[format!("{:.1}", times.step), times.encode.map_or("-".into(), |us| format!("{us:.1}"))],
            );
        }
    }
    out += &format!("\n{}", table.text());
    for row in rows.iter() {
        if let Err(why) = &row.times {
            out += &wrap(&format!("\n{}: {why}\n", row.codec));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Row, Times, table};

    #[test]
    fn codecs_with_times_are_rows_and_others_say_why() {
        let row = |codec: &str, times| Row { codec: codec.into(), times };
        let rows = [
            row("turboquant", Ok(Times { step: 20.06, encode: Some(229.94) })),
            row("octopus", Err("the GPU has no kernels for it".into())),
        ];
        let text = table(&rows, 128, "a GPU");
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or("").to_owned();
        assert!(text.starts_with("Microseconds on a GPU, width 128."), "{text}");
        assert_eq!(
            line("turboquant").split_whitespace().collect::<Vec<_>>(),
            ["turboquant", "20.1", "229.9"],
            "{text}"
        );
        assert_eq!(line("octopus"), "octopus: the GPU has no kernels for it", "{text}");
        assert!(text.contains("ONE LAYER") && text.contains("step  encode"), "{text}");
    }
}
