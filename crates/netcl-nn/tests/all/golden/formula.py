"""Numbers that both sides compute instead of storing them; `mod.rs` is the other side.

All are multiples of a power of two that float32 holds exactly.
"""

import math

import numpy
import torch


def values(name, shape):
    """Numbers without a pattern in [-1, 1), multiples of 1/1024, the same for the same name."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = (seed ^ byte) * 0x01000193 & 0xFFFFFFFF
    x = numpy.arange(math.prod(shape), dtype=numpy.uint32) * numpy.uint32(0x9E3779B9) + numpy.uint32(seed)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> numpy.uint32(shift))) * numpy.uint32(factor)
    x ^= x >> numpy.uint32(16)
    return torch.from_numpy((x >> numpy.uint32(21)).astype(numpy.float64) / 1024 - 1).reshape(shape)


def parameter(name, shape):
    """Weights in proportion to 1 / sqrt(fan in), scales around 1, small biases."""
    start = values(name, shape)
    if len(shape) >= 2:
        return start * 2.0 ** math.floor(0.5 * math.log2(6 / math.prod(shape[1:])))
    return 1 + start / 4 if name.endswith("weight") else start / 4


def fill(module):
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            tensor.copy_(parameter(name, tuple(tensor.shape)))
    return module


def short(tensor):
    return [float(f"{v:.12g}") for v in tensor.detach().reshape(-1).tolist()]
