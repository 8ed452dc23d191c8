"""Collectives over devices of one process: any mixture of OpenCL devices and the native CPU, against NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import netcl
from netcl import IndexTensor, Tensor, distributed as dist
from netcl.autograd import no_grad
from netcl.core.device import manager

NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
FLOATS = ["float32", "float64", "float16", "bfloat16"]
SHAPES = [(), (0,), (1,), (5, 3), (17, 1, 3)]


def queues():
    """The native CPU at either end, every OpenCL device between."""
    found = [manager.default(at).queue for at in range(len(manager.discover()))]
    return [manager.default("cpu").queue, *found, manager.default("cpu").queue]


def tensor_of(queue, values, dtype):
    if dtype in ("int32", "int64"):
        return IndexTensor.from_host(queue, values.astype(dtype), dtype=dtype)
    return Tensor.from_host(queue, values.astype(np.float64), dtype=dtype)


def lists(shape, dtype):
    rng = np.random.default_rng(7)
    places = queues()
    # Eighths and whole numbers: exact in every dtype, also their sums.
    arrays = [rng.integers(-8, 8, shape).astype(np.float64) / (1 if dtype.startswith("int") else 8) for _ in places]
    return arrays, [tensor_of(queue, values, dtype) for queue, values in zip(places, arrays, strict=True)]


def values_of(tensor):
    return np.asarray(tensor.to_host(), dtype=np.float64)


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64"])
def test_every_collective_agrees_with_numpy(dtype):
    for shape in SHAPES:
        for op, expected_of in NUMPY.items():
            arrays, tensors = lists(shape, dtype)
            if op == "mean" and dtype.startswith("int"):
                with pytest.raises(ValueError, match="the mean of int"):
                    dist.all_reduce(tensors, op)
                continue
            expected = values_of(tensor_of(manager.default("cpu").queue, expected_of(arrays, axis=0), dtype))
            assert dist.all_reduce(tensors, op) is tensors
            for tensor in tensors:
                np.testing.assert_array_equal(values_of(tensor), expected)
            _, tensors = lists(shape, dtype)
            dist.reduce(tensors, op, root=1)
            np.testing.assert_array_equal(values_of(tensors[1]), expected)
            np.testing.assert_array_equal(values_of(tensors[0]), arrays[0])
        arrays, tensors = lists(shape, dtype)
        whole = np.stack(arrays) if shape == () else np.concatenate(arrays)
        np.testing.assert_array_equal(values_of(dist.gather(tensors)), whole)
        for gathered, tensor in zip(dist.all_gather(tensors), tensors, strict=True):
            np.testing.assert_array_equal(values_of(gathered), whole)
            assert gathered.queue.device == tensor.queue.device
        if shape:
            for got, want in zip(dist.scatter(tensors[1], 3), np.array_split(arrays[1], 3), strict=True):
                np.testing.assert_array_equal(values_of(got), want)
            places = queues()
            cut = np.array_split(arrays[0], len(places))
            for got, want, queue in zip(dist.scatter(tensors[0], places), cut, places, strict=True):
                np.testing.assert_array_equal(values_of(got), want)
                assert got.queue.device == queue.device
            sums = np.array_split(np.sum(arrays, axis=0), len(tensors))
            for got, want in zip(dist.reduce_scatter(tensors), sums, strict=True):
                np.testing.assert_array_equal(values_of(got), want)
            cuts = [np.array_split(array, len(tensors)) for array in arrays]
            for at, got in enumerate(dist.all_to_all(tensors)):
                np.testing.assert_array_equal(values_of(got), np.concatenate([cut[at] for cut in cuts]))
        assert dist.broadcast(tensors, root=1) is tensors
        for tensor in tensors:
            np.testing.assert_array_equal(values_of(tensor), arrays[1])
    dist.barrier(tensors)


def test_nan_stays_and_views_are_written_where_they_lie():
    places = queues()
    tensors = [Tensor.from_host(queue, np.arange(6.0, dtype=np.float32).reshape(2, 3)) for queue in places]
    tensors[1][0, 1] = float("nan")
    dist.all_reduce([netcl.ops.transpose(tensor) for tensor in tensors], "max")
    expected = np.array([[0, np.nan, 2], [3, 4, 5]], np.float32)
    for tensor in tensors:
        np.testing.assert_array_equal(tensor.to_host(), expected)


def test_large_tensors_go_in_chunks():
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(700_001).astype(np.float32) for _ in queues()]
    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected += array
    tensors = [Tensor.from_host(queue, array) for queue, array in zip(queues(), arrays, strict=True)]
    dist.all_reduce(tensors)
    for tensor in tensors:
        np.testing.assert_array_equal(tensor.to_host(), expected)


def test_errors_name_the_place_in_the_list():
    queue = manager.default("cpu").queue
    a, b = Tensor.from_shape(queue, (2, 3)), Tensor.from_shape(queue, (3,))
    with pytest.raises(ValueError, match=r"tensor 1 is float32 of shape \(3,\), tensor 0 is float32 of shape \(2, 3\)"):
        dist.all_reduce([a, b])
    with pytest.raises(ValueError, match="use one of sum, mean, max, min"):
        dist.all_reduce([a, a], "product")
    with pytest.raises(ValueError, match="no tensor 2 in a list of 2"):
        dist.broadcast([a, a], root=2)
    with pytest.raises(IndexError, match="root -1"):
        dist.broadcast([a, a], root=-1)
    with pytest.raises(TypeError, match="group= goes with"):
        dist.all_reduce([a, a], group=object())
    with pytest.raises(ValueError, match="chunks=0"):
        dist.scatter(a, 0)
    assert dist.all_reduce([]) == []


class Group:
    """What a group of ranks is to the functions of this module."""

    def __init__(self):
        self.calls = []

    def all_reduce(self, tensor, op):
        self.calls.append(("all_reduce", op))

    def all_gather(self, tensor):
        return [tensor, tensor]

    def barrier(self):
        self.calls.append(("barrier",))


def test_one_tensor_goes_to_the_group():
    group, x = Group(), Tensor.from_shape(manager.default("cpu").queue, (2,))
    assert dist.all_reduce(x, "max", group=group) is x
    assert len(dist.all_gather(x, group=group)) == 2
    dist.barrier(group=group)
    assert group.calls == [("all_reduce", "max"), ("barrier",)]


def test_one_tensor_of_each_rank_as_numpy_has_it():
    queue, size = manager.default("cpu").queue, 3
    arrays = [np.arange(14, dtype=np.float32).reshape(7, 2) * (rank + 1) for rank in range(size)]
    total = np.sum(arrays, 0)
    parts = [np.array_split(array, size) for array in arrays]
    found = [None] * size

    def run(group):
        def own():
            return Tensor.from_host(queue, arrays[group.rank])

        gathered = dist.gather(own(), root=1, group=group)
        results = {
            "all_reduce": dist.all_reduce(own(), group=group),
            "reduce": dist.reduce(own(), root=2, group=group),
            "broadcast": dist.broadcast(own(), root=1, group=group),
            "reduce_scatter": dist.reduce_scatter(own(), group=group),
            "all_to_all": dist.all_to_all(own(), group=group),
            "all_gather": np.concatenate(dist.all_gather(own(), group=group)),
            "gather": np.concatenate(gathered) if gathered is not None else np.zeros(0),
        }
        found[group.rank] = {name: np.asarray(result) for name, result in results.items()}

    threads = [threading.Thread(target=run, args=(group,), daemon=True) for group in dist.threads(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for rank, results in enumerate(found):
        expected = {
            "all_reduce": total,
            "reduce": total if rank == 2 else arrays[rank],
            "broadcast": arrays[1],
            "reduce_scatter": np.array_split(total, size)[rank],
            "all_to_all": np.concatenate([part[rank] for part in parts]),
            "all_gather": np.concatenate(arrays),
            "gather": np.concatenate(arrays) if rank == 1 else np.zeros(0),
        }
        assert results is not None and results.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(results[name], value, err_msg=f"{name} on rank {rank}")


@pytest.mark.parametrize("mixed", [False, True])
def test_a_captured_function_repeats_its_collectives(mixed):
    """A data-parallel step over devices: launches on each, the sum of both gradients, an update on each."""
    for place in queues()[:-1]:
        other = manager.default("cpu").queue if mixed else place
        weights = [Tensor.from_host(queue, np.ones(5, np.float32)) for queue in (place, other)]

        def step(x, y, weights=weights):
            parts = [x * weights[0], y * weights[1]]
            dist.all_reduce(parts, "mean")
            for weight, part in zip(weights, parts, strict=True):
                weight -= part * 0.5
            return parts[0], parts[1]

        captured = netcl.runtime.capture(step)
        expected = np.ones(5, np.float32)
        for i in range(4):
            x, y = np.full(5, i, np.float32), np.full(5, 2.0, np.float32)
            mean = (x * expected + y * expected) / np.float32(2)
            expected = expected - mean * np.float32(0.5)
            with no_grad():
                got = captured(Tensor.from_host(place, x), Tensor.from_host(other, y))
            for part, weight in zip(got, weights, strict=True):
                np.testing.assert_array_equal(part.to_host(), mean)
                np.testing.assert_array_equal(weight.to_host(), expected)
        assert captured.recordings == 1


def test_device_manager_has_a_queue_for_each_device():
    found = manager.discover()
    devices = dist.DeviceManager()
    assert devices.num_devices() == max(len(found), 1) == len(devices.get_queues())
    named = dist.DeviceManager(["cpu", *[device for _, device in found]])
    assert named.num_devices() == len(found) + 1
    assert named.get_queues()[0] is manager.default("cpu").queue
    with pytest.raises(ValueError, match="no device matches"):
        dist.DeviceManager(["no such device"])


SEVERAL = """
import numpy as np
from netcl import Tensor, distributed as dist
queues = [queue for queue in dist.DeviceManager().get_queues() if "pocl" in queue.device.platform.name.lower() or
          "portable" in queue.device.platform.name.lower()]
assert len(queues) == 2, queues
arrays = [np.arange(1001, dtype=np.float32) * (at + 1) for at in range(2)]
tensors = [Tensor.from_host(queue, array) for queue, array in zip(queues, arrays)]
dist.all_reduce(tensors, "mean")
for tensor in tensors:
    np.testing.assert_array_equal(tensor.to_host(), arrays[0] * 1.5)
np.testing.assert_array_equal(dist.gather(tensors).to_host(), np.concatenate([arrays[0] * 1.5] * 2))
print("two devices agree")
"""


def test_several_pocl_devices():
    if not any("portable" in platform.name.lower() for platform, _ in manager.discover()):
        pytest.skip("no PoCL here")
    environment = {**os.environ, "POCL_DEVICES": "pthread pthread"}
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "two devices agree" in done.stdout, done.stderr
