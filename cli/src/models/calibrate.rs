//! `calibrate`: measures once which layers of a model need more bits, and writes a profile.

use super::baseline::Baseline;
use super::kept::{self, Kept};
use super::options::{Codecs, ModelOptions};
use super::perplexity::check_windows;
use super::profiles::{Pair, picture};
use crate::console::{self, is_dash, wrap};
use crate::failure::{At, Result, fail};
use crate::files;
use crate::keys::Keys;
use crate::progress::Progress;
use clap::Args;
use octaplex::codecs::Role;
use octaplex::profile::{Calibration, Case};
use octaplex::{CodecSpec, LayerConfig};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The end of the help of `calibrate`.
const HELP: &str = "\
Examples:
  octaplex calibrate --model smollm2.gguf --text wikitext2_raw_test.txt \\
      --out smollm2.octaprofile
  octaplex perplexity --model smollm2.gguf --text other.txt --budget 2.2 \\
      --profile smollm2.octaprofile

The command compresses one layer's keys, or its values, to 2 bits, keeps all
else exact, and measures the KL divergence of the next token. That is the
sensitivity of these keys or values. It then compresses the keys of all layers
with each codec, and the values likewise, to see how the KL grows with fewer
bits. The profile holds both results, as a small text. --profile FILE then
chooses codecs for any --budget.

Each result is written at once to a file with .part added to the profile's name.
If the run is interrupted, start it again: it continues from there.";

/// Arguments of `calibrate`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Calibrate {
    #[command(flatten)]
    model: ModelOptions,
    /// A text in UTF-8, read from its start; prose will do, also for models that will read code
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// File for the profile
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 512)]
    tokens: usize,
    /// Windows, one after the other; one more checks the result
    #[arg(long, value_name = "N", default_value_t = 1)]
    windows: usize,
}

/// Bits with a predicted KL. The middle one is checked.
const FORETOLD: [f64; 3] = [2.0, 2.5, 3.0];

/// Returns the caches' codecs of a case; everything else is exact.
fn codecs_of(case: &Case, layers: usize) -> Codecs {
    let f16 = CodecSpec::F16(Default::default());
    let pair = |layer| match case.role {
        _ if case.layer.is_some_and(|own| own != layer) => [f16; 2],
        Role::Keys => [case.codec, f16],
        Role::Values => [f16, case.codec],
    };
    Codecs::of_layers((0..layers).map(pair).collect(), KEYS)
}

fn key_of(case: &Case) -> Value {
    let role = match case.role {
        Role::Keys => "keys",
        Role::Values => "values",
    };
    json!({"role": role, "codec": case.codec.to_string(), "layer": case.layer})
}

/// Returns the preparation of keys in a cache.
const KEYS: Keys = Keys { center: octaplex::cache::Center::Page, balance: true };

pub(crate) fn run(arguments: &Calibrate) -> Result<()> {
    let Calibrate { model: options, text, out, tokens, windows } = arguments;
    if is_dash(out) {
        fail!("--out -: a profile is a file; the measurements are stored next to it");
    }
    let start = Instant::now();
    let part = part_of(out);
    files::check(&options.inputs([text.as_path()]), &[out, &part])?;
    let mut kept = Kept::open(&part)?;
    let model = options.load()?;
    check_windows(&model, *tokens, *windows)?;
    let words = model.text.of_file(text, tokens * (windows + 1), "--tokens or --windows")?;
    let (words, held_back) = words.split_at(tokens * windows);
    let config = options.config_of(&model);
    let calibration = Calibration::new(model.shape.layers, &config.each).at(&model.name)?;
    let mut run = options.json_of_session(&model, &Codecs::f16());
    run["text"] = kept::hash(words).into();
    run["window_tokens"] = (*tokens).into();
    run["windows"] = (*windows).into();

    let cases: Vec<Case> = calibration.cases().collect();
    let key = |case: &Case| {
        let mut key = run.clone();
        key["measured"] = key_of(case);
        key
    };
    let find = |kept: &Kept, key: &Value| {
        kept.rows().find(|row| row["run"] == *key).and_then(|row| row["kl"].as_f64())
    };
    let missing = cases.iter().filter(|case| find(&kept, &key(case)).is_none()).count();
    let runs = (missing + usize::from(missing > 0)) * windows + 3; // three check the result
    let progress = Progress::new(runs * model.shape.layers, "layers");
    let mut baseline = None;
    let mut divergences = Vec::new();
    for case in &cases {
        let key = key(case);
        let kl = match find(&kept, &key) {
            Some(kl) => kl,
            None => {
                let baseline = match &baseline {
                    Some(baseline) => baseline,
                    None => &*baseline.insert(Baseline::new(&model, options, words, *windows, &progress)?),
                };
                let kl = baseline.divergence(&codecs_of(case, model.shape.layers), &progress)?;
                kept.add(json!({"run": key, "kl": kl}))?;
                kl
            }
        };
        divergences.push(kl);
    }
    drop(baseline);
    let profile = Arc::new(calibration.profile(&model.name, &divergences).at("what was measured")?);

    let baseline = Baseline::new(&model, options, held_back, 1, &progress)?;
    let measure = |profile| {
        let codecs = Codecs::within(FORETOLD[1], profile, KEYS);
        baseline.divergence(&options.settled(&model, codecs)?, &progress)
    };
    let checked = [measure(Some(profile.clone()))?, measure(None)?];
    drop(progress);
    files::write(out, profile.to_string().as_bytes())?;
    // The profile now contains all of it.
    std::fs::remove_file(&part)
        .or_else(|error| if part.exists() { Err(error) } else { Ok(()) })
        .at(part.display())?;

    let about = format!(
        "{}\n{}, {windows} {} of {tokens} tokens; {}",
        model.describe(),
        text.display(),
        if *windows == 1 { "window" } else { "windows" },
        options.describe()
    );
    let mut said = format!("{}\n\n", wrap(&about));
    let layers = profile.solve(&config, FORETOLD[1]).at("--out")?;
    let pairs: Vec<Pair> = layers.iter().map(|layer| [layer.keys, layer.values]).collect();
    said += &format!(
        "Bits of each layer at {} bits a value:\n\n{}\n",
        FORETOLD[1],
        picture(&pairs, model.shape.head_dim)
    );
    said += "  bits    pages   expected KL   without a profile\n";
    for bits in FORETOLD {
        let of =
            |layers: &[LayerConfig]| profile.divergence(layers).map_or("-".into(), |kl| format!("{kl:.4}"));
        let Ok(layers) = profile.solve(&config, bits) else { continue };
        let pages = layers.iter().map(LayerConfig::page_bits).sum::<f64>() / layers.len() as f64;
        let uniform =
            config.for_bits(bits).map_or("-".into(), |config| of(&config.layers().collect::<Vec<_>>()));
        said += &format!("{bits:>6.1} {pages:>8.3} {:>13} {uniform:>19}\n", of(&layers));
    }
    let [with, without] = checked;
    let checked = format!(
        "Checked at {} bits on the {tokens} tokens that follow: KL {with:.4} with the profile, {without:.4} without.",
        FORETOLD[1]
    );
    let seconds = start.elapsed().as_secs_f64();
    let next = format!("Next: octaplex perplexity --budget {} --profile {}", FORETOLD[1], out.display());
    said += &format!("\n{}\n{seconds:.0} s\n\n{next}\n", wrap(&checked));
    console::say(&said)
}

/// Returns the file of partial results, in the folder of the profile.
fn part_of(out: &Path) -> PathBuf {
    let mut part = out.as_os_str().to_owned();
    part.push(".part");
    part.into()
}
