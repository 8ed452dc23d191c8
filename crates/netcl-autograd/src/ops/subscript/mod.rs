//! Subscripts, `x[key]`, by NumPy's rules: what is read and written, in Rust and in Python.
//!
//! Whole numbers, slices, `...` and new axes are steps from one view to the next. Indices and masks choose from axes of that view:
//! those axes are made one, and the indices become positions in it, along which the kernels of `index_select` read and those of
//! `index_put` write. Gradients of what is read are summed in the order of the indices.
//!
//! Indices are read by the host to be checked, unless launches are only being recorded: then positions are computed on the device,
//! and what is outside of an axis reads NaN (0 for whole numbers) and is not written to. A mask is read always: a shape depends on it.

mod key;
mod write;

use std::sync::Arc;

use netcl_core::dtype::DType;
use netcl_core::index::IndexTensor;
use netcl_core::kernels::launch;
use netcl_core::shape::{Layout, Shape, Slice};
use netcl_core::tensor::{Tensor as Raw, reshape as raw_reshape};
use netcl_core::{Error as CoreError, Result as CoreResult};
use netcl_ops as ops;
use smallvec::SmallVec;

pub use key::{Ellipsis, Index, Key, NewAxis, Whole};

use super::layout::{permute, reshape, select, slice, unsqueeze};
use super::linear_map::LinearMap;
use crate::error::Result;
use crate::graph::unrecorded;
use crate::in_place::View;
use crate::tensor::Tensor;
use crate::trace;

const OP: &str = "indexing";

/// A subscript of tensors of one shape.
#[derive(Clone)]
pub struct Subscript {
    steps: SmallVec<[Step; 2]>,
    chosen: Option<Arc<Chosen>>,
}

/// What one part of a subscript does to the view that the parts before it made.
#[derive(Clone, Copy)]
enum Step {
    Insert(usize),
    Slice(usize, Slice),
    Select(usize, isize),
}

/// Elements of a view that indices choose.
struct Chosen {
    /// The axes of the view that are chosen from, in order.
    axes: SmallVec<[usize; 4]>,
    /// Positions in these axes, seen as one.
    positions: IndexTensor,
    /// No position occurs twice.
    distinct: bool,
    /// The shape of the indices.
    shape: Shape,
    /// The axis of the result where it begins.
    at: usize,
}

/// One of the indices: what it chooses from some axes of the view.
struct Part {
    axes: std::ops::Range<usize>,
    /// The first of these axes in the tensor.
    own: usize,
    /// How many elements there are to choose from.
    length: usize,
    values: Values,
}

enum Values {
    Host(Vec<i64>, Shape),
    Device(IndexTensor),
}

impl Index {
    /// How many axes of the tensor it takes.
    fn axes(&self) -> usize {
        match self {
            Index::NewAxis | Index::Ellipsis | Index::Bool(_) => 0,
            Index::Tensor(mask) if mask.dtype() == DType::U8 => mask.ndim(),
            Index::Mask(mask) => mask.1.ndim(),
            Index::At(_) | Index::Slice(_) | Index::Tensor(_) | Index::List(_) => 1,
        }
    }

    /// Whether it chooses elements instead of making a view.
    fn chooses(&self) -> bool {
        matches!(self, Index::Bool(_) | Index::Tensor(_) | Index::List(_) | Index::Mask(_))
    }
}

fn wrong(what: String) -> CoreError {
    CoreError::Subscript { op: OP, what }
}

impl Subscript {
    /// What a subscript means for tensors of the shape of this one.
    pub fn new(x: &Raw, key: &[Index]) -> Result<Subscript> {
        let shape = x.shape();
        let taken: usize = key.iter().map(Index::axes).sum();
        if taken > shape.ndim() {
            return Err(wrong(format!("{taken} indices for the {} axes of shape {shape}", shape.ndim())).into());
        }
        if key.iter().filter(|index| matches!(index, Index::Ellipsis)).count() > 1 {
            return Err(wrong("more than one `...` in a subscript".to_owned()).into());
        }
        let choosing = key.iter().any(Index::chooses);
        let mut steps: SmallVec<[Step; 2]> = SmallVec::new();
        let mut parts: Vec<Part> = Vec::new();
        // The axis of the tensor, of the view, and of the result but for what indices make.
        let (mut own, mut axis, mut made) = (0, 0, 0);
        // Where the axes of the indices go: to the first of them, or to the front if others are in between.
        let (mut at, mut apart) = (None, false);
        for index in key {
            if choosing && (index.chooses() || matches!(index, Index::At(_))) {
                at = if apart { Some(0) } else { at.or(Some(made)) };
            } else {
                apart = at.is_some();
            }
            match index {
                Index::NewAxis => {
                    steps.push(Step::Insert(axis));
                    (axis, made) = (axis + 1, made + 1);
                }
                Index::Ellipsis => {
                    let rest = shape.ndim() - taken;
                    (own, axis, made) = (own + rest, axis + rest, made + rest);
                }
                &Index::Slice(part) => {
                    steps.push(Step::Slice(axis, part));
                    (own, axis, made) = (own + 1, axis + 1, made + 1);
                }
                &Index::At(index) => {
                    check(index as i64, own, shape)?;
                    steps.push(Step::Select(axis, index));
                    own += 1;
                }
                Index::Bool(all) => {
                    steps.push(Step::Insert(axis));
                    parts.push(Part::everything(*all, axis, own));
                    axis += 1;
                }
                Index::Tensor(tensor) if tensor.dtype() == DType::U8 && tensor.ndim() == 0 => {
                    let all = tensor.to_host::<u8>()?.iter().any(|&byte| byte != 0);
                    steps.push(Step::Insert(axis));
                    parts.push(Part::everything(all, axis, own));
                    axis += 1;
                }
                other => {
                    let part = Part::new(other, axis, own, shape)?;
                    (own, axis) = (own + other.axes(), part.axes.end);
                    parts.push(part);
                }
            }
        }
        let chosen = if choosing { Some(Arc::new(Chosen::new(x, parts, at.unwrap_or(0))?)) } else { None };
        Ok(Subscript { steps, chosen })
    }

    /// Whether it is a view of the tensor.
    pub fn is_view(&self) -> bool {
        self.chosen.is_none()
    }

    fn layout(&self, layout: &Layout) -> CoreResult<Layout> {
        let mut made: Option<Layout> = None;
        for step in &self.steps {
            let layout = made.as_ref().unwrap_or(layout);
            made = Some(match *step {
                Step::Insert(axis) => layout.unsqueeze(OP, axis as isize)?,
                Step::Slice(axis, part) => layout.slice(axis, part)?,
                Step::Select(axis, index) => layout.select(OP, axis, index)?,
            });
        }
        Ok(made.unwrap_or_else(|| layout.clone()))
    }

    /// The view of a tensor that it is, or that its indices choose from.
    pub fn view(&self) -> View {
        let steps = Subscript { steps: self.steps.clone(), chosen: None };
        Arc::new(move |layout| steps.layout(layout))
    }

    /// The part of a tensor that it names: a view where it is one, else a copy.
    #[track_caller]
    pub fn read(&self, x: &Tensor) -> Result<Tensor> {
        let part = self.part(x)?;
        match &self.chosen {
            None => Ok(part),
            Some(chosen) => {
                let (joined, axis) = chosen.join(&part)?;
                chosen.spread(&chosen.take(&joined, axis)?, axis)
            }
        }
    }

    #[track_caller]
    fn part(&self, x: &Tensor) -> Result<Tensor> {
        if self.chosen.is_some() && self.steps.is_empty() {
            return Ok(x.clone());
        }
        if unrecorded("slice", [x]).is_some() || trace::active() {
            return self.steps.iter().try_fold(x.clone(), |part, step| match *step {
                Step::Insert(axis) => unsqueeze(&part, axis as isize),
                Step::Slice(axis, range) => slice(&part, axis as isize, range),
                Step::Select(axis, index) => select(&part, axis as isize, index),
            });
        }
        // Nothing but the layout changes, so that no step needs a tensor of its own.
        Ok(x.raw().with_layout(self.layout(x.layout())?)?.into())
    }
}

/// An error for an index outside of an axis of the tensor.
fn check(index: i64, axis: usize, shape: &Shape) -> CoreResult<()> {
    let length = shape[axis] as i64;
    match (-length..length).contains(&index) {
        true => Ok(()),
        false => Err(CoreError::Index { op: OP, index: index as isize, axis, shape: shape.clone() }),
    }
}

impl Part {
    /// A mask without axes, for an axis of length 1 that was made for it.
    fn everything(all: bool, axis: usize, own: usize) -> Part {
        let values = if all { vec![0] } else { vec![] };
        Part { axes: axis..axis + 1, own, length: 1, values: Values::Host(values, Shape::from([usize::from(all)])) }
    }

    fn new(index: &Index, axis: usize, own: usize, shape: &Shape) -> Result<Part> {
        let values = match index {
            Index::Tensor(mask) if mask.dtype() == DType::U8 => {
                return Part::mask(mask.to_host::<u8>()?.into_iter().map(|byte| byte != 0), mask.shape(), axis, own, shape);
            }
            Index::Mask(mask) => return Part::mask(mask.0.iter().copied(), &mask.1, axis, own, shape),
            Index::List(list) => Values::Host(list.0.clone(), list.1.clone()),
            Index::Tensor(tensor) => Values::Device(IndexTensor::from_tensor(tensor.as_ref().clone()).map_err(|_| {
                let what = format!(
                    "a tensor is indexed by whole numbers or booleans, not by a tensor of {}; compare it for a mask, or make \
                     whole numbers of it",
                    tensor.dtype()
                );
                CoreError::wrong_type(OP, what)
            })?),
            other => return Err(wrong(format!("{other:?} chooses nothing")).into()),
        };
        Ok(Part { axes: axis..axis + 1, own, length: shape[own], values })
    }

    fn mask(
        mask: impl Iterator<Item = bool>,
        own_shape: &Shape,
        axis: usize,
        own: usize,
        shape: &Shape,
    ) -> Result<Part> {
        let axes = own_shape.ndim();
        if own_shape[..] != shape[own..own + axes] {
            let what = format!(
                "a mask of shape {own_shape} for axes {own} to {} of shape {shape}, whose lengths must be the mask's",
                own + axes - 1
            );
            return Err(wrong(what).into());
        }
        let values: Vec<i64> = mask.enumerate().filter(|(_, on)| *on).map(|(at, _)| at as i64).collect();
        let count = Shape::from([values.len()]);
        Ok(Part { axes: axis..axis + axes, own, length: own_shape.size(), values: Values::Host(values, count) })
    }

    /// Checked values that count from the start, their shape, and whether some of them counted from the end.
    fn host(self, shape: &Shape) -> Result<(Vec<i64>, Shape, bool)> {
        let (mut values, own) = match self.values {
            Values::Host(values, own) => (values, own),
            Values::Device(index) => (index.to_host()?, index.tensor().shape().clone()),
        };
        let (length, mut from_end) = (self.length as i64, false);
        for value in &mut values {
            if !(-length..length).contains(value) {
                // The positions of masks are in range: this is an index of one axis.
                check(*value, self.own, shape)?;
            }
            if *value < 0 {
                (*value, from_end) = (*value + length, true);
            }
        }
        Ok((values, own, from_end))
    }
}

impl Chosen {
    fn new(x: &Raw, parts: Vec<Part>, at: usize) -> Result<Chosen> {
        let axes: SmallVec<[usize; 4]> = parts.iter().flat_map(|part| part.axes.clone()).collect();
        let mut shape = Shape::from(());
        for part in &parts {
            let own = match &part.values {
                Values::Host(_, own) => own,
                Values::Device(index) => index.tensor().shape(),
            };
            shape = shape
                .broadcast(OP, own)
                .map_err(|_| wrong(format!("indices of shapes {shape} and {own} do not broadcast together")))?;
        }
        // An index occurs once in a mask, whatever there is beside it.
        let distinct = shape.size() < 2 || matches!(&parts[..], [Part { axes, .. }] if axes.len() > 1);
        let on_device = |part: &Part| matches!(part.values, Values::Device(_));
        let positions = if parts.iter().any(on_device) && launch::check_readable(OP).is_err() {
            recorded_positions(x, parts)?
        } else {
            host_positions(x, parts, &shape)?
        };
        Ok(Chosen { axes, positions, distinct, shape, at })
    }

    /// A view of which the chosen axes are made one, and that axis. They come first where others are in between.
    #[track_caller]
    fn join(&self, x: &Tensor) -> Result<(Tensor, usize)> {
        let (together, first) = self.gather(x)?;
        if self.axes.len() == 1 {
            return Ok((together, first));
        }
        let mut lengths = together.shape().to_vec();
        let joined = lengths[first..first + self.axes.len()].iter().product();
        lengths.splice(first..first + self.axes.len(), [joined]);
        Ok((reshape(&together, lengths)?, first))
    }

    /// A view in which the chosen axes lie side by side, and the first of them.
    #[track_caller]
    fn gather(&self, x: &Tensor) -> Result<(Tensor, usize)> {
        if self.axes.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            return Ok((x.clone(), self.axes[0]));
        }
        let others = (0..x.ndim()).filter(|axis| !self.axes.contains(axis));
        let order: Vec<isize> = self.axes.iter().copied().chain(others).map(|axis| axis as isize).collect();
        Ok((permute(x, &order)?, 0))
    }

    /// The chosen elements of an axis.
    #[track_caller]
    fn take(&self, x: &Tensor, axis: usize) -> Result<Tensor> {
        let (axis, length) = (axis as isize, x.shape()[axis]);
        let (at, again) = (self.positions.clone(), self.positions.clone());
        trace::settings("index_select", || [("axis", axis.into()), ("indices", self.positions.tensor().into())]);
        LinearMap::new(
            ["index_select", "index_select_backward"],
            move |x| ops::index_select_checked(x, axis, &at),
            move |grad| ops::index_select_backward(grad, axis, &again, length),
        )
        .apply(x)
    }

    /// An axis of chosen elements as the axes of the indices, where they belong.
    #[track_caller]
    fn spread(&self, x: &Tensor, axis: usize) -> Result<Tensor> {
        let mut lengths = x.shape().to_vec();
        lengths.splice(axis..=axis, self.shape.iter().copied());
        let spread = if self.shape.ndim() == 1 { x.clone() } else { reshape(x, lengths)? };
        moved(&spread, axis, self.shape.ndim(), self.at)
    }

    /// What undoes [`Chosen::spread`].
    #[track_caller]
    fn collect(&self, x: &Tensor, axis: usize) -> Result<Tensor> {
        let back = moved(x, self.at, self.shape.ndim(), axis)?;
        let mut lengths = back.shape().to_vec();
        lengths.splice(axis..axis + self.shape.ndim(), [self.shape.size()]);
        if self.shape.ndim() == 1 { Ok(back) } else { reshape(&back, lengths) }
    }
}

/// Some axes moved to another place.
#[track_caller]
fn moved(x: &Tensor, from: usize, count: usize, to: usize) -> Result<Tensor> {
    if from == to || count == 0 {
        return Ok(x.clone());
    }
    let block = from..from + count;
    let mut order: Vec<isize> = (0..x.ndim()).filter(|axis| !block.contains(axis)).map(|axis| axis as isize).collect();
    order.splice(to..to, block.map(|axis| axis as isize));
    permute(x, &order)
}

/// The positions of indices that can be read.
fn host_positions(x: &Raw, parts: Vec<Part>, shape: &Shape) -> Result<IndexTensor> {
    // One tensor of indices that count from the start holds the positions already.
    let ready = match &parts[..] {
        [Part { values: Values::Device(index), .. }] if index.tensor().queue().same_device(x.queue()) => {
            Some(index.clone())
        }
        _ => None,
    };
    let mut positions = netcl_core::host::filled(OP, shape.size(), 0i64)?;
    for part in parts {
        let length = part.length as i64;
        let (values, own, from_end) = part.host(x.shape())?;
        if let Some(index) = ready.as_ref().filter(|_| !from_end) {
            let flat = raw_reshape(index.tensor(), [values.len()])?;
            trace::note("reshape", [index.tensor()], &[&flat]);
            return Ok(IndexTensor::from_tensor(flat)?);
        }
        let layout = Layout::contiguous(own).expand(OP, shape)?;
        for (position, offset) in positions.iter_mut().zip(layout.offsets()) {
            *position = *position * length + values[offset];
        }
    }
    Ok(IndexTensor::from_host(x.queue(), &positions, [positions.len()])?)
}

/// The positions of indices that have no values yet.
fn recorded_positions(x: &Raw, parts: Vec<Part>) -> Result<IndexTensor> {
    let mut positions = IndexTensor::from_tensor(Raw::from_shape(x.queue(), (), DType::I64)?)?;
    for part in parts {
        let length = part.length;
        let index = match part.values {
            Values::Device(index) => index,
            Values::Host(..) => {
                let (values, own, _) = part.host(x.shape())?;
                IndexTensor::from_host(x.queue(), &values, own)?
            }
        };
        if length == 0 && index.tensor().size() > 0 {
            return Err(wrong(format!("indices for an axis of length 0 of shape {}", x.shape())).into());
        }
        positions = ops::positions(&positions, &index, length)?;
    }
    let count = positions.tensor().size();
    Ok(IndexTensor::from_tensor(raw_reshape(positions.tensor(), [count])?)?)
}

impl Tensor {
    /// The part of a tensor that a subscript names, by NumPy's rules: a view for whole numbers, ranges, [`Slice`]s, [`NewAxis`]
    /// and [`Ellipsis`]; a copy where tensors or lists of indices, or masks, choose elements.
    ///
    /// ```
    /// use netcl_autograd::{IndexTensor, Tensor, manager, ops::subscript::NewAxis};
    ///
    /// let queue = manager().cpu().queue;
    /// let x = Tensor::from_host(&queue, &(0..24).map(|v| v as f32).collect::<Vec<_>>(), [2, 3, 4])?;
    /// assert_eq!(x.i((1, .., -1))?.to_host::<f32>()?, [15.0, 19.0, 23.0]);
    /// assert_eq!(x.i((.., 1..3, NewAxis))?.shape().to_vec(), [2, 2, 1, 4]);
    ///
    /// let index = IndexTensor::from_host(&queue, &[3i64, 0], [2])?;
    /// assert_eq!(x.i((0, 1..3, &index))?.to_host::<f32>()?, [7.0, 11.0, 4.0, 8.0]);
    /// assert_eq!(x.i(([0, 1], [2, 0], 1))?.to_host::<f32>()?, [9.0, 13.0]);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    #[track_caller]
    pub fn i(&self, key: impl Key) -> Result<Tensor> {
        Subscript::new(self.raw(), &key.indices())?.read(self)
    }
}
