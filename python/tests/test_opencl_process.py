"""The OpenCL backend and the rest of the process: forks, a missing library, signals, memory that runs out."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl.core.backend.opencl import interruptible_finish
from netcl.core.device import manager
from netcl.core.memory import BufferPool
from netcl.core.tensor import Tensor
from netcl.profiling import profile

SELECTORS = [selector for selector in find_device_selectors() if selector != "cpu"]


@pytest.fixture(params=SELECTORS)
def q(request):
    return manager.default(request.param).queue


def run(code, **environment):
    """Runs a piece of Python in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- forks -------------------------------------------------------------------------------------------------------


def in_child(check):
    """Runs a check in a forked child and returns its exit code; a child that hangs is killed and fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


def refuses(action):
    """Whether an action is refused with an error that speaks of the fork."""
    try:
        action()
    except RuntimeError as error:
        return "fork" in str(error)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_is_told(q):
    x = Tensor.from_host(q, np.arange(6.0))
    pool = BufferPool(q.context)
    lease = pool.allocate(100)
    array, event = x.to_host_async()

    def child():
        tried = [
            refuses(x.to_host),
            refuses(x.to_host_async),
            refuses(lambda: Tensor.from_host(q, np.zeros(3))),
            refuses(lambda: Tensor.from_shape(q, (3,))),
            refuses(lambda: pool.allocate(1 << 20)),
            refuses(q.finish),
            refuses(event.wait),
            refuses(manager.discover),
            refuses(lambda: interruptible_finish(q)),
        ]
        lease.release()
        cpu = Tensor.from_host(manager.default("cpu").queue, np.arange(3.0))
        return all(tried) and cpu.to_host().tolist() == [0, 1, 2]

    assert in_child(child) == 0
    event.wait()
    assert np.array_equal(array, np.arange(6.0)) and np.array_equal(x.to_host(), np.arange(6.0))
    lease.release()
    assert pool.stats.bytes_cached == 256


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_of_a_busy_process_does_not_hang(q):
    stop = threading.Event()

    def work():
        while not stop.is_set():
            Tensor.from_host(q, np.arange(1000.0)).to_host()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        x = Tensor.from_shape(q, (10,))
        for _ in range(10):
            assert in_child(lambda: refuses(x.to_host) and refuses(lambda: Tensor.from_shape(q, (5,)))) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert np.array_equal(x.to_host(), np.zeros(10))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_of_a_profiled_process_is_not_profiled(q):
    stop = threading.Event()

    def work():
        while not stop.is_set():
            Tensor.from_host(q, np.arange(1000.0)).to_host()

    def child():
        cpu = manager.default("cpu").queue
        return refuses(x.to_host) and Tensor.from_host(cpu, np.arange(3.0)).to_host().tolist() == [0, 1, 2]

    x = Tensor.from_shape(q, (10,))
    with profile(ceilings=False) as p:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            assert [in_child(child) for _ in range(5)] == [0] * 5
        finally:
            stop.set()
            thread.join(30)
    assert {command.kind for command in p.commands} == {"upload", "download"}


def compute_on(selector):
    """What a spawned worker does: it is a process like any other."""
    return Tensor.from_host(manager.default(selector).queue, np.arange(4.0)).to_host().tolist()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system has no fork")
def test_multiprocessing_by_fork_and_by_spawn(q):
    x = Tensor.from_host(q, np.arange(4.0))
    parent, child = multiprocessing.Pipe()

    def work():
        child.send(refuses(x.to_host))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
    assert parent.poll(30) and parent.recv()
    process.join(30)
    assert process.exitcode == 0
    assert np.array_equal(x.to_host(), np.arange(4.0))
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        assert workers.apply_async(compute_on, (SELECTORS[0],)).get(60) == [0, 1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_forked_before_opencl_works():
    run(
        """
        import os, netcl, numpy as np
        pid = os.fork()
        x = netcl.Tensor.from_host(np.arange(5.0))
        assert x.to_host().tolist() == [0, 1, 2, 3, 4]
        if pid:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """
    )


# ---- no OpenCL ---------------------------------------------------------------------------------------------------


def test_without_a_library_everything_else_works():
    run(
        """
        import netcl, numpy as np
        from netcl.core.device import manager
        from netcl.core.backend.opencl import Context, OpenCLBackend
        from netcl.core.capabilities import device_profile
        dev = manager.default("auto")
        assert (dev.backend, dev.context) == ("cpu", None)
        assert manager.discover() == []
        assert manager.default("gpu") is manager.default("opencl") is manager.default(0) is None
        assert netcl.Tensor.from_host(np.eye(3)).backend == "cpu"
        assert device_profile(dev.queue.device).device_type == "cpu"
        for action in (OpenCLBackend, lambda: Context.from_int_ptr(1)):
            try:
                action()
            except RuntimeError as error:
                assert "OpenCL" in str(error)
            else:
                raise AssertionError("no error")
        """,
        NETCL_OPENCL_LIB="/nonexistent/libOpenCL.so",
        NETCL_DEVICE="",
    )


# ---- signals -----------------------------------------------------------------------------------------------------

SLOW = """
    import signal, threading, time
    import numpy as np, pyopencl as cl
    from netcl.core.device import manager
    from netcl.core.backend.opencl import interruptible_finish
    q = manager.default({index}).queue
    queue = cl.CommandQueue.from_int_ptr(q.int_ptr)
    source = '''__kernel void spin(__global uint *x, ulong n) {{
        uint v = x[0];
        for (ulong i = 0; i < n; i++) v = v * 1664525u + 1013904223u + (uint)(i >> 7);
        x[0] = v;
    }}'''
    kernel = cl.Kernel(cl.Program(queue.context, source).build(), "spin")
    buffer = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4)
    def spin(n):
        kernel(queue, (1,), (1,), buffer, np.uint64(n))
        queue.flush()
    spin(10); queue.finish()
    start = time.monotonic(); spin(50_000_000); queue.finish()
    rate = 50_000_000 / (time.monotonic() - start)
    spin(int(4 * rate))  # about four seconds
"""


@pytest.mark.parametrize("index", range(len(SELECTORS)))
def test_a_long_wait_times_out_and_answers_signals(index):
    pytest.importorskip("pyopencl")
    run(
        textwrap.dedent(SLOW.format(index=index))
        + textwrap.dedent(
            """
            start = time.monotonic()
            try:
                interruptible_finish(q, timeout=0.2)
            except TimeoutError as error:
                assert "busy" in str(error)
            else:
                raise AssertionError("the wait did not time out")
            assert 0.19 < time.monotonic() - start < 1.5
            ticks = []
            ticker = threading.Thread(target=lambda: [ticks.append(time.sleep(0.01)) for _ in range(20)])
            ticker.start()
            threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
            start = time.monotonic()
            try:
                interruptible_finish(q, timeout=30)
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("the wait was not interrupted")
            assert time.monotonic() - start < 1.5
            assert len(ticks) == 20, "other threads run meanwhile"
            assert interruptible_finish(q, timeout=60)
            """
        )
    )


# ---- memory that runs out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("selector", SELECTORS)
def test_too_large_a_block_is_a_memory_error(selector):
    run(
        f"""
        from netcl.core.device import manager
        from netcl.core.memory import BufferPool, create_pinned_buffer, get_persistent_pool
        from netcl.core.tensor import Tensor
        q = manager.default({selector!r}).queue
        kept = Tensor.from_shape(q, (1 << 20,))
        pool = BufferPool(q.context)
        actions = [
            lambda: Tensor.from_shape(q, (1 << 25,)),
            lambda: Tensor.from_shape(q, (1 << 25,), pool=pool),
            lambda: pool.allocate(1 << 27),
            lambda: create_pinned_buffer(q, 1 << 27),
        ]
        for action in actions:
            try:
                action()
            except MemoryError as error:
                text = str(error)
                assert q.device.name in text and str(1 << 27) in text and str(1 << 26) in text, text
            else:
                raise AssertionError("no error")
        assert "persistent pool holds 4.00 MB in 1 lease" in text, text
        assert Tensor.from_shape(q, (1 << 24,)).size == 1 << 24
        """,
        NETCL_LIMITS="alloc=64M",
    )


@pytest.mark.parametrize("selector", SELECTORS)
def test_when_memory_runs_out_the_error_says_who_holds_it(selector):
    if "Portable Computing Language" in manager.default(selector).platform_name:
        pytest.skip("PoCL 3.1 aborts the process when the host has no memory left")
    run(
        f"""
        import resource
        from netcl.core.device import manager
        from netcl.core.tensor import Tensor
        q = manager.default({selector!r}).queue
        if q.device.device_type != "cpu":
            raise SystemExit(0)  # the limit below holds for the host's memory
        Tensor.from_shape(q, (10,)).to_host()
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + (300 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        kept = []
        try:
            while len(kept) < 100:
                kept.append(Tensor.from_shape(q, (1 << 22,)))
        except MemoryError as error:
            text = str(error)
        assert q.device.name in text and f"persistent pool holds" in text, text
        assert f'{{len(kept)}} x 16.00 MB "tensor"' in text and text.count("persistent pool") == 1, text
        del kept
        assert Tensor.from_shape(q, (1 << 22,)).size == 1 << 22
        """
    )


@pytest.mark.parametrize("selector", SELECTORS)
def test_exit_with_work_under_way(selector):
    run(
        f"""
        import numpy as np
        from netcl.core.device import manager
        from netcl.core.tensor import Tensor
        q = manager.default({selector!r}).queue
        x = Tensor.from_host(q, np.zeros(1 << 22), use_pinned=False)
        y, event = x.to_host_async()
        """
    )


# ---- cold starts -------------------------------------------------------------------------------------------------

FIRST_LAUNCH = """
    import numpy as np
    from netcl import ops
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor
    for index in range(len(manager.discover())):
        x = Tensor.from_host(manager.default(str(index)).queue, np.ones((3, 4), np.float32))
        ops.relu(x)
"""


@pytest.mark.skipif(not SELECTORS, reason="no OpenCL device")
def test_a_program_may_end_right_after_its_first_launches(tmp_path):
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        run(FIRST_LAUNCH, NETCL_CACHE="0", POCL_CACHE_DIR=str(tmp_path / str(number)))


@pytest.mark.skipif(os.name != "posix" or not SELECTORS, reason="needs pipes and an OpenCL device")
def test_pipes_and_entries_of_others_in_the_cache_are_replaced(tmp_path):
    run(FIRST_LAUNCH, NETCL_CACHE_DIR=str(tmp_path))
    entries = sorted((tmp_path / "programs").glob("*.entry"))
    assert entries
    for folder in (tmp_path / "programs", tmp_path / "probes"):
        assert not folder.exists() or folder.stat().st_mode & 0o777 == 0o700
    entries[0].unlink()
    os.mkfifo(entries[0])
    for entry in entries[1:]:
        entry.chmod(0o666)
    run(FIRST_LAUNCH, NETCL_CACHE_DIR=str(tmp_path))
    assert all(entry.is_file() and entry.stat().st_size > 100 for entry in entries)
    assert all(entry.stat().st_mode & 0o777 == 0o600 for entry in entries)
