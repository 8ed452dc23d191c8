"""Captured steps from Python."""

import threading

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
from netcl import IndexTensor, Tensor, manual_seed
from netcl.core.device import manager
from netcl.nn import Dropout, Linear, ReLU, Sequential, functional as F
from netcl.optim import AdamW, WarmupCosine
from netcl.runtime import KernelCapture, capture


def queues():
    return [manager.default(selector).queue for selector in find_device_selectors()]


def batch(queue, i, rows=4):
    x = np.random.default_rng(i).normal(size=(rows, 6)).astype(np.float32)
    return Tensor.from_host(queue, x), IndexTensor.from_host(queue, (np.arange(rows) + i) % 3)


def training(queue):
    manual_seed(4)
    model = Sequential(Linear(queue, 6, 8), ReLU(), Dropout(0.25), Linear(queue, 8, 3))
    optimizer = AdamW(model.parameters(), lr=0.05)
    schedule = WarmupCosine(optimizer, 20, 3)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(max_norm=1.0)
        optimizer.zero_grad()
        schedule.step()
        return {"loss": loss}

    return model, optimizer, step


def test_a_captured_step_trains_as_the_plain_one():
    for queue in queues():
        model, optimizer, step = training(queue)
        plain = [step(*batch(queue, i))["loss"].item() for i in range(12)]
        weights = [p.to_host().copy() for p in model.parameters()]
        rate = optimizer.lr

        model, optimizer, step = training(queue)
        step = capture(step)
        assert step.stats() is None
        replayed = [step(*batch(queue, i))["loss"].item() for i in range(12)]
        assert replayed == plain and optimizer.lr == rate
        for ours, theirs in zip(model.parameters(), weights):
            np.testing.assert_array_equal(ours.to_host(), theirs)
        stats = step.stats()
        assert stats["launches"] == len(stats["names"]) and stats["planned_bytes"] <= stats["requested_bytes"]
        assert step.recordings == 1
        step(*batch(queue, 0, rows=5))
        assert step.recordings == 2
        step.verify(*batch(queue, 1))


def test_other_dtypes_and_devices_record_anew_or_are_errors():
    square = capture(lambda x: x * x)
    kinds = [(queue, dtype) for queue in queues() for dtype in ("float32", "float64")]
    for queue, dtype in kinds * 2:
        y = square(Tensor.from_host(queue, [3.0], dtype=dtype))
        assert y.dtype == dtype and y.backend == queue.backend and y.to_host().tolist() == [9.0]
    assert square.recordings == len(kinds)
    for queue in queues():
        step = capture(training(queue)[2])
        step(*batch(queue, 0))
        x, y = batch(queue, 1)
        with pytest.raises((TypeError, ValueError), match="float64"):
            step(Tensor.from_host(queue, x.to_host(), dtype="float64"), y)
        for other in queues():
            if other.backend != queue.backend:
                with pytest.raises(ValueError, match="device"):
                    step(*batch(other, 1))
        step(x, y)
        assert step.recordings == 1


def test_two_threads_capture_at_the_same_time():
    for queue in queues():

        def train(seed, captured):
            weight = Tensor.from_host(queue, np.full((6, 3), 0.1 * seed, np.float32)).requires_grad_()

            def step(x, y):
                loss = F.cross_entropy(x @ weight, y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            optimizer = AdamW([weight], lr=0.05)
            step = capture(step) if captured else step
            losses[seed] = [step(*batch(queue, i)).item() for i in range(20)]

        losses = {}
        for seed in (1, 2):
            train(seed, False)
        plain, losses = losses, {}
        threads = [threading.Thread(target=train, args=(seed, True)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert losses == plain


def test_the_decorator_keeps_the_name_and_takes_values_apart():
    queue = manager.default("cpu").queue

    @capture
    def scaled(pair, factor=1.0):
        """Doc."""
        return [pair["x"] * factor, (pair["x"] + pair["y"],)]

    assert scaled.__name__ == "scaled" and scaled.__doc__ == "Doc."
    pair = {"x": Tensor.from_host(queue, [1.0, 2.0]), "y": Tensor.from_host(queue, [3.0, 4.0])}
    for factor in (2.0, 5.0, 2.0):
        product, (total,) = scaled(pair, factor=factor)
        np.testing.assert_array_equal(product.to_host(), [factor, 2 * factor])
        np.testing.assert_array_equal(total.to_host(), [4.0, 6.0])
    assert scaled.recordings == 2
    with pytest.raises(TypeError, match="argument factor is a generator"):
        scaled(pair, factor=(i for i in range(2)))
    scaled.clear()
    with pytest.raises(RuntimeError, match="nothing has been recorded"):
        scaled.replay()


def test_what_cannot_be_captured_says_so():
    queue = manager.default("cpu").queue
    x = Tensor.from_host(queue, [1.0, 2.0])

    @capture
    def reads(x):
        return x * float((x * x).to_host()[0])

    with pytest.raises(RuntimeError, match="being recorded"):
        reads(x)

    @capture
    def fails(x):
        raise KeyError("the function's own")

    with pytest.raises(KeyError, match="the function's own"):
        fails(x)
    inner = capture(lambda x: x * x)
    with pytest.raises(RuntimeError, match="while another one is being recorded"):
        capture(lambda x: inner(x))(x)
    np.testing.assert_array_equal((x * x).to_host(), [1.0, 4.0])


def test_kept_launches_run_again_on_the_same_memory():
    for queue in queues():
        x = Tensor.from_host(queue, np.array([1.0, 2.0], np.float32))
        kept = KernelCapture()
        kept.begin()
        assert kept.is_recording
        with pytest.raises(RuntimeError, match="already"):
            KernelCapture().begin()
        y = x * x
        assert kept.end() == len(kept) == 1 and kept.names == ["mul"]
        np.testing.assert_array_equal(y.to_host(), [1.0, 4.0])
        if x.backend == "cpu":
            x.array[:] = [3.0, 4.0]
            kept.replay()
            np.testing.assert_array_equal(y.to_host(), [9.0, 16.0])
        kept.replay()
        with pytest.raises(RuntimeError, match="begin"):
            kept.end()
        with pytest.raises(ValueError, match="no launch 7"):
            kept.replay({(7, 0): x})
        kept.clear()
        assert len(kept) == 0


def test_kernels_of_ones_own_are_kept_and_their_memory_exchanged():
    # The native CPU runs kernels through a driver for CPUs, where there is one.
    through_a_driver = any(device.type & 2 for _, device in manager.discover())
    for queue in queues():
        if queue.backend == "cpu" and not through_a_driver:
            continue
        source = "__kernel void twice(__global float* x) { x[get_global_id(0)] *= 2.0f; }"
        kernel = netcl.KernelSpec(name="twice", src=source).build(queue).kernel("twice")
        x, other = (Tensor.from_host(queue, np.full(4, value, np.float32)) for value in (1.0, 5.0))
        kept = KernelCapture()
        kept.begin()
        kept.record(kernel, queue, (4,), None, x)
        assert kept.end() == 1
        kept.replay()
        np.testing.assert_array_equal(x.to_host(), np.full(4, 4.0))
        kept.replay({(0, 0): other})
        np.testing.assert_array_equal(x.to_host(), np.full(4, 4.0))
        np.testing.assert_array_equal(other.to_host(), np.full(4, 10.0))


def test_the_module_is_where_the_documentation_has_it():
    assert netcl.runtime.capture is capture
