//! Calls codecs, each call within [`measured`]. `ci/instructions.sh` runs it under callgrind, which counts the instructions. A line
//! has backend, codec and width, the call, and the number of rows. Without callgrind nothing is measured.

use octaplex::codecs::{Codec, HeadId, PAGE};
use octaplex::{Backend, CodecSpec};
use std::hint::black_box;

/// Backends whose instructions callgrind knows, with codecs: one of each family of kernels.
const CASES: [(&str, &str); 8] = [
    ("avx2", "turboquant"),
    ("avx2", "trellis"),
    ("avx2", "graded"),
    ("avx2", "octopus"),
    ("avx2", "hqmq"),
    ("avx2", "polarquant"),
    ("portable", "turboquant"),
    ("portable", "trellis"),
];
const DIM: usize = 128;
/// Rows that queries go over.
const ROWS: usize = 4 * PAGE;
const QUERIES: usize = 8;

/// Runs the call whose instructions are counted.
#[inline(never)]
fn measured(call: &mut dyn FnMut()) {
    black_box(call)();
    black_box(()); // keeps this a call: without it the compiler emits a jump
}

/// Callgrind writes its counts when this function is entered.
#[inline(never)]
fn counted() {
    black_box(());
}

/// Returns Gaussian numbers: sums of twelve uniform ones.
fn gaussian(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

fn count(title: &str, codec: &dyn Codec, rows: &[f32]) -> Result<(), octaplex::Error> {
    let (dim, bytes) = (codec.dim(), codec.page_bytes_max(PAGE));
    let run = |what: &str, rows: usize, call: &mut dyn FnMut() -> Result<(), octaplex::Error>| {
        // Run once before, so that one-time detection is not counted.
        let mut result = call();
        measured(&mut || result = call());
        counted();
        println!("{title} {what} {rows}");
        result
    };
    let mut page = vec![0; bytes];
    let mut used = 0;
    run("encode", PAGE, &mut || codec.encode_page(&rows[..PAGE * dim], &mut page).map(|bytes| used = bytes))?;
    let (block, mut out) = (codec.block_bytes(), vec![0.0; dim]);
    if used == PAGE * block {
        run("decode", PAGE, &mut || {
            page[..used].chunks_exact(block).try_for_each(|block| codec.decode(block, &mut out))
        })?;
    }
    let mut queries = vec![0.0; QUERIES * codec.query_len()];
    for (q, query) in rows.chunks_exact(dim).zip(queries.chunks_exact_mut(codec.query_len())) {
        codec.prepare_query(q, query)?;
    }
    let queries: Vec<&[f32]> = queries.chunks_exact(codec.query_len()).collect();
    let pages: Vec<u8> =
        if used == PAGE * block { page[..used].repeat(ROWS / PAGE) } else { page[..used].to_vec() };
    let count = if used == PAGE * block { ROWS } else { PAGE };
    let mut scores = vec![0.0; QUERIES * count];
    run("score", count, &mut || codec.score(&queries[..1], &pages, &mut scores[..count]))?;
    run("score-8", count, &mut || codec.score(&queries, &pages, &mut scores))?;
    let weights: Vec<f32> = (0..count).map(|i| 1.0 / (i + 1) as f32).collect();
    let mut sums = vec![0.0; dim];
    run("sum", count, &mut || codec.accumulate(&weights, &pages, &mut sums))
}

fn main() -> Result<(), octaplex::Error> {
    for (name, spec) in CASES {
        let Some(backend) = Backend::available().find(|backend| backend.name() == name) else {
            eprintln!("this machine has no {name}");
            std::process::exit(1);
        };
        let codec = spec.parse::<CodecSpec>()?.build_dyn(DIM, backend, HeadId::default())?;
        count(&format!("{name} {spec} {DIM}"), &*codec, &gaussian(PAGE * DIM))?;
    }
    Ok(())
}
