//! What launches are given: memory, numbers, and slots for numbers that change from run to run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::expr::opencl::IndexWidth;
use crate::dtype::DType;
use crate::storage::Storage;

/// One argument of a launch.
#[derive(Clone)]
pub enum Arg {
    /// Memory, and what is done to it.
    Buffer(Arc<Storage>, Access),
    /// A number.
    Scalar(Scalar),
    /// So many bytes of local memory; OpenCL only.
    Local(usize),
    /// A pointer to nothing; OpenCL only.
    Null,
}

impl IndexWidth {
    /// A count or a position as an argument of the unsigned type.
    pub fn unsigned(self, value: usize) -> Arg {
        Arg::Scalar(match self {
            IndexWidth::Bits32 => Scalar::U32(value as u32),
            IndexWidth::Bits64 => Scalar::U64(value as u64),
        })
    }

    /// A stride as an argument of the signed type.
    pub fn signed(self, value: isize) -> Arg {
        Arg::Scalar(match self {
            IndexWidth::Bits32 => Scalar::I32(value as i32),
            IndexWidth::Bits64 => Scalar::I64(value as i64),
        })
    }
}

/// What a launch does to one of its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Writes it, possibly after reading: the storage's version counter is raised.
    Write,
}

/// A number handed to a kernel, of the kernel parameter's exact type.
#[derive(Clone, Debug)]
pub enum Scalar {
    /// `int`
    I32(i32),
    /// `uint`
    U32(u32),
    /// `long`
    I64(i64),
    /// `ulong`
    U64(u64),
    /// `float`
    F32(f32),
    /// `double`
    F64(f64),
    /// Any other plain value by its bytes: narrow integers, `half`, vectors; OpenCL only.
    Bytes(SmallVec<[u8; 16]>),
    /// A `float` that changes between runs of the same recorded launch: learning rate, step count, loss scale.
    SlotF32(Arc<Slot>),
    /// The same as a `double`.
    SlotF64(Arc<Slot>),
    /// A `ulong` that changes between runs of the same recorded launch: a random generator's offset.
    SlotU64(Arc<Slot>),
}

/// A number that lives outside the launches that use it, so that a recorded launch sees its value of the moment.
#[derive(Debug, Default)]
pub struct Slot(AtomicU64);

impl Slot {
    /// A slot holding a float.
    pub fn float(value: f64) -> Arc<Slot> {
        Arc::new(Slot(AtomicU64::new(value.to_bits())))
    }

    /// A slot holding a whole number.
    pub fn integer(value: u64) -> Arc<Slot> {
        Arc::new(Slot(AtomicU64::new(value)))
    }

    /// Changes the float.
    pub fn set_float(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Release);
    }

    /// Changes the whole number.
    pub fn set_integer(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// The float of the moment.
    pub fn get_float(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Acquire))
    }

    /// The whole number of the moment.
    pub fn get_integer(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// A run-time scalar of an expression: a value, or a slot whose value is read at each run.
#[derive(Clone, Debug)]
pub enum Number {
    /// A value.
    Value(f64),
    /// A value that changes between runs of a recorded launch.
    Slot(Arc<Slot>),
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Number::Value(value)
    }
}

impl Number {
    /// The scalar of a launch whose kernel computes in this type.
    pub fn scalar(&self, compute: DType) -> Scalar {
        match (self, compute) {
            (Number::Value(value), DType::F64) => Scalar::F64(*value),
            (Number::Value(value), _) => Scalar::F32(*value as f32),
            (Number::Slot(slot), DType::F64) => Scalar::SlotF64(slot.clone()),
            (Number::Slot(slot), _) => Scalar::SlotF32(slot.clone()),
        }
    }

    /// [`Number::scalar`] as an argument.
    pub fn arg(&self, compute: DType) -> Arg {
        Arg::Scalar(self.scalar(compute))
    }
}
