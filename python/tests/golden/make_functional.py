"""Makes functional.npz with PyTorch: ``python make_functional.py`` (made with PyTorch 2.15).

For every case of ``functional_cases.py``: what comes out, the gradients of the inputs of ``sum(output * numbers)``, and what
became of running averages, computed in float64 and kept in float32.
"""

import numpy as np
import torch
import torch.nn.functional as F
from functional_cases import CASES, arguments, write
from nn_cases import numbers


def make(array, trained):
    return torch.tensor(array).requires_grad_(trained)


values = {}
for case in CASES:
    args, kwargs = arguments(case, make)
    out = getattr(F, case.function, None) or getattr(torch, case.function)
    out = out(*args, **kwargs)
    values[f"{case.name}/output"] = out
    (out * torch.tensor(numbers(f"{case.name}/factor", tuple(out.shape)))).sum().backward()
    for key, tensor in [*enumerate(args), *kwargs.items()]:
        if isinstance(tensor, torch.Tensor) and tensor.grad is not None:
            values[f"{case.name}/grad/{key}"] = tensor.grad
        if key in case.state:
            values[f"{case.name}/after/{key}"] = tensor
write({name: tensor.detach().numpy().astype(np.float32) for name, tensor in values.items()})
