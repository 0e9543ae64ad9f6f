//! Seeded random numbers. The same seed gives the same signs and matrices on every machine.
//!
//! A random stream is ChaCha8 with a seed of 32 bytes, little-endian:
//!
//! ```text
//! "octaplex" │ seed u64 │ layer u32 │ head u32 │ role u8 │ purpose u8 │ sub-block u8 │ 5 zeros
//! 0          8          16          20         24        25           26             27     32
//! ```
//!
//! Only `next_u64` is used. The bytes of every rotated format depend on these numbers.

#[cfg(feature = "alloc")]
use crate::math;
use chacha20::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Whether vectors are keys or values. Each side has its own random streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Keys.
    #[default]
    Keys,
    /// Values.
    Values,
}

/// Names the head of a layer that a codec serves. Under one seed, different heads get different
/// rotations.
///
/// A cache gives each layer its own id, and keys another one than values. Decode blocks with the id
/// that encoded them.
///
/// ```
/// use octaplex::codecs::{Role, HeadId, TurboQuant, TurboQuantSpec};
/// use octaplex::{Backend, Error};
///
/// let build = |layer| {
///     let head = HeadId { layer, role: Role::Keys, ..HeadId::default() };
///     TurboQuant::<64>::build(TurboQuantSpec::new(4), Backend::detect(), head)
/// };
/// let x = core::array::from_fn(|i| i as f32);
/// let (mut first, mut second) = ([0; 34], [0; 34]);
/// build(0)?.encode(&x, &mut first)?;
/// build(1)?.encode(&x, &mut second)?;
/// assert_ne!(first, second);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeadId {
    /// The layer, from 0.
    pub layer: u32,
    /// The key/value head, from 0.
    pub head: u32,
    /// Keys or values.
    pub role: Role,
}

/// The use of the numbers. It is part of the seed, and so of every format.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    RotationSigns = 0,
    #[cfg(feature = "alloc")]
    RotationMatrix = 1,
    SketchSigns = 2,
    #[cfg(feature = "alloc")]
    SketchMatrix = 3,
    Quaternions = 4,
}

impl HeadId {
    /// Returns the random numbers of this head for a seed, a purpose and a part of a vector.
    pub(crate) fn random(self, seed: u64, purpose: Purpose, sub_block: u8) -> Random {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(b"octaplex");
        bytes[8..16].copy_from_slice(&seed.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.layer.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.head.to_le_bytes());
        bytes[24] = self.role as u8;
        bytes[25] = purpose as u8;
        bytes[26] = sub_block;
        Random(ChaCha8Rng::from_seed(bytes))
    }
}

/// A source of random numbers.
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    /// Draws sign masks: 0, or the sign bit of an f32. Bit `j mod 64` of word `j / 64` decides; 1
    /// is minus.
    pub(crate) fn fill_sign_masks(&mut self, masks: &mut [u32]) {
        for masks in masks.chunks_mut(64) {
            let word = self.0.next_u64();
            for (j, mask) in masks.iter_mut().enumerate() {
                *mask = ((word >> j) as u32 & 1) << 31;
            }
        }
    }

    /// Draws a unit quaternion, uniform on the sphere, by Marsaglia's method.
    ///
    /// Draw (a, b) until a² + b² < 1, then (c, d) until 0 < c² + d² < 1, all from [-1, 1). The
    /// result is (a, b, c·f, d·f) with f = √((1-a²-b²)/(c²+d²)), rounded to f32.
    pub(crate) fn unit_quaternion(&mut self) -> [f32; 4] {
        const UNIT: f64 = 1.0 / 4_503_599_627_370_496.0; // 2⁻⁵²
        let mut disc = |has_zero: bool| loop {
            let a = (self.0.next_u64() >> 11) as f64 * UNIT - 1.0;
            let b = (self.0.next_u64() >> 11) as f64 * UNIT - 1.0;
            let square = a * a + b * b;
            if square < 1.0 && (has_zero || square > 0.0) {
                return (a, b, square);
            }
        };
        let (a, b, low) = disc(true);
        let (c, d, high) = disc(false);
        let f = libm::sqrt((1.0 - low) / high);
        [a as f32, b as f32, (c * f) as f32, (d * f) as f32]
    }

    /// Draws two independent N(0,1) numbers by Box and Muller, in f64 by [`crate::math`].
    #[cfg(feature = "alloc")]
    pub(crate) fn gaussian_pair(&mut self) -> [f64; 2] {
        const UNIT: f64 = 1.0 / 9_007_199_254_740_992.0; // 2⁻⁵³
        let u1 = ((self.0.next_u64() >> 11) + 1) as f64 * UNIT;
        let u2 = (self.0.next_u64() >> 11) as f64 * UNIT;
        let radius = libm::sqrt(-2.0 * math::ln(u1));
        let [sin, cos] = math::sin_cos(2.0 * core::f64::consts::PI * u2);
        [radius * cos, radius * sin]
    }
}
