//! From tensors and axes to two loop nests: what is kept and what is reduced, each merged as far as strides allow.

use netcl_core::shape::Shape;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};
use smallvec::SmallVec;

use super::Axes;

/// Strides of one operand along the axes of a nest.
pub(crate) type Strides = SmallVec<[isize; 6]>;

/// A loop nest over several operands; it has at least one axis.
#[derive(Clone, Debug)]
pub(crate) struct Nest {
    pub(crate) shape: SmallVec<[usize; 6]>,
    /// One per operand.
    pub(crate) strides: Vec<Strides>,
}

impl Nest {
    /// The number of iterations.
    pub(crate) fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// The length of the innermost axis.
    pub(crate) fn inner(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// An operand's stride along the innermost axis.
    pub(crate) fn inner_stride(&self, operand: usize) -> isize {
        self.strides[operand].last().copied().unwrap_or(0)
    }

    /// How far row-major iteration `at` lies from an operand's first element.
    pub(crate) fn place(&self, operand: usize, mut at: usize) -> isize {
        let mut place = 0;
        for (&n, &stride) in self.shape.iter().zip(&self.strides[operand]).rev() {
            place += (at % n) as isize * stride;
            at /= n;
        }
        place
    }

    /// Axes in the given order (outermost first), neighbours merged where every operand is evenly spaced.
    pub(crate) fn collapse(lengths: &[usize], strides: &[&[isize]], order: &[usize]) -> Nest {
        let mut nest = Nest { shape: SmallVec::new(), strides: vec![Strides::new(); strides.len()] };
        for &axis in order.iter().filter(|&&axis| lengths[axis] != 1) {
            let n = lengths[axis];
            let merges = !nest.shape.is_empty()
                && nest.strides.iter().zip(strides).all(|(own, s)| own.last() == Some(&(s[axis] * n as isize)));
            match nest.shape.last_mut() {
                Some(last) if merges => *last *= n,
                _ => nest.shape.push(n),
            }
            for (own, s) in nest.strides.iter_mut().zip(strides) {
                if merges {
                    own.pop();
                }
                own.push(s[axis]);
            }
        }
        if nest.shape.is_empty() {
            nest.shape.push(1);
            nest.strides.iter_mut().for_each(|s| s.push(0));
        }
        nest
    }
}

/// How expensive a step along an axis is for the cache. An axis that repeats its elements is best kept outside.
pub(crate) fn step_cost(stride: isize) -> usize {
    if stride == 0 { usize::MAX } else { stride.unsigned_abs() }
}

/// The two nests of a reduction.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Over the results. Operands: the inputs, the output, then what else the epilogue reads.
    pub(crate) kept: Nest,
    /// Over what is combined into one result. Operands: the inputs.
    pub(crate) reduced: Nest,
    /// Neighbouring results lie closer together than neighbouring elements of one reduction.
    pub(crate) columns: bool,
}

impl Plan {
    /// `reduced[axis]` says which axes go. `out` and `extras` have the kept axes with the reduced ones of length 1. With
    /// `ordered` the reduced nest runs in row-major order of the axes, as positions of extrema need it.
    pub(crate) fn new(inputs: &[Tensor], reduced: &[bool], out: &Tensor, extras: &[Tensor], ordered: bool) -> Plan {
        let lengths: &[usize] = inputs.first().map_or(&[], |t| t.shape());
        let of_inputs: Vec<&[isize]> = inputs.iter().map(|t| t.layout().strides()).collect();
        let cost = |axis: usize| {
            let costs = of_inputs.iter().map(|s| step_cost(s[axis]));
            costs.reduce(|first, other| if first == usize::MAX { other } else { first }).unwrap_or(0)
        };
        let order = |which: bool, sort: bool| {
            let mut axes: SmallVec<[usize; 6]> = (0..lengths.len()).filter(|&a| reduced[a] == which).collect();
            if sort {
                axes.sort_by_key(|&axis| std::cmp::Reverse(cost(axis)));
            }
            axes
        };
        let mut of_results = of_inputs.clone();
        of_results.push(out.layout().strides());
        of_results.extend(extras.iter().map(|t| t.layout().strides()));
        let kept = Nest::collapse(lengths, &of_results, &order(false, true));
        let reduced = Nest::collapse(lengths, &of_inputs, &order(true, !ordered));
        let first_cost = |nest: &Nest| step_cost(nest.strides.first().and_then(|s| s.last()).copied().unwrap_or(0));
        let columns = kept.inner() > 1 && (reduced.inner() == 1 || first_cost(&kept) < first_cost(&reduced));
        Plan { kept, reduced, columns }
    }
}

/// Which axes a reduction removes, as flags, and the shape of its result.
pub(crate) fn resolve(op: &'static str, shape: &Shape, axes: Axes<'_>, keepdims: bool) -> Result<(Vec<bool>, Shape)> {
    let mut reduced = vec![false; shape.ndim()];
    match axes {
        Axes::All => reduced.fill(true),
        Axes::One(axis) => reduced[shape.axis(op, axis)?] = true,
        Axes::Several(axes) => {
            for &axis in axes {
                let at = shape.axis(op, axis)?;
                if std::mem::replace(&mut reduced[at], true) {
                    let what = format!("axis {axis} is named twice in {axes:?} for shape {shape}; name each axis once");
                    return Err(Error::argument(op, what));
                }
            }
        }
    }
    let kept = (0..shape.ndim()).filter(|&a| keepdims || !reduced[a]);
    let result = kept.map(|a| if reduced[a] { 1 } else { shape[a] }).collect();
    Ok((reduced, result))
}
