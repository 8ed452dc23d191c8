"""Functions against PyTorch's of the same name: values, gradients, running averages.

The numbers are in golden/functional.npz, made by golden/make_functional.py; golden/functional_cases.py says what is computed.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl.autograd as ag
from netcl import runtime
from netcl.core.device import manager
from netcl.core.index import IndexTensor
from netcl.core.tensor import Tensor
from netcl.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent / "golden"))
from functional_cases import CASES, arguments, read
from nn_cases import numbers

GOLDEN = read()
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def close(actual: Tensor, expected: np.ndarray, tolerance: float, what: str) -> None:
    assert actual.shape == expected.shape, what
    largest = max(float(np.abs(expected).max(initial=0.0)), 1e-3)
    values = actual.to_host().astype(np.float64)
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance * largest, err_msg=what)


def compare(case, queue, dtype: str, tolerance: float, wrap=None, views: bool = False) -> None:
    """Holds a call against PyTorch's: its value, its gradients and, unless it is wrapped and called again, what it wrote.

    With ``views`` the first axis of tensors lies innermost.
    """

    def make(array, _trained):
        if array.dtype.kind in "iu":
            return array
        if not views:
            return Tensor.from_host(queue, array, dtype)
        return ag.permute(Tensor.from_host(queue, np.ascontiguousarray(array.T), dtype), range(array.ndim)[::-1])

    args, kwargs = arguments(case, make)
    named = {**{str(i): x for i, x in enumerate(args)}, **kwargs}
    given = {key: x for key, x in named.items() if isinstance(x, Tensor)}
    prefix = f"{case.name}/grad/"
    wanted = [name.removeprefix(prefix) for name in GOLDEN if name.startswith(prefix)]
    factor = Tensor.from_host(queue, numbers(f"{case.name}/factor", GOLDEN[f"{case.name}/output"].shape), dtype)

    def call(*tensors):
        # Leaves of its own: what a compiled function differentiates must begin inside it.
        new = {key: ag.tensor(tensor, requires_grad=key in wanted) for key, tensor in zip(given, tensors)}
        positional = [new.get(str(i), x) for i, x in enumerate(args)]
        out = getattr(F, case.function)(*positional, **{key: new.get(key, x) for key, x in kwargs.items()})
        return [out.detach(), *ag.grad((out * factor).sum(), [new[key] for key in wanted])]

    function = wrap(call) if wrap else call
    for _ in range(3 if wrap else 1):
        out, *grads = function(*given.values())
        close(out, GOLDEN[f"{case.name}/output"], tolerance, "output")
        for key, grad in zip(wanted, grads):
            close(grad, GOLDEN[prefix + key], tolerance, f"gradient of {key}")
    for key in () if wrap else case.state:
        close(given[key], GOLDEN.get(f"{case.name}/after/{key}"), tolerance, key)


@by_name
def test_functions_equal_pytorch(case):
    # The golden numbers are kept in float32.
    compare(case, manager.default("cpu").queue, "float64", 3e-7)


# A case of each function, and what has kernels of its own: building programs takes long.
ON_DEVICES = {
    *{case.function: case.name for case in reversed(CASES)}.values(),
    *("embedding_bag-sum-1", "embedding_bag-mean-0", "embedding_bag-max-1", "instance_norm-running"),
}


@pytest.mark.parametrize("case", [case for case in CASES if case.name in ON_DEVICES], ids=lambda case: case.name)
@pytest.mark.parametrize("selector", find_device_selectors()[1:])
def test_functions_equal_pytorch_on_opencl(case, selector):
    compare(case, manager.default(selector).queue, "float32", 2e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
# 1 / eps is more than a float16 holds.
@pytest.mark.parametrize("case", [case for case in CASES if case.label != "zeros"], ids=lambda case: case.name)
def test_functions_of_sixteen_bits(case, dtype):
    compare(case, manager.default("cpu").queue, dtype, 0.02 if dtype == "float16" else 0.15)


@by_name
def test_functions_of_views(case):
    compare(case, manager.default("cpu").queue, "float32", 2e-5, views=True)


@by_name
@pytest.mark.parametrize("wrap", [ag.jit, runtime.capture])
def test_compiled_functions_equal_pytorch(case, wrap):
    compare(case, manager.default("cpu").queue, "float32", 2e-5, wrap)


@pytest.mark.parametrize("wrap", [ag.jit, runtime.capture])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_compiled_bags_see_the_offsets_of_each_call(mode, wrap):
    for selector in find_device_selectors():
        queue = manager.default(selector).queue
        table = np.arange(12.0).reshape(4, 3)
        weight = Tensor.from_host(queue, table, "float32")
        indices = IndexTensor.from_host(queue, [3, 1, 0, 2, 1])

        def step(weight, offsets):
            weight = ag.tensor(weight)
            out = F.embedding_bag(indices, weight, offsets, mode)
            return [out.detach(), *ag.grad(out.sum(), [weight])]

        compiled = wrap(step)
        for offsets in ([0, 2, 2], [0, 0, 4], [0, 1, 3]):
            given = IndexTensor.from_host(queue, offsets)
            for found, expected in zip(compiled(weight, given), step(weight, given)):
                np.testing.assert_array_equal(found.to_host(), expected.to_host())
