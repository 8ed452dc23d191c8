"""Makes sgd.json with PyTorch: `python sgd.py > sgd.json`.

Five steps of SGD in float64 for every combination of its options. The learning rate is halved before the third step, and the
second parameter has no gradient in the second step. Inputs are multiples of 1/64, which float32 holds exactly.
"""

import itertools
import json

import torch

torch.manual_seed(20240612)
SHAPES = [(2, 3), (2,)]
STEPS = 5


def draw(shape):
    return (torch.randn(shape, dtype=torch.float64) * 64).round() / 64


start = [draw(shape) for shape in SHAPES]
grads = [[draw(shape) for shape in SHAPES] for _ in range(STEPS)]
grads[1][1] = None

cases = []
for momentum, dampening, decay, nesterov, maximize in itertools.product(
    [0.0, 0.875], [0.0, 0.25], [0.0, 0.125], [False, True], [False, True]
):
    if nesterov and (momentum == 0 or dampening != 0):
        continue
    options = {
        "lr": 0.1,
        "momentum": momentum,
        "dampening": dampening,
        "weight_decay": decay,
        "nesterov": nesterov,
        "maximize": maximize,
    }
    params = [p.clone().requires_grad_() for p in start]
    optimizer = torch.optim.SGD(params, **options)
    after = []
    for step in range(STEPS):
        if step == 2:
            optimizer.param_groups[0]["lr"] = 0.05
        for parameter, grad in zip(params, grads[step]):
            parameter.grad = None if grad is None else grad.clone()
        optimizer.step()
        after.append([p.detach().reshape(-1).tolist() for p in params])
    cases.append({"options": options, "after": after})

flat = lambda tensor: None if tensor is None else tensor.reshape(-1).tolist()
golden = {
    "shapes": SHAPES,
    "start": [flat(p) for p in start],
    "grads": [[flat(g) for g in step] for step in grads],
}
rows = ",\n".join(f"  {json.dumps(case)}" for case in cases)
print(json.dumps(golden)[:-1] + f', "cases": [\n{rows}\n]}}')
