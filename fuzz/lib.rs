//! Bodies of the fuzz targets, compiled once for all of them.

#[path = "../tests/fuzz_bodies/mod.rs"]
pub mod bodies;
#[path = "../bindings/c/tests/fuzz_body/mod.rs"]
pub mod c_body;
#[path = "../tests/model.rs"]
pub mod model;

// The tool is a program, not a library. So its readers are included as files, with everything else in these files.
#[allow(dead_code)]
#[path = "../cli/src/console.rs"]
mod console;
#[allow(dead_code)]
#[path = "../cli/src/failure.rs"]
mod failure;
#[allow(dead_code)]
#[path = "../cli/src/files.rs"]
mod files;
#[allow(dead_code)]
#[path = "../cli/src/input.rs"]
mod input;
#[allow(dead_code)]
#[path = "../cli/src/npy.rs"]
mod npy;
#[allow(dead_code)]
#[path = "../cli/src/paths.rs"]
mod paths;
#[path = "../cli/tests/fuzz_body/mod.rs"]
pub mod reader_bodies;
