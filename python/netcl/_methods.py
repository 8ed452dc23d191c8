"""The methods of tensors, attached to the extension's class when the package is imported.

Every function of ``netcl.autograd.ops`` whose first argument is a tensor is a method, except those of ``NOT_METHODS``. The
class ``Methods`` has what only methods do; it is never made. ``_methods.pyi`` has the types (tests/make_method_stubs.py).
"""

from __future__ import annotations

import builtins
import weakref
from typing import Any

from netcl import _composed as composed, _factories as make, _functions as functions, _names as others
from netcl._netcl import Tensor, nn as _nn
from netcl._netcl.autograd import grad as _grad
from netcl.autograd import ops

NOT_METHODS = frozenset(
    "alpha_dropout batch_norm bias_add bilinear cat channel_shuffle dropout dropout1d dropout2d einsum embedding embedding_bag "
    "feature_alpha_dropout fma glu group_norm gumbel_softmax instance_norm interpolate layer_norm linear local_response_norm "
    "matmul_op meshgrid multi_head_attention normalize one_hot pad pairwise_distance pixel_shuffle pixel_unshuffle rms_norm "
    "rotary rrelu scaled_dot_product_attention slice stack upsample where reshape cosine_similarity fold grid_sample "
    "affine_grid block_diag broadcast_tensors cartesian_prod cdist combinations hstack vstack dstack column_stack tensordot "
    "global_avg_pool2d unfold scalar_tensor bucketize array_split atleast_1d compile concatenate finfo "
    "broadcast_shapes can_cast get_num_threads promote_types set_printoptions row_stack vander float_power "
    "iinfo isin result_type trapezoid trapz tril_indices triu_indices unravel_index".split()
)
"""Functions of ``netcl.autograd.ops`` that are no methods: their first argument is not the tensor that they are about, or they
belong to layers."""

NO_METHOD_ENDS = ("_loss", "_pool1d", "_pool2d", "_pool3d", "conv1d", "conv2d", "conv3d", "transpose1d",
                  "transpose2d", "_cross_entropy", "_with_logits", "kl_div", "cross_entropy")  # fmt: skip

IN_PLACE = (
    "abs acos addcdiv addcmul asin atan atan2 ceil cos cosh div_mode erf erfc exp exp2 expm1 floor fmod index_add index_copy "
    "index_fill leaky_relu lerp log log10 log1p log2 logical_and logical_not logical_or logical_xor masked_fill masked_scatter "
    "nan_to_num neg reciprocal relu remainder round rsqrt scatter scatter_add sigmoid sign sin sinh sqrt square tan tanh tril "
    "triu trunc elu clamp_min clamp_max cumsum cumprod absolute acosh addmm addmv asinh atanh bitwise_and bitwise_left_shift "
    "bitwise_not bitwise_or bitwise_right_shift bitwise_xor clip copysign deg2rad digamma divide erfinv fix floor_divide frac "
    "hypot index_put ldexp lgamma logit multiply negative rad2deg renorm scatter_reduce sgn sinc subtract true_divide xlogy"
).split()
"""Functions that also write their result over the tensor, as methods whose name ends in an underscore."""

DTYPES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "bfloat16": "bfloat16",
    "int": "int32",
    "long": "int64",
    "bool": "bool",
}
WHOLE = make.WHOLE
# One more than the largest number that ``random_`` draws: up to there a dtype has every whole number.
_WHOLE_BELOW = {"bool": 2, "bfloat16": 1 << 8, "float16": 1 << 11, "float32": 1 << 24, "float64": 1 << 53, "int64": 1 << 53}
_add_, _sub_ = Tensor.add_, Tensor.sub_
_backward = Tensor.backward
_count = Tensor.size.__get__  # type: ignore[attr-defined]


class Count(builtins.int):
    """The number of elements. It cannot be called: PyTorch's ``x.size(0)`` is ``x.shape[0]``."""

    __slots__ = ()

    def __call__(self, dim: builtins.int | None = None) -> Any:
        written = "x.shape" if dim is None else f"x.shape[{dim}]"
        raise TypeError(f"x.size is the number of elements, {builtins.int(self)}; write {written}")


class Methods:
    """What tensors do besides the functions. ``self`` is a tensor."""

    # ---- what a tensor is ----------------------------------------------------------------------------------------

    @property
    def size(self) -> Count:
        """The number of elements."""
        return Count(_count(self))

    def numel(self) -> int:
        """The number of elements."""
        return builtins.int(_count(self))

    def nelement(self) -> int:
        """The number of elements."""
        return builtins.int(_count(self))

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def ndimension(self) -> int:
        """The number of axes."""
        return self.ndim

    def stride(self, dim: int | None = None) -> Any:
        """The distance between neighbours along each axis, or along one, in elements."""
        return self.strides if dim is None else self.strides[dim]

    def element_size(self) -> int:
        """The bytes of one element."""
        return {"bool": 1, "float16": 2, "bfloat16": 2, "float64": 8, "int64": 8}.get(self.dtype, 4)

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.element_size()

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return builtins.int(_count(self)) * self.element_size()

    def is_floating_point(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype not in WHOLE

    def is_contiguous(self) -> bool:
        """Whether the elements lie densely in row-major order."""
        expected = 1
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != expected:
                return not _count(self)
            expected *= length
        return True

    @property
    def T(self) -> Tensor:
        """The axes in reverse order, as a view."""
        return ops.permute(self, range(self.ndim)[::-1])

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged, as a view."""
        return ops.transpose(self, -2, -1)

    # ---- leaving the tensor --------------------------------------------------------------------------------------

    def tolist(self) -> Any:
        """The values as nested lists of Python's numbers; of a scalar the number."""
        return self.to_host().tolist()

    def __format__(self, spec: str) -> str:
        """``f"{loss:.3f}"``: a tensor of one element as a number, others only without a format."""
        if not spec:
            return str(self)
        if _count(self) != 1:
            raise TypeError(f"a tensor of shape {self.shape} has no format {spec!r}: only one of one element has")
        return format(self.item(), spec)

    def __iter__(self) -> Any:
        if not self.ndim:
            raise TypeError("a scalar tensor cannot be iterated; item() gives its value")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        return builtins.bool((self == value).to_host().any())

    def _repr_html_(self) -> str:
        """What notebooks show: a matrix as a table, anything else as text."""
        import html

        title = f"<div>Tensor {self.shape}, {self.dtype}, {html.escape(str(self.device))}</div>"
        if self.ndim != 2 or not _count(self) or self.shape[0] > 32 or self.shape[1] > 16:
            return f"{title}<pre>{html.escape(repr(self))}</pre>"
        rows = ("".join(f"<td>{value:.6g}</td>" for value in row) for row in self.tolist())
        return f"{title}<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    # ---- dtypes and devices --------------------------------------------------------------------------------------

    def type(self, dtype: str | None = None) -> Any:
        """The values in another dtype; without one the name of the dtype."""
        return self.dtype if dtype is None else self.to(dtype=dtype)

    def type_as(self, other: Tensor) -> Tensor:
        """The values in another tensor's dtype."""
        return self.to(dtype=other.dtype)

    def cpu(self) -> Tensor:
        """The values on the native CPU; the tensor itself if they are there."""
        return self.to("cpu")

    def cuda(self) -> Tensor:
        """``gpu``."""
        return self.to("gpu")

    def pin_memory(self) -> Tensor:
        """The tensor itself: uploads pass through page-locked memory anyway."""
        return self

    def gpu(self) -> Tensor:
        """The values on the best GPU; the tensor itself if they are there."""
        return self.to("gpu")

    # ---- shapes --------------------------------------------------------------------------------------------------

    def view_as(self, other: Tensor) -> Tensor:
        """The same elements in another tensor's shape."""
        return ops.reshape(self, other.shape)

    def reshape_as(self, other: Tensor) -> Tensor:
        """The same elements in another tensor's shape."""
        return ops.reshape(self, other.shape)

    def expand_as(self, other: Tensor) -> Tensor:
        """The elements repeated to another tensor's shape, as a view."""
        return ops.expand(self, other.shape)

    def where(self, condition: Any, other: Any) -> Tensor:
        """The tensor where a condition holds, else ``other``."""
        return ops.where(condition, self, other)

    def unfold(self, dimension: int, size: int, step: int) -> Tensor:
        """Windows of an axis, ``step`` apart, along a new last axis. A copy."""
        axis = dimension % self.ndim
        if not (1 <= size <= self.shape[axis] and step >= 1):
            raise ValueError(f"unfold: windows of {size}, {step} apart, do not fit an axis of {self.shape[axis]}")
        count = (self.shape[axis] - size) // step + 1
        places = make.arange(count, device=self.queue).reshape(-1, 1) * step + make.arange(size, device=self.queue)
        windows = ops.index_select(self, axis, places.reshape(-1))
        return ops.movedim(ops.unflatten(windows, axis, (count, size)), axis + 1, -1)

    def flip(self, *axis: Any, dims: Any = None) -> Tensor:
        """The elements in reverse order along some axes, as a view."""
        return ops.flip(self, functions._several(axis) if dims is None else dims)

    # ---- new tensors of the same dtype and device ------------------------------------------------------------------

    def new_zeros(self, *size: Any, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """Zeros of the tensor's dtype and device."""
        return make.zeros(*size, dtype=dtype or self.dtype, device=device or self.queue, requires_grad=requires_grad)

    def new_ones(self, *size: Any, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """Ones of the tensor's dtype and device."""
        return make.ones(*size, dtype=dtype or self.dtype, device=device or self.queue, requires_grad=requires_grad)

    def new_empty(self, *size: Any, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """Memory of the tensor's dtype and device. It holds zeros."""
        return make.zeros(*size, dtype=dtype or self.dtype, device=device or self.queue, requires_grad=requires_grad)

    def new_full(
        self, size: Any, fill_value: Any, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        """One value in the tensor's dtype and device."""
        return make.full(size, fill_value, dtype=dtype or self.dtype, device=device or self.queue, requires_grad=requires_grad)

    def new_tensor(self, data: Any, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """Given values in the tensor's dtype and device."""
        return make.tensor(data, dtype=dtype or self.dtype, device=device or self.queue, requires_grad=requires_grad)

    # ---- autograd --------------------------------------------------------------------------------------------------

    @property
    def data(self) -> Tensor:
        """The same memory, cut off from autograd; assigning to it replaces the values."""
        return self.detach()

    @data.setter
    def data(self, values: Tensor) -> None:
        self._move_to(values)

    def detach_(self) -> Tensor:
        """Cuts the tensor off from autograd."""
        if not self.is_leaf:
            self._move_to(self.detach().clone())
        self.requires_grad = False
        return self

    def retain_grad(self) -> None:
        """Lets the backward pass keep the ``grad`` of a tensor that is no leaf."""
        if self.is_leaf:
            return
        this = weakref.ref(self)

        def keep(gradient: Tensor) -> None:
            tensor: Any = this()
            if tensor is not None:
                tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient

        self.register_hook(keep)

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = False, create_graph: bool = False, inputs: Any = None
    ) -> None:
        """Computes the gradients of the leaves that this tensor depends on and adds them to their ``grad``. A tensor of other
        than one element needs the ``gradient`` of itself.

        ``retain_graph`` keeps what the walk uses, so that it can be repeated; ``create_graph`` records the walk itself. With
        ``inputs`` only these get gradients."""
        if inputs is None:
            return _backward(self, gradient, retain_graph or create_graph, create_graph)
        wanted = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        # What a tensor keeps by itself during the walk (retain_grad) counts once.
        before = [tensor.grad for tensor in wanted]
        found = _grad(self, wanted, gradient, retain_graph or None, create_graph, True)
        for tensor, earlier, one in zip(wanted, before, found):
            if one is not None:
                tensor.grad = one if earlier is None else earlier + one
        return None

    # ---- in place --------------------------------------------------------------------------------------------------

    def add_(self, other: Any, *, alpha: float = 1) -> Tensor:
        """``x += alpha * other``: written in place, as everyone sees who looks at the same memory.

        The other operand is broadcast and cast to this tensor's shape and dtype. A leaf that requires grad is written to under
        ``no_grad()`` only; the result of a recorded operation goes on as the result of a new one."""
        return _add_(self, other if alpha == 1 else other * alpha)

    def sub_(self, other: Any, *, alpha: float = 1) -> Tensor:
        """``x -= alpha * other``; see ``add_``."""
        return _sub_(self, other if alpha == 1 else other * alpha)

    def uniform_(self, low: float = 0.0, high: float = 1.0, *, generator: make.Generator | None = None) -> Tensor:
        """Overwrites the elements with uniform numbers from [low, high)."""
        return _nn.uniform_(self, low, high, seed=make._drawn(generator))

    def normal_(self, mean: float = 0.0, std: float = 1.0, *, generator: make.Generator | None = None) -> Tensor:
        """Overwrites the elements with normal numbers."""
        return _nn.normal_(self, mean, std, seed=make._drawn(generator))

    def exponential_(self, lambd: float = 1.0, *, generator: make.Generator | None = None) -> Tensor:
        """Overwrites the elements with exponentially distributed numbers of mean ``1 / lambd``."""
        # 1 - u is above 0, where u may be 0.
        uniform = make.rand(*self.shape, device=self.queue, generator=generator)
        return self.copy_(ops.log(1 - uniform) * (-1 / lambd))

    def det(self) -> Tensor:
        """The determinant of matrices; see ``netcl.linalg``."""
        return _linalg().det(self)

    def inverse(self) -> Tensor:
        """The inverse of matrices; see ``netcl.linalg``."""
        return _linalg().inv(self)

    def fill_diagonal_(self, fill_value: float) -> Tensor:
        """Overwrites the diagonal of a matrix."""
        ops.diagonal(self).fill_(fill_value)
        return self

    def random_(self, from_: int = 0, to: int | None = None, *, generator: make.Generator | None = None) -> Tensor:
        """Overwrites the elements with whole numbers from ``from_`` to below ``to``: ``random_(5)``, ``random_(1, 7)``."""
        if to is None:
            from_, to = (0, from_) if from_ else (0, _WHOLE_BELOW.get(self.dtype, 1 << 31))
        drawn = make.randint(from_, to, self.shape, device=self.queue, generator=generator)
        return self.copy_(drawn.to(dtype=self.dtype))

    def bernoulli_(self, p: float = 0.5, *, generator: make.Generator | None = None) -> Tensor:
        """Overwrites the elements with 1 with a probability, else 0."""
        return self.copy_(make.bernoulli(make.full_like(self, p), generator=generator))


def _linalg() -> Any:
    from netcl import linalg

    return linalg


def _bound(name: str, function: Any) -> Any:
    """A builtin function as a method; a function of Python is one already."""
    if type(function) is type(_bound):
        return function

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__, method.__qualname__, method.__doc__ = name, f"Tensor.{name}", function.__doc__
    method.__wrapped__ = function  # type: ignore[attr-defined]
    return method


def _in_place(name: str, function: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.copy_(function(self, *args, **kwargs))

    method.__name__, method.__qualname__ = f"{name}_", f"Tensor.{name}_"
    method.__doc__ = f"``{name}``, written over the tensor in place; see ``add_``."
    method.__wrapped__ = function  # type: ignore[attr-defined]
    return method


def _casting(name: str, dtype: str) -> Any:
    def method(self: Any) -> Any:
        return self.to(dtype=dtype)

    method.__name__, method.__qualname__ = name, f"Tensor.{name}"
    method.__doc__ = f"The values as {dtype}; the tensor itself if they are."
    return method


def names() -> dict[str, Any]:
    """The functions that are methods, by name: the package's own version before that of ``netcl.autograd``."""
    own = (*functions.__all__, "permute", "expand", "broadcast_to")
    found = {
        name: function
        for name, function in vars(ops).items()
        if callable(function)
        and not isinstance(function, builtins.type)
        and not name.startswith("_")
        and name not in NOT_METHODS
        and not name.endswith(NO_METHOD_ENDS)
    }
    not_own = NOT_METHODS | {"ValuesAndIndices", "concat", "conv2d", "elementwise_binary", "reduce_sum"}
    found |= {name: getattr(home, name) for home in (composed, others) for name in home.__all__ if name not in not_own}
    return found | {name: getattr(functions, name) for name in own if name not in not_own}


def attach() -> None:
    """Gives the extension's class its methods."""
    native = set(vars(Tensor))
    found = names()
    for name, function in found.items():
        if name not in native:
            setattr(Tensor, name, _bound(name, function))
    Tensor.view = Tensor.reshape  # type: ignore[method-assign]
    for name in IN_PLACE:
        if name in found and f"{name}_" not in vars(Tensor):
            setattr(Tensor, f"{name}_", _in_place(name, found[name]))
    for name, dtype in DTYPES.items():
        setattr(Tensor, name, _casting(name, dtype))
    for name, value in vars(Methods).items():
        if name not in (
            "__module__",
            "__doc__",
            "__dict__",
            "__weakref__",
            "__qualname__",
            "__firstlineno__",
            "__static_attributes__",
        ):
            setattr(Tensor, name, value)


attach()
