//! The sizes that the host was told. It asks for the size of each tensor, then for a buffer of the sum, and then for each
//! size again, once or more, when it places the tensors.

use octaplex::codecs::Role;
use std::collections::HashMap;

/// Sizes that are remembered.
const MOST: usize = 1 << 12;

#[derive(Clone, Debug)]
struct Entry {
    tensor: usize,
    name: String,
    told: usize,
    nominal: usize,
    role: Option<Role>,
}

/// The sizes since the last buffer, and the decision on the last buffer's.
#[derive(Debug, Default)]
pub(super) struct Told {
    round: Vec<Entry>,
    decided: HashMap<usize, usize>,
}

/// The use of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Pairs of keys and values. All can be compressed.
    Cache,
    /// A cache that stays as it is. It takes these bytes.
    Declined { bytes: usize, why: String },
    /// Anything else.
    Other,
}

impl Told {
    /// Returns whether a cache's size was told since the last buffer.
    pub(super) fn has_cache(&self) -> bool {
        self.round.iter().any(|entry| entry.role.is_some())
    }

    /// Returns the bytes to tell for a tensor. Its `nominal` bytes and, for keys and values in f16, role and compressed bytes
    /// are known.
    pub(super) fn tell(
        &mut self,
        tensor: usize,
        name: &str,
        nominal: usize,
        cache: Option<(Role, usize)>,
    ) -> usize {
        if let Some(bytes) = self.decided.get(&tensor) {
            return *bytes;
        }
        if self.round.iter().any(|entry| entry.tensor == tensor) {
            self.round.clear(); // another round
        }
        if self.round.len() == MOST {
            self.round.remove(0);
        }
        let (role, told) = cache.map_or((None, nominal), |(role, bytes)| (Some(role), bytes));
        self.round.push(Entry { tensor, name: name.to_owned(), told, nominal, role });
        told
    }

    /// Forgets the size of a tensor that the host has placed. Until then it may ask for it any number of times.
    pub(super) fn placed(&mut self, tensor: usize) {
        self.decided.remove(&tensor);
    }

    /// Decides what a buffer of `size` bytes is for. `serves` returns why a cache cannot be compressed.
    pub(super) fn decide(
        &mut self,
        size: usize,
        alignment: usize,
        serves: impl FnOnce() -> Result<(), String>,
    ) -> Purpose {
        let round = core::mem::take(&mut self.round);
        let padded = |bytes: usize| bytes.next_multiple_of(alignment.max(1));
        let mut sum = 0;
        let first = (0..round.len()).rev().find(|first| {
            sum += padded(round[*first].told);
            sum >= size
        });
        let (group, fits) = match first {
            Some(first) if sum == size => (&round[first..], true),
            _ => (&round[..], false),
        };
        if group.iter().all(|entry| entry.role.is_none()) {
            return Purpose::Other;
        }
        let count = |role| group.iter().filter(|entry| entry.role == Some(role)).count();
        let name = |entry: &Entry| entry.name.clone();
        let why = if !fits {
            Err("its buffer has a size that nobody asked for".to_owned())
        } else if let Some(other) = group.iter().find(|entry| entry.role.is_none()) {
            Err(format!("{}: not keys or values in f16", name(other)))
        } else if count(Role::Keys) != count(Role::Values) {
            Err(format!("{} has keys and values in one tensor (MLA), or keys alone", name(&group[0])))
        } else {
            serves()
        };
        match why {
            Ok(()) => {
                self.decided.clear();
                self.decided.extend(group.iter().map(|entry| (entry.tensor, entry.told)));
                Purpose::Cache
            }
            Err(why) => {
                self.decided.extend(group.iter().map(|entry| (entry.tensor, entry.nominal)));
                // Other tensors of the buffer keep the sizes that they were told.
                let more = |entry: &Entry| padded(entry.nominal).saturating_sub(padded(entry.told));
                let bytes = size + group.iter().map(more).sum::<usize>();
                Purpose::Declined { bytes, why }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: [(&str, Role); 4] = [
        ("cache_k_l0", Role::Keys),
        ("cache_v_l0", Role::Values),
        ("cache_k_l1", Role::Keys),
        ("cache_v_l1", Role::Values),
    ];

    fn ask(told: &mut Told, tensors: &[(&str, Role)]) -> usize {
        let size = |(number, (name, role)): (usize, &(&str, Role))| {
            told.tell(number, name, 4096, Some((*role, 1000))).next_multiple_of(128)
        };
        tensors.iter().enumerate().map(size).sum()
    }

    #[test]
    fn caches_keep_their_sizes_and_others_get_theirs_back() {
        let mut told = Told::default();
        told.tell(77, "scratch", 5000, None);
        let size = ask(&mut told, &PAIRS);
        assert_eq!(size, 4 * 1024);
        assert_eq!(told.decide(size, 128, || Ok(())), Purpose::Cache);
        for _ in 0..3 {
            assert_eq!(told.tell(0, "cache_k_l0", 4096, Some((Role::Keys, 1000))), 1000);
        }
        (0..4).for_each(|tensor| told.placed(tensor));
        // Refused, and MLA: the second round has nominal sizes.
        let size = ask(&mut told, &PAIRS);
        let declined = told.decide(size, 128, || Err("no driver".into()));
        assert_eq!(declined, Purpose::Declined { bytes: 4 * 4096, why: "no driver".into() });
        assert_eq!(told.tell(0, "cache_k_l0", 4096, Some((Role::Keys, 1000))), 4096);
        (0..4).for_each(|tensor| told.placed(tensor));
        let keys = [PAIRS[0], PAIRS[2]];
        let size = ask(&mut told, &keys);
        assert!(
            matches!(told.decide(size, 128, || Ok(())), Purpose::Declined { bytes: 8192, why } if why.contains("MLA"))
        );
        // A size that was not told never makes a buffer too small.
        (0..4).for_each(|tensor| told.placed(tensor));
        ask(&mut told, &PAIRS);
        assert!(
            matches!(told.decide(5000, 128, || Ok(())), Purpose::Declined { bytes, .. } if bytes == 5000 + 4 * 3072)
        );
        // Neither do tensors at the addresses of some that were never placed.
        let size = ask(&mut told, &PAIRS);
        assert_eq!(size, 4 * 4096);
        assert_eq!(told.decide(size, 128, || Ok(())), Purpose::Other);
    }
}
