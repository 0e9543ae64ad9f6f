//! The commands on language models, on tiny ones with random weights that the tests write.
#![cfg(feature = "models")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
mod tiny;

use common::{fails, folder, octaplex, succeeds};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tiny::Tiny;

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Letters, digits and spaces in an order that no one can predict; a token each.
fn text(length: usize) -> Vec<u8> {
    let letters = b"abcdefghijklmnopqrstuvwxyz0123456789 ,.\n";
    let mut state = 12345u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        letters[(state >> 33) as usize % letters.len()]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// A folder with a model and a text.
fn model(name: &str, architecture: &'static str) -> (PathBuf, Tiny) {
    let (folder, tiny) = (folder(name), Tiny::new(architecture, 7));
    tiny.write(&folder.join("tiny.gguf"));
    std::fs::write(folder.join("text.txt"), text(900)).unwrap();
    (folder, tiny)
}

const MODEL: [&str; 4] = ["--model", "tiny.gguf", "--text", "text.txt"];

#[test]
fn perplexities_equal_the_oracles() {
    for architecture in ["llama", "qwen2", "qwen3", "gemma3"] {
        let (folder, tiny) = model(architecture, architecture);
        let options = ["--tokens", "300", "--windows", "2", "--exact", "--json", "out.json"];
        let codecs = ["--k", "trellis:m=8", "--v", "trellis:m=8", "--balance"];
        let shown = succeeds(&folder, &[&["perplexity"], &MODEL[..], &options, &codecs].concat());
        assert!(shown.contains("KV bytes") && shown.contains("trellis:m=8"), "{shown}");
        let json = json(&folder.join("out.json"));
        let number = |name: &str| json[name].as_f64().unwrap_or_else(|| panic!("{name} in {json}"));
        let (first, second) = (text(600)[..300].to_vec(), text(600)[300..].to_vec());
        let exact = (tiny.perplexity(&first) * tiny.perplexity(&second)).sqrt();
        assert!((number("perplexity_f32") / exact - 1.0).abs() < 1e-4, "{architecture}: {exact}, {json}");
        assert!((number("perplexity_f16") / exact - 1.0).abs() < 1e-3, "{architecture}: {exact}, {json}");
        assert!((number("perplexity") / exact - 1.0).abs() < 0.05, "{architecture}: {exact}, {json}");
        assert!(number("kl_mean") > 0.0 && number("kl_mean") < number("kl_p99"), "{json}");
        // Positions 0 to 130 of a window see exact tokens only: 4 sinks and 127 of the window, and differ in nothing.
        let paged = number("kl_paged") * f64::from(299 - 131);
        assert!((paged / (number("kl_mean") * 299.0) - 1.0).abs() < 1e-9, "{json}");
        assert!(number("top1_agreement") > 0.8 && number("top1_agreement") <= 1.0, "{json}");
        assert_eq!(number("tokens"), 598.0);
        // Two heads of 32, keys and values in 2 bytes; pages of 64 with a position of 8 bytes. Two layers have 300 tokens, 3 pages
        // of them. Of Gemma's seven, one does, and six see 100: their 3 pages end at 196, before what the last query sees.
        let bytes = |tokens: u32, pages: u32| f64::from(tokens * 2 * 64 * 2 + pages * 8);
        let expected = match architecture {
            "gemma3" => bytes(300, 3) + 6.0 * bytes(300 - 3 * 64, 0),
            _ => 2.0 * bytes(300, 3),
        };
        assert_eq!(number("kv_bytes_f16"), expected, "{architecture}");
        assert!(number("kv_bytes") < number("kv_bytes_f16") && number("bits_per_value") < 16.0, "{json}");
        assert!((4.0..6.0).contains(&number("bits_per_value_pages")), "{json}");
    }
}

/// Local layers see all of a text that is shorter than their window, and drop pages within blocks of any length.
#[test]
fn local_layers_see_their_window() {
    let (folder, mut tiny) = model("local", "gemma3");
    for (window, more) in [
        (5000, [].as_slice()),
        (1, &[]),
        (64, &["--block", "1"]),
        (150, &["--block", "300"]),
        (200, &["--sinks", "0", "--window", "250"]),
    ] {
        tiny.window = window;
        tiny.write(&folder.join("tiny.gguf"));
        let options = ["--tokens", "300", "--exact", "--json", "out.json", "--k", "f16", "--v", "f16"];
        let shown = succeeds(&folder, &[&["perplexity"], &MODEL[..], &options, more].concat());
        assert!(shown.contains(&format!("7 layers (6 of them see {window} tokens)")), "{shown}");
        let (json, exact) = (json(&folder.join("out.json")), tiny.perplexity(&text(300)));
        let number = |name: &str| json[name].as_f64().unwrap_or_else(|| panic!("{name} in {json}"));
        assert!((number("perplexity_f32") / exact - 1.0).abs() < 1e-4, "{window}: {exact}, {json}");
        assert!((number("perplexity") / exact - 1.0).abs() < 1e-3, "{window}: {exact}, {json}");
    }
}

/// What Gemma cannot be run without is named where a file lacks it.
#[test]
fn what_a_model_lacks_is_named() {
    let (folder, mut tiny) = model("lacks", "gemma3");
    for name in [
        "gemma3.attention.sliding_window",
        "gemma3.attention.key_length",
        "gemma3.attention.layer_norm_rms_epsilon",
        "gemma3.rope.freq_base",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.token_type",
        "blk.3.post_attention_norm.weight",
        "blk.4.post_ffw_norm.weight",
        "blk.5.attn_q_norm.weight",
        "blk.6.attn_k_norm.weight",
        "add_space_prefix",
    ] {
        tiny.without = name;
        tiny.write(&folder.join("tiny.gguf"));
        fails(&folder, &[&["perplexity"], &MODEL[..], &["--tokens", "8"]].concat(), &["tiny.gguf", name]);
    }
}

#[test]
fn blocks_do_not_change_what_tokens_see() {
    let (folder, _) = model("blocks", "qwen2");
    let kl = |block: &[&str]| {
        let options =
            ["--tokens", "280", "--json", "out.json", "--k", "turboquant:bits=2", "--balance=false"];
        succeeds(&folder, &[&["perplexity"], &MODEL[..], &options, block].concat());
        json(&folder.join("out.json"))["kl_mean"].as_f64().unwrap()
    };
    let (whole, single) = (kl(&[]), kl(&["--block", "1"]));
    assert!((whole / single - 1.0).abs() < 1e-3, "{whole} {single}");
    // All at once: later queries see more of what is compressed, never less.
    assert!(kl(&["--block", "280"]) > whole);
}

/// The balance is decided by so many of a prompt's tokens, or by the cache; without a balance it is all the same.
#[test]
fn the_first_tokens_decide_the_balance() {
    let (folder, _) = model("calibrate", "qwen2");
    let kl = |more: &[&str]| {
        let options = ["--tokens", "280", "--json", "out.json", "--k", "turboquant:bits=2"];
        succeeds(&folder, &[&["perplexity"], &MODEL[..], &options, more].concat());
        json(&folder.join("out.json"))["kl_mean"].as_f64().unwrap()
    };
    let usual = kl(&[]);
    assert_eq!(usual, kl(&["--calibrate", "256"]));
    assert!(usual != kl(&["--calibrate", "100"]) && usual != kl(&["--calibrate", "0"]));
    let off = "--balance=false";
    assert_eq!(kl(&[off]), kl(&[off, "--calibrate", "0"]));
}

#[test]
fn a_model_writes_what_the_oracle_would() {
    let (folder, tiny) = model("generate", "qwen3");
    let options = ["--k", "f16", "--v", "f16", "--new", "6", "--json", "out.json", "--beside-f16"];
    let shown = succeeds(
        &folder,
        &[&["generate", "--model", "tiny.gguf", "--prompt", "octaplex"], &options[..]].concat(),
    );
    let mut tokens = b"octaplex".to_vec();
    for _ in 0..6 {
        let logits = tiny.logits(&tokens).pop().unwrap();
        let best = (0..=255u8).max_by(|a, b| logits[usize::from(*a)].total_cmp(&logits[usize::from(*b)]));
        tokens.push(best.unwrap());
    }
    let expected = String::from_utf8_lossy(&tokens).into_owned();
    let expected = expected.trim_end_matches('\u{fffd}');
    assert!(shown.starts_with(expected), "{expected:?} {shown:?}");
    assert!(shown.contains("tokens/s") && shown.contains("f16 cache"), "{shown}");
    let json = json(&folder.join("out.json"));
    assert_eq!(json["written"], 6);
    assert_eq!(json["growth"][1]["tokens"], 14);
    assert_eq!(json["growth"][1]["kv_bytes"], json["growth"][1]["kv_bytes_f16"]);
    assert!(json["time_f16"]["ms_per_token"].as_f64().unwrap() > 0.0);
}

#[test]
fn needles_are_asked_for() {
    let (folder, _) = model("needle", "llama");
    let shown =
        succeeds(&folder, &[&["needle"], &MODEL[..], &["--tokens", "600", "--json", "out.json"]].concat());
    assert!(shown.contains("600"), "{shown}");
    let row = &json(&folder.join("out.json"))["rows"][0];
    // Nobody has taught it to answer.
    assert_eq!(
        (row["asked"].as_u64(), row["recall"].as_f64(), row["recall_f16"].as_f64()),
        (Some(5), Some(0.0), Some(0.0))
    );
}

#[test]
fn a_sweep_goes_on_where_it_stopped() {
    let (folder, _) = model("sweep", "qwen2");
    let sweep = |codecs: &str| {
        let options = ["--tokens", "200", "--windows", "2", "--keys", "plain,balanced", "--codecs", codecs];
        let files = ["--svg", "plot.svg", "--html", "octaplex-sweep.html", "--csv", "rows.csv"];
        let options = [&options[..], &files].concat();
        succeeds(&folder, &[&["sweep"], &MODEL[..], &options].concat())
    };
    let rows = || std::fs::read_to_string(folder.join("octaplex-sweep.jsonl")).unwrap();
    sweep("f16; turboquant:bits=2");
    let first = rows();
    assert_eq!(first.lines().count(), 3);
    // What an interruption leaves.
    std::fs::write(folder.join("octaplex-sweep.jsonl"), first.clone() + "{\"k\":\"trel").unwrap();
    let shown = sweep("f16; turboquant:bits=2; trellis/turboquant:bits=5");
    let second = rows();
    assert!(second.starts_with(&first) && second.lines().count() == 6, "{second}");
    let parsed = second.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    assert_eq!(parsed.filter(|row| row["kl_mean"].is_f64()).count(), 5);
    assert!(shown.contains("trellis/turboquant:bits=5") && shown.contains("balanced"), "{shown}");
    let page = std::fs::read_to_string(folder.join("octaplex-sweep.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("Keys as they are") && !page.contains("<script"));
    let plot = std::fs::read_to_string(folder.join("plot.svg")).unwrap();
    assert!(
        plot.contains(">trellis/turboquant:bits=5</text>")
            && plot.contains("xmlns")
            && plot.contains("balanced")
    );
    assert!(plot.contains(">hollow: keys as they are"), "{plot}");
    let csv = std::fs::read_to_string(folder.join("rows.csv")).unwrap();
    assert!(csv.starts_with("keys,values,prepared,bits,") && csv.lines().count() == 6, "{csv}");
    succeeds(&folder, &["plot", "rows.csv", "again.svg"]);
    let again = std::fs::read_to_string(folder.join("again.svg")).unwrap();
    assert_eq!(again.split_once("<style>").unwrap().1, plot.split_once("<style>").unwrap().1);
}

/// The README's command: no codecs named. What does not suit the model's width is left out, and named.
#[test]
fn a_sweep_of_everything_leaves_out_what_does_not_fit() {
    let (folder, _) = model("sweep_all", "qwen2");
    let options = ["--tokens", "100", "--windows", "1", "--keys", "balanced"];
    let shown = succeeds(&folder, &[&["sweep"], &MODEL[..], &options].concat());
    assert!(
        shown.contains("without q4_0:rotate=keys/q4_0:rotate=values: ") && shown.contains("width"),
        "{shown}"
    );
    let rows = shown.lines().filter(|line| line.contains(" balanced ")).count();
    assert!(rows > 30, "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let asked = [&["sweep"], &MODEL[..], &options, &["--codecs", "trellis; q4_0:rotate=keys"]].concat();
    fails(&folder, &asked, &["q4_0:rotate=keys", "64"]);
}

#[test]
fn bad_models_and_texts_are_one_line() {
    let (folder, tiny) = model("bad", "llama");
    let perplexity = |model: &str, more: &[&str], words: &[&str]| {
        let given = ["perplexity", "--model", model, "--text", "text.txt", "--tokens", "300"];
        fails(&folder, &[&given[..], more].concat(), words);
    };
    perplexity("text.txt", &[], &["text.txt", "not a GGUF file"]);
    perplexity("none.gguf", &[], &["none.gguf", "no such file"]);
    Tiny::new("mamba", 1).write(&folder.join("mamba.gguf"));
    perplexity("mamba.gguf", &[], &["unknown architecture \"mamba\"", "llama, qwen2, qwen3, gemma3"]);
    let bytes = tiny.bytes();
    for length in [4, 6, 30, 200, 1000, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(folder.join("cut.gguf"), &bytes[..length]).unwrap();
        perplexity("cut.gguf", &[], &["cut.gguf", "truncated"]);
    }
    perplexity("tiny.gguf", &["--windows", "4"], &["text.txt: 900 tokens, but 1200 are needed"]);
    perplexity("tiny.gguf", &["--windows", "0"], &["at least one window"]);
    perplexity("tiny.gguf", &["--k", "trelis"], &["trelis", "no such codec"]);
    perplexity("tiny.gguf", &["--v", "turboquant:bits=9"], &["turboquant:bits=9"]);
    std::fs::write(folder.join("text.txt"), b"\xff\xfe").unwrap();
    perplexity("tiny.gguf", &[], &["not text in UTF-8"]);
    fails(&folder, &["generate", "--model", "tiny.gguf"], &["--prompt"]);
    fails(&folder, &["generate", "--model", "tiny.gguf", "--prompt", ""], &["empty"]);
}

/// Bytes changed at random: an error or a result, never a panic.
#[test]
fn damaged_models_do_not_panic() {
    for architecture in ["qwen2", "gemma3"] {
        damage(architecture);
    }
}

fn damage(architecture: &'static str) {
    let (folder, tiny) = model(&format!("damaged_{architecture}"), architecture);
    let bytes = tiny.bytes();
    let header = bytes.windows(8).position(|w| w == b"ffn_gate").unwrap();
    let mut state = 99u64;
    for _ in 0..60 {
        let mut damaged = bytes.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            damaged[4 + (state >> 33) as usize % header] ^= 1 << (state & 7);
        }
        std::fs::write(folder.join("tiny.gguf"), damaged).unwrap();
        let output = octaplex(&folder, &[&["perplexity"], &MODEL[..], &["--tokens", "8"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 2)), "{errors}");
    }
}
