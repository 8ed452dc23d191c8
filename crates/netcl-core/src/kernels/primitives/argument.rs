//! Values for a kernel's parameters, checked against their declarations.

use std::sync::Arc;

use half::f16;
use smallvec::SmallVec;

use super::signature::{ElementType, Parameter, ParameterKind, ScalarType};
use crate::backend::Queue;
use crate::backend::opencl::{Buffer, ClMemory};
use crate::error::{Error, Result};
use crate::kernels::launch::{Access, Arg, Scalar};
use crate::storage::Storage;
use crate::tensor::Tensor;

/// A value for one parameter of a kernel.
///
/// Numbers are converted to the parameter's declared type, and refused where that would change them in kind (a float for an
/// integer) or where they do not fit. [`KernelArg::Typed`] floats must have the declared type already.
///
/// ```
/// use netcl_core::kernels::primitives::KernelArg;
/// let args = [KernelArg::from(3), KernelArg::from(0.5), KernelArg::Local(1024), KernelArg::Null];
/// assert!(matches!(args[0], KernelArg::Integer(3)));
/// ```
#[derive(Clone, Debug)]
pub enum KernelArg {
    /// A dense tensor of the kernel's device, for `__global` and `__constant` pointers to its element type.
    Tensor(Tensor),
    /// A buffer of the kernel's context, for pointers to anything.
    Buffer(Buffer),
    /// The memory of a tensor without its shape, for pointers to anything.
    Storage(Arc<Storage>),
    /// A whole number.
    Integer(i128),
    /// A float.
    Float(f64),
    /// A number of a type of its own, in its bytes.
    Typed(ScalarType, SmallVec<[u8; 8]>),
    /// The numbers of a vector parameter such as `float4`.
    Vector(Vec<KernelArg>),
    /// So many bytes of local memory, for `__local` pointers.
    Local(usize),
    /// A pointer to nothing.
    Null,
}

impl From<&Tensor> for KernelArg {
    fn from(tensor: &Tensor) -> Self {
        KernelArg::Tensor(tensor.clone())
    }
}

impl From<&Buffer> for KernelArg {
    fn from(buffer: &Buffer) -> Self {
        KernelArg::Buffer(buffer.clone())
    }
}

macro_rules! from_number {
    ($variant:ident: $($ty:ty),*) => {
        $(impl From<$ty> for KernelArg {
            fn from(value: $ty) -> Self {
                KernelArg::$variant(value as _)
            }
        })*
    };
}
from_number!(Integer: i8, u8, i16, u16, i32, u32, i64, u64, isize, usize);
from_number!(Float: f32, f64);

impl KernelArg {
    /// What it is, for messages.
    fn describe(&self) -> String {
        match self {
            KernelArg::Tensor(tensor) => format!("a {} tensor of shape {}", tensor.dtype(), tensor.shape()),
            KernelArg::Buffer(buffer) => format!("a buffer of {} bytes", buffer.size()),
            KernelArg::Storage(storage) => format!("memory of {} bytes", storage.nbytes()),
            KernelArg::Integer(value) => format!("the whole number {value}"),
            KernelArg::Float(value) => format!("the float {value}"),
            KernelArg::Typed(ty, _) => format!("a {} number", ty.numpy_name()),
            KernelArg::Vector(values) => format!("{} numbers", values.len()),
            KernelArg::Local(bytes) => format!("{bytes} bytes of local memory"),
            KernelArg::Null => "a null pointer".to_owned(),
        }
    }

    /// The launch argument for a parameter, or an error that names the parameter.
    pub(super) fn fit(&self, kernel: &str, index: usize, parameter: &Parameter, queue: &Queue) -> Result<Arg> {
        let wrong = |why: String| Error::KernelArgument {
            kernel: kernel.to_owned(),
            index,
            parameter: parameter.declaration.clone(),
            why,
            out_of_range: false,
        };
        let misfit = |misfit: Misfit| match (misfit, wrong(String::new())) {
            (Misfit::Range(why), Error::KernelArgument { kernel, index, parameter, .. }) => {
                Error::KernelArgument { kernel, index, parameter, why, out_of_range: true }
            }
            (Misfit::Type(why) | Misfit::Range(why), _) => wrong(why),
        };
        let unfit = |hint: &str| wrong(format!("it cannot take {}; {hint}", self.describe()));
        match (&parameter.kind, self) {
            (ParameterKind::Memory { read_only, element }, KernelArg::Tensor(tensor)) => {
                check_tensor(tensor, element, queue).map_err(|why| wrong(format!("{}: {why}", self.describe())))?;
                Ok(tensor_arg(tensor, access(*read_only)))
            }
            (ParameterKind::Memory { read_only, .. }, KernelArg::Buffer(buffer)) => {
                check_buffer(buffer, queue).map_err(wrong)?;
                Ok(buffer_arg(buffer, access(*read_only)))
            }
            (ParameterKind::Memory { read_only, .. }, KernelArg::Storage(storage)) => {
                check_storage(storage, queue).map_err(wrong)?;
                Ok(Arg::Buffer(storage.clone(), access(*read_only)))
            }
            (ParameterKind::Memory { .. } | ParameterKind::Unknown, KernelArg::Null) => Ok(Arg::Null),
            (ParameterKind::Memory { .. }, _) => Err(unfit("pass a tensor, a buffer or None")),

            (ParameterKind::Local | ParameterKind::Unknown, KernelArg::Local(bytes)) => Ok(Arg::Local(*bytes)),
            (ParameterKind::Local, _) => Err(unfit("pass LocalMemory(nbytes)")),

            (ParameterKind::Value(ElementType::Numbers(ty, width)), KernelArg::Vector(values)) if *width > 1 => {
                if values.len() != *width {
                    return Err(wrong(format!("it takes {width} numbers, {} were given", values.len())));
                }
                let mut bytes = SmallVec::new();
                for value in values {
                    bytes.extend(value.encode(*ty).map_err(misfit)?);
                }
                // A vector of three occupies the memory of four.
                bytes.resize(width.next_power_of_two() * ty.size(), 0);
                Ok(Arg::Scalar(Scalar::Bytes(bytes)))
            }
            (ParameterKind::Value(ElementType::Numbers(ty, 1)), _) => {
                Ok(Arg::Scalar(scalar(*ty, self.encode(*ty).map_err(misfit)?)))
            }
            (ParameterKind::Value(ElementType::Numbers(_, width)), _) => {
                Err(unfit(&format!("pass a tuple of {width} numbers")))
            }
            // A type definition may stand for any type, so only a number that knows its own type will do.
            (ParameterKind::Value(ElementType::Other(_)) | ParameterKind::Unknown, KernelArg::Typed(ty, bytes)) => {
                Ok(Arg::Scalar(scalar(*ty, bytes.iter().copied().collect())))
            }
            (ParameterKind::Value(ElementType::Other(_)), _) => {
                Err(unfit("its type is not a plain one, so pass a NumPy scalar of the very type"))
            }

            (ParameterKind::Unknown, KernelArg::Tensor(tensor)) => {
                check_tensor(tensor, &ElementType::Other("void".to_owned()), queue).map_err(wrong)?;
                Ok(tensor_arg(tensor, Access::Write))
            }
            (ParameterKind::Unknown, KernelArg::Buffer(buffer)) => {
                check_buffer(buffer, queue).map_err(wrong)?;
                Ok(buffer_arg(buffer, Access::Write))
            }
            (ParameterKind::Unknown, KernelArg::Storage(storage)) => {
                check_storage(storage, queue).map_err(wrong)?;
                Ok(Arg::Buffer(storage.clone(), Access::Write))
            }
            (ParameterKind::Unknown, _) => {
                Err(unfit("the driver does not tell its type, so pass a NumPy scalar of the very type"))
            }
        }
    }

    /// The bytes of a number as another type, or why it cannot be one.
    fn encode(&self, ty: ScalarType) -> Result<SmallVec<[u8; 16]>, Misfit> {
        let name = ty.name();
        match self {
            KernelArg::Typed(own, bytes) if *own == ty => Ok(bytes.iter().copied().collect()),
            KernelArg::Typed(own, bytes) if !ty.is_float() && !own.is_float() && bytes.len() == own.size() => {
                KernelArg::Integer(decode_integer(bytes, *own)).encode(ty)
            }
            KernelArg::Typed(own, _) => Err(Misfit::Type(format!(
                "it cannot take a {} number; pass numpy.{}(...) or a plain Python number, which is converted",
                own.numpy_name(),
                ty.numpy_name()
            ))),
            KernelArg::Integer(value) if ty.is_float() => encode_float(*value as f64, ty),
            KernelArg::Integer(value) => {
                encode_integer(*value, ty).ok_or_else(|| Misfit::Range(format!("{value} does not fit the type {name}")))
            }
            KernelArg::Float(value) if ty.is_float() => encode_float(*value, ty),
            KernelArg::Float(value) => Err(Misfit::Type(format!(
                "it cannot take the float {value}; pass a whole number, int({value}) for example"
            ))),
            other => Err(Misfit::Type(format!("it cannot take {}; pass a number", other.describe()))),
        }
    }
}

/// Why a number cannot be of a type.
enum Misfit {
    Type(String),
    Range(String),
}

fn access(read_only: bool) -> Access {
    if read_only { Access::Read } else { Access::Write }
}

fn tensor_arg(tensor: &Tensor, access: Access) -> Arg {
    // A tensor without elements has no memory either.
    if tensor.size() == 0 { Arg::Null } else { Arg::Buffer(tensor.storage().clone(), access) }
}

fn buffer_arg(buffer: &Buffer, access: Access) -> Arg {
    Arg::Buffer(Arc::new(Storage::opencl(ClMemory::foreign(buffer.clone()))), access)
}

fn check_tensor(tensor: &Tensor, element: &ElementType, queue: &Queue) -> Result<(), String> {
    if let ElementType::Numbers(ty, _) = element
        && !ty.stores(tensor.dtype())
    {
        return Err(format!(
            "its elements are stored as {}, the kernel reads {}; cast the tensor or change the kernel",
            tensor.dtype().cl_type(),
            ty.name()
        ));
    }
    if !queue.same_device(tensor.queue()) {
        return Err(format!(
            "it lives on {}, the kernel runs on {}; move it with t.to(queue)",
            tensor.queue().device_name(),
            queue.device_name()
        ));
    }
    if !tensor.layout().is_contiguous() {
        return Err(
            "it is a view whose elements do not lie densely in row-major order; make it contiguous first".to_owned()
        );
    }
    if tensor.layout().offset() != 0 && tensor.size() != 0 {
        return Err(format!(
            "it is a view that begins at element {} of its memory, and a kernel's pointer sees the memory from its start; \
             copy the view into a tensor of its own, or pass a sub-buffer",
            tensor.layout().offset()
        ));
    }
    Ok(())
}

fn check_storage(storage: &Storage, queue: &Queue) -> Result<(), String> {
    match (storage.cl_memory(), queue) {
        (Some(memory), _) => check_buffer(&memory.buffer().map_err(|error| error.to_string())?, queue),
        (None, Queue::Cpu(_)) => Ok(()),
        (None, Queue::OpenCl(_)) => Err("it is no OpenCL memory; move the tensor with t.to(queue)".to_owned()),
    }
}

fn check_buffer(buffer: &Buffer, queue: &Queue) -> Result<(), String> {
    match queue {
        Queue::OpenCl(stream) if buffer.context() == stream.context() => Ok(()),
        Queue::OpenCl(_) => Err("the buffer belongs to another context; allocate it in the queue's own".to_owned()),
        Queue::Cpu(_) => Err("an OpenCL buffer cannot be used on the native CPU's queue; pass its tensors".to_owned()),
    }
}

/// The seam's own names for the types it knows, so that print-outs show numbers; bytes for the rest.
fn scalar(ty: ScalarType, bytes: SmallVec<[u8; 16]>) -> Scalar {
    let four = || bytes[..].try_into().unwrap_or_default();
    let eight = || bytes[..].try_into().unwrap_or_default();
    match (ty, bytes.len()) {
        (ScalarType::Int, 4) => Scalar::I32(i32::from_ne_bytes(four())),
        (ScalarType::UInt, 4) => Scalar::U32(u32::from_ne_bytes(four())),
        (ScalarType::Float, 4) => Scalar::F32(f32::from_ne_bytes(four())),
        (ScalarType::Long, 8) => Scalar::I64(i64::from_ne_bytes(eight())),
        (ScalarType::ULong, 8) => Scalar::U64(u64::from_ne_bytes(eight())),
        (ScalarType::Double, 8) => Scalar::F64(f64::from_ne_bytes(eight())),
        _ => Scalar::Bytes(bytes),
    }
}

fn encode_integer(value: i128, ty: ScalarType) -> Option<SmallVec<[u8; 16]>> {
    Some(match ty {
        ScalarType::Char => i8::try_from(value).ok()?.to_ne_bytes()[..].into(),
        ScalarType::UChar => u8::try_from(value).ok()?.to_ne_bytes()[..].into(),
        ScalarType::Short => i16::try_from(value).ok()?.to_ne_bytes()[..].into(),
        ScalarType::UShort => u16::try_from(value).ok()?.to_ne_bytes()[..].into(),
        ScalarType::Int => i32::try_from(value).ok()?.to_ne_bytes()[..].into(),
        ScalarType::UInt => u32::try_from(value).ok()?.to_ne_bytes()[..].into(),
        ScalarType::Long => i64::try_from(value).ok()?.to_ne_bytes()[..].into(),
        ScalarType::ULong => u64::try_from(value).ok()?.to_ne_bytes()[..].into(),
        ScalarType::Half | ScalarType::Float | ScalarType::Double => return None,
    })
}

/// A whole number from its bytes, of as many as its type has.
fn decode_integer(bytes: &[u8], ty: ScalarType) -> i128 {
    let signed = matches!(ty, ScalarType::Char | ScalarType::Short | ScalarType::Int | ScalarType::Long);
    let mut wide = [0u8; 16];
    let at = if cfg!(target_endian = "little") { 0 } else { 16 - bytes.len() };
    wide[at..at + bytes.len()].copy_from_slice(bytes);
    let value = i128::from_ne_bytes(wide);
    let beyond = 1i128 << (8 * bytes.len());
    if signed && value >= beyond / 2 { value - beyond } else { value }
}

fn encode_float(value: f64, ty: ScalarType) -> Result<SmallVec<[u8; 16]>, Misfit> {
    let (bytes, infinite): (SmallVec<[u8; 16]>, bool) = match ty {
        ScalarType::Half => {
            let half = f16::from_f64(value);
            (half.to_ne_bytes()[..].into(), half.is_infinite())
        }
        ScalarType::Float => ((value as f32).to_ne_bytes()[..].into(), (value as f32).is_infinite()),
        _ => (value.to_ne_bytes()[..].into(), value.is_infinite()),
    };
    if infinite && value.is_finite() {
        return Err(Misfit::Range(format!("{value:e} is too large for the type {}", ty.name())));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::manager;

    fn fit(declaration: &str, arg: impl Into<KernelArg>) -> Result<Arg> {
        arg.into().fit("k", 2, &Parameter::parse(declaration), &manager().cpu().queue)
    }

    fn text(declaration: &str, arg: impl Into<KernelArg>) -> String {
        fit(declaration, arg).err().unwrap().to_string()
    }

    #[test]
    fn numbers_become_the_declared_type() {
        assert!(matches!(fit("int n", 7).unwrap(), Arg::Scalar(Scalar::I32(7))));
        assert!(matches!(fit("const ulong n", 7).unwrap(), Arg::Scalar(Scalar::U64(7))));
        assert!(matches!(fit("float x", 7).unwrap(), Arg::Scalar(Scalar::F32(7.0))));
        assert!(matches!(fit("double x", 0.5).unwrap(), Arg::Scalar(Scalar::F64(0.5))));
        let Arg::Scalar(Scalar::Bytes(bytes)) = fit("half x", 1.0).unwrap() else { panic!("half") };
        assert_eq!(bytes[..], f16::ONE.to_ne_bytes());
        let Arg::Scalar(Scalar::Bytes(bytes)) = fit("uchar x", 255).unwrap() else { panic!("uchar") };
        assert_eq!(bytes[..], [255]);
        let three = KernelArg::Vector(vec![1.into(), 2.into(), 3.into()]);
        let Arg::Scalar(Scalar::Bytes(bytes)) = fit("int3 v", three).unwrap() else { panic!("int3") };
        assert_eq!(bytes.len(), 16);
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused_with_the_parameter() {
        assert!(text("int n", 1i64 << 31).starts_with("kernel k, argument 2 (int n): 2147483648 does not fit"));
        assert_eq!(fit("int n", 1i64 << 31).err().unwrap().kind(), crate::ErrorKind::Value);
        assert_eq!(fit("int n", 0.5).err().unwrap().kind(), crate::ErrorKind::Type);
        assert!(text("uint n", -1).contains("-1 does not fit the type uint"));
        assert!(text("int n", 0.5).contains("pass a whole number"));
        assert!(text("float x", 1e300).contains("too large for the type float"));
        assert!(fit("float x", f64::INFINITY).is_ok());
        // Whole numbers of one type become those of another, where they fit.
        let small = KernelArg::Typed(ScalarType::Int, (-3i32).to_ne_bytes()[..].into());
        assert_eq!(small.encode(ScalarType::Long).ok().unwrap()[..], (-3i64).to_ne_bytes());
        assert!(matches!(small.encode(ScalarType::ULong), Err(Misfit::Range(_))));
        assert!(matches!(small.encode(ScalarType::Float), Err(Misfit::Type(_))));
        let large = KernelArg::Typed(ScalarType::ULong, u64::MAX.to_ne_bytes()[..].into());
        assert_eq!(large.encode(ScalarType::ULong).ok().unwrap()[..], u64::MAX.to_ne_bytes());
        assert!(matches!(large.encode(ScalarType::Long), Err(Misfit::Range(_))));
        let double = KernelArg::Typed(ScalarType::Double, 0.5f64.to_ne_bytes()[..].into());
        assert!(text("float x", double.clone()).contains("numpy.float32"));
        assert!(matches!(fit("double x", double).unwrap(), Arg::Scalar(Scalar::F64(0.5))));
        assert!(text("float4 v", 1.0).contains("a tuple of 4 numbers"));
        assert!(text("float4 v", KernelArg::Vector(vec![1.into()])).contains("takes 4 numbers, 1 were given"));
        assert!(text("real x", 1.0).contains("NumPy scalar"));
    }

    #[test]
    fn kinds_are_not_mixed_up() {
        assert!(text("__global float* x", 3).contains("pass a tensor, a buffer or None"));
        assert!(text("__local float* x", 3).contains("LocalMemory"));
        assert!(matches!(fit("__local float* x", KernelArg::Local(64)).unwrap(), Arg::Local(64)));
        assert!(matches!(fit("__global float* x", KernelArg::Null).unwrap(), Arg::Null));
        assert!(text("int n", KernelArg::Null).contains("a null pointer"));
        let tensor = Tensor::from_shape(&manager().cpu().queue, [2], crate::dtype::DType::F64).unwrap();
        assert!(text("__global float* x", &tensor).contains("a float64 tensor of shape"));
        assert!(fit("__global double* x", &tensor).is_ok() && fit("__global void* x", &tensor).is_ok());
    }
}
