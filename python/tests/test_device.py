"""Handles and queues are the same objects each time; what a handle tells; cache tools; the selector's thresholds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from netcl.core.capabilities import device_profile
from netcl.core.device import CPUDevice, CPUPlatform, device, get_active_device, manager
from netcl.core.kernel_selector import KernelSelector, KernelVariant
from netcl.core.tensor import Tensor
from netcl.runtime import cache

SELECTORS = ["auto", "cpu"] + (["opencl", 0] if manager.default("opencl") is not None else [])


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_selector_gives_the_same_handle_and_queue_each_time(selector: str | int) -> None:
    first = manager.default(selector)
    assert first is not None and manager.default(selector) is first
    assert first.queue is first.queue and manager.default(selector).queue is first.queue
    with device(selector) as inside:
        assert inside is first and get_active_device() is first
    x = Tensor.from_host(first.queue, np.ones(3, np.float32))
    assert x.queue is first.queue and (x + x).queue is first.queue
    assert manager.default("gpu") is manager.default("gpu")


def test_one_device_has_one_handle_whatever_selects_it() -> None:
    for index, (platform, found) in enumerate(manager.discover()):
        handle = manager.default(index)
        assert handle is not None and handle.platform == platform and handle.device == found
        assert handle.platform.name == handle.platform_name and handle.device.name == handle.device_name
        assert manager.default(str(index)) is handle
        assert device_profile(handle.device).device_type == handle.device_type


def test_the_native_cpu_has_a_platform_and_a_device() -> None:
    handle = manager.default("cpu")
    assert isinstance(handle.platform, CPUPlatform) and isinstance(handle.device, CPUDevice)
    assert handle.platform.name == handle.platform_name and handle.device.name == handle.device_name
    assert handle.platform.get_devices() == [handle.device] == [handle.queue.device]
    assert handle.platform == manager.default("cpu").platform and handle.context is None


def test_reductions_of_the_native_cpu_follow_the_thresholds() -> None:
    for handle in [manager.default("cpu"), manager.default("opencl")]:
        if handle is None:
            continue
        selector = KernelSelector(handle)
        variants = [selector.select_reduction_kernel(n, "sum").variant for n in (1, 255, 256, 65535, 65536, 1 << 24)]
        assert variants == [
            KernelVariant.REDUCTION_SEQUENTIAL,
            KernelVariant.REDUCTION_SEQUENTIAL,
            KernelVariant.REDUCTION_PARALLEL,
            KernelVariant.REDUCTION_PARALLEL,
            KernelVariant.REDUCTION_WORKGROUP,
            KernelVariant.REDUCTION_WORKGROUP,
        ]


CACHE = """
import os
import numpy as np
from netcl.core.device import manager
from netcl.core.kernels.primitives import KernelSpec
from netcl.runtime import cache

assert cache.list() == [] and cache.size() == 0
q = manager.default("opencl").queue
for i in range(3):
    KernelSpec(f"times_{i}", params=["__global float* x"], body=f"x[get_global_id(0)] *= {i}.0f;").build(q)
entries = [entry for entry in cache.list() if entry.kind == "programs"]
assert sorted(kernel for entry in entries for kernel in entry.kernels) == ["times_0", "times_1", "times_2"]
for entry in entries:
    assert os.path.getsize(entry.path) == entry.nbytes > 0 and not entry.failed
    assert q.device.name in entry.device and 0 <= entry.days_unused < 1
assert cache.size() == sum(entry.nbytes for entry in cache.list())
assert cache.prune(older_than=30) == (0, 0)
count, freed = cache.prune(max_bytes=max(entry.nbytes for entry in entries))
assert count >= 2 and freed > 0
for wrong in ({}, {"older_than": -1.0}, {"older_than": float("nan")}):
    try:
        cache.prune(**wrong)
    except ValueError as error:
        assert str(error).startswith("prune: ")
    else:
        raise AssertionError(wrong)
left = len(cache.list())
assert cache.clear()[0] == left > 0 and cache.list() == [] and cache.size() == 0
"""


@pytest.mark.skipif(manager.default("opencl") is None, reason="no OpenCL device")
def test_the_program_cache_is_listed_pruned_and_cleared(tmp_path: Path) -> None:
    environment = {**os.environ, "NETCL_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("NETCL_CACHE", None)
    done = subprocess.run(
        [sys.executable, "-c", CACHE], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_cache_that_is_off_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETCL_CACHE", "0")
    assert cache.list() == [] and cache.size() == 0 and cache.clear() == (0, 0)
