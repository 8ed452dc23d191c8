//! Numbers along several axes, of which one stands for all.

use crate::settings::{Setting, Value, Wrong};

/// A number for each of `N` axes; one that is given alone stands for all of them.
///
/// ```
/// use netcl_nn::Size;
///
/// assert_eq!(Size::<2>::from(3).axes(), [3, 3]);
/// assert_eq!(Size::<2>::from([3, 5]).axes(), [3, 5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size<const N: usize, T = usize> {
    /// The same along each axis.
    All(T),
    /// One for each.
    Each([T; N]),
}

impl<const N: usize, T: Clone> Size<N, T> {
    /// One for each axis.
    pub fn axes(&self) -> [T; N] {
        match self {
            Size::All(one) => std::array::from_fn(|_| one.clone()),
            Size::Each(each) => each.clone(),
        }
    }
}

impl<const N: usize, T> From<T> for Size<N, T> {
    fn from(one: T) -> Self {
        Size::All(one)
    }
}

impl<const N: usize, T> From<[T; N]> for Size<N, T> {
    fn from(each: [T; N]) -> Self {
        Size::Each(each)
    }
}

/// Written as it was given; a list of one stands for all axes, too.
impl<const N: usize, T: Setting> Setting for Size<N, T> {
    fn wanted() -> String {
        <[T; N]>::wanted()
    }
    fn read(value: &Value) -> Result<Self, Wrong> {
        match value {
            Value::List(values) => match &values[..] {
                [one] => T::read(one).map(Size::All),
                _ => <[T; N]>::read(value).map(Size::Each),
            },
            one => T::read(one).map(Size::All),
        }
    }
    fn write(&self) -> Value {
        match self {
            Size::All(one) => one.write(),
            Size::Each(each) => each.write(),
        }
    }
    fn lowest(&self) -> Option<f64> {
        self.axes().lowest()
    }
}
