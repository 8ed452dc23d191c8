"""The fastest configuration of a kernel for a size, by measuring all candidates on the device.

Every candidate's result is compared with the native CPU's; wrong and failing ones are thrown away. The winner is used from then
on for problems of the same class, by this process and by every later one on the same device with the same driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from netcl._netcl import _tune_conv2d, _tune_matmul
from netcl.core.kernel_selector import KernelConfig

__all__ = ["AutoTuner", "Timing", "TunedConfig", "autotune_conv2d", "autotune_matmul", "get_autotuner"]


@dataclass(frozen=True)
class Timing:
    """What was measured of one candidate."""

    name: str
    config: KernelConfig
    #: The median of a call in milliseconds; ``None`` where nothing was measured.
    time_ms: float | None
    gflops: float | None
    #: ``"measured"``, ``"behind"``, ``"wrong"``, ``"failed"`` or ``"unmeasured"``.
    verdict: str
    #: Why it was thrown away.
    reason: str | None = None
    samples_ms: list[float] = field(default_factory=list, repr=False)


@dataclass
class TunedConfig(KernelConfig):
    """The best configuration, with the timings of all candidates, the fastest first.

    As text it is the name of the kernel, which is what the published package returns.
    """

    timings: list[Timing] = field(default_factory=list, repr=False, compare=False)
    problem: str = field(default="", compare=False)
    device: str = field(default="", compare=False)
    #: How long the measurement took.
    seconds: float = field(default=0.0, compare=False)
    #: Whether every candidate had its turn before the time ran out.
    complete: bool = field(default=True, compare=False)

    @property
    def kernel_name(self) -> str:
        """The variant's name: ``"matmul_register_tiled"``."""
        return self.variant.value

    @property
    def time_ms(self) -> float | None:
        """The best candidate's median in milliseconds."""
        return self.timings[0].time_ms if self.timings else None

    @property
    def gflops(self) -> float | None:
        """The best candidate's rate."""
        return self.timings[0].gflops if self.timings else None

    def __str__(self) -> str:
        return self.kernel_name


def _finish(found: dict[str, Any]) -> TunedConfig:
    timings = [Timing(**trial) for trial in found["trials"]]
    best = found["best"]
    if best is None:
        reasons = "; ".join(f"{timing.name}: {timing.reason or timing.verdict}" for timing in timings)
        raise RuntimeError(f"autotune: no candidate for {found['problem']} works on {found['device']} ({reasons})")
    about = {name: found[name] for name in ("problem", "device", "seconds", "complete")}
    return TunedConfig(**vars(best), timings=timings, **about)


def autotune_matmul(
    M: int, N: int, K: int, dtype: str = "float32", queue: Any = None, *, seconds: float = 20.0, keep: bool = True
) -> TunedConfig:
    """Measures the kernels for an ``M x K`` by ``K x N`` product and returns the best configuration.

    ``queue`` is a queue, a device handle or a selector such as ``"gpu"``; ``None`` means the active or default device. At most
    about ``seconds`` are spent. ``keep=False`` only reports.
    """
    return _finish(_tune_matmul(M, N, K, dtype, queue, seconds, keep))


def autotune_conv2d(
    N: int,
    C: int,
    H: int,
    W: int,
    F: int,
    KH: int,
    KW: int,
    stride: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    dtype: str = "float32",
    queue: Any = None,
    *,
    seconds: float = 20.0,
    keep: bool = True,
) -> TunedConfig:
    """Measures the kernels for a convolution of ``N x C x H x W`` with ``F`` filters ``KH x KW``; see ``autotune_matmul``."""
    return _finish(_tune_conv2d(N, C, H, W, F, KH, KW, stride, pad, dtype, queue, seconds, keep))


class AutoTuner:
    """The two functions as methods, with what they found by problem."""

    def __init__(self) -> None:
        self._found: dict[str, TunedConfig] = {}

    def tune_matmul(self, M: int, N: int, K: int, dtype: str, queue: Any = None, **options: Any) -> TunedConfig:
        """``autotune_matmul``, remembered."""
        return self._remember(autotune_matmul(M, N, K, dtype, queue, **options))

    def tune_conv2d(
        self,
        N: int,
        C: int,
        H: int,
        W: int,
        F: int,
        KH: int,
        KW: int,
        stride: int | tuple[int, int],
        pad: int | tuple[int, int],
        dtype: str,
        queue: Any = None,
        **options: Any,
    ) -> TunedConfig:
        """``autotune_conv2d``, remembered."""
        return self._remember(autotune_conv2d(N, C, H, W, F, KH, KW, stride, pad, dtype, queue, **options))

    def get_best_kernel(self, problem: str) -> TunedConfig | None:
        """What was found for a problem, by the text of ``TunedConfig.problem``."""
        return self._found.get(problem)

    def clear_cache(self) -> None:
        """Forgets what this object found. What lies on disk stays: ``netcl tune --clear`` removes it."""
        self._found.clear()

    def _remember(self, config: TunedConfig) -> TunedConfig:
        self._found[config.problem] = config
        return config


_tuner = AutoTuner()


def get_autotuner() -> AutoTuner:
    """The process's tuner."""
    return _tuner
