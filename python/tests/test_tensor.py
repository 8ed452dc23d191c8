"""The Tensor contract on the native CPU: attributes, methods, errors and edge cases of the documentation."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
from netcl.core.device import CPUQueue, DeviceHandle, device, get_active_device, manager
from netcl.core.index import IndexTensor
from netcl.core.tensor import Tensor, from_dlpack, reshape

q = manager.default("cpu").queue
rng = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("name", "canonical", "numpy"),
    [
        ("float", "float32", np.float32),
        ("float32", "float32", np.float32),
        ("half", "float16", np.float16),
        ("float16", "float16", np.float16),
        ("double", "float64", np.float64),
        ("float64", "float64", np.float64),
    ],
)
def test_dtype_table(name, canonical, numpy):
    data = rng.normal(size=(3, 5))
    for tensor in (Tensor.from_host(q, data, dtype=name), Tensor.from_host(q, data.astype(numpy), dtype=name)):
        assert tensor.dtype == canonical
        assert tensor.to_host().dtype == numpy
        np.testing.assert_array_equal(tensor.to_host(), data.astype(numpy))
    assert Tensor.from_shape(q, (2,), dtype=name).dtype == canonical


@pytest.mark.parametrize("bad", ["int32", "Float32", "f4", "", "complex64", np.float32, 4])
def test_other_dtypes_are_value_errors(bad):
    with pytest.raises(ValueError, match="unsupported dtype"):
        Tensor.from_host(q, [1.0], dtype=bad)
    with pytest.raises(ValueError, match="unsupported dtype"):
        Tensor.from_shape(q, (1,), dtype=bad)


def test_bfloat16_comes_back_as_float32():
    values = np.array([1.0, -2.5, 3.140625, 1e30], dtype=np.float32)
    tensor = Tensor.from_host(q, values, dtype="bfloat16")
    assert tensor.dtype == "bfloat16" and tensor.array is None
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    assert tensor.to_host().dtype == np.float32
    np.testing.assert_array_equal(tensor.to_host(), rounded)


@pytest.mark.parametrize(
    "data",
    [
        [[1, 2], [3, 4]],
        (1.5, 2.5),
        3.0,
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.arange(6, dtype=np.uint64),
        np.array([True, False]),
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10.0)[::-2],
        np.arange(6, dtype=">f4"),
        np.ones((3, 0)),
        np.float64(2.25),
        range(4),
    ],
    ids=lambda d: type(d).__name__ + str(getattr(d, "dtype", "")),
)
def test_from_host_takes_what_asarray_takes(data):
    tensor = Tensor.from_host(q, data)
    expected = np.asarray(data).astype(np.float32)
    assert tensor.dtype == "float32" and tensor.shape == expected.shape and tensor.size == expected.size
    np.testing.assert_array_equal(tensor.to_host(), expected)


@pytest.mark.parametrize("data", [["a", "b"], np.array([1j]), object(), np.array([None, 1])])
def test_data_that_is_not_real_numbers_is_refused(data):
    with pytest.raises((TypeError, ValueError)):
        Tensor.from_host(q, data)


def test_every_way_to_leave_the_queue_out():
    host = rng.normal(size=4).astype(np.float32)
    with device("cpu"):
        for tensor in (
            Tensor.from_host(host),
            Tensor.from_host(None, host),
            Tensor.from_host(data=host),
            Tensor.from_host(queue=None, data=host),
            Tensor.from_host(host, dtype="float32"),
            Tensor.from_host(host, "float32"),
        ):
            np.testing.assert_array_equal(tensor.to_host(), host)
            assert tensor.queue == q
        assert Tensor.from_shape(None, (2, 2)).backend == "cpu"
    assert Tensor.from_host(None, host, backend="cpu").backend == "cpu"
    assert Tensor.from_host(manager.default("cpu"), host).queue == q
    with pytest.raises(TypeError, match="no data"):
        Tensor.from_host()
    with pytest.raises(TypeError, match="no data"):
        Tensor.from_host(q)
    with pytest.raises(ValueError, match='backend="cl" was asked for'):
        Tensor.from_host(q, host, backend="cl")
    with pytest.raises(ValueError, match="unknown backend"):
        Tensor.from_host(q, host, backend="cuda")
    assert Tensor.from_shape("cpu", (2,)).device == "cpu"
    with pytest.raises(TypeError, match="a device is needed"):
        Tensor.from_shape(3.5, (2,))


def test_from_host_copies():
    host = np.ones(1000, dtype=np.float32)
    tensor = Tensor.from_host(q, host)
    host[:] = 5
    assert (tensor.to_host() == 1).all()


def test_to_host_is_the_array_and_keeps_the_memory_alive():
    tensor = Tensor.from_shape(q, (1 << 16,), fill=3)
    array = tensor.to_host()
    assert array is tensor.array and array is tensor.to_host()
    del tensor
    gc.collect()
    for _ in range(50):
        Tensor.from_shape(q, (1 << 16,), fill=8)
    assert (array == 3).all(), "memory that an ndarray still sees was recycled"


def test_from_shape_is_always_filled():
    for fill in (0, 2.5, -1, float("inf")):
        for dtype in ("float32", "float16", "float64", "bfloat16"):
            tensor = Tensor.from_shape(q, (33, 7), dtype, fill)
            assert (tensor.to_host() == fill).all()
            tensor.to_host()[:] = 99
            del tensor
    assert Tensor.from_shape(q, 5).shape == (5,)
    assert Tensor.from_shape(q, [np.int64(2), 3.0]).shape == (2, 3)
    assert Tensor.from_shape(q, ()).shape == ()
    with pytest.raises(ValueError, match="negative length -1"):
        Tensor.from_shape(q, (2, -1))
    with pytest.raises(ValueError, match="more bytes than can be addressed"):
        Tensor.from_shape(q, (1 << 40, 1 << 40))
    with pytest.raises(MemoryError, match="out of memory"):
        Tensor.from_shape(q, (1 << 45,))
    with pytest.raises(TypeError, match="pool"):
        Tensor.from_shape(q, (2,), pool=object())


def test_attributes():
    tensor = Tensor.from_host(q, np.zeros((2, 3)))
    assert tensor.buffer is None and tensor.context is None and tensor.pool_handle is None
    assert tensor.pending_event is None and tensor.pending_release is None and tensor.host_ref is None
    assert tensor.shape == (2, 3) and tensor.size == 6 and tensor.ndim == 2 and tensor.backend == "cpu"
    assert tensor.strides == (3, 1) and len(tensor) == 2
    assert isinstance(tensor.queue, CPUQueue) and tensor.queue == q and tensor.queue.device.type == "cpu"
    assert tensor.requires_grad is False and tensor.grad is None and tensor.grad_fn is None
    tensor.requires_grad = True
    tensor.grad = Tensor.from_host(q, np.ones((2, 3)))
    tensor.grad_fn = print
    assert tensor.requires_grad and tensor.grad.shape == (2, 3) and tensor.grad_fn is print
    tensor.grad = None
    assert tensor.grad is None
    assert tensor.persistent is False
    tensor.persistent = True
    assert tensor.persistent
    for name in ("shape", "dtype", "backend", "size", "array", "queue"):
        with pytest.raises(AttributeError):
            setattr(tensor, name, None)
    tensor.note = "any attribute of the user's own"
    assert weakref.ref(tensor)() is tensor


def test_wait_is_idempotent_and_async_reads_work():
    tensor = Tensor.from_host(q, [1.0, 2.0], async_copy=True, use_pinned=True)
    tensor.wait()
    tensor.wait()
    tensor._clear_pending()
    array, event = tensor.to_host_async()
    assert event is None and array.tolist() == [1.0, 2.0]


def test_keyword_construction_aliases():
    array = np.arange(6, dtype=np.float32)
    tensor = Tensor(array=array, shape=(2, 3), dtype="float32", queue=q, requires_grad=True, persistent=True)
    assert tensor.shape == (2, 3) and tensor.requires_grad and tensor.persistent
    array[0] = 42
    assert tensor[0, 0].item() == 42
    reversed_view = Tensor(array=array[::-2], dtype="float32")
    assert reversed_view.to_host().tolist() == [5, 3, 1]
    with pytest.raises(ValueError, match="allocates nothing"):
        Tensor(shape=(2, 3))
    with pytest.raises(ValueError, match="from_host"):
        Tensor(array=np.arange(3), dtype="float32")
    frozen = np.zeros(3, dtype=np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        Tensor(array=frozen)
    assert Tensor(shape=(0, 4), queue=q).size == 0


def test_zero_size():
    tensor = Tensor.from_shape(q, (4, 0, 2))
    assert tensor.size == 0 and tensor.shape == (4, 0, 2)
    assert tensor.buffer is None and tensor.pool_handle is None
    assert tensor.to_host().shape == (4, 0, 2)
    assert reshape(tensor, (0,)).shape == (0,)
    assert "shape=(4, 0, 2)" in repr(tensor)


def test_reshape():
    flat = Tensor.from_host(q, np.arange(12.0))
    mat = reshape(flat, (3, 4))
    assert mat.shape == (3, 4) and mat._base is flat
    assert mat.to_host().base is not None
    mat.to_host()[0, 0] = 99
    assert flat[0].item() == 99
    assert reshape(mat, [12])._base is mat
    with pytest.raises(ValueError, match=r"\(12 elements\)"):
        reshape(flat, (5, 2))
    assert reshape(flat, (-1, 4)).shape == flat.reshape(-1, 4).shape == (3, 4)
    with pytest.raises(ValueError, match="negative"):
        reshape(flat, (-2, 4))
    with pytest.raises(TypeError, match=r"write x.shape\[0\]"):
        flat.size(0)


@pytest.mark.parametrize(
    "key",
    [0, -1, slice(None), slice(1, None, 2), (0, 1), (slice(None), -1), (..., 0), (None, 1), (slice(None, None, -1), ...),
     (slice(3, 1), 0), (1, ..., None, slice(0, 2))],
    ids=repr,
)
def test_indexing_reads_like_numpy(key):
    host = rng.normal(size=(4, 3, 5)).astype(np.float32)
    tensor = Tensor.from_host(q, host)
    part = tensor[key]
    assert part.shape == host[key].shape and part._base is tensor
    np.testing.assert_array_equal(part.to_host(), host[key])


def test_bad_indices():
    tensor = Tensor.from_shape(q, (2, 3))
    with pytest.raises(IndexError, match="index 2 is out of range for axis 0"):
        tensor[2]
    with pytest.raises(IndexError):
        tensor[0, 0, 0]
    with pytest.raises(TypeError, match="indexed by"):
        tensor["a"]
    assert [row.item() for row in Tensor.from_host(q, [1, 2, 3])] == [1, 2, 3]
    with pytest.raises(TypeError, match="indexed by"):
        tensor["a"] = 1


def test_numpy_protocols():
    tensor = Tensor.from_host(q, np.arange(6.0).reshape(2, 3))
    assert np.shares_memory(np.asarray(tensor), tensor.array)
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(tensor), tensor.array)
    assert np.sum(tensor) == 15
    assert tensor.__array_interface__["shape"] == (2, 3)
    # NumPy 1 has no copy keyword in asarray, so the protocol method is called itself.
    with pytest.raises(ValueError, match="without a copy"):
        tensor.__array__(np.dtype("float64"), copy=False)
    assert not np.shares_memory(tensor.__array__(copy=True), tensor.array)
    bf16 = Tensor.from_host(q, [1.0], dtype="bfloat16")
    assert not hasattr(bf16, "__array_interface__")


def test_dlpack_out_and_in():
    tensor = Tensor.from_host(q, np.arange(6.0).reshape(2, 3), dtype="float64")
    theirs = np.from_dlpack(tensor)
    assert np.shares_memory(theirs, tensor.array)
    strided = tensor[:, ::-1]
    np.testing.assert_array_equal(np.from_dlpack(strided), tensor.to_host()[:, ::-1])
    source = np.arange(10, dtype=np.float32)[::2]
    mine = from_dlpack(source)
    source[0] = -1
    assert mine.to_host().tolist() == [-1, 2, 4, 6, 8]
    assert from_dlpack(Tensor.from_host(q, [1.0], dtype="bfloat16")).dtype == "bfloat16"
    assert from_dlpack(np.zeros((0, 3), dtype=np.float32)).shape == (0, 3)
    with pytest.raises(BufferError, match="float"):
        from_dlpack(np.arange(3))
    for capsule in (tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 0))):
        del capsule  # an unused capsule frees its tensor
    with pytest.raises(BufferError):
        tensor.__dlpack__(dl_device=(2, 0))
    copied = np.from_dlpack(_Capsule(tensor.__dlpack__(copy=True)))
    assert not np.shares_memory(copied, tensor.array)


class _Capsule:
    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_dlpack_memory_outlives_both_owners():
    kept = np.from_dlpack(Tensor.from_shape(q, (1 << 15,), fill=4))
    imported = from_dlpack(np.full(1 << 15, 6.0, dtype=np.float32))
    gc.collect()
    for _ in range(50):
        Tensor.from_shape(q, (1 << 15,), fill=8)
    assert (kept == 4).all() and (imported.to_host() == 6).all()


def test_item_and_truth():
    assert Tensor.from_host(q, 2.5).item() == 2.5 == float(Tensor.from_host(q, [[2.5]]))
    assert bool(Tensor.from_host(q, [1.0])) and not bool(Tensor.from_host(q, [0.0]))
    with pytest.raises(ValueError, match="one element"):
        Tensor.from_host(q, [1.0, 2.0]).item()
    with pytest.raises(ValueError, match="ambiguous"):
        bool(Tensor.from_host(q, [1.0, 2.0]))
    with pytest.raises(TypeError):
        len(Tensor.from_host(q, 1.0))


def test_repr_shows_values_shape_dtype_and_device():
    text = repr(Tensor.from_host(q, [[1, 2.5], [-3, 4]]))
    assert text.startswith("Tensor([[1., 2.5],\n        [-3., 4.]], shape=(2, 2), dtype=float32, device=")
    tensor = Tensor.from_shape(q, (2000,))
    tensor.requires_grad = True
    assert "..." in repr(tensor) and "requires_grad=True" in repr(tensor)


def test_to_casts_and_stays():
    tensor = Tensor.from_host(q, [1.0, 2.0])
    assert tensor.to(q) is tensor and tensor.to() is tensor
    assert tensor.to(dtype="float16").dtype == "float16" and tensor.to("float64").dtype == "float64"
    with pytest.raises(ValueError, match="unsupported dtype"):
        tensor.to(dtype="int8")
    detached = tensor.detach()
    assert detached._base is tensor and np.shares_memory(detached.array, tensor.array)


def test_pickle_and_deepcopy():
    tensor = Tensor.from_host(q, rng.normal(size=(2, 3)), dtype="bfloat16")
    tensor.requires_grad = True
    with device("cpu"):
        for twin in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)):
            assert twin.dtype == "bfloat16" and twin.requires_grad
            np.testing.assert_array_equal(twin.to_host(), tensor.to_host())


def test_index_tensor():
    for data in ([3, 1, 2], np.array([3, 1, 2], dtype=np.uint8), np.array([3.0, 1.0, 2.0])):
        index = IndexTensor.from_host(q, data)
        assert index.dtype == "int64" and index.to_host().tolist() == [3, 1, 2]
    assert IndexTensor.from_host([1], dtype="int32").dtype == "int32"
    assert np.asarray(index).dtype == np.int64 and "[3, 1, 2], shape=(3,), dtype=int64" in repr(index)
    with pytest.raises(ValueError, match="element 1 is 0.5"):
        IndexTensor.from_host(q, [1.0, 0.5])
    with pytest.raises(ValueError, match="int32, int64 or bool"):
        IndexTensor.from_host(q, [1], dtype="int8")


def test_active_device_nests_and_is_per_thread():
    cpu = manager.default("cpu")
    assert isinstance(cpu, DeviceHandle) and cpu == manager.default(device="cpu")
    assert (cpu.backend, cpu.device_type, cpu.context) == ("cpu", "cpu", None)
    assert get_active_device() is None
    seen = []
    with device("cpu") as outer, device(outer) as inner:
        assert inner == outer == get_active_device()
        thread = threading.Thread(target=lambda: seen.append(get_active_device()))
        thread.start()
        thread.join()
    assert get_active_device() is None and seen == [None]
    with pytest.raises(ValueError, match="no device matches"):
        device("no such device")
    with pytest.raises(TypeError, match="selector"):
        manager.default(1.5)
    assert manager.default("no such device") is None


def test_tensors_shared_and_dropped_from_many_threads():
    shared = Tensor.from_shape(q, (1 << 14,), fill=1)
    errors = []

    def work(seed):
        try:
            for i in range(100):
                mine = Tensor.from_shape(q, (100 + seed * i,), fill=i)
                assert (mine.to_host() == i).all() and (shared[seed:].to_host() == 1).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_computes_on_the_cpu():
    before = Tensor.from_shape(q, (1 << 20,), fill=2)  # the parent's threads have started
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            inside = Tensor.from_shape(q, (1 << 20,), fill=3)
            ok = (inside.to_host() == 3).all() and (before.to("float16").to_host() == 2).all()
            code = 0 if ok else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert (before.to_host() == 2).all()


def test_importing_needs_neither_numpy_nor_opencl():
    code = "import sys, netcl; sys.exit(any(m in sys.modules for m in ('numpy', 'pyopencl')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_netcl_device_overrides_auto():
    code = "from netcl.core.device import manager; print(manager.default('auto').backend)"
    environment = {**os.environ, "NETCL_DEVICE": "cpu"}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "cpu"


def test_threads_can_be_set():
    before = netcl.num_threads()
    netcl.set_num_threads(1)
    assert netcl.num_threads() == 1
    assert (Tensor.from_shape(q, (1 << 20,), fill=1).to_host() == 1).all()
    netcl.set_num_threads(before)
    with pytest.raises(ValueError, match="at least one"):
        netcl.set_num_threads(0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_arrays_at_odd_addresses_are_taken(dtype):
    values = np.array([1.0, -2.5, 0.375, 8.0])
    for source in (np.float64, np.float32, np.float16):
        data = np.frombuffer(b"x" + values.astype(source).tobytes(), source, offset=1)
        assert not data.flags.aligned
        for selector in find_device_selectors():
            found = Tensor.from_host(manager.default(selector).queue, data, dtype).to(manager.default("cpu").queue, "float64")
            np.testing.assert_array_equal(found.to_host(), values)


def test_transpose_as_pytorch_and_numpy_write_it():
    host = np.arange(24.0).reshape(2, 3, 4)
    x = netcl.tensor(host)
    for call, expected in [
        (lambda t: t.transpose(0, -1), host.swapaxes(0, -1)),
        (lambda t: t.transpose(dim0=1, dim1=2), host.swapaxes(1, 2)),
        (lambda t: t.transpose(2, 0, 1), host.transpose(2, 0, 1)),
        (lambda t: t.transpose((2, 0, 1)), host.transpose(2, 0, 1)),
        (lambda t: t.transpose(axes=(1, 0, 2)), host.transpose(1, 0, 2)),
        (lambda t: t.transpose(), host.transpose()),
        (lambda t: netcl.transpose(t, 0, 1), host.swapaxes(0, 1)),
        (lambda t: netcl.transpose(t, axes=[-1, 0, 1]), host.transpose(-1, 0, 1)),
    ]:
        np.testing.assert_array_equal(call(x).to_host(), expected)
        leaf = netcl.tensor(host, requires_grad=True)
        (call(leaf) * netcl.tensor(expected)).sum().backward()
        np.testing.assert_array_equal(leaf.grad.to_host(), host)
    for wrong in [lambda: x.transpose(0, 3), lambda: x.transpose(1), lambda: x.transpose(0, 0, 1), lambda: x.transpose(0, 1, 2, 0)]:
        with pytest.raises((IndexError, ValueError)):
            wrong()
