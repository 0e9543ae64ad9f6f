//! `sweep`: measures many caches on the same text, and stores each result at once.

mod rows;

use super::kept::{self, Kept};
use super::likelihood::{Outcome, Reference};
use super::options::{CALIBRATION, Codecs, ModelOptions};
use super::perplexity::check_windows;
use super::profiles::read_profile;
use crate::codecs::{in_list, parse_budget, parse_spec};
use crate::console::{Console, is_dash, wrap};
use crate::device::Device;
use crate::failure::{Result, fail};
use crate::files;
use crate::keys::Keys;
use crate::progress::Progress;
use crate::rates::{self, Rate};
use crate::table::Table;
use clap::Args;
use octaplex::cache::Center;
use rows::{Preparation, Row, cells};
use serde_json::Value;
use std::path::PathBuf;

/// Default codecs of a sweep.
const DEFAULT_CODECS: &str = "f16; trellis:bits=2; trellis:bits=3; trellis:bits=4; graded:bits=2/trellis:bits=2; \
    graded:bits=3/trellis:bits=3; graded:bits=4/trellis:bits=4; turboquant:bits=2; turboquant:bits=3; turboquant:bits=4; \
    turboquant-qjl:bits=4; octopus:bits=2; octopus; octopus:bits=4; octopus-qjl; polarquant:bits=3; polarquant; \
    hqmq:s=24,r=3; hqmq; hqmq:r=6,med=3/hqmq; tq3_0; tq3_0:variant=3bit; int:bits=3; int; int:asymmetric=true; \
    int:bits=3,group=32; int:group=32; int:group=32,asymmetric=true; int8; q8_0; q5_0; q4_0; \
    q4_0:rotate=keys/q4_0:rotate=values; iq4_nl; fp8; fp8:scale=token";

/// The end of the help of `sweep`.
const HELP: &str = "\
Example:
  octaplex sweep --model qwen.gguf --text wikitext2_raw_test.txt \\
      --codecs \"trellis:bits=3; graded:bits=3/trellis:bits=2\"

Runs every codec with every way to prepare keys, on the same windows of the
text. By default these are about 100 runs, which take hours even for a small
model: choose with --codecs, --keys, --tokens and --windows. The numbers are
those of `octaplex perplexity --help`. The f16 cache runs once. Each result is
added at once to the file --rows, as a line of JSON. If the sweep is
interrupted, start it again: it skips the results in that file.";

/// Arguments of `sweep`.
#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Sweep {
    #[command(flatten)]
    model: ModelOptions,
    /// A text in UTF-8, read from its start
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 1024)]
    tokens: usize,
    /// Windows, one after the other
    #[arg(long, value_name = "N", default_value_t = 4)]
    windows: usize,
    /// The codecs: "SPEC;SPEC;…". SPEC is one codec for both, KEYS/VALUES, or a number of bits a value in pages: the most
    /// accurate codecs with at most that many
    #[arg(long, value_name = "SPECS")]
    codecs: Option<String>,
    /// A profile of this model, from octaplex calibrate: it spends the numbers of bits in --codecs
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Preparations of keys
    #[arg(long, value_name = "HOW,HOW,…", value_delimiter = ',', default_value = "plain,page,balanced")]
    keys: Vec<Preparation>,
    /// File that keeps the results, so that a later run skips them
    #[arg(long, value_name = "FILE", default_value = "octaplex-sweep.jsonl")]
    rows: PathBuf,
    /// One plot of rate and KL, as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The rows as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// A codec as the user gave it, and its specs.
type Case = (String, Preparation, Codecs);

fn cases(sweep: &Sweep) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let profile = sweep.profile.as_deref().map(read_profile).transpose()?;
    for text in sweep.codecs.as_deref().unwrap_or(DEFAULT_CODECS).split(';').map(str::trim) {
        if text.is_empty() {
            continue;
        }
        let codecs = |keys| match parse_budget(text) {
            Ok(bits) => Ok(Codecs::within(bits, profile.clone(), keys)),
            Err(_) => {
                let (k, v) = text.split_once('/').unwrap_or((text, text));
                let parse = |spec| parse_spec(spec).or_else(|failure| in_list(text, failure));
                Ok(Codecs::of(parse(k)?, parse(v)?, keys))
            }
        };
        for &how in &sweep.keys {
            let center = if how == Preparation::Plain { Center::Off } else { Center::Page };
            let keys = Keys { center, balance: how == Preparation::Balanced };
            let codecs = codecs(keys)?;
            let name = match (&profile, parse_budget(text)) {
                (Some(_), Ok(_)) => format!("{text} by profile"),
                _ => text.to_owned(),
            };
            if !codecs.is_f16() || how == sweep.keys[0] {
                cases.push((name, how, codecs));
            }
        }
    }
    if cases.is_empty() {
        fail!("--codecs: no spec in it; give \"SPEC;SPEC\"");
    }
    Ok(cases)
}

pub(crate) fn run(sweep: &Sweep) -> Result<()> {
    let Sweep { model: options, text, tokens, windows, .. } = sweep;
    if is_dash(&sweep.rows) {
        fail!("--rows -: the results are kept in a file");
    }
    let inputs = options.inputs(sweep.profile.as_deref().into_iter().chain([text.as_path()]));
    let outputs = [Some(&sweep.rows), sweep.svg.as_ref(), sweep.csv.as_ref()];
    let console = Console::beside(&inputs, &outputs.map(|path| path.map(PathBuf::as_path)))?;
    let mut kept = Kept::open(&sweep.rows)?;
    let mut cases = cases(sweep)?;
    let model = options.load()?;
    for case in &mut cases {
        case.2 = options.settled(&model, case.2.clone())?;
    }
    check_windows(&model, *tokens, *windows)?;
    let words = model.text.of_file(text, tokens * windows, "--tokens or --windows")?;
    let fingerprint = kept::hash(&words);
    let key = |case: &Case| {
        let mut key = options.json(&model, &case.2);
        key["keys"] = case.1.name().into();
        key["window_tokens"] = (*tokens).into();
        key["windows"] = (*windows).into();
        key["text"] = fingerprint.clone().into();
        key
    };
    // A cache that cannot be built is an error now, not hours later. Default codecs that do not suit the model's width are
    // left out.
    let mut left_out = Vec::new();
    for case in &cases {
        match options.cache(&model, &case.2, *tokens) {
            Err(failure) if sweep.codecs.is_none() => left_out.push((case.0.clone(), failure)),
            other => drop(other?),
        }
    }
    cases.retain(|case| left_out.iter().all(|(codec, _)| *codec != case.0));
    left_out.dedup_by(|a, b| a.0 == b.0);
    for (codec, failure) in left_out {
        if cases.is_empty() {
            return Err(failure);
        }
        console.say(&format!("{}\n", wrap(&format!("without {codec}: {failure}"))))?;
    }
    let find = |kept: &Kept, key: &Value| kept.rows().find_map(|row| outcome_of(row, key));
    let missing = cases.iter().filter(|case| find(&kept, &key(case)).is_none()).count();
    let steps = Reference::steps(&model, *windows);
    let progress = Progress::new((missing + usize::from(missing > 0)) * steps, "layers");
    let mut reference = None;
    let mut rows = Vec::new();
    for case in &cases {
        let mut row = key(case);
        let outcome = match find(&kept, &row) {
            Some(outcome) => outcome,
            None => {
                let reference = match &reference {
                    Some(reference) => reference,
                    None => &*reference.insert(Reference::new(&model, options, &words, *windows, &progress)?),
                };
                let outcome = reference.measure(&case.2, Device::Cpu, &progress)?;
                if let (Some(row), Some(found)) = (row.as_object_mut(), outcome.json().as_object()) {
                    row.extend(found.clone());
                }
                kept.add(row)?;
                outcome
            }
        };
        rows.push(Row { codec: case.0.clone(), keys: case.1, outcome });
    }
    drop(progress);
    rows.sort_by(|a, b| {
        let rank = |row: &Row| (row.keys as u8, row.outcome.bits_per_value);
        rank(a).0.cmp(&rank(b).0).then(rank(a).1.total_cmp(&rank(b).1))
    });
    let about = format!(
        "{}\n{}, {windows} windows of {tokens} tokens; {}",
        model.describe(),
        text.display(),
        options.describe()
    );
    if let Some(path) = &sweep.svg {
        files::write(path, rates::chart(&model.name, &rates_of(&rows)).as_bytes())?;
    }
    if let Some(path) = &sweep.csv {
        files::write(path, &rates::write(&rates_of(&rows))?)?;
    }
    console.say(&format!("{}\nRows: {}\n", table(&about, &rows), sweep.rows.display()))
}

/// Returns the rows in the form of the pictures and CSV files.
fn rates_of(rows: &[Row]) -> Vec<Rate> {
    let rate = |row: &Row| {
        let (keys, values) = row.codec.split_once('/').unwrap_or((&row.codec, &row.codec));
        let outcome = &row.outcome;
        Rate {
            keys: keys.to_owned(),
            values: values.to_owned(),
            prepared: row.keys.name().to_owned(),
            bits: outcome.bits_per_value,
            bits_in_pages: outcome.bits_per_value_pages,
            perplexity: outcome.perplexity,
            perplexity_f16: outcome.perplexity_f16,
            kl_mean: outcome.kl_mean,
            kl_paged: outcome.kl_paged,
            kl_p99: outcome.kl_p99,
            top1: outcome.top1_agreement,
        }
    };
    rows.iter().map(rate).collect()
}

/// Returns the outcome in a stored row, if the row has all fields of `key`.
fn outcome_of(row: &Value, key: &Value) -> Option<Outcome> {
    let key = key.as_object()?;
    // Older rows lack the size of the model's file: they count as this model's. Rows without a calibration had the usual one.
    let is_other = |(name, value): (&String, &Value)| match row.get(name) {
        Some(found) => found != value,
        None if name == "calibrate" => *value != CALIBRATION,
        None => name != "model_bytes",
    };
    if key.iter().any(is_other) {
        return None;
    }
    Outcome::from_json(row)
}

fn table(about: &str, rows: &[Row]) -> String {
    let columns =
        [("keys", 8), ("bits", 7), ("pages", 7), ("perpl.", 8), ("change", 9), ("KL", 8), ("paged", 8)];
    let mut table = Table::new("KEYS/VALUES", &columns);
    for row in rows {
        table.row(&row.codec, false, &[&[row.keys.name().to_owned()], &cells(&row.outcome)[..]].concat());
    }
    format!("{}\n\n{}\n{LEGEND}", wrap(about), table.text())
}

/// Returns a line for each column of the table.
const LEGEND: &str = "\
keys    how they are prepared: plain, page (centred by page), balanced (both)
bits    a value of the whole cache, everything counted
pages   the same without the exact tokens: what a long context tends to
perpl.  perplexity; lower is better
change  of the perplexity from that with an f16 cache
KL      of the next token's distribution from that with an f16 cache, mean nats
paged   the same where pages are read: the first positions see exact tokens only
";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_do_not_touch() {
        let outcome = |perplexity, kl| Outcome {
            tokens: 1023,
            perplexity,
            perplexity_f16: 3.828,
            kl_mean: kl,
            kl_paged: Some(kl),
            kl_p99: kl,
            top1_agreement: 0.5,
            kv_bytes: 1,
            kv_bytes_f16: 2,
            bits_per_value: 10.442,
            bits_per_value_pages: 10.442,
        };
        for outcome in [outcome(627.528, 0.00191), outcome(27.9, 9.0e-4), outcome(1e7, 12.3)] {
            let row = Row { codec: "turboquant-qjl:bits=8".into(), keys: Preparation::Balanced, outcome };
            let table = table("", &[row]);
            let line =
                table.lines().find(|line| line.starts_with("turboquant-qjl:bits=8 ")).unwrap_or_default();
            assert!(line.split_whitespace().count() == 8 && line.chars().count() <= 80, "{line}");
            for name in ["keys", "bits", "pages", "perpl.", "change", "KL", "paged"] {
                assert!(table.contains(&format!("\n{name} ")), "{name} has no line in the legend");
            }
        }
    }

    #[test]
    fn a_row_is_found_again_only_with_the_same_key() {
        let outcome = json!({
            "tokens": 9, "perplexity": 2.0, "perplexity_f16": 1.5, "kl_mean": 0.1, "kl_p99": 0.2,
            "top1_agreement": 0.9, "kv_bytes": 10, "kv_bytes_f16": 20, "bits_per_value": 8.0,
            "bits_per_value_pages": 7.0, "k": "trellis", "page": 64,
        });
        assert!(outcome_of(&outcome, &json!({"k": "trellis", "page": 64})).is_some_and(|o| o.kv_bytes == 10));
        assert!(outcome_of(&outcome, &json!({"k": "trellis", "page": 128})).is_none());
        assert!(outcome_of(&outcome, &json!({"k": "trellis", "sinks": 4})).is_none());
        assert!(outcome_of(&outcome, &json!({"k": "trellis", "model_bytes": 5})).is_some());
        assert!(outcome_of(&outcome, &json!({"k": "trellis", "calibrate": 256})).is_some());
        assert!(outcome_of(&outcome, &json!({"k": "trellis", "calibrate": 0})).is_none());
        let mut sized = outcome.clone();
        sized["model_bytes"] = 4.into();
        assert!(outcome_of(&sized, &json!({"k": "trellis", "model_bytes": 5})).is_none());
        assert!(outcome_of(&json!({"k": "trellis"}), &json!({"k": "trellis"})).is_none());
    }
}
