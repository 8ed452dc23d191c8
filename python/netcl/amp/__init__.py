"""Automatic mixed precision: products in 16 bits, parameters in float32, and a loss scale against gradients that underflow.

    scaler = GradScaler()
    for x, y in batches:
        with autocast():
            loss = F.cross_entropy(model(x), y)
        scaler.scale_loss(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()

``bfloat16`` has the range of float32 and needs no scaler: ``autocast(dtype="bfloat16")``.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any

from netcl._netcl.amp import GradScaler, autocast_dtype, autocast_policies, enter_autocast
from netcl._netcl.autograd import leave_scope

__all__ = ["GradScaler", "autocast", "autocast_dtype", "autocast_policies"]

# What PyTorch calls its devices: accepted where its autocast takes one, since a scope here holds for every device.
_DEVICE_TYPES = frozenset({"cpu", "cuda", "hip", "mps", "mtia", "xpu"})


class autocast(ContextDecorator):
    """Lets products run in a 16-bit dtype: ``with autocast(): ...``, or ``@autocast()`` before a function.

    ``autocast_policies()`` says what runs in which dtype. Parameters and their gradients stay in float32; inputs of float64 are
    left alone. The scope belongs to the thread that enters it. ``backward`` may be called inside or after it.

    ``autocast(enabled=False)`` turns it off inside another scope. PyTorch's ``autocast("cuda", dtype=...)`` works as well, and
    the published package's ``autocast(True, device_queue=queue)``: the scope holds for every queue.

        >>> import netcl, numpy as np
        >>> from netcl.amp import autocast
        >>> x = netcl.Tensor.from_host(netcl.manager.default("cpu").queue, np.ones((3, 3)))
        >>> with autocast(dtype="bfloat16"):
        ...     print((x @ x).dtype, (x + x).dtype)
        bfloat16 float32
    """

    def __init__(
        self,
        device_type: bool | str = True,
        dtype: str | None = "float16",
        enabled: bool = True,
        *,
        device_queue: Any = None,
    ) -> None:
        if isinstance(device_type, bool):
            enabled = enabled and device_type
        elif device_type in ("float16", "bfloat16"):
            raise ValueError(f"autocast: {device_type!r} is a dtype; write autocast(dtype={device_type!r})")
        elif device_type not in _DEVICE_TYPES:
            known = ", ".join(sorted(_DEVICE_TYPES))
            raise ValueError(f"autocast: there is no device type {device_type!r}; leave it out, or use one of {known}")
        self._dtype = ("float16" if dtype is None else dtype) if enabled else None

    def __enter__(self) -> autocast:
        enter_autocast(self._dtype)
        return self

    def __exit__(self, *exception: object) -> None:
        leave_scope()
