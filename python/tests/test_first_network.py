"""The training loops of the documentation, as written there, on every device."""

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
from netcl import autograd as ag
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.nn import Linear, ReLU, Sequential, functional as F
from netcl.optim import SGD

TENSOR_PAGE = """
import netcl.autograd as ag

with ag.Tape() as tape:
    logits = model(x)
    loss = F.cross_entropy(logits, y)
tape.backward(loss)
opt.step()
opt.zero_grad()
"""

ARCHITECTURE_PAGE = """
import netcl.autograd as ag

# 1. DataLoader yields a NumPy batch
for x, y in loader:                       # data API

    # 2. Tensor factory copies to device
    x_t = Tensor.from_host(queue, x)      # core API
    y_t = Tensor.from_host(queue, y)

    # 3. nn.Module forward — differentiable, recorded by the Tape
    with ag.Tape() as tape:
        logits = model(x_t)               # nn API
        loss = ag.cross_entropy(logits, y_t)  # autograd API

    # 4. Tape backward
    tape.backward(loss)                   # autograd API

    # 5. Optimizer step
    opt.step()                            # optim API
    opt.zero_grad()
"""

devices = pytest.mark.parametrize("selector", find_device_selectors())


def two_moons(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    labels = np.arange(n) % 2
    angle = rng.uniform(0, np.pi, n)
    upper = np.stack([np.cos(angle), np.sin(angle)], 1)
    lower = np.stack([1 - np.cos(angle), 0.5 - np.sin(angle)], 1)
    points = np.where(labels[:, None] == 0, upper, lower) + rng.normal(0, 0.1, (n, 2))
    return points.astype(np.float32), labels


def network(queue):
    netcl.manual_seed(3)
    return Sequential(Linear(queue, 2, 32), ReLU(), Linear(queue, 32, 2))


def accuracy(model, points, labels, queue) -> float:
    with ag.no_grad():
        guesses = model(Tensor.from_host(queue, points)).to_host().argmax(1)
    return float((guesses == labels).mean())


@devices
def test_the_listing_of_the_architecture_page_trains(selector):
    queue = manager.default(selector).queue
    points, labels = two_moons(256)
    model = network(queue)
    opt = SGD(model.parameters(), lr=0.2, momentum=0.9)
    before = accuracy(model, points, labels, queue)
    losses = []
    batches = [(points[i : i + 64], labels[i : i + 64]) for i in range(0, 256, 64)]

    def loader():
        for _ in range(25):
            for batch in batches:
                yield batch
                losses.append(float(names["loss"]))

    names = {"loader": loader(), "queue": queue, "Tensor": Tensor, "model": model, "opt": opt}
    exec(ARCHITECTURE_PAGE, names)
    after = accuracy(model, points, labels, queue)
    assert before < 0.7 and after > 0.97, (before, after)
    assert len(losses) == 100 and np.mean(losses[-8:]) < 0.25 * np.mean(losses[:4])
    assert all(parameter.grad is None for parameter in model.parameters())


@devices
def test_the_listing_of_the_tensor_page_trains(selector):
    queue = manager.default(selector).queue
    points, labels = two_moons(128)
    model = network(queue)
    opt = SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True)
    names = {"model": model, "F": F, "opt": opt}
    names |= {"x": Tensor.from_host(queue, points), "y": Tensor.from_host(queue, labels)}
    before = accuracy(model, points, labels, queue)
    step = compile(TENSOR_PAGE, "tensor page", "exec")
    losses = []
    for _ in range(80):
        exec(step, names)
        losses.append(names["loss"].item())
    assert names["loss"].shape == ()
    assert losses[-1] < 0.25 * losses[0]
    assert accuracy(model, points, labels, queue) > max(before, 0.97)


def test_two_runs_of_one_seed_have_the_same_bits():
    queue = manager.default("cpu").queue
    points, labels = two_moons(64)

    def run() -> list[float]:
        model = network(queue)
        opt = SGD(model.parameters(), lr=0.2, momentum=0.9)
        x, y = Tensor.from_host(queue, points), Tensor.from_host(queue, labels)
        losses = []
        for _ in range(20):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
        return losses

    assert run() == run()


def test_every_device_starts_with_the_same_weights():
    states = [network(manager.default(selector).queue).state_dict() for selector in find_device_selectors()]
    for state in states[1:]:
        assert all(np.array_equal(state[name], states[0][name]) for name in states[0])
