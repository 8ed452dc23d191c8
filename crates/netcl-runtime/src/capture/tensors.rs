//! What captured functions take and give: tensors in some arrangement.

use netcl_core::index::IndexTensor;
use netcl_core::tensor::Tensor;
use netcl_core::{Error, Result};

/// Tensors in an arrangement that a captured function takes or gives: one tensor, several in a tuple, vector or option.
///
/// ```
/// use netcl_runtime::capture::Tensors;
/// use netcl_core::{device::manager, index::IndexTensor, tensor::Tensor};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::from_host(&queue, &[1.0f32, 2.0], [2])?;
/// let labels = IndexTensor::from_host(&queue, &[0i64], [1])?;
/// let mut found = Vec::new();
/// (x, vec![labels]).visit(&mut |tensor| found.push(tensor.shape().to_string()));
/// assert_eq!(found, ["(2,)", "(1,)"]);
/// # Ok::<(), netcl_core::Error>(())
/// ```
pub trait Tensors: Sized {
    /// Shows every tensor, in a fixed order.
    fn visit<'t>(&'t self, see: &mut dyn FnMut(&'t Tensor));

    /// The same arrangement over other tensors, which are asked for in the same order. What only belongs to the tensors
    /// themselves (the graph that made them) stays behind.
    ///
    /// # Errors
    /// Those of `with`.
    fn replace(&self, with: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self>;
}

impl Tensors for Tensor {
    fn visit<'t>(&'t self, see: &mut dyn FnMut(&'t Tensor)) {
        see(self);
    }

    fn replace(&self, with: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        with(self)
    }
}

impl Tensors for IndexTensor {
    fn visit<'t>(&'t self, see: &mut dyn FnMut(&'t Tensor)) {
        see(self.tensor());
    }

    fn replace(&self, with: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        IndexTensor::from_tensor(with(self.tensor())?)
    }
}

impl<T: Tensors> Tensors for Vec<T> {
    fn visit<'t>(&'t self, see: &mut dyn FnMut(&'t Tensor)) {
        self.iter().for_each(|tensors| tensors.visit(see));
    }

    fn replace(&self, with: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.iter().map(|tensors| tensors.replace(with)).collect()
    }
}

impl<T: Tensors> Tensors for Option<T> {
    fn visit<'t>(&'t self, see: &mut dyn FnMut(&'t Tensor)) {
        self.iter().for_each(|tensors| tensors.visit(see));
    }

    fn replace(&self, with: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.as_ref().map(|tensors| tensors.replace(with)).transpose()
    }
}

impl<T: Tensors, const N: usize> Tensors for [T; N] {
    fn visit<'t>(&'t self, see: &mut dyn FnMut(&'t Tensor)) {
        self.iter().for_each(|tensors| tensors.visit(see));
    }

    fn replace(&self, with: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let all = self.iter().map(|tensors| tensors.replace(with)).collect::<Result<Vec<T>>>()?;
        // As many went in as came out.
        all.try_into().map_err(|_| Error::argument("capture", "the arrangement has changed its length"))
    }
}

macro_rules! tuples {
    ($(($($name:ident $at:tt),*);)*) => {$(
        impl<$($name: Tensors),*> Tensors for ($($name,)*) {
            #[allow(unused_variables, reason = "the empty tuple has nothing to show")]
            fn visit<'t>(&'t self, see: &mut dyn FnMut(&'t Tensor)) {
                $(self.$at.visit(see);)*
            }

            #[allow(unused_variables, reason = "the empty tuple has nothing to replace")]
            #[allow(clippy::unused_unit, reason = "the empty tuple is one")]
            fn replace(&self, with: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
                Ok(($(self.$at.replace(with)?,)*))
            }
        }
    )*};
}

tuples! {
    ();
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
}
