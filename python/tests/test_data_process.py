"""Loaders in processes of their own: Ctrl+C, the interpreter's end, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytest.importorskip("netcl")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and fork")

PRELUDE = """
import os, sys, time
import numpy as np
from netcl.data import DataLoader, digits

class Set:
    def __init__(self, work):
        self.work = work
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        self.work()
        return index

def sleep():
    time.sleep(60)

def spin():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass

def work():
    sum(range(1000))
"""


def start(code: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("work", ["sleep", "spin", "work"])
def test_ctrl_c_ends_a_loop_that_waits_and_its_workers(work):
    child = start(f"""
        print("ready", flush=True)
        try:
            for number, _ in enumerate(DataLoader(Set({work}), 4, num_workers=3)):
                pass
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    sent = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    assert time.monotonic() - sent < 1.5
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out, err) == (0, "", "")
    assert time.monotonic() - sent < 4


@pytest.mark.parametrize(
    "dataset", ["Set(sleep)", "Set(spin)", "Set(work)", "digits()", "np.zeros((10**6, 4))", "iter(int, 1)", "Set(exit)"]
)
def test_the_interpreter_ends_in_the_middle_of_an_epoch(dataset):
    child = start(f"""
        loader = DataLoader({dataset}, 4, num_workers=3, transforms=lambda x: x)
        batches = iter(loader)
        others = iter(loader)
        time.sleep(0.1)
        sys.exit(3)
    """)
    out, err = child.communicate(timeout=20)
    assert (child.returncode, out, err) == (3, "", "")


def test_an_exception_of_the_loop_ends_the_program():
    child = start("""
        for batch in DataLoader(Set(work), 4, num_workers=3):
            raise LookupError("mine")
    """)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 1 and err.strip().endswith("LookupError: mine")


def test_a_forked_child_gets_an_error_or_its_own_epoch():
    child = start("""
        loader = DataLoader(Set(work), 4, num_workers=2)
        batches = iter(loader)
        next(batches)
        if os.fork() == 0:
            try:
                next(batches)
            except ValueError as error:
                assert "start an epoch after the fork" in str(error), error
            first = next(iter(DataLoader(np.arange(8), 4, num_workers=2)))
            assert first.tolist() == [0, 1, 2, 3]
            print("child", flush=True)
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert next(batches).tolist() == [4, 5, 6, 7]
        print("parent", flush=True)
    """)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out.split()) == (0, ["child", "parent"]), err


def test_importing_the_package_starts_nothing():
    code = "import sys, netcl.data, threading; sys.exit('numpy' in sys.modules or threading.active_count() > 1)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == 0
