"""Functions that make tensors: ``netcl.zeros(2, 3)``, ``netcl.tensor([1, 2])``.

Every one takes ``dtype``, ``device`` (a selector such as ``"gpu"``, a handle or a queue; else the active or default device) and
``requires_grad``. Whole numbers give int64, ``True`` and ``False`` bool, anything else float32.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from netcl import ops
from netcl._netcl import IndexTensor, Tensor, manual_seed as _manual_seed

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "BoolTensor",
    "DoubleTensor",
    "FloatTensor",
    "Generator",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "Size",
    "arange",
    "as_tensor",
    "asarray",
    "bernoulli",
    "empty",
    "empty_like",
    "eye",
    "from_numpy",
    "full",
    "full_like",
    "get_default_dtype",
    "initial_seed",
    "is_floating_point",
    "is_tensor",
    "linspace",
    "logspace",
    "manual_seed",
    "normal",
    "numel",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "seed",
    "set_default_dtype",
    "tensor",
    "use_deterministic_algorithms",
    "zeros",
    "zeros_like",
]

WHOLE = ("int64", "int32", "bool")
_seed = 0


class _Kind(str):
    """The name of a dtype that makes tensors of it: PyTorch's ``FloatTensor([1, 2])``, ``x.type(FloatTensor)``."""

    def __call__(self, *data: Any) -> Tensor:
        if not data or all(isinstance(length, int) for length in data):
            return zeros(*(data or (0,)), dtype=str(self))
        return tensor(data[0], dtype=str(self))


FloatTensor, DoubleTensor, HalfTensor = _Kind("float32"), _Kind("float64"), _Kind("float16")
LongTensor, IntTensor, BoolTensor = _Kind("int64"), _Kind("int32"), _Kind("bool")
Size = tuple  # type: ignore[type-arg]
"""What shapes are: ``tuple``."""


class Generator:
    """Random numbers of its own: ``netcl.rand(3, generator=netcl.Generator().manual_seed(7))``."""

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self._seed = 0
        self._random = random.Random(0)

    def manual_seed(self, seed: int) -> Generator:
        """Starts again from a seed; gives the generator back."""
        self._seed, self._random = seed, random.Random(seed)
        return self

    def initial_seed(self) -> int:
        """The seed it was started from."""
        return self._seed

    def _next(self) -> int:
        return self._random.getrandbits(63)


def manual_seed(seed: int) -> None:
    """Seeds the process-wide random generator, so that what follows can be repeated."""
    global _seed
    _manual_seed(seed)
    _seed = seed


def initial_seed() -> int:
    """The seed last given to ``manual_seed``."""
    return _seed


def seed() -> int:
    """Seeds the process-wide random generator with a number of the system's, and returns it."""
    number = random.SystemRandom().getrandbits(63)
    manual_seed(number)
    return number


def get_default_dtype() -> str:
    """The dtype of floating-point tensors for which none is named: always ``"float32"``."""
    return "float32"


def set_default_dtype(d: str) -> None:
    """Accepts ``"float32"``, which the default always is; name other dtypes where tensors are made."""
    if d != "float32":
        raise ValueError(f"set_default_dtype: the default is always float32; give dtype={d!r} where tensors are made")


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Changes nothing: results always repeat to the bit."""


def is_tensor(obj: Any) -> bool:
    """Whether an object is a tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    """Whether a tensor holds floating-point numbers."""
    return input.dtype not in WHOLE


def numel(input: Tensor) -> int:
    """The number of elements."""
    return int(input.size)


def _queue(device: Any) -> Any:
    """The queue that a ``device`` argument names; ``None`` is the active or default device."""
    from netcl.nn._arguments import resolve_queue

    return None if device is None else resolve_queue(device)


def _shape(size: tuple[Any, ...]) -> Any:
    """``zeros(2, 3)``, ``zeros((2, 3))``."""
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size


def _placed(values: Any, dtype: str, device: Any, requires_grad: bool) -> Tensor:
    """An array as a new tensor."""
    queue = _queue(device)
    if dtype in WHOLE:
        made: Any = IndexTensor.from_host(queue, values, dtype)
    else:
        made = Tensor.from_host(queue, values, dtype)
    return _leaf(made, requires_grad)


def _leaf(made: Any, requires_grad: bool) -> Tensor:
    if requires_grad:
        made.requires_grad = True
    result: Tensor = made
    return result


def tensor(
    data: Any, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """A new tensor with the values of a number, nested lists, an array or a tensor.

        netcl.tensor([1.0, 2.0])                    # float32
        netcl.tensor([[1, 2], [3, 4]])              # int64
        netcl.tensor([True], device="gpu")

    An array keeps its dtype where there is a tensor of it.
    """
    import numpy as np

    if isinstance(data, Tensor):
        made = data.detach().clone()
        return _leaf(made if dtype is device is None else made.to(device, dtype), requires_grad)
    if isinstance(data, (list, tuple)):
        data = _without_tensors(data)
    array = np.asarray(data)
    if dtype is None:
        known = isinstance(data, (np.ndarray, np.generic)) and array.dtype.name in ("float16", "float32", "float64", "int32")
        dtype = array.dtype.name if known else _DTYPES.get(array.dtype.kind)
        if dtype is None:
            raise TypeError(f"tensor: numbers or truth values are needed, not {array.dtype} ({type(data).__name__})")
    return _placed(array, dtype, device, requires_grad)


_DTYPES = {"f": "float32", "i": "int64", "u": "int64", "b": "bool"}


def _without_tensors(data: Any) -> Any:
    """Nested lists with numbers in place of tensors."""
    if isinstance(data, Tensor):
        return data.tolist()
    return [_without_tensors(part) for part in data] if isinstance(data, (list, tuple)) else data


def as_tensor(data: Any, dtype: str | None = None, device: Any = None) -> Tensor:
    """``data`` itself where it is a tensor of that dtype and device, else a new one."""
    if isinstance(data, Tensor):
        return data if dtype is device is None else data.to(device, dtype)
    return tensor(data, dtype=dtype, device=device)


asarray = as_tensor
"""Another name of ``as_tensor``."""


def from_numpy(ndarray: np.ndarray[Any, Any]) -> Tensor:
    """A tensor with the values of an array and its dtype. A copy: PyTorch's shares the memory."""
    return tensor(ndarray)


def full(
    size: Sequence[int] | int, fill_value: Any, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of one value."""
    if isinstance(fill_value, Tensor):
        fill_value = fill_value.item()
    if dtype is None:
        dtype = "bool" if isinstance(fill_value, bool) else "int64" if isinstance(fill_value, int) else "float32"
    if dtype not in WHOLE:
        return _leaf(ops.full(size, fill_value, dtype, _queue(device)), requires_grad)
    import numpy as np

    return _placed(np.full(size, fill_value, dtype), dtype, device, requires_grad)


def zeros(*size: Any, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros, float32 unless named: ``zeros(2, 3)`` or ``zeros((2, 3))``."""
    return full(_shape(size), 0, dtype=dtype or "float32", device=device, requires_grad=requires_grad)


def ones(*size: Any, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones, float32 unless named: ``ones(2, 3)`` or ``ones((2, 3))``."""
    return full(_shape(size), 1, dtype=dtype or "float32", device=device, requires_grad=requires_grad)


def empty(*size: Any, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor whose values nobody should read yet. They are zeros."""
    return zeros(*size, dtype=dtype, device=device, requires_grad=requires_grad)


def arange(
    start: float, end: float | None = None, step: float = 1, *, dtype: str | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The numbers from ``start`` (0 if one number is given) to below ``end``: int64 if all are whole, else float32."""
    import numpy as np

    start, end = (0, start) if end is None else (start, end)
    whole = all(isinstance(number, (int, np.integer)) for number in (start, end, step))
    dtype = dtype or ("int64" if whole else "float32")
    if dtype in WHOLE:
        return _placed(np.arange(start, end, step), dtype, device, requires_grad)
    return _leaf(ops.arange(float(start), float(end), float(step), dtype, _queue(device)), requires_grad)


def linspace(
    start: float, end: float, steps: int, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """``steps`` numbers from ``start`` to ``end``, both included, at equal distances."""
    import numpy as np

    return _placed(np.linspace(start, end, steps), dtype or "float32", device, requires_grad)


def logspace(
    start: float, end: float, steps: int, base: float = 10.0, *, dtype: str | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """``base`` to the power of each of ``linspace(start, end, steps)``."""
    import numpy as np

    return _placed(np.logspace(start, end, steps, base=base), dtype or "float32", device, requires_grad)


def eye(n: int, m: int | None = None, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal of a matrix of zeros."""
    import numpy as np

    return _placed(np.eye(n, m), dtype or "float32", device, requires_grad)


def _drawn(generator: Generator | None) -> int | None:
    return None if generator is None else generator._next()


def rand(
    *size: Any, generator: Generator | None = None, dtype: str | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uniform numbers from 0 to below 1."""
    made = ops.uniform(_shape(size), 0.0, 1.0, dtype or "float32", _queue(device), _drawn(generator))
    return _leaf(made, requires_grad)


def randn(
    *size: Any, generator: Generator | None = None, dtype: str | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Normal numbers of mean 0 and deviation 1."""
    made = ops.normal(_shape(size), 0.0, 1.0, dtype or "float32", _queue(device), _drawn(generator))
    return _leaf(made, requires_grad)


def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Sequence[int] | None = None, *, generator: Generator | None = None,
    dtype: str | None = None, device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Normal numbers of a mean and a deviation; one of them may be a tensor instead of giving a ``size``."""
    given = next((part for part in (mean, std) if isinstance(part, Tensor)), None)
    if given is not None:
        made: Tensor = mean + std * randn_like(given, generator=generator)
        return made
    if size is None:
        raise TypeError("normal: give the size, or a tensor as mean or std")
    drawn = ops.normal(size, float(mean), float(std), dtype or "float32", _queue(device), _drawn(generator))
    return _leaf(drawn, requires_grad)


def randint(
    low: int, high: Any = None, size: Sequence[int] | None = None, *, generator: Generator | None = None,
    dtype: str | None = None, device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Whole numbers from ``low`` (0 if one number is given) to below ``high``:
    ``randint(10, (2, 3))``, ``randint(0, 10, (2, 3))``."""
    if size is None:
        low, high, size = 0, low, high
    if size is None or isinstance(high, (tuple, list)):
        raise TypeError("randint: write randint(high, size) or randint(low, high, size)")
    if high <= low:
        raise ValueError(f"randint: no whole number is at least {low} and below {high}")
    count = high - low
    # float32 has too few values for large ranges, and not every device has float64.
    small = count <= 1 << 20
    drawn = ops.uniform(
        size, 0.0, float(count), "float32" if small else "float64", _queue(device if small else "cpu"), _drawn(generator)
    )
    drawn = ops.minimum(ops.floor(drawn), float(count - 1))
    made = drawn.to(dtype="int64") + low
    return _leaf(made.to(None if small else device, dtype or "int64"), requires_grad)


def randperm(n: int, *, generator: Generator | None = None, dtype: str | None = None, device: Any = None) -> Tensor:
    """The numbers from 0 to below ``n`` in random order."""
    made: Any = ops.permutation(n, _queue(device), _drawn(generator))
    return _leaf(made if dtype is None else made.to(dtype=dtype), False)


def bernoulli(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with the probabilities of a tensor, else 0."""
    drawn = ops.uniform(input.shape, 0.0, 1.0, input.dtype, input.queue, _drawn(generator))
    return ops.lt(drawn, input.detach()).to(dtype=input.dtype)


def zeros_like(input: Tensor, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of a tensor's shape, dtype and device."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones_like(input: Tensor, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of a tensor's shape, dtype and device."""
    return full_like(input, 1, dtype=dtype, device=device, requires_grad=requires_grad)


def empty_like(input: Tensor, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of another one's shape, dtype and device, whose values nobody should read yet. They are zeros."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def full_like(
    input: Tensor, fill_value: Any, *, dtype: str | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """One value in a tensor's shape, dtype and device."""
    return full(
        input.shape, fill_value, dtype=dtype or input.dtype, device=input.queue if device is None else device,
        requires_grad=requires_grad,
    )  # fmt: skip


def rand_like(
    input: Tensor, *, generator: Generator | None = None, dtype: str | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Uniform numbers in a tensor's shape, dtype and device."""
    queue = input.queue if device is None else device
    return rand(input.shape, generator=generator, dtype=dtype or input.dtype, device=queue, requires_grad=requires_grad)


def randn_like(
    input: Tensor, *, generator: Generator | None = None, dtype: str | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Normal numbers in a tensor's shape, dtype and device."""
    queue = input.queue if device is None else device
    return randn(input.shape, generator=generator, dtype=dtype or input.dtype, device=queue, requires_grad=requires_grad)


def randint_like(input: Tensor, low: int, high: int | None = None, *, dtype: str | None = None, device: Any = None) -> Tensor:
    """Whole numbers in a tensor's shape, dtype and device."""
    low, high = (0, low) if high is None else (low, high)
    queue = input.queue if device is None else device
    return randint(low, high, input.shape, dtype=dtype or input.dtype, device=queue)
