//! Processes samples from any source.

use crate::sensor::{CHANNELS, Sample};
use core::fmt::Write;
use heapless::String;
use octaplex::cache::LayerCache;
use octaplex::codecs::{TurboQuant, TurboQuantSpec};
use octaplex::{Backend, CodecSpec, Error, LayerConfig, verify};

/// The codec of keys and of values: the only one that is linked.
type Codec = TurboQuant<CHANNELS>;
const FOUR_BITS: CodecSpec = CodecSpec::TurboQuant(TurboQuantSpec::new(4));

/// 512 moments in four bits a value.
const CONFIG: LayerConfig = LayerConfig::new(1, CHANNELS, 512).keys(FOUR_BITS).values(FOUR_BITS);
const BYTES: usize = CONFIG.required_bytes();
/// Scratch memory for attention of one query, and for the checksum at the end.
const SCRATCH: usize = 5184;

/// Moments of a run.
pub const MOMENTS: usize = 300;

/// A line of text.
pub type Line = String<80>;

/// The state that a firmware keeps in a `static`.
pub struct Memory {
    cache: [u8; BYTES],
    scratch: [f32; SCRATCH],
}

impl Memory {
    pub const fn new() -> Self {
        Self { cache: [0; BYTES], scratch: [0.0; SCRATCH] }
    }
}

/// Takes [`MOMENTS`] samples from `next`. Every 50 moments it prints what attention remembers of such a moment. At the end
/// it prints the checksums of all outputs, and of the codec and the cache on the library's own inputs.
pub fn run(
    memory: &mut Memory,
    mut next: impl FnMut() -> Sample,
    mut say: impl FnMut(&Line),
) -> Result<(), Error> {
    let mut cache = LayerCache::<Codec, Codec, _>::new(&CONFIG, Backend::detect(), &mut memory.cache[..])?;
    let mut bits = 0u32;
    for moment in 1..=MOMENTS {
        let row = next().map(|x| f32::from(x) / 8192.0);
        let mut output = [0.0; CHANNELS];
        if moment > 1 {
            cache.attend(&row, &mut output, &mut memory.scratch)?;
            bits = output.iter().fold(bits, |bits, x| bits.rotate_left(1) ^ x.to_bits());
        }
        cache.append(&row, &row, &mut memory.scratch)?;
        if moment % 50 == 0 {
            let apart: f32 = row.iter().zip(&output).map(|(a, b)| (a - b) * (a - b)).sum();
            let whole: f32 = row.iter().map(|a| a * a).sum();
            let percent = (100.0 * apart / whole) as u32;
            write_line(
                &mut say,
                format_args!("moment {moment}: {percent}% is new, {} bytes", cache.stats().bytes),
            );
        }
    }
    write_line(&mut say, format_args!("checksum of all outputs: {bits:08x}"));
    let codec = verify::codec(&Codec::new(4)?, verify::SEED, &mut memory.scratch)?;
    let layer = verify::layer(&mut cache, verify::SEED, &mut memory.scratch)?;
    write_line(&mut say, format_args!("checksums of the codec and of the cache: {codec:08x} {layer:08x}"));
    Ok(())
}

fn write_line(say: &mut impl FnMut(&Line), text: core::fmt::Arguments) {
    let mut line = Line::new();
    let _ = line.write_fmt(text); // what does not fit is cut off
    say(&line);
}
