"""Makes layers.json with PyTorch: `python layers.py > layers.json`.

Every layer in float64, with parameters and inputs from `formula.py`: results, gradients of the input and of all parameters for
the gradient "upstream" of the results (of several results, one after the other), buffers after the steps, results in eval mode.
"""

import json

import torch
from formula import fill, short, values
from torch import nn

cases = []


def case(name, module, shape, steps=1, evaluate=False, call=None, integers=None):
    """`call` is what is done with the module and the input instead of the plain call."""
    module = fill(module.double().train())
    call = call or (lambda m, x: m(x))
    flat = lambda outputs: torch.cat([o.reshape(-1) for o in (outputs if isinstance(outputs, tuple) else (outputs,))])
    for step in range(steps):
        module.zero_grad()
        x = values(f"input{step}", shape).requires_grad_() if integers is None else torch.tensor(integers).reshape(shape)
        out = flat(call(module, x))
        (out * values("upstream", out.shape)).sum().backward()
    entry = {"name": name, "shape": list(shape), "steps": steps, "output": short(out)}
    if integers is None:
        entry["input_grad"] = short(x.grad)
    else:
        entry["integers"] = integers
    entry["grads"] = {n: short(p.grad) for n, p in module.named_parameters()}
    entry["buffers"] = {n: short(b.double()) for n, b in module.named_buffers()}
    if evaluate:
        module.eval()
        entry["eval"] = short(flat(call(module, values("input0", shape))))
    cases.append(entry)


case("linear", nn.Linear(3, 4), (2, 3))
case("conv1d", nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), (2, 4, 9))
case("conv2d", nn.Conv2d(2, 4, 3, padding=1), (2, 2, 5, 4))
case("conv2d_options", nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 2), (1, 2), 2, False), (2, 4, 6, 5))
case("conv_transpose2d", nn.ConvTranspose2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 0), 2), (2, 4, 3, 4))

case("batch_norm1d", nn.BatchNorm1d(3), (4, 3), steps=3, evaluate=True)
case("batch_norm1d_average", nn.BatchNorm1d(3, eps=1e-3, momentum=None), (2, 3, 4), steps=3, evaluate=True)
case("batch_norm2d", nn.BatchNorm2d(3, momentum=0.25), (2, 3, 3, 2), steps=3, evaluate=True)
case("batch_norm2d_plain", nn.BatchNorm2d(3, affine=False, track_running_stats=False), (2, 3, 3, 2), evaluate=True)

case("max_pool1d", nn.MaxPool1d(3, 2, 1, 2), (2, 2, 9))
case("max_pool2d", nn.MaxPool2d(3, 2, 1, ceil_mode=True), (1, 2, 6, 5))
case("avg_pool1d", nn.AvgPool1d(2), (2, 2, 7))
case("avg_pool2d", nn.AvgPool2d((3, 2), (2, 1), (1, 1), count_include_pad=False), (1, 2, 6, 5))
case("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d((3, 2)), (1, 2, 5, 4))
case("adaptive_max_pool2d", nn.AdaptiveMaxPool2d((3, 2)), (1, 2, 5, 4))

print("[\n" + ",\n".join(json.dumps(entry) for entry in cases) + "\n]")
