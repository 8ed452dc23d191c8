"""Modules of Python's in code of Rust's: what is written against ``dyn Module`` takes a user's class."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import netcl
from netcl import nn, optim
from netcl._netcl import nn as _nn
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.nn._layer import Layer

CPU = manager.default("cpu").queue


class Net(nn.Module):
    """A model as users write it: layers of netcl's, a parameter and a buffer of its own, and plain Python between."""

    def __init__(self, width: int = 8) -> None:
        self.first = nn.Linear(CPU, 4, width)
        self.norm = nn.BatchNorm1d(CPU, width)
        self.last = nn.Linear(CPU, width, 3)
        self.scale = nn.Parameter(np.ones(3, np.float32), queue=CPU)
        self.register_buffer("shift", Tensor.from_host(CPU, np.zeros(3, np.float32)))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(netcl.autograd.relu(self.norm(self.first(x)))) * self.scale + self.shift


def batch(seed: int = 0):
    generator = np.random.default_rng(seed)
    return Tensor.from_host(CPU, generator.normal(size=(6, 4)), "float32"), generator.integers(0, 3, 6).tolist()


def test_a_step_of_training_from_rust_is_a_step_of_training():
    x, labels = batch()
    losses, states = [], []
    for rust in (False, True):
        netcl.manual_seed(3)
        model = Net()
        opt = optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            if rust:
                loss = _nn.training_step(model, opt, x, labels)
            else:
                opt.zero_grad()
                result = nn.functional.cross_entropy(model(x), np.array(labels))
                result.backward()
                opt.step()
                loss = result.item()
            losses.append(loss)
        assert model.calls == 3 and int(model.norm.num_batches_tracked.to_host()) == 3
        states.append(model.state_dict())
    assert losses[:3] == losses[3:] and losses[2] < losses[0]
    for name, values in states[0].items():
        np.testing.assert_array_equal(states[1][name], values, err_msg=name)


def test_errors_of_forward_arrive_as_they_are():
    class Broken(Net):
        def forward(self, x):
            raise KeyError("mine")

    class Odd(Net):
        def forward(self, x):
            return [x]

    x, labels = batch()
    for kind, error, text in ((Broken, KeyError, "mine"), (Odd, TypeError, "Odd: forward gave <class 'list'>")):
        model = kind()
        with pytest.raises(error, match=text):
            _nn.training_step(model, optim.SGD(model.parameters(), lr=0.1), x, labels)


def test_defaults_in_signatures_are_those_of_rust():
    checked = 0
    for name in nn.layers.__all__:
        made = getattr(nn, name)
        if not (isinstance(made, type) and issubclass(made, Layer)):
            continue
        parameters = dict(list(inspect.signature(made.__init__).parameters.items())[1:])
        given = {n: p for n, p in parameters.items() if n not in ("queue", "dtype")}
        # These need one of two.
        if name.startswith("Upsampl") or any(p.default is p.empty for p in given.values()):
            continue
        settings = _nn.Layer(made._kind, {}, CPU).settings
        for n, p in given.items():
            if n in settings and p.default is not None:
                found = settings[n]
                assert found == p.default or (isinstance(found, tuple) and set(found) == {p.default}), (name, n, found)
                checked += 1
    assert checked > 30
