//! Writing to what a subscript names, by the rules of [`in_place`](crate::in_place).

use netcl_core::Result as CoreResult;
use netcl_core::dtype::DType;
use netcl_core::tensor::{Tensor as Raw, reshape as raw_reshape};
use netcl_ops as ops;
use netcl_ops::integer::{IntegerOp, integer};
use smallvec::smallvec;

use super::{Chosen, Key, Subscript};
use crate::error::Result;
use crate::graph::{Save, grad_enabled, no_grad, record};
use crate::in_place::{Prepared, check_leaf, trimmed};
use crate::ops::elementwise::{Operand, mul};
use crate::ops::layout::{expand, permute, reshape, sum_to};
use crate::tensor::Tensor;
use crate::trace;

impl Tensor {
    /// `x[key] = source`, in place: overwrites what a subscript names ([`Tensor::i`] says how it is written) with a number or a
    /// tensor, which is broadcast and cast. Where indices name an element several times the last one counts; to `accumulate` adds
    /// all of them to what is there.
    ///
    /// ```
    /// use netcl_autograd::{DType, Tensor, manager};
    ///
    /// let mut x = Tensor::from_shape(&manager().cpu().queue, [2, 3], DType::F32)?;
    /// x.index_put_((.., 1..), 2.0, false)?;
    /// x.index_put_(([0, 1, 1], [0, 2, 2]), 1.0, true)?;
    /// assert_eq!(x.to_host::<f32>()?, [1.0, 2.0, 2.0, 0.0, 2.0, 4.0]);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    #[track_caller]
    pub fn index_put_<'t>(&mut self, key: impl Key, source: impl Into<Operand<'t>>, accumulate: bool) -> Result<()> {
        Subscript::new(self.raw(), &key.indices())?.write(self, source, accumulate)
    }
}

impl Subscript {
    /// [`Tensor::index_put_`] to what this subscript names.
    #[track_caller]
    pub fn write<'t>(&self, x: &mut Tensor, source: impl Into<Operand<'t>>, accumulate: bool) -> Result<()> {
        let (source, op) = (source.into(), "assignment");
        let Some(chosen) = &self.chosen else {
            return match accumulate {
                true => x.update_at("index_put_", &self.view(), |part| part.add_(source)).map(drop),
                false => x.assign_at(&self.view(), source),
            };
        };
        check_leaf(op, x)?;
        let view = self.layout(x.layout())?;
        let kept: Vec<usize> = (0..view.shape().ndim()).filter(|axis| !chosen.axes.contains(axis)).collect();
        let mut shape: Vec<usize> = kept.into_iter().map(|axis| view.shape()[axis]).collect();
        shape.splice(chosen.at..chosen.at, chosen.shape.iter().copied());
        let shape = shape.into();
        let source = match trimmed(source, view.shape().ndim() - chosen.axes.len() + chosen.shape.ndim())? {
            Some(trimmed) => x.prepared(op, &shape, (&trimmed).into())?,
            None => x.prepared(op, &shape, source)?,
        };
        if trace::active() {
            let values = match source {
                Prepared::Tensor(tensor) => expand(&tensor, shape)?,
                Prepared::Number(number) => Raw::full(x.queue(), shape, x.dtype(), number)?.into(),
            };
            return self.write_noted(x, chosen, &values, accumulate);
        }
        let values = match &source {
            Prepared::Tensor(tensor) => tensor.raw().expand(&shape)?,
            Prepared::Number(number) => Raw::full(x.queue(), shape, x.dtype(), *number)?,
        };
        let recorded = grad_enabled() && (x.needs_grad() || source.needs_grad());
        if !recorded {
            return x.overwrite(|raw| self.put(raw, &values, accumulate));
        }
        x.check_recordable(op)?;
        let mut before = Tensor::with_edge(x.raw().clone(), x.edge());
        self.put(x.raw(), &values, accumulate)?;
        before.accept_values();
        let own = self.clone();
        *x = match source {
            Prepared::Tensor(source) => {
                let shape = source.shape().clone();
                record(op, &[&before, &source], x.raw().clone(), Save::NOTHING, || {
                    Box::new(move |context, upstream| {
                        let of_x = || if accumulate { Ok(upstream.clone()) } else { own.without(upstream) };
                        let of_source = || sum_to(&own.read_written(upstream, accumulate)?, &shape);
                        Ok(smallvec![context.if_wanted(0, of_x)?, context.if_wanted(1, of_source)?])
                    })
                })?
            }
            Prepared::Number(_) => record(op, &[&before], x.raw().clone(), Save::NOTHING, || {
                Box::new(move |_, upstream| {
                    Ok(smallvec![Some(if accumulate { upstream.clone() } else { own.without(upstream)? })])
                })
            })?,
        };
        Ok(())
    }

    /// The same in operations that a trace names: on a copy of the part, which is written back.
    fn write_noted(&self, x: &mut Tensor, chosen: &Chosen, values: &Tensor, accumulate: bool) -> Result<()> {
        let part = self.part(x)?;
        let (together, axis) = chosen.gather(&part)?;
        let (joined, _) = chosen.join(&part)?;
        let source = chosen.collect(values, axis)?;
        let (at, positions) = (axis as isize, &chosen.positions);
        let written = if accumulate && x.dtype().is_float() {
            ops::index_add(joined.raw(), at, positions, source.raw())?
        } else if accumulate {
            chosen.add_whole(joined.raw(), axis, source.raw())?
        } else {
            let copy = joined.raw().duplicate()?;
            ops::index_put(&copy, at, positions, source.raw())?;
            copy
        };
        trace::settings("index_put", || {
            [("axis", axis.into()), ("indices", positions.tensor().into()), ("accumulate", accumulate.into())]
        });
        trace::note("index_put", [joined.raw(), source.raw()], &[&written]);
        let back = reshape(&written.into(), together.shape().clone())?;
        let mut order: Vec<isize> = (0..back.ndim() as isize).collect();
        if !chosen.axes.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            // `gather` has moved the chosen axes to the front.
            let others = (0..part.ndim()).filter(|axis| !chosen.axes.contains(axis));
            let moved: Vec<usize> = chosen.axes.iter().copied().chain(others).collect();
            moved.iter().enumerate().for_each(|(to, &from)| order[from] = to as isize);
        }
        x.assign_at(&self.view(), &permute(&back, &order)?)
    }

    /// Writes values of the right shape and dtype.
    fn put(&self, x: &Raw, values: &Raw, accumulate: bool) -> CoreResult<()> {
        let Some(chosen) = &self.chosen else { return x.with_layout(self.layout(x.layout())?)?.assign(values) };
        chosen.put(&x.with_layout(self.layout(x.layout())?)?, values, accumulate).map_err(|error| match error {
            crate::Error::Core(error) => error,
            other => netcl_core::Error::argument("assignment", other.to_string()),
        })
    }

    /// A tensor with zeros in what the subscript names.
    #[track_caller]
    fn without(&self, x: &Tensor) -> Result<Tensor> {
        let out = x.raw().duplicate()?;
        let own = self.clone();
        let shape = {
            let _scope = no_grad();
            self.read(&Tensor::from(x.raw().clone()))?.shape().clone()
        };
        self.put(&out, &Raw::from_shape(x.queue(), shape, x.dtype())?, false)?;
        record("assignment_backward", &[x], out, Save::NOTHING, || {
            Box::new(move |_, upstream| Ok(smallvec![Some(own.without(upstream)?)]))
        })
    }

    /// The gradient of the values that were written: zero for those that later ones have overwritten.
    #[track_caller]
    fn read_written(&self, x: &Tensor, accumulate: bool) -> Result<Tensor> {
        let Some(chosen) = self.chosen.as_ref().filter(|chosen| !accumulate && !chosen.distinct) else {
            return self.read(x);
        };
        let (joined, axis) = chosen.join(&self.part(x)?)?;
        let rows = chosen.take(&joined, axis)?;
        let mut lengths = vec![1; rows.ndim() - axis];
        lengths[0] = chosen.shape.size();
        let last = raw_reshape(&chosen.last(joined.shape()[axis], x.dtype())?, lengths)?;
        chosen.spread(&mul(&rows, &Tensor::from(last))?, axis)
    }
}

impl Chosen {
    /// Writes to the chosen elements of a view.
    fn put(&self, view: &Raw, values: &Raw, accumulate: bool) -> Result<()> {
        let _scope = no_grad();
        let (together, axis) = self.gather(&Tensor::from(view.clone()))?;
        let (joined, _) = self.join(&Tensor::from(view.clone()))?;
        let source = self.collect(&Tensor::from(values.clone()), axis)?;
        let in_place = joined.shares_storage(view) && joined.layout().is_contiguous();
        if in_place && !accumulate {
            return Ok(ops::index_put(joined.raw(), axis as isize, &self.positions, source.raw())?);
        }
        let written = if accumulate && view.dtype().is_float() {
            ops::index_add(joined.raw(), axis as isize, &self.positions, source.raw())?
        } else if accumulate {
            self.add_whole(joined.raw(), axis, source.raw())?
        } else {
            // The elements lie apart: written in a dense copy.
            let copy = joined.raw().duplicate()?;
            ops::index_put(&copy, axis as isize, &self.positions, source.raw())?;
            copy
        };
        Ok(together.raw().assign(&raw_reshape(&written, together.shape().clone())?)?)
    }

    /// The sum of whole numbers at their positions, by the host: the kernels that add compute in floats.
    fn add_whole(&self, x: &Raw, axis: usize, source: &Raw) -> Result<Raw> {
        let positions = self.positions.to_host()?;
        let inner: usize = x.shape()[axis + 1..].iter().product();
        let (n, k) = (x.shape()[axis], positions.len());
        let [mut sums, values] = [x.cast(DType::I64)?.to_host::<i64>()?, source.cast(DType::I64)?.to_host::<i64>()?];
        for (at, value) in values.iter().enumerate() {
            let (outer, row, i) = (at / inner / k, at / inner % k, at % inner);
            let sum = &mut sums[(outer * n + positions[row] as usize) * inner + i];
            *sum = sum.wrapping_add(*value);
        }
        Ok(Raw::from_host(x.queue(), &sums, x.shape().clone())?.cast(x.dtype())?)
    }

    /// 1 for each position after which it does not occur again, else 0.
    fn last(&self, length: usize, dtype: DType) -> Result<Raw> {
        let count = self.shape.size();
        let queue = self.positions.tensor().queue();
        let order = Raw::from_host(queue, &(0..count as i64).collect::<Vec<_>>(), [count])?;
        let owner = Raw::from_shape(queue, [length], DType::I64)?;
        ops::index_put(&owner, 0, &self.positions, &order)?;
        let last = ops::index_select_checked(&owner, 0, &self.positions)?;
        Ok(integer(IntegerOp::Eq, &[&last, &order], DType::U8)?.cast(dtype)?)
    }
}
