//! The origin of numbers: the head of every JSON file.

use crate::backend::cpu;
use octaplex::Backend;
use serde_json::{Value, json};

/// Returns version, machine, inputs and options.
pub(crate) fn json(input: &str, backend: Backend, options: Value) -> Value {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"), "cpu": cpu(), "backend": backend.name(), "input": input,
        "options": options, "arguments": arguments,
    })
}
