"""Device profiles: what the driver says, what a device really does, and the kernels that suit it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl.core.capabilities import DeviceProfile, device_profile, kernel_strategy
from netcl.core.device import CPUQueue, device, manager
from netcl.core.device_profile import ExtendedDeviceProfile, extended_device_profile
from netcl.core.tensor import Tensor

FLAGS = [
    "has_fp16", "supports_fp16", "has_fp64", "has_subgroups", "fast_atomics", "fp16_storage", "fp16_arithmetic",
    "unified_memory",
]  # fmt: skip


@pytest.fixture(params=find_device_selectors())
def dev(request):
    return manager.default(request.param)


def test_a_profile_of_anything_that_names_a_device(dev):
    profile = device_profile(dev.queue.device)
    assert isinstance(profile, DeviceProfile)
    assert profile == device_profile(dev.queue) == device_profile(dev)
    assert hash(profile) == hash(device_profile(dev))
    with device(dev):
        assert device_profile() == profile
    assert (profile.backend, profile.device_type) == (dev.backend, dev.device_type)
    for flag in FLAGS:
        assert isinstance(getattr(profile, flag), bool), flag
    assert profile.has_fp16 == profile.supports_fp16
    assert isinstance(profile.matrix_units, tuple) and isinstance(profile.extensions, tuple)
    assert profile.static_local_mem_size >= profile.local_mem_size or profile.backend == "cl"
    with pytest.raises(TypeError, match="device"):
        device_profile(object())
    assert device_profile("cpu") == device_profile(manager.default("cpu"))


def test_profiles_are_frozen(dev):
    for profile in (device_profile(dev), extended_device_profile(dev)):
        for name in ("has_fp16", "name", "something_new"):
            with pytest.raises(AttributeError):
                setattr(profile, name, True)


def test_flags_follow_the_extensions():
    for _, found in manager.discover():
        profile, extensions = device_profile(found), found.extensions
        assert profile.extensions == tuple(extensions.split())
        assert profile.has_fp16 == ("fp16" in extensions)
        assert profile.has_subgroups == ("subgroup" in extensions)
        atomics = {"cl_khr_int64_base_atomics", "cl_khr_int64_extended_atomics"}
        assert profile.fast_atomics == bool(atomics & set(profile.extensions))
        assert (profile.local_mem_size, profile.max_work_group_size) == (
            found.local_mem_size, found.max_work_group_size,
        )  # fmt: skip
        assert not profile.fp16_arithmetic or profile.has_fp16
        assert profile.fp16_storage, "every device stores half precision"
        assert (profile.subgroup_width is not None) <= profile.has_subgroups


def test_what_the_page_does(dev):
    q = dev.queue
    prof = device_profile(q.device)
    if prof.has_fp16:
        x = Tensor.from_shape(q, (4, 4), dtype="float16")
    else:
        x = Tensor.from_shape(q, (4, 4), dtype="float32")
    assert np.all(x.to_host() == 0)


def test_extended_profiles_extend(dev):
    profile = extended_device_profile(dev.queue.device)
    assert isinstance(profile, ExtendedDeviceProfile) and isinstance(profile, DeviceProfile)
    assert profile.base == device_profile(dev) and profile.name == profile.base.name
    assert profile.architecture and profile.bandwidth_gbps > 0 and profile.warp_size >= 1
    assert profile.vector_width_float >= 1 and isinstance(profile.quirks, tuple)
    assert kernel_strategy(profile) == kernel_strategy(profile.base)
    assert profile.architecture in repr(profile)


def test_cpus_are_portable():
    assert kernel_strategy(device_profile(CPUQueue())) == "portable"
    for _, found in manager.discover():
        if found.device_type == "cpu":
            assert kernel_strategy(device_profile(found)) == "portable"


@pytest.mark.parametrize("forced", ["portable", "optimized"])
def test_the_environment_forces_a_strategy(forced):
    code = (
        "from netcl.core.capabilities import device_profile, kernel_strategy\n"
        "from netcl.core.device import manager\n"
        "print(kernel_strategy(device_profile(manager.default('auto'))))"
    )
    environment = os.environ | {"NETCL_KERNEL_STRATEGY": forced}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == forced


def test_capability_selectors():
    profiles = [device_profile(found) for _, found in manager.discover()]
    for selector, has in [
        ("fp16", lambda profile: profile.fp16_arithmetic),
        ("fp64", lambda profile: profile.has_fp64),
        ("subgroups", lambda profile: profile.subgroup_width is not None),
        ("matrix", lambda profile: bool(profile.matrix_units)),
    ]:
        chosen = manager.default(selector)
        assert (chosen is not None) == any(map(has, profiles)), selector
        assert chosen is None or has(device_profile(chosen))
