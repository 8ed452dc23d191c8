//! Writing to tensors in place, by autograd's rules.
//!
//! While this thread records, a leaf that requires a gradient is not written to: its old values could not be told from its new ones.
//! A result of a recorded op, or a tensor that takes in something recorded, continues as the result of a new node over the same
//! memory. Other tensors over that memory (clones, views) still stand for the old values: a backward pass that needs one of them
//! fails by name. Under [`no_grad`](crate::no_grad) values change and the graph stays as it is.
//!
//! ```
//! use netcl_autograd::{Tensor, manager, no_grad};
//!
//! let mut w = Tensor::from_host(&manager().cpu().queue, &[1.0f32, 2.0], [2])?.with_grad();
//! let mut y = (&w * 3.0)?;
//! y.mul_(&y.clone())?; // recorded: y is now (3w)^2
//! y.sum((), false)?.backward()?;
//! assert_eq!(w.grad().unwrap().to_host::<f32>()?, [18.0, 36.0]);
//!
//! assert!(w.sub_(1.0).is_err()); // a leaf that requires a gradient
//! let _scope = no_grad();
//! w.sub_(1.0)?;
//! assert_eq!(w.to_host::<f32>()?, [0.0, 1.0]);
//! # Ok::<(), netcl_autograd::Error>(())
//! ```

use std::sync::Arc;

use netcl_core::Result as CoreResult;
use netcl_core::dtype::DType;
use netcl_core::kernels::launch;
use netcl_core::shape::{Layout, Shape};
use netcl_core::tensor::Tensor as Raw;
use netcl_ops as ops;
use smallvec::{SmallVec, smallvec};

use crate::autocast;
use crate::error::{Error, Result};
use crate::graph::{Save, grad_enabled, record};
use crate::ops::elementwise::{self, Operand};
use crate::ops::layout::{reshape, sum_to};
use crate::tensor::Tensor;
use crate::trace;

/// Which elements of a tensor of known shape a view shows, for any layout of that shape.
pub type View = Arc<dyn Fn(&Layout) -> CoreResult<Layout> + Send + Sync>;

/// All of a tensor.
fn whole() -> View {
    Arc::new(|layout| Ok(layout.clone()))
}

macro_rules! arithmetic {
    ($($(#[$doc:meta])* $name:ident, $op:literal;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<'t>(&mut self, y: impl Into<Operand<'t>>) -> Result<()> {
            self.update(stringify!($name), $op, &[y.into()], &[])
        }
    )*};
}

/// In place: the memory is written, its version raised. The other operand is broadcast and cast to this tensor's shape and dtype.
impl Tensor {
    arithmetic! {
        /// `x += y`
        add_, "add";
        /// `x -= y`
        sub_, "sub";
        /// `x *= y`
        mul_, "mul";
        /// `x /= y`
        div_, "div";
        /// `x` to the power of `y`.
        pow_, "pow";
    }

    /// Limits every element to `[min, max]`.
    #[track_caller]
    pub fn clamp_(&mut self, min: f64, max: f64) -> Result<()> {
        self.update("clamp_", "clamp", &[], &[min, max])
    }

    /// Overwrites the elements with those of another tensor.
    #[track_caller]
    pub fn copy_(&mut self, source: &Tensor) -> Result<()> {
        self.write("copy_", &whole(), source.into())
    }

    /// Overwrites every element with a value.
    #[track_caller]
    pub fn fill_(&mut self, value: f64) -> Result<()> {
        self.write("fill_", &whole(), value.into())
    }

    /// Overwrites every element with zero.
    #[track_caller]
    pub fn zero_(&mut self) -> Result<()> {
        self.write("zero_", &whole(), 0.0.into())
    }

    /// Overwrites the elements that a view shows. Leading axes of length 1 of the source do not count, as in NumPy.
    #[track_caller]
    pub fn assign_at<'t>(&mut self, view: &View, source: impl Into<Operand<'t>>) -> Result<()> {
        let (source, op) = (source.into(), "assignment");
        let axes = view(self.layout())?.shape().ndim();
        match trimmed(source, axes)? {
            Some(trimmed) => self.write(op, view, (&trimmed).into()),
            None => self.write(op, view, source),
        }
    }

    /// Updates the elements that a view shows by an in-place op on them, and gives the view of the tensor as it is then.
    #[track_caller]
    pub fn update_at(
        &mut self,
        op: &'static str,
        view: &View,
        update: impl FnOnce(&mut Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        check_leaf(op, self)?;
        let noted = trace::before_write(self.raw())?;
        let mut before = Tensor::with_edge(self.raw().clone(), self.edge());
        let mut changed = part(&before, view)?;
        let fresh = !self.is_overwritten();
        update(&mut changed)?;
        before.accept_values();
        if let Some(old) = noted {
            trace::assigned(&old, |layout| view(layout), Ok(changed.raw()), self.raw());
        }
        if grad_enabled() && changed.needs_grad() {
            *self = replaced(op, &before, view, &changed)?;
        } else if fresh {
            self.accept_values();
        }
        part(self, view)
    }

    /// An elementwise op on this tensor (and the operands after it) that writes its result here.
    #[track_caller]
    fn update(&mut self, op: &'static str, name: &str, operands: &[Operand<'_>], params: &[f64]) -> Result<()> {
        if !self.dtype().is_float() {
            let all: SmallVec<[Operand<'_>; 2]> =
                std::iter::once(Operand::Tensor(self)).chain(operands.iter().copied()).collect();
            let new = elementwise::apply(name, &all, params)?;
            drop(all);
            if new.dtype().is_float() {
                let expected = format!("operands whose result is {}; write the result to a new tensor", self.dtype());
                return Err(netcl_core::Error::Dtype { op, expected, got: new.dtype() }.into());
            }
            return self.overwrite(|target| target.assign(new.raw()));
        }
        check_leaf(op, self)?;
        // The result is this tensor, in its dtype.
        let _autocast = autocast::suspend();
        let own: SmallVec<[Prepared; 1]> =
            operands.iter().map(|operand| self.prepared(op, self.shape(), *operand)).collect::<Result<_>>()?;
        let others = own.iter().map(Prepared::operand);
        if let Some(old) = trace::before_write(self.raw())? {
            let old = Tensor::from(old);
            let all: SmallVec<[Operand<'_>; 2]> = std::iter::once(Operand::Tensor(&old)).chain(others).collect();
            let new = elementwise::apply(name, &all, params)?;
            drop(all);
            self.overwrite(|target| target.assign(new.raw()))?;
            trace::note("duplicate", [new.raw()], &[self.raw()]);
            return Ok(());
        }
        if !grad_enabled() || !(self.needs_grad() || own.iter().any(Prepared::needs_grad)) {
            return self.overwrite(|target| {
                let raws: SmallVec<[ops::Operand<'_>; 2]> =
                    std::iter::once(ops::Operand::Tensor(target)).chain(own.iter().map(Prepared::raw)).collect();
                ops::elementwise::apply(name, &raws, params, Some(target)).map(drop)
            });
        }
        self.check_recordable(op)?;
        // The rule may want the old values, which are about to be overwritten.
        let old = Tensor::with_edge(self.raw().duplicate()?, self.edge());
        let all: SmallVec<[Operand<'_>; 2]> = std::iter::once(Operand::Tensor(&old)).chain(others).collect();
        let new = elementwise::apply(name, &all, params)?;
        self.raw().assign(new.raw())?;
        *self = Tensor::with_edge(self.raw().clone(), new.edge());
        Ok(())
    }

    /// Writes a source into the elements that a view shows.
    #[track_caller]
    fn write(&mut self, op: &'static str, view: &View, source: Operand<'_>) -> Result<()> {
        check_leaf(op, self)?;
        let target = self.raw().with_layout(view(self.layout())?)?;
        let source = self.prepared(op, target.shape(), source)?;
        let recorded = grad_enabled() && (self.needs_grad() || source.needs_grad());
        if recorded {
            self.check_recordable(op)?;
        }
        let write = || match &source {
            Prepared::Tensor(tensor) => target.assign(tensor.raw()),
            Prepared::Number(number) => target.fill(*number),
        };
        if !recorded {
            let noted = trace::before_write(self.raw())?;
            self.overwrite(|_| write())?;
            if let Some(old) = noted {
                let source = match &source {
                    Prepared::Tensor(tensor) => Ok(tensor.raw()),
                    Prepared::Number(number) => Err(*number),
                };
                trace::assigned(&old, |layout| view(layout), source, self.raw());
            }
            return Ok(());
        }
        let mut before = Tensor::with_edge(self.raw().clone(), self.edge());
        write()?;
        before.accept_values();
        *self = match &source {
            Prepared::Tensor(tensor) => replaced(op, &before, view, tensor)?,
            Prepared::Number(_) => {
                let view = view.clone();
                record(op, &[&before], self.raw().clone(), Save::NOTHING, || {
                    Box::new(move |_, upstream| Ok(smallvec![Some(without(upstream, &view)?)]))
                })?
            }
        };
        Ok(())
    }

    /// Writes to this tensor unrecorded. What its op made stands for the new values, unless somebody has overwritten it before.
    pub(crate) fn overwrite(&mut self, write: impl FnOnce(&Raw) -> CoreResult<()>) -> Result<()> {
        let fresh = !self.is_overwritten();
        write(self.raw())?;
        if fresh {
            self.accept_values();
        }
        Ok(())
    }

    /// An operand in this tensor's dtype, that broadcasts to a shape and does not lie in memory that is about to be written.
    #[track_caller]
    pub(crate) fn prepared(&self, op: &'static str, left: &Shape, operand: Operand<'_>) -> Result<Prepared> {
        let tensor = match operand {
            Operand::Tensor(tensor) => tensor,
            Operand::Number(number) => return Ok(Prepared::Number(number)),
            Operand::Whole(number) => return Ok(Prepared::Number(number as f64)),
        };
        self.queue().check_same_device(op, tensor.queue())?;
        let right = tensor.shape();
        if !left.broadcast(op, right).is_ok_and(|shape| shape == *left) {
            let why = format!("it does not broadcast to {left}, the shape of what is written to, which stays as it is");
            return Err(netcl_core::Error::Shape { op, shape: right.clone(), why }.into());
        }
        let tensor = elementwise::cast(tensor, self.dtype())?;
        if !tensor.shares_storage(self) {
            return Ok(Prepared::Tensor(tensor));
        }
        Ok(Prepared::Tensor(Tensor::with_edge(tensor.raw().duplicate()?, tensor.edge())))
    }

    /// An error where a new node would belong to one run of a program that is run many times.
    pub(crate) fn check_recordable(&self, op: &'static str) -> Result<()> {
        if !launch::is_from_outside(self.storage()) {
            return Ok(());
        }
        let what = format!(
            "a tensor of shape {} from outside of a compiled or captured function would become the result of an operation inside \
             it, which later runs cannot repeat; return the new value, or write under no_grad()",
            self.shape()
        );
        Err(Error::InPlace { op, what })
    }
}

/// An operand of an in-place op, ready to use.
pub(crate) enum Prepared {
    Tensor(Tensor),
    Number(f64),
}

impl Prepared {
    fn operand(&self) -> Operand<'_> {
        match self {
            Prepared::Tensor(tensor) => Operand::Tensor(tensor),
            Prepared::Number(number) => Operand::Number(*number),
        }
    }

    fn raw(&self) -> ops::Operand<'_> {
        match self {
            Prepared::Tensor(tensor) => ops::Operand::Tensor(tensor.raw()),
            Prepared::Number(number) => ops::Operand::Number(*number),
        }
    }

    pub(crate) fn needs_grad(&self) -> bool {
        matches!(self, Prepared::Tensor(tensor) if tensor.needs_grad())
    }
}

/// A source without leading axes of length 1 that are more than the target's; `None` where it has none to leave out.
pub(crate) fn trimmed(source: Operand<'_>, axes: usize) -> Result<Option<Tensor>> {
    let Operand::Tensor(tensor) = source else { return Ok(None) };
    let surplus = tensor.ndim().saturating_sub(axes);
    if surplus == 0 || tensor.shape()[..surplus].iter().any(|&n| n != 1) {
        return Ok(None);
    }
    reshape(tensor, tensor.shape()[surplus..].to_vec()).map(Some)
}

pub(crate) fn check_leaf(op: &'static str, tensor: &Tensor) -> Result<()> {
    if grad_enabled() && tensor.is_leaf() && tensor.needs_grad() {
        return Err(Error::LeafOverwritten { op, shape: tensor.shape().clone(), dtype: tensor.dtype() });
    }
    Ok(())
}

/// The result of having written `source` into a part of `x`, whose memory holds the new values already.
#[track_caller]
fn replaced(op: &'static str, x: &Tensor, view: &View, source: &Tensor) -> Result<Tensor> {
    let (view, shape) = (view.clone(), source.shape().clone());
    record(op, &[x, source], x.raw().clone(), Save::NOTHING, || {
        Box::new(move |context, upstream| {
            let of_x = context.if_wanted(0, || without(upstream, &view))?;
            let of_source = context.if_wanted(1, || sum_to(&part(upstream, &view)?, &shape))?;
            Ok(smallvec![of_x, of_source])
        })
    })
}

/// The part of a tensor that a view shows.
#[track_caller]
pub fn part(x: &Tensor, view: &View) -> Result<Tensor> {
    let out = x.raw().with_layout(view(x.layout())?)?;
    let (shape, dtype, view) = (x.shape().clone(), x.dtype(), view.clone());
    trace::settings("view", || {
        let [starts, steps, lengths, _] = trace::part_of(&shape, |layout| view(layout));
        [("starts", starts), ("steps", steps), ("lengths", lengths)]
    });
    record("view", &[x], out, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(embedded(upstream, &shape, dtype, &view)?)]))
    })
}

/// Zeros with a tensor in the part that a view shows: what undoes [`part`].
#[track_caller]
fn embedded(x: &Tensor, shape: &Shape, dtype: DType, view: &View) -> Result<Tensor> {
    let out = Raw::from_shape(x.queue(), shape.clone(), dtype)?;
    out.with_layout(view(out.layout())?)?.assign(x.raw())?;
    let view = view.clone();
    record("view_backward", &[x], out, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(part(upstream, &view)?)]))
    })
}

/// A tensor with zeros in the part that a view shows.
#[track_caller]
fn without(x: &Tensor, view: &View) -> Result<Tensor> {
    let out = x.raw().duplicate()?;
    out.with_layout(view(out.layout())?)?.fill(0.0)?;
    let view = view.clone();
    record("assignment_backward", &[x], out, Save::NOTHING, || {
        Box::new(move |_, upstream| Ok(smallvec![Some(without(upstream, &view)?)]))
    })
}
