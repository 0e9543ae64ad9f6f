//! A cache in memory that the caller brought: from its making to its freeing, nothing is allocated.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // tests fail by panicking

use octaplex_c::*;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null;

/// The error says what went wrong.
fn ok(status: octaplex_status, error: &octaplex_error) {
    let words: Vec<u8> =
        error.message.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    assert_eq!(status, octaplex_status::Ok, "{}", String::from_utf8_lossy(&words));
}

#[test]
fn memory_that_is_brought_is_all_there_is() {
    const ROWS: usize = 2 * 200 * 64;
    let (rows, queries) = (vec![0.5f32; ROWS], vec![0.25f32; 4 * 64]);
    let (mut output, mut snapshot) = (vec![0f32; 4 * 64], vec![0u8; 1 << 20]);
    // SAFETY: zeros are a valid error and configuration; pointers come with the lengths of what they point to.
    unsafe {
        let mut error: octaplex_error = zeroed();
        let mut config: octaplex_config = zeroed();
        let size = size_of::<octaplex_config>();
        ok(octaplex_config_init(&mut config, size, 1, 2, 64, 1000, &mut error), &error);
        config.query_heads = 4;
        let needed = octaplex_cache_memory_needed(&config, 4, &mut error);
        let mut memory = vec![MaybeUninit::<u8>::uninit(); needed];
        let tensor = octaplex_tensor {
            data: rows.as_ptr().cast(),
            length: ROWS,
            dtype: OCTAPLEX_F32,
            head_stride: 0,
            token_stride: 0,
        };
        let work = || {
            let mut used = 0;
            let cache = octaplex_cache_create_in(&config, 4, memory.as_mut_ptr().cast(), needed, &mut error);
            ok(error.status, &error);
            ok(octaplex_cache_append(cache, 0, 200, &tensor, &tensor, &mut error), &error);
            let (q, out) = (queries.as_ptr(), output.as_mut_ptr());
            ok(octaplex_cache_attend(cache, 0, q, 4 * 64, null(), out, 4 * 64, &mut error), &error);
            ok(octaplex_cache_truncate(cache, 190, &mut error), &error);
            let (buffer, length) = (snapshot.as_mut_ptr(), snapshot.len());
            ok(octaplex_cache_save_buffer(cache, buffer, length, &mut used, &mut error), &error);
            ok(octaplex_cache_load_buffer(cache, buffer, used, &mut error), &error);
            ok(octaplex_cache_free(cache, &mut error), &error);
        };
        let allocated = allocation_counter::measure(work);
        assert_eq!(allocated.count_total, 0);
    }
    assert!(output.iter().all(|x| (x - 0.5).abs() < 0.15));
}
