//! Random chains of views against the `ndarray` crate, and shape rules against a naive reading of NumPy's.

use ndarray::{ArrayD, ArrayViewD, Axis, IxDyn};
use netcl_core::device::manager;
use netcl_core::shape::{Layout, Shape, Slice};
use netcl_core::tensor::{Tensor, reshape};
use proptest::prelude::*;

/// One step of a random view; numbers are reduced to what fits the tensor at hand.
#[derive(Clone, Debug)]
enum Step {
    Permute(Vec<u32>),
    Slice { axis: usize, start: isize, stop: isize, step: isize },
    Select { axis: usize, index: usize },
    Unsqueeze(usize),
    Broadcast { new_axis: usize },
    Reshape(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::vec(any::<u32>(), 6).prop_map(Step::Permute),
        (0usize..6, -9isize..9, -9isize..9, prop_oneof![-3isize..=-1, 1isize..=3])
            .prop_map(|(axis, start, stop, step)| Step::Slice { axis, start, stop, step }),
        (0usize..6, 0usize..8).prop_map(|(axis, index)| Step::Select { axis, index }),
        (0usize..6).prop_map(Step::Unsqueeze),
        (1usize..4).prop_map(|new_axis| Step::Broadcast { new_axis }),
        (0usize..64).prop_map(Step::Reshape),
    ]
}

/// Python's `range(*slice.indices(n))`, the plain way.
fn python_slice(n: usize, start: isize, stop: isize, step: isize) -> Vec<usize> {
    let n = n as isize;
    let wrap = |at: isize| if at < 0 { at + n } else { at };
    let (lowest, highest) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let (mut at, stop) = (wrap(start).clamp(lowest, highest), wrap(stop).clamp(lowest, highest));
    let mut out = vec![];
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        out.push(at as usize);
        at += step;
    }
    out
}

/// Some factorisation of `n` into at most three lengths, chosen by `pick`.
fn factorise(n: usize, pick: usize) -> Vec<usize> {
    let divisors: Vec<usize> = (1..=n.max(1)).filter(|d| n.is_multiple_of(*d)).collect();
    let a = divisors[pick % divisors.len()];
    let rest: Vec<usize> = (1..=(n / a).max(1)).filter(|d| (n / a).is_multiple_of(*d)).collect();
    let b = rest[(pick / 7) % rest.len()];
    if n == 0 { vec![0, a] } else { vec![a, b, n / a / b] }
}

fn contents(view: &ArrayViewD<'_, f32>) -> Vec<f32> {
    view.iter().copied().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn views_agree_with_ndarray(dims in prop::collection::vec(1usize..6, 0..4), steps in prop::collection::vec(step(), 0..7)) {
        let n: usize = dims.iter().product();
        let data: Vec<f32> = (0..n).map(|i| i as f32 + 0.5).collect();
        let mut ours = Tensor::from_host(&manager().cpu().queue, &data, Shape::from(dims.clone())).unwrap();
        let mut theirs = ArrayD::from_shape_vec(IxDyn(&dims), data).unwrap();
        for step in steps {
            let rank = ours.ndim();
            match step {
                Step::Permute(keys) => {
                    let mut axes: Vec<usize> = (0..rank).collect();
                    axes.sort_by_key(|&a| keys[a % keys.len()]);
                    ours = ours.permute(&axes.iter().map(|&a| a as isize).collect::<Vec<_>>()).unwrap();
                    theirs = theirs.permuted_axes(IxDyn(&axes));
                }
                Step::Slice { axis, start, stop, step } if rank > 0 => {
                    let axis = axis % rank;
                    let picked = python_slice(ours.shape()[axis], start, stop, step);
                    ours = ours.slice(axis as isize, Slice::new(Some(start), Some(stop), step)).unwrap();
                    theirs = theirs.select(Axis(axis), &picked);
                }
                Step::Select { axis, index } if rank > 0 && ours.shape()[axis % rank] > 0 => {
                    let axis = axis % rank;
                    let index = index % ours.shape()[axis];
                    ours = ours.select(axis as isize, index as isize - ours.shape()[axis] as isize).unwrap();
                    theirs = theirs.index_axis_move(Axis(axis), index);
                }
                Step::Unsqueeze(axis) if rank < 5 => {
                    let axis = axis % (rank + 1);
                    ours = ours.with_layout(ours.layout().unsqueeze("test", axis as isize).unwrap()).unwrap();
                    theirs = theirs.insert_axis(Axis(axis));
                }
                Step::Broadcast { new_axis } if rank < 5 => {
                    let mut shape = vec![new_axis];
                    shape.extend(ours.shape().iter());
                    ours = ours.expand(shape.as_slice()).unwrap();
                    theirs = theirs.broadcast(IxDyn(&shape)).unwrap().to_owned();
                }
                Step::Reshape(pick) => {
                    let shape = factorise(ours.size(), pick);
                    ours = reshape(&ours, shape.as_slice()).unwrap();
                    theirs = ArrayD::from_shape_vec(IxDyn(&shape), contents(&theirs.view())).unwrap();
                }
                _ => {}
            }
            prop_assert_eq!(&ours.shape()[..], theirs.shape());
            prop_assert_eq!(ours.to_host::<f32>().unwrap(), contents(&theirs.view()));
            prop_assert!(ours.layout().end() * 4 <= ours.storage().nbytes());
        }
    }

    #[test]
    fn collapsing_keeps_every_offset(dims in prop::collection::vec(1usize..5, 0..5), order in prop::collection::vec(any::<u32>(), 5)) {
        let dense = Layout::contiguous(Shape::from(dims.clone()));
        let mut axes: Vec<isize> = (0..dims.len() as isize).collect();
        axes.sort_by_key(|&a| order[a as usize]);
        let permuted = dense.permute("test", &axes).unwrap();
        let target = Layout::contiguous(permuted.shape().clone());
        let (shape, strides) = Layout::collapse(&[&permuted, &target]);
        for (original, strides) in [(&permuted, &strides[0]), (&target, &strides[1])] {
            let merged = Layout::strided(shape.clone(), strides, original.offset()).unwrap();
            prop_assert_eq!(merged.offsets().collect::<Vec<_>>(), original.offsets().collect::<Vec<_>>());
        }
        prop_assert!(shape.ndim() <= dims.len());
        // In the order of memory what belongs together still does.
        let (shape, strides) = Layout::collapse_in_memory_order(&[&target, &permuted]);
        prop_assert!(shape.is_empty() || strides[1].last() == Some(&1));
        let offsets = |strides: &[isize]| Layout::strided(shape.clone(), strides, 0).unwrap().offsets().collect::<Vec<_>>();
        let mut pairs: Vec<_> = offsets(&strides[0]).into_iter().zip(offsets(&strides[1])).collect();
        let mut expected: Vec<_> = target.offsets().zip(permuted.offsets()).collect();
        pairs.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(pairs, expected);
    }

    #[test]
    fn broadcasting_follows_numpy(a in prop::collection::vec(0usize..4, 0..5), b in prop::collection::vec(0usize..4, 0..5)) {
        let (left, right) = (Shape::from(a.clone()), Shape::from(b.clone()));
        let n = a.len().max(b.len());
        let padded = |dims: &[usize]| [vec![1; n - dims.len()], dims.to_vec()].concat();
        let expected: Option<Vec<usize>> = padded(&a)
            .into_iter()
            .zip(padded(&b))
            .map(|(x, y)| if x == y || y == 1 { Some(x) } else if x == 1 { Some(y) } else { None })
            .collect();
        prop_assert_eq!(left.broadcast("test", &right).ok().map(|s| s.to_vec()), expected.clone());
        prop_assert_eq!(right.broadcast("test", &left).ok().map(|s| s.to_vec()), expected);
    }

    #[test]
    fn self_overlap_is_never_missed(dims in prop::collection::vec(1usize..5, 1..4), strides in prop::collection::vec(0isize..9, 3)) {
        let layout = Layout::strided(Shape::from(dims.clone()), &strides[..dims.len()], 0).unwrap();
        let mut offsets: Vec<usize> = layout.offsets().collect();
        offsets.sort_unstable();
        let distinct = offsets.windows(2).all(|w| w[0] != w[1]);
        // The rule may refuse layouts that happen not to overlap; it must never allow one that does.
        prop_assert!(distinct || layout.overlaps_itself());
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let shape = Shape::from([3, 4]);
    let text = shape.broadcast("add", &Shape::from([2, 4])).unwrap_err().to_string();
    assert_eq!(text, "add: shapes (3, 4) and (2, 4) do not broadcast: axis 2 from the end has lengths 3 and 2");
    let text = Layout::contiguous(shape.clone()).reshape(&Shape::from([5])).unwrap_err().to_string();
    assert!(text.contains("(3, 4) (12 elements)") && text.contains("(5,) (5 elements)"), "{text}");
    assert!(shape.axis("sum", -3).unwrap_err().to_string().contains("axis -3 is out of range for shape (3, 4)"));
    let huge = Shape::from([usize::MAX / 2, 8]);
    assert!(huge.nbytes("zeros", netcl_core::dtype::DType::F32).unwrap_err().to_string().contains("more bytes"));
    assert!(Shape::from([0, usize::MAX, 4]).nbytes("zeros", netcl_core::dtype::DType::F32).is_err());
    assert_eq!(Shape::from([0, 7]).nbytes("zeros", netcl_core::dtype::DType::F32).unwrap(), 0);
}

#[test]
fn stepping_backwards_by_more_than_the_axis() {
    let layout = Layout::contiguous(Shape::from([5]));
    let sliced = layout.slice(0, Slice::new(None, None, isize::MIN + 1)).unwrap();
    assert_eq!(sliced.offsets().collect::<Vec<_>>(), [4]);
    assert!(layout.slice(0, Slice::new(None, None, 0)).is_err());
}
