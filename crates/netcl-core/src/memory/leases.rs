//! Who holds a pool's blocks: the live leases with their labels.

use std::collections::HashMap;
use std::fmt;

use super::stats::Bytes;

/// How many kinds of leases a report names.
const NAMED: usize = 5;

/// The live leases of a pool. Entries are recycled, so that a lease allocates nothing once the table has grown.
#[derive(Default)]
pub(super) struct LeaseTable {
    slots: Vec<(&'static str, usize)>,
    vacant: Vec<u32>,
}

impl LeaseTable {
    /// Enters a lease and answers where.
    #[inline]
    pub(super) fn insert(&mut self, label: &'static str, size: usize) -> u32 {
        if let Some(slot) = self.vacant.pop() {
            self.slots[slot as usize] = (label, size);
            slot
        } else {
            self.slots.push((label, size));
            (self.slots.len() - 1) as u32
        }
    }

    /// Removes a lease. A vacant entry has no bytes, which no lease has.
    #[inline]
    pub(super) fn remove(&mut self, slot: u32) {
        self.slots[slot as usize].1 = 0;
        self.vacant.push(slot);
    }

    /// The live leases, equal ones together, largest first.
    pub(super) fn largest(&self) -> LargestLeases {
        let mut groups: HashMap<(&'static str, usize), usize> = HashMap::new();
        for &lease in self.slots.iter().filter(|(_, size)| *size > 0) {
            *groups.entry(lease).or_default() += 1;
        }
        let mut groups: Vec<_> = groups.into_iter().map(|((label, size), count)| (size, label, count)).collect();
        groups.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        LargestLeases { count: self.slots.len() - self.vacant.len(), groups }
    }
}

/// The live leases for a report: `12 leases: 2 x 512.00 MB "weights", 256.00 MB "buffer", ...`.
pub(super) struct LargestLeases {
    count: usize,
    groups: Vec<(usize, &'static str, usize)>,
}

impl fmt::Display for LargestLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, if self.count == 1 { "lease" } else { "leases" })?;
        for (at, &(size, label, count)) in self.groups.iter().take(NAMED).enumerate() {
            f.write_str(if at == 0 { ": " } else { ", " })?;
            if count > 1 {
                write!(f, "{count} x ")?;
            }
            write!(f, "{} {label:?}", Bytes(size))?;
        }
        if self.groups.len() > NAMED { f.write_str(", ...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_leases_are_named_together_and_the_largest_first() {
        let mut table = LeaseTable::default();
        assert_eq!(table.largest().to_string(), "0 leases");
        let gone = table.insert("gone", 1 << 30);
        table.insert("weights", 2048);
        table.insert("buffer", 4096);
        table.remove(gone);
        table.insert("weights", 2048);
        assert_eq!(table.slots.len(), 3, "a vacant entry is used again");
        assert_eq!(table.largest().to_string(), r#"3 leases: 4.00 KB "buffer", 2 x 2.00 KB "weights""#);
        for size in 1..=4 {
            table.insert("small", size);
        }
        assert!(table.largest().to_string().ends_with(r#"2 B "small", ..."#));
    }
}
