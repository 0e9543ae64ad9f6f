//! Seeded vectors, also for the WebAssembly harness (`ci/portable`), which has no std.

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;
use chacha20::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Seeded random numbers, the same on every machine.
pub struct Random(ChaCha8Rng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit as u64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in [-1, 1).
    pub fn signed(&mut self) -> f32 {
        (2.0 * self.unit() - 1.0) as f32
    }

    /// N(0,1), by Box and Muller.
    pub fn gaussian(&mut self) -> f32 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.unit()));
        (radius * libm::cos(2.0 * core::f64::consts::PI * self.unit())) as f32
    }

    pub fn gaussians(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.gaussian()).collect()
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.word() as u8).collect()
    }
}

/// Vectors that look for trouble: zeros of both signs, one-hot, constant, alternating, ties, huge ranges, subnormals,
/// the edges of f16. All finite; some have no encoding.
pub fn adversarial(dim: usize, random: &mut Random) -> Vec<Vec<f32>> {
    let mut hot = vec![0.0; dim];
    hot[random.below(dim)] = -3.5;
    let mut hot_huge = vec![-0.0; dim];
    hot_huge[dim - 1] = 60000.0;
    let zeros: Vec<f32> = (0..dim).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
    let positive_zeros: Vec<f32> = (0..dim).map(|i| if i % 5 == 0 { -0.0 } else { i as f32 }).collect();
    let mut vectors = vec![
        vec![0.0; dim],
        vec![-0.0; dim],
        zeros,
        positive_zeros.clone(),
        positive_zeros.iter().map(|x| -x).collect(),
        hot,
        hot_huge,
        vec![1.0; dim],
        (0..dim).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect(),
        (0..dim).map(|i| (i as f32 - dim as f32 / 2.0) * 0.5).collect(),
        (0..dim).map(|i| (i % 16) as f32 * 0.5).collect(),
        (0..dim).map(|_| random.signed() * libm::exp2f((random.below(40) as f32) - 25.0)).collect(),
        (0..dim).map(|_| random.signed() * 1e-3 + 100.0).collect(),
    ];
    // The edges of f16, of the smallest norm, of f32's subnormals, and of 2⁵⁸.
    for scale in
        [65504.0, 65519.0, 65520.0, 1e6, 6e-8, 3e-8, 1.8e-9, 1e-9, 1e-22, 1e-40, 2.8e17, 2.9e17, 1e19, 3e38]
    {
        vectors.push((0..dim).map(|_| random.signed() * scale).collect());
        vectors.push(vec![scale; dim]);
        vectors.push(vec![scale / libm::sqrtf(dim as f32); dim]);
    }
    vectors
}
