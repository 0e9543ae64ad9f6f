//! Calls of codecs, each within [`measured`], whose instructions `ci/instructions.sh` has callgrind count. Prints a line for each:
//! backend, codec and width, what is called, rows that it goes over. Run by itself it times nothing.

use octaplex::codecs::{Codec, Stream};
use octaplex::{Backend, CodecSpec};
use std::hint::black_box;

/// Codecs, and their widths.
const CODECS: [(&str, &[usize]); 22] = [
    ("turboquant:bits=2", &[128]),
    ("turboquant:bits=3", &[128]),
    ("turboquant", &[64, 80, 128]),
    ("turboquant:bits=8", &[128]),
    ("trellis:m=2", &[64, 128]),
    ("trellis", &[64, 80, 128]),
    ("trellis:m=8", &[64, 128]),
    ("trellis:states=16", &[128]),
    ("graded", &[64, 128]),
    ("octopus", &[128]),
    ("octopus-qjl", &[128]),
    ("hqmq", &[128]),
    ("polarquant", &[128]),
    ("tq3_0", &[128]),
    ("qjl", &[128]),
    ("turboquant-qjl", &[128]),
    ("int", &[128]),
    ("int:med=3", &[128]),
    ("f16", &[128]),
    ("fp8", &[128]),
    ("q8_0", &[128]),
    ("q4_0", &[128]),
];
/// Backends of which callgrind knows the instructions.
const BACKENDS: [&str; 2] = ["avx2", "portable"];
/// Rows of a page.
const PAGE: usize = 64;
/// Rows that queries go over.
const ROWS: usize = 4 * PAGE;
const QUERIES: usize = 8;

/// What is counted: everything within.
#[inline(never)]
fn measured(call: &mut dyn FnMut()) {
    black_box(call)();
    black_box(()); // so that this is a function that returns, not a jump
}

/// Where callgrind is to write down what it has counted.
#[inline(never)]
fn counted() {
    black_box(());
}

/// Sums of twelve uniform numbers.
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
        // Once before: what is found out only once is not counted.
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
    for name in BACKENDS {
        let Some(backend) = Backend::available().find(|backend| backend.name() == name) else {
            eprintln!("this machine has no {name}");
            std::process::exit(1);
        };
        for (spec, dims) in CODECS {
            for &dim in dims {
                let codec = spec.parse::<CodecSpec>()?.build_dyn(dim, backend, Stream::default())?;
                count(&format!("{name} {spec} {dim}"), &*codec, &gaussian(PAGE * dim))?;
            }
        }
    }
    Ok(())
}
