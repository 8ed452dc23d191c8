//! Lengths along several axes, of which one number stands for all.

/// The lengths of a window along `N` axes; a single number is the same along each of them.
///
/// ```
/// use netcl_nn::Size;
///
/// assert_eq!(Size::<2>::from(3), Size([3, 3]));
/// assert_eq!(Size::from([3, 5]), Size([3, 5]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size<const N: usize>(pub [usize; N]);

impl<const N: usize> From<usize> for Size<N> {
    fn from(length: usize) -> Self {
        Size([length; N])
    }
}

impl<const N: usize> From<[usize; N]> for Size<N> {
    fn from(lengths: [usize; N]) -> Self {
        Size(lengths)
    }
}

/// `(3, 5)`, as print-outs show lengths.
pub(crate) fn tuple(lengths: &[usize]) -> String {
    let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
    match &lengths[..] {
        [one] => format!("({one},)"),
        several => format!("({})", several.join(", ")),
    }
}
