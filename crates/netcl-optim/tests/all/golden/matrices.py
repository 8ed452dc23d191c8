"""Makes matrices.json with PyTorch: `python matrices.py > matrices.json`.

Ten steps of Muon in float64 on matrices, and steps of L-BFGS on Rosenbrock's function of two parameters with the loss of each step.
PyTorch's Newton-Schulz iterations are in bfloat16; here they are the same lines in float64.
"""

import json
import math

import torch

torch.set_default_dtype(torch.float64)
SHAPES = [(3, 5), (8, 2), (4, 4), (1, 6)]


def formula(i, t, shape):
    size = math.prod(shape)
    values = [((k * 37 + i * 101 + t * 59 + k * k * 13) % 129) / 64 - 1 for k in range(size)]
    return torch.tensor(values).reshape(shape)


def newton_schulz(grad, ns_coefficients, ns_steps, eps):
    a, b, c = ns_coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


torch.optim._muon._zeropower_via_newtonschulz = newton_schulz


def muon(options):
    params = [formula(i, 0, shape).clone().requires_grad_() for i, shape in enumerate(SHAPES)]
    optimizer = torch.optim.Muon(params, **options)
    after = []
    for t in range(1, 11):
        for i, parameter in enumerate(params):
            parameter.grad = None if i == 2 and t in (3, 4) else formula(i, t, SHAPES[i])
        optimizer.step()
        after.append([value for p in params for value in p.detach().reshape(-1).tolist()])
    return {"options": options, "after": after}


def rosenbrock(x, y):
    return (1 - x).square().sum() + 100 * (y - x * x).square().sum()


def lbfgs(options):
    x, y = torch.tensor([-1.5, 0.5, 2.0]).requires_grad_(), torch.tensor([2.0, -1.0, 0.25]).requires_grad_()
    optimizer = torch.optim.LBFGS([x, y], **options)
    sign = -1 if options.get("maximize") else 1
    losses, after = [], []

    def closure():
        optimizer.zero_grad()
        loss = sign * rosenbrock(x, y)
        loss.backward()
        return loss

    for _ in range(6):
        losses.append(optimizer.step(closure).item())
        after.append(x.tolist() + y.tolist())
    evals = optimizer.state[x]["func_evals"]
    return {"options": options, "losses": losses, "after": after, "func_evals": evals}


muons = [
    {"lr": 0.02},
    {"lr": 0.02, "weight_decay": 0.0, "momentum": 0.8, "nesterov": False, "ns_steps": 3, "adjust_lr_fn": "match_rms_adamw"},
    {"lr": 0.02, "ns_coefficients": [2.0, -1.5, 0.5], "eps": 1e-3, "adjust_lr_fn": "spectral_unclamped"},
]
searches = [
    {"lr": 0.001, "max_iter": 4},
    {"lr": 1, "max_iter": 5, "line_search_fn": "strong_wolfe"},
    {"lr": 0.5, "max_iter": 7, "history_size": 3, "line_search_fn": "strong_wolfe", "maximize": True},
    {"lr": 1, "max_iter": 20, "max_eval": 9, "line_search_fn": "strong_wolfe"},
]
print(json.dumps({"shapes": SHAPES, "muon": [muon(each) for each in muons], "lbfgs": [lbfgs(each) for each in searches]}))
