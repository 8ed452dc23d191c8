//! Arrays on the host: what the fields of samples and batches are made of.

use half::f16;

use crate::error::{Error, Result, argument};

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the descriptions.
pub enum DType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

/// A Rust type that can be the element of an [`Array`].
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// The type's name at run time.
    const DTYPE: DType;
    #[doc(hidden)]
    fn wrap(elements: Vec<Self>) -> Elements;
    #[doc(hidden)]
    fn slice(elements: &Elements) -> Option<&[Self]>;
    #[doc(hidden)]
    fn slice_mut(elements: &mut Elements) -> Option<&mut [Self]>;
}

/// One line per element type: the enum of element vectors, its conversions and `each!`, which runs an expression for whichever
/// type an array has.
macro_rules! elements {
    ($($name:ident $type:ty, $numpy:literal;)*) => {
        /// The elements of an [`Array`], by type.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Elements {
            $($name(Vec<$type>),)*
        }

        $(impl Element for $type {
            const DTYPE: DType = DType::$name;
            fn wrap(elements: Vec<Self>) -> Elements {
                Elements::$name(elements)
            }
            fn slice(elements: &Elements) -> Option<&[Self]> {
                if let Elements::$name(elements) = elements { Some(elements) } else { None }
            }
            fn slice_mut(elements: &mut Elements) -> Option<&mut [Self]> {
                if let Elements::$name(elements) = elements { Some(elements) } else { None }
            }
        })*

        impl DType {
            /// The name NumPy gives it in its files (`<f4`), for machines that store the lowest byte first.
            pub fn numpy(self) -> &'static str {
                match self { $(DType::$name => $numpy,)* }
            }

            /// The type of a NumPy name; none for one that arrays cannot have.
            pub fn from_numpy(name: &str) -> Option<DType> {
                $(if name == $numpy { return Some(DType::$name) })*
                None
            }

            /// The bytes of an element.
            pub fn size(self) -> usize {
                match self { $(DType::$name => size_of::<$type>(),)* }
            }
        }

        /// Runs `$body` with `$elements` bound to the vector of whichever type.
        macro_rules! each {
            ($value:expr, $elements:ident => $body:expr) => {
                match $value { $($crate::array::Elements::$name($elements) => $body,)* }
            };
        }

        /// Runs `$body` with `$type` bound to the Rust type of a [`DType`].
        macro_rules! with_type {
            ($dtype:expr, $alias:ident => $body:expr) => {
                match $dtype { $($crate::array::DType::$name => { type $alias = $type; $body })* }
            };
        }
    };
}

elements! {
    Bool bool, "|b1";
    U8 u8, "|u1";
    I8 i8, "|i1";
    U16 u16, "<u2";
    I16 i16, "<i2";
    U32 u32, "<u4";
    I32 i32, "<i4";
    U64 u64, "<u8";
    I64 i64, "<i8";
    F16 f16, "<f2";
    F32 f32, "<f4";
    F64 f64, "<f8";
}

/// An array of one element type, its last axis fastest. No axes: a single number.
///
/// ```
/// use netcl_data::{Array, DType};
///
/// let array = Array::new(vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// assert_eq!((array.dtype(), array.shape()), (DType::F32, &[2, 3][..]));
/// assert_eq!(array.row(1)?.slice::<f32>(), Some(&[4.0, 5.0, 6.0][..]));
/// assert_eq!(Array::scalar(7i64).shape(), [0usize; 0]);
/// # Ok::<(), netcl_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    shape: Vec<usize>,
    elements: Elements,
}

/// How many elements a shape has; none where the number does not fit.
pub(crate) fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |count, &length| count.checked_mul(length))
}

impl Array {
    /// Elements with a shape.
    ///
    /// # Errors
    /// If the shape asks for another number of elements.
    pub fn new<T: Element>(elements: Vec<T>, shape: &[usize]) -> Result<Array> {
        if count(shape) != Some(elements.len()) {
            return argument(format!("Array: {} elements do not have the shape {shape:?}", elements.len()));
        }
        Ok(Array { shape: shape.to_vec(), elements: T::wrap(elements) })
    }

    /// One number, without axes.
    pub fn scalar<T: Element>(value: T) -> Array {
        Array { shape: Vec::new(), elements: T::wrap(vec![value]) }
    }

    /// Elements along one axis.
    pub fn line<T: Element>(elements: Vec<T>) -> Array {
        Array { shape: vec![elements.len()], elements: T::wrap(elements) }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        fn of<T: Element>(_: &[T]) -> DType {
            T::DTYPE
        }
        each!(&self.elements, elements => of(elements))
    }

    /// The length of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        each!(&self.elements, elements => elements.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, if they are of this type.
    pub fn slice<T: Element>(&self) -> Option<&[T]> {
        T::slice(&self.elements)
    }

    /// The elements, if they are of this type, to be written.
    pub fn slice_mut<T: Element>(&mut self) -> Option<&mut [T]> {
        T::slice_mut(&mut self.elements)
    }

    /// The elements of whichever type, for a `match`.
    pub fn elements(&self) -> &Elements {
        &self.elements
    }

    /// The elements without the shape, for a `match`.
    pub fn into_elements(self) -> Elements {
        self.elements
    }

    /// The elements' memory, as a device or NumPy takes it.
    pub fn bytes(&self) -> &[u8] {
        each!(&self.elements, elements => bytemuck::cast_slice(elements))
    }

    /// An array of a copy of memory, in this machine's order of bytes.
    ///
    /// # Errors
    /// If there are more or fewer bytes than elements of the shape have.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Array> {
        if count(shape).and_then(|count| count.checked_mul(dtype.size())) != Some(bytes.len()) {
            return argument(format!("Array: {} bytes are no {dtype:?} elements of shape {shape:?}", bytes.len()));
        }
        let elements = match dtype {
            // A `bool` may only be 0 or 1; a file may hold anything.
            DType::Bool => Elements::Bool(bytes.iter().map(|&byte| byte != 0).collect()),
            dtype => elements_of(dtype, bytes),
        };
        Ok(Array { shape: shape.to_vec(), elements })
    }

    /// The elements at one place of the first axis.
    ///
    /// # Errors
    /// If there is no first axis, or it is shorter.
    pub fn row(&self, index: usize) -> Result<Array> {
        let Some((&rows, shape)) = self.shape.split_first() else {
            return argument("Array: a single number has no rows");
        };
        if index >= rows {
            return Err(Error::Index { index, len: rows });
        }
        let size = self.len() / rows;
        let elements = each!(&self.elements, all => Element::wrap(all[index * size..(index + 1) * size].to_vec()));
        Ok(Array { shape: shape.to_vec(), elements })
    }

    /// A part of the elements, whatever the shape; less where they end before.
    pub(crate) fn window(&self, start: usize, length: usize) -> Array {
        let (start, end) = (start.min(self.len()), start.saturating_add(length).min(self.len()));
        let elements = each!(&self.elements, all => Element::wrap(all[start..end].to_vec()));
        Array { shape: vec![end - start], elements }
    }

    /// The same elements with another shape.
    ///
    /// # Errors
    /// If it asks for another number of elements.
    pub fn reshape(self, shape: &[usize]) -> Result<Array> {
        each!(self.elements, elements => Array::new(elements, shape))
    }

    /// The elements as float32; whole numbers above 2^24 are rounded.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.elements {
            Elements::F32(x) => x.clone(),
            Elements::Bool(x) => x.iter().map(|&x| f32::from(u8::from(x))).collect(),
            Elements::U8(x) => x.iter().map(|&x| f32::from(x)).collect(),
            Elements::I8(x) => x.iter().map(|&x| f32::from(x)).collect(),
            Elements::U16(x) => x.iter().map(|&x| f32::from(x)).collect(),
            Elements::I16(x) => x.iter().map(|&x| f32::from(x)).collect(),
            Elements::U32(x) => x.iter().map(|&x| x as f32).collect(),
            Elements::I32(x) => x.iter().map(|&x| x as f32).collect(),
            Elements::U64(x) => x.iter().map(|&x| x as f32).collect(),
            Elements::I64(x) => x.iter().map(|&x| x as f32).collect(),
            Elements::F16(x) => x.iter().map(|&x| x.to_f32()).collect(),
            Elements::F64(x) => x.iter().map(|&x| x as f32).collect(),
        }
    }

    /// The elements as whole numbers; none where they are not of a type of whole numbers, or one does not fit.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        Some(match &self.elements {
            Elements::I64(x) => x.clone(),
            Elements::Bool(x) => x.iter().map(|&x| i64::from(x)).collect(),
            Elements::U8(x) => x.iter().map(|&x| i64::from(x)).collect(),
            Elements::I8(x) => x.iter().map(|&x| i64::from(x)).collect(),
            Elements::U16(x) => x.iter().map(|&x| i64::from(x)).collect(),
            Elements::I16(x) => x.iter().map(|&x| i64::from(x)).collect(),
            Elements::U32(x) => x.iter().map(|&x| i64::from(x)).collect(),
            Elements::I32(x) => x.iter().map(|&x| i64::from(x)).collect(),
            Elements::U64(x) => x.iter().map(|&x| i64::try_from(x).ok()).collect::<Option<_>>()?,
            Elements::F16(_) | Elements::F32(_) | Elements::F64(_) => return None,
        })
    }

    /// Arrays of one type and shape, joined along a new first axis.
    ///
    /// # Errors
    /// If there are none, or they differ; the message names the first that does.
    pub fn stack(arrays: &[Array]) -> Result<Array> {
        fn gather<T: Element>(arrays: &[Array], size: usize) -> Elements {
            let mut all = Vec::with_capacity(arrays.len() * size);
            for elements in arrays.iter().filter_map(Array::slice::<T>) {
                all.extend_from_slice(elements);
            }
            T::wrap(all)
        }
        let Some(first) = arrays.first() else {
            return argument("stack: there are no arrays to stack");
        };
        let wrong = |array: &&Array| array.shape != first.shape || array.dtype() != first.dtype();
        if let Some((at, array)) = arrays.iter().enumerate().find(|(_, array)| wrong(array)) {
            let what = format!(
                "stack: sample 0 of the batch is {:?} {:?}, sample {at} is {:?} {:?}; bring them to one type and shape \
                 with a transform, or join them with your own collate function",
                first.dtype(),
                first.shape,
                array.dtype(),
                array.shape
            );
            return Err(Error::Argument { what });
        }
        let shape = [&[arrays.len()], &first.shape[..]].concat();
        Ok(Array { shape, elements: with_type!(first.dtype(), T => gather::<T>(arrays, first.len())) })
    }
}

/// Elements of any type but `bool` from their memory.
fn elements_of(dtype: DType, bytes: &[u8]) -> Elements {
    macro_rules! copy {
        ($($name:ident)*) => {
            match dtype {
                DType::Bool => Elements::Bool(Vec::new()),
                $(DType::$name => Elements::$name(bytemuck::allocation::pod_collect_to_vec(bytes)),)*
            }
        };
    }
    copy!(U8 I8 U16 I16 U32 I32 U64 I64 F16 F32 F64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_out_and_comes_back() {
        let array = Array::new(vec![1i32, -2, 3, 4], &[2, 2]).unwrap();
        assert_eq!(array.bytes()[4..8], (-2i32).to_le_bytes());
        assert_eq!(Array::from_bytes(DType::I32, &[2, 2], array.bytes()).unwrap(), array);
        let flags = Array::from_bytes(DType::Bool, &[3], &[0, 1, 7]).unwrap();
        assert_eq!(flags.slice::<bool>(), Some(&[false, true, true][..]));
        let text = Array::from_bytes(DType::F32, &[2], &[0; 7]).unwrap_err().to_string();
        assert_eq!(text, "Array: 7 bytes are no F32 elements of shape [2]");
        assert!(Array::from_bytes(DType::F64, &[usize::MAX, 2], &[]).is_err());
    }

    #[test]
    fn types_have_the_names_that_numpy_gives_them() {
        for (name, dtype) in [("<f4", DType::F32), ("|u1", DType::U8), ("|b1", DType::Bool), ("<i8", DType::I64)] {
            assert_eq!(DType::from_numpy(name), Some(dtype), "{name}");
        }
        for name in [">f4", "<c8", "|O", "<U3", "", "f4", "é1"] {
            assert_eq!(DType::from_numpy(name), None, "{name}");
        }
        assert_eq!((DType::F16.size(), DType::I64.size(), DType::F64.numpy()), (2, 8, "<f8"));
    }

    #[test]
    fn rows_and_stacks_are_inverse() {
        let array = Array::new((0u16..12).collect(), &[3, 2, 2]).unwrap();
        let rows: Vec<Array> = (0..3).map(|i| array.row(i).unwrap()).collect();
        assert_eq!(Array::stack(&rows).unwrap(), array);
        assert!(array.row(3).unwrap_err().to_string().contains("3"));
        assert!(Array::scalar(1u8).row(0).is_err());
        assert!(Array::stack(&[]).is_err());
        let text = Array::stack(&[Array::scalar(1u8), Array::scalar(1i8)]).unwrap_err().to_string();
        assert!(text.contains("sample 0 of the batch is U8 [], sample 1 is I8 []"), "{text}");
    }

    #[test]
    fn numbers_convert_where_they_fit() {
        assert_eq!(Array::line(vec![true, false]).to_f32(), [1.0, 0.0]);
        assert_eq!(Array::line(vec![f16::from_f32(1.5)]).to_f32(), [1.5]);
        assert_eq!(Array::line(vec![3u64]).to_i64(), Some(vec![3]));
        assert_eq!(Array::line(vec![u64::MAX]).to_i64(), None);
        assert_eq!(Array::line(vec![1f32]).to_i64(), None);
    }
}
