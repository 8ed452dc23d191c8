"""What capture gains in an update over ranks: ranks as threads, an MLP, AdamW, as written and replayed in turns.

    NETCL_NUM_THREADS=1 python benches/captured_ranks.py [--ranks 2] [--layers 9] [--width 64] [--batch 16] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from typing import Any

import numpy as np

from netcl import Tensor, distributed as dist, nn, optim
from netcl.core.device import manager
from netcl.nn import functional as F
from netcl.runtime import capture


def rank(group: Any, options: argparse.Namespace, times: dict[str, list[float]]) -> None:
    queue, width = manager.default("cpu").queue, options.width
    layers = [layer for _ in range(options.layers) for layer in (nn.Linear(queue, width, width), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(group.rank)
    x, y = (Tensor.from_host(queue, rng.normal(size=(options.batch, width)).astype("float32")) for _ in range(2))

    def update(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        group.sync_grads(model.parameters())
        optimizer.step()
        return loss

    ways = {"as written": update, "captured": capture(update)}
    for _ in range(options.rounds):
        for name, step in ways.items():
            for _ in range(5):
                step(x, y)
            start = time.perf_counter()
            for _ in range(options.updates):
                step(x, y)
            if group.rank == 0:
                times.setdefault(name, []).append((time.perf_counter() - start) / options.updates * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"ranks": 2, "layers": 9, "width": 64, "batch": 16, "rounds": 5, "updates": 200}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    times: dict[str, list[float]] = {}
    threads = [threading.Thread(target=rank, args=(group, options, times)) for group in dist.threads(options.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    medians = {name: statistics.median(each) for name, each in times.items()}
    for name, each in times.items():
        rounds = " ".join(f"{value:.2f}" for value in each)
        print(f"{name:<12} {medians[name]:7.3f} ms  {medians['as written'] / medians[name]:.2f}x   rounds {rounds}")


if __name__ == "__main__":
    main()
