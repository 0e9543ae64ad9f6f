//! `verify`: compares the checksums that this machine computes with the published table.

use crate::codecs::did_you_mean;
use crate::console;
use crate::failure::{At, Result, fail, shown};
use crate::files;
use octaplex::verify::{Checksums, MEMORY, check, expected, together};
use octaplex::{Backend, CodecSpec};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `verify`.
#[derive(clap::Args)]
#[command(
    after_help = "The exit code is 1 if a checksum differs.\n\nExample:\n  octaplex verify --backend scalar"
)]
pub(crate) struct Verify {
    /// Instructions to use; `octaplex info` lists them
    #[arg(long, value_name = "NAME", value_parser = crate::backend::parse)]
    backend: Option<Backend>,
    /// Check only these codecs
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Table that another machine or version printed, instead of the one in this build
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
}

/// Prints a line per codec, and one for all.
pub(crate) fn run(arguments: &Verify) -> Result<ExitCode> {
    let codecs = || CodecSpec::all().iter().map(|codec| codec.name);
    if let Some(unknown) = arguments.only.iter().find(|only| !codecs().any(|name| name == **only)) {
        let meant = did_you_mean(unknown, codecs());
        fail!(
            "--only \"{unknown}\": {meant}no such codec; the codecs are {}",
            codecs().collect::<Vec<_>>().join(", ")
        );
    }
    let against = match &arguments.against {
        Some(path) => Some(String::from_utf8_lossy(&files::read(path)?).into_owned()),
        None => None,
    };
    // The line that is expected, as it is printed.
    let must_be = |name: &str| match &against {
        Some(text) => {
            let found = text.lines().find(|line| line.split_whitespace().next() == Some(name));
            found.map(|line| line.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" "))
        }
        None => expected(name).map(|sums| sums.to_string()),
    };
    if let Some(path) = &arguments.against
        && !codecs().any(|name| must_be(name).is_some())
    {
        fail!("{}: names no codec; give a table that `octaplex verify` printed", path.display());
    }
    let backend = arguments.backend.unwrap_or_else(Backend::detect);
    console::say(&format!("{:14} blocks   cache, on the backend {}\n", "codec", backend.name()))?;
    let (mut memory, mut sums, mut differ) = (vec![0.0; MEMORY], Vec::<Checksums>::new(), Vec::new());
    for name in
        codecs().filter(|name| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name))
    {
        let found = check(name, backend, &mut memory).at(name)?;
        sums.push(found);
        let note = match must_be(name) {
            Some(wanted) if wanted == found.to_string() => String::new(),
            wanted => {
                differ.push(name);
                format!("   must be {}", wanted.as_deref().map_or("in the table, and is not".into(), shown))
            }
        };
        console::say(&format!("{name:14} {found}{note}\n"))?;
    }
    let count = sums.len();
    if arguments.only.is_empty() {
        console::say(&format!("{:14} {:08x}\n", "all", together(sums)))?;
    }
    if differ.is_empty() {
        let codecs = if count == 1 { "codec computes" } else { "codecs compute" };
        let of = match &arguments.against {
            Some(path) => format!("what {} says", path.display()),
            None => "what they must on every machine".into(),
        };
        console::say(&format!("yes: {count} {codecs} {of}, on the backend {}\n", backend.name()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let differ = format!("{} of {count} codecs differ: {}", differ.len(), differ.join(", "));
    anstream::eprintln!("{} {differ}", console::paint(console::RED, "octaplex:"));
    Ok(ExitCode::FAILURE)
}
