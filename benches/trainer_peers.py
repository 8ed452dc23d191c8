"""What the trainer adds to a bare captured loop, and its epoch beside plain PyTorch's and Lightning's on the CPU.

    python benches/trainer_peers.py [--device cpu|gpu] [--peers] [--threads 2]

The rounds of all loops alternate; each line is the middle one. Batches are on the device before the clock starts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--peers", action="store_true", help="time PyTorch (and Lightning, where installed) in this process too")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=9)
parser.add_argument("--batches", type=int, default=400)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--width", type=int, default=256)
arguments = parser.parse_args()

rng = np.random.default_rng(0)
x = rng.normal(size=(arguments.batch, 784)).astype("float32")
y = rng.integers(0, 10, arguments.batch)
sizes = [784, arguments.width, arguments.width, 10]


def netcl_loops():
    import netcl
    from netcl import nn, optim
    from netcl.nn import functional as F
    from netcl.runtime import capture
    from netcl.trainer import Trainer

    if arguments.device == "cpu":
        netcl.set_num_threads(arguments.threads)
    queue = netcl.manager.default(arguments.device).queue

    def model():
        netcl.manual_seed(0)
        layers = []
        for a, b in pairwise(sizes):
            layers += [nn.Linear(queue, a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    batch = (netcl.Tensor.from_host(queue, x), netcl.IndexTensor.from_host(queue, y))
    loader = [batch] * arguments.batches
    net = model()
    opt = optim.Adam(net.parameters(), lr=1e-3)

    @capture
    def step(x, y):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    def bare():
        for x, y in loader:
            loss = step(x, y)
        queue.finish()
        return loss.item()

    def trained(**settings):
        net = model()
        trainer = Trainer(net, optim.Adam(net.parameters(), lr=1e-3), loss_fn=F.cross_entropy, progress=False, **settings)

        def run():
            trainer.fit(loader)
            queue.finish()
            return trainer.history.steps[-1]["loss"]

        return run

    return {"bare captured loop": bare, "fit": trained(), "fit, accuracy": trained(metrics=["accuracy"])}


def torch_loops():
    import torch
    from torch import nn

    torch.set_num_threads(arguments.threads)

    def model():
        layers = []
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    batch = (torch.from_numpy(x), torch.from_numpy(y))

    class Batches:
        """No list: Lightning takes one for several loaders."""

        def __iter__(self):
            return iter([batch] * arguments.batches)

        def __len__(self):
            return arguments.batches

    loader = Batches()
    net = model()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def plain():
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.item()

    loops = {"PyTorch, plain loop": plain}
    try:
        import lightning
    except ImportError:
        return loops
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    lit = Lit()

    def lightning_fit():
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(lit, loader)
        return float("nan")

    loops["PyTorch Lightning"] = lightning_fit
    return loops


loops = netcl_loops()
if arguments.peers:
    loops |= torch_loops()
times = {name: [] for name in loops}
for round_ in range(arguments.rounds + 2):
    for name, loop in loops.items():
        start = time.perf_counter()
        loop()
        if round_ >= 2:  # the first ones compile, capture and fill caches
            times[name].append(time.perf_counter() - start)
base = statistics.median(times["bare captured loop"])
for name, taken in times.items():
    middle = statistics.median(taken)
    print(f"{name:22} {1e6 * middle / arguments.batches:9.1f} us a step  {middle / base:6.3f} of the bare loop")
