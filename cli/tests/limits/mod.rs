//! Commands on models at their limits: short caches, small budgets, paths that are no regular files.

use crate::common::{fails, octaplex, succeeds};
use crate::{MODEL, json, model};

/// Before the first page closes, the estimated size of pages is printed, not 0.
#[test]
fn short_caches_say_what_pages_take() {
    let (folder, _) = model("short", "qwen2");
    let in_pages = |tokens| {
        let options = ["--tokens", tokens, "--json", "out.json"];
        let shown = succeeds(&folder, &[&["perplexity"], &MODEL[..], &options].concat());
        let pages = json(&folder.join("out.json"))["bits_per_value_pages"].as_f64().unwrap();
        assert!(shown.contains(&format!("in pages {pages:.3}\n")), "{shown}");
        pages
    };
    let (short, long) = (in_pages("64"), in_pages("600"));
    assert!(short > 3.0 && (short - long).abs() < 0.1, "{short} {long}");
    let shown = succeeds(&folder, &["generate", "--model", "tiny.gguf", "--prompt", "abc", "--new", "2"]);
    let shown = shown.replace('\n', " ");
    assert!(shown.contains(&format!("the saving: pages take {short:.2} bits a value.")), "{shown}");
}

/// A budget that is too small is answered with the least for this model's width, alone or with a profile.
#[test]
fn a_budget_names_the_least_for_the_model() {
    let (folder, _) = model("least", "qwen2");
    let run = |bits| [&["perplexity"], &MODEL[..], &["--tokens", "300", "--budget", bits]].concat();
    let error = String::from_utf8(octaplex(&folder, &run("1")).stderr).unwrap();
    assert!(error.contains("at width 32: give at least 2.") && !error.contains("128"), "{error}");
    let least = error.trim_end().rsplit(' ').next().unwrap();
    succeeds(&folder, &run(least));
    let below = format!("{:.1}", least.parse::<f64>().unwrap() - 0.1);
    fails(&folder, &run(&below), &[&format!("give at least {least}")]);
    fails(&folder, &run("-3"), &["'-3'", "--budget", "(see octaplex perplexity --help)"]);
}

/// A model, a text, a profile and a session are none of the files that a command writes.
#[test]
fn no_input_is_an_output() {
    let (folder, _) = model("same_files", "qwen2");
    let before = ["tiny.gguf", "text.txt"].map(|name| std::fs::read(folder.join(name)).unwrap());
    std::fs::hard_link(folder.join("text.txt"), folder.join("hard")).unwrap();
    let same = ["the same file as the input", "write to another file"];
    for (command, options) in [
        ("capture", &["--out"][..]),
        ("calibrate", &["--out"]),
        ("perplexity", &["--json", "--write-tokens"]),
        ("generate", &["--json", "--session"]),
        ("needle", &["--json"]),
        ("sweep", &["--rows", "--svg", "--csv"]),
    ] {
        for option in options {
            for file in ["./tiny.gguf", "text.txt", if cfg!(unix) { "hard" } else { "text.txt" }] {
                let tokens: &[&str] = if command == "generate" { &["--tokens", "200"] } else { &[] };
                fails(&folder, &[&[command], &MODEL[..], tokens, &[option, file]].concat(), &same);
            }
        }
    }
    // The files that calibrate writes next to its profile, the other files of a split model, and a session.
    let part = ["calibrate", "--model", "tiny.gguf", "--text", "a.part", "--out", "a"];
    std::fs::write(folder.join("a.part"), "{}\n").unwrap();
    fails(&folder, &part, &same);
    let split = ["--model", "m-00001-of-00002.gguf", "--text", "text.txt", "--out", "m-00002-of-00002.gguf"];
    fails(&folder, &[&["capture"], &split[..]].concat(), &same);
    let profile = ["--budget", "3", "--profile", "a.part", "--json", "a.part"];
    fails(&folder, &[&["perplexity"], &MODEL[..], &profile].concat(), &same);
    let session = ["--tokens", "200", "--session", "s", "--json", "./s"];
    fails(&folder, &[&["generate"], &MODEL[..], &session].concat(), &["the same file as the output"]);
    assert_eq!(["tiny.gguf", "text.txt"].map(|name| std::fs::read(folder.join(name)).unwrap()), before);
    assert_eq!(std::fs::read(folder.join("a.part")).unwrap(), b"{}\n");
}

/// A session, a profile, rows and a model are regular files. Others are refused before they are opened.
#[cfg(unix)]
#[test]
fn nothing_endless_is_read() {
    let (folder, _) = model("endless", "qwen2");
    assert!(std::process::Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
    std::fs::write(folder.join("long"), vec![b'a'; (1 << 20) + 1]).unwrap();
    for (file, words) in [
        ("/dev/full", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("pipe", "not a regular file"),
        (".", "is a folder"),
    ] {
        let generate = ["--tokens", "200", "--new", "1", "--session", file];
        fails(&folder, &[&["generate"], &MODEL[..], &generate].concat(), &[file, words]);
        let profile = ["--budget", "3", "--profile", file];
        fails(&folder, &[&["perplexity"], &MODEL[..], &profile].concat(), &[file, words]);
        fails(&folder, &[&["sweep"], &MODEL[..], &["--rows", file]].concat(), &[file, words]);
        fails(&folder, &["perplexity", "--model", file, "--text", "text.txt"], &[file, words]);
        if file != "pipe" {
            fails(&folder, &["perplexity", "--model", "tiny.gguf", "--text", file], &[file, words]);
        }
    }
    let long = ["--budget", "3", "--profile", "long"];
    fails(
        &folder,
        &[&["perplexity"], &MODEL[..], &long].concat(),
        &["long: 1048577 bytes, but at most 1048576 are read"],
    );
}
