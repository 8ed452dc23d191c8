"""What a profile costs: a training step without a scope and inside of one, in turns, on every device.

    python benches/profile_overhead.py [--seconds 2]
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import netcl.nn as nn
import netcl.optim as optim
from netcl import Tensor
from netcl.core.device import manager
from netcl.profiling import profile
from netcl.runtime import capture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    seconds = parser.parse_args().seconds
    for selector in ["cpu", *(str(index) for index in range(len(manager.discover())))]:
        device = manager.default(selector)
        queue = device.queue
        model = nn.Sequential(nn.Linear(queue, 784, 256), nn.ReLU(), nn.Linear(queue, 256, 128), nn.ReLU(), nn.Linear(queue, 128, 10))
        opt = optim.Adam(model.parameters(), lr=1e-3)
        x = Tensor.from_host(queue, np.random.default_rng(0).standard_normal((64, 784)).astype(np.float32))

        def eager(x: Tensor, model=model, opt=opt) -> Tensor:
            y = model(x)
            loss = (y * y).mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        for name, step in (("eager", eager), ("captured", capture(eager))):

            def timed(count: int, step=step, x=x, queue=queue) -> float:
                start = time.perf_counter()
                for _ in range(count):
                    step(x)
                queue.finish()
                return (time.perf_counter() - start) / count

            count = max(1, int(0.05 / max(timed(3), 1e-6)))
            plain, inside, launches = [], [], 0
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                plain.append(timed(count))
                with profile(ceilings=False) as p:
                    inside.append(timed(count))
                launches = len(p.commands) // count
            before, after = statistics.median(plain) * 1e6, statistics.median(inside) * 1e6
            print(
                f"{device.device_name[:40]:<40} {name:<9} {before:9.1f} us, profiled {after:9.1f} us: "
                f"{100 * (after / before - 1):+6.1f} %, {(after - before) / max(launches, 1):5.2f} us for each of {launches} launches"
            )


if __name__ == "__main__":
    main()
