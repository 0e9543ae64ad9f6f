//! The members of a set, random or from the tables, and the index that finds the best of them.

use super::{HqmqSpec, Secondary};
use crate::Error;
use crate::codebook::quaternions;
use crate::stream::Purpose;
use crate::stream::Stream;
#[cfg(feature = "alloc")]
use alloc::boxed::Box;
#[cfg(feature = "alloc")]
use octaplex_arch::quaternion::QuaternionIndexTables;
use octaplex_arch::quaternion::{QuaternionSet, quaternion_ints};

#[cfg(feature = "alloc")]
mod index;

/// A set, and its index where there is one.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "alloc"), allow(clippy::large_enum_variant))] // boxes need an allocator
pub(super) enum Set {
    Optimised(QuaternionSet<'static>),
    #[cfg(feature = "alloc")]
    Random(Box<Random>),
    #[cfg(not(feature = "alloc"))]
    Random(Random),
}

#[derive(Clone, Debug)]
pub(super) struct Random {
    count: usize,
    members: [[f32; 4]; 255],
    ints: [[i8; 4]; 255],
    #[cfg(feature = "alloc")]
    index: Option<QuaternionIndexTables>,
}

/// From this many members on, an index beats trying them all.
#[cfg(feature = "alloc")]
const WORTH_AN_INDEX: usize = 16;

/// Bytes of a random set on the heap. The lists of an index take at most 12 KB: those of 255 members take 11.
#[cfg(feature = "alloc")]
pub(super) const fn random_bytes(members: u8) -> usize {
    let index = 4 * octaplex_arch::quaternion::INDEX_CELLS + 12_000;
    size_of::<Random>() + if members as usize >= WORTH_AN_INDEX { index } else { 0 }
}

impl Random {
    fn new(count: usize, seed: u64, stream: Stream) -> Self {
        let mut random = stream.random(seed, Purpose::Quaternions, 0);
        let mut set = Self {
            count,
            members: [[0.0; 4]; 255],
            ints: [[0; 4]; 255],
            #[cfg(feature = "alloc")]
            index: None,
        };
        for (member, ints) in set.members.iter_mut().zip(&mut set.ints).take(count) {
            *member = random.unit_quaternion();
            *ints = quaternion_ints(*member);
        }
        #[cfg(feature = "alloc")]
        if count >= WORTH_AN_INDEX {
            set.index = index::build(&set.members[..count]);
        }
        set
    }

    fn view(&self) -> QuaternionSet<'_> {
        #[cfg(feature = "alloc")]
        let index = self.index.as_ref().map(|index| index.index());
        #[cfg(not(feature = "alloc"))]
        let index = None;
        QuaternionSet { members: &self.members[..self.count], ints: &self.ints[..self.count], index }
    }
}

impl Set {
    /// The set of a spec whose numbers are in their ranges.
    pub(super) fn new(spec: &HqmqSpec, stream: Stream) -> Result<Self, Error> {
        let count = usize::from(spec.members);
        if spec.secondary == Secondary::Optimised {
            let set = quaternions::optimised(count).ok_or(Error::Unsupported { why: super::NO_SUCH_SET })?;
            return Ok(Self::Optimised(set));
        }
        let random = Random::new(count, spec.seed, stream);
        #[cfg(feature = "alloc")]
        let random = Box::new(random);
        Ok(Self::Random(random))
    }

    pub(super) fn view(&self) -> QuaternionSet<'_> {
        match self {
            Self::Optimised(set) => *set,
            Self::Random(random) => random.view(),
        }
    }
}

#[cfg(all(test, feature = "alloc"))]
mod tests;
