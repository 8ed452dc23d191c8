"""Writes conv2d.txt beside itself: convolutions, transposed ones and their gradients as PyTorch computes them.

``python conv2d.py`` with any PyTorch. Tensors are filled with small whole numbers by a formula that the test repeats, so that every
result is a whole number as well, exact in float32 and float64, and the file holds results only. A case is four lines: its
geometry, the output, the gradient of the input, the gradient of the weight.

    conv2d       n c h w  filters kh kw  stride*2  padding*4 (top bottom left right)  dilation*2  groups
    transposed   n c h w  filters kh kw  stride*2  padding*4  dilation*2  groups  output_padding*2
"""

import pathlib
import random

import torch
import torch.nn.functional as F


def tensor(shape, seed):
    count = 1
    for length in shape:
        count *= length
    values = [(i * 7919 + seed * 104729) % 1013 % 9 - 4 for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def integers(values):
    rounded = values.detach().round()
    assert torch.equal(rounded, values.detach())
    return " ".join(str(int(v)) for v in rounded.flatten())


def results(x, weight, out):
    gradient = tensor(out.shape, 3)
    grads = torch.autograd.grad(out, [x, weight], gradient)
    return [integers(out), *map(integers, grads)]


def conv2d(n, c, h, w, filters, kh, kw, stride, padding, dilation, groups):
    x = tensor([n, c, h, w], 1).requires_grad_()
    weight = tensor([filters, c // groups, kh, kw], 2).requires_grad_()
    top, bottom, left, right = padding
    padded = F.pad(x, (left, right, top, bottom))
    out = F.conv2d(padded, weight, tensor([filters], 4), stride, 0, dilation, groups)
    numbers = [n, c, h, w, filters, kh, kw, *stride, *padding, *dilation, groups]
    return ["conv2d " + " ".join(map(str, numbers)), *results(x, weight, out)]


def transposed(n, c, h, w, filters, kh, kw, stride, padding, dilation, groups, extra):
    x = tensor([n, c, h, w], 1).requires_grad_()
    weight = tensor([c, filters // groups, kh, kw], 2).requires_grad_()
    bias = tensor([filters], 4)
    out = F.conv_transpose2d(x, weight, bias, stride, (padding[0], padding[2]), extra, groups, dilation)
    numbers = [n, c, h, w, filters, kh, kw, *stride, *padding, *dilation, groups, *extra]
    return ["transposed " + " ".join(map(str, numbers)), *results(x, weight, out)]


def draw(generator, is_transposed):
    """A geometry with an output, drawn at random."""
    while True:
        groups = generator.choice([1, 1, 1, 2, 3])
        depthwise = generator.random() < 0.15
        c = groups * generator.randint(1, 3)
        filters = groups * generator.randint(1, 4)
        if depthwise:
            groups = c
            filters = c * generator.randint(1, 2)
        n, h, w = generator.randint(1, 2), generator.randint(1, 9), generator.randint(1, 9)
        kh, kw = generator.choice([(1, 1), (3, 3), (3, 3), (2, 2), (1, 3), (5, 2), (5, 5)])
        stride = [generator.choice([1, 1, 2, 3]) for _ in range(2)]
        dilation = [generator.choice([1, 1, 1, 2]) for _ in range(2)]
        padding = [generator.randint(0, 2) for _ in range(4)]
        if is_transposed:
            padding = [padding[0], padding[0], padding[2], padding[2]]
            extra = [generator.randint(0, s - 1) for s in stride]
            lengths = [
                (l - 1) * s + d * (k - 1) + 1 + e - 2 * p
                for l, s, d, k, e, p in zip((h, w), stride, dilation, (kh, kw), extra, (padding[0], padding[2]))
            ]
            if min(lengths) > 0:
                return [n, c, h, w, filters, kh, kw, stride, padding, dilation, groups, extra]
        else:
            room = [h + padding[0] + padding[1] - dilation[0] * (kh - 1), w + padding[2] + padding[3] - dilation[1] * (kw - 1)]
            if min(room) > 0:
                return [n, c, h, w, filters, kh, kw, stride, padding, dilation, groups]


def main():
    generator = random.Random(7)
    lines = []
    for _ in range(60):
        lines += conv2d(*draw(generator, False))
    for _ in range(16):
        lines += transposed(*draw(generator, True))
    path = pathlib.Path(__file__).with_suffix(".txt")
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    print(f"{path.name}: {len(lines) // 4} cases, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
