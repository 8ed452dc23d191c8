"""Tensors of whole numbers and truth values: NumPy's results, PyTorch's dtypes, on every device."""

import operator

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
import netcl.autograd as ag
from netcl import IndexTensor, Tensor
from netcl.core.device import manager

BIG = 2**53  # float64 does not tell its neighbours apart
LEFT = np.array([[7, -7, BIG + 1, 0], [-1, 3, 2**62, -(2**63)]])
RIGHT = np.array([3, -2, BIG, 5])
TRUTH = np.array([True, False, True, False])


@pytest.fixture(params=find_device_selectors())
def q(request):
    return manager.default(request.param).queue


def whole(q, values):
    return IndexTensor.from_host(q, values, dtype="bool" if values.dtype == bool else "int64")


BINARY = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.and_, operator.or_, operator.xor,
          operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge]  # fmt: skip


@pytest.mark.parametrize("function", BINARY)
def test_arithmetic_is_exact_and_wraps_around(q, function):
    with np.errstate(over="ignore"):
        expected, by_number = function(LEFT, RIGHT), function(LEFT, 3)
    result = function(whole(q, LEFT), whole(q, RIGHT))
    assert type(result) is IndexTensor and result.dtype == expected.dtype.name
    np.testing.assert_array_equal(result.numpy(), expected)
    np.testing.assert_array_equal(function(whole(q, LEFT), 3).numpy(), by_number)
    if function not in (operator.floordiv, operator.mod):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(function(3, whole(q, LEFT)).numpy(), function(3, LEFT))


def test_truth_values_combine_to_truth_values(q):
    a, b = whole(q, TRUTH), whole(q, TRUTH[::-1].copy())
    for result, expected in [
        (a & b, TRUTH & TRUTH[::-1]), (a | b, TRUTH | TRUTH[::-1]), (a ^ b, TRUTH ^ TRUTH[::-1]), (~a, ~TRUTH),
        (a * b, TRUTH & TRUTH[::-1]), (a + b, TRUTH | TRUTH[::-1]),
    ]:  # fmt: skip
        assert result.dtype == "bool" and result.numpy().dtype == bool
        np.testing.assert_array_equal(result.numpy(), expected)
    assert (a + 1).dtype == "int64" and (a * 2.5).dtype == "float32"
    with pytest.raises(ValueError, match="truth values cannot be subtracted"):
        a - b
    with pytest.raises(TypeError, match="bitwise_and: .*compare first"):
        Tensor.from_host(q, [1.0]) & a


def test_mixed_operands_promote_as_in_pytorch(q):
    i32, i64 = IndexTensor.from_host(q, [1, 2], dtype="int32"), IndexTensor.from_host(q, [3, 4])
    mask, half, double = i64 > 3, Tensor.from_host(q, [1, 2], dtype="float16"), Tensor.from_host(q, [1, 2], dtype="float64")
    kinds = {"i32 + i64": "int64", "i32 + 1": "int32", "i64 / 2": "float32", "i32 * half": "float16", "i64 * 2.0": "float32",
             "mask * double": "float64", "i64 + mask": "int64", "ag.exp(i64)": "float32", "ag.where(mask, i32, i64)": "int64",
             "ag.where(mask, half, 0)": "float16", "ag.where(mask, i64, 0.5)": "float32", "abs(-i32)": "int32",
             "ag.where(mask, half.sum().float(), double.sum())": "float64", "ag.where(mask, half, double.sum())": "float16"}  # fmt: skip
    names = {"i32": i32, "i64": i64, "mask": mask, "half": half, "double": double, "ag": ag}
    for text, dtype in kinds.items():
        assert eval(text, names).dtype == dtype, text
    with pytest.raises(ValueError, match="floor_divide: division of whole numbers by 0"):
        i64 // 0
    with pytest.raises(TypeError, match="float"):
        i64.requires_grad = True


def test_reductions_and_scans_of_whole_numbers_are_exact(q):
    values = np.random.default_rng(0).integers(-(2**40), 2**40, (3, 1000, 2))
    x = whole(q, values)
    for name, axis in [("sum", 1), ("sum", None), ("max", (0, 2)), ("min", 1), ("prod", 2), ("any", 0), ("all", None)]:
        expected = getattr(values, name)(axis=axis)
        result = getattr(ag, name)(x, axis=axis)
        np.testing.assert_array_equal(result.numpy(), expected, err_msg=f"{name} {axis}")
        assert result.dtype == ("bool" if name in ("any", "all") else "int64")
    np.testing.assert_array_equal(ag.cumsum(x, 1).numpy(), values.cumsum(1))
    assert ag.sum(x > 0).item() == (values > 0).sum() and type(ag.sum(x > 0).item()) is int
    np.testing.assert_allclose(ag.mean(x > 0).item(), (values > 0).mean(), rtol=1e-6)
    assert ag.sum(IndexTensor.from_host(q, np.zeros((0, 2), int)), axis=0).numpy().tolist() == [0, 0]


def test_masks_take_part_in_recorded_and_compiled_functions(q):
    x = Tensor.from_host(q, [[-1.0, 2.0], [3.0, -4.0]], dtype="float64" if q == manager.default("cpu").queue else None)
    x.requires_grad = True

    def masked(x):
        return ag.sum(x * x * (x > 0)) + ag.sum(ag.where((x < 0) & (x > -2), x, 0.0))

    plain = masked(x)
    (expected,) = ag.grad(plain, x)
    assert plain.item() == 12.0 and expected.numpy().tolist() == [[1.0, 4.0], [6.0, 0.0]]
    assert netcl.autograd.jit(masked)(x).item() == 12.0
    assert netcl.autograd.jit(lambda x: x > 0)(x).numpy().tolist() == [[False, True], [True, False]]


def test_casts_between_kinds(q):
    x = Tensor.from_host(q, [0.0, 0.5, -2.7, 300.0])
    assert x.to("bool").numpy().tolist() == [False, True, True, True] and x.to("int64").numpy().tolist() == [0, 0, -2, 300]
    assert (x > 0).to("float32").numpy().tolist() == [0.0, 1.0, 0.0, 1.0]
    assert (x > 0)[1].item() is True and int(x.to("int32")[3]) == 300 and list(range(x.to("int64")[3]))[-1] == 299
    index = IndexTensor.from_host(q, [1, 2])
    index += 3
    assert index.numpy().tolist() == [4, 5]
    with pytest.raises(TypeError, match="mul_: .*int64"):
        index *= 0.5
