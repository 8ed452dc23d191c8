"""Networks that learn: recurrent ones and a GPT here, the examples as they are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import netcl
from netcl import autograd as ag, nn
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.nn import functional as F
from netcl.optim import SGD

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"


@pytest.fixture
def queue():
    return manager.default("cpu").queue


class FirstSymbol(nn.Module):
    """Says which symbol a sequence began with, after all the others have gone by."""

    def __init__(self, queue, kind):
        self.table = nn.Embedding(queue, 4, 8)
        self.memory = kind(queue, 8, 24, batch_first=True)
        self.head = nn.Linear(queue, 24, 4)

    def forward(self, symbols):
        output, _ = self.memory(self.table(symbols))
        return self.head(output[:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_networks_remember(queue, kind):
    netcl.manual_seed(0)
    model = FirstSymbol(queue, kind)
    if kind is nn.LSTM:
        # Gates that begin by keeping what they have: the second quarter of the bias belongs to the forget gates.
        nn.init.ones_(model.memory.bias_ih_l0.detach()[24:48])
    opt = SGD(model.parameters(), lr=0.3, momentum=0.9)
    rng = np.random.default_rng(0)
    for _ in range(160):
        symbols = rng.integers(0, 4, (64, 6))
        loss = F.cross_entropy(model(symbols), symbols[:, 0])
        loss.backward()
        opt.step()
        opt.zero_grad()
    symbols = rng.integers(0, 4, (256, 6))
    with ag.no_grad():
        guesses = model(symbols).to_host().argmax(1)
    assert (guesses == symbols[:, 0]).mean() >= 0.97


def test_a_gpt_learns_a_rule_and_goes_on(queue):
    netcl.manual_seed(0)
    model = nn.GPT(queue, vocab_size=10, block_size=8, n_layer=1, n_head=2, n_embd=32)
    opt = SGD(model.parameters(), lr=0.3, momentum=0.9)
    rng = np.random.default_rng(0)

    def rows(count):
        # The next number is three more, modulo ten.
        return (rng.integers(0, 10, (count, 1)) + 3 * np.arange(9)) % 10

    for _ in range(60):
        batch = rows(32)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(ag.reshape(logits, (32 * 8, 10)), batch[:, 1:].reshape(-1))
        loss.backward()
        opt.step()
        opt.zero_grad()
    assert loss.item() < 0.05
    assert model.generate([[2]], 12, temperature=0).tolist() == [[(2 + 3 * i) % 10 for i in range(13)]]


def test_a_network_trains_in_parts(queue):
    netcl.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(queue, 4, 8), nn.Tanh()), nn.Linear(queue, 8, 1)
    model = nn.Sequential(body, head)
    body.freeze()
    before = model.state_dict()
    opt = SGD(model.trainable_parameters(), lr=0.1)
    x = Tensor.from_host(queue, np.random.default_rng(0).normal(size=(16, 4)))
    losses = []
    for _ in range(20):
        loss = F.mse_loss(model(x), Tensor.from_shape(queue, (16, 1), fill=1.0))
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    after = model.state_dict()
    assert losses[-1] < 0.3 * losses[0]
    assert {name: np.array_equal(before[name], after[name]) for name in before} == {
        "0.0.weight": True,
        "0.0.bias": True,
        "1.weight": False,
        "1.bias": False,
    }


LEARN = [("mlp", 0.98), ("cnn", 0.97), ("resnet", 0.93), ("branches", 0.92), ("trainer", 0.95), ("distributed", 0.93)]
LEARN += [("data_parallel", 0.85), ("inference", 0.85)]


@pytest.mark.parametrize(("name", "least"), LEARN)
def test_examples_learn(name, least):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "cpu"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert run.returncode == 0, run.stderr
    accuracy = float(re.findall(r"^test accuracy ([0-9.]+)$", run.stdout, re.MULTILINE)[-1])
    assert accuracy >= least, run.stdout


TUTORIALS = ["char_gpt", "vae", "unet", "lstm_classifier", "gan", "transformer"]
if manager.default("opencl") is not None:
    TUTORIALS.append("custom_kernel")


@pytest.mark.parametrize("name", TUTORIALS)
def test_programs_in_the_style_of_tutorials_learn(name):
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "NETCL_DEVICE": "cpu"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    before, after = map(float, re.findall(r"loss ([-0-9.]+) -> ([-0-9.]+)", run.stdout)[0])
    assert after < before / 2, run.stdout


def test_every_example_is_run():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    run = {name for name, _ in LEARN} | {*TUTORIALS, "custom_kernel"}
    # The last two have their tests in test_amp.py and test_io_files.py.
    assert scripts == run | {"drawn_digits", "mixed_precision", "sentence_embeddings"}
