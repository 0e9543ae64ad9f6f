//! `mca BACKEND CODEC CALL`: one call, `score` or `sum`, of 256 rows of 128, between two calls of [`mark`]; run.sh follows its
//! instructions in an emulator.

use octaplex::codecs::HeadId;
use octaplex::{Backend, CodecSpec};
use std::error::Error;
use std::hint::black_box;

const D: usize = 128;
const ROWS: usize = 256;

/// Like no other function.
#[inline(never)]
fn mark() {
    black_box("mark");
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, backend, spec, call] = words.as_slice() else {
        return Err("usage: mca BACKEND CODEC score|sum".into());
    };
    let backend = Backend::named(backend).ok_or("this CPU has no such backend")?;
    let codec = spec.parse::<CodecSpec>()?.build_dyn(D, backend, HeadId::default())?;
    // Any bytes behind an f16 are a block.
    let bytes = codec.block_bytes();
    let mut blocks: Vec<u8> = (0..ROWS * bytes).map(|i| (i * i / 7) as u8).collect();
    for block in blocks.chunks_exact_mut(bytes) {
        block[..2].copy_from_slice(&[0, 0x3c]);
    }
    let mut query = vec![0.0; codec.query_len()];
    codec.prepare_query(&[1.0; D], &mut query)?;
    let (mut scores, weights, mut sums) = (vec![0.0; ROWS], vec![0.5; ROWS], vec![0.0; D]);
    // Once before: what is found out only once is not followed.
    for followed in [false, true] {
        if followed {
            mark();
        }
        match call.as_str() {
            "score" => codec.score(&[&query], black_box(&blocks), &mut scores)?,
            _ => codec.accumulate(&weights, black_box(&blocks), &mut sums)?,
        }
        if followed {
            mark();
        }
    }
    black_box((scores, sums));
    Ok(())
}
