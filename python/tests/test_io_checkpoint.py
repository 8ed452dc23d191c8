"""Checkpoints: a run that is stopped, or killed, goes on with the bits of one that is not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import netcl
from netcl import nn, optim
from netcl.amp import GradScaler, autocast
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.io import load_checkpoint, save_checkpoint

CPU = manager.default("cpu").queue


class Loader:
    """Something with a position of its own, as users write it."""

    def __init__(self):
        self.epoch, self.order, self.rng = 0, np.arange(7), np.random.default_rng(3)

    def batch(self):
        self.order = self.rng.permutation(self.order)
        x = np.sin(np.outer(self.order, np.arange(1, 5))).astype(np.float32)
        return Tensor.from_host(CPU, x), self.order % 3

    def state_dict(self):
        return {"epoch": self.epoch, "order": self.order, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.epoch, self.order, self.rng.bit_generator.state = state["epoch"], state["order"], state["rng"]


class Run:
    """Everything that a training run has."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(CPU, 4, 8), nn.BatchNorm1d(CPU, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(CPU, 8, 3))
        self.opt = optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = optim.CosineAnnealingLR(self.opt, T_max=20)
        self.scaler = GradScaler(init_scale=8.0, growth_interval=2)
        self.ema = optim.ModelEMA(self.model, decay=0.9)
        self.loader = Loader()

    def steps(self, n):
        for _ in range(n):
            x, y = self.loader.batch()
            self.opt.zero_grad()
            with autocast(dtype="bfloat16"):
                loss = nn.functional.cross_entropy(self.model(x), y)
            self.scaler.scale_loss(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            self.schedule.step()
            self.ema.update()
        return self

    def parts(self):
        return {"scheduler": self.schedule, "scaler": self.scaler, "ema": self.ema, "loader": self.loader}

    def bits(self):
        averages = {f"ema.{i}": average.to_host() for i, average in enumerate(self.ema.averages)}
        return {name: np.asarray(value).tobytes() for name, value in {**self.model.state_dict(), **averages}.items()}


def test_a_resumed_run_has_the_same_bits(tmp_path):
    netcl.manual_seed(1)
    run = Run().steps(3)
    path = save_checkpoint(tmp_path / "run" / "state.netcl", run.model, run.opt, **run.parts(), metrics={"loss": 0.5}, note="x")
    expected = run.steps(4).bits()
    netcl.manual_seed(2)
    other = Run().steps(1)
    values = load_checkpoint(path, other.model, other.opt, **other.parts())
    assert values == {"metrics": {"loss": 0.5}, "note": "x"}
    assert other.steps(4).bits() == expected and other.scaler.get_scale() == run.scaler.get_scale() > 8
    # It is a model file as well, which NumPy reads.
    with np.load(path) as file:
        assert {"0.weight", "1.running_mean", "optimizer/tensors/0.exp_avg"} <= set(file.files)


def test_values_come_back_as_they_were(tmp_path):
    model = nn.Linear(CPU, 2, 2)
    given = {
        "plain": [1, 2.5, None, True, "ü", {"a": [0.1]}],
        "tuple": (1, (2, 3)),
        "numbers": [float("inf"), float("-inf"), 2**200, -(2**63), 2**64],
        "keys": {1: "a", (2, 3): "b", "$x": "c"},
        "blob": b"\x00\xff",
        "arrays": {"f": np.arange(3, dtype=np.float64), "i": np.arange(6, dtype=np.uint32).reshape(2, 3), "b": np.array([True])},
        "scalar": np.float32(0.1),
        "nothing": None,
        "$odd": 1,
    }
    path = save_checkpoint(tmp_path / "a.netcl", model, **given)
    values = load_checkpoint(path, model)
    np.testing.assert_equal(values.pop("arrays"), given.pop("arrays"))
    assert values.pop("scalar") == given.pop("scalar") and values == given
    nan = load_checkpoint(save_checkpoint(path, model, metrics=[float("nan")]), model)
    assert np.isnan(nan["metrics"][0]) and "step" not in nan
    tensor = load_checkpoint(save_checkpoint(path, model, metrics={"t": model.weight}), model)["metrics"]["t"]
    np.testing.assert_array_equal(tensor, model.weight.to_host())
    with pytest.raises(TypeError, match=r"extra\.1 is a object"):
        save_checkpoint(path, model, extra=[1, object()])


def test_the_newest_and_the_best_are_kept(tmp_path):
    model = nn.Linear(CPU, 2, 2)
    path = tmp_path / "state.netcl"
    for step in (10, 20, 30, 40):
        save_checkpoint(path, model, step=step, keep=2, best=step == 20)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [f"state-{n}.netcl" for n in ("000020", "000030", "000040", "best", "last")]
    assert load_checkpoint(path, model)["step"] == 40
    assert load_checkpoint(tmp_path / "state-best.netcl", model)["step"] == 20
    assert save_checkpoint(path, model, keep=2).name == "state-000041.netcl"
    for wrong, match in (({"keep": 0}, "at least 1"), ({"best": True}, "keep=3")):
        with pytest.raises(ValueError, match=match):
            save_checkpoint(path, model, **wrong)


def test_what_does_not_fit_is_said_and_changes_nothing(tmp_path):
    run = Run().steps(1)
    path = save_checkpoint(tmp_path / "a.netcl", run.model, run.opt)
    before = run.steps(2).bits()
    for kind, match, load in [
        (ValueError, "no state of ema and loader; beside the model's it has optimizer", lambda: load_checkpoint(path, run.model, ema=run.ema, loader=run.loader)),
        (ValueError, "0.weight", lambda: load_checkpoint(path, nn.Sequential(nn.Linear(CPU, 4, 9)))),
        (FileNotFoundError, "missing.netcl", lambda: load_checkpoint(tmp_path / "missing.netcl", run.model)),
        (TypeError, "path comes first", lambda: save_checkpoint(run.model, path)),
        (TypeError, r"a netcl\.nn\.Module is needed, not", lambda: save_checkpoint(path, 3)),
        (ValueError, "cannot name a part", lambda: save_checkpoint(path, run.model, **{"a/b": run.opt})),
    ]:
        with pytest.raises(kind, match=match):
            load()
    assert run.bits() == before
    other = optim.SGD(nn.Linear(CPU, 2, 2).parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match="SGD: the state has"):
        load_checkpoint(path, run.model, other)
    assert run.bits() == before
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="cannot be used: it is no NPZ archive"):
        load_checkpoint(path, run.model)
    assert run.bits() == before


@pytest.mark.parametrize(
    "damaged",
    [{"$array": "gone"}, {"$array": []}, {"$tuple": 3}, {"$items": [[1]]}, {"$int": "x"}, {"$bytes": 5}, {"$integers": ["<i8", [3], "AA"]}, {"$items": [[[], 1]]}],
)
def test_damaged_values_are_said_and_change_nothing(tmp_path, damaged):
    run = Run()
    checkpoint = netcl._netcl.io.Checkpoint(run.model, "{}")
    checkpoint.progress = json.dumps({"metrics": [damaged]})
    path = checkpoint.write(tmp_path / "a.netcl", None, None, False)
    before = run.steps(1).bits()
    with pytest.raises(ValueError, match="a.netcl: what it says of metrics is damaged"):
        load_checkpoint(path, run.model)
    assert run.bits() == before


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_io_checkpoint import *

path, steps = sys.argv[1], int(sys.argv[2])
netcl.manual_seed(5)
run, done = Run(), 0
if os.path.lexists(path.replace(".netcl", "-last.netcl")):
    done = load_checkpoint(path, run.model, run.opt, **run.parts())["step"]
while done < steps:
    run.steps(1)
    done += 1
    save_checkpoint(path, run.model, run.opt, **run.parts(), step=done, keep=2)
    print(done, flush=True)
print(json.dumps({{name: value.hex() for name, value in run.bits().items()}}))
"""


def test_killed_runs_end_with_the_same_weights(tmp_path):
    """Kills a training process at random moments; ``NETCL_TEST_KILLS`` sets how often."""
    kills = int(os.environ.get("NETCL_TEST_KILLS", "4"))
    script, steps = SCRIPT.format(tests=os.path.dirname(__file__)), 60
    folder = tmp_path / "run"

    def start(path):
        return subprocess.Popen([sys.executable, "-c", script, str(path), str(steps)], stdout=subprocess.PIPE, text=True)

    whole, _ = start(tmp_path / "whole" / "state.netcl").communicate(timeout=300)
    chance, killed, last = random.Random(7), 0, 0
    while True:
        process = start(folder / "state.netcl")
        if killed < kills:
            # Some steps after it goes on, so that every run gets further; in the middle of whatever it does then.
            for line in process.stdout:
                last = int(line) if line.strip().isdigit() else steps
                if last >= min(steps - 1, (killed + 1) * steps // (kills + 1)):
                    break
            time.sleep(chance.random() * 0.02)
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
            continue
        rest, _ = process.communicate(timeout=300)
        break
    assert json.loads(rest.splitlines()[-1]) == json.loads(whole.splitlines()[-1])
    assert killed == kills
