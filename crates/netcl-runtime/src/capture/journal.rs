//! A sink that runs everything and writes down with which numbers.

use std::cell::RefCell;

use netcl_core::Result;
use netcl_core::kernels::launch::{Arg, Launch, Scalar, Sink};
use netcl_core::kernels::recording::Origin;

/// The launches that ran, with the numbers they ran with.
#[derive(Default)]
pub(super) struct Journal {
    launches: RefCell<Vec<Noted>>,
}

/// One launch: its name and its numbers, by their place among the arguments.
pub(super) struct Noted {
    pub(super) origin: Origin,
    pub(super) numbers: Vec<(usize, Scalar)>,
}

impl Journal {
    pub(super) fn take(&self) -> Vec<Noted> {
        self.launches.take()
    }
}

impl Sink for Journal {
    fn launch(&self, launch: Launch) -> Result<()> {
        let numbers = launch.args.iter().enumerate().filter_map(|(at, arg)| match arg {
            Arg::Scalar(scalar) => Some((at, fixed(scalar))),
            _ => None,
        });
        let origin = Origin { name: launch.name.clone(), args: launch.args.len() };
        let noted = Noted { origin, numbers: numbers.collect() };
        self.launches.borrow_mut().push(noted);
        launch.run()
    }

    /// The launches are compared with those that were recorded.
    fn may_run_ahead(&self) -> bool {
        false
    }
}

/// The number of the moment.
fn fixed(scalar: &Scalar) -> Scalar {
    match scalar {
        Scalar::SlotF32(slot) => Scalar::F32(slot.get_float() as f32),
        Scalar::SlotF64(slot) => Scalar::F64(slot.get_float()),
        Scalar::SlotU64(slot) => Scalar::U64(slot.get_integer()),
        other => other.clone(),
    }
}
