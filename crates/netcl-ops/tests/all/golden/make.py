"""Writes the golden files of this folder with PyTorch: ``python make.py`` (made with PyTorch 2.15).

A file holds cases: a line ``case NAME``, then one line for each tensor, ``key LENGTHxLENGTH: value value ...``. Inputs have three
decimals, so that they are short and exact enough; results are computed in float64 from what float32 makes of them, except
where the type decides which elements are used.
"""

import pathlib

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent


class File:
    def __init__(self, name):
        self.path, self.lines, self.seed = HERE / name, [], 0

    def case(self, name, **tensors):
        self.lines.append(f"case {name}")
        for key, value in tensors.items():
            value = torch.as_tensor(value)
            shape = "x".join(map(str, value.shape))
            numbers = value.tolist() if value.dim() == 1 else value.flatten().tolist()
            self.lines.append(f"{key} {shape}: " + " ".join(f"{n:.7g}" for n in numbers))

    def random(self, *shape, low=-2.0, high=3.0, dtype=torch.float64):
        self.seed += 1
        values = torch.rand(shape, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        return ((values * (high - low) + low) * 1000).round().div(1000).float().to(dtype)

    def write(self):
        self.path.write_text("\n".join(self.lines) + "\n")


def backward(y, inputs, grad):
    return dict(zip((f"d_{k}" for k in inputs), torch.autograd.grad(y, [t for t in inputs.values()], grad)))


def norms():
    file = File("norm.txt")
    image, rows = (3, 4, 2, 3), (4, 6)

    def run(name, shape, channels, function, **extra):
        x, weight = file.random(*shape).requires_grad_(), file.random(channels, low=0.5, high=1.5).requires_grad_()
        bias = file.random(channels, low=-1.0, high=1.0).requires_grad_()
        y = function(x, weight, bias)
        grad = file.random(*shape, low=-1.0, high=1.0)
        inputs = {"x": x, "weight": weight} | ({} if name == "rms_norm" else {"bias": bias})
        results = backward(y, inputs, grad)
        file.case(name, **inputs, grad=grad, y=y.detach(), **results, **{k: v() for k, v in extra.items()})

    mean, var = file.random(4, low=-1.0, high=1.0), file.random(4, low=0.5, high=1.5)
    old_mean, old_var = mean.clone(), var.clone()
    run(
        "batch_norm",
        image,
        4,
        lambda x, w, b: F.batch_norm(x, mean, var, w, b, training=True, momentum=0.3, eps=1e-5),
        old_mean=lambda: old_mean,
        old_var=lambda: old_var,
        new_mean=lambda: mean,
        new_var=lambda: var,
    )
    run(
        "batch_norm_eval",
        image,
        4,
        lambda x, w, b: F.batch_norm(x, old_mean, old_var, w, b, training=False, eps=1e-5),
        old_mean=lambda: old_mean,
        old_var=lambda: old_var,
    )
    run("layer_norm", rows, 6, lambda x, w, b: F.layer_norm(x, (6,), w, b, eps=1e-5))
    run("group_norm", image, 4, lambda x, w, b: F.group_norm(x, 2, w, b, eps=1e-5))
    run("rms_norm", rows, 6, lambda x, w, b: F.rms_norm(x, (6,), w, eps=1e-5))
    file.write()


def pools():
    file = File("pool.txt")

    def run(name, shape, function, **options):
        x = file.random(*shape).requires_grad_()
        found = function(x)
        y, indices = found if isinstance(found, tuple) else (found, None)
        grad = file.random(*y.shape, low=-1.0, high=1.0)
        extra = {} if indices is None else {"indices": indices}
        file.case(name, x=x.detach(), grad=grad, y=y.detach(), **extra, **backward(y, {"x": x}, grad), **options)

    # kernel, stride, padding, dilation, ceil_mode
    for w in [(2, 2, 0, 1, 0), (3, 2, 1, 1, 0), (3, 2, 1, 1, 1), (2, 1, 0, 2, 0), (3, 3, 1, 2, 1)]:
        run(
            "max_pool",
            (2, 7, 6),
            lambda x: F.max_pool2d(x, *w[:4], ceil_mode=bool(w[4]), return_indices=True),
            window=w,
        )
    # ..., count_include_pad, divisor (0: none)
    for w in [(2, 2, 0, 1, 0, 1, 0), (3, 2, 1, 1, 0, 1, 0), (3, 2, 1, 1, 1, 1, 0), (3, 2, 1, 1, 1, 0, 0), (3, 1, 1, 1, 0, 1, 5)]:
        run(
            "avg_pool",
            (2, 6, 5),
            lambda x: F.avg_pool2d(x, *w[:3], bool(w[4]), bool(w[5]), w[6] or None),
            window=w,
        )
    for size in [(1, 1), (3, 2), (4, 7)]:
        run("adaptive_avg_pool", (2, 5, 6), lambda x: F.adaptive_avg_pool2d(x, size), size=size)
        run("adaptive_max_pool", (2, 5, 6), lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), size=size)
    # A NaN, and a window of nothing but minus infinity.
    x = file.random(1, 4, 4)
    x[0, 0, 1] = x[0, 1, 0] = float("nan")
    x[0, 2:, 2:] = float("-inf")
    y, indices = F.max_pool2d(x, 2, return_indices=True)
    file.case("max_pool_special", x=x, y=y, indices=indices)
    file.write()


def resampling_and_padding():
    file = File("resample_pad.txt")

    def run(name, shape, function, **options):
        x = file.random(*shape, dtype=torch.float32).requires_grad_()
        y = function(x)
        grad = file.random(*y.shape, low=-1.0, high=1.0, dtype=torch.float32)
        file.case(name, x=x.detach(), grad=grad, y=y.detach(), **backward(y, {"x": x}, grad), **options)

    for kind in [dict(size=(7, 4)), dict(size=(2, 9)), dict(scale_factor=(2.0, 3.0)), dict(scale_factor=(1.5, 0.7))]:
        options = {key: torch.tensor(value, dtype=torch.float64) for key, value in kind.items()}
        run("nearest", (1, 2, 4, 5), lambda x: F.interpolate(x, mode="nearest", **kind), **options)
        for corners in (False, True):
            run(
                "bilinear_corners" if corners else "bilinear",
                (1, 2, 4, 5),
                lambda x: F.interpolate(x, mode="bilinear", align_corners=corners, **kind),
                **options,
            )
    # PyTorch names the last axis first; the file has the order of the axes.
    cases = [("reflect", (1, 2, 3, 0)), ("replicate", (4, 1, 0, 5)), ("constant", (1, 2, -1, 2)), ("circular", (4, 1, 0, 5))]
    for mode, pads in cases:
        reverse = pads[2:] + pads[:2]
        value = {"value": 0.5} if mode == "constant" else {}
        run(mode, (1, 2, 4, 5), lambda x: F.pad(x, reverse, mode=mode, **value), pads=pads)
    file.write()


norms()
pools()
resampling_and_padding()
