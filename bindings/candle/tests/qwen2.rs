//! Compares the example's model with candle-transformers', whose file it changes.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

#[allow(unreachable_pub, dead_code)]
#[rustfmt::skip] // as candle-transformers has it
#[path = "../examples/qwen2/model.rs"]
mod model;

use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{D, Device, Tensor};
use candle_transformers::models::quantized_qwen2;
use octaplex_candle::LayerConfig;
use std::io::Cursor;
use std::path::PathBuf;
use std::process::Command;

const VOCABULARY: usize = 96;

/// A GGUF file of two layers with random weights: four query heads and two key/value heads of width 32.
fn file() -> Vec<u8> {
    let (width, kv, feed) = (128, 64, 192);
    let mut state = 1u64;
    let mut random = |shape: &[usize], scale: f32| {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        QTensor::quantize(&tensor, GgmlDType::F32).unwrap()
    };
    let ones = |length| {
        QTensor::quantize(
            &Tensor::ones(length, candle_core::DType::F32, &Device::Cpu).unwrap(),
            GgmlDType::F32,
        )
    };
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), random(&[VOCABULARY, width], 1.0)),
        ("output_norm.weight".to_owned(), ones(width).unwrap()),
    ];
    for layer in 0..2 {
        for (name, rows, columns) in [
            ("attn_q", width, width),
            ("attn_k", kv, width),
            ("attn_v", kv, width),
            ("attn_output", width, width),
            ("ffn_gate", feed, width),
            ("ffn_up", feed, width),
            ("ffn_down", width, feed),
        ] {
            tensors.push((format!("blk.{layer}.{name}.weight"), random(&[rows, columns], 0.2)));
            if ["attn_q", "attn_k", "attn_v"].contains(&name) {
                tensors.push((format!("blk.{layer}.{name}.bias"), random(&[rows], 0.5)));
            }
        }
        for name in ["attn_norm", "ffn_norm"] {
            tensors.push((format!("blk.{layer}.{name}.weight"), ones(width).unwrap()));
        }
    }
    let numbers = [
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("embedding_length", width as u32),
        ("context_length", 1024),
        ("block_count", 2),
    ];
    let numbers = numbers.map(|(name, number)| (format!("qwen2.{name}"), Value::U32(number)));
    let epsilon = Value::F32(1e-6);
    let metadata: Vec<_> = numbers.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let metadata = [&metadata[..], &[("qwen2.attention.layer_norm_rms_epsilon", &epsilon)]].concat();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &metadata, &tensors).unwrap();
    file.into_inner()
}

/// Returns what a model writes after a prompt of 200 tokens: the likeliest tokens, and the last logits.
fn written(mut forward: impl FnMut(&Tensor, usize) -> candle_core::Result<Tensor>) -> (Vec<u32>, Vec<f32>) {
    let mut next: Vec<u32> = (0..200).map(|token| token * 37 % VOCABULARY as u32).collect();
    let (mut position, mut tokens, mut last) = (0, Vec::new(), Vec::new());
    for _ in 0..40 {
        let input = Tensor::new(&next[..], &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        let logits = forward(&input, position).unwrap();
        position += next.len();
        next = vec![logits.argmax(D::Minus1).unwrap().squeeze(0).unwrap().to_scalar().unwrap()];
        tokens.push(next[0]);
        last = logits.squeeze(0).unwrap().to_vec1().unwrap();
    }
    (tokens, last)
}

#[test]
fn tokens_are_those_of_the_unchanged_model() {
    let file = file();
    let content = |file: &mut Cursor<&Vec<u8>>| Content::read(file).unwrap();
    let mut reader = Cursor::new(&file);
    let unchanged = content(&mut reader);
    let mut unchanged =
        quantized_qwen2::ModelWeights::from_gguf(unchanged, &mut reader, &Device::Cpu).unwrap();
    let (expected, expected_logits) = written(|input, position| unchanged.forward(input, position));
    assert!(expected.iter().any(|token| *token != expected[0]), "{expected:?}");
    let compressed = |each: fn(LayerConfig) -> LayerConfig| {
        let mut reader = Cursor::new(&file);
        let content = content(&mut reader);
        let mut model = model::ModelWeights::from_gguf(content, &mut reader, &Device::Cpu).unwrap();
        assert_eq!(written(|input, position| model.forward(input, position)).0, expected); // before it compresses
        model.compress(each).unwrap();
        let first = written(|input, position| model.forward(input, position));
        let stats = model.stats();
        assert_eq!(stats.tokens, 239);
        model.clear_kv_cache();
        assert_eq!(model.stats().tokens, 0);
        assert!(first == written(|input, position| model.forward(input, position))); // from the start again
        (first, stats.bytes)
    };
    let f32 = |config: LayerConfig| {
        let exact = "f32".parse().unwrap();
        config.keys(exact).values(exact)
    };
    let distance = |logits: &[f32]| {
        let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let difference = norm(&mut logits.iter().zip(&expected_logits).map(|(a, b)| a - b));
        difference / norm(&mut expected_logits.iter().copied())
    };
    let ((tokens, logits), exact_bytes) = compressed(f32);
    assert_eq!(tokens, expected);
    assert!(distance(&logits) < 1e-2, "{}", distance(&logits));
    let ((tokens, logits), bytes) = compressed(|config| config);
    assert_eq!(tokens.len(), expected.len());
    assert!(bytes < exact_bytes && logits.iter().all(|logit| logit.is_finite()), "{bytes} {exact_bytes}");
}

/// Fewer than 60 lines differ, counting removed and added ones.
#[test]
fn fewer_than_60_lines_are_changed() {
    let cargo = |arguments: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        let output = cargo.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let version = cargo(&["--version", "--verbose"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    // Packages of other platforms may be missing.
    let metadata =
        cargo(&["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", host]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let mut packages = metadata["packages"].as_array().unwrap().iter();
    let package = packages.find(|package| package["name"] == "candle-transformers").unwrap();
    let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
    let original = std::fs::read_to_string(manifest.with_file_name("src/models/quantized_qwen2.rs")).unwrap();
    let changed = include_str!("../examples/qwen2/model.rs");
    let (original, changed): (Vec<_>, Vec<_>) = (original.lines().collect(), changed.lines().collect());
    // All lines outside of the longest common subsequence were changed.
    let mut common = vec![0; changed.len() + 1];
    for line in &original {
        let mut before = 0;
        for (at, other) in changed.iter().enumerate() {
            let here = if line == other { before + 1 } else { common[at].max(common[at + 1]) };
            before = std::mem::replace(&mut common[at + 1], here);
        }
    }
    let lines = original.len() + changed.len() - 2 * common[changed.len()];
    assert_eq!(lines, 41, "README.md and the example's first lines say 41");
}
