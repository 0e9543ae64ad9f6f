//! Files that other programs read otherwise, or not at all: read as llama.cpp does, or refused in words.

use crate::common::{fails, folder, succeeds};
use crate::tiny::{Scaling, Tiny, text};
use crate::{json, text as letters};
use std::path::{Path, PathBuf};

/// A file with a change, and the folder that it is in.
fn changed(name: &str, architecture: &'static str, change: impl FnOnce(&mut Tiny)) -> PathBuf {
    let (folder, mut tiny) = (folder(name), Tiny::new(architecture, 7));
    change(&mut tiny);
    tiny.write(&folder.join("tiny.gguf"));
    std::fs::write(folder.join("text.txt"), letters(400)).unwrap();
    folder
}

const RUN: [&str; 7] = ["perplexity", "--model", "tiny.gguf", "--text", "text.txt", "--tokens", "200"];

/// The file is refused with these words, in one line that no file makes long.
fn refused(folder: &Path, words: &[&str]) {
    fails(folder, &RUN, &[&["tiny.gguf: "], words].concat());
}

/// The perplexity with an f16 cache.
fn perplexity(folder: &Path, model: &str) -> f64 {
    let run = ["perplexity", "--model", model, "--text", "text.txt", "--tokens", "200", "--json", "out.json"];
    succeeds(folder, &[&run[..], &["--k", "f16", "--v", "f16"]].concat());
    json(&folder.join("out.json"))["perplexity"].as_f64().unwrap()
}

const U32: u32 = 4;
const F32: u32 = 6;
const TEXT: u32 = 8;
const LIST: u32 = 9;

fn u32(value: u32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn f32(value: f32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn counts(values: &[u32]) -> Vec<u8> {
    [
        &u32(U32)[..],
        &(values.len() as u64).to_le_bytes(),
        &values.iter().flat_map(|n| u32(*n)).collect::<Vec<_>>(),
    ]
    .concat()
}

#[test]
fn alignments_are_powers_of_two() {
    for (kind, value) in [(U32, u32(0)), (U32, u32(48)), (TEXT, text("32")), (0, vec![32])] {
        let folder =
            changed("alignment", "llama", |tiny| tiny.also = vec![("general.alignment", kind, value)]);
        refused(&folder, &["general.alignment is not a power of two"]);
    }
    let folder = changed("alignment", "llama", |tiny| tiny.also = vec![("general.alignment", U32, u32(32))]);
    perplexity(&folder, "tiny.gguf");
}

#[test]
fn tensors_that_overlap_are_refused() {
    let folder = changed("overlap", "llama", |_| ());
    let mut bytes = std::fs::read(folder.join("tiny.gguf")).unwrap();
    let name = text("blk.1.ffn_up.weight");
    let at = bytes.windows(name.len()).position(|part| part == name).unwrap() + name.len() + 4 + 2 * 8 + 4;
    let offset = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) - 32;
    bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
    std::fs::write(folder.join("tiny.gguf"), &bytes).unwrap();
    refused(&folder, &["blk.1.ffn_gate.weight and blk.1.ffn_up.weight overlap"]);
}

#[test]
fn versions_and_lists_that_are_not_read_are_named() {
    let folder = changed("versions", "llama", |_| ());
    let mut bytes = std::fs::read(folder.join("tiny.gguf")).unwrap();
    for (version, words) in [(1, "version 1; 2 and 3 are"), (4, "version 4"), (3 << 24, "big-endian machine")]
    {
        bytes[4..8].copy_from_slice(&u32(version));
        std::fs::write(folder.join("tiny.gguf"), &bytes).unwrap();
        refused(&folder, &[words]);
    }
    let many = [&u32(0)[..], &5_000_000u64.to_le_bytes(), &vec![0; 5_000_000]].concat();
    let folder = changed("versions", "llama", |tiny| tiny.also = vec![("general.tags", LIST, many)]);
    refused(&folder, &["4194304 items in lists, general.tags among them"]);
    let folder = changed("versions", "llama", |tiny| tiny.also = vec![("general.tags", 13, vec![0])]);
    refused(&folder, &["general.tags has values of type 13"]);
}

#[test]
fn what_is_there_twice_is_refused() {
    let folder = changed("twice", "llama", |tiny| tiny.add_vector("output_norm.weight", 64));
    refused(&folder, &["it has the tensor output_norm.weight twice"]);
    let twice = ("general.author", TEXT, text("x"));
    let folder = changed("twice", "llama", |tiny| tiny.also = vec![twice.clone(), twice]);
    refused(&folder, &["it says general.author twice"]);
}

#[test]
fn tensors_that_nothing_reads_are_refused() {
    for (architecture, name) in [
        ("llama", "blk.0.attn_sinks.weight"),
        ("llama", "blk.2.attn_norm.weight"),
        ("llama", "blk.0.attn_q_norm.weight"),
        ("qwen2", "blk.1.post_ffw_norm.weight"),
    ] {
        let folder = changed("unread", architecture, |tiny| tiny.add_vector(name, 32));
        refused(&folder, &[&format!("a tensor that {architecture} does not have, {name}")]);
    }
    // A tensor that early files have, and that nothing reads.
    let folder = changed("unread", "llama", |tiny| tiny.add_vector("blk.0.attn_rot_embd.weight", 32));
    perplexity(&folder, "tiny.gguf");
}

#[test]
fn entries_of_another_type_are_not_left_out() {
    let number = |value: f32| (F32, f32(value));
    for (name, (kind, value), word) in [
        ("llama.attention.head_count_kv", number(2.0), "is not a count"),
        ("llama.attention.value_length", (TEXT, text("32")), "is not a count"),
        ("llama.rope.dimension_count", (5, (-32i32).to_le_bytes().to_vec()), "is not a count"),
        ("llama.expert_count", (7, vec![1]), "is not a count"),
        ("llama.rope.freq_base", (U32, u32(10000)), "is not a number"),
        ("llama.rope.scaling.type", (U32, u32(0)), "is not a text"),
        ("tokenizer.ggml.pre", (U32, u32(0)), "is not a text"),
        ("tokenizer.ggml.bos_token_id", number(1.0), "is not a count"),
        ("tokenizer.ggml.add_bos_token", (U32, u32(1)), "is not true or false"),
    ] {
        let folder = changed("types", "llama", |tiny| tiny.also = vec![(name, kind, value)]);
        refused(&folder, &[&format!("{name} {word}")]);
    }
    // Integers of other widths, and lists of equal ones, have the same meaning.
    let exact = perplexity(&changed("types", "llama", |_| ()), "tiny.gguf");
    for (kind, value) in [(11, 2i64.to_le_bytes().to_vec()), (1, vec![2]), (LIST, counts(&[2, 2]))] {
        let also = vec![("llama.attention.head_count_kv", kind, value)];
        let folder = changed("types", "llama", |tiny| tiny.also = also);
        assert_eq!(perplexity(&folder, "tiny.gguf"), exact);
    }
}

#[test]
fn layers_that_differ_are_named() {
    for (list, words) in [
        (&[2, 1][..], "head_count_kv differs between layers, which is not supported"),
        (&[2, 2, 2], "head_count_kv has 3 counts for 2 layers"),
        (&[], "head_count_kv has 0 counts for 2 layers"),
        (&[0, 0], "head_count_kv is 0"),
    ] {
        let also = vec![("llama.attention.head_count_kv", LIST, counts(list))];
        let folder = changed("differ", "llama", |tiny| tiny.also = also);
        refused(&folder, &[words]);
    }
}

#[test]
fn other_families_are_refused_by_name() {
    let with = |architecture, name, kind, value| {
        changed("families", architecture, |tiny| tiny.also = vec![(name, kind, value)])
    };
    let folder = with("qwen3moe", "qwen3moe.expert_count", U32, u32(128));
    refused(&folder, &["\"qwen3moe\" is a mixture of experts", "llama, qwen2, qwen3, gemma3"]);
    refused(&with("llama", "llama.expert_count", U32, u32(8)), &["\"llama\" is a mixture of experts"]);
    let folder = with("falcon-h1", "falcon-h1.ssm.state_size", U32, u32(128));
    refused(&folder, &["\"falcon-h1\" has recurrent layers, alone or with attention"]);
    refused(&with("rwkv7", "rwkv7.wkv.head_size", U32, u32(64)), &["\"rwkv7\" has recurrent layers"]);
    refused(&with("phi3", "phi3.vocab_size", U32, u32(64)), &["unknown architecture \"phi3\""]);
    refused(&with("llama", "llama.attention.causal", 7, vec![0]), &["tokens see those after them"]);
    let name = "gemma3.final_logit_softcapping";
    refused(&with("gemma3", name, F32, f32(30.0)), &["final_logit_softcapping is 30"]);
    perplexity(&with("gemma3", name, F32, f32(0.0)), "tiny.gguf");
    perplexity(&with("llama", "llama.expert_count", U32, u32(0)), "tiny.gguf");
}

/// Positions are stretched as the file says: linearly where it has no type.
#[test]
fn positions_are_scaled() {
    let kind = |name: &'static str| ("llama.rope.scaling.type", TEXT, text(name));
    let factor = ("llama.rope.scaling.factor", F32, f32(4.0));
    let older = ("llama.rope.scale_linear", F32, f32(4.0));
    let context = ("llama.rope.scaling.original_context_length", U32, u32(1024));
    let plain = Scaling::Linear(1.0);
    let mut seen = Vec::new();
    for (also, scaling) in [
        (vec![], plain),
        (vec![factor.clone()], Scaling::Linear(4.0)),
        (vec![older.clone()], Scaling::Linear(4.0)),
        (vec![kind("linear"), factor.clone()], Scaling::Linear(4.0)),
        (vec![("llama.rope.scaling.factor", F32, f32(2.0)), older], Scaling::Linear(2.0)),
        (vec![("llama.rope.scaling.factor", F32, f32(0.0))], plain),
        (vec![kind("none"), factor.clone()], plain),
        (vec![kind("yarn"), factor.clone(), context], Scaling::Yarn(4.0, 1024.0)),
        (vec![kind("yarn"), factor.clone()], Scaling::Yarn(4.0, 4096.0)),
    ] {
        let (folder, mut tiny) = (folder("scaled"), Tiny::new("llama", 7));
        (tiny.also, tiny.scaling) = (also, scaling);
        tiny.write(&folder.join("tiny.gguf"));
        std::fs::write(folder.join("text.txt"), letters(400)).unwrap();
        let (found, exact) = (perplexity(&folder, "tiny.gguf"), tiny.perplexity(&letters(200)));
        assert!((found / exact - 1.0).abs() < 1e-3, "{:?}: {found} {exact}", tiny.also);
        seen.push(exact);
    }
    // The oracle tells these apart.
    for (first, second) in [(0, 1), (1, 4), (1, 7), (7, 8)] {
        assert!((seen[first] / seen[second] - 1.0).abs() > 3e-3, "{seen:?}");
    }
    for (also, words) in [
        (vec![kind("longrope"), factor.clone()], "scaled by \"longrope\", which is not supported; linear"),
        (
            vec![("llama.rope.scaling.yarn_log_multiplier", F32, f32(0.1))],
            "yarn_log_multiplier, which is not",
        ),
    ] {
        refused(&changed("scaled", "llama", |tiny| tiny.also = also), &[words]);
    }
}

/// Gemma's global layers alone are scaled; the largest one divides scores by another root.
#[test]
fn gemma_scales_its_global_layers() {
    for (layers, factor) in [(7, 8.0), (62, 1.0)] {
        let (folder, mut tiny) = (folder("gemma"), Tiny::of_layers("gemma3", 7, 32, layers));
        tiny.scaling = Scaling::Linear(factor);
        tiny.also = vec![
            ("gemma3.rope.scaling.type", TEXT, text("linear")),
            ("gemma3.rope.scaling.factor", F32, f32(factor as f32)),
        ];
        tiny.write(&folder.join("tiny.gguf"));
        std::fs::write(folder.join("text.txt"), letters(400)).unwrap();
        let (found, exact) = (perplexity(&folder, "tiny.gguf"), tiny.perplexity(&letters(200)));
        assert!((found / exact - 1.0).abs() < 1e-3, "{layers} layers: {found} {exact}");
    }
}

#[test]
fn models_in_several_files_are_read() {
    let (folder, mut tiny) = (folder("split"), Tiny::new("llama", 7));
    std::fs::write(folder.join("text.txt"), letters(400)).unwrap();
    tiny.write(&folder.join("tiny.gguf"));
    let exact = perplexity(&folder, "tiny.gguf");
    tiny.write_split(&folder, "tiny");
    let [first, second] = ["tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf"];
    assert_eq!(perplexity(&folder, first), exact);
    let run = |model| ["perplexity", "--model", model, "--text", "text.txt"];
    fails(&folder, &run(second), &[second, "file 2 of a model in 2; give the first", "-00001-of-00002.gguf"]);
    std::fs::copy(folder.join(first), folder.join("other.gguf")).unwrap();
    fails(&folder, &run("other.gguf"), &["file 1 of a model in 2", "-00001-of-00002.gguf"]);
    std::fs::copy(folder.join(first), folder.join(second)).unwrap();
    fails(&folder, &run(first), &[second, "not file 2 of the model in "]);
    std::fs::remove_file(folder.join(second)).unwrap();
    fails(&folder, &run(first), &[second, "no such file"]);
}

/// The tokens of a prompt.
fn tokens(folder: &Path, prompt: &str) -> Vec<u64> {
    let run = ["generate", "--model", "tiny.gguf", "--prompt", prompt, "--new", "0", "--json", "out.json"];
    succeeds(folder, &run);
    let json = json(&folder.join("out.json"));
    json["tokens"]["prompt"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect()
}

#[test]
fn llama_3_begins_its_texts_and_takes_whole_words() {
    let with = |also| changed("llama3", "qwen3", |tiny| tiny.also = also); // cuts words as Llama 3 does
    let begin = ("tokenizer.ggml.bos_token_id", U32, u32(257));
    let add = |add| ("tokenizer.ggml.add_bos_token", 7, vec![add]);
    assert_eq!(tokens(&with(vec![]), "he"), [104, 101]);
    assert_eq!(tokens(&with(vec![begin.clone()]), "he"), [257, 104, 101]);
    assert_eq!(tokens(&with(vec![begin.clone(), add(1)]), "he"), [257, 104, 101]);
    assert_eq!(tokens(&with(vec![begin.clone(), add(0)]), "he"), [104, 101]);
    // Others begin their texts where the file says so.
    let with = |also| changed("llama3", "llama", |tiny| tiny.also = also);
    assert_eq!(tokens(&with(vec![begin.clone()]), "he"), [104, 101]);
    assert_eq!(tokens(&with(vec![begin, add(1)]), "he"), [257, 104, 101]);
    refused(&with(vec![add(1)]), &["no tokenizer.ggml.bos_token_id"]);
    let beyond = ("tokenizer.ggml.bos_token_id", U32, u32(258));
    refused(&with(vec![beyond, add(1)]), &["bos_token_id is 258, of 258 tokens"]);
    // Without a merge that leads to it, QZ is a word of Llama 3 alone.
    let merges = [&u32(TEXT)[..], &1u64.to_le_bytes(), &text("a b")].concat();
    let tokens_of = |architecture| {
        let folder = changed("llama3", architecture, |tiny| {
            tiny.set_token(257, "ab"); // what the merge needs
            tiny.also = vec![("tokenizer.ggml.merges", LIST, merges.clone())];
        });
        tokens(&folder, "QZ")
    };
    assert_eq!((tokens_of("qwen3"), tokens_of("llama")), (vec![256], vec![81, 90]));
}

/// Weights that make no sense are an error, and no agreement.
#[test]
fn values_that_are_not_numbers_are_an_error() {
    let nan = half::f16::NAN.to_le_bytes();
    for (name, value) in [
        ("output_norm.weight", &f32(f32::NAN)[..]),
        ("output_norm.weight", &f32(f32::INFINITY)),
        ("blk.0.ffn_norm.weight", &f32(f32::NAN)),
        ("token_embd.weight", &nan), // of a token that is not in the texts, but has a logit
    ] {
        let folder = changed("nan", "llama", |tiny| {
            tiny.set_bytes(name, |bytes| bytes[..value.len()].copy_from_slice(value));
        });
        let file = ["--model", "tiny.gguf"];
        let text = [&file[..], &["--text", "text.txt"]].concat();
        for run in [
            [&["perplexity"], &text[..], &["--tokens", "200"]].concat(),
            [&["perplexity"], &text[..], &["--tokens", "200", "--k", "f16", "--v", "f16"]].concat(),
            [&["sweep"], &text[..], &["--tokens", "200", "--windows", "1", "--codecs", "trellis"]].concat(),
            [&["needle"], &text[..], &["--tokens", "300"]].concat(),
            [&["generate"], &file[..], &["--prompt", "octaplex"]].concat(),
        ] {
            fails(&folder, &run, &["values that are NaN or infinite"]);
        }
    }
}

/// Text from a file is cut and escaped, in errors and in results.
#[test]
fn a_file_does_not_drive_the_terminal() {
    let hostile = format!("\u{1b}]0;title\u{7}\r\n{}", "x".repeat(5_000_000));
    let also = |name: &'static str| vec![(name, TEXT, text(&hostile))];
    for name in [
        "general.architecture",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "llama.rope.scaling.type",
        "llama.block_count",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.token_type",
    ] {
        let folder = changed("hostile", "llama", |tiny| tiny.also = also(name));
        let output = crate::common::octaplex(&folder, &RUN);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.len() < 1000 && errors.lines().count() == 1, "{name}: {} bytes", errors.len());
        assert!(!errors.trim_end().contains(char::is_control), "{name}: {errors:?}");
        assert_eq!(output.status.code(), Some(2), "{name}: {errors}");
    }
    let folder = changed("hostile", "llama", |tiny| tiny.add_vector(&hostile, 32));
    refused(&folder, &["a tensor that llama does not have, \\u{1b}]0;title\\u{7}\\r\\nxxx"]);
    let folder = changed("hostile", "llama", |tiny| tiny.also = also("general.name"));
    let shown = succeeds(&folder, &RUN);
    assert!(shown.len() < 2000 && !shown.contains('\u{1b}') && shown.contains("\\u{1b}]0;title"), "{shown}");
}
