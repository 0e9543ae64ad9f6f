//! The sensor: 32 channels of 16 bits, from integers, so that it measures the same everywhere.

/// The values of one moment.
pub type Sample = [i16; CHANNELS];

pub const CHANNELS: usize = 32;

/// Measures one moment.
pub struct Sensor {
    noise: u32,
    time: u32,
}

impl Sensor {
    pub const fn new() -> Self {
        Self { noise: 1, time: 0 }
    }

    /// Returns a pattern that repeats every 50 moments, in noise.
    pub fn measure(&mut self) -> Sample {
        self.time += 1;
        let phase = self.time % 50;
        core::array::from_fn(|channel| {
            self.noise = self.noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pattern = ((phase * (channel as u32 + 3) * 977) % 16_384) as i32 - 8_192;
            let noise = (self.noise >> 20) as i32 - 2_048;
            (2 * pattern + noise) as i16
        })
    }
}
