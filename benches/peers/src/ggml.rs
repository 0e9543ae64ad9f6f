//! Bindings of the functions in src/ggml.c.

use crate::D;
use std::ffi::c_void;
use std::ptr::NonNull;

/// A type of ggml's cache.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Type {
    F16,
    Q8_0,
    Q4_0,
}

pub const TYPES: [(Type, &str); 3] =
    [(Type::F16, "ggml f16"), (Type::Q8_0, "ggml q8_0"), (Type::Q4_0, "ggml q4_0")];

unsafe extern "C" {
    fn peer_nanoseconds() -> f64;
    fn peer_init();
    fn peer_row_bytes(of: i32, dim: usize) -> usize;
    fn peer_query_bytes(of: i32, dim: usize) -> usize;
    fn peer_quantise(of: i32, x: *const f32, row: *mut u8, dim: usize);
    fn peer_decode(of: i32, row: *const u8, x: *mut f32, dim: usize);
    fn peer_prepare(of: i32, query: *const f32, prepared: *mut u8, dim: usize);
    fn peer_score(of: i32, prepared: *const u8, rows: *const u8, count: usize, dim: usize, scores: *mut f32);
    fn peer_accumulate(
        of: i32,
        weights: *const f32,
        rows: *const u8,
        count: usize,
        dim: usize,
        row: *mut f32,
        acc: *mut f32,
    );
    fn peer_flash_new(
        of: i32,
        rows: *const f32,
        queries: *const f32,
        tokens: usize,
        block: usize,
        heads: usize,
        dim: usize,
    ) -> *mut c_void;
    fn peer_flash_run(flash: *mut c_void) -> *const f32;
    fn peer_flash_free(flash: *mut c_void);
}

/// Types whose values attention decodes before it adds them up. It adds f16 directly.
pub const QUANTISED: [(Type, &str); 2] = [TYPES[1], TYPES[2]];

/// Returns the processor time of this thread. Time of other programs does not count.
pub fn nanoseconds() -> f64 {
    // SAFETY: the function has no arguments and returns a number.
    unsafe { peer_nanoseconds() }
}

/// Fills the tables that every other call reads.
pub fn init() {
    // SAFETY: no other thread runs.
    unsafe { peer_init() }
}

impl Type {
    pub fn row_bytes(self) -> usize {
        // SAFETY: a number from a number.
        unsafe { peer_row_bytes(self as i32, D) }
    }

    pub fn encode(self, rows: &[f32], bytes: &mut [u8]) {
        let each = self.row_bytes();
        assert_eq!(rows.len() / D * each, bytes.len());
        for (x, row) in rows.chunks_exact(D).zip(bytes.chunks_exact_mut(each)) {
            // SAFETY: D values, and the bytes of a row of them.
            unsafe { peer_quantise(self as i32, x.as_ptr(), row.as_mut_ptr(), D) }
        }
    }

    pub fn decode(self, bytes: &[u8], rows: &mut [f32]) {
        let each = self.row_bytes();
        assert_eq!(rows.len() / D * each, bytes.len());
        for (x, row) in rows.chunks_exact_mut(D).zip(bytes.chunks_exact(each)) {
            // SAFETY: as above.
            unsafe { peer_decode(self as i32, row.as_ptr(), x.as_mut_ptr(), D) }
        }
    }

    pub fn prepare(self, query: &[f32]) -> Vec<u8> {
        assert_eq!(query.len(), D);
        // SAFETY: as many bytes as the next call writes.
        let mut prepared = vec![0; unsafe { peer_query_bytes(self as i32, D) }];
        // SAFETY: D values, and their bytes.
        unsafe { peer_prepare(self as i32, query.as_ptr(), prepared.as_mut_ptr(), D) }
        prepared
    }

    pub fn score(self, prepared: &[u8], rows: &[u8], scores: &mut [f32]) {
        assert_eq!(scores.len() * self.row_bytes(), rows.len());
        // SAFETY: as many rows as scores, and a query of `prepare`.
        unsafe {
            peer_score(self as i32, prepared.as_ptr(), rows.as_ptr(), scores.len(), D, scores.as_mut_ptr())
        }
    }

    pub fn accumulate(self, weights: &[f32], rows: &[u8], acc: &mut [f32; D]) {
        assert_eq!(weights.len() * self.row_bytes(), rows.len());
        let mut row = [0.0; D];
        // SAFETY: as many rows as weights, D values each.
        unsafe {
            let (row, acc) = (row.as_mut_ptr(), acc.as_mut_ptr());
            peer_accumulate(self as i32, weights.as_ptr(), rows.as_ptr(), weights.len(), D, row, acc);
        }
    }
}

/// Flash attention through a graph: one head of keys and values, causal.
pub struct Flash {
    graph: NonNull<c_void>,
    /// Number of values of the output.
    length: usize,
}

impl Flash {
    /// Creates `tokens` tokens, which repeat 4,096 rows, and a block of queries at their end.
    pub fn new(of: Type, rows: &[f32], queries: &[f32], tokens: usize) -> Self {
        assert!(rows.len() == 4096 * D && queries.len().is_multiple_of(D));
        let block = queries.len() / D;
        // SAFETY: rows and queries are as long as said.
        let flash =
            unsafe { peer_flash_new(of as i32, rows.as_ptr(), queries.as_ptr(), tokens, block, 1, D) };
        Self { graph: NonNull::new(flash).expect("memory"), length: queries.len() }
    }

    /// Returns the output, \[queries]\[D].
    pub fn run(&mut self) -> &[f32] {
        // SAFETY: made by `new`.
        let output = unsafe { peer_flash_run(self.graph.as_ptr()) };
        assert!(!output.is_null(), "ggml computes its graph");
        // SAFETY: a row for each query, as long as the graph is there and is not computed again.
        unsafe { std::slice::from_raw_parts(output, self.length) }
    }
}

impl Drop for Flash {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not used again.
        unsafe { peer_flash_free(self.graph.as_ptr()) }
    }
}
