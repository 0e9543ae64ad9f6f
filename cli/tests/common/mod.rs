//! Runs of the tool, for its tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of the test's own.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

pub(crate) fn octaplex(folder: &Path, arguments: &[&str]) -> Output {
    octaplex_with(folder, &[], arguments)
}

/// The same with variables of the environment.
pub(crate) fn octaplex_with(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octaplex"));
    command.current_dir(folder).envs(variables.iter().copied()).args(arguments).output().unwrap()
}

/// Standard output of a run that must succeed, without anything on standard error but the progress of a slow machine.
pub(crate) fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = octaplex(folder, arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    let errors: Vec<_> = errors.lines().filter(|line| !line.starts_with("progress: ")).collect();
    assert_eq!((output.status.code(), errors), (Some(0), vec![]), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The error of a run that must fail: exit code 2 and one line, which holds all of `words`.
pub(crate) fn fails(folder: &Path, arguments: &[&str], words: &[&str]) {
    let output = octaplex(folder, arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    let errors: String =
        errors.split_inclusive('\n').filter(|line| !line.starts_with("progress: ")).collect();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
    assert!(errors.starts_with("octaplex: ") && errors.ends_with('\n'), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    for word in words {
        assert!(errors.contains(word), "{arguments:?}: no \"{word}\" in: {errors}");
    }
}
