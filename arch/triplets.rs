//! Triplets of coordinates as octahedral directions and radii.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
pub(crate) mod layout;
pub(crate) mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code, unused_imports, reason = "not all of it runs there"))]
pub(crate) mod wide;

use crate::detect::Isa;
use crate::{Backend, Float, IntQuery, MAX_DIM, Rows, Search, TripletLayout};

impl Backend {
    /// Writes the stream of `x`·`scale`.
    ///
    /// Each triplet is coded as the direction that `search` finds, and a radius. `search` trades
    /// time for precision. Every backend finds the same direction.
    ///
    /// # Panics
    /// If the layout is not valid, or lengths are not its width and stream length.
    pub fn encode_triplets(
        self,
        layout: &TripletLayout,
        search: Search,
        x: &[f32],
        scale: f32,
        stream: &mut [u8],
    ) {
        check_layout(layout);
        contract!((x.len(), stream.len()) == (layout.dim, layout.stream_bytes()));
        dispatch!(
            self, avx2: wide<Ymm>, avx512: wide<Zmm>, registers: wide;
            encode_triplets(layout: &TripletLayout, search: Search, x: &[f32], scale: f32, stream: &mut [u8])
        )
    }

    /// Computes out = scale · the vector of a stream. Any bytes are allowed.
    ///
    /// # Panics
    /// If the layout is not valid, or lengths are not its width and stream length.
    pub fn decode_triplets(self, layout: &TripletLayout, stream: &[u8], scale: f32, out: &mut [f32]) {
        check_layout(layout);
        contract!((out.len(), stream.len()) == (layout.dim, layout.stream_bytes()));
        dispatch!(
            self, avx2: avx2, avx512: avx2, registers: wide;
            decode_triplets(layout: &TripletLayout, stream: &[u8], scale: f32, out: &mut [f32])
        )
    }

    /// Computes score\[query]\[row] = ⟨query, decoded row⟩, from integer directions.
    ///
    /// It takes directions of up to 5 bits and queries of at most ±127.
    ///
    /// # Panics
    /// If the layout has no integer directions, or rows, queries or scores do not fit it.
    pub fn score_triplets(
        self,
        layout: &TripletLayout,
        rows: &Rows,
        queries: &[IntQuery],
        scores: &mut [f32],
    ) {
        check_rows(layout, rows);
        self.prefetch(rows.ahead);
        contract!(!layout.directions.is_empty());
        contract!(queries.iter().all(|query| query.values.len() == layout.dim));
        contract!(scores.len() == queries.len() * rows.count());
        dispatch!(
            self, avx2: avx2, avx512: avx2, registers: wide + dots;
            score_triplets(layout: &TripletLayout, rows: &Rows, queries: &[IntQuery], scores: &mut [f32])
        )
    }

    /// Computes the scores of queries in `f32`, for directions of any number of bits.
    ///
    /// # Panics
    /// If the layout is not valid, or rows, queries or scores do not fit it.
    pub fn score_triplets_floats(
        self,
        layout: &TripletLayout,
        rows: &Rows,
        queries: &[&[f32]],
        scores: &mut [f32],
    ) {
        check_rows(layout, rows);
        self.prefetch(rows.ahead);
        contract!(queries.iter().all(|query| query.len() == layout.dim));
        contract!(scores.len() == queries.len() * rows.count());
        dispatch!(
            self, avx2: scalar, avx512: scalar, registers: scalar;
            score_triplets_floats(layout: &TripletLayout, rows: &Rows, queries: &[&[f32]], scores: &mut [f32])
        )
    }

    /// Computes acc\[query] += Σ weight·decoded row, rows ascending. Weights are \[query]\[row].
    ///
    /// # Panics
    /// If the layout is not valid, or rows, `acc` or weights do not fit it.
    pub fn accumulate_triplets(self, layout: &TripletLayout, rows: &Rows, weights: &[f32], acc: &mut [f32]) {
        check_rows(layout, rows);
        self.prefetch(rows.ahead);
        contract!(acc.len().is_multiple_of(layout.dim));
        contract!(weights.len() == acc.len() / layout.dim * rows.count());
        if rows.count() > 0 {
            dispatch!(
                self, avx2: avx2, avx512: avx2, registers: wide;
                accumulate_triplets(layout: &TripletLayout, rows: &Rows, weights: &[f32], acc: &mut [f32])
            )
        }
    }
}

/// Checks that a layout is valid and its tables are as long as its bits say.
fn check_layout(layout: &TripletLayout) {
    let (directions, radii, rest) = (layout.direction_bits, layout.radius_bits, layout.rest_bits);
    contract!((1..=MAX_DIM).contains(&layout.dim));
    contract!((1..=7).contains(&directions) && radii <= 6 && rest <= 7);
    contract!(2 * usize::from(rest) <= layout.field_bits());
    contract!(layout.coordinates.len() == 1 << directions);
    contract!(layout.lengths.len() == 1 << (2 * (directions - 1)));
    let codes = if directions <= 5 { 1 << (2 * directions) } else { 0 };
    contract!(layout.directions.len() == codes);
    let entries = [128, 256, 0][usize::from(directions.saturating_sub(4)).min(2)];
    contract!(layout.planes.iter().all(|plane| plane.len() == entries));
    contract!(layout.radii.len() == 1 << radii);
    contract!(layout.rest.len() == if rest > 0 { 1 << rest } else { 0 });
    contract!(layout.scale != Float::Bf16);
}

/// Checks that rows have the bytes of the layout.
fn check_rows(layout: &TripletLayout, rows: &Rows) {
    check_layout(layout);
    contract!(rows.dim == layout.dim);
    contract!(rows.scales.is_none() || layout.scale == Float::F16);
    rows.check(layout.header_bytes() + layout.stream_bytes());
}
