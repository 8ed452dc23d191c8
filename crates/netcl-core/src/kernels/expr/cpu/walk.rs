//! Where the elements of a loop nest lie, in row-major order.

use smallvec::SmallVec;

/// The index of a chunk's first element.
#[derive(Clone)]
pub(super) struct Walk {
    pub(super) index: SmallVec<[usize; 6]>,
}

impl Walk {
    /// The walk at a position, counted in row-major order.
    pub(super) fn at(shape: &[usize], mut position: usize) -> Walk {
        let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, shape.len());
        for (i, &n) in index.iter_mut().zip(shape).rev() {
            *i = position % n;
            position /= n;
        }
        Walk { index }
    }

    /// Goes on by so many elements.
    pub(super) fn advance(&mut self, shape: &[usize], by: usize) {
        let mut carry = by;
        for (i, &n) in self.index.iter_mut().zip(shape).rev() {
            let sum = *i + carry;
            if sum < n {
                *i = sum;
                return;
            }
            *i = sum % n;
            carry = sum / n;
        }
    }

    /// The distance from an operand's first element, in elements.
    pub(super) fn offset(&self, strides: &[isize], at: usize, dense: bool) -> isize {
        if dense { at as isize } else { self.index.iter().zip(strides).map(|(&i, &s)| i as isize * s).sum() }
    }

    /// Calls `f(offset, start, len)` for each part of a row among the next `n` elements.
    pub(super) fn pieces(&self, shape: &[usize], strides: &[isize], n: usize, mut f: impl FnMut(isize, usize, usize)) {
        let (Some(&row), Some(&inner)) = (shape.last(), strides.last()) else { return f(0, 0, n) };
        let mut index = self.index.clone();
        let last = index.len() - 1;
        let mut offset = self.offset(strides, 0, false);
        let mut start = 0;
        while start < n {
            let len = (row - index[last]).min(n - start);
            f(offset, start, len);
            start += len;
            // On to the next row: back to the row's start, then carry outwards.
            offset -= index[last] as isize * inner;
            index[last] = 0;
            for axis in (0..last).rev() {
                index[axis] += 1;
                offset += strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                offset -= strides[axis] * shape[axis] as isize;
                index[axis] = 0;
            }
        }
    }
}
