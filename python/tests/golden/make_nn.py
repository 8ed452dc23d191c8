"""Makes nn.npz with PyTorch and torchvision: ``python make_nn.py``.

For every case of ``nn_cases.py``: what comes out, the gradients of inputs and parameters of ``sum(output * numbers)``, and the
buffers afterwards, computed in float64 and kept in float32. The arrays are one after the other in ``values``; ``index`` says which
is which.
"""

import json
from pathlib import Path

import numpy as np
import torch
import torchvision
from nn_cases import CASES, NETWORKS, given, numbers, sampled, value

torch.use_deterministic_algorithms(True)
index: list[tuple[str, list[int]]] = []
values: list[np.ndarray] = []


def keep(name: str, array) -> None:
    array = np.asarray(array.detach() if isinstance(array, torch.Tensor) else array, np.float32)
    index.append((name, list(array.shape)))
    values.append(array.reshape(-1))


def tensors(x):
    """A tensor, or nested tuples of them, as a flat list."""
    return [x] if isinstance(x, torch.Tensor) else [t for part in x if part is not None for t in tensors(part)]


def load(module, case: str) -> None:
    state = {name: torch.tensor(value(case, name, tuple(t.shape))) for name, t in module.state_dict().items()}
    module.load_state_dict(state)


def make(array, trained):
    return torch.tensor(array).requires_grad_(trained)


for case in CASES:
    module = getattr(torch.nn, case.kind)(**case.kwargs).double().train(case.training)
    load(module, case.name)
    keep(f"{case.name}/keys/" + ",".join(module.state_dict()), np.zeros(0))
    inputs = [given(x, f"{case.name}/input{i}", make) for i, x in enumerate(case.inputs)]
    call = {name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in case.call.items()}
    outputs = tensors(module(*inputs, **call))
    loss = sum((out * torch.tensor(numbers(f"{case.name}/factor{i}", tuple(out.shape)))).sum() for i, out in enumerate(outputs))
    loss.backward()
    for i, out in enumerate(outputs):
        keep(f"{case.name}/output{i}", out)
    for i, x in enumerate(tensors(inputs)):
        if x.grad is not None:
            keep(f"{case.name}/grad{i}", x.grad)
    for name, parameter in module.named_parameters():
        keep(f"{case.name}/grad/{name}", parameter.grad)
    for name, buffer in module.named_buffers():
        keep(f"{case.name}/after/{name}", buffer)

for key, (layers, block, shape) in NETWORKS.items():
    module = torchvision.models.ResNet(getattr(torchvision.models.resnet, block), layers, num_classes=10)
    if key == "cifar":
        module.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
        module.maxpool = torch.nn.Identity()
    module = module.double()
    load(module, key)
    x = torch.tensor(numbers(f"{key}/input", shape)).requires_grad_()
    keep(f"{key}/keys/" + ",".join(module.state_dict()), np.zeros(0))
    keep(f"{key}/eval", module.eval()(x))
    out = module.train()(x)
    keep(f"{key}/train", out)
    (out * torch.tensor(numbers(f"{key}/factor", tuple(out.shape)))).sum().backward()
    keep(f"{key}/grad", sampled(x.grad))
    for name, parameter in module.named_parameters():
        keep(f"{key}/grad/{name}", sampled(parameter.grad))
    for name, buffer in module.named_buffers():
        if not name.endswith("num_batches_tracked"):
            keep(f"{key}/after/{name}", sampled(buffer))

for kind in ("resnet18", "resnet34", "resnet50"):
    state = getattr(torchvision.models, kind)().state_dict()
    keep(f"{kind}/keys/" + ",".join(state), [sum(t.numel() for t in state.values())])

np.savez_compressed(Path(__file__).with_name("nn.npz"), values=np.concatenate(values), index=json.dumps(index))
