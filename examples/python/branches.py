"""A network of one's own: three branches, two with the same weights, tell whether two pictures show the same digit.

``python branches.py [device]``
"""

import sys
from typing import Any

import numpy as np
from drawn_digits import digits

import netcl
from netcl import nn
from netcl.core.tensor import Tensor
from netcl.nn import functional as F
from netcl.optim import SGD


class SameOrNot(nn.Module):
    """Both pictures go through one encoder; a third branch looks at the two of them together."""

    def __init__(self, queue: Any, width: int = 32) -> None:
        # What becomes an attribute is found: by the optimizer, by state_dict, by to() and print().
        self.encoder = nn.Sequential(
            nn.Conv2d(queue, 1, 16, 3, pad=1),
            nn.BatchNorm2d(queue, 16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(queue, 16, width, 3, pad=1),
            nn.BatchNorm2d(queue, width),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(queue, 4 * width, width),
        )
        self.together = nn.Sequential(nn.Conv2d(queue, 2, 8, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.scale = nn.Parameter(np.ones(width), queue=queue)
        self.head = nn.Sequential(nn.Linear(queue, width + 8, 32), nn.ReLU(), nn.Linear(queue, 32, 2))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        apart = F.square(self.encoder(first) - self.encoder(second)) * self.scale
        both = self.together(F.cat([first, second], 1))
        return self.head(F.cat([apart, both], 1))


def pairs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two pictures and whether they show the same digit, which every other pair does."""
    images, labels = digits(20 * count, seed=seed)
    rng = np.random.default_rng(seed)
    first = rng.permutation(len(images))[:count]
    same = np.arange(count) % 2
    by_label = [np.flatnonzero(labels == digit) for digit in range(10)]
    wanted = np.where(same, labels[first], (labels[first] + rng.integers(1, 10, count)) % 10)
    second = np.array([rng.choice(by_label[digit]) for digit in wanted])
    return images[first], images[second], same


def main(device: str = "auto") -> float:
    netcl.manual_seed(0)
    queue = netcl.manager.default(device).queue
    model = SameOrNot(queue)
    print(model)
    opt = SGD(model.parameters(), lr=0.05, momentum=0.9)
    left, right, same = pairs(2048, seed=1)
    order = np.random.default_rng(0)
    for epoch in range(1, 6):
        total, batches = 0.0, order.permutation(len(same)).reshape(-1, 64)
        for batch in batches:
            pictures = (Tensor.from_host(queue, side[batch]) for side in (left, right))
            loss = F.cross_entropy(model(*pictures), same[batch])
            loss.backward()
            opt.step()
            opt.zero_grad()
            total += loss.item()
        print(f"epoch {epoch}  loss {total / len(batches):.4f}")

    # Weights travel as arrays by name, to a twin here as to any other machine.
    twin = SameOrNot(queue)
    twin.load_state_dict(model.state_dict())
    twin.eval()
    left, right, same = pairs(512, seed=2)
    with netcl.autograd.no_grad():
        guesses = twin(Tensor.from_host(queue, left), Tensor.from_host(queue, right)).to_host().argmax(1)
    accuracy = float((guesses == same).mean())
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main(*sys.argv[1:])
