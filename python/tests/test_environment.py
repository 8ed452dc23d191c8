"""Environment variables: nonsense is named once and the defaults hold; what the variables of the pages do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from netcl.core.device import manager

needs_opencl = pytest.mark.skipif(manager.default("opencl") is None, reason="no OpenCL device")


def run(code: str, **variables: str) -> tuple[str, list[str]]:
    """What a program prints, and what netcl says on standard error about variables."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith("NETCL_") or name == "NETCL_CACHE_DIR"
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if line.startswith("netcl: NETCL_")]


def test_nonsense_is_told_once_and_the_default_holds():
    wrong = {
        "NETCL_NUM_THREADS": "bogus",
        "NETCL_MATMUL_PRECISION": "bogus",
        "NETCL_MAX_CACHED_GB": "lots",
        "NETCL_CPU_CACHE_MB": "-1",
        "NETCL_KERNEL_STRATEGY": "fast",
        "NETCL_CONV_WINOGRAD": "no",
        "NETCL_ASYNC_H2D": "on",
        "NETCL_LIMITS": "wg=many",
        "NETCL_CACHE_MAX": "0",
        "NETCL_JIT": "off",
        "NETCL_SIMD": "mmx",
    }
    code = (
        "import netcl as nc, numpy as np\n"
        "from netcl.core.tensor import Tensor\n"
        "x = Tensor.from_host(nc.core.manager.default('cpu').queue, np.ones((4, 4), np.float32))\n"
        "for _ in range(3): y = nc.matmul(x, x)\n"
        "print(nc.get_matmul_precision(), nc.num_threads(), y.to_host()[0, 0])\n"
    )
    plain, silence = run(code)
    out, lines = run(code, **wrong)
    assert out == plain and out.startswith("highest ") and silence == []
    assert sorted(line.split(":")[1].strip() for line in lines) == sorted(wrong)
    for line in lines:
        name = line.split(":")[1].strip()
        assert repr(wrong[name])[1:-1] in line and "cannot be used; write " in line and "default" in line, line
    (line,) = (line for line in lines if "PRECISION" in line)
    assert "highest, high or medium" in line


def test_a_misspelt_name_is_told_the_right_one():
    _, lines = run("import netcl", NETCL_NUMTHREADS="4", NETCL_TEST_MINE="1")
    assert lines == [
        "netcl: NETCL_NUMTHREADS: there is no such variable and it does nothing; did you mean NETCL_NUM_THREADS?"
    ]


def test_good_values_and_empty_ones_are_silent():
    out, lines = run(
        "import netcl; print(netcl.num_threads(), netcl.get_matmul_precision())",
        NETCL_NUM_THREADS=" 3 ", NETCL_MATMUL_PRECISION="HIGH", NETCL_JIT="", NETCL_MAX_CACHED_GB="inf", NETCL_DEBUG="",
    )  # fmt: skip
    assert (out, lines) == ("3 high\n", [])


def test_the_native_cpu_obeys_the_caps():
    # A tensor of 16 MB is given back: it waits in the cache, or is the system's again.
    code = (
        "from netcl.core.device import manager\n"
        "from netcl.core.tensor import Tensor\n"
        "q = manager.default('cpu').queue\n"
        "def resident():\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * 4096 >> 20\n"
        "x = Tensor.from_shape(q, (4 << 20,), fill=1.0)\n"
        "before = resident()\n"
        "del x\n"
        "print(before - resident() > 12)\n"
    )
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("no /proc")
    assert run(code)[0] == "False\n"
    assert run(code, NETCL_MAX_CACHED_GB="0")[0] == "True\n"
    assert run(code, NETCL_MAX_CACHED_GB="0", NETCL_CPU_CACHE_MB="64")[0] == "False\n"
    assert run(code, NETCL_MAX_CACHED_GB="4", NETCL_CPU_CACHE_MB="0")[0] == "True\n"


KERNEL = """
import numpy as np
from netcl.core.device import manager
from netcl.core.kernels.primitives import KernelSpec
from netcl.core.tensor import Tensor
q = manager.default("opencl").queue
program = KernelSpec("twice", params=["__global float* x"], body="x[get_global_id(0)] *= 2.0f;").build(q)
x = Tensor.from_host(q, np.ones(1 << 16, np.float32))
"""


@needs_opencl
def test_profile_events_gives_times_to_the_launches_of_own_kernels():
    code = KERNEL + (
        "for launch in (program.run, program.kernel('twice'), program.twice):\n"
        "    event = launch(q, (1 << 16,), None, x)\n"
        "    event.wait()\n"
        "    times = event.profile\n"
        "    assert 0 < times.queued <= times.submit <= times.start < times.end, times\n"
        "assert program.run(q, (0,), None, x) is None\n"
        "assert x.to_host()[0] == 8.0\n"
        "print(q.profiling)\n"
    )
    assert run(code, NETCL_PROFILE_EVENTS="1") == ("True\n", [])


@needs_opencl
def test_without_profile_events_launches_make_no_events():
    code = KERNEL + "print(program.run(q, (1 << 16,), None, x), q.profiling)"
    assert run(code) == ("None False\n", [])


@needs_opencl
def test_copies_to_a_device_obey_their_variables():
    code = (
        "import numpy as np\n"
        "from netcl.core.device import manager\n"
        "from netcl.core.memory import get_pinned_pool\n"
        "from netcl.core.tensor import Tensor\n"
        "q = manager.default('opencl').queue\n"
        "x = Tensor.from_host(q, np.ones(1 << 20, np.float32))\n"
        "stats = get_pinned_pool(q).stats\n"
        "print(x.pending_event is not None, stats.hits + stats.misses > 0)\n"
    )
    assert run(code, NETCL_ASYNC_H2D="0")[0].split()[0] == "False"
    assert run(code, NETCL_PINNED_H2D="0")[0].split()[1] == "False"
    assert run(code)[0].split()[1] == "True"
