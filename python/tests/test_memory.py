"""Pools, leases, counters and helpers for host memory, on every OpenCL device of this machine."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl.core
from netcl.core.backend.opencl import Buffer, Context, OpenCLBackend
from netcl.core.device import CPUQueue, manager
from netcl.core.memory import (
    BufferHandle,
    BufferPool,
    PersistentBufferPool,
    PinnedBufferPool,
    PoolStats,
    aligned_array,
    create_pinned_buffer,
    create_zero_copy_buffer,
    get_persistent_pool,
    get_pinned_pool,
    has_svm_support,
    is_integrated_gpu,
)
from netcl.core.tensor import Tensor

ALLOC_HOST_PTR, USE_HOST_PTR = 1 << 4, 1 << 3
SELECTORS = [selector for selector in find_device_selectors() if selector != "cpu"]


@pytest.fixture(params=SELECTORS)
def q(request):
    return manager.default(request.param).queue


def test_core_reexports():
    assert netcl.core.BufferPool is BufferPool and netcl.core.BufferHandle is BufferHandle


def test_a_lease_comes_back(q):
    pool = BufferPool(q.context)
    h = pool.allocate(1000)
    assert isinstance(h, BufferHandle) and isinstance(h.buffer, Buffer)
    assert (h.nbytes, h.size, h.buffer.size, h.released) == (1000, 1024, 1024, False)
    pointer = h.buffer.int_ptr
    h.release()
    h.release()
    assert h.released and pool.stats.releases == 1
    with pytest.raises(RuntimeError, match="released"):
        h.buffer
    again = pool.allocate(600)
    assert again.buffer.int_ptr == pointer
    stats = pool.stats
    assert (stats.hits, stats.misses, stats.hit_rate) == (1, 1, 0.5)
    assert (stats.bytes_cached, stats.bytes_in_use, stats.bytes_allocated) == (0, 1024, 1024)
    del again
    assert pool.stats.bytes_cached == 1024
    assert pool.trim() == 1024 and pool.stats.bytes_allocated == 0
    assert "1 hits" in repr(pool) and "1000 of 1024" in repr(h)


def test_bad_sizes(q):
    pool = BufferPool(q.context)
    for bad in (0, -1):
        with pytest.raises(ValueError):
            pool.allocate(bad)
    with pytest.raises(TypeError, match="context"):
        BufferPool("context")
    with pytest.raises(ValueError):
        PersistentBufferPool(q.context, max_cached_bytes=-1)


def test_a_pool_takes_a_context_a_queue_or_a_handle(q):
    assert BufferPool(q.context).context == BufferPool(q).context == q.context


def test_stats_are_values():
    stats = PoolStats(hits=3, misses=1)
    assert stats.hit_rate == 0.75 and stats == PoolStats(hits=3, misses=1) != PoolStats()
    assert PoolStats().hit_rate == 0.0
    with pytest.raises(AttributeError):
        stats.hits = 4


def test_persistent_pool(q):
    pool = PersistentBufferPool(q.context, max_cached_bytes=10_000)
    assert pool.max_cached_bytes == 10_000
    pool.allocate(3000).release()
    pool.allocate(3050).release()
    assert pool.get_stats() == {
        "hits": 1, "misses": 1, "hit_rate": 0.5, "bytes_allocated": 3072, "bytes_cached": 3072, "buckets": {3072: 1},
    }  # fmt: skip
    leases = [pool.allocate(3000) for _ in range(5)]
    del leases
    assert pool.stats.bytes_cached <= 10_000 and pool.stats.evictions >= 2
    assert pool.clear() > 0 and pool.get_stats()["buckets"] == {}


def test_the_cap_is_read_from_the_environment():
    code = (
        "from netcl.core.device import manager\n"
        "from netcl.core.memory import PersistentBufferPool, get_persistent_pool\n"
        "q = manager.default(0).queue\n"
        "print(get_persistent_pool(q).max_cached_bytes, PersistentBufferPool(q.context).max_cached_bytes)\n"
    )
    for value, expected in (("0.5", 1 << 29), ("", 4 << 30)):
        environment = os.environ | {"NETCL_MAX_CACHED_GB": value}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.split() == [str(expected)] * 2


def test_pools_of_a_queue_are_one(q):
    pool = get_persistent_pool(q)
    assert isinstance(pool, PersistentBufferPool)
    assert pool == get_persistent_pool(q)
    assert hash(pool) == hash(get_persistent_pool(q)) and pool != BufferPool(q.context)
    pinned = get_pinned_pool(q)
    assert isinstance(pinned, PinnedBufferPool) and pinned == get_pinned_pool(q) and pinned != pool
    before = pool.stats
    x = Tensor.from_shape(q, (1000,))
    after = pool.stats
    assert after.hits + after.misses == before.hits + before.misses + 1
    del x


def test_tensors_return_their_memory(q):
    pool = BufferPool(q.context)
    x = Tensor.from_shape(q, (128, 128), dtype="float32", pool=pool)
    handle = x.pool_handle
    assert isinstance(handle, BufferHandle) and pool.stats.bytes_in_use == 128 * 128 * 4
    del x
    gc.collect()
    assert handle.released, "the tensor's end ends the lease, whoever holds the handle"
    assert pool.stats.bytes_cached == 128 * 128 * 4
    y = Tensor.from_shape(q, (128, 128), pool=pool)
    assert pool.stats.hits == 1 and np.all(y.to_host() == 0), "recycled memory is filled, too"
    with pytest.raises(ValueError, match="another OpenCL context"):
        Tensor.from_shape(q, (4,), pool=BufferPool(Context([q.device])))
    with pytest.raises(TypeError, match="pool"):
        Tensor.from_shape(q, (4,), pool=object())
    with pytest.raises(ValueError, match="native CPU"):
        Tensor.from_shape(CPUQueue(), (4,), pool=pool)
    with pytest.raises(ValueError, match="native CPU"):
        Tensor.from_shape(q, (4,), pool=BufferPool(None))


def test_persistent_tensors_are_freed_not_pooled(q):
    pool = BufferPool(q.context)
    w = Tensor.from_shape(q, (1000,), pool=pool)
    w.persistent = True
    assert w.persistent and w.pool_handle.persistent
    del w
    assert (pool.stats.bytes_cached, pool.stats.bytes_allocated, pool.stats.releases) == (0, 0, 1)
    lease = pool.allocate(4000)
    w = Tensor(shape=(1000,), queue=q, pool_handle=lease, persistent=True)
    del w
    assert lease.released and pool.stats.bytes_allocated == 0


def test_uploads_give_their_page_locked_memory_back(q):
    pinned = get_pinned_pool(q)
    x = Tensor.from_host(q, np.zeros(5000, np.float32), async_copy=True, use_pinned=True)
    held = pinned.stats.bytes_in_use
    assert held >= 20_000
    x.wait()
    assert pinned.stats.bytes_in_use < held
    before = pinned.stats
    for _ in range(5):
        Tensor.from_host(q, np.zeros(5000, np.float32), use_pinned=True).to_host()
    assert pinned.stats.hits - before.hits == 5, "page-locked memory is recycled"
    unpinned = pinned.stats
    Tensor.from_host(q, np.zeros(5000, np.float32), use_pinned=False).to_host()
    assert pinned.stats == unpinned


def test_nothing_leaks_over_many_tensors(q):
    pool = get_persistent_pool(q)
    Tensor.from_host(q, np.zeros(3000)).to_host()
    gc.collect()
    before = pool.stats.bytes_allocated
    for _ in range(200):
        x = Tensor.from_host(q, np.zeros(3000, np.float32))
        x.to_host_async()[1].wait()
    del x
    q.finish()
    assert pool.stats.bytes_allocated <= before + 3 * 12_288


def test_who_shares_memory(q):
    assert is_integrated_gpu(CPUQueue()) and not has_svm_support(CPUQueue())
    shares = q.device.device_type == "cpu" or q.device.host_unified_memory
    assert is_integrated_gpu(q) == shares
    assert has_svm_support(q) == (q.device.svm_capabilities != 0)


def test_pinned_buffers(q):
    for where in (q, q.context):
        buffer = create_pinned_buffer(where, 1000)
        assert buffer.size == 1000 and buffer.flags & ALLOC_HOST_PTR
    x = Tensor(buffer=buffer, shape=(250,), queue=q)
    assert x.to_host().shape == (250,)
    for bad in (0, -5):
        with pytest.raises(ValueError):
            create_pinned_buffer(q, bad)


def test_zero_copy_buffers_are_the_array(q):
    array = aligned_array((16, 64))
    assert array.ctypes.data % 4096 == 0 and array.dtype == np.float32 and np.all(array == 0)
    array[:] = np.arange(1024).reshape(16, 64)
    buffer = create_zero_copy_buffer(q, array)
    assert buffer.size == array.nbytes and buffer.flags & USE_HOST_PTR
    x = Tensor(buffer=buffer, shape=(16, 64), queue=q)
    assert np.array_equal(x.to_host(), array)
    assert np.array_equal(OpenCLBackend(q).to_host(buffer, (1024,), "float32"), np.arange(1024))


def test_zero_copy_keeps_the_array_alive(q):
    class Watched(np.ndarray):
        pass

    array = aligned_array(1024).view(Watched)
    watch = weakref.ref(array)
    x = Tensor(buffer=create_zero_copy_buffer(q.context, array), shape=(1024,), queue=q)
    del array
    gc.collect()
    assert watch() is not None and np.all(x.to_host() == 0)
    del x
    q.finish()
    Tensor.from_shape(q, (1,)).to_host()  # references dropped by a driver's thread are settled at the next call
    gc.collect()
    assert watch() is None


def test_zero_copy_refuses_what_a_device_cannot_share(q):
    for bad, why in [
        (np.zeros((4, 4), np.float32).T[::2], "dense"),
        (np.broadcast_to(np.float32(1), (4,)), "dense|read-only"),
        (np.frombuffer(b"\0" * 64, np.float32), "read-only"),
        (np.zeros(0, np.float32), "empty"),
        (aligned_array(64, "uint8")[1:33], "aligned_array"),
    ]:
        with pytest.raises(ValueError, match=why):
            create_zero_copy_buffer(q, bad)
    with pytest.raises(TypeError, match="ndarray"):
        create_zero_copy_buffer(q, [1.0])
    with pytest.raises(ValueError, match="power of two"):
        aligned_array(4, alignment=3)
