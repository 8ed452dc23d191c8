"""The OpenCL objects, discovery and tensors on every OpenCL device of this machine."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
from netcl.core.backend.opencl import (
    Buffer,
    CommandQueue,
    Context,
    Device,
    Event,
    OpenCLBackend,
    Platform,
    Program,
    interruptible_finish,
)
from netcl.core.device import CPUQueue, DeviceManager, device, get_active_device, manager
from netcl.core.memory import BufferHandle, BufferPool, get_persistent_pool
from netcl.core.tensor import Tensor, reshape

SELECTORS = [selector for selector in find_device_selectors() if selector != "cpu"]
DTYPES = ["float32", "float16", "float64", "bfloat16"]


@pytest.fixture(params=SELECTORS)
def dev(request):
    return manager.default(request.param)


@pytest.fixture
def q(dev):
    return dev.queue


def ramp(*shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


# ---- discovery ---------------------------------------------------------------------------------------------------


def test_discover_lists_pairs_and_indices_select_them():
    pairs = manager.discover()
    assert pairs == DeviceManager.discover()
    assert len(pairs) == len(SELECTORS)
    for index, (platform, found) in enumerate(pairs):
        assert isinstance(platform, Platform) and isinstance(found, Device)
        assert found.platform == platform and found in platform.get_devices()
        handle = manager.default(index)
        assert handle == manager.default(str(index)) == manager.default(device=index)
        assert (handle.platform_name, handle.device_name) == (platform.name, found.name)
        assert handle.queue.device == found
    assert manager.default(len(pairs)) is None


def test_device_types():
    for _, found in manager.discover():
        assert manager._device_type(found) == found.device_type
        assert isinstance(found.type, int)
    assert manager._device_type(CPUQueue().device) == "cpu"
    assert [DeviceManager._device_type(bits) for bits in (4, 5, 2, 8, 16)] == ["gpu", "gpu", "cpu", "accel", "other"]
    with pytest.raises(TypeError, match="type bits"):
        manager._device_type("gpu")


def test_handles_hold_context_and_queue(dev):
    assert dev.backend == "cl" and isinstance(dev.queue, CommandQueue) and isinstance(dev.context, Context)
    assert dev.context == dev.queue.context and dev.context.devices == [dev.queue.device]
    with device(dev) as active:
        assert active == dev == get_active_device()
        assert Tensor.from_shape(None, (2,)).queue == dev.queue
        assert netcl.Tensor.from_host([1.0, 2.0]).context == dev.context
    with pytest.raises(AttributeError):
        dev.backend = "cpu"


def test_device_attributes_are_those_of_pyopencl(q):
    found = q.device
    assert found.name and found.vendor is not None and found.version.startswith("OpenCL ")
    assert found.max_work_group_size >= 1 and found.max_compute_units >= 1
    assert found.global_mem_size >= found.max_mem_alloc_size > 0 and found.local_mem_size > 0
    assert isinstance(found.extensions, str) and "cl_khr" in found.extensions
    assert len(found.max_work_item_sizes) >= 3


# ---- objects -----------------------------------------------------------------------------------------------------


def test_every_object_survives_a_round_trip_through_its_pointer(q):
    buffer = Tensor.from_shape(q, (4,)).buffer
    event = Tensor.from_host(q, ramp(4), async_copy=True).pending_event
    for thing in (q.device.platform, q.device, q.context, q, buffer, event):
        again = type(thing).from_int_ptr(thing.int_ptr)
        assert again == thing and hash(again) == hash(thing) and again.int_ptr == thing.int_ptr
        assert thing != object()
        assert type(thing).__name__ in repr(thing)
    with pytest.raises((ValueError, RuntimeError), match="null"):
        CommandQueue.from_int_ptr(0)


def test_two_queues_of_a_context_work_together(q):
    other = CommandQueue(q.context)
    assert other != q and other.context == q.context and other.backend == "cl"
    a = Tensor.from_host(q, ramp(1000))
    b = a.to(other)
    assert np.array_equal(b.to_host(), ramp(1000))
    assert get_persistent_pool(other) == get_persistent_pool(q)
    other.flush()
    other.finish()


def test_a_context_of_its_own(q):
    context = Context([q.device])
    assert context != q.context
    own = CommandQueue(context, q.device)
    x = Tensor.from_host(own, ramp(7))
    assert x.context == context and np.array_equal(x.to_host(), ramp(7))
    assert get_persistent_pool(own) != get_persistent_pool(q)
    with pytest.raises(ValueError, match="another OpenCL context"):
        Tensor(buffer=x.buffer, shape=(7,), queue=q)
    with pytest.raises(ValueError, match="device"):
        Context([])


def test_profiled_events_have_times(q):
    queue = CommandQueue(q.context, profiling=True)
    assert queue.profiling
    _, event = Tensor.from_shape(queue, (1000,)).to_host_async()
    event.wait()
    assert event.status == "complete" and event.command_execution_status == 0 and event.is_complete
    times = event.profile
    assert times.queued <= times.submit <= times.start <= times.end
    plain = CommandQueue(q.context, profiling=False)
    _, event = Tensor.from_shape(plain, (10,)).to_host_async()
    event.wait()
    with pytest.raises(RuntimeError, match="PROFILING"):
        event.profile


def test_programs_build_and_mistakes_are_shown(q):
    program = Program(q.context, "__kernel void twice(__global float *x) { x[get_global_id(0)] *= 2; }")
    assert program.kernel_names == ["twice"]
    kernel = program.kernel("twice")
    assert (kernel.function_name, kernel.num_args, kernel.program) == ("twice", 1, program)
    with pytest.raises(netcl.BuildError, match="floaty"):
        Program(q, "__kernel void broken(__global floaty *x) {}")


def test_buffers_are_released_once(q):
    buffer = Tensor.from_shape(q, (64,)).buffer
    assert isinstance(buffer, Buffer) and buffer.size >= 256 and buffer.context == q.context
    buffer.release()
    buffer.release()
    with pytest.raises(RuntimeError, match="released"):
        buffer.int_ptr
    with pytest.raises(RuntimeError, match="released"):
        Tensor(buffer=buffer, shape=(64,), queue=q)


# ---- tensors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("async_copy", [False, True])
@pytest.mark.parametrize("use_pinned", [False, True])
def test_round_trip(q, dtype, async_copy, use_pinned):
    host = ramp(5, 7) / 4
    x = Tensor.from_host(q, host, dtype=dtype, async_copy=async_copy, use_pinned=use_pinned)
    host = host.copy()
    assert (x.backend, x.shape, x.dtype, x.array) == ("cl", (5, 7), dtype, None)
    back = x.to_host()
    assert np.array_equal(back, host) and back.dtype == ("float32" if dtype == "bfloat16" else dtype)
    assert repr(x).startswith("Tensor(") and dtype in repr(x)


def test_from_host_copies_at_once(q):
    for use_pinned in (False, True):
        host = ramp(1 << 16)
        x = Tensor.from_host(q, host, async_copy=True, use_pinned=use_pinned)
        host[:] = -1
        assert np.array_equal(x.to_host(), ramp(1 << 16))


def test_attributes(q):
    x = Tensor.from_shape(q, (3, 4), fill=2.5)
    assert isinstance(x.buffer, Buffer) and x.context == q.context and x.queue == q
    assert isinstance(x.pool_handle, BufferHandle)
    assert (x.pool_handle.nbytes, x.pool_handle.buffer) == (48, x.buffer)
    assert x.pool_handle == x.pool_handle and not x.persistent and x.grad is None
    assert np.all(x.to_host() == 2.5)
    row = x[1]
    assert row.offset == 4 and row.buffer == x.buffer


def test_pending_fields_are_set_and_cleared(q):
    pinned = Tensor.from_host(q, ramp(100), async_copy=True, use_pinned=True)
    assert isinstance(pinned.pending_event, Event) and isinstance(pinned.pending_release, BufferHandle)
    assert pinned.host_ref is None
    lease = pinned.pending_release
    pinned.wait()
    pinned.wait()
    assert pinned.pending_event is pinned.pending_release is pinned.host_ref is None
    assert not lease.released, "the handle still holds the lease"
    pageable = Tensor.from_host(q, ramp(10, 10), async_copy=True, use_pinned=False)
    snapshot = pageable.host_ref
    assert np.array_equal(snapshot, ramp(10, 10)) and not snapshot.flags.writeable
    assert pageable.pending_release is None
    assert np.array_equal(pageable.to_host(), ramp(10, 10))
    assert pageable.pending_event is pageable.host_ref is None
    del pageable
    assert np.array_equal(snapshot, ramp(10, 10)), "the snapshot outlives the tensor"
    blocking = Tensor.from_host(q, ramp(10), async_copy=False)
    assert blocking.pending_event is None
    blocking._clear_pending()


@pytest.mark.parametrize("dtype", DTYPES)
def test_to_host_async_fills_the_array(q, dtype):
    host = ramp(64, 33)
    x = Tensor.from_host(q, host % 8, dtype=dtype)
    array, event = x.to_host_async()
    assert isinstance(event, Event)
    event.wait()
    assert np.array_equal(array, host % 8)
    view, event = x[1:5, ::2].to_host_async()
    event.wait()
    assert np.array_equal(view, (host % 8)[1:5, ::2])
    # Images whose channels are last in memory; casts keep that order.
    host = ramp(2, 4, 5, 3) % 8
    images, event = Tensor.from_host(q, host, dtype=dtype).permute(0, 3, 1, 2).to_host_async()
    event.wait()
    assert np.array_equal(images, host.transpose(0, 3, 1, 2))


def test_async_reads_may_be_abandoned_in_any_order(q):
    host = ramp(1 << 20)
    for round_ in range(30):
        x = Tensor.from_host(q, host)
        array, event = x.to_host_async()
        if round_ % 3 == 0:
            del x, array
            gc.collect()
            event.wait()
        elif round_ % 3 == 1:
            del x, event
            q.finish()
            assert np.array_equal(array, host)
        del round_
    array = event = x = None
    q.finish()
    array, event = Tensor.from_host(q, host).to_host_async()
    event.wait()
    assert np.array_equal(array, host)


def test_zero_size_needs_no_memory(q):
    x = Tensor.from_shape(q, (0, 3))
    assert (x.size, x.buffer, x.pool_handle, x.pending_event) == (0, None, None, None)
    assert x.to_host().shape == (0, 3) and x.to_host_async()[1] is None
    y = Tensor.from_host(q, np.zeros((2, 0)))
    assert y.shape == (2, 0) and y.buffer is None
    assert Tensor(shape=(0,), queue=q).backend == "cl"
    pool = BufferPool(q.context)
    assert Tensor.from_shape(q, (0,), pool=pool).pool_handle is None and pool.stats.misses == 0


def test_wrapping_a_buffer(q):
    x = Tensor.from_host(q, ramp(12))
    y = Tensor(buffer=x.buffer, shape=(3, 4), dtype="float32", queue=q)
    assert np.array_equal(y.to_host(), ramp(3, 4)) and y.buffer == x.buffer
    with pytest.raises(ValueError, match="fit"):
        Tensor(buffer=x.buffer, shape=(1 << 20,), queue=q)
    with pytest.raises(ValueError, match="shape"):
        Tensor(buffer=x.buffer, queue=q)
    with pytest.raises(TypeError, match="buffer"):
        Tensor(buffer=b"bytes", shape=(1,), queue=q)
    with pytest.raises(ValueError, match="not both"):
        Tensor(buffer=x.buffer, array=ramp(12), shape=(12,))
    with pytest.raises(ValueError, match="context="):
        Tensor(buffer=x.buffer, shape=(12,), queue=q, context=Context([q.device]))
    held = x.buffer
    del x, y
    again = Tensor(buffer=held, shape=(12,), queue=q)
    assert np.array_equal(again.to_host(), ramp(12)), "a held buffer is not recycled"


def test_wrapping_a_lease(q):
    pool = BufferPool(q.context)
    lease = pool.allocate(48)
    x = Tensor(buffer=lease.buffer, shape=(3, 4), queue=q, pool_handle=lease)
    assert x.pool_handle == lease
    with pytest.raises(ValueError, match="pool_handle"):
        Tensor(buffer=Tensor.from_shape(q, (12,)).buffer, shape=(12,), queue=q, pool_handle=lease)
    del x
    assert lease.released and pool.stats.bytes_cached == 256
    with pytest.raises(RuntimeError, match="released"):
        Tensor(shape=(3, 4), queue=q, pool_handle=lease)
    kept = pool.allocate(48)
    y = Tensor(buffer=kept.buffer, shape=(12,), queue=q)
    del kept
    assert pool.stats.bytes_in_use == 256, "a tensor over a lease's buffer keeps the lease"
    del y
    assert pool.stats.bytes_in_use == 0


def test_an_event_given_is_waited_for(q):
    source = Tensor.from_host(q, ramp(1000), async_copy=True, use_pinned=True)
    x = Tensor(
        buffer=source.buffer, shape=(1000,), queue=q,
        pending_event=source.pending_event, pending_release=source.pending_release, host_ref=ramp(1000),
    )  # fmt: skip
    assert np.array_equal(x.to_host(), ramp(1000))


def test_views_share_and_keep_the_memory(q):
    pool = BufferPool(q.context)
    flat = Tensor.from_shape(q, (12,), pool=pool)
    mat = reshape(flat, (3, 4))
    assert mat._base is flat and mat.buffer == flat.buffer
    del flat
    gc.collect()
    assert pool.stats.bytes_in_use > 0
    del mat
    assert (pool.stats.bytes_in_use, pool.stats.bytes_cached) == (0, 256)


def test_a_released_lease_is_an_error_not_a_crash(q):
    x = Tensor.from_shape(q, (4,))
    x.pool_handle.release()
    with pytest.raises(RuntimeError, match="released"):
        x.to_host()
    with pytest.raises(RuntimeError, match="released"):
        x.buffer


def test_moving_between_all_devices():
    queues = [manager.default(selector).queue for selector in find_device_selectors()]
    for a in queues:
        for b in queues:
            assert np.array_equal(Tensor.from_host(a, ramp(33)).to(b).to_host(), ramp(33))


# ---- backend object ----------------------------------------------------------------------------------------------


def test_backend(q):
    be = OpenCLBackend(q)
    assert be.queue == q and be.name == "cl"
    for use_pinned in (True, False):
        buffer, event, release, host_ref = be.from_host(ramp(4, 8), async_copy=True, use_pinned=use_pinned)
        assert isinstance(buffer, Buffer) and isinstance(event, Event)
        assert (release is None) != (host_ref is None)
        be.wait(event, release)
        assert np.array_equal(be.to_host(buffer, (4, 8), "float32"), ramp(4, 8))
    racing = be.from_host(ramp(1 << 18))[0]
    assert np.array_equal(be.to_host(racing, (1 << 18,), "float32"), ramp(1 << 18)), "reads come after uploads"
    y = be.from_shape((4, 8), dtype="half", fill=1)
    assert np.array_equal(be.to_host(be.reshape(y, (32,)), (32,), "float16"), np.ones(32))
    array, event = be.to_host_async(y, (4, 8), "float16")
    be.wait(event)
    assert np.all(array == 1)
    be.wait()
    nothing = be.from_shape((0,))
    assert nothing is None and be.to_host(nothing, (0,), "float32").size == 0
    with pytest.raises(ValueError, match="cl"):
        OpenCLBackend(CPUQueue())


def test_interruptible_finish(q):
    Tensor.from_shape(q, (1 << 16,))
    assert interruptible_finish(q) is True
    assert interruptible_finish(q, timeout=None) is True
    assert interruptible_finish(CPUQueue(), timeout=0.1) is True
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            interruptible_finish(q, timeout=bad)
    with pytest.raises(TypeError, match="queue"):
        interruptible_finish(3)


# ---- threads -----------------------------------------------------------------------------------------------------


def test_many_threads_share_a_queue(q):
    pool = BufferPool(q.context)
    failures = []

    def work(seed):
        try:
            rng = np.random.default_rng(seed)
            for _ in range(40):
                host = rng.normal(size=rng.integers(1, 5000)).astype(np.float32)
                x = Tensor.from_host(q, host, use_pinned=bool(rng.integers(2)))
                y = Tensor.from_shape(q, host.shape, fill=seed, pool=pool)
                array, event = x.to_host_async()
                assert np.array_equal(x.to_host(), host)
                assert np.all(y.to_host() == seed)
                event.wait()
                assert np.array_equal(array, host)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures
    stats = pool.stats
    assert stats.hits + stats.misses == stats.releases == 320 and stats.bytes_in_use == 0
