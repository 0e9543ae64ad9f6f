//! The linker needs the runtime's script, which reads `memory.x` in this folder. Without it the image is empty.
//! A build script says so from whatever folder Cargo is called.

fn main() {
    println!("cargo::rerun-if-changed=memory.x");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none") {
        println!("cargo::rustc-link-search={}", env!("CARGO_MANIFEST_DIR"));
        println!("cargo::rustc-link-arg-bins=-Tlink.x");
    }
}
