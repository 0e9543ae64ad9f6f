//! The tool as its users see it: exit codes, bytes, JSON fields, and errors of one line.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
mod files;
mod memory;
mod messages;
mod samples;

use common::{fails, folder, octaplex, octaplex_with, succeeds};
use serde_json::Value;
use std::path::Path;

/// Rows that are the same on every machine.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + i * i * 31) % 2003) as f32 / 1001.0 - 1.0).collect()
}

fn write_f32(path: &Path, values: &[f32]) {
    std::fs::write(path, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>()).unwrap();
}

fn read_f32(path: &Path) -> Vec<f32> {
    std::fs::read(path).unwrap().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn npy(descr: &str, shape: &str, values: &[f32]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    header += &" ".repeat((118 - header.len() % 64) % 64);
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.bytes());
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    file
}

#[test]
fn compare_on_the_bundled_sample() {
    let folder = folder("compare");
    let codecs = "turboquant:bits=4,seed=3;int:bits=4,group=32;f32";
    let options = ["--codecs", codecs, "--json", "rows.json", "--svg", "plot.svg"];
    let text = succeeds(&folder, &options);
    assert!(text.contains("KEYS") && text.contains("VALUES"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("KL raw") && text.contains("*  32.000"), "{text}");

    let plot = std::fs::read_to_string(folder.join("plot.svg")).unwrap();
    assert!(plot.contains(">turboquant</text>") && plot.contains("group=32") && plot.contains("xmlns"));

    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("rows.json")).unwrap()).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"));
        let reads = if row["role"] == "keys" { "score_ns" } else { "accumulate_ns" };
        assert!(number("encode_ns") > 0.0 && number(reads) > 0.0);
        assert!(number("cosine") > 0.95 && number("distortion") < 0.05);
        let prepared = row["role"] == "keys" && row["codec"] != "f32";
        let center = if prepared { "page" } else { "off" };
        assert_eq!(
            (number("dim"), &row["center"], &row["balance"]),
            (128.0, &center.into(), &prepared.into())
        );
        assert!(number("output_error") < 0.1 && number("attention_kl") < 0.5 && number("score_error") >= 0.0);
        let bits = 8.0 * number("stored_bytes") / (6.0 * 384.0 * 128.0);
        assert!((bits - number("bits_per_value")).abs() < 1e-9);
        if row["role"] == "values" {
            assert_eq!((number("attention_kl"), number("score_error")), (0.0, 0.0));
        }
    }
    let row = rows.iter().find(|row| row["codec"] == "turboquant:bits=4,seed=3").unwrap();
    // For each page of 64 a coded centre, norms and a position, for each head a balance and a prefix centre.
    assert_eq!(row["role"], "keys");
    let paid = row["bits_per_value"].as_f64().unwrap() - (4.0 + LEAN_PAGE + 2.0 * 16.0 / 384.0);
    assert!(row["seed"] == 3 && paid.abs() < 1e-9, "{row}");
    assert!(row["attention_kl"].as_f64().unwrap() < 0.1 * row["attention_kl_raw"].as_f64().unwrap(), "{row}");
    let exact = rows.iter().find(|row| row["codec"] == "f32" && row["role"] == "keys").unwrap();
    assert!(exact["attention_kl"].as_f64().unwrap() < 1e-9 && exact["distortion"] == 0.0);
}

/// A line of a table, in its cells.
fn cells<'a>(text: &'a str, table: &str, codec: &str) -> Vec<&'a str> {
    let table = text.lines().skip_while(|line| !line.starts_with(table)).skip(1);
    let mut cells =
        table.filter(|line| !line.is_empty()).map(|line| line.split_whitespace().collect::<Vec<_>>());
    cells.find(|cells| cells.first() == Some(&codec)).unwrap_or_else(|| panic!("{codec}: {text}"))
}

/// Ten rows, the rate first, a line about each column, then the advice and the next command, with the figures of the rows.
#[test]
fn the_default_table_is_short_explained_and_ends_with_advice() {
    let folder = folder("default");
    let text = succeeds(&folder, &["--json", "rows.json"]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("rows.json")).unwrap()).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let of = |role: &str, codec: &str| {
        rows.iter().find(|row| row["role"] == role && row["codec"] == codec).unwrap().clone()
    };
    for role in ["keys", "values"] {
        assert_eq!(rows.iter().filter(|row| row["role"] == role).count(), 10);
    }
    for (table, role, codec) in [("KEYS", "keys", "graded:bits=3"), ("VALUES", "values", "trellis:bits=3")] {
        let (cells, row) = (cells(&text, table, codec), of(role, codec));
        let bits = row["bits_per_value"].as_f64().unwrap();
        assert_eq!(
            cells[1..5],
            ["default", "*", &*format!("{bits:.3}"), &*format!("{:.1}x", 16.0 / bits)],
            "{text}"
        );
    }
    assert!(text.contains("a value than f16    nats"), "{text}");
    for line in
        ["\nbits a value ", "\nsmaller than f16 ", "\nKL nats ", "\noutput error ", "\nencode ns ", "\n* "]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    let (keys, values) = (of("keys", "graded:bits=3"), of("values", "trellis:bits=3"));
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    let bits = (number(&keys, "bits_per_value") + number(&values, "bits_per_value")) / 2.0;
    let advice = format!(
        "For {bits:.1} bits a value take graded:bits=3 keys and trellis:bits=3 values: the default, {:.1}x smaller than f16, KL {:.3} nats.",
        16.0 / bits,
        number(&keys, "attention_kl")
    );
    let last = text.rsplit("\n\n").next().unwrap().replace('\n', " ");
    assert!(last.starts_with(&advice), "{last}");
    assert!(
        last.contains("Next: octaplex compare --input your.safetensors") && last.contains("capture"),
        "{last}"
    );
    // Error, memory and bits have a line each that explains them.
    let kl = |codec: &str| format!("{codec} keys have {:.5}", number(&of("keys", codec), "attention_kl"));
    assert!(
        text.contains(&format!("\nIs that KL good? Here {} and {}.\n", kl("q8_0"), kl("q4_0"))),
        "{text}"
    );
    let long = octaplex::LayerConfig::new(8, 128, 32_768);
    let gigabytes = 32.0 * long.required_bytes() as f64 / 1e9;
    let memory =
        format!("\nLlama-3-8B with 32,768 tokens: 4.29 GB in f16, {gigabytes:.2} GB with these codecs.\n");
    assert!(text.contains(&memory), "{memory}: {text}");
    let in_pages = format!("\n{bits:.1} bits with 384 tokens, {:.1} with more: ", long.page_bits());
    assert!(text.contains(&in_pages), "{in_pages}: {text}");
    // The advice is for the budget. If nothing fits, there is no advice.
    let text = succeeds(&folder, &["--budget", "2.2", "--codecs", "trellis:bits=2; q8_0"]);
    assert!(text.contains("For 2.1 bits a value take trellis:bits=2 for both: 7.5x smaller"), "{text}");
    assert!(!succeeds(&folder, &["--codecs", "q8_0"]).contains("take"));
    // Tokens that fill no page stay in f16, and say nothing of a longer text.
    let text = succeeds(&folder, &["--page", "256", "--codecs", "trellis:bits=3", "--json", "rows.json"]);
    assert!(text.contains("For 3.1 bits a value take trellis:bits=3 for both"), "{text}");
    assert!(text.contains("The last 128 of 384 tokens fill no page of 256"), "{text}");
    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("rows.json")).unwrap()).unwrap();
    let row = &json["rows"][0];
    assert!(number(row, "bits_per_value") > 7.0 && number(row, "bits_per_value_pages") < 3.3, "{row}");
    // All codecs, and names as experts write them.
    let all = succeeds(&folder, &["compare", "--all", "--svg", "sample.svg"]);
    assert!(all.lines().filter(|line| line.contains(".")).count() > 70 && !all.contains("--all"), "{all}");
    // The picture of the README. `OCTAPLEX_BLESS=1` draws it again.
    let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/plots/sample.svg");
    if std::env::var_os("OCTAPLEX_BLESS").is_some() {
        std::fs::copy(folder.join("sample.svg"), &picture).unwrap();
    }
    let drawn = std::fs::read(folder.join("sample.svg")).unwrap();
    assert!(drawn == std::fs::read(picture).unwrap(), "docs/plots/sample.svg is of other rows");
    for codec in ["octopus:split=even", "trellis:bits=5", "tq3_0:variant=3bit"] {
        cells(&all, "KEYS", codec);
    }
    cells(&succeeds(&folder, &["--codecs", "trellis:m=6"]), "VALUES", "trellis:m=6");
    fails(&folder, &["compare", "--all", "--codecs", "int"], &["--all", "--codecs"]);
}

/// The codecs that the library chooses; none if nothing fits.
#[test]
fn compare_within_a_budget() {
    let folder = folder("budget");
    let codecs = ["compare", "--codecs", "trellis:bits=2"];
    let text = |bits| succeeds(&folder, &[&codecs[..], &["--budget", bits]].concat()).replace('\n', " ");
    for (bits, chosen) in [
        (
            "3.5",
            "graded:bits=3 for keys and trellis:bits=3 for values, in 76 of 100 layers graded:bits=4 and trellis:bits=3, 3.500",
        ),
        (
            "3",
            "graded:bits=3 for keys and trellis:bits=2 for values, in 76 of 100 layers graded:bits=3 and trellis:bits=3, 3.000",
        ),
        (
            "2.1",
            "trellis:bits=2 for keys and trellis:bits=2 for values, in 24 of 100 layers graded:bits=2 and trellis:bits=2, 2.100",
        ),
    ] {
        assert!(text(bits).contains(&format!("Within {bits} bits a value: {chosen}")), "{}", text(bits));
    }
    fails(
        &folder,
        &[&codecs[..], &["--budget", "2"]].concat(),
        &["2 bits a value are too few", "at width 128: give at least 2.1"],
    );
    fails(&folder, &[&codecs[..], &["--budget", "no"]].concat(), &["bits a value"]);
}

/// Bits that a key of the bundled sample, 128 wide, takes in a page of 64 besides its planes: centre, norms, position.
const LEAN_PAGE: f64 = 8.0 * (82.0 + 51.0 + 8.0) / (64.0 * 128.0);

#[test]
fn centred_and_balanced_keys() {
    let folder = folder("centred");
    let row = |options: &[&str]| {
        let mut arguments = vec!["compare", "--codecs", "trellis", "--json", "rows.json"];
        arguments.extend(options);
        succeeds(&folder, &arguments);
        let json: Value = serde_json::from_slice(&std::fs::read(folder.join("rows.json")).unwrap()).unwrap();
        json["rows"].as_array().unwrap().iter().find(|row| row["role"] == "keys").unwrap().clone()
    };
    let rows = [
        row(&["--keys", "raw"]),
        row(&["--center", "prefix", "--balance=false"]),
        row(&["--balance=false"]),
        row(&[]),
    ];
    let kl = |row: &Value| row["attention_kl"].as_f64().unwrap();
    assert!(rows.windows(2).all(|pair| kl(&pair[1]) < kl(&pair[0])), "{rows:?}");
    // The cache's preparation is the default. Raw keys are a second column, and older spellings mean the same.
    assert_eq!((&rows[3]["center"], &rows[3]["balance"]), (&"page".into(), &true.into()));
    let spelt = row(&["--center", "page", "--balance"]);
    assert_eq!((kl(&spelt), &spelt["attention_kl_raw"]), (kl(&rows[3]), &rows[3]["attention_kl_raw"]));
    assert_eq!(rows[0]["attention_kl_raw"], rows[0]["attention_kl"]);
    let raw = row(&["--center", "off"]);
    assert_eq!((kl(&raw), &raw["bits_per_value"]), (kl(&rows[0]), &3.125.into()));
    fails(&folder, &["--keys", "raw", "--balance"], &["--keys raw", "--balance"]);
    // The other parts of a page count too, and the prefix centre; raw keys are blocks with norms.
    let bits = |row: &Value| row["bits_per_value"].as_f64().unwrap();
    let paid = bits(&rows[2]) - (bits(&rows[0]) - 16.0 / 128.0);
    assert!((paid - LEAN_PAGE - 16.0 / 384.0).abs() < 1e-9, "{paid}");

    let cache = ["compare", "--cache", "--k", "trellis:bits=3"];
    let text = succeeds(&folder, &[&cache[..], &["--v", "trellis", "--json", "a.json"]].concat());
    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("a.json")).unwrap()).unwrap();
    assert!(text.contains("KL, nats ") && kl(&json) > 0.0 && kl(&json) < kl(&rows[3]), "{text}");
    assert!(json["output_error"].as_f64().unwrap() < 0.05);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // Without codecs those that are recommended; without sinks and window more is in pages.
    let usual = succeeds(&folder, &["compare", "--cache", "--json", "b.json"]);
    assert!(usual.contains("keys graded:bits=3,") && usual.contains("values trellis:bits=3;"), "{usual}");
    succeeds(&folder, &[&cache[..], &["--sinks", "0", "--window", "0", "--json", "c.json"]].concat());
    let read =
        |name: &str| -> Value { serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap() };
    assert!(kl(&read("b.json")) < kl(&json) && bits(&read("c.json")) < bits(&json) - 3.0);
    fails(&folder, &[&cache[..], &["--v", "nothing"]].concat(), &["nothing"]);
    fails(&folder, &[&cache[..], &["--v", "f16", "--page", "65"]].concat(), &["65"]);
    fails(&folder, &["compare", "--k", "trellis"], &["--cache"]);
    fails(&folder, &["compare", "--sinks", "8"], &["--cache"]);
    fails(&folder, &[&cache[..], &["--svg", "plot.svg"]].concat(), &["--cache", "--svg"]);
}

#[test]
fn verify_compares_with_the_table() {
    let folder = folder("verify");
    let all = succeeds(&folder, &["verify", "--backend", "scalar"]);
    assert!(all.contains("\nturboquant ") && all.contains("\nall "), "{all}");
    let last = "yes: 20 codecs compute what they must on every machine, on the backend scalar\n";
    assert!(all.ends_with(last), "{all}");
    let of = |name: &str| all.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap().to_owned();
    let one = succeeds(&folder, &["verify", "--only", "int,f16"]);
    assert_eq!(one.lines().skip(1).take(2).collect::<Vec<_>>(), [of("int"), of("f16")]);
    assert!(one.contains("\nyes: 2 codecs compute what they must"), "{one}");
    fails(&folder, &["verify", "--only", "turbo"], &["turbo", "turboquant"]);
    fails(&folder, &["verify", "--against", "nothing.txt"], &["nothing.txt"]);
    std::fs::write(folder.join("letter.txt"), "Dear all,\nthe sums were right.\n").unwrap();
    fails(
        &folder,
        &["verify", "--against", "letter.txt"],
        &["letter.txt: names no codec", "octaplex verify"],
    );

    std::fs::write(folder.join("same.txt"), &all).unwrap();
    let same = succeeds(&folder, &["verify", "--against", "same.txt"]);
    assert_eq!(same.lines().nth(1), Some(&*of("trellis")));
    assert!(same.contains("\nyes: 20 codecs compute what same.txt says"), "{same}");
    let other = all.replace(&of("int"), "int 00000000 00000000");
    std::fs::write(folder.join("other.txt"), other).unwrap();
    let output = octaplex(&folder, &["verify", "--against", "other.txt"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("{}   must be 00000000 00000000", of("int"))), "{text}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("1 of 20 codecs differ: int\n") && !text.contains("yes"), "{errors}");
}

/// They are stored as they are, for every preparation of keys, and nothing else counts.
#[test]
fn float_keys_are_neither_centred_nor_balanced() {
    let folder = folder("floats");
    let options = ["--codecs", "f16;bf16;f32", "--json", "rows.json"];
    for prepared in [&["--center", "page", "--balance"][..], &["--center", "prefix"]] {
        succeeds(&folder, &[&["compare"], &options[..], prepared].concat());
        let json: Value = serde_json::from_slice(&std::fs::read(folder.join("rows.json")).unwrap()).unwrap();
        for row in json["rows"].as_array().unwrap() {
            let bits = if row["codec"] == "f32" { 32.0 } else { 16.0 };
            assert_eq!(row["bits_per_value"], bits, "{row}");
        }
    }
}

#[test]
fn compare_on_plain_vectors() {
    let folder = folder("plain");
    std::fs::write(folder.join("x.npy"), npy("<f4", "(2, 8, 64)", &values(1024))).unwrap();
    let text = succeeds(&folder, &["compare", "--input", "x.npy", "--codecs", "int", "--json", "rows.json"]);
    assert!(text.contains("16 plain vectors of width 64") && !text.contains("KL raw"), "{text}");
    fails(&folder, &["compare", "--cache", "--input", "x.npy"], &["--cache", "no queries", "k, v and q"]);
    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("rows.json")).unwrap()).unwrap();
    for row in json["rows"].as_array().unwrap() {
        assert!(
            row["attention_kl"].is_null() && row["output_error"].is_null() && row["score_error"].is_null()
        );
        assert_eq!(row["stored_bytes"], 16 * 34);
    }
}

#[test]
fn files_are_the_same_with_every_backend() {
    let folder = folder("backends");
    write_f32(&folder.join("x.f32"), &values(300 * 96));
    write_f32(&folder.join("q.f32"), &values(5 * 96));
    std::fs::write(folder.join("x.npy"), npy("<f4", "(300, 96)", &values(300 * 96))).unwrap();
    let info: Value = serde_json::from_str(&succeeds(&folder, &["info", "--json"])).unwrap();
    let names: Vec<_> =
        info["backends"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let first = names[0];
    assert_eq!(names.last(), Some(&"scalar"));
    for spec in ["turboquant:levels=6", "int:bits=3,group=32,rotate=true", "f16"] {
        for name in &names {
            let common = [spec, "--dim", "96", "--backend", name];
            let run = |command: &[&str]| succeeds(&folder, &[&command[..1], &common, &command[1..]].concat());
            run(&["encode", "x.f32", &format!("{name}.blocks")]);
            run(&["decode", &format!("{name}.blocks"), &format!("{name}.rows")]);
            run(&["score", "--query", "q.f32", &format!("{name}.blocks"), &format!("{name}.scores")]);
            for kind in ["blocks", "rows", "scores"] {
                let read = |name: &str| std::fs::read(folder.join(format!("{name}.{kind}"))).unwrap();
                assert!(read(name) == read(first), "{spec}: {kind} of {name} and {first} differ");
            }
        }
        succeeds(&folder, &["encode", spec, "--dim", "96", "x.npy", "npy.blocks"]);
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        assert!(read("npy.blocks") == read(&format!("{first}.blocks")));
        // Scores are those of the decoded rows, about.
        let (rows, scores) = (
            read_f32(&folder.join(format!("{first}.rows"))),
            read_f32(&folder.join(format!("{first}.scores"))),
        );
        assert_eq!((rows.len(), scores.len()), (300 * 96, 5 * 300));
        let query = &values(5 * 96)[4 * 96..];
        let dot: f32 = rows[7 * 96..8 * 96].iter().zip(query).map(|(x, q)| x * q).sum();
        assert!((dot - scores[4 * 300 + 7]).abs() < 0.2, "{spec}: {dot} and {}", scores[4 * 300 + 7]);
    }
}

#[test]
fn info_says_what_the_bytes_are() {
    let folder = folder("info");
    let text = succeeds(&folder, &["info", "turboquant:bits=3", "--dim", "128"]);
    assert!(text.contains("50") && text.contains("3.125") && text.contains("f16 norm"), "{text}");
    assert!(
        text.contains("a page of 64 keys and values of a head: 6336 bytes, 3.094 bits a value\n"),
        "{text}"
    );
    let outliers = succeeds(&folder, &["info", "int:bits=8,med=3"]);
    assert!(outliers.contains("at most") && outliers.contains("keys: blocks"), "{outliers}");
    let json = succeeds(&folder, &["info", "turboquant:seed=0,bits=4", "--dim", "64", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["spec"], &json["block_bytes"]), (&"turboquant".into(), &34.into()));
    let parts = json["layout"].as_array().unwrap();
    assert_eq!(parts.iter().map(|part| part["bytes"].as_u64().unwrap()).sum::<u64>(), 34);
    let list = succeeds(&folder, &["info"]);
    assert!(list.contains("turboquant") && list.contains("bits=1..=8"), "{list}");
    assert!(
        list.contains("another name of int:bits=8") && list.contains("rotate=none, keys, values"),
        "{list}"
    );
    assert!(list.starts_with("CPU: ") && list.contains("\nBackends, fastest first: "), "{list}");
    assert!(list.contains(" (default), ") && list.contains("scalar\n\nCodecs"), "{list}");
    let list: Value = serde_json::from_str(&succeeds(&folder, &["info", "--json"])).unwrap();
    assert_eq!(list["aliases"][0], serde_json::json!({"name": "int8", "spec": "int:bits=8"}));
}

#[test]
fn errors_are_one_line_and_leave_no_file() {
    let folder = folder("errors");
    let mut rows = values(4 * 64);
    write_f32(&folder.join("x.f32"), &rows);
    std::fs::write(folder.join("short.f32"), [0; 100]).unwrap();
    std::fs::write(folder.join("text.safetensors"), "no tensors").unwrap();
    std::fs::write(folder.join("wide.npy"), npy("<f4", "(2, 100)", &values(200))).unwrap();
    std::fs::write(folder.join("ints.npy"), npy("<i4", "(2, 64)", &values(128))).unwrap();
    rows[2 * 64 + 5] = f32::NAN;
    write_f32(&folder.join("nan.f32"), &rows);
    std::fs::write(folder.join("nan.npy"), npy("<f4", "(4, 64)", &rows)).unwrap();

    let encode = |spec: &str, dim: &str, input: &str, words: &[&str]| {
        fails(&folder, &["encode", spec, "--dim", dim, input, "out"], words);
        assert!(!folder.join("out").exists());
    };
    encode("turboqant", "64", "x.f32", &["\"turboqant\"", "turboquant", "int"]);
    encode("turboquant:bits=0", "64", "x.f32", &["at \"0\"", "invalid value for bits: expected 1..=8"]);
    encode("int:gruop=32", "64", "x.f32", &["at \"gruop=32\"", "group="]);
    encode("turboquant", "100", "x.f32", &["width 100", "96", "128"]);
    encode("turboquant", "sixty", "x.f32", &["'sixty'", "--dim"]);
    encode("turboquant", "64", "missing.f32", &["missing.f32: no such file"]);
    encode("turboquant", "64", "short.f32", &["100 bytes", "256 bytes"]);
    encode("turboquant", "64", "nan.f32", &["row 2, column 5"]);
    encode("turboquant", "64", "wide.npy", &["[2, 100]", "64"]);
    encode("turboquant", "64", "ints.npy", &["<i4"]);
    fails(&folder, &["encode", "turboquant", "--dim", "64", "x.f32", "no/out"], &["no/out"]);
    // The first error is reported before the work, though the input is missing as well.
    fails(&folder, &["encode", "turboquant", "--dim", "64", "missing.f32", "no/out"], &["no/out"]);
    fails(&folder, &["compare", "--input", "missing.npy", "--json", "no/rows.json"], &["no/rows.json"]);
    fails(&folder, &["decode", "turboquant", "--dim", "64", "short.f32", "out"], &["100 bytes", "34 bytes"]);
    let score = ["score", "f32", "--dim", "64", "--query", "nan.f32", "x.f32", "out"];
    fails(&folder, &score, &["nan.f32", "row 2, column 5"]);
    fails(&folder, &["compare", "--backend", "sse9"], &["'sse9'", "scalar"]);
    fails(&folder, &["--input", "text.safetensors"], &["text.safetensors", "neither", "damaged: "]);
    fails(&folder, &["--input", "nan.npy"], &["nan.npy", "row 2, column 5"]);
    fails(&folder, &["--input", "wide.npy"], &["width 100"]);
    fails(&folder, &["--codecs", ";"], &["--codecs"]);
    fails(&folder, &["--codecs", "f16;int:bits=9"], &["at \"9\"", "2..=8"]);
    fails(&folder, &["info", "int:bits=4,bits=3"], &["at \"bits=3\"", "twice"]);
    std::fs::write(folder.join("model.gguf"), "GGUF").unwrap();
    std::fs::write(folder.join("kv.npz"), "PK\x03\x04").unwrap();
    fails(&folder, &["--input", "model.gguf"], &["model.gguf", "k, v and q", "octaplex capture"]);
    fails(&folder, &["--input", "kv.npz"], &["kv.npz", "zip archive", "safetensors"]);
    fails(&folder, &["decode"], &["<SPEC>", "required"]);
    fails(&folder, &["frobnicate"], &["frobnicate"]);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 9, "no file was left");
}

#[test]
fn a_dash_is_standard_output_and_json_says_where_it_comes_from() {
    let folder = folder("dash");
    let output = octaplex(&folder, &["--codecs", "int:bits=3", "--json", "-"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &json["run"];
    assert_eq!((&run["version"], &run["options"]["page"]), (&env!("CARGO_PKG_VERSION").into(), &64.into()));
    assert_eq!(
        (&run["options"]["codecs"][0], &run["arguments"][0]),
        (&"int:bits=3".into(), &"--codecs".into())
    );
    assert!(run["input"].as_str().unwrap().contains("bundled sample"), "{run}");
    assert!(!run["cpu"].as_str().unwrap().is_empty(), "{run}");
    let info: Value = serde_json::from_str(&succeeds(&folder, &["info", "--json"])).unwrap();
    assert_eq!((&info["backends"][0], &info["cpu"]), (&run["backend"], &run["cpu"]));
    let table = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && table.contains("KEYS"), "{table}");

    let output = octaplex(&folder, &["--codecs", "int", "--svg", "-"]);
    assert!(output.stdout.starts_with(b"<svg"));
    let output = octaplex(&folder, &["compare", "--cache", "--k", "int", "--v", "int", "--json", "-"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["attention_kl"].is_f64() && json["run"]["cpu"].is_string(), "{json}");
    fails(&folder, &["--json", "-", "--svg", "-"], &["two files", "standard output"]);
}

#[test]
fn colours_are_for_terminals() {
    let folder = folder("colours");
    let run = |variables: &[(&str, &str)], arguments: &[&str]| {
        let output = octaplex_with(&folder, variables, arguments);
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    for arguments in [&["--codecs", "f16"][..], &["info", "nothing"], &["--help"]] {
        assert!(!run(&[], arguments).contains('\u{1b}'), "{arguments:?}");
        assert!(run(&[("CLICOLOR_FORCE", "1")], arguments).contains("\u{1b}["), "{arguments:?}");
    }
}

/// A line for each codec and operation that it times.
#[test]
fn bench_times_what_it_is_asked() {
    let folder = folder("bench");
    let said = succeeds(&folder, &["bench", "--codecs", "trellis;qjl", "--dim", "64"]);
    for codec in ["trellis", "qjl"] {
        assert!(said.lines().any(|line| line.split_whitespace().next() == Some(codec)), "{said}");
    }
    fails(&folder, &["bench", "--codecs", "trellis", "--dim", "63"], &["63"]);
}

/// Every command's help, within the terminal, and with an example where there is something to show.
#[test]
fn help_fits_the_terminal() {
    let folder = folder("help");
    let help = |arguments: &[&str]| {
        let output = octaplex_with(&folder, &[("COLUMNS", "80")], &[arguments, &["--help"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{arguments:?}: {text}");
        text
    };
    let commands = help(&[]);
    for command in
        ["compare", "memory", "encode", "decode", "score", "info", "bench", "verify", "completions", "man"]
    {
        assert!(commands.contains(&format!("\n  {command} ")), "{commands}");
        let text = help(&[command]);
        assert!(text.contains(&format!("\n  octaplex {command} ")), "{command} has no example: {text}");
        // Man pages and completions are of the same commands.
        assert!(succeeds(&folder, &["man", command]).contains(&format!(".SH NAME\noctaplex\\-{command}")));
    }
    // The help lists commands in groups, and no command that was merged into another.
    let at = |words: &str| commands.find(words).unwrap_or_else(|| panic!("{words}: {commands}"));
    assert!(at("\nCodecs\n  compare ") < at("\n  score ") && at("\n  score ") < at("\nModels"));
    assert!(at("\n  capture ") < at("\n  sweep ") && at("\n  sweep ") < at("\nThis machine\n  bench "));
    assert_eq!(commands.contains("--features models"), cfg!(not(feature = "models")));
    for gone in ["attend", "plot", "backends"] {
        fails(&folder, &[gone], &[gone]);
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(succeeds(&folder, &["completions", shell]).contains("reconstructed-bits"), "{shell}");
    }
    assert!(succeeds(&folder, &["man"]).contains(".TH octaplex"));
    for (device, is_built) in [("cuda", cfg!(feature = "cuda")), ("hip", cfg!(feature = "hip"))] {
        let feature = format!("feature {device}");
        for command in ["bench", "compare"] {
            assert!(help(&[command]).contains(&feature));
            if !is_built {
                fails(&folder, &[command, "--device", device], &[&format!("--device {device}"), &feature]);
            }
        }
    }
    fails(&folder, &["man", "woman"], &["woman", "compare", "bench"]);
    fails(&folder, &["completions", "cmd"], &["'cmd'", "bash"]);
    for line in succeeds(&folder, &["info"]).lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// The GPU's output is as far from the exact one as the CPU's on the same pages. Without a GPU, the tool says what is missing.
#[cfg(feature = "gpu")]
#[test]
fn compare_on_a_gpu() {
    #[cfg(feature = "cuda")]
    compare_on("cuda");
    #[cfg(feature = "hip")]
    compare_on("hip");
}

#[cfg(feature = "gpu")]
#[allow(dead_code)] // a build with `gpu` alone has no GPU
fn compare_on(device: &str) {
    let folder = folder(&format!("compare_{device}"));
    let option = format!("--device {device}");
    let codecs = ["compare", "--device", device, "--codecs", "turboquant; octopus; int:bits=8; q8_0; f16"];
    let output = octaplex(&folder, &[&codecs[..], &["--json", "rows.json"]].concat());
    if !output.status.success() {
        let required =
            std::env::var("OCTAPLEX_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == device));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!required && error.starts_with(&format!("octaplex: {option}: ")), "{error}");
        assert_eq!((error.lines().count(), output.status.code()), (1, Some(2)), "{error}");
        println!("skipped: {error}");
        return;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("ON A GPU") && text.contains("Not on a GPU: q8_0; f16: "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let json: Value = serde_json::from_slice(&std::fs::read(folder.join("rows.json")).unwrap()).unwrap();
    let rows = json["gpu"]["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["codec"].as_str().unwrap()).collect();
    assert_eq!(names, ["turboquant", "octopus, values turboquant", "int:bits=8", "q8_0", "f16"]);
    for row in &rows[..3] {
        let of = |name: &str| row[name].as_f64().unwrap();
        println!("{row}");
        // The CPU's queries have 8 bits, whose error is negligible compared with 4 bits of keys and values.
        let ratio = of("output_error") / of("output_error_cpu");
        assert!(of("apart") < 1e-3 && (row["codec"] == "int:bits=8" || (ratio - 1.0).abs() < 0.2), "{row}");
    }
    let plain = [&codecs[..], &["--input", "x.npy"]].concat();
    std::fs::write(folder.join("x.npy"), npy("<f4", "(5, 64)", &values(5 * 64))).unwrap();
    fails(&folder, &plain, &[&option, "no queries"]);
}

#[cfg(not(feature = "models"))]
#[test]
fn a_command_of_a_missing_feature_says_how_to_get_it() {
    let folder = folder("missing");
    for command in ["capture", "calibrate", "perplexity", "generate", "needle", "sweep"] {
        let words = ["--features models", command, "--model x.gguf"];
        fails(&folder, &[command, "--model", "x.gguf", "--help"], &words);
    }
}

#[test]
fn npy_files_tell_their_width() {
    let folder = folder("npy");
    let x = values(5 * 64);
    std::fs::write(folder.join("x.npy"), npy("<f4", "(5, 64)", &x)).unwrap();
    write_f32(&folder.join("x.f32"), &x);
    succeeds(&folder, &["encode", "f32", "x.npy", "x.blocks"]);
    succeeds(&folder, &["decode", "f32", "--dim", "64", "x.blocks", "y.npy"]);
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let written = read("y.npy");
    assert!(String::from_utf8_lossy(&written).contains("'shape': (5, 64)"));
    // It is read again, by the tool as by others.
    succeeds(&folder, &["encode", "f32", "y.npy", "y.blocks"]);
    assert!(read("x.blocks") == read("y.blocks") && written.len() == 128 + 5 * 64 * 4);
    succeeds(&folder, &["score", "f32", "--query", "x.npy", "x.blocks", "s.npy"]);
    assert!(String::from_utf8_lossy(&read("s.npy")).contains("'shape': (5, 5)"));

    fails(&folder, &["encode", "f32", "x.f32", "out"], &["x.f32", "--dim", ".npy"]);
    fails(&folder, &["decode", "f32", "x.blocks", "out"], &["x.blocks", "--dim 128"]);
    fails(&folder, &["encode", "f32", "--dim", "32", "x.npy", "out"], &["[5, 64]", "--dim 32"]);
    fails(&folder, &["score", "f32", "--query", "x.f32", "x.blocks", "out"], &["x.f32", "--dim"]);
    assert!(!folder.join("out").exists());
}
