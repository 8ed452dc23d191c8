//! Which launches of a recorded function stand behind those of the program, where fusion has left fewer of them.

use std::borrow::Cow;
use std::sync::Arc;

use super::Step;
use crate::kernels::launch::{Arg, Launch, Scalar, Slot};

/// A launch as the recorded function made it, before any was joined with another or left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its name.
    pub name: Cow<'static, str>,
    /// How many arguments it has.
    pub args: usize,
}

/// A slot among the arguments of a program's launch, and where the function's own launch has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotOrigin {
    /// Which launch of the program, counted without the host's actions.
    pub launch: usize,
    /// Which of its arguments.
    pub arg: usize,
    /// Which launch of the function: an index of [`Recorded::origins`](super::Recorded::origins).
    pub origin: usize,
    /// Which of that one's arguments.
    pub origin_arg: usize,
}

/// The launches of a function, and the slots of each.
pub(super) struct Origins {
    pub(super) launches: Vec<Origin>,
    slots: Vec<Vec<(usize, Arc<Slot>)>>,
}

impl Origins {
    pub(super) fn of(steps: &[Step]) -> Origins {
        let launches = || steps.iter().filter_map(Step::launch);
        let origin = |launch: &Launch| Origin { name: launch.name.clone(), args: launch.args.len() };
        let own = |launch: &Launch| slots(launch).map(|(at, slot)| (at, slot.clone())).collect();
        Origins { launches: launches().map(origin).collect(), slots: launches().map(own).collect() }
    }

    /// Where the slots of a program's launches come from; `behind` names the origins of each launch.
    pub(super) fn trace(&self, steps: &[Step], behind: &[Vec<usize>]) -> Vec<SlotOrigin> {
        let mut found = Vec::new();
        for (number, (launch, origins)) in steps.iter().filter_map(Step::launch).zip(behind).enumerate() {
            for (arg, slot) in slots(launch) {
                let place = origins.iter().find_map(|&origin| {
                    let (origin_arg, _) = self.slots[origin].iter().find(|(_, other)| Arc::ptr_eq(other, slot))?;
                    Some(SlotOrigin { launch: number, arg, origin, origin_arg: *origin_arg })
                });
                found.extend(place);
            }
        }
        found
    }
}

fn slots(launch: &Launch) -> impl Iterator<Item = (usize, &Arc<Slot>)> {
    launch.args.iter().enumerate().filter_map(|(at, arg)| match arg {
        Arg::Scalar(Scalar::SlotF32(slot) | Scalar::SlotF64(slot) | Scalar::SlotU64(slot)) => Some((at, slot)),
        _ => None,
    })
}
