"""Makes first_network.json with PyTorch: `python first_network.py > first_network.json`.

The losses of 50 steps of SGD in float64, from stored weights and batches. All inputs are multiples of 1/64.
"""

import json

import torch

torch.manual_seed(20240613)


def grid(tensor):
    return (tensor.double() * 64).round() / 64


BATCHES, ROWS, HIDDEN, STEPS = 4, 16, 32, 50
model = torch.nn.Sequential(torch.nn.Linear(2, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 2)).double()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(grid(parameter))
x = grid(torch.randn(BATCHES, ROWS, 2) * 1.5)
y = ((x[..., 0] * x[..., 1] > 0) ^ (x[..., 0] > 1)).long()
weights = {name: p.detach().reshape(-1).tolist() for name, p in model.named_parameters()}

optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
losses = []
for step in range(STEPS):
    loss = torch.nn.functional.cross_entropy(model(x[step % BATCHES]), y[step % BATCHES])
    losses.append(loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

golden = {
    "rows": ROWS,
    "hidden": HIDDEN,
    "weights": weights,
    "x": [batch.reshape(-1).tolist() for batch in x],
    "y": y.tolist(),
    "losses": losses,
}
print("{\n" + ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in golden.items()) + "\n}")
