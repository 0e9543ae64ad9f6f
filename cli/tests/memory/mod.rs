//! `memory`: the table of a model's cache, from a file or from numbers.

use crate::cells;
use crate::common::{fails, folder, succeeds};
use octaplex::LayerConfig;

const LLAMA: [&str; 7] = ["memory", "--layers", "32", "--kv-heads", "8", "--width", "128"];

/// The gigabytes of a row.
fn row(text: &str, name: &str) -> Vec<f64> {
    cells(text, "CACHE", name).iter().skip(1).map(|cell| cell.parse().unwrap()).collect()
}

/// The bytes of a layer at a length are what a cache of that capacity needs, exact tokens included.
#[test]
fn a_table_of_gigabytes() {
    let folder = folder("memory");
    let text = succeeds(&folder, &LLAMA);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("32 layers with 8 key/value heads of width 128"), "{text}");
    assert!(text.contains("   4,096   32,768  131,072\n"), "{text}");
    // 32 layers, 8 heads, 2 * 128 values a token.
    assert_eq!(row(&text, "f16"), [16.0, 0.537, 4.29, 17.18]);
    assert_eq!(row(&text, "q8_0"), [8.5, 0.285, 2.28, 9.13]);
    assert_eq!(row(&text, "q4_0"), [4.5, 0.151, 1.21, 4.83]);
    let layer = LayerConfig::new(8, 128, 4096);
    let default = row(&text, "default");
    assert!((default[0] - layer.page_bits()).abs() < 0.0006, "{text}");
    for (tokens, shown) in [4096, 32_768, 131_072].into_iter().zip(&default[1..]) {
        let exact = 32.0 * layer.capacity(tokens).required_bytes() as f64 / 1e9;
        assert!((exact - shown).abs() < 0.006, "{tokens}: {exact}, {text}");
    }
    assert!(text.contains("Tokens that 8 GB hold: 61,035 in f16, 114,889 in q8_0"), "{text}");
    assert!(
        text.replace('\n', " ").contains("default: graded:bits=3 keys and trellis:bits=3 values."),
        "{text}"
    );
}

#[test]
fn rows_for_bits_and_for_codecs() {
    let folder = folder("memory_rows");
    let with = |more: &[&str]| succeeds(&folder, &[&LLAMA[..], more].concat());
    let text = with(&["--bits", "2.5", "--tokens", "32k", "100,000"]);
    assert!(text.contains(" 32,768  100,000\n"), "{text}");
    assert!(text.contains("--bits 2.5: graded:bits=2 keys and trellis:bits=2 values, in "), "{text}");
    let line = text.lines().find(|line| line.starts_with("--bits 2.5 ")).unwrap();
    let cells: Vec<f64> = line.split_whitespace().skip(2).map(|cell| cell.parse().unwrap()).collect();
    assert!(cells[0] <= 2.5 && cells[0] > 2.4 && cells[1] < row(&text, "default")[1], "{text}");
    // The options have the names that other commands give them, too.
    assert_eq!(with(&["--budget", "2.5", "--tokens", "32k", "100,000"]), text);
    let both = with(&["--keys", "q8_0", "--values", "trellis:bits=2", "--fit", "24"]);
    assert!(
        both.contains("q8_0 keys and trellis:bits=2 values.") && both.contains("24 GB hold: 183,105"),
        "{both}"
    );
    assert_eq!(with(&["--k", "q8_0", "--v", "trellis:bits=2", "--fit", "24"]), both);
    for (more, words) in [
        (&["--bits", "2"][..], &["2 bits a value are too few", "give at least 2.1"][..]),
        (&["--bits", "3", "--keys", "int"], &["--bits", "--keys"]),
        (&["--keys", "trelis"], &["did you mean trellis?"]),
        (&["--tokens", "0"], &["'0'", "32768 or 32k"]),
        (&["--tokens", "1", "2", "3", "4", "5", "6"], &["6 lengths; at most 5"]),
        (&["--fit", "0"], &["gigabytes"]),
    ] {
        fails(&folder, &[&LLAMA[..], more].concat(), words);
    }
    fails(&folder, &["memory"], &["give a GGUF file", "--layers", "(see octaplex memory --help)"]);
    fails(&folder, &["memory", "--layers", "3"], &["--kv-heads", "--width"]);
    fails(
        &folder,
        &["memory", "--layers", "0", "--kv-heads", "8", "--width", "128"],
        &["--layers 0: 1 to 4096"],
    );
}

/// Layers with windows stop to grow; caches that octaplex does not store have the rows of others.
#[test]
fn models_from_files() {
    let folder = folder("memory_files");
    let write = |config: &str| std::fs::write(folder.join("config.json"), config).unwrap();
    write(
        r#"{"text_config": {"model_type": "gemma3_text", "num_hidden_layers": 6, "num_attention_heads": 4,
            "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "max_position_embeddings": 32768}}"#,
    );
    let text = succeeds(&folder, &["memory", "config.json"]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let flat = text.replace('\n', " ");
    assert!(flat.contains("a sliding window of 512; 1 layers with"), "{text}");
    assert!(flat.contains("trained for 32,768 tokens") && flat.contains("images or sound"), "{text}");
    // 512 tokens in five layers, all in one.
    let f16 = |tokens: f64| (5.0 * 512.0 + tokens) * 512.0 * 2.0 / 1e9;
    for (shown, tokens) in row(&text, "f16")[1..].iter().zip([4096.0, 32_768.0, 131_072.0]) {
        assert!((shown - f16(tokens)).abs() < 0.0006, "{text}");
    }
    assert_eq!(succeeds(&folder, &["memory", "."]).lines().last(), text.lines().last());
    write(r#"{"num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 64, "sliding_window": 64}"#);
    assert!(succeeds(&folder, &["memory", "config.json"]).contains("any number in f16"));
    for (config, why) in [
        (
            r#"{"num_hidden_layers": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64}"#,
            "latent attention (MLA)",
        ),
        (
            r#"{"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 100}"#,
            "width 100 is not supported",
        ),
    ] {
        write(config);
        let text = succeeds(&folder, &["memory", "config.json"]);
        assert!(
            text.replace('\n', " ").contains(&format!("octaplex does not store this cache: {why}")),
            "{text}"
        );
        assert!(!text.contains("default") && row(&text, "q4_0").len() == 4, "{text}");
    }
    write("{}");
    fails(&folder, &["memory", "config.json"], &["config.json: no num_hidden_layers", "--kv-heads"]);
    std::fs::write(folder.join("model.gguf"), "GGUF\x03\0\0\0").unwrap();
    fails(&folder, &["memory", "model.gguf"], &["model.gguf: a truncated GGUF file"]);
    fails(&folder, &["memory", "missing.gguf"], &["missing.gguf: no such file"]);
    fails(&folder, &["memory", "/dev/zero"], &["/dev/zero: not a regular file"]);
}
