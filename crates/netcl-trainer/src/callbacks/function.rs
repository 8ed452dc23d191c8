//! A closure as a callback.

use crate::error::Result;
use crate::trainer::{Callback, Context, Epoch, Step};

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'e> {
    /// The run begins, or goes on.
    FitBegins,
    /// An epoch begins.
    EpochBegins(usize),
    /// An update is known on the host.
    Step(&'e Step),
    /// An epoch has ended.
    EpochEnds(&'e Epoch),
    /// The run ends.
    FitEnds,
}

/// Calls a closure at every event.
///
/// ```
/// use netcl_trainer::callbacks::{Event, Function};
///
/// // Ends a run that has reached its goal.
/// let goal = Function::new("goal", |run, event| {
///     if let Event::EpochEnds(epoch) = event
///         && epoch.values.get("val_accuracy").is_some_and(|accuracy| *accuracy > 0.99)
///     {
///         run.stop = Some("the goal is reached".to_owned());
///     }
///     Ok(())
/// });
/// ```
pub struct Function<F> {
    name: String,
    function: F,
}

impl<F: FnMut(&mut Context<'_>, Event<'_>) -> Result<()>> Function<F> {
    /// A closure, and what errors call it.
    pub fn new(name: impl Into<String>, function: F) -> Function<F> {
        Function { name: name.into(), function }
    }
}

impl<F: FnMut(&mut Context<'_>, Event<'_>) -> Result<()>> Callback for Function<F> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn fit_begins(&mut self, run: &mut Context<'_>) -> Result<()> {
        (self.function)(run, Event::FitBegins)
    }

    fn epoch_begins(&mut self, run: &mut Context<'_>, epoch: usize) -> Result<()> {
        (self.function)(run, Event::EpochBegins(epoch))
    }

    fn step(&mut self, run: &mut Context<'_>, step: &Step) -> Result<()> {
        (self.function)(run, Event::Step(step))
    }

    fn epoch_ends(&mut self, run: &mut Context<'_>, epoch: &Epoch) -> Result<()> {
        (self.function)(run, Event::EpochEnds(epoch))
    }

    fn fit_ends(&mut self, run: &mut Context<'_>) -> Result<()> {
        (self.function)(run, Event::FitEnds)
    }
}
