//! Files of the tool: no input is overwritten, nothing endless is read, and no temporary file remains.

use crate::common::{fails, folder, succeeds};
use crate::samples::safetensors;
use crate::{npy, values, write_f32};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A run with a file, or bytes, as its standard input.
fn with_input(folder: &Path, input: Stdio, output: Stdio, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octaplex"));
    command.current_dir(folder).args(arguments).stdin(input).stdout(output).output().unwrap()
}

/// Every way to name an input as an output, and an output twice. The files stay as they were.
#[test]
fn no_input_is_an_output() {
    let folder = folder("same_files");
    std::fs::write(folder.join("x.npy"), npy("<f4", "(80, 64)", &values(80 * 64))).unwrap();
    std::fs::write(folder.join("q.npy"), npy("<f4", "(2, 64)", &values(2 * 64))).unwrap();
    write_f32(&folder.join("x.f32"), &values(80 * 64));
    std::fs::create_dir(folder.join("sub")).unwrap();
    std::fs::hard_link(folder.join("x.npy"), folder.join("hard.npy")).unwrap();
    let mut names = vec!["x.npy", "./x.npy", "sub/../x.npy"];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("x.npy", folder.join("link.npy")).unwrap();
        std::os::unix::fs::symlink("link.npy", folder.join("second.npy")).unwrap();
        names.extend(["hard.npy", "link.npy", "second.npy"]);
    }
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let before = ["x.npy", "q.npy", "x.f32"].map(read);
    let same = ["the same file as the input", "write to another file"];
    for name in names {
        fails(&folder, &["encode", "trellis", "x.npy", name], &same);
        fails(&folder, &["encode", "trellis", name, "x.npy"], &same);
        fails(&folder, &["score", "f32", "--query", "q.npy", "--dim", "64", "x.f32", "./q.npy"], &same);
        for option in ["--json", "--svg"] {
            fails(&folder, &["compare", "--input", "x.npy", option, name], &same);
        }
        let other =
            ["--input", "q.npy", "--reconstructed", "x.npy", "--reconstructed-bits", "4", "--json", name];
        fails(&folder, &other, &same);
    }
    fails(&folder, &["decode", "f32", "--dim", "64", "x.f32", "x.f32"], &same);
    fails(&folder, &["score", "f32", "--query", "q.npy", "--dim", "64", "x.f32", "sub/../x.f32"], &same);
    // Outputs that do not exist yet.
    let twice = ["--codecs", "f16", "--json", "new", "--svg", "sub/../new"];
    fails(&folder, &twice, &["sub/../new: the same file as the output new"]);
    assert!(!folder.join("new").exists());
    #[cfg(unix)]
    {
        // A file that the shell opens is also an input.
        let input = || Stdio::from(File::open(folder.join("x.npy")).unwrap());
        let output = with_input(&folder, input(), Stdio::null(), &["encode", "f32", "-", "hard.npy"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("hard.npy: the same file as standard input"), "{error}");
        let end = Stdio::from(File::options().append(true).open(folder.join("x.npy")).unwrap());
        let output = with_input(&folder, Stdio::null(), end, &["encode", "f32", "x.npy", "-"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("standard output: the same file as the input x.npy"), "{error}");
        let piped = with_input(&folder, input(), Stdio::piped(), &["encode", "f32", "-", "-"]);
        assert!(piped.status.success() && piped.stdout.len() == 80 * 64 * 4);
        succeeds(&folder, &["encode", "f32", "x.npy", "/dev/null"]);
        succeeds(&folder, &["--codecs", "f16", "--json", "/dev/null", "--svg", "/dev/null"]);
    }
    assert_eq!(["x.npy", "q.npy", "x.f32"].map(read), before);
}

/// Devices, pipes without an end and folders are refused at once, or after a limit; a pipe with an end is read.
#[cfg(unix)]
#[test]
fn nothing_endless_is_read() {
    let folder = folder("endless");
    assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
    for (file, words) in
        [("/dev/zero", "not a regular file"), ("/dev/full", "not a regular file"), (".", "is a folder")]
    {
        fails(&folder, &["--input", file], &[file, words]);
        fails(&folder, &["encode", "f32", "--dim", "64", file, "out"], &[file, words]);
        fails(&folder, &["verify", "--only", "int", "--against", file], &[file, words]);
        let other = ["--reconstructed", file, "--reconstructed-bits", "4", "--codecs", "f16"];
        fails(&folder, &other, &[file, words]);
    }
    let zeros = || Stdio::from(File::open("/dev/zero").unwrap());
    let output = with_input(&folder, zeros(), Stdio::null(), &["encode", "f32", "--dim", "64", "-", "out"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("standard input: more than 1073741824 bytes") && error.lines().count() == 1,
        "{error}"
    );
    // A writer sends one row through the pipe.
    let mut writer = Command::new("sh")
        .arg("-c")
        .arg("head -c 256 /dev/zero > pipe")
        .current_dir(&folder)
        .spawn()
        .unwrap();
    succeeds(&folder, &["encode", "f32", "--dim", "64", "pipe", "out"]);
    assert!(writer.wait().unwrap().success());
    assert_eq!(std::fs::read(folder.join("out")).unwrap(), [0; 256]);
    // Errors of standard input name it.
    let output = with_input(&folder, Stdio::null(), Stdio::null(), &["--input", "-"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("octaplex: standard input: ") && error.contains("it is empty"), "{error}");
}

/// Temporary files of killed runs go with the next run that writes there.
#[test]
fn files_of_killed_runs_are_removed() {
    let folder = folder("killed");
    std::fs::write(folder.join(".octaplex-q7Rk2Z.tmp"), "half").unwrap();
    std::fs::write(folder.join(".octaplex-notes.tmp2"), "mine").unwrap();
    succeeds(&folder, &["--codecs", "f16", "--json", "rows.json"]);
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [".octaplex-notes.tmp2", "rows.json"]);
}

/// Raw rows with their width, and the errors of such files.
#[test]
fn compare_takes_raw_rows() {
    let folder = folder("raw_rows");
    let rows = values(96 * 64);
    write_f32(&folder.join("x.f32"), &rows);
    std::fs::write(folder.join("x.npy"), npy("<f4", "(96, 64)", &rows)).unwrap();
    let compare = |more: &[&str]| {
        succeeds(
            &folder,
            &[&["compare", "--codecs", "int; trellis", "--json", "rows.json", "--input"], more].concat(),
        );
        let rows = std::fs::read(folder.join("rows.json")).unwrap();
        let rows: serde_json::Value = serde_json::from_slice(&rows).unwrap();
        ["distortion", "stored_bytes", "dim"].map(|name| rows["rows"][3][name].clone())
    };
    assert_eq!(compare(&["x.f32", "--dim", "64"]), compare(&["x.npy"]));
    compare(&["x.npy", "--dim", "64"]);
    fails(&folder, &["--input", "x.f32"], &["x.f32", "raw f32 rows need their width", "--dim 128"]);
    fails(
        &folder,
        &["--input", "x.f32", "--dim", "65"],
        &["24576 bytes are no whole number of rows", "260 bytes"],
    );
    fails(&folder, &["--input", "x.f32", "--dim", "0"], &["no whole number of rows"]);
    fails(
        &folder,
        &["--input", "x.npy", "--dim", "128"],
        &["x.npy: its vectors have width 64, not --dim 128"],
    );
    fails(&folder, &["--dim", "64"], &["--input"]);
    // A damaged file of tensors is no raw file.
    std::fs::write(folder.join("x.safetensors"), [1; 256]).unwrap();
    fails(&folder, &["--input", "x.safetensors", "--dim", "64"], &["damaged"]);
}

/// Nothing is advised on the strength of a few vectors, or of zeros.
#[test]
fn advice_needs_data() {
    let folder = folder("no_advice");
    let advice = |file: &str, more: &[&str]| {
        let text = succeeds(
            &folder,
            &[&["--input", file, "--codecs", "trellis; graded:bits=2; f16"], more].concat(),
        );
        assert!(!text.contains("a value take"), "{text}");
        text
    };
    for count in [1, 63] {
        let shape = format!("({count}, 64)");
        std::fs::write(folder.join("few.npy"), npy("<f4", &shape, &values(count * 64))).unwrap();
        let text = advice("few.npy", &[]);
        assert!(text.contains(&format!("Too few tokens to advise: {count}, and a page has 64.")), "{text}");
    }
    std::fs::write(folder.join("zeros.npy"), npy("<f4", "(70, 64)", &[0.0; 70 * 64])).unwrap();
    assert!(advice("zeros.npy", &[]).contains("All vectors are zero: no advice."));
    // Keys, or values, of a layer.
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let (some, none) = (bytes(&values(70 * 64)), bytes(&[0.0; 70 * 64]));
    for (zero, k, v) in [("keys", &none, &some), ("values", &some, &none)] {
        let of = |name, data: &Vec<u8>| (name, "F32", vec![70, 64], data.clone());
        std::fs::write(folder.join("kv.safetensors"), safetensors(&[of("k", k), of("v", v)])).unwrap();
        assert!(advice("kv.safetensors", &[]).contains(&format!("All {zero} are zero: no advice.")));
    }
    std::fs::write(folder.join("x.npy"), npy("<f4", "(64, 64)", &values(64 * 64))).unwrap();
    assert!(succeeds(&folder, &["--input", "x.npy"]).contains(" a value take "));
    // A user who gave a budget gets no advice to give one.
    let text = succeeds(&folder, &["--codecs", "q8_0", "--budget", "3"]);
    assert!(!text.contains("with --budget"), "{text}");
}
