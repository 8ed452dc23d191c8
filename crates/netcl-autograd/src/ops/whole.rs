//! What operations do with whole numbers and truth values: promotion as in PyTorch, exact arithmetic, no gradients.
//!
//! Truth values are bytes of 0 and 1 ([`DType::U8`]). Of mixed operands the float ones decide, then the wider of the whole ones. What
//! whole numbers do not have (`exp`, `div`, ...) is computed in float32.

use netcl_core::dtype::DType;
use netcl_core::tensor::Tensor as Raw;
use netcl_ops::Axes;
use netcl_ops::integer::{self, IntegerOp, integer};
use smallvec::SmallVec;

use super::elementwise::{Operand, apply};
use super::reduce::reduction;
use crate::error::Result;
use crate::tensor::Tensor;
use crate::trace;

/// Whether an operation of these operands is one of this file.
pub(super) fn concerned(operands: &[Operand<'_>]) -> bool {
    operands.iter().any(|operand| operand.tensor().is_some_and(|tensor| !tensor.dtype().is_float()))
}

/// An elementwise operation some of whose operands are whole numbers or truth values.
pub(super) fn elementwise(name: &str, operands: &[Operand<'_>], params: &[f64]) -> Result<Tensor> {
    // The condition of `where` is a truth value beside operands of any kind.
    let decisive = if name == "where" { &operands[1..] } else { operands };
    let float = decisive.iter().find_map(|o| o.tensor().map(|t| t.dtype()).filter(|dtype| dtype.is_float()));
    let number = decisive.iter().any(|operand| matches!(operand, Operand::Number(_)));
    let exact = IntegerOp::of_name(name);
    match (float, exact) {
        (None, Some(op)) if !number => exactly(op, decisive, operands),
        (None, None) if !number => match (name, operands, params) {
            ("floor" | "ceil" | "round" | "trunc", [Operand::Tensor(x)], _) => Ok((*x).clone()),
            ("relu", [x], _) => elementwise("maximum", &[*x, Operand::Whole(0)], &[]),
            ("clamp", [x], &[min, max]) => {
                // Bounds that are no whole numbers give floats, as operands do.
                let bound = |b: f64| if b.fract() == 0.0 { Operand::Whole(b as i64) } else { Operand::Number(b) };
                let raised = apply("maximum", &[*x, bound(min.max(i64::MIN as f64))], &[])?;
                apply("minimum", &[(&raised).into(), bound(max.min(i64::MAX as f64))], &[])
            }
            _ => in_floats(name, operands, params, DType::F32),
        },
        (float, _) => in_floats(name, operands, params, float.unwrap_or(DType::F32)),
    }
}

fn in_floats(name: &str, operands: &[Operand<'_>], params: &[f64], dtype: DType) -> Result<Tensor> {
    let cast = |operand: &Operand<'_>| match operand.tensor().filter(|tensor| !tensor.dtype().is_float()) {
        Some(tensor) => Ok(Some(Tensor::from(trace::cast(tensor.raw(), dtype)?))),
        None => Ok(None),
    };
    let made: SmallVec<[Option<Tensor>; 3]> = operands.iter().map(cast).collect::<Result<_>>()?;
    let operands: SmallVec<[Operand<'_>; 3]> =
        operands.iter().zip(&made).map(|(operand, made)| made.as_ref().map_or(*operand, Operand::Tensor)).collect();
    apply(name, &operands, params)
}

/// `decisive`: the operands whose dtypes decide the result's.
fn exactly(op: IntegerOp, decisive: &[Operand<'_>], operands: &[Operand<'_>]) -> Result<Tensor> {
    let widest = decisive.iter().filter_map(|operand| operand.tensor().map(|tensor| tensor.dtype())).max();
    let has_number = decisive.iter().any(|operand| matches!(operand, Operand::Whole(_)));
    let truth = widest == Some(DType::U8) && !has_number;
    let (op, dtype) = match op {
        op if op.is_predicate() => (op, DType::U8),
        // Truth values stay such where the result is one.
        IntegerOp::Add if truth => (IntegerOp::Or, DType::U8),
        IntegerOp::Not if truth => (IntegerOp::LogicalNot, DType::U8),
        IntegerOp::Sub | IntegerOp::Neg if truth => {
            let what = "truth values cannot be subtracted; use logical_xor or logical_not, or whole numbers (x.long())";
            return Err(netcl_core::Error::argument(op.name(), what).into());
        }
        IntegerOp::Mul
        | IntegerOp::And
        | IntegerOp::Or
        | IntegerOp::Xor
        | IntegerOp::Maximum
        | IntegerOp::Minimum
        | IntegerOp::Select
            if truth =>
        {
            (op, DType::U8)
        }
        op => (op, if widest == Some(DType::I32) { DType::I32 } else { DType::I64 }),
    };
    let Some(near) = operands.iter().find_map(Operand::tensor) else {
        return Err(netcl_core::Error::argument(op.name(), "at least one operand must be a tensor").into());
    };
    if let (IntegerOp::FloorDivide | IntegerOp::Remainder, Some(Operand::Whole(0))) = (op, operands.get(1)) {
        return Err(netcl_core::Error::argument(op.name(), "division of whole numbers by 0").into());
    }
    let tensors = operands.iter().map(|operand| match operand {
        Operand::Tensor(tensor) if tensor.dtype().is_float() => truth_of(tensor),
        Operand::Tensor(tensor) => Ok(tensor.raw().clone()),
        Operand::Whole(number) => Ok(Raw::from_host(near.queue(), &[*number], ())?),
        Operand::Number(number) => Ok(Raw::from_host(near.queue(), &[*number as i64], ())?),
    });
    let tensors: SmallVec<[Raw; 3]> = tensors.collect::<Result<_>>()?;
    let out = integer(op, &tensors.iter().collect::<SmallVec<[&Raw; 3]>>(), dtype)?;
    trace::note(op.name(), &tensors, &[&out]);
    Ok(out.into())
}

/// Whether each element is not 0.
fn truth_of(x: &Tensor) -> Result<Raw> {
    Ok(apply("ne", &[x.into(), Operand::Whole(0)], &[])?.raw().clone())
}

/// The values in another dtype where one of the two is no float type: nothing to differentiate.
pub(super) fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::U8 => truth_of(x).map(Into::into),
        _ => Ok(trace::cast(x.raw(), dtype)?.into()),
    }
}

/// A reduction of whole numbers or truth values by its name.
pub(super) fn reduce(name: &'static str, x: &Tensor, axes: Axes<'_>, keepdims: bool) -> Result<Tensor> {
    // Sums count in int64; the largest of some numbers is one of them.
    let (op, empty, dtype) = match name {
        "sum" => (IntegerOp::Add, Some(0), DType::I64),
        "prod" => (IntegerOp::Mul, Some(1), DType::I64),
        "max" => (IntegerOp::Maximum, None, x.dtype()),
        "min" => (IntegerOp::Minimum, None, x.dtype()),
        "any" => (IntegerOp::Or, Some(0), DType::U8),
        _ => (IntegerOp::And, Some(1), DType::U8),
    };
    if empty.is_none() && x.size() == 0 {
        return Err(netcl_core::Error::argument(name, format!("no elements in shape {}", x.shape())).into());
    }
    let values = if dtype == DType::U8 { cast(x, DType::U8)?.raw().clone() } else { x.raw().clone() };
    let out = integer::reduce(op, &values, axes, keepdims, empty.unwrap_or(0))?.cast(dtype)?;
    trace::settings(name, || reduction(axes, keepdims));
    trace::note(name, [&values], &[&out]);
    Ok(out.into())
}

/// The result of an operation that only floats have, for whole numbers or truth values: exact up to 2^53.
pub(super) fn through_floats(x: &Tensor, operation: impl FnOnce(&Tensor, DType) -> Result<Tensor>) -> Result<Tensor> {
    let wide = if x.dtype() == DType::U8 { DType::F32 } else { DType::F64 };
    let result = operation(&trace::cast(x.raw(), wide)?.into(), wide)?;
    cast(&result, x.dtype())
}

/// Each whole number combined with all before it along an axis.
pub(super) fn scan(op: IntegerOp, x: &Tensor, axis: isize) -> Result<Tensor> {
    let out = integer::scan(op, x.raw(), axis)?;
    trace::settings("cumsum", || [("axis", axis.into())]);
    trace::note(if op == IntegerOp::Add { "cumsum" } else { "cumprod" }, [x.raw()], &[&out]);
    Ok(out.into())
}
