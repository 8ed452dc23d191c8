//! What batch norm does with each element once sums are known: expressions, so that activations and residuals fuse with them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use netcl_core::Result;
use netcl_core::kernels::elementwise::{Elementwise, Number};
use netcl_core::kernels::expr::Graph;
use netcl_core::tensor::Tensor;

/// Sums over a channel of a batch.
pub(super) struct Sums<'t> {
    /// Of gradients times normalised values: the gradient of the weight.
    pub(super) of_products: &'t Tensor,
    /// Of gradients: the gradient of the bias.
    pub(super) plain: &'t Tensor,
    /// How many elements they are over.
    pub(super) count: usize,
}

/// `(x - mean) * rstd * weight + bias`.
pub(super) fn apply(
    x: &Tensor,
    [weight, bias]: [Option<&Tensor>; 2],
    [mean, rstd]: [&Tensor; 2],
    output: &Tensor,
) -> Result<()> {
    let form = Form::Apply { weight: weight.is_some(), bias: bias.is_some() };
    let channels = [Some(mean), Some(rstd), weight, bias];
    run(form, &[x], channels, &[], output)
}

/// The gradient of the input; without sums that of fixed statistics.
pub(super) fn backward(
    grad: &Tensor,
    x: &Tensor,
    weight: Option<&Tensor>,
    [mean, rstd]: [&Tensor; 2],
    sums: Option<Sums<'_>>,
    input: &Tensor,
) -> Result<()> {
    let form = Form::Backward { weight: weight.is_some(), sums: sums.is_some() };
    match sums {
        Some(Sums { of_products, plain, count }) => {
            let channels = [Some(rstd), weight, Some(mean), Some(of_products), Some(plain)];
            run(form, &[grad, x], channels, &[(1.0 / count as f64).into()], input)
        }
        None => run(form, &[grad], [Some(rstd), weight], &[], input),
    }
}

/// Which expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    Apply { weight: bool, bias: bool },
    Backward { weight: bool, sums: bool },
}

impl Form {
    fn make(self) -> Arc<Elementwise> {
        let g = Graph::new();
        match self {
            Form::Apply { weight, bias } => {
                let [x, mean, rstd] = [0, 1, 2].map(|i| g.input(i));
                let scaled = if weight { (x - mean) * rstd * g.input(3) } else { (x - mean) * rstd };
                let value = if bias { scaled + g.input(3 + usize::from(weight)) } else { scaled };
                Elementwise::new("batch_norm", g.finish(&[value]))
            }
            Form::Backward { weight, sums } => {
                let first = 1 + usize::from(sums);
                let (grad, rstd) = (g.input(0), g.input(first));
                let rest = first + 1 + usize::from(weight);
                let centred = match sums {
                    true => {
                        let [mean, of_products, plain] = [0, 1, 2].map(|i| g.input(rest + i));
                        let normal = (g.input(1) - mean) * rstd;
                        grad - (plain + normal * of_products) * g.scalar(0)
                    }
                    false => grad,
                };
                let value = if weight { centred * g.input(first + 1) * rstd } else { centred * rstd };
                Elementwise::new("batch_norm_backward", g.finish(&[value]))
            }
        }
    }
}

/// Runs an expression of dense tensors and of values for each channel (axis 1).
fn run<const N: usize>(
    form: Form,
    dense: &[&Tensor],
    channels: [Option<&Tensor>; N],
    scalars: &[Number],
    out: &Tensor,
) -> Result<()> {
    static MADE: LazyLock<RwLock<HashMap<Form, Arc<Elementwise>>>> = LazyLock::new(RwLock::default);
    let found = MADE.read().unwrap_or_else(PoisonError::into_inner).get(&form).cloned();
    let elementwise = found.unwrap_or_else(|| {
        MADE.write().unwrap_or_else(PoisonError::into_inner).entry(form).or_insert_with(|| form.make()).clone()
    });
    let mut shape = vec![1; out.shape().ndim()];
    shape[1] = out.shape()[1];
    let channels: Vec<Tensor> = channels
        .into_iter()
        .flatten()
        .map(|t| netcl_core::tensor::reshape(t, shape.clone())?.expand(out.shape().clone()))
        .collect::<Result<_>>()?;
    let inputs: Vec<&Tensor> = dense.iter().copied().chain(&channels).collect();
    elementwise.run(&inputs, scalars, &[out])
}
