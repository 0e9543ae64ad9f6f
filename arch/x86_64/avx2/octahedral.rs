//! Triplets as octahedral directions and radii.

use crate::{IntQuery, Octahedral, Search};

forward_to_scalar! {
    enable = "avx2,fma,f16c";
    octahedral_encode(layout: &Octahedral, search: Search, x: &[f32], scale: f32, stream: &mut [u8]);
    octahedral_decode(layout: &Octahedral, stream: &[u8], scale: f32, out: &mut [f32]);
    score_octahedral(layout: &Octahedral, stride: usize, bytes: &[u8], queries: &[IntQuery], scores: &mut [f32]);
    score_octahedral_floats(layout: &Octahedral, stride: usize, bytes: &[u8], queries: &[&[f32]], scores: &mut [f32]);
    accumulate_octahedral(layout: &Octahedral, stride: usize, bytes: &[u8], weights: &[f32], acc: &mut [f32]);
}
