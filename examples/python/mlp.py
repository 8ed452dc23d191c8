"""A network of linear layers tells two spirals apart: ``python mlp.py [device]``."""

import sys

import numpy as np

import netcl
from netcl import nn
from netcl.core.tensor import Tensor
from netcl.nn import functional as F
from netcl.optim import SGD


def spirals(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points on two arms that wind around each other, and which arm they are on."""
    rng = np.random.default_rng(seed)
    arms = np.arange(count) % 2
    along = rng.uniform(0.3, 2.0, count)
    angle = 2.5 * along + np.pi * arms
    points = np.stack([along * np.cos(angle), along * np.sin(angle)], 1) + rng.normal(0, 0.04, (count, 2))
    return points.astype(np.float32), arms


def main(device: str = "auto") -> float:
    netcl.manual_seed(0)
    queue = netcl.manager.default(device).queue
    model = nn.Sequential(nn.Linear(queue, 2, 64), nn.Tanh(), nn.Linear(queue, 64, 64), nn.Tanh(), nn.Linear(queue, 64, 2))
    print(model)
    opt = SGD(model.parameters(), lr=0.1, momentum=0.9)
    points, arms = spirals(512, seed=1)
    x, y = Tensor.from_host(queue, points), Tensor.from_host(queue, arms)
    for step in range(1, 401):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 100 == 0:
            print(f"step {step:3}  loss {loss.item():.4f}")
    points, arms = spirals(512, seed=2)
    with netcl.autograd.no_grad():
        accuracy = float((model(Tensor.from_host(queue, points)).to_host().argmax(1) == arms).mean())
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main(*sys.argv[1:])
