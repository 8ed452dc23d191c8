"""Batches that travel ahead of the steps that use them."""

import threading

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl import IndexTensor, Tensor, manual_seed, runtime
from netcl.core.device import manager
from netcl.nn import Linear, functional as F
from netcl.optim import SGD
from netcl.runtime import Scheduler, capture, prefetch


@pytest.fixture(params=find_device_selectors())
def queue(request):
    return manager.default(request.param).queue


def batch(i, rows=64):
    rng = np.random.default_rng(i)
    return rng.normal(size=(rows, 6)).astype(np.float32), rng.integers(0, 3, rows)


def test_batches_come_in_order_with_their_types(queue):
    feed = Scheduler(queue, depth=3)
    assert feed.depth == 3 and feed.waiting == 0
    kinds = ["float16", "float32", "int32", "int64", "uint8", "int16", "bool", ">i4", ">f4"]
    arrays = [np.arange(6).reshape(2, 3).astype(kind) for kind in kinds]
    feed.submit(*arrays, np.float32(4.0), arrays[1][:, ::2])
    assert feed.waiting == 1
    tensors = feed.next()
    assert isinstance(tensors, tuple) and feed.waiting == 0
    assert [type(t) for t in tensors] == [Tensor] * 2 + [IndexTensor] * 6 + [Tensor] * 3
    assert [t.dtype for t in tensors[:4]] == kinds[:4]
    assert [t.dtype for t in tensors[4:]] == ["int64"] * 3 + ["int64"] + ["float32"] * 3
    for tensor, array in zip(tensors, arrays):
        np.testing.assert_array_equal(tensor.to_host(), array.astype(tensor.dtype))
    assert tensors[-2].shape == () and tensors[-2].item() == 4.0
    np.testing.assert_array_equal(tensors[-1].to_host(), [[0, 2], [3, 5]])


def test_memory_is_used_in_turn_and_arrays_may_change_after_submit(queue):
    feed = Scheduler(queue)
    array = np.zeros(1 << 16, np.float32)
    sums = []
    feed.submit(array)
    for _ in range(1, 20):
        (x,) = feed.next()
        sums.append((x * x).sum())
        array += 1
        feed.submit(array)
        array[:10] += 0.0
    assert [total.item() / array.size for total in sums] == [float(i * i) for i in range(19)]


def test_misuse_is_told_clearly(queue):
    feed = Scheduler(queue)
    with pytest.raises(RuntimeError, match="no batch was submitted"):
        feed.next()
    with pytest.raises(TypeError, match="complex128"):
        feed.submit(np.zeros(2, np.float32), np.zeros(2, np.complex128))
    with pytest.raises(TypeError, match="array 0 is of dtype uint64"):
        feed.submit(np.zeros(2, np.uint64))
    with pytest.raises(TypeError, match="dtype object"):
        feed.submit(np.array([None]))
    with pytest.raises(TypeError, match="one array or more"):
        feed.submit()
    assert feed.waiting == 0
    feed.submit(np.zeros(2))
    feed.submit(np.zeros(2))
    with pytest.raises(RuntimeError, match=r"call next\(\) first"):
        feed.submit(np.zeros(2))
    with pytest.raises(ValueError, match="at least 2"):
        Scheduler(queue, depth=1)
    with pytest.raises(ValueError, match="at least 2"):
        prefetch([], queue, depth=1)
    recording = capture(lambda x: (feed.submit(np.zeros(2)), x * x)[1])
    feed.next()
    feed.next()
    with pytest.raises(RuntimeError, match="recorded"):
        recording(Tensor.from_host(queue, [1.0]))


@pytest.mark.parametrize("depth", [2, 3])
def test_a_captured_step_over_prefetched_batches_trains_as_over_plain_ones(queue, depth):
    def training():
        manual_seed(3)
        model = Linear(queue, 6, 3)
        optimizer = SGD(model.parameters(), lr=0.1)

        @capture
        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return model, step

    batches = [batch(i, rows=64 if i < 8 else 40) for i in range(11)]
    model, step = training()
    for x, y in batches:
        step(Tensor.from_host(queue, x), IndexTensor.from_host(queue, y))
    expected = [p.to_host() for p in model.parameters()]
    model, step = training()
    seen = 0
    for x, y in prefetch(iter(batches), queue, depth):
        step(x, y)
        seen += 1
    assert seen == 11 and step.recordings == 2
    for p, weights in zip(model.parameters(), expected):
        np.testing.assert_array_equal(p.to_host(), weights)


def test_prefetch_takes_any_iterable_of_batches(queue):
    assert list(prefetch([], queue)) == []
    values = [x.to_host()[0] for x in prefetch((np.full(3, i, np.float32) for i in range(5)), queue)]
    assert values == [0, 1, 2, 3, 4]
    pairs = [(x.item(), y.to_host()[0]) for x, y in prefetch([[np.float32(i), np.array([i])] for i in range(4)], queue)]
    assert pairs == [(i, i) for i in range(4)]

    def failing():
        yield np.zeros(2, np.float32)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(prefetch(failing(), queue))


def test_another_thread_may_submit(queue):
    feed = Scheduler(queue, depth=4)
    room, ready = threading.Semaphore(3), threading.Semaphore(0)

    def produce():
        for i in range(50):
            room.acquire()
            feed.submit(np.full(1000, i, np.float32))
            ready.release()

    thread = threading.Thread(target=produce)
    thread.start()
    for i in range(50):
        ready.acquire()
        (x,) = feed.next()
        assert x.sum().item() == 1000.0 * i
        room.release()
    thread.join()


def test_the_names_are_where_the_documentation_has_them():
    from netcl.runtime.scheduler import Scheduler as same

    assert runtime.Scheduler is same and runtime.prefetch is prefetch
