//! Binary cross-entropy, of probabilities and of logits.

use std::sync::{Arc, LazyLock};

use netcl_core::kernels::expr::{Graph, Node, Val};
use netcl_core::shape::Shape;
use smallvec::{SmallVec, smallvec};

use super::{Reduction, check_elements, check_same_shape, check_weight};
use crate::autocast;
use crate::error::Result;
use crate::graph::{Save, no_grad, record};
use crate::ops::elementwise::ExprOp;
use crate::ops::layout::sum_to;
use crate::tensor::Tensor;

/// How [`binary_cross_entropy`] weighs elements.
#[derive(Clone, Debug, Default)]
pub struct BceOptions {
    /// A factor for each element's loss; it is broadcast to the input's shape.
    pub weight: Option<Tensor>,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

/// How [`binary_cross_entropy_with_logits`] weighs elements.
#[derive(Clone, Debug, Default)]
pub struct BceWithLogitsOptions {
    /// A factor for each element's loss; it is broadcast to the input's shape.
    pub weight: Option<Tensor>,
    /// A factor for positive targets; it is broadcast to the input's shape (one per class has the shape of the last axis).
    pub pos_weight: Option<Tensor>,
    /// What becomes of the elements' losses.
    pub reduction: Reduction,
}

/// A probability below this much is treated as this much when dividing by it, as PyTorch does.
const SMALLEST: f64 = 1e-12;
/// The logarithm of 0.
const LOWEST: f64 = -100.0;

/// The loss and its gradients with respect to probability, target and weight, each with the inputs it takes.
///
/// Where a logarithm is held at its lowest value its slope is 0, and a prediction that is entirely wrong would learn nothing.
/// The gradient is therefore the one of the formula without the bound, divided by no less than [`SMALLEST`].
struct Bce {
    loss: Arc<ExprOp>,
    gradients: SmallVec<[Gradient; 3]>,
}

/// Which of (inputs..., upstream) a gradient takes, and how it is computed from them.
type Gradient = (SmallVec<[usize; 4]>, Arc<ExprOp>);

/// A gradient with the inputs that its expression really depends on.
fn gradient(g: &Graph, value: Val<'_>) -> Gradient {
    let full = g.finish(&[value]);
    let is_used = |i: &usize| full.nodes().iter().any(|node| matches!(node, Node::Input(at) if usize::from(*at) == *i));
    let used: SmallVec<[usize; 4]> = (0..full.inputs()).filter(is_used).collect();
    let h = Graph::new();
    let place = |i: usize| used.iter().position(|&u| u == i).unwrap_or_default();
    let inputs: Vec<Val<'_>> = (0..full.inputs()).map(|i| h.input(place(i))).collect();
    let outputs = h.inline(&full, &inputs, &[]);
    (used, ExprOp::new("binary_cross_entropy_backward", h.finish(&outputs)))
}

impl Bce {
    fn new(weighted: bool) -> Self {
        let g = Graph::new();
        let (p, t, upstream) = (g.input(0), g.input(1), g.input(2 + usize::from(weighted)));
        let scaled = |value| if weighted { value * g.input(2) } else { value };
        let (is, is_not) = (p.log().max(LOWEST), (-p).log1p().max(LOWEST));
        let loss = -(t * is + (1.0 - t) * is_not);
        // Negative where p is no probability: NaN, as the loss is.
        let spread = (1.0 - p) * p;
        let by_p = spread.lt(0.0).select(spread.sqrt(), (p - t) / spread.max(SMALLEST));
        let mut gradients =
            smallvec![gradient(&g, scaled(by_p) * upstream), gradient(&g, scaled(is_not - is) * upstream),];
        if weighted {
            gradients.push(gradient(&g, loss * upstream));
        }
        Bce { loss: ExprOp::new("binary_cross_entropy", g.finish(&[scaled(loss)])), gradients }
    }

    #[track_caller]
    fn apply(&'static self, inputs: &[&Tensor]) -> Result<Tensor> {
        let losses = {
            let _scope = no_grad();
            self.loss.apply(inputs, &[])?
        };
        let shapes: SmallVec<[Shape; 3]> = inputs.iter().map(|t| t.shape().clone()).collect();
        record("binary_cross_entropy", inputs, losses.raw().clone(), Save::INPUTS, || {
            Box::new(move |context, upstream| {
                let gradient = |i: usize| -> Result<Option<Tensor>> {
                    if !context.wants(i) {
                        return Ok(None);
                    }
                    let (operands, op) = &self.gradients[i];
                    let operands: SmallVec<[Tensor; 4]> = operands
                        .iter()
                        .map(|&at| if at == shapes.len() { Ok(upstream.clone()) } else { context.input(at) })
                        .collect::<Result<_>>()?;
                    let full = op.apply(&operands.iter().collect::<SmallVec<[&Tensor; 4]>>(), &[])?;
                    sum_to(&full, &shapes[i]).map(Some)
                };
                (0..shapes.len()).map(gradient).collect()
            })
        })
    }
}

/// `-(t * log(p) + (1 - t) * log(1 - p))` for probabilities `p` and targets `t`, with logarithms no lower than -100.
///
/// A probability outside 0 to 1 is an error on the native CPU; on other devices, and while a step is being recorded, looking at it
/// would cost waiting for the device: there its loss and gradient are NaN. Prefer [`binary_cross_entropy_with_logits`], which loses nothing near 0 and 1.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::loss::{BceOptions, binary_cross_entropy}};
///
/// let queue = manager().cpu().queue;
/// let p = Tensor::from_host(&queue, &[1.0f32, 1.0], [2])?;
/// let target = Tensor::from_host(&queue, &[1.0f32, 0.0], [2])?;
/// assert_eq!(binary_cross_entropy(&p, &target, &BceOptions::default())?.item()?, 50.0);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn binary_cross_entropy(input: &Tensor, target: &Tensor, options: &BceOptions) -> Result<Tensor> {
    static OPS: LazyLock<[Bce; 2]> = LazyLock::new(|| [Bce::new(false), Bce::new(true)]);
    let op = "binary_cross_entropy";
    if let Some(casts) = autocast::enter(op, [input, target]) {
        return binary_cross_entropy(&casts.of(input)?, &casts.of(target)?, options);
    }
    check_same_shape(op, input, target)?;
    check_weight(op, input, options.weight.as_ref())?;
    let wanted = "probabilities lie in 0 to 1; apply sigmoid first, or use binary_cross_entropy_with_logits";
    check_elements(op, input, |p| (0.0..=1.0).contains(&p), "the input", wanted)?;
    let mut inputs: SmallVec<[&Tensor; 3]> = smallvec![input, target];
    inputs.extend(&options.weight);
    options.reduction.apply(OPS[usize::from(options.weight.is_some())].apply(&inputs)?)
}

/// `log(1 + exp(x))` without overflow and with a slope that is right everywhere; beyond 40 nothing is left of the 1.
pub(super) fn softplus(x: Val<'_>) -> Val<'_> {
    x.gt(40.0).select(x, x.exp().log1p())
}

/// Binary cross-entropy of logits: [`binary_cross_entropy`] of their sigmoid, without the loss of digits near 0 and 1.
///
/// ```
/// use netcl_autograd::{Tensor, manager, ops::loss::{BceWithLogitsOptions, binary_cross_entropy_with_logits}};
///
/// let queue = manager().cpu().queue;
/// let logits = Tensor::from_host(&queue, &[1e4f32, -1e4], [2])?.with_grad();
/// let target = Tensor::from_host(&queue, &[1.0f32, 1.0], [2])?;
/// let loss = binary_cross_entropy_with_logits(&logits, &target, &BceWithLogitsOptions::default())?;
/// assert_eq!(loss.item()?, 5e3);
/// loss.backward()?;
/// assert_eq!(logits.grad().unwrap().to_host::<f32>()?, [0.0, -0.5]);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
#[track_caller]
pub fn binary_cross_entropy_with_logits(
    input: &Tensor,
    target: &Tensor,
    options: &BceWithLogitsOptions,
) -> Result<Tensor> {
    /// By (weight, pos_weight); inputs are logits, targets, then what there is of the two.
    static OPS: LazyLock<[[Arc<ExprOp>; 2]; 2]> = LazyLock::new(|| {
        [false, true].map(|weighted| {
            [false, true].map(|positive| {
                let g = Graph::new();
                let (x, t) = (g.input(0), g.input(1));
                let is = if positive { t * g.input(2 + usize::from(weighted)) } else { t };
                let loss = is * softplus(-x) + (1.0 - t) * softplus(x);
                let loss = if weighted { loss * g.input(2) } else { loss };
                ExprOp::new("binary_cross_entropy_with_logits", g.finish(&[loss]))
            })
        })
    });
    let op = "binary_cross_entropy_with_logits";
    if let Some(casts) = autocast::enter(op, [input, target]) {
        return binary_cross_entropy_with_logits(&casts.of(input)?, &casts.of(target)?, options);
    }
    check_same_shape(op, input, target)?;
    check_weight(op, input, options.weight.as_ref())?;
    check_weight(op, input, options.pos_weight.as_ref())?;
    let mut inputs: SmallVec<[&Tensor; 4]> = smallvec![input, target];
    inputs.extend(&options.weight);
    inputs.extend(&options.pos_weight);
    let expression = &OPS[usize::from(options.weight.is_some())][usize::from(options.pos_weight.is_some())];
    options.reduction.apply(expression.apply(&inputs, &[])?)
}
