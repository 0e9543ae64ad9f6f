//! Decides whether this library can serve a group of tensors before their buffer exists.
//!
//! The host asks for the size of each tensor, and then for a buffer of the sum. A buffer that would hold anything but pairs of
//! keys and values is left to the host's CPU, so that the host works on it as fast as without this library.

use octaplex::codecs::Role;

/// Sizes that are remembered. A longer group is treated as one that nothing is known about.
const MOST: usize = 1 << 12;

struct Entry {
    name: Vec<u8>,
    /// Bytes that the host was told.
    told: usize,
    nominal: usize,
    role: Option<Role>,
}

/// The sizes that the host asked for since its last buffer.
#[derive(Default)]
pub(crate) struct Plan(Vec<Entry>);

/// A group that this library leaves to the host's CPU.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Declined {
    /// Bytes of the group in the host's memory.
    pub(crate) bytes: usize,
    pub(crate) why: String,
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}

impl Plan {
    /// Notes a tensor, and returns the bytes that the host should count for it. `store` has the role and the compressed
    /// bytes of keys or values that can be compressed.
    pub(crate) fn tell(&mut self, name: &[u8], nominal: usize, store: Option<(Role, usize)>) -> usize {
        if self.0.iter().any(|entry| entry.name == name) {
            self.0.clear(); // another round
        }
        if self.0.len() == MOST {
            self.0.remove(0);
        }
        let (role, mut told) = store.map_or((None, nominal), |(role, bytes)| (Some(role), bytes));
        // Keys behind keys have no values, so none of them is compressed. The sum must still be right.
        if let Some(last) =
            self.0.last().filter(|last| (role, last.role) == (Some(Role::Keys), Some(Role::Keys)))
        {
            told = nominal + last.nominal.saturating_sub(last.told.min(last.nominal));
        }
        self.0.push(Entry { name: name.to_owned(), told, nominal, role });
        told
    }

    /// Forgets all sizes.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }

    /// Returns whether the host's CPU gets the buffer of `size` bytes that the host requests.
    pub(crate) fn take(&mut self, size: usize) -> Option<Declined> {
        let all = core::mem::take(&mut self.0);
        let mut sum = 0;
        let first = (0..all.len()).rev().find(|first| {
            sum += padded(all[*first].told);
            sum >= size
        })?;
        if sum != size {
            return None; // the host's scratch memory
        }
        let group = &all[first..];
        let of = |role| group.iter().filter(move |entry| entry.role == role);
        let why = if let Some(other) = of(None).next() {
            let name = String::from_utf8_lossy(&other.name).into_owned();
            let more = match of(None).count() - 1 {
                0 => String::new(),
                count => format!(" and {count} more"),
            };
            format!("{name}{more}: not keys or values in f16 or bf16")
        } else if of(Some(Role::Keys)).count() != of(Some(Role::Values)).count() {
            let name = String::from_utf8_lossy(&group[0].name);
            format!("{name} has keys and values in one tensor (MLA), or keys alone")
        } else {
            return None;
        };
        Some(Declined { bytes: group.iter().map(|entry| padded(entry.nominal)).sum(), why })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    type Told<'a> = (&'a str, usize, Option<(Role, usize)>);

    /// Tells sizes as the host asks for them, and requests their sum.
    fn decide(plan: &mut Plan, tensors: &[Told<'_>]) -> (usize, Option<Declined>) {
        let sum = tensors
            .iter()
            .map(|(name, nominal, store)| padded(plan.tell(name.as_bytes(), *nominal, *store)))
            .sum();
        (sum, plan.take(sum))
    }

    #[test]
    fn pairs_of_keys_and_values_are_served() {
        let (keys, values) = (Some((Role::Keys, 192)), Some((Role::Values, 128)));
        let pairs = [
            ("cache_k_l0", 640, keys),
            ("cache_v_l0", 640, values),
            ("cache_k_l1", 640, keys),
            ("cache_v_l1", 640, values),
        ];
        let mut plan = Plan::default();
        // Earlier requests of the host do not matter.
        plan.tell(b"scratch", 5, None);
        assert_eq!(decide(&mut plan, &pairs), (640, None));
        // Scratch memory has any size.
        plan.tell(b"scratch", 100, None);
        assert_eq!(plan.take(1000), None);
    }

    #[test]
    fn keys_without_values_have_their_own_size() {
        let keys = Some((Role::Keys, 192));
        let mut plan = Plan::default();
        let (sum, declined) = decide(
            &mut plan,
            &[("cache_k_l0", 640, keys), ("cache_k_l1", 640, keys), ("cache_k_l2", 640, keys)],
        );
        let declined = declined.unwrap();
        assert_eq!((sum, declined.bytes), (1920, 1920));
        assert!(declined.why.contains("MLA"));
        // One layer only: the host gets more than it asked for.
        assert_eq!(decide(&mut plan, &[("cache_k_l0", 640, keys)]).1.unwrap().bytes, 640);
    }

    #[test]
    fn other_tensors_are_named() {
        let mut plan = Plan::default();
        let declined =
            decide(&mut plan, &[("state", 100, None), ("cache_v_l0", 640, Some((Role::Values, 128)))]).1;
        let declined = declined.unwrap();
        assert!(declined.why.starts_with("state: "), "{}", declined.why);
        assert_eq!(declined.bytes, 128 + 640);
    }
}
