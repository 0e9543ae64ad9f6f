//! From scores to weights; and whether stored floats are sound.

use crate::Float;

forward_to_scalar! {
    scale_logits(x: &mut [f32], offset: f32, scale: f32) -> f32;
    soft_cap(x: &mut [f32], cap: f32);
    largest_bits(format: Float, bytes: &[u8]) -> u32;
    exp_weights(x: &mut [f32], max: f32) -> f32;
}
