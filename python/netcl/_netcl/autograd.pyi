"""Types of the extension's part of ``netcl.autograd``."""

from collections.abc import Callable, Sequence
from typing import Any, final

from numpy.typing import ArrayLike

# These record what the functions of the same signature in ``netcl.ops`` only compute.
from netcl._netcl import (
    IndexTensor,
    Tensor,
    adaptive_avg_pool1d as adaptive_avg_pool1d,
    adaptive_avg_pool2d as adaptive_avg_pool2d,
    adaptive_max_pool1d as adaptive_max_pool1d,
    adaptive_max_pool2d as adaptive_max_pool2d,
    all as all,
    alpha_dropout as alpha_dropout,
    any as any,
    argsort as argsort,
    avg_pool1d as avg_pool1d,
    avg_pool2d as avg_pool2d,
    batch_norm as batch_norm,
    bias_add as bias_add,
    bilinear as bilinear,
    cast as cast,
    cat as cat,
    channel_shuffle as channel_shuffle,
    chunk as chunk,
    contiguous as contiguous,
    conv1d as conv1d,
    conv2d as conv2d,
    conv_transpose1d as conv_transpose1d,
    conv_transpose2d as conv_transpose2d,
    cosine_similarity as cosine_similarity,
    cumsum as cumsum,
    dropout as dropout,
    dropout1d as dropout1d,
    dropout2d as dropout2d,
    einsum as einsum,
    embedding_bag as embedding_bag,
    expand as expand,
    feature_alpha_dropout as feature_alpha_dropout,
    flip as flip,
    glu as glu,
    group_norm as group_norm,
    gumbel_softmax as gumbel_softmax,
    instance_norm as instance_norm,
    interpolate as interpolate,
    layer_norm as layer_norm,
    linear as linear,
    local_response_norm as local_response_norm,
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    lp_pool1d as lp_pool1d,
    lp_pool2d as lp_pool2d,
    masked_fill as masked_fill,
    max as max,
    max_pool1d as max_pool1d,
    max_pool2d as max_pool2d,
    mean as mean,
    min as min,
    norm as norm,
    normalize as normalize,
    pad as pad,
    pairwise_distance as pairwise_distance,
    permute as permute,
    pixel_shuffle as pixel_shuffle,
    pixel_unshuffle as pixel_unshuffle,
    prod as prod,
    repeat as repeat,
    rms_norm as rms_norm,
    rotary as rotary,
    rrelu as rrelu,
    scaled_dot_product_attention as scaled_dot_product_attention,
    softmax as softmax,
    softmin as softmin,
    sort as sort,
    split as split,
    squeeze as squeeze,
    stack as stack,
    std as std,
    sum as sum,
    topk as topk,
    transpose as transpose,
    tril as tril,
    triu as triu,
    unsqueeze as unsqueeze,
    var as var,
)

_Axis = int | Sequence[int] | None
_Data = Tensor | ArrayLike
_Labels = Tensor | IndexTensor | ArrayLike
_Indices = IndexTensor | Tensor | ArrayLike
_Numbers = int | Sequence[int]

def tensor(x: _Data, requires_grad: bool = True, dtype: str | None = None, queue: Any = None) -> Tensor: ...

# ---- the walk backwards ------------------------------------------------------------------------------------------

@final
class Node:
    @property
    def name(self) -> str: ...
    @property
    def next_functions(self) -> tuple[Node | None, ...]: ...
    def __call__(self, gradient: Tensor) -> tuple[Tensor | None, ...]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class HookHandle:
    def remove(self) -> None: ...

def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None: ...
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]: ...
def enter_scope(kind: str) -> None: ...
def leave_scope() -> None: ...
def is_grad_enabled() -> bool: ...

# ---- the compiler ------------------------------------------------------------------------------------------------

@final
class JitCache:
    def __new__(cls, name: str, fast_math: bool = False) -> JitCache: ...
    def call(
        self,
        statics: bytes,
        inputs: tuple[Tensor | IndexTensor, ...],
        captures: Captures,
        body: Callable[[list[Any]], list[Any]],
    ) -> tuple[int, list[Any]]: ...
    def describe(
        self,
        what: str,
        statics: bytes,
        inputs: tuple[Tensor | IndexTensor, ...],
        captures: Captures,
        body: Callable[[list[Any]], list[Any]],
    ) -> str: ...
    def counters(self) -> tuple[int, int, int]: ...

@final
class Captures:
    def __new__(cls, tensors: list[Tensor | IndexTensor]) -> Captures: ...
    def are_current(self) -> bool: ...
    def identity(self) -> bytes: ...

def runs_op_by_op() -> bool: ...

# ---- functions of Python -----------------------------------------------------------------------------------------

@final
class FunctionContext:
    @property
    def needs_input_grad(self) -> tuple[bool, ...]: ...
    @property
    def saved_tensors(self) -> tuple[Any, ...]: ...
    def save_for_backward(self, *tensors: Tensor | None) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...

def apply_function(function: type, *args: Any) -> Tensor: ...
def checkpoint(function: Callable[..., Tensor], *inputs: Any) -> Tensor: ...
def gradcheck(
    function: Callable[..., Tensor], inputs: Any, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3
) -> bool: ...
def gradgradcheck(
    function: Callable[..., Tensor], inputs: Any, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3
) -> bool: ...

# ---- operations --------------------------------------------------------------------------------------------------

def elementwise(name: str, *operands: Tensor | float, params: Sequence[float] | None = None) -> Tensor: ...
def where(condition: _Data, x: Tensor | float, y: Tensor | float) -> Tensor: ...
def slice(x: Tensor, axis: int, start: int | None = None, stop: int | None = None, step: int = 1) -> Tensor: ...
def flatten(x: Tensor, start: int = 0, end: int = -1) -> Tensor: ...
def clone(x: Tensor) -> Tensor: ...
def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor: ...

# ---- operations of layers ----------------------------------------------------------------------------------------

def embedding(indices: _Indices, weight: Tensor, padding_idx: int | None = None) -> Tensor: ...
def index_select(x: Tensor, axis: int, indices: _Indices) -> Tensor: ...
def gather(x: Tensor, axis: int, indices: _Indices) -> Tensor: ...
def scatter_add(x: Tensor, axis: int, indices: _Indices, source: Tensor) -> Tensor: ...
def index_add(x: Tensor, axis: int, indices: _Indices, source: Tensor) -> Tensor: ...
def one_hot(indices: _Indices, num_classes: int, dtype: str | None = "float32", queue: Any = None) -> Tensor: ...

# ---- losses ------------------------------------------------------------------------------------------------------

def mse_loss(input: Tensor, target: _Data, reduction: str = "mean") -> Tensor: ...
def l1_loss(input: Tensor, target: _Data, reduction: str = "mean") -> Tensor: ...
def smooth_l1_loss(input: Tensor, target: _Data, reduction: str = "mean", beta: float = 1.0) -> Tensor: ...
def huber_loss(input: Tensor, target: _Data, reduction: str = "mean", delta: float = 1.0) -> Tensor: ...
def cross_entropy(
    input: Tensor,
    target: _Labels,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor: ...
def nll_loss(
    input: Tensor,
    target: _Labels,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
) -> Tensor: ...
def binary_cross_entropy(
    input: Tensor, target: _Data, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor: ...
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: _Data,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor: ...
def kl_div(input: Tensor, target: _Data, reduction: str = "mean", log_target: bool = False) -> Tensor: ...
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: _Data, margin: float = 0.0, reduction: str = "mean"
) -> Tensor: ...
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor: ...
def soft_margin_loss(input: Tensor, target: _Data, reduction: str = "mean") -> Tensor: ...
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: _Data, margin: float = 0.0, reduction: str = "mean"
) -> Tensor: ...
def hinge_embedding_loss(input: Tensor, target: _Data, margin: float = 1.0, reduction: str = "mean") -> Tensor: ...
def multi_margin_loss(
    input: Tensor,
    target: _Labels,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor: ...
def multilabel_margin_loss(input: Tensor, target: _Indices, reduction: str = "mean") -> Tensor: ...
def multilabel_soft_margin_loss(
    input: Tensor, target: _Data, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor: ...
def poisson_nll_loss(
    input: Tensor,
    target: _Data,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor: ...
def gaussian_nll_loss(
    input: Tensor, target: _Data, var: _Data, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor: ...
