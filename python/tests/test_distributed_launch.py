"""Ranks that are processes: the trainer over them, failures, Ctrl+C. ``netcl launch`` itself is tested with the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("netcl")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes share memory on Linux")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
LIMIT = 60

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import numpy as np
import netcl
from netcl import nn, optim
from netcl.data import DataLoader, DistributedSampler, TensorDataset
from netcl.distributed import init
from netcl.trainer import Trainer

group, folder = init(), Path(sys.argv[1])
queue = netcl.manager.default("cpu").queue
netcl.manual_seed(group.rank)  # other weights on each rank: those of rank 0 hold
model = nn.Sequential(nn.Linear(queue, 4, 16), nn.ReLU(), nn.Linear(queue, 16, 3))
opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(96, 4)).astype("float32"), rng.integers(0, 3, 96)
batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 96, 8)]
def tell(trainer, **more):
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    result = {"losses": [s["loss"] for s in trainer.history.steps], "epochs": trainer.history.epochs, "weights": weights}
    (folder / f"{group.rank}-{group.size}.json").write_text(json.dumps({**result, **more}))
"""


class Ranks:
    """Processes that run a script together, as ``netcl launch`` starts them."""

    def __init__(self, size: int, folder: Path, body: str = "", *arguments: str, script: Path | None = None) -> None:
        if script is None:
            script = folder / "script.py"
            script.write_text(SCRIPT + textwrap.dedent(body))
        rendezvous = folder / f"rendezvous-{time.monotonic_ns()}"
        rendezvous.mkdir()
        places = {"NETCL_RANKS": str(size), "NETCL_RENDEZVOUS": str(rendezvous), "NETCL_RANK_TIMEOUT": "20"}
        common = {**os.environ, **places, "NETCL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(script), *(arguments or (str(folder),))],
                env={**common, "NETCL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def end(self) -> list[tuple[int, str, str]]:
        """Exit code, output and errors of each."""
        deadline = time.monotonic() + LIMIT
        ends = []
        for process in self.processes:
            out, errors = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            ends.append((process.returncode, out, errors))
        return ends

    def good(self) -> list[str]:
        ends = self.end()
        assert all(code == 0 for code, _, _ in ends), ends
        return [out for _, out, _ in ends]


def results(folder: Path, size: int) -> list[dict]:
    return [json.loads((folder / f"{rank}-{size}.json").read_text()) for rank in range(size)]


TRAIN = """
steps = int(sys.argv[2]) // group.size
trainer = Trainer(model, opt, metrics=["accuracy", "auroc"], accumulation_steps=steps, folder=folder / "run")
trainer.fit(batches, batches[:5], epochs=2)
tell(trainer, evaluated=trainer.evaluate(batches[:3]))
if group.rank == 0:
    assert "last.netcl" in os.listdir(folder / "run")
"""


def test_ranks_train_as_one_process_with_the_batches_of_all(tmp_path):
    for size in (1, 2):
        with Ranks(size, tmp_path, TRAIN, str(tmp_path), "2") as ranks:
            ranks.good()
    (alone,), (first, second) = results(tmp_path, 1), results(tmp_path, 2)
    assert first["losses"] == second["losses"] and first["weights"] == second["weights"]
    assert first["evaluated"] == second["evaluated"]
    assert len(alone["losses"]) == 12
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=1e-5)
    for name in ("accuracy", "auroc", "val_accuracy", "val_auroc", "val_loss"):
        np.testing.assert_allclose(first["epochs"][-1][name], alone["epochs"][-1][name], rtol=1e-5)
    np.testing.assert_allclose(first["evaluated"]["loss"], alone["evaluated"]["loss"], rtol=1e-5)


def test_a_sampler_of_ranks_is_taken_as_it_is(tmp_path):
    body = """
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, group.rank, group.size, shuffle=False)
    trainer = Trainer(model, opt, progress=False)
    trainer.fit(DataLoader(data, batch_size=16 // group.size, sampler=sampler), epochs=1)
    tell(trainer, samples=[s["samples"] for s in trainer.history.steps])
    """
    for size in (1, 2):
        with Ranks(size, tmp_path, body) as ranks:
            ranks.good()
    (alone,), (first, second) = results(tmp_path, 1), results(tmp_path, 2)
    assert first["samples"] == second["samples"] == alone["samples"] == [16] * 6
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=1e-5)


def test_a_rank_that_raises_is_named_by_the_others(tmp_path):
    body = """
    def step(model, batch):
        if group.rank == 1 and trainer.history.steps:
            raise OSError("the disk is full")
        return trainer._supervised(batch)
    trainer = Trainer(model, opt, training_step=step, progress=False)
    trainer.fit(batches, epochs=50)
    """
    with Ranks(3, tmp_path, body) as ranks:
        ends = ranks.end()
    assert all(code == 1 for code, _, _ in ends), ends
    assert "OSError: the disk is full" in ends[1][2]
    for rank in (0, 2):
        assert "RuntimeError" in ends[rank][2] and "rank 1 gave up" in ends[rank][2], ends[rank][2]
        assert "the disk is full" in ends[rank][2]


@pytest.mark.parametrize("after", [1, 3])
def test_ctrl_c_on_one_rank_stops_all_and_another_number_goes_on(tmp_path, after):
    body = """
    if sys.argv[2] == "first":
        asked = []
        def step(model, batch):
            # Once: a second one does not wait for the update under way.
            if group.rank == 1 and trainer.history.steps and not asked:
                asked.append(True)
                signal.raise_signal(signal.SIGINT)
            return trainer._supervised(batch)
        trainer = Trainer(model, opt, training_step=step, folder=folder / "run")
        try:
            trainer.fit(batches, epochs=3)
        except KeyboardInterrupt:
            tell(trainer)
    else:
        trainer = Trainer(model, opt, accumulation_steps=6 // group.size, folder=folder / "run", progress=False)
        trainer.fit(batches, epochs=3, resume=True)
        tell(trainer)
    """
    with Ranks(2, tmp_path, body, str(tmp_path), "first") as ranks:
        ends = ranks.end()
    first, second = results(tmp_path, 2)
    assert 1 <= len(first["losses"]) < 18 and first["losses"] == second["losses"]
    assert "stopped; everything is kept in" in ends[0][2] and "stopped;" not in ends[1][2], ends
    with Ranks(after, tmp_path, body, str(tmp_path), "again") as ranks:
        ranks.good()
    resumed = results(tmp_path, after)
    assert all(rank["losses"] == resumed[0]["losses"] for rank in resumed)
    assert resumed[0]["losses"][: len(first["losses"])] == first["losses"]
    assert resumed[0]["epochs"][-1]["epoch"] == 3


def test_a_killed_rank_is_named_and_the_checkpoint_goes_on(tmp_path):
    body = """
    trainer = Trainer(model, opt, folder=folder / "run", progress=False)
    trainer.fit(batches, epochs=10_000)
    """
    with Ranks(2, tmp_path, body) as ranks:
        deadline = time.monotonic() + LIMIT
        while not (tmp_path / "run" / "last.netcl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        ranks.processes[1].send_signal(signal.SIGKILL)
        start = time.monotonic()
        ends = ranks.end()
        assert time.monotonic() - start < 10
    assert ends[0][0] == 1 and ends[1][0] == -signal.SIGKILL, ends
    assert "rank 1 has ended" in ends[0][2], ends[0][2]
    checkpoint = json.dumps(str(tmp_path / "run"))
    body = f"""
    trainer = Trainer(model, opt, progress=False)
    trainer._resume({checkpoint})
    done = trainer._loop.epochs
    trainer.fit(batches, epochs=1)
    assert trainer._loop.epochs == done + 1 > 1
    """
    with Ranks(1, tmp_path, body) as ranks:
        ranks.good()


def test_the_example_learns_on_two_ranks(tmp_path):
    checkpoint = str(tmp_path / "state.netcl")
    with Ranks(2, tmp_path, "", "cpu", checkpoint, script=EXAMPLES / "distributed.py") as ranks:
        first, second = ranks.good()
    assert float(first.split()[-1]) > 0.93 and second == "", first
    assert Path(checkpoint).exists()


def test_a_captured_step_exchanges_gradients_at_every_replay(tmp_path):
    body = """
    from netcl.nn import functional as F
    from netcl.runtime import capture

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        group.sync_grads(model.parameters())
        opt.step()
        opt.zero_grad()
        return loss

    for parameter in model.parameters():
        group.broadcast(parameter)
    run, losses = capture(step) if sys.argv[2] == "captured" else step, []
    for i in range(6):
        own = slice(16 * i + 8 * group.rank, 16 * i + 8 * group.rank + 8)
        batch = netcl.Tensor.from_host(queue, x[own]), netcl.IndexTensor.from_host(queue, y[own])
        losses.append(group.all_reduce(run(*batch).detach(), "mean").item())
    weights = [parameter.to_host().tolist() for parameter in model.parameters()]
    (folder / f"{sys.argv[2]}-{group.rank}.json").write_text(json.dumps([losses, weights]))
    if sys.argv[2] == "captured":
        assert run.recordings == 1, run.recordings
    """
    for way in ("eager", "captured"):
        with Ranks(2, tmp_path, body, str(tmp_path), way) as ranks:
            ranks.good()
    eager, captured = ([(tmp_path / f"{way}-{rank}.json").read_text() for rank in range(2)] for way in ("eager", "captured"))
    assert eager[0] == eager[1] == captured[0] == captured[1]
