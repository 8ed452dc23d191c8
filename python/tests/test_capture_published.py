"""Programs that were written for the published package's ``netcl.runtime.capture``."""

import gc
import threading
import weakref

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl.runtime.capture as capture_module
from netcl.core.device import manager
from netcl.core.kernels.primitives import build_elementwise_kernel
from netcl.core.tensor import Tensor
from netcl.runtime.capture import CapturedKernelLaunch, KernelCapture, capture_disabled, get_capture

OPENCL = [selector for selector in find_device_selectors() if selector != "cpu"]


def users_program(queue):
    """As it runs on the published package, netcl 0.4.4."""
    n = 8
    _, axpy = build_elementwise_kernel(queue.context, "axpy", 2, "2.0f * v0 + v1", "float32")
    _, square = build_elementwise_kernel(queue.context, "square", 1, "v0 * v0", "float32")
    x = Tensor.from_host(queue, np.arange(n, dtype=np.float32))
    y = Tensor.from_host(queue, np.ones(n, dtype=np.float32))
    hidden = Tensor.from_host(queue, np.zeros(n, np.float32))
    result = Tensor.from_host(queue, np.zeros(n, np.float32))

    capture = KernelCapture()
    assert not capture.is_recording and not capture.is_finalized and capture.num_launches == 0
    try:
        capture.replay()
        raise AssertionError("nothing was captured")
    except RuntimeError:
        pass
    capture.begin()
    assert capture.is_recording
    event = capture.record(axpy, queue, (n,), None, x.buffer, y.buffer, hidden.buffer, np.int32(n))
    event.wait()
    with capture_disabled():
        square(queue, (n,), None, x.buffer, result.buffer, np.int32(n))
    capture.record(square, queue, (n,), None, hidden.buffer, result.buffer, np.int32(n))
    assert capture.end() == 2 and capture.num_launches == 2
    assert capture.is_finalized and not capture.is_recording
    expected = (2.0 * np.arange(n) + 1.0) ** 2
    np.testing.assert_array_equal(result.to_host(), expected)

    capture.replay()
    np.testing.assert_array_equal(result.to_host(), expected)

    other = Tensor.from_host(queue, np.full(n, 3.0, np.float32))
    elsewhere = Tensor.from_host(queue, np.zeros(n, np.float32))
    capture.replay_with_new_buffers({x.buffer.int_ptr: other.buffer, result.buffer.int_ptr: elsewhere.buffer})
    np.testing.assert_array_equal(elsewhere.to_host(), np.full(n, 49.0))
    np.testing.assert_array_equal(result.to_host(), expected)
    # Only that time.
    capture.replay()
    np.testing.assert_array_equal(result.to_host(), expected)

    launch = CapturedKernelLaunch(kernel=axpy, queue=queue, global_size=(n,), local_size=None, args=(x.buffer,))
    assert launch.global_size == (n,) and launch.local_size is None
    assert get_capture() is get_capture() and isinstance(get_capture(), KernelCapture)
    capture.begin()  # begins anew
    assert capture.num_launches == 0
    capture.begin()
    capture.record(square, queue, (n,), None, x.buffer, result.buffer, np.int32(n))
    assert capture.end() == 1
    capture.replay()
    np.testing.assert_array_equal(result.to_host(), np.arange(n, dtype=np.float32) ** 2)
    capture.clear()
    assert capture.num_launches == 0 and not capture.is_finalized


@pytest.mark.parametrize("selector", OPENCL)
def test_a_program_for_the_published_package_runs_unchanged(selector):
    users_program(manager.default(selector).queue)


@pytest.mark.parametrize("selector", OPENCL)
def test_kernels_of_pyopencl_are_kept_where_record_is_given_them(selector):
    cl = pytest.importorskip("pyopencl")
    ours = manager.default(selector).queue
    queue = cl.CommandQueue.from_int_ptr(ours.int_ptr)
    source = "__kernel void twice(__global float *x) { x[get_global_id(0)] *= 2.0f; }"
    twice = cl.Kernel(cl.Program(queue.context, source).build(), "twice")
    x, other = (Tensor.from_host(ours, np.full(4, value, np.float32)) for value in (1.0, 3.0))
    x_buffer, other_buffer = (cl.Buffer.from_int_ptr(t.buffer.int_ptr) for t in (x, other))

    kept = KernelCapture()
    kept.begin()
    kept.record(twice, queue, (4,), None, x_buffer).wait()
    y = x + x
    assert kept.end() == 2 and kept.names == ["twice", "add"]
    np.testing.assert_array_equal(y.to_host(), np.full(4, 4.0))
    kept.replay()
    np.testing.assert_array_equal(y.to_host(), np.full(4, 8.0))
    assert kept.launches[0].kernel is twice and kept.launches[0].args == (x_buffer,)
    with pytest.raises(ValueError, match="another library"):
        kept.replay({(0, 0): other})
    kept.replay_with_new_buffers({x.buffer.int_ptr: other_buffer})
    np.testing.assert_array_equal(y.to_host(), np.full(4, 12.0))
    np.testing.assert_array_equal(x.to_host(), np.full(4, 4.0))


@pytest.mark.parametrize("selector", find_device_selectors())
def test_operations_are_kept_and_described(selector):
    queue = manager.default(selector).queue
    x = Tensor.from_host(queue, np.array([1.0, 2.0], np.float32))
    kept = KernelCapture()
    kept.begin()
    y = x * x
    with capture_disabled():
        with capture_disabled():
            x + x
        x - x
    assert kept.num_launches == 1
    z = y + x
    assert kept.end() == len(kept) == 2 and kept.names == ["mul", "add"]
    launches = kept.launches
    assert all(isinstance(launch, CapturedKernelLaunch) for launch in launches)
    if x.backend == "cpu":
        assert launches[0].kernel == "mul" and launches[0].global_size == ()
        assert any(isinstance(arg, np.ndarray) and arg.nbytes == 8 for arg in launches[0].args)
    else:
        assert launches[0].queue == queue and len(launches[0].global_size) >= 1
        assert x.buffer in launches[0].args
        other = Tensor.from_host(queue, np.array([5.0, 7.0], np.float32))
        kept.replay_with_new_buffers({x.buffer.int_ptr: other})
        np.testing.assert_array_equal(z.to_host(), [30.0, 56.0])
    kept.replay()
    np.testing.assert_array_equal(z.to_host(), [2.0, 6.0])
    with pytest.raises(TypeError, match="tensor or a buffer"):
        kept.replay_with_new_buffers({1: "memory"})


def test_what_is_not_kept_can_not_be_replayed():
    kept, other = KernelCapture(), KernelCapture()
    with pytest.raises(RuntimeError, match="nothing to replay"):
        kept.replay()
    with pytest.raises(RuntimeError, match="nothing to replay"):
        kept.replay_with_new_buffers({})
    kept.begin()
    with pytest.raises(RuntimeError, match="nothing to replay"):
        kept.replay()
    with pytest.raises(RuntimeError, match="already"):
        other.begin()
    assert kept.end() == 0
    kept.replay()


@pytest.mark.parametrize("selector", find_device_selectors())
def test_a_capture_is_replayed_by_another_thread_and_one_that_is_dropped_keeps_nothing(selector):
    queue = manager.default(selector).queue
    x = Tensor.from_host(queue, np.array([1.0, 2.0], np.float32))
    kept = get_capture()
    kept.begin()
    total = x + x
    kept.end()

    def elsewhere():
        get_capture().replay()
        dropped = KernelCapture()
        dropped.begin()
        x * x
        del dropped
        mine = KernelCapture()
        mine.begin()
        x - x
        counts.append(mine.end())
        open_at_the_end.begin()

    counts, open_at_the_end = [], KernelCapture()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert counts == [1]
    np.testing.assert_array_equal(total.to_host(), [2.0, 4.0])
    x * x
    assert open_at_the_end.end() == 0
    kept.clear()


def test_what_was_kept_goes_with_the_capture():
    kept = KernelCapture()
    kept.begin()

    def kernel(queue, global_size, local_size):
        return "event"

    assert kept.record(kernel, None, (1,), None) == "event"
    assert kept.end() == 1
    gone = weakref.ref(kernel), weakref.ref(kept)
    del kept, kernel
    gc.collect()
    assert gone[0]() is None and gone[1]() is None


def test_the_function_hides_nothing_of_the_module():
    assert capture_module.KernelCapture is KernelCapture
    assert capture_module.get_capture is get_capture and capture_module.capture_disabled is capture_disabled
    assert capture_module.CapturedKernelLaunch is CapturedKernelLaunch
