"""Makes fashion_losses.json with PyTorch: `python fashion_losses.py <folder with the idx files> > fashion_losses.json`.

The first 100 losses of a CNN on Fashion-MNIST, in the order of the file, 64 images a step: SGD with momentum in float32 and
Adam in float64. The learning rate keeps rounding from growing: in float32 and float64 PyTorch's own losses differ by 3e-7 after
100 steps (by 5e-3 at four times the rate). The first weights are a formula of their position (`spread`), which the test repeats, so that none are stored.
"""

import gzip
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

STEPS, BATCH = 100, 64
SHAPES = {
    "conv1.weight": (16, 1, 3, 3),
    "conv1.bias": (16,),
    "conv2.weight": (32, 16, 3, 3),
    "conv2.bias": (32,),
    "linear1.weight": (64, 32 * 7 * 7),
    "linear1.bias": (64,),
    "linear2.weight": (10, 64),
    "linear2.bias": (10,),
}


def spread(shape, salt):
    """Numbers of [-1, 1) over the square root of the fan-in: the finalizer of MurmurHash3 on position and salt."""
    mask = 0xFFFFFFFF
    h = (torch.arange(math.prod(shape), dtype=torch.int64) + salt * 0x9E3779B9) & mask
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & mask
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & mask
    h = h ^ (h >> 16)
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
    return (((h >> 8).to(torch.float64) / (1 << 23) - 1) / math.sqrt(fan_in)).reshape(shape)


def read(name, header):
    return gzip.decompress((pathlib.Path(sys.argv[1]) / name).read_bytes())[header:]


def losses(dtype, make):
    w = {name: spread(shape, salt).to(dtype).requires_grad_() for salt, (name, shape) in enumerate(SHAPES.items())}
    optimizer = make(w.values())
    found = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        x = images[rows].to(dtype) / 255
        x = F.max_pool2d(F.relu(F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=1)), 2)
        x = F.max_pool2d(F.relu(F.conv2d(x, w["conv2.weight"], w["conv2.bias"], padding=1)), 2)
        x = F.relu(F.linear(x.flatten(1), w["linear1.weight"], w["linear1.bias"]))
        loss = F.cross_entropy(F.linear(x, w["linear2.weight"], w["linear2.bias"]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


count = STEPS * BATCH
images = torch.frombuffer(bytearray(read("train-images-idx3-ubyte.gz", 16)[: count * 784]), dtype=torch.uint8)
images = images.reshape(count, 1, 28, 28)
labels = torch.frombuffer(bytearray(read("train-labels-idx1-ubyte.gz", 8)[:count]), dtype=torch.uint8).long()
golden = {
    "torch": torch.__version__,
    "sgd_float32": losses(torch.float32, lambda w: torch.optim.SGD(w, lr=0.005, momentum=0.9)),
    "adam_float64": losses(torch.float64, lambda w: torch.optim.Adam(w, lr=1e-3)),
}
print(json.dumps(golden, indent=1))
