//! Autocast: which operations run in 16 bits and which in float32, and the scopes that turn it on.
//!
//! Each operation with an entry in [`policies`] asks `enter` first. Inside a scope it gets casts for its inputs, which are
//! recorded operations: gradients of float32 parameters are float32. While they live the scope is suspended, so that what an
//! operation is made of runs in the dtype that was chosen for all of it. Outside of scopes this costs one thread-local read.

mod weights;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{LazyLock, Mutex, PoisonError};

use netcl_core::backend::Queue;
use netcl_core::dtype::DType;
pub use netcl_core::precision::autocast_dtype;
use netcl_core::precision::replace_autocast_dtype;

use crate::error::{Error, Result};
use crate::ops::elementwise::{cast, record_cast};
use crate::tensor::Tensor;

/// What a scope does with the inputs of an operation. Inputs of float64 are left alone by all but [`Policy::Widest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Cast to the scope's 16-bit dtype; products are summed in float32.
    Narrow,
    /// Cast to float32.
    Float32,
    /// Cast to the widest dtype among them: float32 where float16 meets bfloat16.
    Widest,
    /// Cast to the dtype of the first.
    First,
    /// Left as they are: the result has the dtype of the first. Normalisations compute their statistics in float32 anyway, and
    /// their parameters stay in float32.
    Keep,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Narrow => "16-bit",
            Policy::Float32 => "float32",
            Policy::Widest => "widest input",
            Policy::First => "first input",
            Policy::Keep => "input's dtype",
        })
    }
}

/// Every operation whose inputs a scope may cast, and the normalisations, which it leaves alone on purpose. An operation
/// that is not here runs in its input's dtype.
const POLICIES: &[(Policy, &[&str])] = &[
    (
        Policy::Narrow,
        &[
            "matmul",
            "linear",
            "linear_cross_entropy",
            "quantized_linear",
            "bilinear",
            "einsum",
            "conv1d",
            "conv2d",
            "conv2d_batch_norm",
            "conv_transpose1d",
            "conv_transpose2d",
            "scaled_dot_product_attention",
            "recurrent",
        ],
    ),
    // Sums over many elements, functions that leave the range of float16 quickly, and all losses.
    (
        Policy::Float32,
        &[
            "sum",
            "mean",
            "prod",
            "var",
            "std",
            "norm",
            "logsumexp",
            "cumsum",
            "cumprod",
            "logcumsumexp",
            "softmax",
            "log_softmax",
            "softmin",
            "gumbel_softmax",
            "cosine_similarity",
            "pairwise_distance",
            "normalize",
            "cdist",
            "local_response_norm",
            "lp_pool1d",
            "lp_pool2d",
            "embedding_bag",
            "exp",
            "expm1",
            "log",
            "log1p",
            "pow",
            "reciprocal",
            "rsqrt",
            "tan",
            "exp2",
            "log2",
            "log10",
            "xlogy",
            "logaddexp",
            "sinh",
            "cosh",
            "asin",
            "acos",
            "softplus",
            "affine_grid",
            "linalg_solve",
            "linalg_inv",
            "linalg_det",
            "linalg_slogdet",
            "linalg_cholesky",
            "linalg_qr",
            "linalg_eigh",
            "linalg_svd",
            "linalg_pinv",
            "cross_entropy",
            "nll_loss",
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "kl_div",
            "cosine_embedding_loss",
            "triplet_margin_loss",
            "poisson_nll_loss",
            "gaussian_nll_loss",
            "ctc_loss",
            "margin_ranking_loss",
            "hinge_embedding_loss",
            "soft_margin_loss",
            "multilabel_soft_margin_loss",
            "multi_margin_loss",
            "multilabel_margin_loss",
        ],
    ),
    (
        Policy::Widest,
        &[
            "add",
            "sub",
            "mul",
            "div",
            "minimum",
            "maximum",
            "fma",
            "where",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "fmod",
            "remainder",
            "floor_divide",
            "hypot",
            "copysign",
            "fmax",
            "fmin",
            "atan2",
            "heaviside",
            "isclose",
            "logical_and",
            "logical_or",
            "logical_xor",
            "cat",
            "stack",
            "scatter_add",
            "index_add",
            "grid_sample",
        ],
    ),
    (Policy::First, &["bias_add", "prelu"]),
    (Policy::Keep, &["batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"]),
];

/// What a scope does, operation by operation; those that are not listed run in their input's dtype.
///
/// ```
/// use netcl_autograd::autocast::{Policy, policies};
///
/// assert!(policies().any(|entry| entry == ("linear", Policy::Narrow)));
/// assert!(policies().any(|(op, policy)| op == "softmax" && policy.to_string() == "float32"));
/// assert!(!policies().any(|(op, _)| op == "relu"));
/// ```
pub fn policies() -> impl Iterator<Item = (&'static str, Policy)> {
    POLICIES.iter().flat_map(|(policy, ops)| ops.iter().map(|op| (*op, *policy)))
}

fn policy(op: &str) -> Option<Policy> {
    static BY_NAME: LazyLock<HashMap<&str, Policy>> = LazyLock::new(|| policies().collect());
    BY_NAME.get(op).copied()
}

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A scope of [`autocast`]; dropping it restores what was before.
#[must_use = "autocast ends when this is dropped"]
pub struct Autocast {
    before: Option<DType>,
    /// The scope belongs to the thread.
    _thread: PhantomData<*const ()>,
}

/// Lets products run in a 16-bit dtype on this thread until the returned scope is dropped; [`policies`] says what runs in which.
///
/// Scopes nest. Parameters stay in float32; their 16-bit copies are made once in the outermost scope, and again after an
/// update: all in one launch, from the second scope or update on, and in every captured step. Gradient rules run in the dtypes of their operations, whether `backward` is called inside the scope or after it.
/// Functions that are compiled or captured are kept by scope.
///
/// ```
/// use netcl_autograd::{DType, Tensor, autocast::autocast, manager};
///
/// let queue = manager().cpu().queue;
/// let x = Tensor::full(&queue, [2, 3], DType::F32, 0.5)?;
/// let weight = Tensor::full(&queue, [3, 4], DType::F32, 0.25)?.with_grad();
/// let loss = {
///     let _scope = autocast(DType::BF16)?;
///     let y = x.matmul(&weight)?;
///     assert_eq!(y.dtype(), DType::BF16);
///     y.sum((), false)?
/// };
/// assert_eq!(loss.dtype(), DType::F32);
/// loss.backward()?;
/// assert_eq!(weight.grad().unwrap().dtype(), DType::F32);
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
///
/// # Errors
/// For a dtype other than float16 and bfloat16.
pub fn autocast(dtype: DType) -> Result<Autocast> {
    if !is_narrow(dtype) {
        return Err(Error::argument("autocast", format!("the dtype is {dtype}; use float16 or bfloat16")));
    }
    Ok(enter_scope(Some(dtype), true))
}

/// Turns autocast off until the returned scope is dropped, inside of another scope.
///
/// ```
/// use netcl_autograd::{DType, autocast::{autocast, autocast_dtype, autocast_off}};
///
/// let _scope = autocast(DType::F16)?;
/// {
///     let _off = autocast_off();
///     assert_eq!(autocast_dtype(), None);
/// }
/// assert_eq!(autocast_dtype(), Some(DType::F16));
/// # Ok::<(), netcl_autograd::Error>(())
/// ```
pub fn autocast_off() -> Autocast {
    enter_scope(None, true)
}

/// A scope in the state that [`autocast_dtype`] gave, for whoever runs a function a second time: it casts what that function uses,
/// and nothing ahead.
pub(crate) fn resume(dtype: Option<DType>) -> Autocast {
    enter_scope(dtype, false)
}

fn enter_scope(dtype: Option<DType>, ahead: bool) -> Autocast {
    if DEPTH.get() == 0 {
        weights::begin(ahead);
    }
    DEPTH.set(DEPTH.get() + 1);
    Autocast { before: replace_autocast_dtype(dtype), _thread: PhantomData }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        replace_autocast_dtype(self.before);
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            weights::end();
        }
    }
}

/// Autocast is off while this lives; unlike [`Autocast`] it is not a scope whose end forgets copies.
pub struct Suspended {
    before: Option<DType>,
    _thread: PhantomData<*const ()>,
}

/// Turns autocast off, for code that chooses its dtypes itself: gradient rules, in-place writes, a [`Function`](crate::Function).
pub fn suspend() -> Suspended {
    Suspended { before: replace_autocast_dtype(None), _thread: PhantomData }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        replace_autocast_dtype(self.before);
    }
}

/// The casts of an operation's inputs. Autocast is off while they live.
pub(crate) struct Casts {
    to: Option<DType>,
    _off: Suspended,
}

/// The casts of an operation that a scope has a policy for; `None` where it runs as it is.
#[inline]
pub(crate) fn enter<'t>(op: &'static str, inputs: impl IntoIterator<Item = &'t Tensor>) -> Option<Casts> {
    let narrow = autocast_dtype()?;
    Casts::new(op, narrow, &mut inputs.into_iter())
}

impl Casts {
    #[cold]
    fn new(op: &str, narrow: DType, inputs: &mut dyn Iterator<Item = &Tensor>) -> Option<Casts> {
        let policy = policy(op).filter(|policy| *policy != Policy::Keep)?;
        let first = inputs.next()?;
        let (mut same, mut double) = (true, first.dtype() == DType::F64);
        for input in inputs {
            same &= input.dtype() == first.dtype();
            double |= input.dtype() == DType::F64;
        }
        let to = match policy {
            Policy::Widest if same => None,
            Policy::Widest if double => Some(DType::F64),
            Policy::First => Some(first.dtype()),
            _ if double => None,
            Policy::Narrow => Some(available(first.queue(), narrow)),
            Policy::Float32 | Policy::Widest | Policy::Keep => Some(DType::F32),
        };
        Some(Casts { to, _off: suspend() })
    }

    /// An input in the dtype that the operation runs in.
    #[track_caller]
    pub(crate) fn of(&self, x: &Tensor) -> Result<Tensor> {
        match self.to {
            Some(dtype) if x.dtype().is_float() && x.dtype() != dtype => {
                if is_narrow(dtype) && is_weight(x) {
                    record_cast(x, weights::copy(x, dtype)?)
                } else {
                    cast(x, dtype)
                }
            }
            _ => Ok(x.clone()),
        }
    }

    /// [`Casts::of`] an input that may be left out.
    #[track_caller]
    pub(crate) fn given(&self, x: Option<&Tensor>) -> Result<Option<Tensor>> {
        x.map(|x| self.of(x)).transpose()
    }
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// The dtype that products run in on a device: float32, with a word about it, where float16 cannot even be stored.
fn available(queue: &Queue, dtype: DType) -> DType {
    static TOLD: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    let Queue::OpenCl(stream) = queue else { return dtype };
    if dtype != DType::F16 || stream.device().probes().fp16_storage() {
        return dtype;
    }
    if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(queue.device_name()) {
        eprintln!("netcl: autocast: {} cannot store float16; products run in float32 there", queue.device_name());
    }
    DType::F32
}

/// Whether a tensor is used again and again: a parameter.
fn is_weight(x: &Tensor) -> bool {
    DEPTH.get() > 0 && x.dtype() == DType::F32 && x.is_leaf() && x.cell().requires_grad()
}
