//! Where the elements of a (possibly strided) tensor lie inside its storage.

use smallvec::SmallVec;

use super::Shape;
use crate::error::{Error, Result};

/// Shape, strides and offset, all in elements. Every view is a new layout over the same storage.
///
/// ```
/// use netcl_core::shape::{Layout, Shape, Slice};
///
/// let m = Layout::contiguous(Shape::from([3, 4]));
/// let t = m.permute("permute", &[1, 0])?;
/// assert_eq!((t.shape().to_vec(), t.strides().to_vec()), (vec![4, 3], vec![1, 4]));
/// let last_column_backwards = m.slice(1, Slice::index(3))?.slice(0, Slice::new(None, None, -1))?;
/// assert_eq!(last_column_backwards.offsets().collect::<Vec<_>>(), [11, 7, 3]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Shape,
    strides: SmallVec<[isize; 6]>,
    offset: usize,
}

// By hand, as that of `Shape`.
impl Clone for Layout {
    fn clone(&self) -> Self {
        Layout { shape: self.shape.clone(), strides: SmallVec::from_slice(&self.strides), offset: self.offset }
    }
}

/// The strides of several operands over one nest of loops.
pub type Strides = SmallVec<[SmallVec<[isize; 6]>; 4]>;

/// A part of one axis, with Python's meaning of start, stop and step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    start: Option<isize>,
    stop: Option<isize>,
    step: isize,
}

impl Slice {
    /// `start:stop:step`; a step of zero is refused when the slice is used.
    pub fn new(start: Option<isize>, stop: Option<isize>, step: isize) -> Self {
        Slice { start, stop, step }
    }

    /// The one-element slice at an index, which may count from the end.
    pub fn index(at: isize) -> Self {
        Slice { start: Some(at), stop: at.checked_add(1).filter(|&next| next != 0), step: 1 }
    }

    /// First element and number of elements on an axis of length `n`, as Python's `slice.indices` gives them.
    fn resolve(self, n: usize) -> (usize, usize) {
        let n = n as isize;
        let (lowest, highest) = if self.step > 0 { (0, n) } else { (-1, n - 1) };
        let clamp = |at: isize| if at < 0 { (at + n).max(lowest) } else { at.min(highest) };
        let start = self.start.map_or(if self.step > 0 { lowest } else { highest }, clamp);
        let stop = self.stop.map_or(if self.step > 0 { highest } else { lowest }, clamp);
        let distance = if self.step > 0 { stop - start } else { start - stop };
        let count = if distance <= 0 { 0 } else { (distance - 1).unsigned_abs() / self.step.unsigned_abs() + 1 };
        (if count == 0 { 0 } else { start as usize }, count)
    }
}

impl Layout {
    /// A dense row-major layout at offset 0.
    pub fn contiguous(shape: Shape) -> Self {
        let strides = shape.contiguous_strides();
        Layout { shape, strides, offset: 0 }
    }

    /// A dense layout of images `[N, C, H, W]` whose channels are neighbours in memory.
    ///
    /// ```
    /// use netcl_core::shape::Layout;
    ///
    /// let layout = Layout::channels_last([2, 3, 4, 5].into());
    /// assert_eq!(layout.strides(), [60, 1, 15, 3]);
    /// assert!(layout.is_channels_last());
    /// ```
    pub fn channels_last(shape: Shape) -> Self {
        let strides = match *shape {
            [_, c, h, w] => SmallVec::from_slice(&[(c * h * w) as isize, 1, (c * w) as isize, c as isize]),
            // Only images have channels in the middle.
            _ => shape.contiguous_strides(),
        };
        Layout { shape, strides, offset: 0 }
    }

    /// Whether these are images as [`Layout::channels_last`] lays them out, and not in row-major order as well.
    pub fn is_channels_last(&self) -> bool {
        let &[_, c, h, w] = &self.shape[..] else { return false };
        let expected = [(c * h * w) as isize, 1, (c * w) as isize, c as isize];
        let lies = |axis: usize| self.shape[axis] == 1 || self.strides[axis] == expected[axis];
        (0..4).all(lies) && !self.is_contiguous()
    }

    /// A layout from its parts, for memory that somebody else laid out.
    pub fn strided(shape: Shape, strides: &[isize], offset: usize) -> Result<Self> {
        let layout = Layout { strides: SmallVec::from_slice(strides), shape, offset };
        if layout.strides.len() != layout.shape.ndim() {
            let why = format!("{} strides given for {} axes", strides.len(), layout.shape.ndim());
            return Err(Error::Shape { op: "layout", shape: layout.shape, why });
        }
        if layout.shape.size() > 0 && layout.lowest() < 0 {
            let why = format!("strides {strides:?} reach before the start of the storage");
            return Err(Error::Shape { op: "layout", shape: layout.shape, why });
        }
        Ok(layout)
    }

    /// The lengths of the axes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The distance between neighbours along each axis, in elements; zero on broadcast axes, negative on flipped ones.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// The position of the first element.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Whether the elements lie densely in row-major order (axes of length 1 do not matter).
    pub fn is_contiguous(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut expected = 1isize;
        for (&n, &s) in self.shape.iter().zip(&self.strides).rev() {
            if n != 1 {
                if s != expected {
                    return false;
                }
                expected *= n as isize;
            }
        }
        true
    }

    /// Whether two elements may share one place, which forbids writing.
    pub fn overlaps_itself(&self) -> bool {
        if self.shape.size() <= 1 {
            return false;
        }
        let mut axes: SmallVec<[(isize, usize); 6]> =
            self.strides.iter().map(|s| s.abs()).zip(self.shape.iter().copied()).filter(|&(_, n)| n > 1).collect();
        axes.sort_unstable();
        let mut reach = 0isize;
        for (stride, n) in axes {
            if stride <= reach {
                return true;
            }
            reach += stride * (n as isize - 1);
        }
        false
    }

    /// The sum of each stride times the steps along its axis: strides from elsewhere may be any numbers.
    fn reach(&self, kept: impl Fn(isize) -> isize) -> i128 {
        self.strides.iter().zip(self.shape.iter()).map(|(&s, &n)| kept(s) as i128 * (n as i128 - 1)).sum()
    }

    fn lowest(&self) -> i128 {
        self.offset as i128 + self.reach(|s| s.min(0))
    }

    /// One past the highest position used: what the storage must at least hold. Zero for empty layouts.
    pub fn end(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        usize::try_from(self.offset as i128 + self.reach(|s| s.max(0)) + 1).unwrap_or(usize::MAX)
    }

    /// The same elements with other axes, if strides can express it; `None` means that a copy is needed.
    pub fn reshape(&self, shape: &Shape) -> Result<Option<Layout>> {
        if self.shape.size() != shape.size() {
            return Err(Error::ReshapeCount { from: self.shape.clone(), to: shape.clone() });
        }
        if self.is_contiguous() {
            return Ok(Some(Layout { strides: shape.contiguous_strides(), shape: shape.clone(), offset: self.offset }));
        }
        // Walk both shapes from the left in groups of equal element count; a group of old axes can be regrouped only
        // where it is one evenly spaced run.
        let old: SmallVec<[(usize, isize); 6]> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(n, _)| n != 1).collect();
        let mut strides: SmallVec<[isize; 6]> = SmallVec::from_elem(1, shape.ndim());
        let (mut i, mut j) = (0, 0);
        while i < old.len() && j < shape.ndim() {
            let (first, mut count) = (i, old[i].0);
            i += 1;
            let group = j;
            let mut wanted = shape[j];
            j += 1;
            while count != wanted {
                if count < wanted {
                    count *= old[i].0;
                    i += 1;
                } else {
                    wanted *= shape[j];
                    j += 1;
                }
            }
            if (first + 1..i).any(|k| old[k - 1].1 != old[k].1 * old[k].0 as isize) {
                return Ok(None);
            }
            let mut stride = old[i - 1].1;
            for k in (group..j).rev() {
                strides[k] = stride;
                stride *= shape[k] as isize;
            }
        }
        Ok(Some(Layout { shape: shape.clone(), strides, offset: self.offset }))
    }

    /// The axes in another order.
    pub fn permute(&self, op: &'static str, axes: &[isize]) -> Result<Layout> {
        let mut seen: SmallVec<[bool; 6]> = SmallVec::from_elem(false, self.shape.ndim());
        let mut order: SmallVec<[usize; 6]> = SmallVec::new();
        for &axis in axes {
            let at = self.shape.axis(op, axis)?;
            if std::mem::replace(&mut seen[at], true) {
                return Err(Error::argument(op, format!("axis {axis} appears twice in {axes:?}")));
            }
            order.push(at);
        }
        if order.len() != self.shape.ndim() {
            let what = format!("{axes:?} names {} of the {} axes of {}", order.len(), self.shape.ndim(), self.shape);
            return Err(Error::argument(op, what));
        }
        Ok(Layout {
            shape: order.iter().map(|&a| self.shape[a]).collect(),
            strides: order.iter().map(|&a| self.strides[a]).collect(),
            offset: self.offset,
        })
    }

    /// The same elements repeated along new or length-1 axes, without a copy.
    pub fn expand(&self, op: &'static str, shape: &Shape) -> Result<Layout> {
        let joined = self.shape.broadcast(op, shape)?;
        if &joined != shape {
            let why = format!("it does not expand to {shape}");
            return Err(Error::Shape { op, shape: self.shape.clone(), why });
        }
        let new_axes = shape.ndim() - self.shape.ndim();
        let strides = (0..shape.ndim())
            .map(|i| match i.checked_sub(new_axes) {
                Some(k) if self.shape[k] == shape[i] => self.strides[k],
                _ => 0,
            })
            .collect();
        Ok(Layout { shape: shape.clone(), strides, offset: self.offset })
    }

    /// A part of one axis.
    pub fn slice(&self, axis: usize, slice: Slice) -> Result<Layout> {
        if slice.step == 0 {
            return Err(Error::argument("slice", "the step cannot be zero"));
        }
        if axis >= self.shape.ndim() {
            return Err(Error::Axis { op: "slice", axis: axis as isize, shape: self.shape.clone() });
        }
        let (start, count) = slice.resolve(self.shape[axis]);
        let mut out = self.clone();
        out.shape.0[axis] = count;
        // With fewer than two elements the step is never taken; keeping the old stride avoids overflow for huge steps.
        if count > 1 {
            out.strides[axis] = self.strides[axis] * slice.step;
        }
        out.offset = (self.offset as isize + start as isize * self.strides[axis]) as usize;
        Ok(out)
    }

    /// The layout of one index along an axis, which disappears.
    pub fn select(&self, op: &'static str, axis: usize, index: isize) -> Result<Layout> {
        let n =
            *self.shape.get(axis).ok_or_else(|| Error::Axis { op, axis: axis as isize, shape: self.shape.clone() })?
                as isize;
        let at = if index < 0 { index + n } else { index };
        if !(0..n).contains(&at) {
            return Err(Error::Index { op, index, axis, shape: self.shape.clone() });
        }
        let mut out = self.clone();
        out.offset = (self.offset as isize + at * self.strides[axis]) as usize;
        out.shape.0.remove(axis);
        out.strides.remove(axis);
        Ok(out)
    }

    /// An axis of length 1 inserted before `axis` (or at the end).
    pub fn unsqueeze(&self, op: &'static str, axis: isize) -> Result<Layout> {
        let n = self.shape.ndim() as isize + 1;
        let at = if axis < 0 { axis + n } else { axis };
        if !(0..n).contains(&at) {
            return Err(Error::Axis { op, axis, shape: self.shape.clone() });
        }
        let mut out = self.clone();
        out.shape.0.insert(at as usize, 1);
        out.strides.insert(at as usize, 0);
        Ok(out)
    }

    /// Without the given axes of length 1.
    pub fn squeeze(&self, op: &'static str, axes: &[isize]) -> Result<Layout> {
        let mut drop: SmallVec<[bool; 6]> = SmallVec::from_elem(false, self.shape.ndim());
        for &axis in axes {
            let at = self.shape.axis(op, axis)?;
            if self.shape[at] != 1 {
                let why = format!("axis {axis} has length {}, only length 1 can be squeezed", self.shape[at]);
                return Err(Error::Shape { op, shape: self.shape.clone(), why });
            }
            drop[at] = true;
        }
        let kept = |i: &usize| !drop[*i];
        Ok(Layout {
            shape: (0..self.shape.ndim()).filter(kept).map(|i| self.shape[i]).collect(),
            strides: (0..self.shape.ndim()).filter(kept).map(|i| self.strides[i]).collect(),
            offset: self.offset,
        })
    }

    /// The same view of a storage whose first element is `by` positions later.
    pub fn shifted(mut self, by: usize) -> Layout {
        self.offset += by;
        self
    }

    /// Merges neighbouring axes that are evenly spaced in every one of several layouts of equal shape and drops axes of
    /// length 1: what a kernel has to loop over. Returns the merged shape and each layout's strides.
    pub fn collapse(layouts: &[&Layout]) -> (Shape, Strides) {
        let mut shape: SmallVec<[usize; 6]> = SmallVec::new();
        let mut strides: Strides = SmallVec::new();
        let Some(first) = layouts.first() else { return (Shape(shape), strides) };
        let size = first.shape.size();
        if size > 1 && layouts.iter().all(|layout| layout.is_contiguous()) {
            strides.extend(layouts.iter().map(|_| SmallVec::from_slice(&[1])));
            return (Shape::from([size]), strides);
        }
        strides.resize(layouts.len(), SmallVec::new());
        for (axis, &n) in first.shape.iter().enumerate() {
            if n == 1 {
                continue;
            }
            let merges = !shape.is_empty()
                && layouts.iter().zip(&strides).all(|(l, s)| s.last() == Some(&(l.strides[axis] * n as isize)));
            if merges {
                if let Some(last) = shape.last_mut() {
                    *last *= n;
                }
            } else {
                shape.push(n);
            }
            for (l, s) in layouts.iter().zip(&mut strides) {
                if merges {
                    s.pop();
                }
                s.push(l.strides[axis]);
            }
        }
        (Shape(shape), strides)
    }

    /// [`Layout::collapse`] with the axes in the order of the last layout's memory: for what does not depend on the order of
    /// elements. Tensors that are all channels-last become one axis.
    pub fn collapse_in_memory_order(layouts: &[&Layout]) -> (Shape, Strides) {
        let in_order = |layout: &Layout| {
            let long = |&(&n, _): &(&usize, &isize)| n > 1;
            layout.shape.iter().zip(&layout.strides).filter(long).is_sorted_by_key(|(_, s)| std::cmp::Reverse(s.abs()))
        };
        let Some(last) = layouts.last().filter(|last| !in_order(last)) else { return Layout::collapse(layouts) };
        let mut axes: SmallVec<[usize; 6]> = (0..last.shape.ndim()).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(last.strides[axis].abs()));
        let ordered = |layout: &&Layout| Layout {
            shape: Shape(axes.iter().map(|&axis| layout.shape[axis]).collect()),
            strides: axes.iter().map(|&axis| layout.strides[axis]).collect(),
            offset: layout.offset,
        };
        let ordered: SmallVec<[Layout; 6]> = layouts.iter().map(ordered).collect();
        Layout::collapse(&ordered.iter().collect::<SmallVec<[&Layout; 6]>>())
    }

    /// The positions of all elements in row-major order.
    pub fn offsets(&self) -> impl Iterator<Item = usize> + '_ {
        let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, self.shape.ndim());
        let mut at = self.offset as isize;
        (0..self.shape.size()).map(move |_| {
            let here = at as usize;
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                at += self.strides[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                at -= self.strides[axis] * self.shape[axis] as isize;
                index[axis] = 0;
            }
            here
        })
    }
}
