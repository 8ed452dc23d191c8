//! What a compiled function may return.

use crate::tensor::Tensor;

/// A tensor, or tuples, arrays and vectors of such.
pub trait Outputs: Sized {
    /// All tensors in order.
    fn into_list(self) -> Vec<Tensor>;

    /// The same structure from as many tensors; `None` if there are too few.
    fn from_list(list: &mut dyn Iterator<Item = Tensor>) -> Option<Self>;
}

impl Outputs for Tensor {
    fn into_list(self) -> Vec<Tensor> {
        vec![self]
    }

    fn from_list(list: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
        list.next()
    }
}

/// Takes all that are left: a vector comes last.
impl Outputs for Vec<Tensor> {
    fn into_list(self) -> Vec<Tensor> {
        self
    }

    fn from_list(list: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
        Some(list.collect())
    }
}

impl<T: Outputs, const N: usize> Outputs for [T; N] {
    fn into_list(self) -> Vec<Tensor> {
        self.into_iter().flat_map(Outputs::into_list).collect()
    }

    fn from_list(list: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
        let parts: Vec<T> = (0..N).map(|_| T::from_list(list)).collect::<Option<_>>()?;
        parts.try_into().ok()
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Outputs),*> Outputs for ($($name,)*) {
            fn into_list(self) -> Vec<Tensor> {
                #[expect(non_snake_case, reason = "one name per type")]
                let ($($name,)*) = self;
                let mut all = Vec::new();
                $(all.extend($name.into_list());)*
                all
            }

            fn from_list(list: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
                Some(($($name::from_list(list)?,)*))
            }
        }
    };
}

tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
