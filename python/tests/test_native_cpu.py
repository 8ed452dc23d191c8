"""The native CPU where OpenCL devices have drivers: the default device, pools and buffers, and kernels of one's own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import netcl as nc
import netcl.autograd as ag
from netcl import ops
from netcl.core.backend.cpu import CPUBuffer
from netcl.core.device import CPUQueue, device, manager
from netcl.core.index import IndexTensor
from netcl.core.kernels.primitives import KernelSpec, WorkGroupTuner, build_elementwise_kernel
from netcl.core.memory import (
    BufferHandle,
    BufferPool,
    PersistentBufferPool,
    PinnedBufferPool,
    aligned_array,
    create_pinned_buffer,
    create_zero_copy_buffer,
    get_persistent_pool,
    get_pinned_pool,
)
from netcl.core.tensor import Tensor

Q = manager.default("cpu").queue
FOUND = [dev for _, dev in manager.discover()]
DRIVER = any(dev.device_type == "cpu" for dev in FOUND)
needs_driver = pytest.mark.skipif(not DRIVER and os.environ.get("CI") != "true", reason="no OpenCL driver for the CPU")

TWICE = "__kernel void twice(__global float* x) { x[get_global_id(0)] *= 2.0f; }"
WHERE = "__kernel void where(__global const float* x, __global long* at) { at[0] = (long) x; }"


def ramp(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32) - 3


def run(code: str, **environment: str) -> None:
    """Runs a program in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# ---- the default device -------------------------------------------------------------------------------------------


def test_auto_is_a_gpu_or_accelerator_else_the_native_cpu(monkeypatch):
    monkeypatch.delenv("NETCL_DEVICE", raising=False)
    fast = any(dev.device_type in ("gpu", "accel") for dev in FOUND)
    assert manager.default("auto").backend == manager.default().backend == ("cl" if fast else "cpu")
    assert Tensor.from_host([1.0]).backend == ("cl" if fast else "cpu")
    if not fast:
        assert manager.default("fp64").backend == "cpu" and manager.default("matrix") is None
        # The native CPU computes 16-bit floats in 32 bits: half-precision arithmetic is an OpenCL device's, if any.
        half = manager.default("fp16")
        assert half is None or half.backend == "cl"
    if FOUND:
        assert manager.default("opencl").backend == "cl" and manager.default(0).backend == "cl"
        assert manager.default(FOUND[0].name).backend == "cl"


@pytest.mark.parametrize("selector", ["cpu", *(str(i) for i in range(len(FOUND)))])
def test_the_environment_overrides_auto(monkeypatch, selector):
    monkeypatch.setenv("NETCL_DEVICE", selector)
    assert manager.default("auto") == manager.default(selector)
    assert Tensor.from_shape(None, (2,)).queue == manager.default(selector).queue
    with device() as dev:
        assert dev == manager.default(selector)


# ---- pools and buffers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [None, CPUQueue(), manager.default("cpu")], ids=["context", "queue", "handle"])
def test_a_pool_of_ones_own(where):
    pool = BufferPool(where)
    assert pool.context is None and Q.context is None and pool != BufferPool(where)
    h = pool.allocate(1000)
    assert isinstance(h, BufferHandle) and isinstance(h.buffer, CPUBuffer)
    assert (h.nbytes, h.size, h.buffer.size, h.released) == (1000, 1024, 1024, False)
    address = h.buffer.array.ctypes.data
    h.release()
    h.release()
    assert h.released and pool.stats.releases == 1
    with pytest.raises(RuntimeError, match="released"):
        h.buffer
    again = pool.allocate(600)
    assert again.buffer.array.ctypes.data == address
    stats = pool.stats
    assert (stats.hits, stats.misses, stats.hit_rate) == (1, 1, 0.5)
    assert (stats.bytes_cached, stats.bytes_in_use, stats.bytes_allocated) == (0, 1024, 1024)
    del again
    assert pool.trim() == 1024 and pool.stats.bytes_allocated == 0
    for bad in (0, -1):
        with pytest.raises(ValueError):
            pool.allocate(bad)


def test_tensors_of_a_pool_give_their_memory_back():
    pool = BufferPool(Q.context)
    x = Tensor.from_shape(Q, (128, 128), pool=pool, fill=2)
    handle = x.pool_handle
    assert isinstance(handle, BufferHandle) and pool.stats.bytes_in_use == 128 * 128 * 4
    assert np.all((x + 1.0).to_host() == 3) and np.all(x.array == 2)
    view = x[0]
    del x
    gc.collect()
    assert not handle.released
    del view
    gc.collect()
    assert handle.released, "the last tensor's end ends the lease, whoever holds the handle"
    assert pool.stats.bytes_cached == 128 * 128 * 4
    y = Tensor.from_shape(Q, (128, 128), pool=pool)
    assert pool.stats.hits == 1 and np.all(y.to_host() == 0), "recycled memory is filled, too"
    y.persistent = True
    del y
    assert pool.stats.bytes_allocated == 0, "freed, not pooled"
    assert Tensor.from_shape(Q, (0, 3), pool=pool).pool_handle is None
    assert Tensor.from_shape(Q, (3,)).pool_handle is None


def test_memory_that_an_ndarray_sees_is_never_used_again():
    pool = BufferPool(None)
    x = Tensor.from_shape(Q, (256,), pool=pool)
    seen = x.array
    x.pool_handle.release()
    y = Tensor.from_shape(Q, (256,), pool=pool, fill=7)
    assert np.all(seen == 0) and np.all(y.to_host() == 7) and seen.ctypes.data != y.array.ctypes.data
    del x
    gc.collect()
    assert np.all(seen == 0)
    handle = pool.allocate(1024)
    array = handle.buffer.array
    array[:] = 1
    handle.release()
    z = Tensor.from_shape(Q, (256,), pool=pool)
    assert np.all(array == 1) and np.all(z.to_host() == 0)


def test_the_persistent_pool_is_the_cache_of_the_native_cpu():
    pool = get_persistent_pool(Q)
    assert isinstance(pool, PersistentBufferPool) and pool == get_persistent_pool(CPUQueue()) != PersistentBufferPool(None)
    assert hash(pool) == hash(get_persistent_pool(Q)) and pool.max_cached_bytes > 0 and pool.context is None
    pool.clear()
    before = pool.get_stats()
    assert before["bytes_cached"] == 0 and before["buckets"] == {}
    x = Tensor.from_shape(Q, (1 << 16,))
    during = pool.get_stats()
    assert during["misses"] == before["misses"] + 1
    assert during["bytes_allocated"] == before["bytes_allocated"] + (1 << 18)
    del x
    gc.collect()
    after = pool.get_stats()
    assert after["bytes_cached"] == 1 << 18 and after["buckets"] == {1 << 18: 1}
    assert after["bytes_allocated"] == during["bytes_allocated"]
    y = Tensor.from_shape(Q, (1 << 16,))
    assert pool.stats.hits == before["hits"] + 1 and pool.stats.bytes_cached == 0
    y.persistent = True
    del y
    gc.collect()
    assert pool.stats.bytes_cached == 0 and pool.stats.bytes_allocated == before["bytes_allocated"]
    h = pool.allocate(5000)
    assert h.buffer.size >= 5000 and pool.stats.bytes_in_use >= 5000


def test_a_persistent_pool_of_ones_own_keeps_its_limit():
    pool = PersistentBufferPool(None, max_cached_bytes=10_000)
    assert pool.max_cached_bytes == 10_000
    pool.allocate(3000).release()
    pool.allocate(3050).release()
    assert pool.get_stats() == {
        "hits": 1, "misses": 1, "hit_rate": 0.5, "bytes_allocated": 3072, "bytes_cached": 3072, "buckets": {3072: 1},
    }  # fmt: skip
    leases = [pool.allocate(3000) for _ in range(5)]
    del leases
    assert pool.stats.bytes_cached <= 10_000 and pool.stats.evictions >= 2


def test_pinned_memory():
    pinned = get_pinned_pool(Q)
    assert isinstance(pinned, PinnedBufferPool) and pinned == get_pinned_pool(Q) != PinnedBufferPool(Q.context)
    assert pinned.allocate(100).size == 4096
    for where in (Q, Q.context):
        buffer = create_pinned_buffer(where, 1000)
        assert buffer.size == 1000 and buffer.array.shape == (1000,) and buffer.array.dtype == np.uint8
    x = Tensor(buffer=buffer, shape=(250,), queue=Q)
    x.array[:] = 1.5
    assert np.all(buffer.array.view(np.float32) == 1.5) and (x * 2.0).to_host()[249] == 3
    for bad in (0, -5):
        with pytest.raises(ValueError):
            create_pinned_buffer(Q, bad)
    with pytest.raises(ValueError):
        Tensor(buffer=buffer, shape=(251,), queue=Q)
    buffer.release()
    with pytest.raises(RuntimeError, match="released"):
        buffer.array
    assert (x * 2.0).to_host()[0] == 3, "a tensor keeps its memory"


def test_a_zero_copy_buffer_is_the_array():
    array = aligned_array((16, 64))
    array[:] = 3
    x = Tensor(buffer=create_zero_copy_buffer(Q, array), shape=(16, 64), queue=Q)
    array[0, 0] = 5
    assert x.to_host()[0, 0] == 5 and x.to_host().ctypes.data == array.ctypes.data
    for bad, why in [
        (np.zeros((4, 4), np.float32).T[::2], "dense"),
        (np.frombuffer(b"\0" * 64, np.float32), "read-only"),
        (np.zeros(0, np.float32), "empty"),
    ]:
        with pytest.raises(ValueError, match=why):
            create_zero_copy_buffer(Q, bad)
    odd = create_zero_copy_buffer(Q, aligned_array(64, "uint8")[1:33])
    with pytest.raises(ValueError, match="not aligned"):
        Tensor(buffer=odd, shape=(8,), queue=Q)


def test_a_tensor_over_a_lease():
    pool = BufferPool(None)
    h = pool.allocate(48)
    x = Tensor(buffer=h.buffer, pool_handle=h, shape=(3, 4), queue=Q)
    assert x.pool_handle == h
    with pytest.raises(ValueError, match="not the buffer of"):
        Tensor(buffer=pool.allocate(48).buffer, pool_handle=h, shape=(3, 4), queue=Q)
    del x
    gc.collect()
    assert h.released
    with pytest.raises(RuntimeError, match="released"):
        Tensor(pool_handle=h, shape=(3, 4), queue=Q)


# ---- kernels of one's own -----------------------------------------------------------------------------------------


@needs_driver
@pytest.mark.parametrize("n", [1, 17, 1000, 100_000])
def test_a_kernel_works_in_the_tensors_own_memory(n):
    x = Tensor.from_host(Q, ramp(n))
    at = IndexTensor.from_host(Q, [0], dtype="int64")
    KernelSpec("where", src=WHERE).build(Q).run(Q, (1,), None, x, at)
    assert at.to_host()[0] == x.array.ctypes.data
    before = x.array
    KernelSpec("twice", src=TWICE).build(Q).run(Q, (n,), None, x)
    np.testing.assert_array_equal(before, ramp(n) * 2)


@needs_driver
def test_kernels_and_operations_take_turns():
    program = KernelSpec("twice", src=TWICE).build(Q)
    x = Tensor.from_host(Q, ramp(5000))
    expected = ramp(5000)
    for _ in range(20):
        x = ops.add(x, 1.0)
        program.run(Q, (5000,), None, x)
        x = ops.mul(x, 0.5)
        expected = expected + 1
    np.testing.assert_array_equal(x.to_host(), expected)


@needs_driver
def test_memory_that_is_not_aligned_is_right_all_the_same():
    source = """__kernel void plus_one(__global const float* x, __global float* y) {
        int i = get_global_id(0); ((__global float16*) y)[i] = ((__global const float16*) x)[i] + 1.0f; }"""
    program = KernelSpec("plus_one", src=source).build(Q)
    memory = aligned_array(2 * 64 + 2)
    memory[:] = ramp(2 * 64 + 2)
    x, y = Tensor(array=memory[1:65], queue=Q), Tensor(array=memory[65:129], queue=Q)
    expected = memory[1:65] + 1
    program.run(Q, (4,), None, x, y)
    np.testing.assert_array_equal(memory[65:129], expected)
    assert memory[0] == -3 and memory[129] == 126, "neighbours are left alone"


@needs_driver
def test_one_memory_behind_two_pointers():
    _, kernel = build_elementwise_kernel(Q.context, name="mul_add", arity=2, expression="MUL(ADD(v0, v1), 2.0f)", dtype="float")
    x = Tensor.from_host(Q, ramp(1000))
    kernel(Q, (1000,), None, x, x, x, 1000)
    np.testing.assert_array_equal(x.to_host(), ramp(1000) * 4)
    empty = Tensor.from_shape(Q, (0,))
    kernel(Q, (0,), None, empty, empty, empty, 0)


@needs_driver
def test_buffers_and_leases_reach_kernels():
    program = KernelSpec("twice", src=TWICE).build(Q)
    handle = BufferPool(None).allocate(4000)
    handle.buffer.array.view(np.float32)[:1000] = ramp(1000)
    program.run(Q, (1000,), None, handle.buffer)
    np.testing.assert_array_equal(handle.buffer.array.view(np.float32)[:1000], ramp(1000) * 2)
    array = aligned_array(8)
    array[:] = 3
    program.run(Q, (8,), None, create_zero_copy_buffer(Q, array))
    assert np.all(array == 6)
    there = manager.default("opencl").queue
    with pytest.raises(TypeError, match="native CPU"):
        program.run(Q, (8,), None, Tensor.from_shape(there, (8,)).buffer)
    with pytest.raises(TypeError, match=r"t.to\(queue\)"):
        KernelSpec("twice", src=TWICE).build(there).run(there, (8,), None, handle.buffer)


@needs_driver
def test_a_kernel_built_elsewhere_runs_on_native_tensors():
    there = manager.default("opencl").queue
    program = KernelSpec("twice", src=TWICE).build(there)
    for queue in (Q, there, Q):
        x = Tensor.from_host(queue, ramp(10))
        program.run(queue, (10,), None, x)
        np.testing.assert_array_equal(x.to_host(), ramp(10) * 2)


@needs_driver
def test_work_group_sizes_are_chosen_and_remembered():
    (total,), (local,) = WorkGroupTuner().choose(Q, 1000)
    assert total >= 1000 and total % local == 0
    spec = KernelSpec("groups", params=["__global float* x"], body="x[get_global_id(0)] = get_local_size(0);")
    x = Tensor.from_shape(Q, (96,))
    spec.build(Q).run(Q, (96,), (3,), x)
    assert np.all(x.array == 3)
    assert spec.build(Q).groups.local_size(Q, (96,)) == (3,)


@needs_driver
def test_a_write_by_a_kernel_is_noticed():
    x = ag.tensor(ramp(4), queue=Q)
    y = x * x
    KernelSpec("twice", src=TWICE).build(Q).run(Q, (4,), None, x)
    with pytest.raises(RuntimeError, match="changed|written|modified|overwritten"):
        y.sum().backward()


@needs_driver
def test_threads_run_kernels_at_once():
    program = KernelSpec("twice", src=TWICE).build(Q)
    wrong = []

    def work(seed: int) -> None:
        x = Tensor.from_host(Q, ramp(3000) + seed)
        for _ in range(20):
            program.run(Q, (3000,), None, x)
        if not np.array_equal(x.to_host(), (ramp(3000) + seed) * 2.0**20):
            wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_driver
def test_a_recorded_step_replays_kernels():
    program = KernelSpec("twice", src=TWICE).build(Q)

    @nc.runtime.capture.capture
    def step(x):
        y = x + 1.0
        program.run(y.queue, (y.size,), None, y)
        return y * 3.0

    for shift in range(4):
        y = step(Tensor.from_host(Q, ramp(100) + shift))
        np.testing.assert_array_equal(y.to_host(), (ramp(100) + shift + 1) * 6)


def drivers() -> list[Path]:
    folder = Path(os.environ.get("OCL_ICD_VENDORS", "/nonexistent"))
    return sorted(folder.glob("*.icd")) if folder.is_dir() else []


@pytest.mark.parametrize("driver", drivers(), ids=lambda path: path.stem)
def test_every_driver_shares_the_memory(driver, tmp_path):
    (tmp_path / driver.name).write_text(driver.read_text())
    run(
        f"""
        import numpy as np, netcl as nc
        from netcl.core.device import manager
        from netcl.core.index import IndexTensor
        found = manager.discover()
        if not any(dev.device_type == "cpu" for _, dev in found):
            raise SystemExit(0)
        q = manager.default("cpu").queue
        x = nc.Tensor.from_host(q, np.arange(100_003, dtype=np.float32))
        at = IndexTensor.from_host(q, [0], dtype="int64")
        nc.KernelSpec("where", src={WHERE!r}).build(q).run(q, (1,), None, x, at)
        assert at.to_host()[0] == x.array.ctypes.data, "the driver copied"
        nc.KernelSpec("twice", src={TWICE!r}).build(q).run(q, (100_003,), None, x)
        assert np.array_equal((x + 0.0).to_host(), 2 * np.arange(100_003, dtype=np.float32))
        """,
        OCL_ICD_VENDORS=str(tmp_path),
    )


def test_without_a_driver_the_error_names_the_packages():
    run(
        f"""
        import numpy as np, netcl as nc
        from netcl.core.device import manager
        from netcl.core.kernels.primitives import WorkGroupTuner, build_elementwise_kernel
        from netcl.core.memory import BufferPool, get_persistent_pool
        q = manager.default("auto").queue
        assert q.backend == "cpu"
        for action in (
            lambda: nc.KernelSpec("twice", src={TWICE!r}).build(q),
            lambda: build_elementwise_kernel(q.context, name="k", arity=1, expression="v0"),
            lambda: WorkGroupTuner().choose(q, 10),
        ):
            try:
                action()
            except RuntimeError as error:
                assert "pocl-opencl-icd" in str(error) and "intel-opencl-rt" in str(error), error
            else:
                raise AssertionError("no error")
        pool = BufferPool(q.context)
        x = nc.Tensor.from_shape(q, (4,), pool=pool)
        assert pool.stats.bytes_in_use > 0 and get_persistent_pool(q).get_stats()["misses"] > 0
        """,
        NETCL_OPENCL_LIB="/nonexistent/libOpenCL.so",
        NETCL_DEVICE="",
    )


def test_kept_packed_weights_follow_every_write():
    """A convolution of one image keeps packed weights from its second use on; whoever writes to the weights is noticed."""
    rng = np.random.default_rng(0)
    queue = device("cpu").queue
    x = nc.tensor(rng.normal(size=(1, 64, 7, 7)).astype(np.float32), device="cpu")
    conv, other = (nc.nn.Conv2d(queue, 64, 96, 3, padding=1) for _ in range(2))
    opt = nc.optim.AdamW(conv.parameters(), lr=0.1)

    def used_thrice():
        with nc.no_grad():
            return [conv(x) for _ in range(3)][-1].numpy()

    def update(x):
        loss = (conv(x) ** 2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    def halve(x):
        with nc.no_grad():
            conv.weight.mul_(0.5)

    replayed = nc.runtime.capture(update)
    results = [used_thrice()]
    for write in (update, replayed, replayed, replayed, halve, lambda x: conv.load_state_dict(other.state_dict())):
        write(x)
        results.append(used_thrice())
        assert not np.array_equal(results[-1], results[-2]), write
    # Looked at by NumPy only now: memory that others see keeps nothing.
    weight, bias = (nc.tensor(p.detach().numpy().copy(), device="cpu") for p in (conv.weight, conv.bias))
    np.testing.assert_array_equal(results[-1], nc.nn.functional.conv2d(x, weight, bias, padding=1).numpy())
