//! Activations and softmaxes.

use netcl_nn::autograd::ops::elementwise::{Operand, apply, where_};
use netcl_nn::autograd::{Result, Tensor};

use super::layout::reshaped;
use super::{Op, Table, one};
use crate::array::{Array, axis, bad, product};
use crate::run::Call;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("Celu", named as Op),
    ("Elu", named),
    ("Gelu", named),
    ("HardSigmoid", named),
    ("HardSwish", named),
    ("Hardmax", hardmax),
    ("LeakyRelu", named),
    ("LogSoftmax", softmax),
    ("Mish", named),
    ("PRelu", prelu),
    ("Relu", named),
    ("Selu", named),
    ("Shrink", named),
    ("Sigmoid", named),
    ("Softmax", softmax),
    ("Softplus", named),
    ("Softsign", named),
    ("Swish", named),
    ("ThresholdedRelu", named),
];

fn of(name: &str, x: &Tensor, params: &[f64]) -> Result<Tensor> {
    apply(name, &[Operand::Tensor(x)], params)
}

/// An activation by its ONNX name; those of recurrent layers give their parameters here.
pub(super) fn activate(name: &str, x: &Tensor, alpha: Option<f64>, beta: Option<f64>) -> Result<Tensor> {
    match name {
        "Relu" => x.relu(),
        "Tanh" => x.tanh(),
        "Sigmoid" => x.sigmoid(),
        "Softplus" => of("softplus", x, &[]),
        "Softsign" => of("softsign", x, &[]),
        "Mish" => of("mish", x, &[]),
        "Elu" => of("elu", x, &[alpha.unwrap_or(1.0)]),
        "Celu" => of("celu", x, &[alpha.unwrap_or(1.0)]),
        "LeakyRelu" => of("leaky_relu", x, &[alpha.unwrap_or(0.01)]),
        "ThresholdedRelu" => {
            // A product with 0 would make NaN of infinities.
            let above = apply("gt", &[Operand::Tensor(x), Operand::Number(alpha.unwrap_or(1.0))], &[])?;
            where_(&above, x, 0.0)
        }
        "HardSigmoid" => (((x * alpha.unwrap_or(0.2))? + beta.unwrap_or(0.5))?).clamp(0.0, 1.0),
        "HardSwish" => of("hardswish", x, &[]),
        "Swish" => x * &(x * alpha.unwrap_or(1.0))?.sigmoid()?,
        "Affine" => (x * alpha.unwrap_or(1.0))? + beta.unwrap_or(0.0),
        "ScaledTanh" => (x * beta.unwrap_or(1.0))?.tanh()? * alpha.unwrap_or(1.0),
        _ => Err(bad(format!("activation {name:?} does not exist"))),
    }
}

fn named(call: &Call<'_>) -> Result<Vec<Value>> {
    let name = call.node.operator.as_str();
    let value = call.value(0)?;
    if let (Value::Array(array), "Relu") = (value, name)
        && !array.kind.is_float()
    {
        let data = array.to_ints()?.into_iter().map(|v| if array.kind.widen(v) > 0 { v } else { 0 }).collect();
        return one(Array::ints(array.kind, array.shape.clone(), data));
    }
    let x = call.tensor(0)?;
    let given = |name| call.attribute(name).map(|_| call.float(name, 0.0));
    one(match name {
        "Gelu" => of(if call.text("approximate") == Some("tanh") { "gelu_tanh" } else { "gelu" }, &x, &[])?,
        "Selu" => {
            let alpha = call.float("alpha", 1.673_263_242_354_377_2);
            let gamma = call.float("gamma", 1.050_700_987_355_480_5);
            (of("elu", &x, &[alpha])? * gamma)?
        }
        "Shrink" => {
            let (bias, lambda) = (call.float("bias", 0.0), call.float("lambd", 0.5));
            let beyond = |test, limit| apply(test, &[Operand::Tensor(&x), Operand::Number(limit)], &[]);
            let high = where_(&beyond("gt", lambda)?, &(&x - bias)?, 0.0)?;
            where_(&beyond("lt", -lambda)?, &(&x + bias)?, &high)?
        }
        _ => activate(name, &x, given("alpha"), given("beta"))?,
    })
}

fn prelu(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, slope) = (call.tensor(0)?, call.tensor(1)?);
    let negative = apply("lt", &[Operand::Tensor(&x), Operand::Number(0.0)], &[])?;
    one(where_(&negative, &(&x * slope)?, &x)?)
}

fn softmax(call: &Call<'_>) -> Result<Vec<Value>> {
    let log = call.node.operator == "LogSoftmax";
    over(call, &|x, at| if log { x.log_softmax(at) } else { x.softmax(at) })
}

fn hardmax(call: &Call<'_>) -> Result<Vec<Value>> {
    over(call, &|x, at| {
        let found = netcl_nn::autograd::ops::reduce::argmax(x, Some(at), true)?;
        let zeros = x.detach().zeros_like()?;
        netcl_nn::autograd::ops::select::scatter(&zeros, at, &found, 1.0)
    })
}

/// Along one axis; before opset 13 along all from that axis on.
fn over(call: &Call<'_>, f: &dyn Fn(&Tensor, isize) -> Result<Tensor>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let shape = x.shape().to_vec();
    if call.node.opset >= 13 {
        return one(f(&x, axis(call.int("axis", -1), shape.len())? as isize)?);
    }
    let at = axis(call.int("axis", 1), shape.len())?;
    let flat = vec![product(&shape[..at]), product(&shape[at..])];
    let rows = reshaped(&x.into(), flat)?.to_tensor(call.queue)?;
    one(reshaped(&f(&rows, 1)?.into(), shape)?)
}
