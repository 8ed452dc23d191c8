"""Fashion-MNIST in float32, float16 and bfloat16: ``python mixed_precision.py [device] [epochs]``.

The images are those of Debian's package ``dataset-fashion-mnist``; ``FASHION_MNIST`` names another folder with its four files.
"""

import gzip
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import netcl
from netcl import nn
from netcl.amp import GradScaler, autocast
from netcl.nn import functional as F
from netcl.optim import Adam

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


def images_and_labels(part: str) -> tuple[np.ndarray, np.ndarray]:
    """The images as (N, 1, 28, 28) with mean 0 and deviation 1, and their classes."""
    with gzip.open(FOLDER / f"{part}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(FOLDER / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
    return (pixels.astype(np.float32) / 255 - 0.286) / 0.353, labels


def network(queue: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(queue, 1, 32, 3, padding=1),
        nn.BatchNorm2d(queue, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(queue, 32, 64, 3, padding=1),
        nn.BatchNorm2d(queue, 64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(queue, 64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(queue, 128, 10),
    )


def train(queue: Any, dtype: str, epochs: int, data: tuple[np.ndarray, np.ndarray]) -> nn.Sequential:
    netcl.manual_seed(0)
    model = network(queue)
    opt = Adam(model.parameters(), lr=1e-3)
    # Gradients of float16 underflow without a scaler; bfloat16 has the range of float32.
    scaler = GradScaler(enabled=dtype == "float16")
    images, labels = data
    order = np.random.default_rng(0)
    for _ in range(epochs):
        for batch in order.permutation(len(images))[: len(images) // 128 * 128].reshape(-1, 128):
            x = netcl.Tensor.from_host(queue, images[batch])
            with autocast(enabled=dtype != "float32", dtype="float16" if dtype == "float32" else dtype):
                loss = F.cross_entropy(model(x), labels[batch])
            scaler.scale_loss(loss).backward()
            scaler.step(opt, model.parameters())
            scaler.update()
            opt.zero_grad()
    return model.eval()


def accuracy(model: nn.Sequential, queue: Any, images: np.ndarray, labels: np.ndarray) -> float:
    with netcl.autograd.no_grad():
        parts = [model(netcl.Tensor.from_host(queue, part)).to_host().argmax(1) for part in np.array_split(images, 20)]
    return float((np.concatenate(parts) == labels).mean())


def main(device: str = "auto", epochs: int = 1) -> dict[str, float]:
    queue = netcl.manager.default(device).queue
    data, test = images_and_labels("train"), images_and_labels("t10k")
    found = {}
    for dtype in ("float32", "float16", "bfloat16"):
        start = time.perf_counter()
        found[dtype] = accuracy(train(queue, dtype, epochs, data), queue, *test)
        seconds = time.perf_counter() - start
        print(f"{dtype:9} test accuracy {found[dtype]:.4f} after {epochs} epochs, {seconds:.1f} s", flush=True)
    return found


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0] if given else "auto", int(given[1]) if len(given) > 1 else 1)
