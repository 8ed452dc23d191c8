"""The tuner from Python: the published form of the call, and what comes back."""

import os
import subprocess
import sys

import pytest
from conftest import find_device_selectors

from netcl.core.device import manager
from netcl.core.kernel_selector import KernelConfig, KernelVariant
from netcl.profiling import autotuner
from netcl.profiling.autotuner import autotune_conv2d, autotune_matmul


@pytest.mark.parametrize("selector", find_device_selectors())
def test_matmul_on_every_device(selector):
    queue = manager.default(selector).queue
    best = autotune_matmul(64, 48, 32, "float32", queue, seconds=1.0, keep=False)
    assert isinstance(best, KernelConfig) and best.variant.name.startswith("MATMUL_")
    assert str(best) == best.kernel_name == best.variant.value
    assert best.problem == "matmul 64x64x32 float32"
    first = best.timings[0]
    assert first.verdict in ("measured", "behind") and first.config.variant is best.variant
    assert best.time_ms == first.time_ms > 0 and best.gflops > 0
    times = [timing.time_ms for timing in best.timings if timing.verdict == "measured"]
    assert times == sorted(times)
    assert all(timing.verdict not in ("wrong", "failed") for timing in best.timings), best.timings


def test_conv2d_takes_the_published_arguments():
    best = autotune_conv2d(1, 3, 8, 8, 4, 3, 3, 1, 1, "float32", manager.default("cpu").queue, seconds=0.5, keep=False)
    assert best.variant is KernelVariant.CONV2D_IM2COL
    assert best.problem.startswith("conv2d 16x16x16x16 16 filters 3x3 stride 1x1 pad 1x1")


def test_mistakes_are_named():
    cpu = manager.default("cpu").queue
    with pytest.raises(ValueError, match="seconds"):
        autotune_matmul(4, 4, 4, "float32", cpu, seconds=-1)
    with pytest.raises(ValueError, match="0 x 4"):
        autotune_matmul(0, 4, 4, "float32", cpu)


def test_the_tuner_remembers():
    tuner = autotuner.get_autotuner()
    found = tuner.tune_matmul(16, 16, 16, "float32", manager.default("cpu").queue, seconds=0.5, keep=False)
    assert tuner.get_best_kernel(found.problem) is found
    tuner.clear_cache()
    assert tuner.get_best_kernel(found.problem) is None


SCRIPT = """
import sys
from netcl.core.device import manager
from netcl.core.kernel_selector import get_kernel_selector
from netcl.profiling.autotuner import autotune_matmul
queue = manager.default("0").queue
if sys.argv[1] == "tune":
    best = autotune_matmul(64, 64, 64, "float32", queue, seconds=1.0)
    print(best.variant.value, best.tile_m, best.tile_n, best.vector_width)
else:
    got = get_kernel_selector(queue).select_matmul_kernel(64, 60, 50, "float32")
    print(got.variant.value, got.tile_m, got.tile_n, got.vector_width)
"""


@pytest.mark.skipif(not manager.discover(), reason="there is no OpenCL device here")
def test_another_process_uses_what_was_kept(tmp_path):
    environment = {**os.environ, "NETCL_CACHE_DIR": str(tmp_path)}
    environment.pop("NETCL_CACHE", None)

    def run(word):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, word], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("tune") == run("ask")
