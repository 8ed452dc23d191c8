//! An operation of one's own: an OpenCL kernel with its gradient, in a network that trains.

use netcl::autograd::function::{Function, call};
use netcl::autograd::graph::{Gradients, RuleContext};
use netcl::autograd::{RawTensor, Result};
use netcl::core::kernels::primitives::{KernelArg, KernelSpec};
use netcl::prelude::*;

/// `log(1 + exp(x))`.
struct Softplus;

/// Runs a kernel with these inputs and one output, a work-item per element.
fn launch(name: &str, inputs: &[(&str, &RawTensor)], value: &str) -> Result<RawTensor> {
    let (first, queue) = (inputs[0].1, inputs[0].1.queue());
    let mut params: Vec<String> = inputs.iter().map(|(name, _)| format!("__global const float* {name}")).collect();
    params.push("__global float* out".to_owned());
    let spec = KernelSpec::new(name, params, format!("int i = get_global_id(0); out[i] = {value};"))?;
    let out = RawTensor::from_shape(queue, first.shape().clone(), DType::F32)?;
    let mut arguments: Vec<KernelArg> = inputs.iter().map(|(_, tensor)| KernelArg::from(*tensor)).collect();
    arguments.push(KernelArg::from(&out));
    spec.build(queue)?.run(queue, &[first.size()], None, &arguments)?;
    Ok(out)
}

impl Function for Softplus {
    fn name(&self) -> &'static str {
        "my_softplus"
    }

    fn forward(&self, inputs: &[&RawTensor]) -> Result<RawTensor> {
        let x = inputs[0].contiguous()?; // a kernel's pointer knows no strides
        launch("my_softplus", &[("x", &x)], "fmax(x[i], 0.0f) + log1p(exp(-fabs(x[i])))")
    }

    fn backward(&self, context: &RuleContext<'_>, upstream: &Tensor) -> Result<Gradients> {
        let (x, g) = (context.input(0)?.contiguous()?, upstream.contiguous()?);
        let d = launch("my_softplus_backward", &[("x", x.raw()), ("g", g.raw())], "g[i] / (1.0f + exp(-x[i]))")?;
        Ok([Some(d.into())].into_iter().collect())
    }
}

pub(crate) fn run(queue: &Queue) -> std::result::Result<(), Box<dyn std::error::Error>> {
    if manager().default("opencl")?.is_none() {
        println!("there is no OpenCL driver for the kernel");
        return Ok(());
    }
    let x = Tensor::linspace(queue, -20.0, 20.0, 41)?;
    let (mine, theirs) = (x.detach().with_grad(), x.duplicate()?.detach().with_grad());
    let values = (call(Softplus, &[&mine])?, theirs.softplus(1.0, 20.0)?);
    values.0.sum((), false)?.backward()?;
    values.1.sum((), false)?.backward()?;
    let far = |a: &Tensor, b: &Tensor| -> Result<f64> { Ok((a - b)?.abs()?.max((), false)?.item()?) };
    let (gradient, expected) = (mine.grad().ok_or("no gradient")?, theirs.grad().ok_or("no gradient")?);
    let worst = far(&values.0, &values.1)?.max(far(&gradient, &expected)?);
    println!("largest difference from netcl's softplus: {worst:.1e}");

    netcl::manual_seed(0);
    let (first, second) = (Linear::new(queue, 1, 32)?, Linear::new(queue, 32, 1)?);
    let mut opt = Adam::new([first.parameters(), second.parameters()].concat(), 1e-2)?;
    let x = ((Tensor::rand(queue, [128, 1])? * 4.0)? - 2.0)?;
    let target = (&x * 2.0)?.sin()?;
    let mut loss = f64::INFINITY;
    for _step in 0..150 {
        let guess = second.forward(&call(Softplus, &[&first.forward(&x)?])?)?;
        let error = F::mse_loss(&guess, &target, Default::default())?;
        error.backward()?;
        opt.step()?;
        opt.zero_grad();
        loss = error.item()?;
    }
    println!("loss of a network with it: {loss:.4}");
    if worst > 1e-4 || loss > 0.2 {
        return Err("the kernel should be right, and the network should learn".into());
    }
    Ok(())
}
