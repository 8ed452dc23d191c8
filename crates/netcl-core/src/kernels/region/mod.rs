//! Fused rows: one launch that computes, for every row of its operands, maps, reductions along the row, maps of what was
//! reduced, further reductions, and any number of outputs.
//!
//! Softmax, layer norm, cross-entropy and their gradients are all of this kind. A [`Region`] is declared with a
//! [`RegionBuilder`]; values are *full* (one per element of the row) or *row* values (one per row).
//!
//! ```
//! use netcl_core::device::manager;
//! use netcl_core::kernels::expr::Graph;
//! use netcl_core::kernels::region::{Combine, RegionBuilder};
//! use netcl_core::{dtype::DType, tensor::Tensor};
//!
//! let g = Graph::new();
//! let shifted_exp = g.finish(&[(g.input(0) - g.input(1)).exp()]);
//! let divide = g.finish(&[g.input(0) / g.input(1)]);
//!
//! let mut rows = RegionBuilder::new("softmax");
//! let x = rows.input();
//! let top = rows.reduce(Combine::Max, x);
//! let e = rows.map(&shifted_exp, &[x, top], &[])[0];
//! let total = rows.reduce(Combine::Sum, e);
//! let y = rows.map(&divide, &[e, total], &[])[0];
//! rows.output(y);
//! let softmax = rows.finish();
//!
//! let queue = manager().cpu().queue;
//! let x = Tensor::from_host(&queue, &[0.0f32, 0.0, 1.0, 1.0], [2, 2])?;
//! let y = Tensor::uninit(&queue, [2, 2], DType::F32)?;
//! softmax.run(&[&x], &[], &[&y], 1)?;
//! assert_eq!(y.to_host::<f32>()?, [0.5; 4]);
//! # Ok::<(), netcl_core::Error>(())
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `spec.rs`, `build.rs` | what a region is, and declaring one |
//! | `plan.rs` | which loop over the row computes what, and what is kept between loops |
//! | `geometry.rs` | where rows and their elements lie |
//! | `native.rs`, `cpu.rs`, `fold.rs` | the native CPU: programs, runs over blocks of rows, folds |
//! | `opencl.rs`, `form.rs`, `source.rs`, `parts.rs` | launches, and the text of the kernel |

mod build;
mod cpu;
mod fold;
mod form;
mod geometry;
mod native;
mod opencl;
mod parts;
mod plan;
mod source;
mod spec;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

pub use super::described::Combine;
pub use build::{RegionBuilder, Value};
pub use spec::Extent;

use super::copy::check_writable;
use super::elementwise::{Elementwise, Number};
use super::expr::cpu::Program;
use super::expr::{Graph, Val};
use super::launch::{self, Cost, Launch};
use crate::backend::Queue;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::{Layout, Shape};
use crate::tensor::Tensor;
use geometry::Geometry;
use spec::Spec;

const OP: &str = "region";

/// A declared computation over rows, with its compiled forms: made once, run often. See the [module](self).
///
/// Regions compare and hash by structure; labels and names do not count. Equal regions share their kernels.
pub struct Region {
    spec: Spec,
    native: [OnceLock<Arc<native::Native>>; 4],
    sources: opencl::Sources,
}

impl Region {
    /// The name that launches and kernels carry.
    pub fn label(&self) -> &str {
        &self.spec.label
    }

    /// The extent of each input, in order.
    pub fn inputs(&self) -> &[Extent] {
        &self.spec.inputs
    }

    /// The extent of each output, in order.
    pub fn outputs(&self) -> &[Extent] {
        &self.spec.outputs
    }

    /// The number of run-time scalars.
    pub fn scalars(&self) -> usize {
        self.spec.scalars
    }

    /// A key of the structure, the same in every process and on every machine.
    pub fn key(&self) -> u128 {
        self.spec.key
    }

    /// Computes every row. `trailing_axes` axes at the end of the full operands' shape make up a row, the others count the
    /// rows. Full operands have one shape (expand the inputs first); a row operand has that shape without the trailing axes,
    /// or with ones in their place. An output may be an input (in place), or overlap one in any other way.
    pub fn run(&self, inputs: &[&Tensor], scalars: &[Number], outputs: &[&Tensor], trailing_axes: usize) -> Result<()> {
        let shape = self.check(inputs, scalars, outputs, trailing_axes)?;
        let (outer, inner) = shape.split_at(shape.ndim() - trailing_axes);
        let (rows, length): (usize, usize) = (outer.iter().product(), inner.iter().product());
        if rows == 0 {
            return Ok(());
        }
        if length == 0 {
            return self.run_empty(inputs, scalars, outputs, outer);
        }
        // An input that shares memory with an output, but not element by element, is moved out of the way.
        let clashes = |input: &Tensor, extent: Extent| {
            outputs.iter().any(|o| {
                let apart = extent == Extent::Row || (o.layout(), o.dtype()) != (input.layout(), input.dtype());
                o.shares_storage(input) && apart
            })
        };
        let moved: SmallVec<[Tensor; 4]> = inputs
            .iter()
            .zip(&self.spec.inputs)
            .map(|(input, &extent)| if clashes(input, extent) { input.duplicate() } else { Ok((*input).clone()) })
            .collect::<Result<_>>()?;
        let compute = Program::compute_type(moved.iter().map(Tensor::dtype).chain(outputs.iter().map(|o| o.dtype())));
        let operands =
            moved.iter().chain(outputs.iter().copied()).zip(self.spec.inputs.iter().chain(&self.spec.outputs));
        let geometry = Geometry::new(&shape, trailing_axes, operands.map(|(t, &e)| (t, e)), moved.len(), compute);
        let Some(queue) = geometry.operands.first().map(|o| o.tensor.queue().clone()) else { return Ok(()) };
        let (work, args) = match &queue {
            Queue::Cpu(_) => cpu::work(self, &geometry, scalars)?,
            Queue::OpenCl(stream) => opencl::work(self, stream, &geometry, scalars)?,
        };
        let cost = Cost { flops: (rows * length * self.spec.expr.flops()) as f64, bytes: geometry.bytes() as f64 };
        launch::submit(Launch { name: self.spec.label.clone().into(), queue, work, args, cost })
    }

    /// The OpenCL C that a run over operands of these dtypes builds, for long rows that lie densely in memory.
    pub fn source(&self, inputs: &[DType], outputs: &[DType]) -> Result<String> {
        if (inputs.len(), outputs.len()) != (self.spec.inputs.len(), self.spec.outputs.len()) {
            let counts = (self.spec.inputs.len(), self.spec.outputs.len());
            let what = format!("{} has (inputs, outputs) = {counts:?}: one dtype for each", self.spec.label);
            return Err(Error::argument(OP, what));
        }
        opencl::typical_source(self, inputs, outputs)
    }

    /// Rows without elements: every reduction is its identity, so what is left are maps of row values.
    fn run_empty(&self, inputs: &[&Tensor], scalars: &[Number], outputs: &[&Tensor], outer: &[usize]) -> Result<()> {
        let g = Graph::new();
        let is_row = |extent: &Extent| *extent == Extent::Row;
        let mut taken = 0;
        let values: Vec<Val<'_>> = self
            .spec
            .inputs
            .iter()
            .map(|extent| {
                taken += usize::from(is_row(extent));
                // No row value depends on an element, since there are none.
                if is_row(extent) { g.input(taken - 1) } else { g.constant(f64::NAN) }
            })
            .chain(self.spec.reductions.iter().map(|r| g.constant(r.combine.identity())))
            .collect();
        let all = g.inline(&self.spec.expr, &values, &[]);
        let results: Vec<Val<'_>> = (self.spec.outputs.iter().zip(&all[self.spec.reductions.len()..]))
            .filter(|(extent, _)| is_row(extent))
            .map(|(_, &value)| value)
            .collect();
        let pick = |tensors: &[&Tensor], extents: &[Extent]| -> Result<Vec<Tensor>> {
            let rows = tensors.iter().zip(extents).filter(|(_, e)| is_row(e));
            let without_ones = |t: &Tensor| {
                let layout = t.layout();
                t.with_layout(Layout::strided(outer.into(), &layout.strides()[..outer.len()], layout.offset())?)
            };
            rows.map(|(t, _)| without_ones(t)).collect()
        };
        let (inputs, outputs) = (pick(inputs, &self.spec.inputs)?, pick(outputs, &self.spec.outputs)?);
        if outputs.is_empty() {
            return Ok(());
        }
        let expr = g.finish_with(&results, inputs.len(), self.spec.scalars);
        let (inputs, outputs): (Vec<&Tensor>, Vec<&Tensor>) = (inputs.iter().collect(), outputs.iter().collect());
        Elementwise::new(self.spec.label.clone(), expr).run(&inputs, scalars, &outputs)
    }

    /// The shape of the full operands.
    fn check(&self, inputs: &[&Tensor], scalars: &[Number], outputs: &[&Tensor], trailing: usize) -> Result<Shape> {
        let (given, expected) = (
            [inputs.len(), scalars.len(), outputs.len()],
            [self.spec.inputs.len(), self.spec.scalars, self.spec.outputs.len()],
        );
        if given != expected || outputs.is_empty() {
            let what = format!("{} takes (inputs, scalars, outputs) = {expected:?}, got {given:?}", self.spec.label);
            return Err(Error::argument(OP, what));
        }
        let operands = || inputs.iter().chain(outputs).zip(self.spec.inputs.iter().chain(&self.spec.outputs));
        let Some(shape) = operands().find(|(_, e)| **e == Extent::Full).map(|(t, _)| t.shape().clone()) else {
            let what =
                format!("no operand of {} has a row's length: run it as an elementwise operation", self.spec.label);
            return Err(Error::argument(OP, what));
        };
        if trailing > shape.ndim() {
            let why = format!("{} is to reduce {trailing} trailing axes", self.spec.label);
            return Err(Error::Shape { op: OP, shape, why });
        }
        let outer = &shape[..shape.ndim() - trailing];
        for (i, (tensor, extent)) in operands().enumerate() {
            inputs.first().unwrap_or(&outputs[0]).queue().check_same_device(OP, tensor.queue())?;
            let fits = match extent {
                Extent::Full => tensor.shape() == &shape,
                Extent::Row => {
                    let dims: &[usize] = tensor.shape();
                    dims.len() >= outer.len()
                        && dims[..outer.len()] == *outer
                        && dims[outer.len()..].iter().all(|&n| n == 1)
                        && (dims.len() == outer.len() || dims.len() == shape.ndim())
                }
            };
            if !fits {
                let why = match extent {
                    Extent::Full => format!("operand {i} of {} must be expanded to {shape} first", self.spec.label),
                    Extent::Row => format!(
                        "operand {i} of {} has one value per row of {shape}: its shape is that \
                         without the {trailing} trailing axes, or with ones in their place",
                        self.spec.label
                    ),
                };
                return Err(Error::Shape { op: OP, shape: tensor.shape().clone(), why });
            }
        }
        for (i, output) in outputs.iter().enumerate() {
            check_writable(OP, output)?;
            if outputs[..i].iter().any(|other| other.shares_storage(output)) {
                return Err(Error::argument(OP, format!("two outputs of {} share memory", self.spec.label)));
            }
        }
        Ok(shape)
    }
}

impl PartialEq for Region {
    fn eq(&self, other: &Self) -> bool {
        // The key is a hash of all of the structure, 128 bits of it.
        self.spec.key == other.spec.key
    }
}

impl Eq for Region {}

impl Hash for Region {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.spec.key.hash(state);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Region({}: {:?} -> {:?}, {} reductions)",
            self.spec.label,
            self.spec.inputs,
            self.spec.outputs,
            self.spec.reductions.len()
        )
    }
}
