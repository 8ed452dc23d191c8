//! Products: MatMul, Gemm, Einsum; determinants.

use netcl_nn::autograd::Result;
use netcl_nn::autograd::ops::einsum::einsum as contract;
use netcl_nn::autograd::ops::linalg;

use super::{Op, Table, one};
use crate::array::{Array, bad, broadcast, count};
use crate::kind::Kind;
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[("Det", det as Op), ("Einsum", einsum), ("Gemm", gemm), ("MatMul", matmul)];

fn matmul(call: &Call<'_>) -> Result<Vec<Value>> {
    if call.kind()?.is_float() {
        return one(call.tensor(0)?.matmul(&call.tensor(1)?)?);
    }
    let kind = call.kind()?;
    one(whole_product(&call.array(0)?, &call.array(1)?, kind)?)
}

/// A product of whole numbers, exact and then wrapped.
pub(super) fn whole_product(a: &Array, b: &Array, kind: Kind) -> Result<Array> {
    let (left, right) = (a.shape.len() == 1, b.shape.len() == 1);
    let a = if left { a.clone().reshaped(vec![1, a.len()])? } else { a.clone() };
    let b = if right { b.clone().reshaped(vec![b.len(), 1])? } else { b.clone() };
    let (&[.., m, k], &[.., k2, n]) = (&a.shape[..], &b.shape[..]) else { return Err(bad("expected matrices")) };
    if k != k2 {
        return Err(bad(format!("shapes {:?} and {:?} have no product", a.shape, b.shape)));
    }
    let batch = broadcast(&a.shape[..a.shape.len() - 2], &b.shape[..b.shape.len() - 2])?;
    let batches = count(&batch)?;
    let x = a.expanded(&[&batch[..], &[m, k]].concat())?;
    let y = b.expanded(&[&batch[..], &[k, n]].concat())?;
    let widen = |array: &Array| -> Result<Vec<i128>> {
        Ok(array.to_ints()?.into_iter().map(|v| array.kind.widen(v)).collect())
    };
    let (x, y) = (widen(&x)?, widen(&y)?);
    let mut out = vec![0; count(&[batches, m, n])?];
    for (place, out) in out.iter_mut().enumerate() {
        let (at, i, j) = (place / (m * n), place / n % m, place % n);
        let products = (0..k).map(|l| x[(at * m + i) * k + l].wrapping_mul(y[(at * k + l) * n + j]));
        *out = kind.wrap(products.fold(0, i128::wrapping_add));
    }
    let mut shape = batch;
    if !left {
        shape.push(m);
    }
    if !right {
        shape.push(n);
    }
    Ok(Array::ints(kind, shape, out))
}

fn gemm(call: &Call<'_>) -> Result<Vec<Value>> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    let a = if call.flag("transA") { a.transpose(0, 1)? } else { a };
    let b = if call.flag("transB") { b.transpose(0, 1)? } else { b };
    let (alpha, beta) = (call.float("alpha", 1.0), call.float("beta", 1.0));
    let mut out = a.matmul(&b)?;
    if alpha != 1.0 {
        out = (out * alpha)?;
    }
    if let Some(c) = call.optional_tensor(2)? {
        out = (out + if beta == 1.0 { c } else { (c * beta)? })?;
    }
    one(out)
}

fn einsum(call: &Call<'_>) -> Result<Vec<Value>> {
    let notation = call.text("equation").ok_or_else(|| bad("equation is missing"))?;
    let operands = (0..call.inputs.len()).map(|i| call.tensor(i)).collect::<Result<Vec<_>>>()?;
    one(contract(&notation.replace(' ', ""), &operands.iter().collect::<Vec<_>>())?)
}

fn det(call: &Call<'_>) -> Result<Vec<Value>> {
    one(linalg::det(&call.tensor(0)?)?)
}
