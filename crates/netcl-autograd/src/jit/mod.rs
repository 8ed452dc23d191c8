//! The compiler: `jit(f)` traces a function by running it once, fuses what it did, and runs the result from then on.
//!
//! ```
//! use netcl_autograd::{Tensor, jit, manager};
//!
//! let chain = jit(|t: &[&Tensor]| &(&(t[0] * t[1])? + 1.0)?.tanh()? * &t[0].sigmoid()?);
//! let queue = manager().cpu().queue;
//! let x = Tensor::from_host(&queue, &[0.5f32, -1.0], [2])?.with_grad();
//! let y = Tensor::from_host(&queue, &[2.0f32, 3.0], [2])?;
//! let out = chain.call(&[&x, &y])?; // one kernel
//! out.sum((), false)?.backward()?; // one kernel for the chain, one to spread the ones
//! assert!(x.grad().is_some());
//! assert!(chain.explain(&[&x, &y])?.contains("fuses mul, add, tanh"));
//! # Ok::<(), netcl_autograd::Error>(())
//! ```
//!
//! # How it works
//!
//! The compiler listens at the launch seam ([`netcl_core::kernels::launch`]): while the function runs on stand-ins without
//! values, every operation is written down instead of being run, forward and (through the ordinary graph) backward. So whatever
//! works op by op works here, and what nobody has described to the compiler is kept as the launch it is.
//!
//! | file | subject |
//! |---|---|
//! | `trace.rs`, `along.rs` | the sink that writes operations down, softmax and its like in their parts |
//! | `partition.rs` | forward, backward, and what is kept in between |
//! | `facts.rs`, `views.rs`, `merge.rs` | who writes and reads what; values seen through other axes; joining expressions |
//! | `group.rs` | which operations become one kernel |
//! | `units.rs` | what reductions and products take in before and behind them |
//! | `region.rs` | reductions over rows with everything around them |
//! | `lower.rs`, `program.rs` | launches over planned memory; binding and running them |
//! | `plan.rs`, `cache.rs` | one compiled function; calls, keys and gradients |
//! | `captures.rs`, `leaves.rs` | tensors beside the arguments; whether those that nobody named need gradients |
//! | `report.rs`, `page.rs` | explanations, sources, drawings; the page of `netcl explain` |
//!
//! # What the numbers mean
//!
//! A fused value is not rounded to its dtype on the way: 16-bit types are computed in float32 throughout, and rounded when
//! stored. Float32 and float64 pointwise chains give the same bits as op by op; reductions over rows add in another order
//! and stay within a few units in the last place.

mod along;
mod cache;
mod captures;
mod facts;
mod group;
mod leaves;
mod lower;
mod merge;
mod outputs;
mod page;
mod partition;
mod plan;
mod program;
mod region;
mod report;
mod trace;
mod units;
mod views;

use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;

pub use cache::{Cache, runs_op_by_op};
pub use captures::Captures;
pub(crate) use captures::facts_changed;
pub(crate) use leaves::saw;
pub use outputs::Outputs;
pub use plan::Body;

use crate::error::Result;
use crate::tensor::Tensor;

/// How a graph is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// The DOT language of Graphviz: operations, boxed by kernel.
    #[default]
    Dot,
    /// A Mermaid flowchart of kernels.
    Mermaid,
}

/// What a compiled function has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// How often it was traced: once for every new kind of arguments.
    pub traces: u64,
    /// How often a call found its plan.
    pub hits: u64,
    /// How many plans it has.
    pub plans: u64,
}

/// How a function is compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JitOptions {
    /// Lets pointwise kernels on OpenCL devices trade exactness for speed; reductions and products stay as they are.
    pub fast_math: bool,
}

/// What [`jit`] compiles.
type Function<R> = dyn Fn(&[&Tensor]) -> Result<R> + Send + Sync;

/// A function that is compiled when it is called. Made by [`jit`].
pub struct Jit<R = Tensor> {
    function: Arc<Function<R>>,
    cache: Cache,
}

/// Compiles a function of tensors when it is called; `NETCL_JIT=0` runs it as it is.
///
/// Tensors that the function captures are constants by reference: their values and whether they need a gradient are looked up in
/// every call, and gradients flow to them, but which tensors they are is decided when it is traced.
#[track_caller]
pub fn jit<R: Outputs>(function: impl Fn(&[&Tensor]) -> Result<R> + Send + Sync + 'static) -> Jit<R> {
    jit_with(function, JitOptions::default())
}

/// [`jit`] with options.
#[track_caller]
pub fn jit_with<R: Outputs>(
    function: impl Fn(&[&Tensor]) -> Result<R> + Send + Sync + 'static,
    options: JitOptions,
) -> Jit<R> {
    let place = Location::caller();
    let name = format!("the function at {}:{}", place.file(), place.line());
    Jit { function: Arc::new(function), cache: Cache::new(options.fast_math).named(name) }
}

impl<R: Outputs + 'static> Jit<R> {
    fn body(&self) -> Body {
        let function = self.function.clone();
        Arc::new(move |inputs| Ok(function(&inputs.iter().collect::<Vec<_>>())?.into_list()))
    }

    /// Calls the function.
    #[track_caller]
    pub fn call(&self, inputs: &[&Tensor]) -> Result<R> {
        self.call_with(inputs, &[])
    }

    /// Calls the function, naming tensors it captures that may be others the next time.
    #[track_caller]
    pub fn call_with(&self, inputs: &[&Tensor], captures: &[&Tensor]) -> Result<R> {
        let captures = Captures::new(captures.iter().map(|&tensor| tensor.clone()).collect());
        let (_, outputs) = self.cache.call(&[], inputs, &captures, self.body())?;
        R::from_list(&mut outputs.into_iter()).ok_or_else(|| {
            netcl_core::Error::argument("jit", "the function gave another number of tensors than its type says").into()
        })
    }

    /// What fused and what did not, for arguments like these.
    pub fn explain(&self, inputs: &[&Tensor]) -> Result<String> {
        self.cache.explain(&[], inputs, &Captures::default(), self.body())
    }

    /// The text of every kernel that was written for arguments like these.
    pub fn source(&self, inputs: &[&Tensor]) -> Result<String> {
        self.cache.source(&[], inputs, &Captures::default(), self.body())
    }

    /// A drawing of what was traced for arguments like these.
    pub fn graph(&self, inputs: &[&Tensor], style: Style) -> Result<String> {
        self.cache.graph(&[], inputs, &Captures::default(), self.body(), style)
    }

    /// What it has done so far.
    pub fn counters(&self) -> Counters {
        self.cache.counters()
    }
}

/// Whether functions are compiled at all: `NETCL_JIT=0` turns it off.
pub fn enabled() -> bool {
    netcl_core::env::JIT.switch()
}

thread_local! {
    static TRACING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is tracing a function to compile it: there are no values, and what happens is written down.
pub fn is_tracing() -> bool {
    TRACING.get()
}

/// Refuses what cannot be a part of a compiled function, by name.
///
/// # Errors
/// While a function is traced.
pub fn refuse_tracing(op: &'static str) -> Result<()> {
    if !is_tracing() {
        return Ok(());
    }
    let what = "a compiled function (jit) computes values, and its caller asks for gradients and updates: move this behind \
                the call, or record the whole step with runtime.capture";
    Err(netcl_core::Error::State { op, what: what.to_owned() }.into())
}

/// While this lives, the thread traces: compiled functions that are called meanwhile become part of the trace.
struct Inside(bool);

impl Inside {
    fn enter() -> Inside {
        Inside(TRACING.replace(true))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        TRACING.set(self.0);
    }
}
