//! Where the rows of a run and their elements lie.

use smallvec::SmallVec;

use super::spec::Extent;
use crate::dtype::DType;
use crate::kernels::launch::{Access, Arg};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Strides, one per axis.
pub(super) type Strides = SmallVec<[isize; 4]>;

/// The operands of a run over collapsed axes.
pub(super) struct Geometry {
    /// Axes that count the rows, at least one.
    pub(super) outer: SmallVec<[usize; 4]>,
    /// Axes along a row, at least one.
    pub(super) inner: SmallVec<[usize; 4]>,
    /// Inputs, then outputs.
    pub(super) operands: SmallVec<[Operand; 6]>,
    /// How many of the operands are inputs.
    pub(super) inputs: usize,
    /// The type to compute in.
    pub(super) compute: DType,
}

/// One operand.
pub(super) struct Operand {
    pub(super) tensor: Tensor,
    pub(super) extent: Extent,
    /// Strides of the outer axes.
    pub(super) outer: Strides,
    /// Strides along a row; zeros for a row operand.
    pub(super) inner: Strides,
}

impl Geometry {
    pub(super) fn new<'t>(
        shape: &Shape,
        trailing: usize,
        operands: impl Iterator<Item = (&'t Tensor, Extent)>,
        inputs: usize,
        compute: DType,
    ) -> Geometry {
        let split = shape.ndim() - trailing;
        let mut operands: SmallVec<[Operand; 6]> = operands
            .map(|(tensor, extent)| {
                let strides = tensor.layout().strides();
                let inner = match extent {
                    Extent::Full => strides[split..].into(),
                    Extent::Row => SmallVec::from_elem(0, trailing),
                };
                Operand { tensor: tensor.clone(), extent, outer: strides[..split].into(), inner }
            })
            .collect();
        let outer = collapse(&shape[..split], &mut operands, |o| &mut o.outer, 0);
        // A row of one element has no stride to speak of: as if it lay densely, so that lengths share their kernels.
        let inner = collapse(&shape[split..], &mut operands, |o| &mut o.inner, 1);
        for operand in operands.iter_mut().filter(|o| o.extent == Extent::Row) {
            operand.inner.fill(0);
        }
        Geometry { outer, inner, operands, inputs, compute }
    }

    /// The number of rows.
    pub(super) fn rows(&self) -> usize {
        self.outer.iter().product()
    }

    /// The elements of a row.
    pub(super) fn length(&self) -> usize {
        self.inner.iter().product()
    }

    /// Bytes that really lie in memory: an expanded axis is read once.
    pub(super) fn bytes(&self) -> usize {
        let axes = |o: &Operand| {
            let axes = self.outer.iter().zip(&o.outer).chain(self.inner.iter().zip(&o.inner));
            axes.map(|(&n, &s)| if s == 0 { 1 } else { n }).product::<usize>()
        };
        self.operands.iter().map(|o| axes(o) * o.tensor.dtype().size()).sum()
    }

    /// An operand's memory as an argument.
    pub(super) fn buffer(&self, operand: usize) -> Arg {
        let access = if operand < self.inputs { Access::Read } else { Access::Write };
        Arg::Buffer(self.operands[operand].tensor.storage().clone(), access)
    }
}

/// Joins neighbouring axes that lie as one in every operand, and drops those of length 1; at least one axis is left, with
/// stride `alone` where there was none.
fn collapse(
    shape: &[usize],
    operands: &mut [Operand],
    part: fn(&mut Operand) -> &mut Strides,
    alone: isize,
) -> SmallVec<[usize; 4]> {
    let mut joined: SmallVec<[usize; 4]> = SmallVec::new();
    let mut strides: Vec<Strides> = vec![Strides::new(); operands.len()];
    for (axis, &n) in shape.iter().enumerate().filter(|(_, n)| **n != 1) {
        let joins = !joined.is_empty()
            && operands.iter_mut().zip(&strides).all(|(o, s)| s.last() == Some(&(part(o)[axis] * n as isize)));
        match joined.last_mut() {
            Some(last) if joins => *last *= n,
            _ => joined.push(n),
        }
        for (o, s) in operands.iter_mut().zip(&mut strides) {
            if joins {
                s.pop();
            }
            s.push(part(o)[axis]);
        }
    }
    if joined.is_empty() {
        joined.push(1);
        strides.iter_mut().for_each(|s| s.push(alone));
    }
    for (o, s) in operands.iter_mut().zip(strides) {
        *part(o) = s;
    }
    joined
}
