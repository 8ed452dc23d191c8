"""An OpenCL kernel with its gradient, in a network that trains: ``python custom_kernel.py [device]``.

On the native CPU the kernel runs through an OpenCL driver for CPUs (Debian: pocl-opencl-icd).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import netcl
from netcl import autograd as ag, nn, optim
from netcl.nn import functional as F

FORWARD = netcl.KernelSpec(
    name="my_softplus",
    src="""__kernel void my_softplus(__global const float* x, __global float* y) {
        int i = get_global_id(0);
        y[i] = fmax(x[i], 0.0f) + log1p(exp(-fabs(x[i])));  // exp never overflows
    }""",
)
BACKWARD = netcl.KernelSpec(
    name="my_softplus_backward",
    src="""__kernel void my_softplus_backward(__global const float* x, __global const float* g, __global float* d) {
        int i = get_global_id(0);
        d[i] = g[i] / (1.0f + exp(-x[i]));
    }""",
)


class Softplus(ag.Function):
    @staticmethod
    def forward(ctx: Any, x: netcl.Tensor) -> netcl.Tensor:
        x = x.contiguous()  # a kernel's pointer knows no strides
        ctx.save_for_backward(x)
        y = netcl.empty_like(x)
        FORWARD.build(x.queue).run(x.queue, (x.size,), None, x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: netcl.Tensor) -> netcl.Tensor:
        (x,) = ctx.saved_tensors
        d = netcl.empty_like(x)
        BACKWARD.build(x.queue).run(x.queue, (x.size,), None, x, grad.contiguous(), d)
        return d


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 32), nn.Linear(32, 1)

    def forward(self, x: netcl.Tensor) -> netcl.Tensor:
        out: netcl.Tensor = self.second(Softplus.apply(self.first(x)))
        return out


def main(device: str = "auto") -> None:
    netcl.manual_seed(0)
    with netcl.device(device):
        host = np.linspace(-20, 20, 41, dtype=np.float32)
        mine, theirs = (netcl.tensor(host, requires_grad=True) for _ in range(2))
        values = Softplus.apply(mine), F.softplus(theirs)
        values[0].sum().backward()
        values[1].sum().backward()
        np.testing.assert_allclose(values[0].tolist(), values[1].tolist(), rtol=1e-5, atol=1e-6)
        assert mine.grad is not None and theirs.grad is not None
        np.testing.assert_allclose(mine.grad.tolist(), theirs.grad.tolist(), rtol=1e-5, atol=1e-6)

        model = Net()
        opt = optim.Adam(model.parameters(), lr=1e-2)
        x = netcl.rand(128, 1) * 4 - 2
        y = (2 * x).sin()
        losses = []
        for _ in range(150):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
