"""Shared fixtures of the Python tests."""

from __future__ import annotations

import signal

import pytest

# A shell's background jobs ignore Ctrl+C, and so would this process and all that the tests start: Python then raises nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def find_device_selectors() -> list[str]:
    """The selectors of `manager.default()` to test on: the native CPU and the index of every OpenCL device."""
    try:
        from netcl.core.device import manager
    except ImportError:
        # Without the package the tests fail one by one, which says more than an error at collection.
        return ["cpu"]
    return ["cpu", *(str(index) for index in range(len(manager.discover())))]


@pytest.fixture(scope="session")
def device_selectors() -> list[str]:
    """Every device of this machine, as selectors."""
    return find_device_selectors()
