//! Views of values: how a consumer that sees a value through other axes sees what the value is made of.

use netcl_core::shape::Layout;

/// Where a producer's operand lies for a consumer that reads the producer's dense result through `read`; `None` where strides
/// cannot say it, or where the consumer sees only a part.
pub(super) fn remap(result: &Layout, read: &Layout, operand: &Layout) -> Option<Layout> {
    if read.offset() != result.offset() {
        return None;
    }
    by_axes(result, read, operand).or_else(|| {
        let whole = read.is_contiguous() && read.shape().size() == result.shape().size();
        operand.reshape(read.shape()).ok().flatten().filter(|_| whole)
    })
}

/// Each axis of the consumer is one of the producer's, or a broadcast.
fn by_axes(result: &Layout, read: &Layout, operand: &Layout) -> Option<Layout> {
    let mut used = vec![false; result.shape().ndim()];
    let mut strides = Vec::with_capacity(read.shape().ndim());
    for (&n, &stride) in read.shape().iter().zip(read.strides()) {
        if n == 1 || stride == 0 {
            strides.push(0);
            continue;
        }
        let axis = (0..used.len()).find(|&axis| {
            !used[axis] && result.shape()[axis] == n && result.strides()[axis] == stride && result.shape()[axis] != 1
        })?;
        used[axis] = true;
        strides.push(operand.strides()[axis]);
    }
    let all = used.iter().zip(result.shape().iter()).all(|(used, &n)| *used || n == 1);
    if !all {
        return None;
    }
    Layout::strided(read.shape().clone(), &strides, operand.offset()).ok()
}

/// The strides of a layout seen with more axes: `None` is a new axis of length 1.
pub(super) fn with_axes(layout: &Layout, axes: &[Option<usize>]) -> Option<Layout> {
    let shape = axes.iter().map(|axis| axis.map_or(1, |axis| layout.shape()[axis])).collect();
    let strides: Vec<isize> = axes.iter().map(|axis| axis.map_or(0, |axis| layout.strides()[axis])).collect();
    Layout::strided(shape, &strides, layout.offset()).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use super::*;
    use netcl_core::shape::Shape;

    fn dense(dims: &[usize]) -> Layout {
        Layout::contiguous(Shape::from(dims))
    }

    #[test]
    fn broadcast_permuted_and_reshaped_reads_see_through_the_result() {
        let result = dense(&[2, 3]);
        let operand = Layout::strided(Shape::from([2, 3]), &[0, 5], 7).unwrap();
        let turned = result.permute("t", &[1, 0]).unwrap();
        assert_eq!(remap(&result, &turned, &operand).unwrap().strides(), [5, 0]);
        let wide = result.unsqueeze("t", 0).unwrap().expand("t", &Shape::from([4, 2, 3])).unwrap();
        assert_eq!(remap(&result, &wide, &operand).unwrap().strides(), [0, 0, 5]);
        assert_eq!(remap(&result, &dense(&[6]), &dense(&[2, 3])).unwrap().strides(), [1]);
        // Six elements that lie 0, 5, 10, 0, 5, 10 apart are no single run.
        assert_eq!(remap(&result, &dense(&[6]), &operand), None);
    }

    #[test]
    fn a_part_of_a_result_is_not_seen_through() {
        let result = dense(&[4, 3]);
        let part = Layout::strided(Shape::from([2, 3]), &[3, 1], 3).unwrap();
        assert_eq!(remap(&result, &part, &result), None);
        let row = Layout::strided(Shape::from([3]), &[1], 0).unwrap();
        assert_eq!(remap(&result, &row, &result), None);
    }
}
