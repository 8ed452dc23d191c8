//! One launch over many tensors: what an optimizer's step, gradient clipping and weight averaging are made of.
//!
//! ```text
//!   lists (tensors of their own)        rows (one flat tensor)           controls
//!   p0 [..]  p1 [.......]  p2 [...]     m |..|.......|...|  <- stride     the flat tensor's last elements,
//!   g0 [..]  g1 [.......]  g2 [...]     v |..|.......|...|                read by every element
//!       \________ \___________ \_____________/
//!                  segments, each cut into chunks: one chunk is the work of one work-group (or of one thread's turn)
//! ```
//!
//! Tensors stay where they are: their buffers are arguments of the kernel, and a work-group picks its own by the segment of
//! its chunk. A table on the device says which chunk lies where; it is uploaded again only when lengths, offsets or fixed
//! numbers change. Where a device takes fewer bytes of arguments than the tensors need, there are as many launches as it
//! takes.

mod cast;
mod cpu;
mod fold;
mod opencl;
mod segments;
mod source;
mod spec;
mod uniform;
mod verdict;

use std::sync::Arc;

use super::copy::check_writable;
use super::elementwise::Number;
use super::expr::Expr;
use super::expr::cpu::Program;
use super::launch::{self, Arg, Cost, Launch};
use crate::backend::Queue;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

pub use cast::{CastPair, cast};
pub use fold::sum_of_squares;
pub use segments::{Segment, Segments};
pub use spec::Target;
pub use verdict::{CONTROLS, Verdict, verdict};

use spec::Spec;

const OP: &str = "many tensors";

/// An expression over many tensors at once, with its compiled forms.
///
/// The expression's inputs are, in this order: an element of each list, an element of each row, the controls.
///
/// ```
/// use netcl_core::kernels::elementwise::Number;
/// use netcl_core::kernels::expr::Graph;
/// use netcl_core::kernels::many::{Many, Operands, Segment, Segments, Target};
/// use netcl_core::{device::manager, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let g = Graph::new();
/// let step = g.finish(&[g.input(0) - g.input(1) * g.scalar(0)]);
/// let step = Many::new("step", step, 2, 0, vec![Target::List(0)]);
///
/// let p = [Tensor::from_host(&queue, &[1.0f32, 2.0], [2])?, Tensor::from_host(&queue, &[3.0f32], [])?];
/// let g = [Tensor::from_host(&queue, &[4.0f32, 8.0], [2])?, Tensor::from_host(&queue, &[2.0f32], [])?];
/// let segments = Segments::new(vec![Segment::of(2), Segment::of(1)]);
/// step.run(&segments, &Operands { lists: &[&p, &g], flat: None, sets: &[vec![Number::Value(0.25)]] })?;
/// assert_eq!(p[0].to_host::<f32>()?, [0.0, 0.0]);
/// assert_eq!(p[1].to_host::<f32>()?, [2.5]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub struct Many {
    spec: Spec,
    programs: cpu::Programs,
    sources: opencl::Sources,
}

/// What a [`Many`] works on.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// For each list a dense tensor per segment. A list has one dtype, all lists are on one device.
    pub lists: &'a [&'a [Tensor]],
    /// The rows, [`Segments::stride`] elements each, followed by the controls; dense, in the type of the computation.
    pub flat: Option<&'a Tensor>,
    /// The run-time scalars of each set; a segment names its set. Slots become arguments of the kernel, values stand in the
    /// table: give a value to what stays the same from run to run.
    pub sets: &'a [Vec<Number>],
}

impl Many {
    /// An expression over `lists` lists and `rows` rows under the name that launches carry, and where each output goes.
    pub fn new(label: &'static str, expr: Expr, lists: usize, rows: usize, targets: Vec<Target>) -> Arc<Many> {
        let spec = Spec::new(label, expr, lists, rows, targets);
        let (programs, sources) = Default::default();
        Arc::new(Many { spec, programs, sources })
    }

    /// The name that launches carry.
    pub fn label(&self) -> &str {
        self.spec.map.label()
    }

    /// Computes every element of every segment: one launch, or as many as the device's limit on arguments asks for.
    ///
    /// # Errors
    /// For operands that do not fit the expression, the segments or each other.
    pub fn run(&self, segments: &Segments, operands: &Operands<'_>) -> Result<()> {
        let Some((queue, compute)) = self.check(segments, operands)? else { return Ok(()) };
        match &queue {
            Queue::Cpu(_) => {
                let (work, args) = cpu::map(self, segments, operands, compute)?;
                self.submit(&queue, self.cost(segments.elements(), operands, compute), work, args)
            }
            Queue::OpenCl(stream) => {
                for batch in opencl::map(self, stream, segments, operands, compute)? {
                    let cost = self.cost(batch.elements, operands, compute);
                    self.submit(&queue, cost, batch.work, batch.args)?;
                }
                Ok(())
            }
        }
    }

    /// What elements cost: lists that are read, rows, and what is written.
    fn cost(&self, elements: usize, operands: &Operands<'_>, compute: DType) -> Cost {
        let list = |l: usize| operands.lists[l].first().map_or(0, |tensor| tensor.dtype().size());
        let read: usize = (0..self.spec.lists).filter(|&l| self.spec.reads[l]).map(list).sum();
        let written: usize = (self.spec.targets.iter())
            .map(|target| match *target {
                Target::List(l) => list(l),
                Target::Row(_) => compute.size(),
            })
            .sum();
        Cost {
            flops: (elements * self.spec.map.expr().flops()) as f64,
            bytes: (elements * (read + self.spec.rows * compute.size() + written)) as f64,
        }
    }

    fn submit(&self, queue: &Queue, cost: Cost, work: launch::Work, args: smallvec::SmallVec<[Arg; 8]>) -> Result<()> {
        launch::submit(Launch { name: self.label().to_owned().into(), queue: queue.clone(), work, args, cost })
    }

    /// The queue and the type to compute in; nothing where there are no elements.
    fn check(&self, segments: &Segments, operands: &Operands<'_>) -> Result<Option<(Queue, DType)>> {
        let expr = self.spec.map.expr();
        let wrong = |what: String| Err(Error::argument(OP, format!("{}: {what}", self.label())));
        let controls = expr.inputs().saturating_sub(self.spec.lists + self.spec.rows);
        if operands.lists.len() != self.spec.lists || operands.lists.iter().any(|list| list.len() != segments.len()) {
            let got: Vec<usize> = operands.lists.iter().map(|list| list.len()).collect();
            return wrong(format!("{} lists of {} tensors are needed, got {got:?}", self.spec.lists, segments.len()));
        }
        if operands.sets.len() < segments.sets() || operands.sets.iter().any(|set| set.len() != expr.scalars()) {
            let got: Vec<usize> = operands.sets.iter().map(Vec::len).collect();
            return wrong(format!("{} sets of {} numbers are needed, got {got:?}", segments.sets(), expr.scalars()));
        }
        let Some(first) = operands.lists.first().and_then(|list| list.first()) else { return Ok(None) };
        let compute = Program::compute_type(operands.lists.iter().filter_map(|list| list.first()).map(Tensor::dtype));
        for (l, list) in operands.lists.iter().enumerate() {
            let written = self.spec.targets.contains(&Target::List(l));
            for (tensor, segment) in list.iter().zip(segments.all()) {
                first.queue().check_same_device(OP, tensor.queue())?;
                if tensor.dtype() != list[0].dtype() {
                    return Err(Error::DtypeMismatch { op: OP, lhs: list[0].dtype(), rhs: tensor.dtype() });
                }
                if tensor.size() != segment.count || !tensor.layout().is_contiguous() {
                    let why = format!("{} needs a dense tensor of {} elements here", self.label(), segment.count);
                    return Err(Error::Shape { op: OP, shape: tensor.shape().clone(), why });
                }
                if written {
                    check_writable(OP, tensor)?;
                }
            }
        }
        self.check_apart(segments, operands)?;
        let needed = self.spec.rows * segments.stride() + controls;
        match operands.flat {
            None if needed > 0 => return wrong("it has rows or controls, so it needs a flat tensor".to_owned()),
            Some(flat) if needed > 0 => {
                first.queue().check_same_device(OP, flat.queue())?;
                if flat.dtype() != compute {
                    return Err(Error::DtypeMismatch { op: OP, lhs: compute, rhs: flat.dtype() });
                }
                if flat.size() < needed || !flat.layout().is_contiguous() {
                    let why = format!("{} needs a dense flat tensor of {needed} elements", self.label());
                    return Err(Error::Shape { op: OP, shape: flat.shape().clone(), why });
                }
            }
            _ => {}
        }
        Ok((segments.elements() > 0).then(|| (first.queue().clone(), compute)))
    }

    /// An error if memory that is written is used for anything else in the same launch.
    fn check_apart(&self, segments: &Segments, operands: &Operands<'_>) -> Result<()> {
        let mut spans = Vec::with_capacity(self.spec.lists * segments.len());
        for (l, list) in operands.lists.iter().enumerate() {
            let written = self.spec.targets.contains(&Target::List(l));
            for (t, tensor) in list.iter().enumerate().filter(|(_, tensor)| tensor.size() > 0) {
                let (start, end) = (tensor.layout().offset(), tensor.layout().end());
                let size = tensor.dtype().size();
                let storage = Arc::as_ptr(tensor.storage()) as usize;
                spans.push((storage, start * size, end * size, written, t));
            }
        }
        spans.sort_unstable();
        // The furthest end so far of anything, and of what is written, in the current storage.
        let (mut storage, mut end, mut written_end) = (0, 0, 0);
        for (i, &(of, start, stop, written, t)) in spans.iter().enumerate() {
            if of != storage {
                (storage, end, written_end) = (of, 0, 0);
            }
            let clash = start < written_end || (written && start < end);
            if clash {
                let what = format!(
                    "{}: tensor {t} shares memory with another one of the same launch, and one of them is written; \
                     make it a copy first",
                    self.label()
                );
                let same = |other: &(usize, usize, usize, bool, usize)| {
                    (other.0, other.1, other.2, other.4) == (of, start, stop, t)
                };
                // The very same elements, at the same position of two lists: read and written one by one.
                if !spans[..i].last().is_some_and(same) {
                    return Err(Error::argument(OP, what));
                }
            }
            end = end.max(stop);
            if written {
                written_end = written_end.max(stop);
            }
        }
        if self.spec.rows > 0 && !segments.rows_are_apart() {
            return Err(Error::argument(OP, format!("{}: two segments share a part of the rows", self.label())));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Many {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Many({}: {})", self.label(), self.spec.map.expr())
    }
}
