//! `compare` on files: tensors of other shapes and types, and rows that another program decoded.

use crate::common::{fails, folder, succeeds};
use crate::{npy, values};
use serde_json::Value;
use std::path::Path;

/// A safetensors file of tensors (name, dtype, shape, bytes).
pub(crate) fn safetensors(tensors: &[(&str, &str, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(
            (*name).into(),
            serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}),
        );
        data.extend(bytes);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    [(header.len() as u64).to_le_bytes().to_vec(), header, data].concat()
}

#[test]
fn compare_on_files_of_other_shapes() {
    let folder = folder("shapes");
    let f32s = |count| values(count).iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let bf16s = |count| {
        values(count)
            .iter()
            .flat_map(|value| (value.to_bits() >> 16).to_le_bytes()[..2].to_vec())
            .collect::<Vec<u8>>()
    };
    let k = ("k", "F32", vec![1, 2, 8, 32], f32s(512));
    let v = ("v", "BF16", vec![1, 2, 8, 32], bf16s(512));
    let q = ("q", "F32", vec![1, 4, 8, 32], f32s(1024));
    let write = |tensors: &[(&str, &str, Vec<usize>, Vec<u8>)]| {
        std::fs::write(folder.join("x.safetensors"), safetensors(tensors)).unwrap();
    };
    let compare = ["--input", "x.safetensors", "--codecs", "f32", "--json", "x.json"];
    write(&[k.clone(), v.clone(), q.clone()]);
    let text = succeeds(&folder, &compare);
    assert!(text.contains("2 key/value heads of 8 tokens, width 32, 32 queries"), "{text}");
    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("x.json")).unwrap()).unwrap();
    assert!(json["rows"].as_array().unwrap().iter().all(|row| row["output_error"].as_f64().unwrap() < 1e-9));

    let wide = ("q", "F32", vec![1, 4, 4, 64], f32s(1024));
    write(&[k.clone(), v.clone(), wide]);
    fails(&folder, &compare, &["q has shape [1, 4, 4, 64]", "[1, heads, queries, 32]"]);

    // Eight tokens fill no page, and the table says so.
    write(&[k.clone(), v.clone(), q.clone()]);
    let text = succeeds(&folder, &["--input", "x.safetensors", "--codecs", "int"]);
    assert!(text.contains("The last 8 of 8 tokens fill no page of 64"), "{text}");

    let positions = |last: i32| ("q_pos", "I32", vec![2], [0, last].map(i32::to_le_bytes).concat());
    let two = ("q", "F32", vec![1, 4, 2, 32], f32s(256));
    write(&[k.clone(), v.clone(), two.clone(), positions(7)]);
    assert!(succeeds(&folder, &compare).contains("8 queries"));
    write(&[k.clone(), v.clone(), two, positions(8)]);
    fails(&folder, &compare, &["q_pos 8", "8 tokens"]);
    write(&[k.clone(), v.clone(), q.clone(), positions(7)]);
    fails(&folder, &compare, &["q_pos", "8 queries"]);
    write(&[k.clone(), q.clone()]);
    fails(&folder, &compare, &["no tensor v", "k and v are needed", "k, q"]);
    write(&[]);
    fails(&folder, &compare, &["no tensor k", "the file has no tensors"]);
    write(&[k.clone(), v.clone(), ("q", "F32", vec![1, 3, 8, 32], f32s(768))]);
    fails(&folder, &compare, &["3 query heads", "2 key/value heads", "multiple"]);
    write(&[k, ("v", "F32", vec![1, 2, 4, 64], f32s(512)), q]);
    fails(&folder, &compare, &["v has shape [1, 2, 4, 64]"]);
}

/// A layer of an engine, \[tokens, heads, width] in f64, has the same figures as \[layers, heads, tokens, width]. Without
/// queries there is distortion alone, and impossible shapes are named.
#[test]
fn compare_on_a_layer_of_an_engine() {
    let folder = folder("layer");
    let write = |tensors: &[(&str, &str, Vec<usize>, Vec<u8>)]| {
        std::fs::write(folder.join("x.safetensors"), safetensors(tensors)).unwrap();
    };
    fn f64s(values: impl Iterator<Item = f32>) -> Vec<u8> {
        values.flat_map(|value| f64::from(value).to_le_bytes()).collect()
    }
    let zeros = |name: &'static str, dtype: &'static str, shape: &[usize], size: usize| {
        (name, dtype, shape.to_vec(), vec![0; shape.iter().product::<usize>() * size])
    };
    // 8 tokens of width 32, k and v of 2 heads and q of 4.
    let tensor = |name: &'static str, heads: usize, heads_first: bool| {
        let given = &values(3 * 1024)[name.len() + 512 * heads / 2..][..8 * heads * 32];
        let of = |head: usize, token: usize| &given[(head * 8 + token) * 32..][..32];
        let rows = (0..8).flat_map(|token| (0..heads).map(move |head| (head, token)));
        match heads_first {
            true => (name, "F64", vec![1, heads, 8, 32], f64s(given.iter().copied())),
            false => (
                name,
                "F64",
                vec![8, heads, 32],
                f64s(rows.flat_map(|(head, token)| of(head, token)).copied()),
            ),
        }
    };
    let run = ["--input", "x.safetensors", "--codecs", "int:bits=4", "--keys", "raw", "--json", "x.json"];
    let rows = [true, false].map(|heads_first| {
        write(&[tensor("k", 2, heads_first), tensor("v", 2, heads_first), tensor("q", 4, heads_first)]);
        let text = succeeds(&folder, &run);
        assert!(text.contains("2 key/value heads of 8 tokens, width 32, 32 queries"), "{text}");
        rows_of(&folder.join("x.json"))
    });
    for figure in ["distortion", "attention_kl", "output_error", "score_error"] {
        assert!(rows[0].iter().zip(&rows[1]).all(|(a, b)| a[figure] == b[figure]), "{figure}: {rows:?}");
    }
    assert!(rows[0][0]["attention_kl"].as_f64().unwrap() > 0.0);

    write(&[tensor("k", 2, false), tensor("v", 2, false)]);
    let run = ["--input", "x.safetensors", "--codecs", "int; trellis", "--json", "x.json"];
    let text = succeeds(&folder, &run).replace('\n', " ");
    assert!(text.contains("no queries (tensor q), so distortion alone"), "{text}");
    assert!(
        text.contains("Next: add queries") && text.contains("keys: centred page by page, balanced"),
        "{text}"
    );
    assert!(!text.contains("nats") && text.contains("distort."), "{text}");
    for row in rows_of(&folder.join("x.json")) {
        assert!(row["attention_kl"].is_null() && row["output_error"].is_null() && row["distortion"].is_f64());
    }
    let head = |name| (name, "F64", vec![16, 32], f64s(values(512).into_iter()));
    write(&[head("k"), head("v")]);
    assert!(succeeds(&folder, &run).contains("1 key/value heads of 16 tokens, width 32"));

    let four = tensor("q", 4, true);
    write(&[tensor("k", 2, false), tensor("v", 2, false), four]);
    fails(&folder, &run, &["q has shape [1, 4, 8, 32]", "[queries, heads, 32]"]);
    let wide = |name| zeros(name, "F32", &[8, 16, 32], 4);
    write(&[wide("k"), wide("v"), tensor("q", 4, false)]);
    fails(&folder, &run, &["4 query heads", "16 key/value heads", "[1, 8, 16, 32]", "heads come first"]);
    write(&[zeros("k", "F32", &[512], 4), zeros("v", "F32", &[512], 4)]);
    fails(&folder, &run, &["k has shape [512]", "[tokens, heads, width]"]);
    write(&[zeros("k", "F32", &[8, 0, 32], 4), zeros("v", "F32", &[8, 0, 32], 4)]);
    fails(&folder, &run, &["k has shape [8, 0, 32]", "empty"]);
    write(&[zeros("k", "I32", &[8, 2, 32], 4), zeros("v", "I32", &[8, 2, 32], 4)]);
    fails(&folder, &run, &["k is I32", "F64"]);
    let mut large = tensor("k", 2, false);
    large.3[(5 * 2 + 1) * 32 * 8..][..8].copy_from_slice(&1e300f64.to_le_bytes());
    write(&[large, tensor("v", 2, false)]);
    fails(&folder, &run, &["k, layer 0, head 1, row 5, column 0 is NaN or infinite in f32"]);
}

fn rows_of(path: &Path) -> Vec<Value> {
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    json["rows"].as_array().unwrap().clone()
}

/// Another program's decoded vectors get the figures that this library's own would.
#[test]
fn reconstructed_vectors_are_a_row() {
    // A codec whose scores are those of the decoded rows: queries of others are rounded.
    let folder = folder("reconstructed");
    fn tensor(name: &'static str, values: &[f32]) -> (&'static str, &'static str, Vec<usize>, Vec<u8>) {
        (
            name,
            "F32",
            vec![1, 2, 8, 32],
            values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>(),
        )
    }
    let (k, v, q) = (values(512), values(1024)[512..].to_vec(), values(1536)[1024..].to_vec());
    let file = safetensors(&[tensor("k", &k), tensor("v", &v), tensor("q", &q)]);
    std::fs::write(folder.join("x.safetensors"), file).unwrap();
    let decoded = |name: &str, rows: &[f32]| {
        std::fs::write(folder.join(name), npy("<f4", "(16, 32)", rows)).unwrap();
        succeeds(&folder, &["encode", "q4_0", name, "blocks"]);
        succeeds(&folder, &["decode", "q4_0", "--dim", "32", "blocks", "rows.npy"]);
        let file = std::fs::read(folder.join("rows.npy")).unwrap();
        let header = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
        assert_eq!((header % 64, file[header - 1]), (0, b'\n'));
        file[header..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>()
    };
    let (decoded_k, decoded_v) = (decoded("k.npy", &k), decoded("v.npy", &v));
    let theirs = safetensors(&[tensor("k", &decoded_k), tensor("v", &decoded_v)]);
    std::fs::write(folder.join("theirs.safetensors"), theirs).unwrap();
    let both = npy("<f4", "(2, 1, 2, 8, 32)", &[decoded_k.clone(), decoded_v].concat());
    std::fs::write(folder.join("both.npy"), both).unwrap();
    let compare = ["--input", "x.safetensors", "--codecs", "q4_0", "--keys", "raw", "--json", "rows.json"];
    fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
        [first, more].concat()
    }
    let text = succeeds(
        &folder,
        &with(
            &compare,
            &[
                "--reconstructed",
                "theirs.safetensors",
                "--reconstructed-bits",
                "3.5/4",
                "--reconstructed-name",
                "their q4_0",
                "--reconstructed",
                "both.npy",
                "--reconstructed-bits",
                "5",
                "--reconstructed-name",
                "array",
            ],
        ),
    );
    assert!(text.contains("their q4_0") && text.contains("array"), "{text}");
    let rows = rows_of(&folder.join("rows.json"));
    assert_eq!(rows.len(), 6);
    for (role, bits) in [("keys", 3.5), ("values", 4.0)] {
        let find =
            |codec: &str| rows.iter().find(|row| row["codec"] == codec && row["role"] == role).unwrap();
        let (ours, theirs) = (find("q4_0"), find("their q4_0"));
        assert_eq!((&theirs["bits_per_value"], &theirs["encode_ns"]), (&bits.into(), &Value::Null));
        assert_eq!(find("array")["bits_per_value"], 5.0);
        for figure in ["distortion", "cosine", "score_error", "attention_kl", "output_error"] {
            let number = |row: &Value| row[figure].as_f64().unwrap();
            let (a, b) = (number(ours), number(theirs));
            assert!((a - b).abs() <= 1e-3 * a.abs(), "{role}, {figure}: {a} and {b}");
            assert_eq!(number(find("array")), b);
        }
    }

    std::fs::write(folder.join("k.safetensors"), safetensors(&[tensor("k", &k)])).unwrap();
    succeeds(&folder, &with(&compare, &["--reconstructed", "k.safetensors", "--reconstructed-bits", "32"]));
    let rows = rows_of(&folder.join("rows.json"));
    let exact: Vec<_> = rows.iter().filter(|row| row["codec"] == "k").collect();
    assert_eq!((exact.len(), &exact[0]["distortion"], &exact[0]["role"]), (1, &0.0.into(), &"keys".into()));
    assert!(exact[0]["attention_kl"].as_f64().unwrap() < 1e-9);

    let refused = |file: &str, bits: &[&str], words: &[&str]| {
        fails(&folder, &with(&compare, &[&["--reconstructed", file], bits].concat()), words);
    };
    std::fs::write(folder.join("q.safetensors"), safetensors(&[tensor("q", &q)])).unwrap();
    let short = ("k", "F32", vec![1, 2, 4, 32], vec![0; 1024]);
    std::fs::write(folder.join("short.safetensors"), safetensors(&[short])).unwrap();
    let four = ["--reconstructed-bits", "4"];
    refused("q.safetensors", &four, &["q.safetensors", "k and v are expected"]);
    refused("short.safetensors", &four, &["k has shape [1, 2, 4, 32]", "[1, 2, 8, 32]"]);
    refused("k.npy", &four, &["shape [16, 32]", "[2, 1, 2, 8, 32]"]);
    refused("k.safetensors", &["--reconstructed-bits", "many"], &["'many'", "4.25/3.5"]);
    refused("k.safetensors", &[&four[..], &four[..]].concat(), &["1 --reconstructed files", "one for each"]);
    refused("k.safetensors", &[], &["--reconstructed-bits"]);
}
