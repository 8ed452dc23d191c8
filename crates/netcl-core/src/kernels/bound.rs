//! Launches whose arguments are set for good.

use std::sync::Arc;

use super::launch::{self, Arg, Launch, Work};
use super::opencl::Prepared;
use crate::backend::Queue;
use crate::error::{Error, Result};
use crate::observe::{self, Place};
use crate::storage::Storage;

/// A launch that is ready to run again and again: on OpenCL its kernel object is its own and keeps its arguments, so that
/// running it is one call of the driver, and one more for each slot whose number has changed.
pub struct Bound {
    launch: Launch,
    prepared: Option<Prepared>,
    place: Option<Arc<Place>>,
}

impl Bound {
    /// Sets all arguments. No storage of the launch may be only planned.
    ///
    /// # Errors
    /// What the driver says, and arguments that do not fit the kernel.
    pub fn new(launch: Launch) -> Result<Bound> {
        let prepared = match (&launch.work, &launch.queue) {
            (Work::OpenCl(kernel, grid), Queue::OpenCl(stream)) => {
                Some(Prepared::new(stream, kernel, *grid, &launch.args)?)
            }
            (Work::OpenCl(..), Queue::Cpu(_)) => {
                return Err(Error::argument("launch", "an OpenCL kernel cannot run on the native CPU's queue"));
            }
            (Work::Cpu(_) | Work::Host(_), _) => None,
        };
        Ok(Bound { launch, prepared, place: None })
    }

    /// With the place where it was recorded, for observers of its runs.
    #[must_use]
    pub fn at(mut self, place: Option<Arc<Place>>) -> Bound {
        self.place = place;
        self
    }

    /// The launch.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Puts other memory in the place of a buffer.
    ///
    /// # Errors
    /// What the driver says; an argument that is not a buffer.
    pub fn set_buffer(&mut self, at: usize, storage: &Arc<Storage>) -> Result<()> {
        let Some(Arg::Buffer(bound, _)) = self.launch.args.get_mut(at) else {
            return Err(Error::argument("launch", format!("argument {at} is not a buffer")));
        };
        if !Arc::ptr_eq(bound, storage) {
            if let Some(prepared) = &mut self.prepared {
                prepared.set_buffer(at, storage)?;
            }
            *bound = storage.clone();
        }
        Ok(())
    }

    /// Runs the work. Whoever runs it sees to the order between queues ([`Storage::join`]) and to versions.
    ///
    /// # Errors
    /// What the kernel or the driver says.
    pub fn run(&mut self) -> Result<()> {
        let Bound { launch, prepared, place } = self;
        let _place = observe::resume(place.as_ref());
        launch::watch(launch, || match (prepared, &launch.work, &launch.queue) {
            (Some(prepared), _, Queue::OpenCl(stream)) => prepared.enqueue(stream),
            (None, Work::Cpu(kernel), _) => kernel.run(&launch.args),
            (None, Work::Host(work), _) => (work.body)(&launch.args),
            _ => launch.run(),
        })
    }
}
