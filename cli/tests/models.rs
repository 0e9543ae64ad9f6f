//! The commands on language models, on tiny ones with random weights that the tests write.
#![cfg(feature = "models")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
mod gguf;
mod limits;
mod tiny;

use common::{fails, folder, octaplex, succeeds};
use serde_json::{Value, json};
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
        let options = [&options[..], &["--write-tokens", "tokens.txt"]].concat();
        let codecs = ["--k", "trellis:m=8", "--v", "trellis:m=8", "--balance"];
        let shown = succeeds(&folder, &[&["perplexity"], &MODEL[..], &options, &codecs].concat());
        assert!(shown.contains("KV bytes") && shown.contains("trellis:bits=4"), "{shown}");
        let json = json(&folder.join("out.json"));
        let number = |name: &str| json[name].as_f64().unwrap_or_else(|| panic!("{name} in {json}"));
        let tokens = std::fs::read_to_string(folder.join("tokens.txt")).unwrap();
        assert!(tokens.lines().eq(text(600).iter().map(u8::to_string)), "{tokens}"); // a token is a byte
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
        // Two heads of 32, keys and values in 2 bytes; pages of 64 with a position of 8 bytes. Two layers have 300 tokens,
        // 3 pages of them. In Gemma's model, one layer of seven does, and six see 100: their 3 pages end at 196, before the
        // last query's window.
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

/// A file that lacks something Gemma needs is refused with its name.
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
    // All at once: later queries see more compressed tokens, never fewer.
    assert!(kl(&["--block", "280"]) > whole);
}

/// A limited number of a prompt's tokens decides the balance, or the cache does. Without a balance the limit has no effect.
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
    // Speed and bytes, in words.
    let words = shown.replace('\n', " ");
    assert!(words.contains("The prompt of 8 tokens took ") && words.contains("Wrote 6 tokens, "), "{shown}");
    assert!(words.contains(" tokens a second: ") && words.contains("With an f16 cache "), "{shown}");
    assert!(words.contains(" in the cache and ") && words.contains(" in the model's weights"), "{shown}");
    // All of them are exact: nothing is said of a rate.
    assert!(words.contains("The cache holds 14 tokens in 7.2 kB, as f16 would: no page"), "{shown}");
    assert!(!words.contains("x smaller"), "{shown}");
    let json = json(&folder.join("out.json"));
    assert_eq!(json["written"], 6);
    assert_eq!(json["tokens"], json!({"prompt": tokens[..8], "written": tokens[8..]}));
    assert_eq!(json["growth"][1]["tokens"], 14);
    assert_eq!(json["growth"][1]["kv_bytes"], json["growth"][1]["kv_bytes_f16"]);
    assert!(json["time_f16"]["ms_per_token"].as_f64().unwrap() > 0.0);
}

/// A prompt that closes pages prints the saving. The default codecs are the recommended ones.
#[test]
fn a_long_prompt_shows_the_saving() {
    let (folder, _) = model("saving", "qwen2");
    let (json, _) = generate(&folder, "600", &["--new", "3"]);
    assert_eq!((&json["k"], &json["v"]), (&"trellis".into(), &"trellis".into())); // a width without grades
    let shown = succeeds(&folder, &[&["generate"], &MODEL[..], &["--tokens", "600", "--new", "3"]].concat());
    let size = json["growth"].as_array().unwrap().last().unwrap();
    let of = |name: &str| size[name].as_f64().unwrap();
    let (bytes, f16) = (of("kv_bytes"), of("kv_bytes_f16"));
    let bits = format!("That is {:.2} bits a value. In pages it is 3.", 16.0 * bytes / f16);
    assert!(shown.replace('\n', " ").contains(&bits), "{bits}: {shown}");
    let expected = format!(
        "The cache holds 603 tokens in {:.1} kB: {:.1}x smaller than f16, which takes {:.1} kB.",
        bytes / 1e3,
        f16 / bytes,
        f16 / 1e3
    );
    assert!(shown.replace('\n', " ").contains(&expected) && f16 / bytes > 2.0, "{expected}: {shown}");
    assert!(shown.contains("keys trellis:bits=3, centred"), "{shown}");
    let (json, _) = generate(&folder, "200", &["--new", "1", "--v", "int"]);
    assert_eq!((&json["k"], &json["v"]), (&"trellis".into(), &"int".into()));
}

/// `capture` writes the inputs of the model's attention, and `compare` reads them.
#[test]
fn a_capture_is_what_compare_reads() {
    let (folder, tiny) = model("capture", "llama");
    let capture = ["capture", "--model", "tiny.gguf", "--text", "text.txt", "--out", "kv.safetensors"];
    let shown = succeeds(&folder, &[&capture[..], &["--tokens", "200", "--queries", "10"]].concat());
    assert!(shown.contains("layers 0, 1, 200 tokens, 10 queries of each query head; "), "{shown}");
    assert!(shown.contains("Next: octaplex compare --input kv.safetensors"), "{shown}");
    let compare = ["compare", "--input", "kv.safetensors", "--json", "rows.json", "--codecs"];
    let shown = succeeds(&folder, &[&compare[..], &["f32; trellis:bits=2; trellis:bits=4"]].concat());
    assert!(shown.contains("4 key/value heads of 200 tokens, width 32"), "{shown}");
    assert!(shown.replace('\n', " ").contains("text: text.txt, layers: 0, 1"), "{shown}");
    assert!(shown.contains("Next: octaplex compare --cache --input kv.safetensors --k trellis"), "{shown}");
    let rows = json(&folder.join("rows.json"))["rows"].as_array().unwrap().clone();
    assert!(rows.iter().all(|row| row["attention_kl"].is_f64()));
    // All of it is the oracle's.
    let file = std::fs::read(folder.join("kv.safetensors")).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    assert_eq!((&header["k"]["shape"], &header["k"]["dtype"]), (&json!([2, 2, 200, 32]), &"F32".into()));
    assert_eq!(header["q"]["shape"][2], 10);
    let tensor = |name: &str| {
        let offsets = &header[name]["data_offsets"];
        let [start, end] = [0, 1].map(|i| 8 + length + offsets[i].as_u64().unwrap() as usize);
        file[start..end].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>()
    };
    let positions: Vec<i32> = tensor("q_pos").iter().map(|bits| bits.to_bits() as i32).collect();
    assert_eq!(positions, [19, 39, 59, 79, 99, 119, 139, 159, 179, 199]);
    let positions: Vec<usize> = positions.iter().map(|&position| position as usize).collect();
    let (_, layers) = tiny.run(&text(200));
    let all: Vec<usize> = (0..200).collect();
    for (part, name, heads, rows) in [(0, "k", 2, &all), (1, "v", 2, &all), (2, "q", 4, &positions)] {
        let found = tensor(name);
        for (layer, oracle) in layers.iter().enumerate() {
            for head in 0..heads {
                for (row, &token) in rows.iter().enumerate() {
                    let own = &found[((layer * heads + head) * rows.len() + row) * 32..][..32];
                    let exact = &oracle[part][token][head * 32..][..32];
                    let close = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() < 1e-3 * (1.0 + b.abs());
                    assert!(
                        own.iter().zip(exact).all(close),
                        "{name}, layer {layer}, head {head}, token {token}"
                    );
                }
            }
        }
    }
    // One layer, all of a short text; and impossible options.
    std::fs::write(folder.join("text.txt"), text(30)).unwrap();
    let shown = succeeds(&folder, &[&capture[..], &["--layers", "1"]].concat());
    assert!(shown.contains("layers 1, 30 tokens, 30 queries"), "{shown}");
    std::fs::write(folder.join("text.txt"), text(200)).unwrap();
    assert!(succeeds(&folder, &capture).contains("layers 0, 1, 192 tokens, 64 queries")); // whole pages
    std::fs::write(folder.join("text.txt"), text(30)).unwrap();
    fails(&folder, &[&capture[..], &["--layers", "2"]].concat(), &["layer 2 is out of range (0..2)"]);
    fails(&folder, &[&capture[..], &["--tokens", "31"]].concat(), &["30 tokens, but 31"]);
    fails(&folder, &[&capture[..], &["--queries", "0"]].concat(), &["--queries"]);
    std::fs::write(folder.join("text.txt"), "").unwrap();
    fails(&folder, &capture, &["text.txt", "no token"]);
    let elsewhere = [&capture[..6], &["no/kv.safetensors"]].concat();
    fails(&folder, &elsewhere, &["no/kv.safetensors"]);
}

/// Runs `generate` on the first tokens of text.txt. Returns its figures and its text.
fn generate(folder: &Path, tokens: &str, more: &[&str]) -> (Value, String) {
    let options = ["--tokens", tokens, "--json", "out.json"];
    let shown = succeeds(folder, &[&["generate"], &MODEL[..], &options, more].concat());
    let written = shown.split("\n\nTiny (").next().unwrap().to_owned();
    (json(&folder.join("out.json")), written + shown.split("\nsession: ").nth(1).unwrap_or(""))
}

const SESSION: [&str; 2] = ["--session", "a.session"];

#[test]
fn a_session_goes_on_where_it_stopped() {
    for codec in ["f16", "turboquant"] {
        let (folder, _) = model(&format!("session_{codec}"), "qwen2");
        let codecs = ["--k", codec, "--v", codec, "--new"];
        let options = |new: &'static str| [&codecs[..], &[new], &SESSION].concat();
        let fresh = |tokens| generate(&folder, tokens, &[&codecs[..], &["6"]].concat());
        let counts =
            |json: &Value| ["tokens_kept", "tokens_read"].map(|name| json["session"][name].as_u64().unwrap());
        let (json, shown) = generate(&folder, "300", &options("0"));
        assert_eq!(counts(&json), [0, 300]);
        assert!(shown.contains("new; ") && shown.contains("all 300: ") && shown.contains("this was one"));
        // Only the rest is computed, and the output equals that without a session.
        let (json, shown) = generate(&folder, "320", &[&options("6")[..], &["--beside-fresh"]].concat());
        assert_eq!(counts(&json), [300, 20], "{shown}");
        assert!(
            shown.contains("300 of 300 saved tokens taken over; ") && shown.contains("measured"),
            "{shown}"
        );
        let (expected, text) = fresh("320");
        assert!(shown.starts_with(&text) && text.len() > 2, "{shown:?} {text:?}");
        assert_eq!(json["growth"], expected["growth"]);
        let [first, fresh_prefill] = ["seconds_to_first_token", "seconds_of_a_fresh_prefill"]
            .map(|name| json["session"][name].as_f64().unwrap());
        assert!(first > 0.0 && fresh_prefill > 0.0, "{json}");
        let saved = std::fs::read(folder.join("a.session")).unwrap();
        assert_eq!(json["session"]["bytes"], saved.len());
        assert!(
            codec == "f16" || saved.len() < json["growth"][1]["kv_bytes"].as_u64().unwrap() as usize + 4000
        );
        // A prompt that ends before the saved tokens: its last one is computed, for its logits.
        let (json, shown) = generate(&folder, "320", &options("6"));
        assert_eq!(counts(&json), [319, 1], "{shown}");
        assert!(shown.contains("the prompt ends before the others"), "{shown}");
        assert!(codec != "f16" || shown.starts_with(&text), "{shown}"); // the page at 260 stays closed
        assert!(shown.contains("estimated: the session's longest, 300 tokens"), "{shown}");
        // Another text from its token 201 on: three pages lie before that, behind four sinks.
        let mut other = std::fs::read(folder.join("text.txt")).unwrap();
        other[200..].rotate_left(7);
        std::fs::write(folder.join("text.txt"), &other).unwrap();
        let (json, shown) = generate(&folder, "320", &options("6"));
        assert_eq!(counts(&json), [4 + 3 * 64, 320 - 4 - 3 * 64], "{shown}");
        assert!(shown.contains("the prompt differs from its token 201 on"), "{shown}");
        let (expected, text) = fresh("320");
        assert!(codec != "f16" || shown.starts_with(&text), "{shown:?} {text:?}");
        assert_eq!(json["growth"], expected["growth"]);
        // And from its 61st: no page is left, and other tokens decide the balance.
        other[60..].rotate_left(7);
        std::fs::write(folder.join("text.txt"), &other).unwrap();
        let (json, shown) = generate(&folder, "320", &options("6"));
        assert_eq!(counts(&json), [0, 320]);
        assert!(shown.contains("token 61 on; all computed anew: no page"), "{shown}");
        assert!(shown.starts_with(&fresh("320").1), "{shown}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 4); // model, text, figures, session
    }
}

/// Tokens that a sliding window has dropped are gone: everything is computed anew, and the tool says so.
#[test]
fn a_session_of_local_layers_is_cut_or_computed_anew() {
    let (folder, _) = model("session_local", "gemma3");
    generate(&folder, "400", &[&["--new", "0"], &SESSION[..]].concat());
    let (json, shown) = generate(&folder, "150", &[&["--new", "5"], &SESSION[..]].concat());
    assert!(shown.contains("all computed anew: a sliding window has dropped"), "{shown}");
    assert_eq!(json["session"]["tokens_read"], 150);
    assert!(shown.starts_with(&generate(&folder, "150", &["--new", "5"]).1));
    let (json, _) = generate(&folder, "170", &[&["--new", "5"], &SESSION[..]].concat());
    assert_eq!(json["session"]["tokens_kept"], 150);
}

#[test]
fn sessions_of_other_runs_are_refused_and_stay() {
    let (folder, _) = model("session_refused", "qwen2");
    let path = folder.join("a.session");
    let run = ["--model", "tiny.gguf", "--text", "text.txt", "--tokens", "200", "--new", "2"];
    let run = [&["generate"], &run[..], &SESSION].concat();
    succeeds(&folder, &run);
    let saved = std::fs::read(&path).unwrap();
    let refused = |more: &[&str], words: &[&str]| {
        let before = std::fs::read(&path).unwrap();
        let words = [words, &["a.session", "name another file", "delete this one"]].concat();
        fails(&folder, &[&run, more].concat(), &words);
        assert_eq!(std::fs::read(&path).unwrap(), before);
    };
    refused(&["--k", "turboquant:bits=3"], &["k \"trellis\" and not \"turboquant:bits=3\""]);
    refused(&["--v", "turboquant:seed=5"], &["v \"trellis\" and not \"turboquant:seed=5\""]);
    refused(&["--page", "128", "--sinks", "0"], &["page 64 and not 128", "sinks 4 and not 0"]);
    Tiny::new("qwen2", 8).write(&folder.join("tiny.gguf")); // the same sizes
    refused(&[], &["another run, with weights "]);
    Tiny::new("qwen2", 7).write(&folder.join("tiny.gguf"));
    let mut newer = saved.clone();
    newer[8] += 1;
    std::fs::write(&path, newer).unwrap();
    refused(&[], &["a session of version 2, and this program knows 1"]);
    for length in [8, 12, 16, 30, 200, saved.len() - 1] {
        std::fs::write(&path, &saved[..length]).unwrap();
        refused(&[], &["a damaged session"]);
    }
    std::fs::write(&path, b"a text that someone wrote").unwrap();
    refused(&[], &["not a session of octaplex generate"]);
    std::fs::write(&path, b"").unwrap();
    refused(&[], &["not a session of octaplex generate"]);
    fails(&folder, &[&run[..9], &["--session", "-"]].concat(), &["a session is a file"]);
    fails(&folder, &[&run[..9], &["--session", "."]].concat(), &["is a folder"]);
    // Bytes changed at random with the checksum that belongs to them: an error or a result, never a panic.
    let mut state = 7u64;
    for round in 0..60 {
        let mut damaged = saved.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let reach = if round % 2 == 0 { 1000 } else { saved.len() - 16 }; // the head, or anything
            damaged[16 + (state >> 33) as usize % reach] ^= 1 << (state & 7);
        }
        let checksum = crc32(&damaged[16..]);
        damaged[12..16].copy_from_slice(&checksum.to_le_bytes());
        std::fs::write(&path, damaged).unwrap();
        let output = octaplex(&folder, &run);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 2)), "{errors}");
    }
    assert_eq!(crc32(&saved[16..]).to_le_bytes(), saved[12..16]);
}

/// Of the polynomial of zip files, a bit at a time.
fn crc32(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    });
    !crc
}

#[test]
fn a_killed_run_leaves_the_session_of_the_last() {
    let (folder, _) = model("session_killed", "qwen2");
    let run =
        |tokens, new| [&["generate"], &MODEL[..], &["--tokens", tokens, "--new", new], &SESSION].concat();
    succeeds(&folder, &run("200", "2"));
    // Another file in the place of the old one, not the old one written over.
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let file = || std::fs::metadata(folder.join("a.session")).unwrap().ino();
        let before = file();
        succeeds(&folder, &run("200", "2"));
        assert_ne!(file(), before);
    }
    let saved = std::fs::read(folder.join("a.session")).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_octaplex"));
    let command = command.current_dir(&folder).args(run("200", "3000")).stdout(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(std::fs::read(folder.join("a.session")).unwrap(), saved);
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
        let files = ["--svg", "plot.svg", "--csv", "rows.csv"];
        let options = [&options[..], &files].concat();
        succeeds(&folder, &[&["sweep"], &MODEL[..], &options].concat())
    };
    let rows = || std::fs::read_to_string(folder.join("octaplex-sweep.jsonl")).unwrap();
    sweep("f16; turboquant:bits=2");
    let first = rows();
    assert_eq!(first.lines().count(), 3);
    // The file after an interruption.
    std::fs::write(folder.join("octaplex-sweep.jsonl"), first.clone() + "{\"k\":\"trel").unwrap();
    let shown = sweep("f16; turboquant:bits=2; trellis/turboquant:bits=5");
    let second = rows();
    assert!(second.starts_with(&first) && second.lines().count() == 5, "{second}");
    let parsed = second.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    assert_eq!(parsed.filter(|row| row["kl_mean"].is_f64()).count(), 5);
    assert!(shown.contains("trellis/turboquant:bits=5") && shown.contains("balanced"), "{shown}");
    let plot = std::fs::read_to_string(folder.join("plot.svg")).unwrap();
    assert!(
        plot.contains(">trellis/turboquant:bits=5</text>")
            && plot.contains("xmlns")
            && plot.contains("balanced")
    );
    assert!(plot.contains(">hollow: keys as they are"), "{plot}");
    let csv = std::fs::read_to_string(folder.join("rows.csv")).unwrap();
    assert!(csv.starts_with("keys,values,prepared,bits,") && csv.lines().count() == 6, "{csv}");
    // Kept rows are drawn again without a measurement.
    std::fs::remove_file(folder.join("plot.svg")).unwrap();
    sweep("f16; turboquant:bits=2; trellis/turboquant:bits=5");
    assert_eq!(std::fs::read_to_string(folder.join("plot.svg")).unwrap(), plot);
    assert_eq!(rows(), second);
}

#[test]
fn a_calibration_goes_on_where_it_stopped() {
    let (folder, _) = model("calibrate", "qwen2");
    let calibrate =
        |out| [&["calibrate"], &MODEL[..], &["--tokens", "300", "--windows", "2", "--out", out]].concat();
    let shown = succeeds(&folder, &calibrate("a.octaprofile"));
    assert!(shown.contains("Checked at 2.5 bits on the 300 tokens that follow: KL 0."), "{shown}");
    assert!(shown.contains("expected KL") && shown.contains("▇") && shown.contains("   1  "), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let profile: octaplex::Profile = read("a.octaprofile").parse().unwrap();
    assert_eq!((profile.layers(), profile.kv_heads(), profile.key_dim()), (2, 2, 32));
    assert!(profile.sensitivities().flatten().all(|kl| kl > 0.0), "{}", read("a.octaprofile"));
    assert!(!folder.join("a.octaprofile.part").exists());

    // Killed after a few results, and once more in the middle of a line.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_octaplex"));
    let mut child = command.current_dir(&folder).args(calibrate("b.octaprofile")).spawn().unwrap();
    let part = folder.join("b.octaprofile.part");
    let lines = || std::fs::read_to_string(&part).unwrap_or_default().lines().count();
    while lines() < 3 && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let _ = child.kill();
    child.wait().unwrap();
    if part.exists() {
        let kept = std::fs::read_to_string(&part).unwrap();
        std::fs::write(&part, kept.clone() + "{\"kl\":0.0").unwrap();
        succeeds(&folder, &calibrate("b.octaprofile"));
        assert_eq!(read("b.octaprofile"), read("a.octaprofile"));
        // Stored results are used as they are: a result that no model gives changes the profile.
        let (first, rest) = kept.split_once(",\"run\"").unwrap();
        std::fs::write(folder.join("c.octaprofile.part"), format!("{{\"kl\":9.0,\"run\"{rest}")).unwrap();
        assert!(first.starts_with("{\"kl\":"), "{first}");
        succeeds(&folder, &calibrate("c.octaprofile"));
        assert_ne!(read("c.octaprofile"), read("a.octaprofile"));
    }
    fails(&folder, &[&calibrate("d"), &["--windows", "9"][..]].concat(), &["cannot be used multiple times"]);
    let short = ["calibrate", MODEL[0], MODEL[1], MODEL[2], MODEL[3], "--tokens", "120", "--out", "d"];
    fails(&folder, &short, &["--tokens 120", "no page closes"]);
    assert!(!folder.join("d").exists());
}

#[test]
fn a_profile_spends_the_budget() {
    let (folder, _) = model("profile", "qwen2");
    succeeds(&folder, &[&["calibrate"], &MODEL[..], &["--tokens", "300", "--out", "a.octaprofile"]].concat());
    let by = |command: &'static str, more: &[&'static str]| [&[command], &MODEL[..], more].concat();
    let budget = ["--tokens", "300", "--budget", "2.6", "--json", "out.json"];
    let profile = [&budget[..], &["--profile", "a.octaprofile"]].concat();
    let shown = succeeds(&folder, &by("perplexity", &profile));
    assert!(shown.contains(" in 1 layer") || shown.contains(" in 2 layers"), "{shown}");
    let found = json(&folder.join("out.json"));
    assert_eq!(found["layers"].as_array().unwrap().len(), 2, "{found}");
    assert!(found["bits_per_value_pages"].as_f64().unwrap() <= 2.6, "{found}");
    succeeds(&folder, &by("generate", &[&profile[..], &["--new", "3"]].concat()));
    succeeds(&folder, &by("needle", &profile));
    let sweep =
        ["--tokens", "300", "--windows", "1", "--keys", "balanced", "--codecs", "2.6; trellis:bits=2"];
    let shown = succeeds(&folder, &by("sweep", &[&sweep[..], &["--profile", "a.octaprofile"]].concat()));
    assert!(shown.contains("2.6 by profile ") && shown.contains("trellis:bits=2 "), "{shown}");

    fails(&folder, &by("perplexity", &["--profile", "a.octaprofile"]), &["--budget"]);
    let text = std::fs::read_to_string(folder.join("a.octaprofile")).unwrap();
    std::fs::write(folder.join("cut"), &text[..text.len() / 2]).unwrap();
    fails(
        &folder,
        &by("perplexity", &[&budget[..], &["--profile", "cut"]].concat()),
        &["cut: profile, line "],
    );
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/../profiles/smollm2-135m.octaprofile");
    fails(
        &folder,
        &by("perplexity", &[&budget[..], &["--profile", other]].concat()),
        &["another model", "30 layers"],
    );
}

/// The README's command, which names no codecs. Codecs that do not suit the model's width are left out and listed.
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
    let asked =
        [&["sweep"], &MODEL[..], &options, &["--codecs", "trellis:bits=3; q4_0:rotate=keys"]].concat();
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
    perplexity(
        "tiny.gguf",
        &["--windows", "4"],
        &["text.txt: 900 tokens, but 1200 are needed", "--tokens or --windows"],
    );
    perplexity("tiny.gguf", &["--windows", "0"], &["at least one window"]);
    perplexity("tiny.gguf", &["--k", "trelis"], &["trelis", "did you mean trellis?", "no such codec"]);
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

/// Attention on a GPU is near the CPU's. Without a GPU, the tool says what is missing before it reads a model.
#[test]
fn attention_on_a_gpu() {
    let (folder, _) = model("gpu", "qwen2");
    Tiny::of_width("qwen2", 7, 64).write(&folder.join("tiny.gguf"));
    let options = ["--tokens", "300", "--windows", "2", "--k", "turboquant", "--v", "trellis", "--json"];
    let on = |device, file| [&["perplexity"], &MODEL[..], &options, &[file, "--device", device]].concat();
    let is_required = |device: &str| {
        std::env::var("OCTAPLEX_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == device))
    };
    let mut skipped = Vec::new();
    for device in ["cuda", "hip"] {
        let output = octaplex(&folder, &on(device, "gpu.json"));
        if !output.status.success() {
            let error = String::from_utf8(output.stderr).unwrap();
            let start = format!("octaplex: --device {device}: ");
            assert!(!is_required(device) && error.starts_with(&start), "{error}");
            assert_eq!((error.lines().count(), output.status.code()), (1, Some(2)), "{error}");
            println!("skipped: {error}");
            skipped.push(device);
            continue;
        }
        succeeds(&folder, &on("cpu", "cpu.json"));
        let [gpu, cpu] = ["gpu.json", "cpu.json"].map(|file| json(&folder.join(file)));
        assert_eq!(
            (gpu["device"].as_str(), gpu["kv_bytes"].as_u64()),
            (Some(device), cpu["kv_bytes"].as_u64())
        );
        let of = |json: &Value, name: &str| json[name].as_f64().unwrap();
        // The CPU rounds queries to 8 bits, the GPU to 16, and blocks of them to f16.
        assert!((of(&gpu, "perplexity") / of(&cpu, "perplexity") - 1.0).abs() < 2e-3, "{gpu}, {cpu}");
        assert!((of(&gpu, "kl_mean") / of(&cpu, "kl_mean") - 1.0).abs() < 0.2, "{gpu}, {cpu}");
        assert_eq!(of(&gpu, "perplexity_f16"), of(&cpu, "perplexity_f16"));
    }
    std::fs::remove_file(folder.join("tiny.gguf")).unwrap();
    for device in skipped {
        fails(&folder, &on(device, "gpu.json"), &[&format!("--device {device}: ")]);
    }
}
