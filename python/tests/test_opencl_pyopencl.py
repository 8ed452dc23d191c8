"""PyOpenCL and netcl in one process: either takes the other's objects."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl.core.backend.opencl import CommandQueue, Context, OpenCLBackend, interruptible_finish
from netcl.core.capabilities import device_profile, kernel_strategy
from netcl.core.device import manager
from netcl.core.device_profile import extended_device_profile
from netcl.core.index import IndexTensor
from netcl.core.memory import (
    BufferPool,
    PersistentBufferPool,
    create_pinned_buffer,
    create_zero_copy_buffer,
    get_persistent_pool,
    get_pinned_pool,
    has_svm_support,
    is_integrated_gpu,
)
from netcl.core.tensor import Tensor

cl = pytest.importorskip("pyopencl")

SELECTORS = [selector for selector in find_device_selectors() if selector != "cpu"]
SOURCE = "__kernel void twice(__global float *x) { x[get_global_id(0)] *= 2.0f; }"


@pytest.fixture(params=SELECTORS)
def q(request):
    return manager.default(request.param).queue


@pytest.fixture
def theirs(q):
    """A queue that PyOpenCL made on a context of its own."""
    context = cl.Context([cl.Device.from_int_ptr(q.device.int_ptr)])
    yield cl.CommandQueue(context)
    # Until here: on some drivers a queue does not keep its context, as PyOpenCL's own queue.context shows.
    del context


def ramp(n):
    return np.arange(n, dtype=np.float32)


def test_our_objects_become_theirs(q):
    queue = cl.CommandQueue.from_int_ptr(q.int_ptr)
    assert queue.int_ptr == q.int_ptr
    assert queue.device.name.strip() == q.device.name and queue.context.int_ptr == q.context.int_ptr
    assert cl.Platform.from_int_ptr(q.device.platform.int_ptr).name == q.device.platform.name
    assert cl.Context.from_int_ptr(q.context.int_ptr).devices[0].int_ptr == q.device.int_ptr
    for name in ("type", "max_work_group_size", "local_mem_size", "global_mem_size", "max_compute_units", "vendor"):
        ours, other = getattr(q.device, name), getattr(queue.device, name)
        assert ours == (other.strip() if isinstance(other, str) else other), name


def test_their_kernel_works_on_our_tensor(q):
    queue = cl.CommandQueue.from_int_ptr(q.int_ptr)
    kernel = cl.Kernel(cl.Program(queue.context, SOURCE).build(), "twice")
    for _ in range(10):
        # No wait anywhere: asking for the buffer puts the kernel behind the upload.
        x = Tensor.from_host(q, ramp(1 << 16), async_copy=True)
        kernel(queue, (x.size,), None, cl.Buffer.from_int_ptr(x.buffer.int_ptr))
        assert np.array_equal(x.to_host(), 2 * ramp(1 << 16))


def test_our_event_is_theirs(q):
    array, event = Tensor.from_host(q, ramp(1000)).to_host_async()
    cl.Event.from_int_ptr(event.int_ptr).wait()
    assert event.is_complete and np.array_equal(array, ramp(1000))


def test_their_queue_is_taken_everywhere(theirs):
    x = Tensor.from_host(theirs, ramp(100))
    assert x.queue.int_ptr == theirs.int_ptr and x.context.int_ptr == theirs.context.int_ptr
    assert np.array_equal(x.to_host(), ramp(100))
    assert np.all(Tensor.from_shape(theirs, (3, 3), fill=7).to_host() == 7)
    assert np.array_equal(Tensor.from_host(None, ramp(9)).to(theirs).to_host(), ramp(9))
    assert IndexTensor.from_host(theirs, [1, 2, 3]).to_host().tolist() == [1, 2, 3]
    assert np.array_equal(OpenCLBackend(theirs).to_host(x.buffer, (100,), "float32"), ramp(100))
    assert interruptible_finish(theirs)
    assert is_integrated_gpu(theirs) in (True, False) and has_svm_support(theirs) in (True, False)
    assert CommandQueue.from_int_ptr(theirs.int_ptr) == x.queue
    assert CommandQueue(theirs.context).context.int_ptr == theirs.context.int_ptr


def test_pools_of_their_queue_last_as_long_as_it(theirs):
    pool = get_persistent_pool(theirs)
    before = pool.stats.hits
    for _ in range(5):
        Tensor.from_shape(theirs, (1000,))
        gc.collect()
    assert pool == get_persistent_pool(theirs)
    assert pool.stats.hits - before >= 4, "tensors on a PyOpenCL queue are recycled"
    assert get_pinned_pool(theirs) == get_pinned_pool(theirs) != pool


def test_their_context_makes_pools_and_buffers(theirs):
    for pool in (BufferPool(theirs.context), PersistentBufferPool(theirs.context, max_cached_bytes=1 << 20)):
        x = Tensor.from_shape(theirs, (64,), pool=pool)
        assert pool.stats.bytes_in_use >= 256 and x.pool_handle.nbytes == 256
    assert create_pinned_buffer(theirs.context, 4096).size == 4096
    array = np.zeros(1024, np.float32)
    assert create_zero_copy_buffer(theirs, array).size == 4096
    assert Context.from_int_ptr(theirs.context.int_ptr).devices[0].name


def test_their_device_has_a_profile(theirs):
    profile = device_profile(theirs.device)
    assert profile == device_profile(theirs) and kernel_strategy(profile) in ("portable", "optimized")
    assert profile.has_fp16 == ("fp16" in theirs.device.extensions)
    assert extended_device_profile(theirs.device).name == profile.name
    assert manager._device_type(theirs.device) == profile.device_type


def test_their_buffer_becomes_a_tensor(theirs):
    flags = cl.mem_flags
    buffer = cl.Buffer(theirs.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=ramp(24))
    x = Tensor(buffer=buffer, shape=(4, 6), dtype="float32", queue=theirs)
    assert np.array_equal(x.to_host(), ramp(24).reshape(4, 6))
    assert x.pool_handle is None and x.buffer.int_ptr == buffer.int_ptr
    kernel = cl.Kernel(cl.Program(theirs.context, SOURCE).build(), "twice")
    kernel(theirs, (24,), None, buffer)
    assert np.array_equal(x.to_host().ravel(), 2 * ramp(24))
    with pytest.raises(ValueError, match="fit"):
        Tensor(buffer=buffer, shape=(25,), queue=theirs)
    del buffer, kernel
    gc.collect()
    assert np.array_equal(x.to_host().ravel(), 2 * ramp(24)), "the tensor keeps the memory"


def test_their_event_is_waited_for(theirs):
    buffer = cl.Buffer(theirs.context, cl.mem_flags.READ_WRITE, 4000)
    host = ramp(1000)
    event = cl.enqueue_copy(theirs, buffer, host, is_blocking=False)
    x = Tensor(buffer=buffer, shape=(1000,), queue=theirs, pending_event=event, host_ref=host)
    assert np.array_equal(x.to_host(), host)


def test_their_pooled_memory_is_not_reused_while_a_tensor_has_it(theirs):
    pool = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(theirs))
    block = pool.allocate(400)
    x = Tensor(buffer=block, shape=(100,), queue=theirs)
    pointer = block.int_ptr
    del block
    gc.collect()
    assert pool.allocate(400).int_ptr != pointer
    x.wait()


def test_out_of_order_queues_are_refused(theirs):
    properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    try:
        queue = cl.CommandQueue(theirs.context, properties=properties)
    except cl.Error:
        pytest.skip("the device has no such queues")
    with pytest.raises(ValueError, match="in-order"):
        Tensor.from_shape(queue, (4,))


def test_look_alikes_are_not_taken_for_theirs(q):
    class CommandQueue:
        int_ptr = q.int_ptr

    with pytest.raises(TypeError, match="queue"):
        Tensor.from_shape(CommandQueue(), (4,))


def test_netcl_does_not_import_pyopencl():
    code = "import sys, netcl, netcl.core.memory, netcl.core.backend.opencl; sys.exit('pyopencl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
