"""Capture and replay of whole steps, copies beside compute, and the cache of compiled programs.

    @netcl.runtime.capture
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step(max_norm=1.0)
        opt.zero_grad()
        schedule.step()
        return loss

    for x, y in batches:
        loss = step(x, y)  # records the first time, replays from then on
"""

from netcl.runtime import cache
from netcl.runtime.capture import CapturedFunction, capture
from netcl.runtime.kernel_capture import CapturedKernelLaunch, KernelCapture, capture_disabled, get_capture
from netcl.runtime.scheduler import Scheduler, prefetch

__all__ = [
    "CapturedFunction",
    "CapturedKernelLaunch",
    "KernelCapture",
    "Scheduler",
    "cache",
    "capture",
    "capture_disabled",
    "get_capture",
    "prefetch",
]
