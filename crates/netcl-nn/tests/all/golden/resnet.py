"""Makes resnet.json with torchvision: `python resnet.py > resnet.json`.

ResNets in float64 and training mode with parameters and inputs from `formula.py`: logits and, for the gradient "upstream" of
the logits, of every parameter the gradient's l2 norm, its largest magnitude and 16 samples, and running averages after the step.

A value so close to 0 in front of a ReLU that rounding decides its sign changes gradients by more than any tolerance. Of a
number of inputs the one is taken whose values keep the largest distance from 0.
"""

import copy
import json

import torch
import torchvision
from formula import fill, short, values
from torch import nn

SAMPLES, INPUTS = 16, 48
cases = []


@torch.no_grad()
def choose(model, shape):
    """The input whose values in front of ReLUs come least close to 0, and how close that is. float32 is good enough to tell."""
    closest = []
    see = lambda module, inputs: closest.append(inputs[0].abs().min().item())
    hooks = [module.register_forward_pre_hook(see) for module in model.modules() if isinstance(module, nn.ReLU)]
    found = (0.0, "")
    for number in range(INPUTS):
        closest.clear()
        model(values(f"input{number}", shape).float())
        found = max(found, (min(closest), f"input{number}"))
    for hook in hooks:
        hook.remove()
    return found[1], float(f"{found[0]:.3g}")


def case(name, depth, cifar, shape, choice):
    model = getattr(torchvision.models, depth)(num_classes=10)
    if cifar:
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    source, distance = choose(copy.deepcopy(fill(model.train())), shape) if choice else ("input0", None)
    model = fill(model.double().train())
    logits = model(values(source, shape))
    (logits * values("upstream", logits.shape)).sum().backward()
    grads = {}
    for key, parameter in model.named_parameters():
        grad = parameter.grad.reshape(-1)
        at = torch.arange(SAMPLES) * (grad.numel() - 1) // (SAMPLES - 1)
        grads[key] = {"norm": grad.norm().item(), "largest": grad.abs().max().item(), "samples": short(grad[at])}
    buffers = {key: short(model.state_dict()[key]) for key in ("bn1.running_mean", "layer4.1.bn2.running_var")}
    with torch.no_grad():
        evaluated = model.eval()(values(source, shape))
    entry = {"name": name, "shape": list(shape), "input": source, "distance": distance}
    cases.append(entry | {"logits": short(logits), "eval": short(evaluated), "grads": grads, "buffers": buffers})


case("resnet18", "resnet18", False, (2, 3, 64, 64), True)
case("resnet18_cifar", "resnet18", True, (2, 3, 32, 32), True)
# In float64 only, where nothing is that close.
case("resnet50", "resnet50", False, (2, 3, 64, 64), False)
print("[\n" + ",\n".join(json.dumps(entry) for entry in cases) + "\n]")
