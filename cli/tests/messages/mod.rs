//! Messages about mistakes, and about files that may be hostile.

use crate::common::{fails, folder, octaplex, succeeds};
use crate::samples::safetensors;
use crate::{npy, values};
use serde_json::Value;
use std::path::Path;

/// Lists of specs, and widths that a codec does not have.
#[test]
fn lists_and_widths_are_explained() {
    let folder = folder("lists");
    let list = ["compare", "--codecs", "trellis:m=2,int,f16"];
    fails(&folder, &list, &["separate specs by ;", "trellis:m=2;int;f16"]);
    fails(&folder, &["bench", "--codecs", "f16,trellis:m=2"], &["separate specs by ;"]);
    fails(&folder, &["compare", "--codecs", "int:bits=4,gruop=3"], &["at \"gruop=3\""]);
    // Grades halve the width: 80 is not among those that they have.
    fails(
        &folder,
        &["info", "graded", "--dim", "80"],
        &["width 80: its widths are 64, 128, 160, 192, 256, 512"],
    );
    let output = octaplex(&folder, &["info", "trellis", "--dim", "100"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("its widths are 32, 64, 80, 96, 112, 128, 160, 192, 256, 512, 576"), "{error}");
}

/// Misspelt names are answered with the nearest, and wrong options with the help of their command.
#[test]
fn mistakes_are_answered_with_what_was_meant() {
    let folder = folder("meant");
    for (spec, meant) in [
        ("trelis", "trellis"),
        ("Trellis:bits=3", "trellis"),
        ("turboqaunt", "turboquant"),
        ("q8-0", "q8_0"),
        ("int:gruop=32", "group"),
        ("turboquant:bit=3", "bits"),
    ] {
        fails(&folder, &["info", spec], &[&format!("did you mean {meant}? ")]);
        fails(&folder, &["--codecs", &format!("f16; {spec}")], &[&format!("did you mean {meant}? ")]);
    }
    fails(&folder, &["verify", "--only", "trelis"], &["did you mean trellis? "]);
    for spec in ["zebra", "", "int:zebra=1"] {
        let error = String::from_utf8(octaplex(&folder, &["info", spec]).stderr).unwrap();
        assert!(!error.contains("did you mean"), "{error}");
    }
    for (arguments, help) in [
        (&["encode", "--codec", "x"][..], "(see octaplex encode --help)"),
        (&["decode"], "(see octaplex decode --help)"),
        (&["bench", "--dim", "x"], "(see octaplex bench --help)"),
        (&["--budgt", "3"], "(see octaplex compare --help)"),
        (&["compare", "--budgt", "3"], "(see octaplex compare --help)"),
        (&["frobnicate"], "(see octaplex --help)"),
    ] {
        fails(&folder, arguments, &[help]);
        let error = String::from_utf8(octaplex(&folder, arguments).stderr).unwrap();
        assert!(!error.contains("as a value"), "{error}");
    }
    fails(
        &folder,
        &["encode", "--codec", "x"],
        &["usage: octaplex encode [OPTIONS] <SPEC> <INPUT> <OUTPUT> (see"],
    );
    // A word is answered with a command that is like it, if there is one.
    fails(&folder, &["memroy"], &["did you mean memory? "]);
    let error = String::from_utf8(octaplex(&folder, &["frobnicate"]).stderr).unwrap();
    assert!(!error.contains("calibrate") && !error.contains("did you mean"), "{error}");
    // A negative number is a number.
    fails(&folder, &["--budget", "-3"], &["'-3'", "--budget", "bits a value: 0.5 to 32"]);
    fails(&folder, &["compare", "--budget", "-0.5"], &["'-0.5'", "bits a value"]);
    fails(&folder, &["bench", "--dim", "-1"], &["'-1'", "--dim"]);
    fails(&folder, &["info", "int", "--dim", "-64"], &["'-64'", "--dim"]);
    fails(&folder, &["compare", "--cache", "--window", "-1"], &["'-1'", "--window"]);
    // Without a list of codecs no codec is to blame for a width.
    let error = String::from_utf8(octaplex(&folder, &["bench", "--dim", "7"]).stderr).unwrap();
    assert!(error.contains("--dim 7: width 7 is not supported; the widths are 32, 64"), "{error}");
}

/// Text from a file is cut and escaped before a terminal shows it.
#[test]
fn a_file_does_not_drive_the_terminal() {
    let folder = folder("hostile");
    let name = format!("\u{1b}[2J\u{1b}]0;title\u{7}{}", "x".repeat(3_000_000));
    let tensor = [(&*name, "F32", vec![1], vec![0; 4])];
    std::fs::write(folder.join("names.safetensors"), safetensors(&tensor)).unwrap();
    std::fs::write(folder.join("type.npy"), npy(&name[..60_000], "(2, 64)", &values(128))).unwrap();
    let shape = format!("({})", "1,".repeat(25_000));
    std::fs::write(folder.join("shape.npy"), npy("<f4", &shape, &values(64))).unwrap();
    std::fs::write(folder.join("sums.txt"), format!("int {name} {name}\n")).unwrap();
    for run in [
        &["--input", "names.safetensors"][..],
        &["--input", "type.npy"],
        &["--input", "shape.npy"],
        &["verify", "--only", "int", "--against", "sums.txt"],
        &["info", &name[..10_000]],
    ] {
        let output = octaplex(&folder, run);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!output.status.success() && text.len() < 2500, "{}: {} bytes", run[0], text.len());
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    }
    // Metadata that is shown with the results.
    let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/sample.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    header["__metadata__"]["model"] = name.into();
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes[8 + length..]].concat();
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    let text = succeeds(&folder, &["--input", "model.safetensors", "--codecs", "f16"]);
    assert!(text.len() < 4000 && !text.contains('\u{1b}') && text.contains("u{1b}[2J"), "{text}");
}
