//! Compares the checksums of this build with the published ones.

use crate::codec::built;
use crate::memory::expect_memory;
use crate::text::write;
use crate::{Failure, answer};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use octaplex::Backend;
use octaplex::verify::{Checksums, MEMORY, check, expected, together};

/// The checksums of each codec of this build.
struct Table(Vec<(&'static str, Checksums)>);

impl Table {
    fn compute() -> Result<usize, Failure> {
        expect_memory(4 * MEMORY as u64)?;
        let mut memory = vec![0.0; MEMORY];
        let sums = built().map(|codec| Ok((codec.name, check(codec.name, Backend::detect(), &mut memory)?)));
        Ok(write(&Self(sums.collect::<Result<_, Failure>>()?)))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let must_be = |name| expected(name).unwrap_or(Checksums { blocks: 0, cache: 0 });
        for (name, sum) in &self.0 {
            writeln!(f, "{name} {sum} {}", must_be(name))?;
        }
        let all = together(self.0.iter().map(|(name, _)| must_be(name)));
        write!(f, "all {:08x} {all:08x}", together(self.0.iter().map(|(_, sum)| *sum)))
    }
}

/// Writes the result as text. A line has the name of a codec, its two checksums and the expected ones. The last line has those
/// of all codecs together.
#[unsafe(no_mangle)]
pub extern "C" fn verify() -> usize {
    answer(Table::compute())
}
