//! Searches the sources for what `docs/architecture.md` forbids.
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

/// Every Rust file of the repository, except this one, which names what it forbids.
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

/// Files that may use `unsafe`: they call other languages, are called by them, or provide an allocator.
/// `tests/gpu/engine.rs` stands in for an engine with its own GPU memory.
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
        // An allocator, with which the test counts memory, is unsafe.
        if name.starts_with("arch/") || name == "tests/memory.rs" || is_boundary(&name) {
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

/// `arch/` has a folder for each layout of bytes, with the files below. It does not name codecs: their names, codebooks
/// and formats are in `src/`.
#[test]
fn arch_knows_shapes() {
    const SHAPES: &[&str] = &[
        "affine",
        "angles",
        "blocks",
        "codes",
        "quaternions",
        "scaled",
        "signs",
        "trellis",
        "triplets",
        "vectors",
    ];
    const IMPLEMENTATIONS: &[&str] = &["layout", "scalar", "portable", "wide", "avx2", "avx512"];
    // Code that several implementations of a layout share, or that only this layout has.
    const BESIDES: &[&str] = &["trellis/search", "vectors/hadamard", "vectors/baseline"];
    for (name, text) in files("arch", &["rs"]) {
        let place = name.strip_prefix("arch/").unwrap().strip_suffix(".rs").unwrap();
        let (module, rest) = place.split_once('/').unwrap_or((place, ""));
        // GPU kernels do not implement the CPU's specifications: tests/gpu.rs compares them.
        if ["tests", "registers", "rows", "device"].contains(&module) {
            continue;
        }
        if rest.is_empty() {
            let shared =
                ["lib", "detect", "dispatch", "environment", "floats", "internals", "prefetch", "rows"]
                    .contains(&module);
            assert!(shared || SHAPES.contains(&module), "{name} is no module of arch/");
            continue;
        }
        let implementation = rest.split('/').next().unwrap();
        let known = IMPLEMENTATIONS.contains(&implementation)
            || BESIDES.contains(&&*format!("{module}/{implementation}"));
        assert!(SHAPES.contains(&module) && known, "{name} is no module of arch/");
        // These files must not depend on an instruction set.
        if ["scalar", "portable", "layout"].contains(&implementation) {
            assert!(!text.contains("core::arch"), "{name} uses an instruction set");
        }
    }
    for shape in SHAPES {
        assert!(root().join(format!("arch/{shape}/scalar.rs")).exists(), "{shape} has no specification");
    }
    // `octaplex` uses `octaplex-device`, and both use `octaplex-arch`, whose manifest contains its own name.
    for (manifest, above) in [
        ("arch/Cargo.toml", &["\noctaplex ", "\noctaplex-device "][..]),
        ("arch/device/Cargo.toml", &["\noctaplex "]),
    ] {
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        assert!(!above.iter().any(|name| text.contains(name)), "{manifest} depends on {above:?}");
    }
    // These codecs have the name of a layout or of a number format.
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

/// Cargo runs a file of `tests/` only if a `mod` line names it. The suite names all files, except those of other binaries,
/// and a file in a folder is named by the folder's file.
#[test]
fn every_file_of_tests_is_in_the_suite() {
    let files = files("tests", &["rs"]);
    for (name, _) in &files {
        let module = name.trim_end_matches(".rs").trim_end_matches("/mod");
        let (folder, module) = module.rsplit_once('/').unwrap();
        if folder == "tests" && ["suite", "features", "gpu", "memory", "rayon", "serde"].contains(&module) {
            continue;
        }
        let parents = match folder {
            "tests" => ["tests/suite.rs".into(), String::new()],
            _ => [format!("{folder}.rs"), format!("{folder}/mod.rs")],
        };
        let (parent, text) = files.iter().find(|(name, _)| parents.contains(name)).unwrap();
        let declared = [format!("mod {module};"), format!("pub mod {module};")];
        assert!(
            text.lines().any(|line| declared.iter().any(|mod_| line == mod_)),
            "{name} is not in {parent}"
        );
    }
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (tests, lints) = (read("ci/tests.sh"), read("ci/lints.sh"));
    assert!(
        read("ci/steps.py").contains(r#""lints", "suite", "readme", "tests""#)
            && tests.contains("--test rayon --test serde")
            && tests.contains("--test gpu")
            && lints.contains("ci/features.sh"),
        ".ci/run does not run what is not in the suite"
    );
}

/// Pages name the minimum Rust version that `Cargo.toml` declares.
#[test]
fn one_minimum_of_rust() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let declared =
        manifest.split("\nrust-version = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    for file in ["README.md", "docs/architecture.md"] {
        assert!(fs::read_to_string(root().join(file)).unwrap().contains(declared), "{file} lacks {declared}");
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
        "spec.rs",
        "random.rs",
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
    assert!(files("src", &["rs"]).len() > 5);
}

/// Files have at most 620 lines, tests 700. Generated tables have no limit.
#[test]
fn files_stay_readable() {
    for (name, text) in rust_files() {
        let limit = match &*name {
            name if name.starts_with("src/codebook/") && name.ends_with("tables.rs") => usize::MAX,
            name if name.contains("tests/") => 700,
            _ => 620,
        };
        let lines = text.lines().count();
        assert!(lines <= limit, "{name} has {lines} lines; {limit} is the cap");
    }
}

#[test]
fn sources_have_no_marks_of_unfinished_work() {
    let mut files = files(
        "",
        &["rs", "md", "toml", "sh", "js", "py", "yml", "yaml", "cuh", "mjs", "ts", "css", "c", "h"],
    );
    files.retain(|(name, _)| name != "tests/architecture.rs");
    for (name, text) in files {
        for (number, line) in text.lines().enumerate() {
            for word in ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!(", "dbg!("] {
                assert!(!line.contains(word), "{name}:{}: {word}", number + 1);
            }
        }
    }
}
