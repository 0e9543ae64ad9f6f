//! The members of a set, random or from tables, and the index that speeds up the search for the
//! best one.

use super::{HqmqSpec, Secondary};
use crate::Error;
use crate::codebook::quaternions;
use crate::random::HeadId;
use crate::random::Purpose;
#[cfg(feature = "alloc")]
use alloc::boxed::Box;
#[cfg(feature = "alloc")]
use octaplex_arch::quaternion::QuaternionIndexTables;
use octaplex_arch::quaternion::{QuaternionSet, quaternion_ints};

#[cfg(feature = "alloc")]
mod index;

/// A set, with its index if it has one.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "alloc"), allow(clippy::large_enum_variant))] // boxes need an allocator
pub(super) enum Set {
    Optimised(QuaternionSet<'static>),
    #[cfg(feature = "alloc")]
    Random(Box<Random>),
    #[cfg(not(feature = "alloc"))]
    Random(Random),
}

/// A random set. Its arrays have a fixed size, so that it also works without a heap.
#[derive(Clone, Debug)]
pub(super) struct Random {
    count: usize,
    members: [[f32; 4]; 255],
    ints: [[i8; 4]; 255],
    #[cfg(feature = "alloc")]
    index: Option<QuaternionIndexTables>,
}

/// The number of members from which on an index is faster than trying them all.
#[cfg(feature = "alloc")]
const WORTH_AN_INDEX: usize = 16;

/// Returns the largest number of bytes of a random set on the heap. The lists of an index take at
/// most 12 KB: those of 255 members take 11 KB.
#[cfg(feature = "alloc")]
pub(super) const fn random_bytes(members: u8) -> usize {
    let index = 4 * octaplex_arch::quaternion::INDEX_CELLS + 12_000;
    size_of::<Random>() + if members as usize >= WORTH_AN_INDEX { index } else { 0 }
}

/// Draws the members of a head's set, and builds their index.
impl Random {
    fn new(count: usize, seed: u64, head: HeadId) -> Self {
        let mut random = head.random(seed, Purpose::Quaternions, 0);
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
    /// Creates the set of a spec whose numbers are in range.
    pub(super) fn new(spec: &HqmqSpec, head: HeadId) -> Result<Self, Error> {
        let count = usize::from(spec.members);
        if spec.secondary == Secondary::Optimised {
            let set = quaternions::optimised(count).ok_or(Error::Unsupported { why: super::NO_SUCH_SET })?;
            return Ok(Self::Optimised(set));
        }
        let random = Random::new(count, spec.seed, head);
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
