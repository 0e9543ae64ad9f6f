//! Whether this build computes what every other one does.

use crate::memory::expect_room;
use crate::text::write;
use crate::{Failure, answer};
use alloc::vec;
use core::fmt;
use octaplex::verify::{Checksums, MEMORY, check, expected, together};
use octaplex::{Backend, CodecSpec};

const CODECS: usize = CodecSpec::all().len();

/// What each codec gave.
struct Table([Checksums; CODECS]);

impl Table {
    fn compute() -> Result<usize, Failure> {
        expect_room(4 * MEMORY as u64)?;
        let mut memory = vec![0.0; MEMORY];
        let mut sums = [Checksums { blocks: 0, cache: 0 }; CODECS];
        for (codec, sum) in CodecSpec::all().iter().zip(&mut sums) {
            *sum = check(codec.name, Backend::detect(), &mut memory)?;
        }
        Ok(write(&Self(sums)))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let must_be = |name| expected(name).unwrap_or(Checksums { blocks: 0, cache: 0 });
        for (codec, sum) in CodecSpec::all().iter().zip(self.0) {
            writeln!(f, "{} {sum} {}", codec.name, must_be(codec.name))?;
        }
        let all = together(CodecSpec::all().iter().map(|codec| must_be(codec.name)));
        write!(f, "all {:08x} {all:08x}", together(self.0))
    }
}

/// As text, a line a codec: its name, its two checksums, and what they must be; the last line has those of all.
#[unsafe(no_mangle)]
pub extern "C" fn verify() -> usize {
    answer(Table::compute())
}
