//! The members of a set, random or from the tables, and the index that finds the best of them.

use super::{HqmqSpec, Secondary};
use crate::codebook::quaternions;
use crate::stream::Purpose;
use crate::{Error, Stream};
#[cfg(feature = "alloc")]
use alloc::boxed::Box;
#[cfg(feature = "alloc")]
use octaplex_arch::quaternion::QuaternionIndexTables;
use octaplex_arch::quaternion::{QuaternionSet, quaternion_ints};

#[cfg(feature = "alloc")]
mod index;

/// A set, and its index where one is worth building.
#[derive(Clone, Debug)]
pub(super) struct Set {
    members: Members,
    #[cfg(feature = "alloc")]
    index: Option<QuaternionIndexTables>,
}

#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "alloc"), allow(clippy::large_enum_variant))] // boxes need an allocator
enum Members {
    Table(quaternions::Table),
    #[cfg(feature = "alloc")]
    Random(Box<Random>),
    #[cfg(not(feature = "alloc"))]
    Random(Random),
}

#[derive(Clone, Debug)]
struct Random {
    count: usize,
    members: [[f32; 4]; 255],
    ints: [[i8; 4]; 255],
}

impl Random {
    fn new(count: usize, seed: u64, stream: Stream) -> Self {
        let mut random = stream.random(seed, Purpose::Quaternions, 0);
        let mut set = Self { count, members: [[0.0; 4]; 255], ints: [[0; 4]; 255] };
        for (member, ints) in set.members.iter_mut().zip(&mut set.ints).take(count) {
            *member = random.unit_quaternion();
            *ints = quaternion_ints(*member);
        }
        set
    }
}

/// From this many members on, an index beats trying them all.
#[cfg(feature = "alloc")]
const WORTH_AN_INDEX: usize = 16;

impl Set {
    /// The set of a spec whose numbers are in their ranges.
    pub(super) fn new(spec: &HqmqSpec, stream: Stream) -> Result<Self, Error> {
        let count = usize::from(spec.members);
        let members = match spec.secondary {
            Secondary::Random => {
                let random = Random::new(count, spec.seed, stream);
                #[cfg(feature = "alloc")]
                let random = Box::new(random);
                Members::Random(random)
            }
            Secondary::Optimised => {
                let why = super::NO_SUCH_SET;
                Members::Table(quaternions::table(count).ok_or(Error::Unsupported { why })?)
            }
        };
        #[cfg(feature = "alloc")]
        {
            let mut set = Self { members, index: None };
            if count >= WORTH_AN_INDEX {
                set.index = index::build(set.view().members);
            }
            Ok(set)
        }
        #[cfg(not(feature = "alloc"))]
        Ok(Self { members })
    }

    pub(super) fn view(&self) -> QuaternionSet<'_> {
        let (members, ints) = match &self.members {
            Members::Table(table) => (table.members, table.ints),
            Members::Random(random) => (&random.members[..random.count], &random.ints[..random.count]),
        };
        #[cfg(feature = "alloc")]
        let index = self.index.as_ref().map(|index| index.index());
        #[cfg(not(feature = "alloc"))]
        let index = None;
        QuaternionSet { members, ints, index }
    }
}

#[cfg(all(test, feature = "alloc"))]
mod tests;
