//! Measures the cost of a call through C over the same call in Rust, in one program: the least of many turns, because every
//! disturbance only adds. `cargo bench -p octaplex-c`. It fails if results differ, never for a time: a busy machine changes
//! times.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use octaplex::codecs::{Codec, HeadId};
use octaplex::{Backend, CodecSpec};
use octaplex_c::{
    octaplex_codec, octaplex_codec_accumulate, octaplex_codec_create, octaplex_codec_free,
    octaplex_codec_score, octaplex_error, octaplex_status,
};
use std::hint::black_box;
use std::time::Instant;

const DIM: usize = 128;
const CALLS: u32 = 200;
const TURNS: usize = 400;

/// Either of attention's products.
type Product = unsafe extern "C" fn(
    *const octaplex_codec,
    *const f32,
    usize,
    *const u8,
    usize,
    *mut f32,
    usize,
    *mut octaplex_error,
) -> octaplex_status;

/// Nanoseconds of a call in a run of them.
fn run(call: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    (0..CALLS).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn main() {
    let spec: CodecSpec = "turboquant".parse().unwrap();
    let codec = spec.build_dyn(DIM, Backend::detect(), HeadId::default()).unwrap();
    let codec: &dyn Codec = black_box(&*codec);
    let mut failure = std::mem::MaybeUninit::<octaplex_error>::uninit();
    let failure = failure.as_mut_ptr();
    // SAFETY: a text, nulls that are allowed, and memory of our own.
    let handle = unsafe {
        octaplex_codec_create(c"turboquant".as_ptr(), DIM, std::ptr::null(), std::ptr::null(), failure)
    };
    assert!(!handle.is_null());
    // Called through pointers that the compiler does not see through, as a program in C calls them.
    let score: Product = black_box(octaplex_codec_score);
    let accumulate: Product = black_box(octaplex_codec_accumulate);
    println!("on the backend {}, {DIM} values: ns of a call", Backend::detect().name());
    println!("{:12} {:>5} {:>8} {:>8} {:>8} {:>6}", "call", "rows", "Rust", "C", "more", "times");
    let mut worst = 0f64;
    for rows in [1, 64] {
        let values: Vec<f32> = (0..rows * DIM).map(|i| (i * 31 % 29) as f32 / 29.0 - 0.5).collect();
        let mut page = vec![0; rows * codec.block_bytes()];
        codec.encode_page(&values, &mut page).unwrap();
        let mut query = vec![0.0; codec.query_len()];
        codec.prepare_query(&values[..DIM], &mut query).unwrap();
        let (mut scores, mut sums) = (vec![0.1f32; rows], vec![0.0f32; DIM]);
        let (mut scores_c, mut sums_c) = (scores.clone(), sums.clone());
        let mut least = [f64::INFINITY; 4];
        for _ in 0..TURNS {
            let turns: [&mut dyn FnMut(); 4] = [
                &mut || codec.score(black_box(&[&query]), black_box(&page), &mut scores).unwrap(),
                &mut || {
                    // SAFETY: buffers with their lengths.
                    let status = unsafe {
                        score(
                            handle,
                            query.as_ptr(),
                            query.len(),
                            page.as_ptr(),
                            page.len(),
                            scores_c.as_mut_ptr(),
                            rows,
                            failure,
                        )
                    };
                    assert_eq!(status, octaplex_status::Ok);
                },
                &mut || codec.accumulate(black_box(&values[..rows]), black_box(&page), &mut sums).unwrap(),
                &mut || {
                    // SAFETY: buffers with their lengths.
                    let status = unsafe {
                        accumulate(
                            handle,
                            values.as_ptr(),
                            rows,
                            page.as_ptr(),
                            page.len(),
                            sums_c.as_mut_ptr(),
                            DIM,
                            failure,
                        )
                    };
                    assert_eq!(status, octaplex_status::Ok);
                },
            ];
            for (least, call) in least.iter_mut().zip(turns) {
                *least = least.min(run(call));
            }
        }
        assert_eq!((&scores, &sums), (&scores_c, &sums_c), "the same work");
        for (name, pair) in ["score", "accumulate"].into_iter().zip(least.chunks(2)) {
            let more = pair[1] - pair[0];
            worst = worst.max(more);
            println!(
                "{name:12} {rows:>5} {:>8.1} {:>8.1} {more:>8.1} {:>6.3}",
                pair[0],
                pair[1],
                pair[1] / pair[0]
            );
        }
    }
    // SAFETY: nothing uses it any more.
    unsafe { octaplex_codec_free(handle, failure) };
    println!("a call through C costs at most {worst:.1} ns more");
}
