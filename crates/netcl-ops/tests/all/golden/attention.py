"""Makes attention.txt: attention and its gradients as PyTorch computes them in float64.

Run with any Python that has PyTorch: python attention.py. Each line is `case.tensor lengths... : values...`.
"""

import pathlib

import torch
import torch.nn.functional as F

torch.manual_seed(20)


def numbers(*shape):
    return (torch.randn(*shape, dtype=torch.float64) * 100).round() / 100


hidden = torch.zeros(5, 7, dtype=torch.float64)
hidden[:, 5] = -torch.inf
hidden[2, :4] = -torch.inf
cases = {
    "plain": {},
    "causal": {"is_causal": True},
    "hidden": {"attn_mask": hidden},
    "bias": {"attn_mask": numbers(1, 2, 1, 7), "scale": 0.3},
}
lines = []
for case, options in cases.items():
    tensors = {"q": numbers(1, 2, 5, 5), "k": numbers(1, 2, 7, 5), "v": numbers(1, 2, 7, 3)}
    for tensor in tensors.values():
        tensor.requires_grad_()
    out = F.scaled_dot_product_attention(*tensors.values(), **options)
    grad = numbers(*out.shape)
    out.backward(grad)
    found = {name: tensor.detach() for name, tensor in tensors.items()} | {"grad": grad, "out": out.detach()}
    found |= {f"d{name}": tensor.grad for name, tensor in tensors.items()}
    if "attn_mask" in options:
        found["mask"] = options["attn_mask"]
    for name, tensor in found.items():
        values = " ".join(f"{value:.12g}" for value in tensor.flatten().tolist())
        lines.append(f"{case}.{name} {' '.join(map(str, tensor.shape))} : {values}\n")
pathlib.Path(__file__).with_suffix(".txt").write_text("".join(lines))
