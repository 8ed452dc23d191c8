//! Parameters that a recorded program casts one by one, as it does under autocast, cast together where the first of them is.
//!
//! ```text
//!   recorded    cast: p0 -> h0         product: x, h0    cast: p1 -> h1    product: y, h1
//!   joined      cast: p0, p1 -> h0, h1    product: x, h0                      product: y, h1
//! ```
//!
//! However small a cast is, replaying its launch takes microseconds of the device's time. The optimizer could write the 16-bit values
//! beside the parameters instead, which saves this launch as well and two thirds of its traffic (by bandwidth 0.03 ms for ResNet-50
//! on an H200), but then they would have to stay in memory between steps, and every other write to a parameter would have to be
//! noticed before each replay. A program that casts what it finds needs neither.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::{Joined, Map, Recording, State};
use crate::error::Result;
use crate::kernels::expr::{Expr, Node};
use crate::kernels::launch::{self, Access, Arg, Launch};
use crate::kernels::many::{self, CastPair};
use crate::storage::Storage;

/// A step that casts a tensor from outside of the program.
pub(super) struct Cast {
    at: usize,
    pair: CastPair,
    /// The last step that reads the result.
    last_use: usize,
}

impl Cast {
    /// Whether the same tensor is cast.
    fn is_of_same(&self, other: &Cast) -> bool {
        let (a, b) = (&self.pair.source, &other.pair.source);
        a.storage().identity() == b.storage().identity() && a.layout() == b.layout()
    }

    /// Whether one launch can do both.
    fn fits(&self, other: &Cast) -> bool {
        let (a, b) = (&self.pair, &other.pair);
        a.source.queue() == b.source.queue()
            && a.source.dtype() == b.source.dtype()
            && a.target.dtype() == b.target.dtype()
    }
}

/// Casts that run where the first of them is; there is one at least.
struct Batch<'c>(Vec<&'c Cast>);

impl Batch<'_> {
    fn has(&self, cast: &Cast) -> bool {
        self.0.iter().any(|other| other.is_of_same(cast))
    }

    /// Whether a result is still needed after a step.
    fn is_needed_after(&self, at: usize) -> bool {
        self.0.iter().any(|cast| cast.last_use > at)
    }
}

/// The steps that write each storage.
struct Writes(HashMap<usize, Vec<usize>>);

impl Writes {
    fn any(&self, storage: &Storage, between: std::ops::Range<usize>) -> bool {
        self.0.get(&storage.identity()).is_some_and(|steps| steps.iter().any(|at| between.contains(at)))
    }
}

impl State {
    /// The casts of what comes from outside of the program, in order; `users` has the steps that do anything with each need.
    pub(super) fn casts(&self, users: &[Vec<usize>]) -> Vec<Cast> {
        let casts = self.fusion.maps.iter().filter_map(|(&at, map)| self.cast(at, map, users));
        let mut casts: Vec<Cast> = casts.collect();
        casts.sort_by_key(|cast| cast.at);
        casts
    }

    fn cast(&self, at: usize, map: &Map, users: &[Vec<usize>]) -> Option<Cast> {
        let [source] = &map.inputs[..] else { return None };
        let need = self.need(map.output.storage())?;
        let pair = CastPair { source: source.clone(), target: map.output.clone() };
        let from_outside = self.need(source.storage()).is_none() && !source.storage().is_planned();
        // What was there before may still have been read.
        let is_new = users[need].first() == Some(&at);
        let is_held = self.needs[need].storage.strong_count() > 0;
        let last_use = if is_held { usize::MAX } else { users[need].last().copied().unwrap_or(at) };
        let is_cast = is_identity(&map.expr) && source.dtype() != map.output.dtype() && pair.is_dense();
        (from_outside && is_new && is_cast).then_some(Cast { at, pair, last_use })
    }

    /// Casts that may run where the first of them is: nobody writes what they read before they were to read it.
    fn batches<'c>(&self, casts: &[&'c Cast]) -> Vec<Batch<'c>> {
        let sources: HashSet<usize> = casts.iter().map(|cast| cast.pair.source.storage().identity()).collect();
        let mut writes = Writes(HashMap::new());
        for (at, launch) in self.launches_in(0..self.steps.len()) {
            for storage in written(launch).filter(|storage| sources.contains(&storage.identity())) {
                writes.0.entry(storage.identity()).or_default().push(at);
            }
        }
        let mut batches: Vec<Batch<'c>> = Vec::new();
        for &cast in casts {
            // A parameter is cast again where its first copy was given up to save memory (checkpoints): only together with what is
            // in memory at that time anyway.
            let again = batches.iter().any(|batch| batch.has(cast));
            let joins = |batch: &&mut Batch<'c>| {
                let Some(first) = batch.0.first() else { return false };
                first.fits(cast)
                    && !batch.has(cast)
                    && (!again || batch.is_needed_after(cast.at))
                    && !writes.any(cast.pair.source.storage(), first.at..cast.at)
            };
            match batches.iter_mut().find(joins) {
                Some(batch) => batch.0.push(cast),
                None => batches.push(Batch(vec![cast])),
            }
        }
        batches
    }
}

impl Recording {
    /// Puts one launch in the place of several casts; of those that are a part of something else by now, none.
    pub(super) fn join_casts(
        self: &Rc<Self>,
        casts: &[Cast],
        gone: &mut HashSet<usize>,
        instead: &mut HashMap<usize, Joined>,
    ) -> Result<()> {
        let is_left = |cast: &&Cast| !gone.contains(&cast.at) && !instead.contains_key(&cast.at);
        let casts: Vec<&Cast> = casts.iter().filter(is_left).collect();
        let batches = self.state.borrow().batches(&casts);
        for Batch(casts) in batches.iter().filter(|batch| batch.0.len() > 1) {
            let pairs: Vec<CastPair> = casts.iter().map(|cast| cast.pair.clone()).collect();
            let start = self.state.borrow().steps.len();
            launch::with_sink(self.clone(), || many::cast(&pairs))?;
            let launches = self.state.borrow_mut().split_off(start);
            instead.insert(casts[0].at, Joined { launches, others: Vec::new() });
            gone.extend(casts[1..].iter().map(|cast| cast.at));
        }
        Ok(())
    }
}

fn is_identity(expr: &Expr) -> bool {
    matches!((expr.outputs(), expr.nodes()), ([_], [Node::Input(0)]))
}

fn written(launch: &Launch) -> impl Iterator<Item = &Storage> {
    launch.args.iter().filter_map(|arg| match arg {
        Arg::Buffer(storage, Access::Write) => Some(&**storage),
        _ => None,
    })
}
