//! `calibrate`: which layers of a model need their bits, measured once and kept as a profile.

use super::baseline::Baseline;
use super::forward::Model;
use super::kept::{self, Kept};
use super::options::{Codecs, ModelOptions};
use super::perplexity::check_windows;
use super::profiles::{Pair, picture};
use crate::codecs::{has_grades, parse_spec};
use crate::console::{self, is_dash, wrap};
use crate::failure::{At, Result, fail};
use crate::files;
use crate::keys::Keys;
use crate::progress::Progress;
use clap::Args;
use octaplex::{CodecSpec, LayerConfig, Profile};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// What it does.
const HELP: &str = "\
Examples:
  octaplex calibrate --model smollm2.gguf --text wikitext2_raw_test.txt \\
      --out smollm2.octaprofile
  octaplex perplexity --model smollm2.gguf --text other.txt --budget 2.2 \\
      --profile smollm2.octaprofile

It measures the KL divergence of the next token with one layer's keys, or its
values, compressed to 2 bits and all else exact: their sensitivity. It also runs
all layers' keys, and values, at each rate: how errors grow. Any budget follows
from both. The profile is a small text. It needs no other file of this model.

Each result is kept at once, in FILE.part beside the profile. A run that was
interrupted goes on when it is started again.";

/// Arguments of `calibrate`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Calibrate {
    #[command(flatten)]
    model: ModelOptions,
    /// A text in UTF-8, read from its start; ordinary prose serves code as well
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Where the profile goes
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 512)]
    tokens: usize,
    /// Windows, one after the other; one more checks the result
    #[arg(long, value_name = "N", default_value_t = 1)]
    windows: usize,
}

/// The codecs of keys and of values that a profile chooses from. The reference, whose factor is 1, has 2 bits.
const GRADED: &[&str] = &[
    "trellis:m=1",
    "graded:fine=2,coarse=1",
    "graded:bits=2",
    "graded:fine=4,coarse=2",
    "graded:bits=3",
    "graded:fine=8,coarse=4",
    "graded:bits=4",
    "turboquant:bits=6",
    "turboquant:bits=8",
];
const TRELLIS: &[&str] = &[
    "trellis:m=1",
    "trellis:m=2",
    "trellis:m=3",
    "trellis:m=4",
    "trellis:m=6",
    "trellis:m=8",
    "turboquant:bits=6",
    "turboquant:bits=8",
];
const REFERENCES: [&str; 2] = ["graded:bits=2", "trellis:m=2"];

/// Bits whose KL is foretold; the one in the middle is checked.
const FORETOLD: [f64; 3] = [2.0, 2.5, 3.0];

/// What is measured: codecs of all layers' keys or values, or of one's; all else is exact.
struct Case {
    role: usize,
    spec: CodecSpec,
    layer: Option<usize>,
}

impl Case {
    fn codecs(&self, layers: usize) -> Codecs {
        let f16 = CodecSpec::F16(Default::default());
        let pair = |layer| {
            let mut pair = [f16; 2];
            if self.layer.is_none_or(|own| own == layer) {
                pair[self.role] = self.spec;
            }
            pair
        };
        Codecs::of_layers((0..layers).map(pair).collect(), KEYS)
    }

    fn key(&self) -> Value {
        let role = ["keys", "values"][self.role];
        json!({"role": role, "codec": self.spec.to_string(), "layer": self.layer})
    }
}

/// As a cache prepares keys.
const KEYS: Keys = Keys { center: octaplex::cache::Center::Page, balance: true };

/// Measurements, in the order in which a profile has them.
struct Plan {
    curves: [Vec<CodecSpec>; 2],
    references: [CodecSpec; 2],
    layers: usize,
}

impl Plan {
    fn new(model: &Model) -> Result<Self> {
        let parse = |specs: &[&str]| specs.iter().map(|spec| parse_spec(spec)).collect::<Result<Vec<_>>>();
        let graded = has_grades(model.shape.head_dim);
        let curves = [parse(if graded { GRADED } else { TRELLIS })?, parse(TRELLIS)?];
        let references = [parse_spec(REFERENCES[usize::from(!graded)])?, parse_spec(REFERENCES[1])?];
        Ok(Self { curves, references, layers: model.shape.layers })
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for role in 0..2 {
            cases.extend(self.curves[role].iter().map(|&spec| Case { role, spec, layer: None }));
            let spec = self.references[role];
            cases.extend((0..self.layers).map(|layer| Case { role, spec, layer: Some(layer) }));
        }
        cases
    }

    /// The profile of these divergences, one for each case.
    fn profile(&self, name: &str, shape: &LayerConfig, divergences: &[f64]) -> Result<Profile> {
        let mut divergences = divergences.iter().copied();
        let mut sensitivities = vec![[0.0; 2]; self.layers];
        let mut curves = [Vec::new(), Vec::new()];
        for role in 0..2 {
            let of_curve: Vec<f64> = divergences.by_ref().take(self.curves[role].len()).collect();
            let specs = self.curves[role].iter();
            let together = specs.zip(&of_curve).find(|(spec, _)| **spec == self.references[role]);
            let together = together.map_or(0.0, |(_, kl)| *kl);
            let alone: Vec<f64> = divergences.by_ref().take(self.layers).collect();
            let sum: f64 = alone.iter().sum();
            // Layers together do not do quite what they do one by one: their sum is set right, their shares are kept.
            let right = if sum > 0.0 { together / sum } else { 0.0 };
            sensitivities.iter_mut().zip(alone).for_each(|(layer, kl)| layer[role] = kl * right);
            let factor = |kl: &f64| if together > 0.0 { kl / together } else { 0.0 };
            curves[role] = self.curves[role].iter().copied().zip(of_curve.iter().map(factor)).collect();
        }
        Profile::new(name, shape, &curves[0], &curves[1], &sensitivities).at("what was measured")
    }
}

pub(crate) fn run(arguments: &Calibrate) -> Result<()> {
    let Calibrate { model: options, text, out, tokens, windows } = arguments;
    if is_dash(out) {
        fail!("--out -: a profile is a file, as what is measured is kept beside it");
    }
    files::check(out)?;
    let start = Instant::now();
    let part = part_of(out);
    let mut kept = Kept::open(&part)?;
    let model = options.load()?;
    check_windows(&model, *tokens, *windows)?;
    let words = model.text.of_file(text, tokens * (windows + 1))?;
    let (words, held_back) = words.split_at(tokens * windows);
    let plan = Plan::new(&model)?;
    let mut run = options.json_of_session(&model, &Codecs::f16());
    run["text"] = kept::hash(words).into();
    run["window_tokens"] = (*tokens).into();
    run["windows"] = (*windows).into();

    let cases = plan.cases();
    let key = |case: &Case| {
        let mut key = run.clone();
        key["measured"] = case.key();
        key
    };
    let find = |kept: &Kept, key: &Value| {
        kept.rows().find(|row| row["run"] == *key).and_then(|row| row["kl"].as_f64())
    };
    let missing = cases.iter().filter(|case| find(&kept, &key(case)).is_none()).count();
    let runs = (missing + usize::from(missing > 0)) * windows + 3; // three check the result
    let progress = Progress::shown(runs * model.shape.layers);
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
                let kl = baseline.divergence(&case.codecs(model.shape.layers), &progress)?;
                kept.add(json!({"run": key, "kl": kl}))?;
                kl
            }
        };
        divergences.push(kl);
    }
    drop(baseline);
    let config = options.config_of(&model);
    let profile = Arc::new(plan.profile(&model.name, &config.each, &divergences)?);

    let baseline = Baseline::new(&model, options, held_back, 1, &progress)?;
    let measure = |profile| {
        let codecs = Codecs::within(FORETOLD[1], profile, KEYS);
        baseline.divergence(&options.settled(&model, codecs)?, &progress)
    };
    let checked = [measure(Some(profile.clone()))?, measure(None)?];
    drop(progress);
    files::write(out, profile.to_string().as_bytes())?;
    // All of it is in the profile now.
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

/// Beside the profile.
fn part_of(out: &Path) -> PathBuf {
    let mut part = out.as_os_str().to_owned();
    part.push(".part");
    part.into()
}
