//! Which bytes of which block planned memory gets: storages that are never needed at the same time share bytes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use netcl_core::kernels::launch::{Arg, Launch};
use netcl_core::kernels::recording::{InPlace, Need};
use netcl_core::storage::Storage;

/// Memory that is needed from one launch to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// How much.
    pub nbytes: usize,
    /// The first launch that uses it.
    pub first: usize,
    /// The last one.
    pub last: usize,
}

impl Lifetime {
    /// Whether both are needed at some launch.
    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which block.
    pub block: usize,
    /// From which byte on.
    pub offset: usize,
    /// How many bytes it has: what lies there may need fewer.
    pub room: usize,
}

/// Places for all lifetimes, and the sizes of the blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// One for each lifetime.
    pub places: Vec<Place>,
    /// The size of each block.
    pub blocks: Vec<usize>,
}

/// As [`pack`], but a place is shared as a whole: two places are the same or have no byte in common. The largest come first, each
/// takes the smallest place that is free while it lives, or makes a new one.
///
/// This is for drivers: NVIDIA's crashes when sub-buffers that overlap are released, and launches that use them cost it up to four
/// times as much.
///
/// ```
/// use netcl_runtime::capture::plan::{Lifetime, pack_whole};
///
/// let lives = [(1000, 0, 1), (500, 1, 2), (600, 2, 3)].map(|(nbytes, first, last)| Lifetime { nbytes, first, last });
/// let packing = pack_whole(&lives, 256, usize::MAX);
/// assert_eq!(packing.blocks, [1536]);
/// assert_eq!(packing.places[0], packing.places[2]);
/// ```
pub fn pack_whole(lifetimes: &[Lifetime], align: usize, limit: usize) -> Packing {
    let align = align.max(1);
    let mut packing =
        Packing { places: vec![Place { block: 0, offset: 0, room: 0 }; lifetimes.len()], blocks: Vec::new() };
    let mut shared: Vec<(Place, Vec<Lifetime>)> = Vec::new();
    for i in largest_first(lifetimes) {
        let life = lifetimes[i];
        let free = shared
            .iter_mut()
            .filter(|(_, others)| !others.iter().any(|other| other.meets(&life)))
            .min_by_key(|(place, _)| place.room);
        if let Some((place, others)) = free {
            packing.places[i] = *place;
            others.push(life);
            continue;
        }
        let room = life.nbytes.next_multiple_of(align);
        let fits = |block: &usize| block.checked_add(room).is_some_and(|end| end <= limit);
        let block = packing.blocks.iter().position(fits).unwrap_or(packing.blocks.len());
        if block == packing.blocks.len() {
            packing.blocks.push(0);
        }
        let place = Place { block, offset: packing.blocks[block], room };
        packing.blocks[block] += room;
        packing.places[i] = place;
        shared.push((place, vec![life]));
    }
    packing
}

fn largest_first(lifetimes: &[Lifetime]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lifetimes[i].nbytes), lifetimes[i].first));
    order
}

/// Packs lifetimes into as few blocks of at most `limit` bytes as need be: the largest first, each into the smallest gap
/// that the ones it overlaps in time leave.
///
/// ```
/// use netcl_runtime::capture::plan::{Lifetime, pack};
///
/// // The third needs its memory when the first is through.
/// let lives = [(1000, 0, 1), (500, 1, 2), (1000, 2, 3)].map(|(nbytes, first, last)| Lifetime { nbytes, first, last });
/// let packing = pack(&lives, 256, usize::MAX);
/// assert_eq!(packing.blocks, [1536]);
/// assert_eq!(packing.places[0], packing.places[2]);
/// ```
pub fn pack(lifetimes: &[Lifetime], align: usize, limit: usize) -> Packing {
    let align = align.max(1);
    let mut packing =
        Packing { places: vec![Place { block: 0, offset: 0, room: 0 }; lifetimes.len()], blocks: Vec::new() };
    let mut placed: Vec<Vec<usize>> = Vec::new();
    for i in largest_first(lifetimes) {
        let life = lifetimes[i];
        let size = life.nbytes.next_multiple_of(align);
        let mut best: Option<(usize, Place)> = None;
        for (block, inside) in placed.iter().enumerate() {
            // Spans of the block that are taken while this one lives, by their start.
            let mut taken: Vec<(usize, usize)> = inside
                .iter()
                .filter(|&&other| lifetimes[other].meets(&life))
                .map(|&other| packing.places[other])
                .map(|place| (place.offset, place.offset + place.room))
                .collect();
            taken.sort_unstable();
            let mut end = 0;
            for (start, stop) in taken {
                if start >= end + size && best.is_none_or(|(gap, _)| start - end < gap) {
                    best = Some((start - end, Place { block, offset: end, room: size }));
                }
                end = end.max(stop);
            }
            // Behind everything: a gap only where the block need not grow.
            let gap = packing.blocks[block].saturating_sub(end);
            if gap >= size && best.is_none_or(|(other, _)| gap < other) {
                best = Some((gap, Place { block, offset: end, room: size }));
            } else if best.is_none() && end.checked_add(size).is_some_and(|stop| stop <= limit) {
                best = Some((usize::MAX, Place { block, offset: end, room: size }));
            }
        }
        let place = best.map_or(Place { block: placed.len(), offset: 0, room: size }, |(_, place)| place);
        if place.block == placed.len() {
            placed.push(Vec::new());
            packing.blocks.push(0);
        }
        placed[place.block].push(i);
        packing.places[i] = place;
        let block = &mut packing.blocks[place.block];
        *block = (*block).max(place.offset + size);
    }
    packing
}

/// The lifetimes of needs over a list of launches: `None` for memory that nobody uses. What the caller still holds, and what is
/// filled only once, lives from the beginning to the end.
pub(super) fn lifetimes(needs: &[Need], launches: &[Launch]) -> Vec<Option<Lifetime>> {
    let by_stand_in: HashMap<*const Storage, usize> =
        needs.iter().enumerate().map(|(i, need)| (Arc::as_ptr(&need.stand_in), i)).collect();
    let mut lives: Vec<Option<Lifetime>> = needs
        .iter()
        .map(|need| {
            let held = need.storage.strong_count() > 0 || need.constant;
            held.then_some(Lifetime { nbytes: need.nbytes, first: 0, last: usize::MAX })
        })
        .collect();
    for (at, launch) in launches.iter().enumerate() {
        for arg in &launch.args {
            let Arg::Buffer(storage, _) = arg else { continue };
            let Some(&need) = by_stand_in.get(&Arc::as_ptr(storage)) else { continue };
            let life = lives[need].get_or_insert(Lifetime { nbytes: needs[need].nbytes, first: at, last: at });
            life.last = life.last.max(at);
        }
    }
    lives
}

/// Lets outputs take over the memory of inputs that end where they begin: the lifetime of the first of a chain grows to the
/// end of the last, the others have none. The result says whose memory each of the others gets.
pub(super) fn merge(
    lives: &mut [Option<Lifetime>],
    in_place: &[InPlace],
    fixed: impl Fn(usize) -> bool,
) -> Vec<Option<usize>> {
    let mut merged: Vec<Option<usize>> = vec![None; lives.len()];
    let mut taken: HashSet<(usize, usize)> = HashSet::new();
    for &InPlace { launch, input, output } in in_place {
        // The first of the chain that the input belongs to.
        let first = merged[input].unwrap_or(input);
        let (Some(from), Some(to)) = (lives[first], lives[output]) else { continue };
        let meets = from.last == launch && to.first == launch && from.nbytes == to.nbytes;
        // Two outputs of one launch must not lie in the same place.
        if taken.contains(&(launch, first)) || first == output || fixed(first) || fixed(output) || !meets {
            continue;
        }
        lives[first] = Some(Lifetime { last: to.last, ..from });
        lives[output] = None;
        merged[output] = Some(first);
        taken.insert((launch, first));
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(lives: &[Lifetime], packing: &Packing) -> bool {
        (0..lives.len())
            .any(|i| (0..i).any(|j| lives[i].meets(&lives[j]) && share(&packing.places[i], &packing.places[j])))
    }

    fn share(a: &Place, b: &Place) -> bool {
        a.block == b.block && a.offset < b.offset + b.room && b.offset < a.offset + a.room
    }

    #[test]
    fn lifetimes_that_meet_never_share_bytes_and_blocks_stay_below_the_limit() {
        let mut word = 12345u64;
        let mut next = |below: u64| {
            word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (word >> 33) % below
        };
        for limit in [usize::MAX, 40_000] {
            let lives: Vec<Lifetime> = (0..300)
                .map(|_| {
                    let first = next(200) as usize;
                    Lifetime { nbytes: 1 + next(30_000) as usize, first, last: first + next(20) as usize }
                })
                .collect();
            let peak = (0..220)
                .map(|t| lives.iter().filter(|l| (l.first..=l.last).contains(&t)).map(|l| l.nbytes).sum::<usize>())
                .max()
                .unwrap();
            let whole = pack_whole(&lives, 128, limit);
            for (i, a) in whole.places.iter().enumerate() {
                assert!(whole.places[..i].iter().all(|b| a == b || !share(a, b)), "places are shared as a whole");
            }
            for packing in [pack(&lives, 128, limit), whole] {
                assert!(!overlap(&lives, &packing));
                assert!(packing.places.iter().all(|place| place.offset % 128 == 0));
                assert!(packing.blocks.iter().all(|&block| block <= limit));
                for (life, place) in lives.iter().zip(&packing.places) {
                    assert!(life.nbytes <= place.room && place.offset + place.room <= packing.blocks[place.block]);
                }
                let total: usize = packing.blocks.iter().sum();
                assert!(total < 2 * peak, "{total} bytes for a peak of {peak}");
            }
        }
    }

    #[test]
    fn outputs_take_over_what_ends_where_they_begin() {
        let life = |nbytes, first, last| Some(Lifetime { nbytes, first, last });
        let mut lives = [life(64, 0, 1), life(64, 1, 2), life(64, 2, 5), life(32, 2, 3), life(64, 2, 4)];
        let pair = |launch, input, output| InPlace { launch, input, output };
        // The third ends the second; the fourth has another size; the fifth comes too late for what was taken over.
        let pairs = [pair(1, 0, 1), pair(2, 1, 3), pair(2, 1, 2), pair(2, 1, 4)];
        let merged = merge(&mut lives, &pairs, |_| false);
        assert_eq!(merged, [None, Some(0), Some(0), None, None]);
        assert_eq!(lives, [life(64, 0, 5), None, None, life(32, 2, 3), life(64, 2, 4)]);
        let mut held = [life(64, 0, 1), life(64, 1, 2)];
        assert_eq!(merge(&mut held, &[pair(1, 0, 1)], |need| need == 1), [None, None]);
    }

    #[test]
    fn a_chain_needs_two_places_and_what_is_larger_than_the_limit_a_block_of_its_own() {
        let chain: Vec<Lifetime> = (0..10).map(|i| Lifetime { nbytes: 1024, first: i, last: i + 1 }).collect();
        let large = [Lifetime { nbytes: 5000, first: 0, last: 9 }];
        for pack in [pack, pack_whole] {
            assert_eq!(pack(&chain, 64, usize::MAX).blocks, [2048]);
            assert_eq!(pack(&large, 64, 1000).blocks, [5056]);
            assert_eq!(pack(&[], 64, 1000), Packing::default());
        }
    }
}
