"""Ctrl+C, SIGTERM, exits and forks, in processes of their own, some with a kernel that never ends."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest.importorskip("netcl")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and fork")

GRACE = 3.0

# Runs kernels on a queue of ours through the C interface: they are to spin, which nothing in the package does.
PRELUDE = """
import ctypes, os, signal, sys, time
import numpy as np
from netcl.core.device import manager
from netcl.core.tensor import Tensor

SOURCE = b'''
__kernel void spin(volatile __global int* flag, ulong count) {
    for (ulong i = 0; (count == 0 || i < count) && flag[0] == 0; ++i) { flag[1] = (int)i; }
}'''

handle = manager.default("opencl")
queue = handle.queue

def make_spin():
    cl = ctypes.CDLL(os.environ.get("NETCL_OPENCL_LIB", "libOpenCL.so.1"))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name in ["clCreateProgramWithSource", "clCreateKernel", "clCreateBuffer"]:
        getattr(cl, name).restype = pointer
    raw, context, device = pointer(queue.int_ptr), pointer(), pointer()
    for what, to in [(0x1090, context), (0x1091, device)]:
        assert cl.clGetCommandQueueInfo(raw, what, size(8), ctypes.byref(to), None) == 0
    text = ctypes.c_char_p(SOURCE)
    program = pointer(cl.clCreateProgramWithSource(context, 1, ctypes.byref(text), None, None))
    assert cl.clBuildProgram(program, 1, ctypes.byref(device), b"", None, None) == 0
    kernel = pointer(cl.clCreateKernel(program, b"spin", None))
    zeros = (ctypes.c_int * 2)()
    flag = pointer(cl.clCreateBuffer(context, ctypes.c_ulong(1 | 32), size(8), zeros, None))

    def spin(count=0):
        argument = ctypes.c_ulong(count)
        assert cl.clSetKernelArg(kernel, 0, size(8), ctypes.byref(flag)) == 0
        assert cl.clSetKernelArg(kernel, 1, size(8), ctypes.byref(argument)) == 0
        one = size(1)
        assert cl.clEnqueueNDRangeKernel(raw, kernel, 1, None, ctypes.byref(one), None, 0, None, None) == 0
        queue.flush()

    return spin

def turns_per_second(spin):
    spin(1)
    queue.finish()
    count, seconds = 100_000, 0.0
    while seconds < 0.05:
        count *= 4
        start = time.perf_counter()
        spin(count)
        queue.finish()
        seconds = time.perf_counter() - start
    return count / seconds

def ready():
    print("READY", flush=True)
"""


def has_opencl() -> bool:
    from netcl.core.device import manager

    return manager.default("opencl") is not None


needs_opencl = pytest.mark.skipif(not has_opencl(), reason="no OpenCL device")


class Script:
    """A Python program under way, after it has printed READY."""

    def __init__(self, body: str, tmp_path: Path, prelude: str = PRELUDE, **variables: str) -> None:
        environment = os.environ | {"POCL_CACHE_DIR": str(tmp_path), "PYTHONUNBUFFERED": "1"} | variables
        self.process = subprocess.Popen(
            [sys.executable, "-c", prelude + textwrap.dedent(body)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        if first != "READY\n":
            pytest.fail(f"the script ended early: {first!r} {self.process.communicate()}")
        time.sleep(0.3)
        self.started = time.monotonic()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, float, str, str]:
        """Exit code (negative for a signal), seconds since READY, and what it printed. A hang is a failure."""
        try:
            out, err = self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"the process hangs: {self.process.communicate()}")
        return self.process.returncode, time.monotonic() - self.started, out, err


@needs_opencl
def test_ctrl_c_during_a_finite_kernel_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    script = Script(
        """
        spin = make_spin()
        turns = int(turns_per_second(spin) * 1.3)
        try:
            spin(turns)
            ready()
            queue.finish()
            time.sleep(0.1)
            print("not interrupted")
        except KeyboardInterrupt:
            # The device goes on working, also for longer than the grace.
            for _ in range(4):
                spin(turns)
                queue.finish()
            x = Tensor.from_host(queue, np.arange(4, dtype=np.float32))
            print("caught", x.to_host().sum())
        """,
        tmp_path,
    )
    script.send(signal.SIGINT)
    code, _, out, err = script.end()
    assert (code, out) == (0, "caught 6.0\n"), err


@needs_opencl
def test_ctrl_c_during_an_endless_kernel_ends_with_130(tmp_path: Path) -> None:
    script = Script("spin = make_spin(); spin(); ready(); queue.finish()", tmp_path)
    script.send(signal.SIGINT)
    code, seconds, _, err = script.end()
    assert code == 130, err
    assert GRACE <= seconds < GRACE + 2
    assert "the device has not answered for 3 s" in err


@needs_opencl
def test_a_blocking_read_behind_an_endless_kernel_ends_with_130(tmp_path: Path) -> None:
    body = """
        x = Tensor.from_host(queue, np.arange(4, dtype=np.float32))
        spin = make_spin(); spin(); ready(); x.to_host()
    """
    script = Script(body, tmp_path)
    script.send(signal.SIGINT)
    code, seconds, _, err = script.end()
    assert code == 130, err
    assert GRACE <= seconds < GRACE + 2


@needs_opencl
def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    script = Script("spin = make_spin(); spin(); ready(); queue.finish()", tmp_path)
    script.send(signal.SIGINT)
    time.sleep(0.3)
    script.send(signal.SIGINT)
    code, seconds, _, err = script.end()
    assert code == 130, err
    assert seconds < 2


@needs_opencl
def test_sigterm_during_an_endless_kernel_is_death_by_sigterm(tmp_path: Path) -> None:
    script = Script("spin = make_spin(); spin(); ready(); queue.finish()", tmp_path)
    script.send(signal.SIGTERM)
    code, seconds, _, err = script.end()
    assert code == -signal.SIGTERM, err
    assert seconds < 2


@needs_opencl
def test_sigterm_ends_a_program_whose_own_handler_cannot_run(tmp_path: Path) -> None:
    body = """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        spin = make_spin(); spin(); ready(); queue.finish()
    """
    script = Script(body, tmp_path)
    script.send(signal.SIGTERM)
    code, seconds, _, err = script.end()
    assert code == -signal.SIGTERM, err
    assert GRACE <= seconds < GRACE + 2


@needs_opencl
def test_ctrl_c_in_pure_python_is_as_ever(tmp_path: Path) -> None:
    body = """
        queue.finish()
        for round in range(2):
            try:
                if round == 0:
                    ready()
                else:
                    os.kill(os.getpid(), signal.SIGINT)
                time.sleep(10)
            except KeyboardInterrupt:
                print("interrupt", round)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    """
    script = Script(body, tmp_path)
    script.send(signal.SIGINT)
    code, seconds, out, err = script.end()
    assert (code, out) == (0, "interrupt 0\ninterrupt 1\n"), err
    assert seconds < 2


@needs_opencl
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_programs_own_handler_is_called(tmp_path: Path, when: str) -> None:
    body = f"""
        calls = []
        def mine(number, frame):
            calls.append(number)
        if {when!r} == "before":
            signal.signal(signal.SIGINT, mine)
        spin = make_spin()
        turns = int(turns_per_second(spin))
        if {when!r} == "after":
            signal.signal(signal.SIGINT, mine)
        spin(turns)
        ready()
        queue.finish()
        while not calls:
            time.sleep(0.01)
        print("handled", calls)
        assert signal.getsignal(signal.SIGINT) is mine
        # Stuck for good, a handler that never gets its turn does not keep the process.
        spin()
        os.kill(os.getpid(), signal.SIGINT)
        print("handled", calls, flush=True)
        pid = os.getpid()
        import threading
        threading.Timer(0.2, lambda: os.kill(pid, signal.SIGINT)).start()
        queue.finish()
    """
    script = Script(body, tmp_path)
    script.send(signal.SIGINT)
    code, _, out, err = script.end()
    assert (code, out) == (130, "handled [2]\nhandled [2, 2]\n"), err


@needs_opencl
@pytest.mark.parametrize(("choice", "expected"), [("SIG_DFL", -signal.SIGINT), ("SIG_IGN", -signal.SIGKILL)])
def test_default_and_ignored_signals_stay_so(tmp_path: Path, choice: str, expected: int) -> None:
    body = f"""
        signal.signal(signal.SIGINT, signal.{choice})
        spin = make_spin(); spin(); ready(); queue.finish()
    """
    script = Script(body, tmp_path)
    script.send(signal.SIGINT)
    time.sleep(GRACE + 1 if choice == "SIG_IGN" else 0.5)
    if choice == "SIG_IGN":
        assert script.process.poll() is None, "an ignored signal ended the process"
        script.process.kill()
    assert script.end()[0] == expected


@needs_opencl
def test_asyncio_and_device_waits_get_along(tmp_path: Path) -> None:
    # asyncio.run puts a handler of its own in place and takes it away again; the grace must survive both.
    body = """
        import asyncio
        async def main():
            queue.finish()
        asyncio.run(main())
        spin = make_spin(); spin(); ready(); queue.finish()
    """
    script = Script(body, tmp_path)
    script.send(signal.SIGINT)
    code, _, _, err = script.end()
    assert code == 130, err


@needs_opencl
def test_signals_can_be_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETCL_SIGNALS", "0")
    script = Script("spin = make_spin(); spin(); ready(); queue.finish()", tmp_path)
    time.sleep(0.5)  # by then it waits inside the driver; before, Python itself would end it
    script.send(signal.SIGINT)
    script.send(signal.SIGINT)
    time.sleep(GRACE + 1)
    # Python's own handler ends it where the wait returns; netcl's would have ended it with 130.
    assert script.process.poll() in (None, -signal.SIGINT)
    script.process.kill()
    script.end()


@needs_opencl
def test_the_exit_waits_for_the_device_but_not_for_ever_after_ctrl_c(tmp_path: Path) -> None:
    script = Script("spin = make_spin(); spin(); ready(); time.sleep(20)", tmp_path)
    script.send(signal.SIGINT)
    code, seconds, _, err = script.end()
    assert code == 130, err
    assert "KeyboardInterrupt" in err and "the device has not answered" in err
    assert GRACE <= seconds < GRACE + 2


@needs_opencl
def test_the_exit_waits_for_work_under_way(tmp_path: Path) -> None:
    body = """
        import atexit
        start = None
        # Registered first, so called last: after the wait.
        from netcl.core.backend import _shutdown
        spin = make_spin()
        turns = int(turns_per_second(spin))
        atexit.unregister(_shutdown.finish_at_exit)
        atexit.register(lambda: print(f"waited {time.perf_counter() - start > 0.3}"))
        _shutdown.install()
        ready()
        start = time.perf_counter()
        spin(turns)
    """
    code, _, out, err = Script(body, tmp_path).end()
    assert (code, out) == (0, "waited True\n"), err


def test_nothing_is_installed_at_import(tmp_path: Path) -> None:
    body = """
        import sys
        assert "netcl.core.backend._shutdown" not in sys.modules
        import netcl
        assert "netcl.core.backend._shutdown" not in sys.modules
        if netcl.manager.default("opencl") is not None:
            assert "netcl.core.backend._shutdown" in sys.modules
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(body)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


FORKS = """
x = Tensor.from_host(queue, np.arange(4, dtype=np.float32))
x.to_host()  # NumPy's C interface is looked up once, here: a fork in the middle of that look-up is another matter

def in_child():
    for touch in [lambda: x.to_host(), queue.finish, lambda: Tensor.from_host(queue, np.ones(3, np.float32))]:
        try:
            touch()
        except RuntimeError as error:
            assert "forked" in str(error) and "spawn" in str(error), error
        else:
            raise AssertionError("the device answered in a forked child")
    cpu = manager.default("cpu").queue
    assert Tensor.from_host(cpu, np.arange(4, dtype=np.float32)).to_host().sum() == 6.0
"""


@needs_opencl
@pytest.mark.parametrize("leave", ["sys.exit(42)", "os._exit(42)"])
def test_a_child_of_os_fork(tmp_path: Path, leave: str) -> None:
    body = f"""
        import faulthandler, threading
        # Other threads are inside the driver and the pools while the process forks.
        stop = threading.Event()
        def work():
            while not stop.is_set():
                Tensor.from_host(queue, np.ones(1000, np.float32)).to_host()
        workers = [threading.Thread(target=work) for _ in range(2)]
        for worker in workers:
            worker.start()
        ready()
        try:
            for _ in range(5):
                pid = os.fork()
                if pid == 0:
                    # A child that hangs says where.
                    faulthandler.register(signal.SIGALRM, chain=True)
                    signal.alarm(12)
                    in_child()
                    {leave}
                _, status = os.waitpid(pid, 0)
                assert os.waitstatus_to_exitcode(status) == 42, status
        finally:
            stop.set()
        for worker in workers:
            worker.join()
        print(x.to_host().sum())
    """
    code, _, out, err = Script(FORKS + textwrap.dedent(body), tmp_path).end()
    assert (code, out) == (0, "6.0\n"), err


@needs_opencl
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc tells an exit handler the exit code")
def test_a_forked_child_skips_the_exit_handlers_of_drivers(tmp_path: Path) -> None:
    body = """
        library = ctypes.CDLL(None)
        library["__cxa_atexit"](library.abort, None, None)
        ready()
        pid = os.fork()
        if pid == 0:
            print("child", end=" ")
            sys.exit(42)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status))
    """
    code, _, out, err = Script(FORKS + textwrap.dedent(body), tmp_path).end()
    # The parent, whose drivers they are, runs them.
    assert (code, out) == (-signal.SIGABRT, "child 42\n"), err


@needs_opencl
def test_children_of_multiprocessing(tmp_path: Path) -> None:
    body = """
        import multiprocessing
        ready()
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=in_child) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(20)
        print([child.exitcode for child in children])
        with context.Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
        print(x.to_host().sum())
    """
    code, _, out, err = Script(FORKS + textwrap.dedent(body), tmp_path).end()
    assert (code, out) == (0, "[0, 0, 0]\n[1, 2]\n6.0\n"), err


@needs_opencl
def test_ctrl_c_in_a_forked_child_concerns_the_child_alone(tmp_path: Path) -> None:
    body = """
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            ready()
            try:
                time.sleep(10)
            except KeyboardInterrupt:
                sys.exit(42)
        time.sleep(0.8)
        os.kill(pid, signal.SIGINT)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), x.to_host().sum())
    """
    code, _, out, err = Script(FORKS + textwrap.dedent(body), tmp_path).end()
    assert (code, out) == (0, "42 6.0\n"), err


# A product on the native CPU that would take many times as long as the test waits for it, and what comes after.
NATIVE = """
import os, signal, sys, threading, time
import numpy as np
import netcl as nc
from netcl.core.device import manager
from netcl.core.tensor import Tensor

queue = manager.default("cpu").queue

def square(n, dtype="float32"):
    return Tensor.from_shape(queue, (n, n), dtype=dtype, fill=1.0)

def long_product():
    # So large that it takes at least 6 s, as fast as this machine is.
    x = square(1024)
    nc.matmul(x, x)
    start = time.perf_counter()
    nc.matmul(x, x)
    seconds = time.perf_counter() - start
    return square(min(16384, int(1024 * max(1.0, (6.0 / seconds) ** (1 / 3)))))

def ready():
    print("READY", flush=True)

def check():
    # The threads go on working, and the numbers are right.
    x = square(700)
    for _ in range(3):
        y = nc.matmul(x, x).to_host()
        assert np.all(y == 700.0)
    print("right")
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_ctrl_c_during_a_long_native_product_is_a_keyboard_interrupt(tmp_path: Path, threads: str) -> None:
    body = """
        x = long_product()
        ready()
        try:
            nc.matmul(x, x)
            print("not interrupted")
        except KeyboardInterrupt:
            print("caught", flush=True)
        check()
    """
    script = Script(body, tmp_path, NATIVE, NETCL_NUM_THREADS=threads)
    script.send(signal.SIGINT)
    assert script.process.stdout is not None
    first = script.process.stdout.readline()
    seconds = time.monotonic() - script.started
    code, _, out, err = script.end()
    assert (code, first, out) == (0, "caught\n", "right\n"), err
    assert seconds < 3


def test_ctrl_c_during_a_long_native_convolution_and_its_gradient(tmp_path: Path) -> None:
    body = """
        from netcl import autograd as ag
        rng = np.random.default_rng(0)
        w = Tensor.from_host(queue, rng.normal(size=(256, 256, 3, 3)).astype(np.float32)).requires_grad_()
        x = Tensor.from_shape(queue, (64, 256, 64, 64), fill=1.0)
        ready()
        try:
            for _ in range(100):
                ag.sum(ag.conv2d(x, w, padding=1)).backward()
            print("not interrupted")
        except KeyboardInterrupt:
            print("caught", flush=True)
        check()
    """
    script = Script(body, tmp_path, NATIVE)
    script.send(signal.SIGINT)
    assert script.process.stdout is not None
    first = script.process.stdout.readline()
    seconds = time.monotonic() - script.started
    code, _, out, err = script.end()
    assert (code, first, out) == (0, "caught\n", "right\n"), err
    assert seconds < 3


def test_a_handler_that_returns_lets_the_operation_go_on(tmp_path: Path) -> None:
    body = """
        calls = []
        def handler(*_):
            calls.append(nc.matmul(square(64), square(64)).to_host()[0, 0])
        signal.signal(signal.SIGINT, handler)
        x = square(2048)
        ready()
        start = time.monotonic()
        while time.monotonic() - start < 2.0:
            assert np.all(nc.matmul(x, x).to_host() == 2048.0)
        print(calls)
        check()
    """
    script = Script(body, tmp_path, NATIVE)
    script.send(signal.SIGINT)
    code, _, out, err = script.end()
    assert (code, out) == (0, "[np.float32(64.0)]\nright\n"), err


def test_what_a_handler_raises_comes_out_of_the_operation(tmp_path: Path) -> None:
    body = """
        class Enough(Exception): pass
        def handler(*_): raise Enough("enough")
        signal.signal(signal.SIGINT, handler)
        x = long_product()
        ready()
        try:
            nc.matmul(x, x)
        except Enough as raised:
            print(raised)
        check()
    """
    script = Script(body, tmp_path, NATIVE)
    script.send(signal.SIGINT)
    code, seconds, out, err = script.end()
    assert (code, out) == (0, "enough\nright\n"), err
    assert seconds < 4


def test_operations_of_other_threads_go_on_after_ctrl_c(tmp_path: Path) -> None:
    body = """
        x = square(1024)
        results, stop = [], threading.Event()
        def work():
            while not stop.is_set():
                results.append(bool(np.all(nc.matmul(x, x).to_host() == 1024.0)))
        thread = threading.Thread(target=work)
        big = long_product()
        thread.start()
        ready()
        try:
            nc.matmul(big, big)
        except KeyboardInterrupt:
            print("caught")
        before = len(results)
        while len(results) < before + 2:
            time.sleep(0.01)
        stop.set()
        thread.join()
        print(all(results))
        check()
    """
    script = Script(body, tmp_path, NATIVE)
    script.send(signal.SIGINT)
    code, _, out, err = script.end()
    assert (code, out) == (0, "caught\nTrue\nright\n"), err
