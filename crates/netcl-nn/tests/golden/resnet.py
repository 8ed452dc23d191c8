"""Makes resnet.json with torchvision: `python resnet.py > resnet.json`.

ResNets in float64 and training mode with parameters and inputs from `formula.py`: logits and, for the gradient "upstream" of
the logits, of every parameter the gradient's l2 norm, its largest magnitude and 16 samples, and running averages after the step.
"""

import json

import torch
import torchvision
from formula import fill, short, values
from torch import nn

SAMPLES = 16
cases = []


def case(name, depth, cifar, shape):
    model = getattr(torchvision.models, depth)(num_classes=10)
    if cifar:
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    model = fill(model.double().train())
    logits = model(values("input", shape))
    (logits * values("upstream", logits.shape)).sum().backward()
    grads = {}
    for key, parameter in model.named_parameters():
        grad = parameter.grad.reshape(-1)
        at = torch.arange(SAMPLES) * (grad.numel() - 1) // (SAMPLES - 1)
        grads[key] = {"norm": grad.norm().item(), "largest": grad.abs().max().item(), "samples": short(grad[at])}
    buffers = {key: short(model.state_dict()[key]) for key in ("bn1.running_mean", "layer4.1.bn2.running_var")}
    with torch.no_grad():
        evaluated = model.eval()(values("input", shape))
    cases.append(
        {"name": name, "shape": list(shape), "logits": short(logits), "eval": short(evaluated), "grads": grads, "buffers": buffers}
    )


case("resnet18", "resnet18", False, (2, 3, 64, 64))
case("resnet18_cifar", "resnet18", True, (2, 3, 32, 32))
case("resnet50", "resnet50", False, (2, 3, 64, 64))
print("[\n" + ",\n".join(json.dumps(entry) for entry in cases) + "\n]")
