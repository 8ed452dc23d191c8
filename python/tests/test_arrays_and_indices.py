"""Values as NumPy's arrays, and comparisons of indices, on every device."""

import operator

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
from netcl.core.device import manager
from netcl.core.index import IndexTensor
from netcl.core.tensor import Tensor, reshape


@pytest.fixture(params=find_device_selectors())
def q(request):
    return manager.default(request.param).queue


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numpy_is_a_copy_on_every_backend(q, dtype):
    tensor = Tensor.from_host(q, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=dtype)
    for source in (tensor, tensor[:, ::2], reshape(tensor, (6,)), tensor[0, 1], tensor[:0]):
        for copy_of in (source.numpy, lambda source=source: np.array(source)):
            values = copy_of()
            assert values.flags.writeable and values.flags.owndata
            before = values.copy()
            values[...] = 99.0
            np.testing.assert_array_equal(source.numpy(), before)
    values = tensor.numpy()
    tensor.wait()
    netcl.ops.mul(tensor, 2.0, out=tensor)
    assert values[0, 0] == 1.0 and tensor.numpy()[0, 0] == 2.0
    if tensor.backend == "cpu" and dtype != "bfloat16":
        assert tensor.to_host() is tensor.array and np.shares_memory(np.asarray(tensor), tensor.array)
    elif tensor.backend != "cpu":
        assert tensor.array is None
        np.testing.assert_array_equal(np.asarray(tensor), tensor.numpy())


def test_index_tensors_compare_element_by_element(q):
    functions = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
    big = 2**53  # float64 does not tell its neighbours apart
    rows = np.array([[0, -3, big], [big + 1, -big - 1, 2**62]])
    column = np.array([[big], [-3]])
    others = [rows, rows[0], column, column.astype(np.int32, casting="unsafe"), np.int64(-3), big + 1, -3, True]
    others += [rows[0].tolist(), np.array(0), np.array([True, False, True]), np.array([3, 0, 255], np.uint8)]
    for other in others:
        for function in functions:
            results = [(rows, function(IndexTensor.from_host(q, rows), other))]
            results += [(None, function(other, IndexTensor.from_host(q, rows)))]
            array = np.asarray(other)
            if array.dtype in (np.int32, np.int64):
                twin = IndexTensor.from_host(q, array, dtype=array.dtype.name)
                results += [(rows, function(IndexTensor.from_host(q, rows), twin))]
            for left, result in results:
                expected = function(rows, array) if left is not None else function(array, rows)
                assert type(result) is IndexTensor and result.dtype == "bool" and not result.requires_grad
                np.testing.assert_array_equal(result.to_host(), expected)
    small = IndexTensor.from_host(q, [1, 2, 3], dtype="int32")
    assert (small == IndexTensor.from_host(q, [1, 5, 3])).to_host().tolist() == [1, 0, 1]
    assert (small == netcl.ops.argmax(Tensor.from_host(q, np.eye(3)), axis=1)).sum().item() == 0
    assert (IndexTensor.from_host(q, np.zeros((0, 3), np.int64)) == small).shape == (0, 3)


def test_index_tensors_are_told_apart_from_other_objects():
    q = manager.default("cpu").queue
    index = IndexTensor.from_host(q, [1, 2, 3])
    assert hash(index) == hash(index) and {index: 1}[index] == 1
    assert (index == None) is False and (index != "a") is True  # noqa: E711
    for float_like in (1.0, np.array([1.0, 2.5, 2.0]), Tensor.from_host(q, [1, 2.5, 2]), [1.0, 2.5, 2.0], np.float32(1)):
        assert (index == float_like).to_host().tolist() == [True, False, False]
    with pytest.raises(ValueError, match="lt: .* does not fit into int64"):
        index < 2**63  # noqa: B015
    with pytest.raises(ValueError, match=r"eq: .*\(3,\).*\(2,\)"):
        index == [1, 2]  # noqa: B015
    with pytest.raises(TypeError):
        index < None  # noqa: B015
    if len(find_device_selectors()) > 1:
        with pytest.raises(ValueError, match="eq: "):
            index == IndexTensor.from_host(manager.default("0").queue, [1, 2, 3])  # noqa: B015
