//! Everything has its place: searches that keep `docs/architecture.md` true.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex::CodecSpec;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files below `folder` with one of the extensions, as (path from the root, text).
fn files(folder: &str, extensions: &[&str]) -> Vec<(String, String)> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.')
                    && !["target", "node_modules", "artifacts", "corpus"].contains(&&*name)
                {
                    walk(&path, found);
                }
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), &mut found);
    found.sort();
    let wanted =
        |path: &PathBuf| path.extension().is_some_and(|e| extensions.iter().any(|wanted| e == *wanted));
    found
        .into_iter()
        .filter(wanted)
        .map(|path| {
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// Every Rust file of the repository but this one, which names what it forbids.
fn rust_files() -> Vec<(String, String)> {
    let mut files = files("", &["rs"]);
    files.retain(|(name, _)| name != "tests/architecture.rs");
    assert!(
        files.iter().any(|(name, _)| name == "src/lib.rs")
            && files.iter().any(|(name, _)| name == "arch/lib.rs")
    );
    files
}

fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Rooms at a foreign boundary: other languages or a linker call in, or others are called, and a heap has to be brought along; and a
/// test that is an engine with memory of its own on a GPU.
fn is_boundary(name: &str) -> bool {
    let folders =
        ["bindings/", "benches/peers/", "ci/portable/", "ci/sizes/", "ci/panics/", "tests/gpu/engine.rs"];
    folders.iter().any(|folder| name.starts_with(folder))
}

#[test]
fn instructions_live_in_arch() {
    for (name, text) in rust_files() {
        if name.starts_with("arch/") || is_boundary(&name) {
            continue;
        }
        for (number, line) in code_lines(&text) {
            for word in ["core::arch", "std::arch", "target_feature", "asm!"] {
                assert!(!line.contains(word), "{name}:{number}: {word} belongs into arch/");
            }
        }
    }
}

#[test]
fn unsafe_lives_in_arch() {
    for (name, text) in rust_files() {
        if name.starts_with("arch/") || is_boundary(&name) {
            continue;
        }
        for (number, line) in code_lines(&text) {
            let forbids = line.trim() == "#![forbid(unsafe_code)]";
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            assert!(forbids || !words.any(|word| word == "unsafe"), "{name}:{number}: {line}");
        }
    }
    for library in ["src/lib.rs", "cli/src/main.rs"] {
        let text = fs::read_to_string(root().join(library)).unwrap();
        assert!(text.contains("\n#![forbid(unsafe_code)]\n"), "{library} forbids unsafe code");
    }
    assert!(fs::read_to_string(root().join("src/lib.rs")).unwrap().contains("\n#![no_std]\n"));
}

/// arch/ knows shapes of bytes, not what they are for: a folder is a shape and all that is computed on it, in files of
/// these names. What a codec is called, how its codebook came about and what its bytes promise is said in src/.
#[test]
fn arch_knows_shapes() {
    const SHAPES: &[&str] =
        &["affine", "angles", "blocks", "codes", "quaternions", "signs", "trellis", "triplets", "vectors"];
    const IMPLEMENTATIONS: &[&str] = &["layout", "scalar", "portable", "wide", "avx2", "avx512"];
    // What several implementations of one shape share, or a shape has besides.
    const BESIDES: &[&str] = &["trellis/search", "vectors/hadamard", "vectors/baseline"];
    for (name, text) in files("arch", &["rs"]) {
        let place = name.strip_prefix("arch/").unwrap().strip_suffix(".rs").unwrap();
        let (module, rest) = place.split_once('/').unwrap_or((place, ""));
        // GPU kernels do not implement the CPU's specifications: tests/gpu.rs compares them.
        if ["tests", "benches", "registers", "rows", "device"].contains(&module) {
            continue;
        }
        if rest.is_empty() {
            let shared =
                ["lib", "detect", "dispatch", "environment", "floats", "prefetch", "rows"].contains(&module);
            assert!(shared || SHAPES.contains(&module), "{name} is no module of arch/");
            continue;
        }
        let implementation = rest.split('/').next().unwrap();
        let known = IMPLEMENTATIONS.contains(&implementation)
            || BESIDES.contains(&&*format!("{module}/{implementation}"));
        assert!(SHAPES.contains(&module) && known, "{name} is no module of arch/");
        // The specification can be read without any instruction set, and instructions without a specification of theirs
        // would be none.
        if ["scalar", "portable", "layout"].contains(&implementation) {
            assert!(!text.contains("core::arch"), "{name}: a specification that names instructions");
        }
    }
    for shape in SHAPES {
        assert!(root().join(format!("arch/{shape}/scalar.rs")).exists(), "{shape} has no specification");
    }
    let manifest = fs::read_to_string(root().join("arch/Cargo.toml")).unwrap();
    // Its own name is there too: tests ask for its features.
    assert!(!manifest.contains("\noctaplex "), "arch/ must not depend on what gives its bytes a meaning");
    // Names of shapes and of plain number formats are words of their own.
    let words = ["int", "f16", "bf16", "f32", "trellis"];
    for codec in CodecSpec::all().iter().map(|codec| codec.name).filter(|name| !words.contains(name)) {
        for (name, text) in files("arch", &["rs", "cuh", "toml"]) {
            let text = text.to_lowercase();
            assert!(
                !text.contains(codec) && !text.contains(&codec.replace('-', "_")),
                "{name} names {codec}"
            );
        }
    }
}

#[test]
fn every_codec_is_in_the_table() {
    let readme = fs::read_to_string(root().join("docs/codecs.md")).unwrap();
    for codec in CodecSpec::all() {
        let row = readme.lines().filter(|line| line.starts_with("| `")).find(|line| {
            line.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{}`", codec.name)))
        });
        assert!(row.is_some(), "docs/codecs.md has no row for `{}`", codec.name);
    }
}

#[test]
fn every_codec_has_a_golden_file() {
    for codec in CodecSpec::all() {
        let file = format!("tests/golden/{}.hex", codec.name);
        assert!(root().join(&file).exists(), "{file} is missing");
    }
}

/// The tests are one binary, but for what wants a GPU or threads; a file that it does not name is not run.
#[test]
fn every_file_of_tests_is_in_the_suite() {
    let suite = fs::read_to_string(root().join("tests/suite.rs")).unwrap();
    for (name, _) in files("tests", &["rs"]) {
        let module = name.strip_prefix("tests/").unwrap().trim_end_matches(".rs");
        assert!(
            ["suite", "features", "gpu", "rayon", "serde"].contains(&module)
                || module.contains('/')
                || suite.contains(&format!("\nmod {module};\n")),
            "{name} is not in tests/suite.rs"
        );
    }
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (run, tests, lints) = (read(".ci/run"), read("ci/tests.sh"), read("ci/lints.sh"));
    assert!(
        run.contains("\nhere=(format lints readme tests ")
            && tests.contains("--test rayon --test serde")
            && tests.contains("--test gpu")
            && lints.contains("ci/features.sh"),
        ".ci/run does not run what is not in the suite"
    );
}

/// The declared compiler is the one that is named: CI builds with it.
#[test]
fn one_minimum_of_rust() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let declared =
        manifest.split("\nrust-version = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    for (file, words) in [("README.md", "A clone needs Rust "), ("docs/architecture.md", "**MSRV ")] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let named = text.split(words).nth(1).unwrap();
        let digits = named.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap();
        assert_eq!(&named[..digits], declared, "{file}");
    }
}

/// A new module of src/ is a decision. It is written here and in docs/architecture.md.
#[test]
fn the_modules_of_src() {
    const MODULES: &[&str] = &[
        "attention.rs",
        "backend.rs",
        "cache.rs",
        "cells.rs",
        "chunk.rs",
        "codebook.rs",
        "codec.rs",
        "codecs.rs",
        "dynamic.rs",
        "error.rs",
        "gpu.rs",
        "lib.rs",
        "math.rs",
        "page.rs",
        "profile.rs",
        "rotation.rs",
        "rows.rs",
        "sketch.rs",
        "spec.rs",
        "random.rs",
        "typed.rs",
        "verify.rs",
    ];
    for (name, _) in files("src", &["rs"]) {
        let module = name.strip_prefix("src/").unwrap();
        match module.split_once('/') {
            None => assert!(MODULES.contains(&module), "{name} is no module of src/"),
            Some((folder, _)) => {
                assert!(
                    [
                        "attention",
                        "cells",
                        "codebook",
                        "codec",
                        "codecs",
                        "cache",
                        "chunk",
                        "gpu",
                        "page",
                        "profile"
                    ]
                    .contains(&folder),
                    "{name}: no module of src/ has a folder {folder}/"
                );
            }
        }
    }
    assert!(!root().join("src/utils.rs").exists() && files("src", &["rs"]).len() > 5);
}

/// A file that cannot be read in one sitting has two subjects. Tables are data; test suites may run on.
#[test]
fn files_stay_readable() {
    for (name, text) in rust_files() {
        let limit = match &*name {
            name if name.contains("tables") => usize::MAX,
            name if name.contains("tests/") => 700,
            _ => 620,
        };
        let lines = text.lines().count();
        assert!(lines <= limit, "{name} has {lines} lines; {limit} is the cap");
    }
}

#[test]
fn nothing_is_left_for_later() {
    let mut files = files("", &["rs", "md", "toml", "sh", "js", "py", "yml", "yaml", "cu", "c", "h"]);
    files.retain(|(name, _)| name != "tests/architecture.rs");
    for (name, text) in files {
        for (number, line) in text.lines().enumerate() {
            for word in ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!(", "dbg!("] {
                assert!(!line.contains(word), "{name}:{}: {word}", number + 1);
            }
        }
    }
}

/// Tests that nobody would miss: each says what must hold.
#[test]
fn every_test_asserts() {
    for (name, text) in files("tests", &["rs"]) {
        for test in text.split("#[test]\n").skip(1) {
            let body = test.split("\n}\n").next().unwrap();
            let function = body.split("fn ").nth(1).and_then(|f| f.split('(').next()).unwrap_or("?");
            let asserts = [
                "assert",
                "unwrap",
                "expect",
                "panic!",
                "check",
                "compare",
                "random_calls",
                "refused",
                "replay",
                "are_exact",
                "lives",
            ];
            assert!(asserts.iter().any(|word| body.contains(word)), "{name}: {function} asserts nothing");
        }
    }
}
