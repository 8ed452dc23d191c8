//! Muon.

use netcl_autograd::ops::elementwise::cast;
use netcl_autograd::ops::layout::transpose;
use netcl_autograd::ops::matmul::matmul;
use netcl_autograd::ops::reduce::norm;
use netcl_autograd::{DType, Error, RawTensor, Result, Tensor, no_grad};
use netcl_core::kernels::elementwise::Number;

use crate::declare::optimizer;
use crate::group::ParamGroup;
use crate::rule::{Rule, Terms, Updated};
use crate::settings::not_negative;

const OP: &str = "Muon";

optimizer! {
    /// Muon: momentum whose matrices are made orthogonal by Newton-Schulz iterations, as PyTorch defines it. For the matrices of hidden
    /// layers; give biases, norms, embeddings and the last layer to another optimizer.
    ///
    /// With the gradient `d` of a matrix `p`: `b` becomes `momentum * b + (1 - momentum) * d`, `u` is `b` (with Nesterov
    /// `(1 - momentum) * d + momentum * b`) made orthogonal, and `p` becomes `p - lr * weight_decay * p - lr * ratio * u`. The iterations are
    /// `ns_steps` times `x = a * x + (b * x x' + c * (x x')^2) x` from `x = u / |u|`, in float32 (float64 for float64); PyTorch's are in
    /// bfloat16.
    ///
    /// ```
    /// use netcl_autograd::{Tensor, manager};
    /// use netcl_optim::{Muon, Optimizer};
    ///
    /// let queue = manager().cpu().queue;
    /// let p = Tensor::from_host(&queue, &[0.0f32; 4], [2, 2])?.with_grad();
    /// let mut opt = Muon::new([p.clone()], 1.0)?;
    /// p.set_grad(Some(Tensor::from_host(&queue, &[3.0f32, 0.0, 0.0, -2.0], [2, 2])?));
    /// opt.step()?;
    /// let step = p.to_f64_vec()?; // near the orthogonal matrix of the gradient's signs, whatever their sizes
    /// assert!((step[0] + 1.0).abs() < 0.4 && (step[3] - 1.0).abs() < 0.4);
    /// # Ok::<(), netcl_autograd::Error>(())
    /// ```
    Muon, MuonOptions, MuonRule, decay: weight_decay, momentum: momentum
}

/// The settings of [`Muon`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonOptions {
    /// The learning rate.
    pub lr: f64,
    /// The weight decay, which acts on the parameters directly, as in AdamW.
    pub weight_decay: f64,
    /// How much of the average gradient is kept in a step.
    pub momentum: f64,
    /// Whether to look ahead by the momentum.
    pub nesterov: bool,
    /// `a`, `b` and `c` of the iterations.
    pub ns_coefficients: (f64, f64, f64),
    /// The smallest norm that a matrix is divided by.
    pub eps: f64,
    /// The number of iterations, below 100.
    pub ns_steps: u64,
    /// How steps depend on the shape of a matrix.
    pub adjust_lr: AdjustLr,
}

/// How the steps of [`Muon`] depend on the shape of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdjustLr {
    /// `sqrt(max(1, rows / columns))`, of Keller Jordan's implementation.
    #[default]
    Original,
    /// `0.2 * sqrt(max(rows, columns))`: steps as large as AdamW's, so that its learning rate and weight decay can be kept.
    MatchRmsAdamw,
    /// `sqrt(rows / columns)`.
    SpectralUnclamped,
}

impl Default for MuonOptions {
    fn default() -> Self {
        MuonOptions {
            lr: 1e-3,
            weight_decay: 0.1,
            momentum: 0.95,
            nesterov: true,
            ns_coefficients: (3.4445, -4.7750, 2.0315),
            eps: 1e-7,
            ns_steps: 5,
            adjust_lr: AdjustLr::Original,
        }
    }
}

impl MuonOptions {
    fn check(&self) -> Result<()> {
        not_negative(OP, "momentum", self.momentum)?;
        not_negative(OP, "eps", self.eps)?;
        let (a, b, c) = self.ns_coefficients;
        if ![a, b, c].iter().all(|x| x.is_finite()) {
            let what = format!("the ns_coefficients are {:?}; use finite numbers", self.ns_coefficients);
            return Err(Error::argument(OP, what));
        }
        if self.ns_steps >= 100 {
            return Err(Error::argument(OP, format!("ns_steps is {}; use less than 100", self.ns_steps)));
        }
        Ok(())
    }
}

#[derive(Debug)]
struct MuonRule(MuonOptions);

impl Rule for MuonRule {
    fn op(&self) -> &'static str {
        OP
    }

    fn label(&self) -> &'static str {
        "muon"
    }

    fn state(&self) -> &'static [&'static str] {
        &["momentum_buffer"]
    }

    fn momentum(&self) -> Option<f64> {
        Some(self.0.momentum)
    }

    fn check(&self, parameter: &Tensor) -> Result<()> {
        if parameter.shape().len() == 2 {
            return Ok(());
        }
        let what = format!(
            "a parameter has shape {}, only matrices can be made orthogonal; give it to another optimizer",
            parameter.shape()
        );
        Err(Error::argument(OP, what))
    }

    fn settings(&self, group: &ParamGroup) -> Vec<Number> {
        vec![group.momentum_number(), group.momentum_rest_number()]
    }

    fn is_staged(&self) -> bool {
        true
    }

    fn direction<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let (momentum, rest) = (x.settings[0], x.settings[1]);
        let buffer = (x.grad - x.state[0]).fma(rest, x.state[0]);
        let p = if self.0.nesterov { (buffer - x.grad).fma(momentum, x.grad) } else { buffer };
        Updated { p, state: vec![buffer] }
    }

    fn transform(&self, direction: &RawTensor) -> Result<RawTensor> {
        let _pause = no_grad();
        let (rows, columns) = (direction.shape()[0] as f64, direction.shape()[1] as f64);
        let compute = if direction.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let x = cast(&Tensor::from(direction.clone()), compute)?;
        // The product of the shorter side with itself is the smaller one.
        let is_tall = rows > columns;
        let mut x = if is_tall { transpose(&x, 0, 1)? } else { x };
        x = (&x / &norm(&x, 2.0, None, false)?.clamp(self.0.eps, None)?)?;
        let (a, b, c) = self.0.ns_coefficients;
        for _ in 0..self.0.ns_steps {
            let gram = matmul(&x, &transpose(&x, 0, 1)?)?;
            let update = (&(&gram * b)? + &(&matmul(&gram, &gram)? * c)?)?;
            x = (&(&x * a)? + &matmul(&update, &x)?)?;
        }
        let x = if is_tall { transpose(&x, 0, 1)? } else { x };
        let ratio = match self.0.adjust_lr {
            AdjustLr::Original => (rows / columns).max(1.0).sqrt(),
            AdjustLr::MatchRmsAdamw => 0.2 * rows.max(columns).sqrt(),
            AdjustLr::SpectralUnclamped => (rows / columns).sqrt(),
        };
        Ok((&x * ratio)?.raw().contiguous()?)
    }

    fn update<'g>(&self, x: &Terms<'g>) -> Updated<'g> {
        let (p, d) = x.decayed(false, true);
        Updated { p: p - d * x.lr, state: Vec::new() }
    }
}
