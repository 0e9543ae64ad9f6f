//! Fetches ggml's sources and compiles them for the instructions that PEERS_ISA names.

use std::env::var;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=src/ggml.c");
    println!("cargo:rerun-if-changed=CMakeLists.txt");
    println!("cargo:rerun-if-env-changed=PEERS_ISA");
    let isa = var("PEERS_ISA").unwrap_or_else(|_| "avx2".into());
    assert!(["avx2", "avx512"].contains(&isa.as_str()), "PEERS_ISA is avx2 or avx512");
    let sources = format!("{}/ggml", var("OUT_DIR").expect("cargo says where"));
    let fetched = Command::new("../../ci/ggml.sh").args(["sources", &sources]).status();
    assert!(fetched.is_ok_and(|status| status.success()), "ci/ggml.sh has not fetched ggml's sources");
    let built = cmake::Config::new(".")
        .define("GGML", &sources)
        .define("AVX512", if isa == "avx512" { "ON" } else { "OFF" })
        .profile("Release")
        .build_target("peers-ggml")
        .build();
    let folder = built.join("build");
    println!("cargo:rustc-env=PEERS_ISA={isa}");
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rustc-link-search=native={}/ggml/src", folder.display());
    for library in ["peers-ggml", "ggml", "ggml-cpu", "ggml-base"] {
        println!("cargo:rustc-link-lib=static={library}");
    }
    for library in ["stdc++", "m", "pthread"] {
        println!("cargo:rustc-link-lib={library}");
    }
}
