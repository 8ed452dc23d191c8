"""Kernels of one's own and the kernel selector: the documentation's listings, every kind of argument, every refusal."""

import os
import subprocess
import sys

import numpy as np
import pytest

import netcl as nc
from netcl.core.device import manager
from netcl.core.index import IndexTensor
from netcl.core.kernel_selector import (
    KernelConfig,
    KernelSelector,
    KernelVariant,
    get_kernel_selector,
    select_conv2d_config,
    select_matmul_config,
)
from netcl.core.kernels.primitives import (
    PRIMITIVE_PREAMBLE,
    KernelSpec,
    LocalMemory,
    PrimitiveBuilder,
    WorkGroupTuner,
    build_elementwise_kernel,
)
from netcl.core.tensor import Tensor


def opencl_queues():
    """The queue of every OpenCL device; none is a failure where everything must be tested."""
    found = []
    while (handle := manager.default(str(len(found)))) is not None:
        found.append(handle.queue)
    assert found or os.environ.get("CI") != "true", "CI needs an OpenCL device"
    return found


QUEUES = opencl_queues()
every_opencl_queue = pytest.mark.parametrize("queue", QUEUES, ids=str)
# The native CPU runs kernels through a driver for CPUs, where there is one.
NATIVE = [manager.default("cpu").queue] if any(queue.device.type & 2 for queue in QUEUES) else []
every_queue = pytest.mark.parametrize("queue", [*NATIVE, *QUEUES], ids=str)

TWICE = "__kernel void scale_by_two(__global float* x) {  int gid = get_global_id(0);  x[gid] *= 2.0f;}"


def ramp(n):
    return np.arange(n, dtype=np.float32) - 3


@every_queue
def test_the_documented_one_off_kernel(queue):
    n = 1021
    x = Tensor.from_host(queue, ramp(n + 1))
    spec = nc.KernelSpec(
        name="scale_by_two",
        src="__kernel void scale_by_two(__global float* x) {"
        "  int gid = get_global_id(0);"
        "  x[gid] *= 2.0f;"
        "}",
    )
    prg = spec.build(queue)
    prg.run(queue, (n,), None, x)
    expected = ramp(n + 1)
    expected[:n] *= 2
    np.testing.assert_array_equal(x.to_host(), expected)
    prg.scale_by_two(queue, (n,), None, x)
    assert x.to_host()[0] == -12
    assert prg.kernel_names == ["scale_by_two"] and "scale_by_two" in dir(prg)
    assert prg.scale_by_two.parameters == ["__global float* x"] and prg.scale_by_two.num_args == 1
    assert prg.scale_by_two.int_ptr > 0
    with pytest.raises(AttributeError, match="it has: scale_by_two"):
        prg.missing


def test_the_documented_source():
    src = KernelSpec(
        name="vec_add",
        params=["__global const float* a", "__global const float* b", "__global float* c"],
        preamble=PRIMITIVE_PREAMBLE,
        body="int gid = get_global_id(0); c[gid] = a[gid] + b[gid];",
    ).to_source()
    assert src.startswith(PRIMITIVE_PREAMBLE) and "__kernel void vec_add(" in src
    for macro in ("LOAD", "STORE", "ADD", "SUB", "MUL", "DIV", "RELU"):
        assert f"#define {macro}(" in PRIMITIVE_PREAMBLE


def test_specs_that_say_too_much_or_too_little():
    with pytest.raises(TypeError, match="src="):
        KernelSpec("k")
    with pytest.raises(TypeError, match="must be left out"):
        KernelSpec("k", params=[], body="", src="")
    with pytest.raises(ValueError, match="not a name for a kernel"):
        KernelSpec("2k", src="")
    spec = KernelSpec("k", src=TWICE, options="-DX=1")
    assert spec.params is None and spec.body is None and spec.name == "k"
    assert "relaxed" not in spec.build_options and "-DX=1" in spec.build_options
    assert "-cl-fast-relaxed-math" in KernelSpec("k", src=TWICE, fast_math=True).build_options


@every_queue
@pytest.mark.parametrize("dtype", ["float", "float32", "half", "float16", "double", "float64", "bfloat16"])
def test_elementwise_kernels_of_every_dtype(queue, dtype):
    spec, kernel = build_elementwise_kernel(
        queue, name="mul_add", arity=2, expression="MUL(ADD(v0, v1), 2.0f)", dtype=dtype
    )
    assert "relaxed" not in spec.build_options
    assert ("cl_khr_fp16 : enable" in spec.to_source()) == (dtype in ("half", "float16"))
    n = 1000
    a = Tensor.from_host(queue, np.linspace(-4, 4, n), dtype=dtype)
    b = Tensor.from_host(queue, np.linspace(1, 3, n), dtype=dtype)
    out = Tensor.from_shape(queue, (n + 1,), dtype=dtype)
    kernel(queue, (n,), None, a, b, out, n)
    exact = (a.to_host().astype(np.float64) + b.to_host()) * 2
    error = np.abs(out.to_host()[:n].astype(np.float64) - exact)
    bits = {"half": 11, "float16": 11, "bfloat16": 8, "double": 53, "float64": 53}.get(dtype, 24)
    assert np.all(error <= np.abs(exact) * 2.0**-bits * 1.001)
    assert out.to_host()[n] == 0


@every_queue
def test_a_builder_makes_specs(queue):
    builder = PrimitiveBuilder(dtype="float", tuner=WorkGroupTuner())
    spec = builder.elementwise_spec(name="mul_add", arity=2, expression="MUL(ADD(v0, v1), 2.0f)")
    assert spec.params == ["__global const float* in0", "__global const float* in1", "__global float* out", "const ulong n"]
    x = Tensor.from_host(queue, ramp(5))
    spec.build(queue).run(queue, 5, None, x, x, x, 5)
    np.testing.assert_array_equal(x.to_host(), ramp(5) * 4)
    with pytest.raises(ValueError, match="arity is 0"):
        builder.elementwise_spec("k", 0, "1")
    with pytest.raises(ValueError, match="unsupported dtype"):
        PrimitiveBuilder(dtype="int32")


@every_queue
def test_numbers_become_the_declared_type(queue):
    source = """__kernel void numbers(__global double* out, char c, ushort s, int i, ulong l, float f, float4 v, __local float* t) {
        out[0] = c; out[1] = s; out[2] = i; out[3] = l; out[4] = f; out[5] = v.x + v.y * 10 + v.z * 100 + v.w * 1000; }"""
    prg = KernelSpec("numbers", src=source).build(queue)
    out = Tensor.from_shape(queue, (6,), dtype="double")
    for local in (LocalMemory(64), LocalMemory(nbytes=4)):
        prg.run(queue, (1,), None, out, -5, 65535, -7, 2**40, 3, (1, 2, 3, 4.0), local)
        np.testing.assert_array_equal(out.to_host(), [-5, 65535, -7, 2**40, 3, 4321])
    values = (np.int8(1), np.uint16(2), np.int32(3), np.uint64(4), np.float32(0.5), [np.float32(1), 0, 0, 0])
    prg.run(queue, (1,), None, out, *values, LocalMemory(4))
    np.testing.assert_array_equal(out.to_host(), [1, 2, 3, 4, 0.5, 1])
    prg.run(queue, (1,), None, out, True, np.array(2, np.uint16), np.bool_(True), 4, 0.5, (0, 0, 0, 0), LocalMemory(4))
    np.testing.assert_array_equal(out.to_host()[:3], [1, 2, 1])


@every_queue
@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (np.float64(0.5), TypeError, r"argument 1 \(float f\).*numpy.float32"),
        (np.float16(0.5), TypeError, "numpy.float32"),
        (1e300, ValueError, "too large for the type float"),
        (None, TypeError, "null pointer"),
        ((1, 2), TypeError, "pass a number"),
        ("2", TypeError, "not str"),
        (np.zeros(3), TypeError, "from_host"),
        (np.complex64(1), TypeError, "complex64"),
        (1j, TypeError, "not complex"),
    ],
    ids=repr,
)
def test_numbers_that_are_refused(queue, value, error, words):
    prg = KernelSpec("k", params=["__global float* x", "float f"], body="x[0] = f;").build(queue)
    x = Tensor.from_host(queue, ramp(4))
    with pytest.raises(error, match=words):
        prg.run(queue, (4,), None, x, value)
    np.testing.assert_array_equal(x.to_host(), ramp(4))


@every_queue
def test_tensors_that_are_refused(queue):
    prg = KernelSpec("twice", params=["__global float* x"], body="x[get_global_id(0)] *= 2;").build(queue)
    base = Tensor.from_host(queue, ramp(8).reshape(2, 4))
    with pytest.raises(TypeError, match=r"kernel twice, argument 0 \(__global float\* x\).*stored as double"):
        prg.run(queue, (4,), None, Tensor.from_host(queue, ramp(4), dtype="double"))
    with pytest.raises(TypeError, match="make it contiguous"):
        prg.run(queue, (4,), None, base[:, 1])
    with pytest.raises(TypeError, match="begins at element 4"):
        prg.run(queue, (4,), None, base[1])
    with pytest.raises(TypeError, match=r"t.to\(queue\)"):
        elsewhere = QUEUES[0] if queue.backend == "cpu" else manager.default("cpu").queue
        prg.run(queue, (4,), None, Tensor.from_host(elsewhere, ramp(4)))
    with pytest.raises(TypeError, match="pass a tensor"):
        prg.run(queue, (4,), None, 3)
    with pytest.raises(ValueError, match=r"takes 1 arguments \(__global float\* x\), 2 were given"):
        prg.run(queue, (4,), None, base, base)
    np.testing.assert_array_equal(base.to_host(), ramp(8).reshape(2, 4))
    prg.run(queue, (4,), None, base[0])
    assert base.to_host()[0, 0] == -6


@every_queue
def test_labels_reach_integer_pointers(queue):
    prg = KernelSpec("pick", params=["__global const int* at", "__global float* x"], body="x[at[0]] = 7;").build(queue)
    x = Tensor.from_host(queue, ramp(4))
    prg.run(queue, (1,), None, IndexTensor.from_host(queue, [2], dtype="int32"), x)
    assert x.to_host()[2] == 7
    with pytest.raises(TypeError, match="stored as long"):
        prg.run(queue, (1,), None, IndexTensor.from_host(queue, [2], dtype="int64"), x)


@every_queue
def test_sizes(queue):
    spec = KernelSpec("groups", params=["__global float* x"], body="x[get_global_id(0)] = get_local_size(0);")
    prg = spec.build(queue)
    x = Tensor.from_shape(queue, (96,))
    for bad, words in [((5, 5), "dimensions"), ((7,), "does not divide"), ((0,), "zero"), ((1 << 20,), "work-items")]:
        with pytest.raises(ValueError, match=words):
            prg.run(queue, (96,), bad, x)
    for bad in ("ab", (1.5,), (-1,), None, ("a",)):
        with pytest.raises(TypeError, match="global_size is a tuple"):
            prg.run(queue, bad, None, x)
    with pytest.raises(ValueError, match="one to three"):
        prg.run(queue, (1, 1, 1, 1), None, x)
    prg.run(queue, (96,), (3,), x)
    prg.run(queue, (96,), None, x)
    assert np.all(x.to_host() == 3), "a size that was given is remembered"
    assert spec.build(queue).groups.local_size(queue, (96,)) == (3,), "by the spec"
    won = prg.tune(queue, (96,), x)
    assert prg.groups.local_size(queue, (96,)) == won
    prg.run(queue, (0,), None, x)


@every_queue
def test_the_tuner_rounds_up(queue):
    (total,), (local,) = WorkGroupTuner().choose(queue, 1000)
    assert total >= 1000 and total % local == 0 and total - 1000 < local <= 256
    assert WorkGroupTuner(64).choose(queue, (1000,))[1][0] <= 64
    assert WorkGroupTuner(max_local=32) == WorkGroupTuner(32) != WorkGroupTuner()
    with pytest.raises(ValueError, match="max_local"):
        WorkGroupTuner(0)


@every_queue
def test_a_kernel_that_does_not_compile_shows_log_and_numbered_source(queue):
    with pytest.raises(nc.BuildError) as caught:
        KernelSpec("broken", params=["__global floaty* x"], body="x[0] = 1;").build(queue)
    text = str(caught.value)
    assert "compiler log" in text and "floaty" in text and "2 |     __global floaty* x" in text
    with pytest.raises(ValueError, match="no kernel 'other'|no kernel \"other\""):
        KernelSpec("other", src=TWICE).build(queue)


def test_only_queues_and_contexts_can_be_built_for():
    with pytest.raises(TypeError, match="OpenCL context"):
        KernelSpec("scale_by_two", src=TWICE).build(3)


@every_opencl_queue
def test_pyopencl_objects_are_accepted(queue):
    cl = pytest.importorskip("pyopencl")
    theirs = cl.CommandQueue.from_int_ptr(queue.int_ptr)
    prg = KernelSpec("scale_by_two", src=TWICE).build(theirs.context)
    buffer = cl.Buffer(theirs.context, cl.mem_flags.READ_WRITE, 16)
    cl.enqueue_copy(theirs, buffer, ramp(4))
    prg.run(queue, (4,), None, buffer)
    back = np.empty(4, np.float32)
    cl.enqueue_copy(theirs, back, buffer)
    np.testing.assert_array_equal(back, ramp(4) * 2)
    other = cl.Context([theirs.device])
    with pytest.raises(TypeError, match="another context"):
        prg.run(queue, (4,), None, cl.Buffer(other, cl.mem_flags.READ_WRITE, 16))
    kernel = cl.Kernel.from_int_ptr(prg.scale_by_two.int_ptr)
    assert kernel.function_name == "scale_by_two"


# ---- the selector ------------------------------------------------------------------------------------------------------


def test_variants_and_defaults():
    assert [variant.name for variant in KernelVariant] == (
        "MATMUL_NAIVE MATMUL_TILED MATMUL_REGISTER_TILED MATMUL_VECTORIZED MATMUL_STRIP MATMUL_MMA MATMUL_MMA_SPLIT "
        "MATMUL_WGMMA MATMUL_WGMMA_SPLIT CONV2D_NAIVE CONV2D_IM2COL CONV2D_IMPLICIT_GEMM CONV2D_TILED_LOCAL "
        "CONV2D_WINOGRAD CONV2D_DEPTHWISE CONV2D_UNITS ELEMENTWISE_SCALAR ELEMENTWISE_VECTORIZED REDUCTION_SEQUENTIAL "
        "REDUCTION_PARALLEL REDUCTION_WORKGROUP BATCHNORM_NAIVE BATCHNORM_FUSED"
    ).split()
    config = KernelConfig(KernelVariant.MATMUL_TILED)
    assert (config.tile_m, config.tile_n, config.tile_k, config.work_per_thread) == (32, 32, 8, 4)
    assert (config.local_size_1d, config.local_size_2d, config.vector_width) == (256, (16, 16), 4)
    assert config.use_local_memory and config.use_vectorization and config.extra == {}


@pytest.mark.parametrize("queue", [manager.default("cpu").queue, *QUEUES], ids=str)
def test_selection(queue):
    selector = KernelSelector(queue)
    assert selector.select_matmul_kernel(8, 8, 8, "float32").variant is KernelVariant.MATMUL_NAIVE
    assert selector.select_matmul_kernel(M=64, N=64, K=64).variant is not KernelVariant.MATMUL_NAIVE
    assert selector.select_elementwise_kernel(1024).variant is KernelVariant.ELEMENTWISE_SCALAR
    wide = selector.select_elementwise_kernel(1025, "half")
    assert wide.variant is KernelVariant.ELEMENTWISE_VECTORIZED and wide.vector_width == 8
    assert selector.select_reduction_kernel(255, "sum").variant is KernelVariant.REDUCTION_SEQUENTIAL
    fused = selector.select_batchnorm_kernel(8, 16, 4, 4, fuse_relu=True, training=False)
    assert fused.variant is KernelVariant.BATCHNORM_FUSED and fused.extra["fuse_relu"] is True
    assert selector.select_batchnorm_kernel(8, 16, fuse_relu=True, training=True).variant is KernelVariant.BATCHNORM_NAIVE
    conv = selector.select_conv2d_kernel(1, 3, 8, 8, 4, 3, 3, stride=(1, 1), pad=1)
    assert isinstance(conv, KernelConfig)
    with pytest.raises(ValueError, match="unsupported dtype"):
        selector.select_matmul_kernel(8, 8, 8, "int8")
    with pytest.raises(TypeError, match="stride is a whole number"):
        selector.select_conv2d_kernel(1, 3, 8, 8, 4, 3, 3, stride="1")


def test_the_cache_counts():
    selector = KernelSelector("cpu")
    for _ in range(3):
        selector.select_matmul_kernel(100, 100, 100)
    assert selector.cache_stats() == {"hits": 2, "misses": 1, "entries": 1}
    selector.clear_cache()
    assert selector.cache_stats() == {"hits": 0, "misses": 0, "entries": 0}
    selector.extend('[[kernel]]\nclass = "matmul_naive"\nvector_width = 2\nextra = { note = "mine" }')
    tiny = selector.select_matmul_kernel(2, 2, 2)
    assert tiny.vector_width == 2 and tiny.extra["note"] == "mine"
    with pytest.raises(ValueError, match="variant"):
        selector.extend("[[kernel]]")


def test_one_selector_per_device():
    assert get_kernel_selector("cpu") == get_kernel_selector(manager.default("cpu"))
    assert get_kernel_selector("cpu") != KernelSelector("cpu")
    with nc.device("cpu"):
        assert get_kernel_selector() == get_kernel_selector("cpu")
        assert select_matmul_config(8, 8, 8).variant is KernelVariant.MATMUL_NAIVE
        assert select_conv2d_config(1, 3, 8, 8, 4, 3, 3).variant is KernelVariant.CONV2D_IM2COL


def test_the_strategy_variable_is_read_in_a_process_of_its_own():
    code = (
        "from netcl.core.kernel_selector import KernelSelector\n"
        "print(KernelSelector('cpu').select_matmul_kernel(1024, 1024, 1024).variant.name)"
    )

    def run(**variables):
        environment = {**os.environ, **variables}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout

    assert run(NETCL_KERNEL_STRATEGY="portable").strip() == "MATMUL_VECTORIZED"
    # Register tiles are asked for, but the native CPU has no local memory to put them in.
    assert run(NETCL_KERNEL_STRATEGY="optimized").strip() == "MATMUL_VECTORIZED"
