"""The trainer over ranks that are threads, divided optimizers, and batch norm over devices."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_distributed_data_parallel import CPU, X, Y, close, made, mlp, normed, on_ranks, same, tensor, train

import netcl
from netcl import distributed as dist, nn, optim
from netcl.trainer import Trainer


def model(rank: int = 0) -> nn.Module:
    built = nn.Sequential(nn.Linear(CPU, 4, 16), nn.ReLU(), nn.Linear(CPU, 16, 3))
    drawn = np.random.default_rng(rank)
    built.load_state_dict({name: drawn.normal(size=value.shape) / 4 for name, value in built.state_dict().items()})
    return built


def batches(count: int = 12, last: int = 5) -> list[Any]:
    drawn = np.random.default_rng(1)
    rows = [8] * (count - 1) + [last]
    return [(drawn.normal(size=(n, 4)).astype("float32"), drawn.integers(0, 3, n)) for n in rows]


def figures(trainer: Trainer) -> tuple[list[float], dict[str, np.ndarray]]:
    losses = [step["loss"] for step in trainer.history.steps]
    return losses, {name: np.asarray(value) for name, value in trainer.model.state_dict().items()}


@pytest.mark.parametrize("sharded", [False, True])
def test_captured_updates_over_ranks_have_the_bits_of_eager_ones(sharded: bool, tmp_path: Path) -> None:
    def run(group: Any, capture: bool) -> Any:
        built = model(group.rank)
        make = dist.ShardedOptimizer if sharded else lambda kind, params, group, **settings: kind(params, **settings)
        optimizer = make(optim.Adam, built.parameters(), group, lr=0.01)

        def step(model: Any, batch: Any) -> Any:
            x, y = batch["x"], batch["y"]
            out = model(x)
            return nn.functional.cross_entropy(out, y), out, y

        folder = tmp_path / f"{capture}"
        trainer = Trainer(
            built, optimizer, training_step=step, metrics=["accuracy"], grad_clip=0.5, capture=capture, progress=False,
            group=group, folder=folder,
        )
        data = [{"x": x, "y": y} for x, y in batches()]
        history = trainer.fit(data, data[:3], epochs=3)
        trainer.save_checkpoint(tmp_path / f"{capture}.netcl")
        recordings = trainer._captured.recordings + trainer._single.recordings
        return *figures(trainer), history["accuracy"], history["val_accuracy"], recordings

    eager = on_ranks(3, lambda group: run(group, False))
    captured = on_ranks(3, lambda group: run(group, True))
    for one, other in zip(eager, captured):
        assert one[0] == other[0] == eager[0][0]
        same(one[1], other[1])
        assert one[2:4] == other[2:4]
        # The last update of each epoch has a shorter batch on one rank and is not captured on any.
        assert (one[4], other[4]) == (0, 1)

    # What three ranks have written, one goes on with.
    alone = Trainer(built := model(), optim.Adam(built.parameters(), lr=0.01), progress=False, grad_clip=0.5)
    alone.fit(batches(), epochs=4, resume=tmp_path / "True.netcl")
    assert [step["loss"] for step in alone.history.steps[:12]] == captured[0][0]


def test_synchronised_norm_in_captured_updates() -> None:
    drawn = np.random.default_rng(3)
    data = [(drawn.normal(size=(12, 4)).astype("float32"), drawn.integers(0, 3, 12)) for _ in range(6)]

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(CPU, 4, 8), nn.BatchNorm1d(CPU, 8), nn.ReLU(), nn.Linear(CPU, 8, 3))

    def run(group: Any) -> Any:
        built = dist.convert_sync_batchnorm(made(network, "float32"), group)
        trainer = Trainer(built, optim.SGD(built.parameters(), lr=0.1), progress=False, group=group)
        rows = 12 // group.size
        trainer.fit([(x[at : at + rows], y[at : at + rows]) for x, y in data for at in range(0, 12, rows)], epochs=2)
        assert trainer._loop.eager is None
        return figures(trainer)

    alone = on_ranks(1, run)[0]
    for losses, state in on_ranks(3, run):
        np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
        close(state, alone[1], 1e-4)


def test_an_error_of_a_rank_in_replays_ends_all(tmp_path: Path) -> None:
    def run(group: Any) -> str:
        class Loader(list[Any]):
            def __iter__(self) -> Any:
                for at, batch in enumerate(super().__iter__()):
                    if at == 20 and group.rank == 1:
                        raise ValueError("the disk is gone")
                    yield batch

        built = model()
        trainer = Trainer(built, optim.SGD(built.parameters(), lr=0.1), progress=False, group=group)
        with pytest.raises(Exception) as raised:
            trainer.fit(Loader(batches(40, 8)), epochs=2)
        return str(raised.value)

    ends = on_ranks(2, run)
    assert "the disk is gone" in ends[1] and "rank 1 gave up" in ends[0], ends


def test_divided_optimizers() -> None:
    def run(group: Any, shard: bool, before: Any = None) -> Any:
        built = made(mlp)
        if shard:
            optimizer = dist.ZeroRedundancyOptimizer(built.parameters(), optim.Adam, group, lr=0.01)
        else:
            optimizer = optim.Adam(built.parameters(), lr=0.01)
        if before is not None:
            optimizer.load_state_dict(before)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(built(tensor(CPU, X)), tensor(CPU, Y)).backward()
            group.sync_grads(built.parameters())
            optimizer.step(max_norm=0.1)
        own = len(optimizer.state_dict())
        return {name: np.asarray(value) for name, value in built.state_dict().items()}, optimizer.state_dict(gather=True), own

    before = None
    for size in (2, 3):  # three ranks go on with the state of two
        whole = on_ranks(size, lambda group: run(group, False, before))[0]
        for got, state, own in on_ranks(size, lambda group: run(group, True, before)):
            same(got, whole[0])
            same(state, whole[1])
            assert own < len(state)
        before = state

    with pytest.raises(TypeError, match="a class such as netcl.optim.Adam, not a Adam"):
        dist.ShardedOptimizer(optim.Adam([netcl.Tensor.from_host(CPU, np.ones(2))]), [])
    with pytest.raises(TypeError, match="group is a str"):
        dist.ShardedOptimizer(optim.Adam, model().parameters(), "all")


def test_norm_over_devices_is_that_of_the_whole_batch() -> None:
    alone = train(made(normed))
    for weights in (None, [1.0, 0.0, 2.0]):
        wrapped = dist.DataParallel(made(normed), ["cpu", "cpu", "auto"], weights, sync_batch_norm=True)
        twin = copy.deepcopy(wrapped)
        got = train(wrapped)
        close(got, alone)
        same(got, train(twin))
    # A part that fails ends the others, and the next batch runs.
    with pytest.raises(ValueError, match="in_channels=2"):
        wrapped(tensor(CPU, np.ones((6, 5, 5, 5))))
    with pytest.raises(RuntimeError, match="in a thread for each"):
        netcl.runtime.capture(lambda x: wrapped(x))(tensor(CPU, X))


def test_measured_weights_are_kept_in_checkpoints(tmp_path: Path) -> None:
    def trainer(weights: Any) -> Trainer:
        wrapped = dist.DataParallel(model(), ["cpu", "cpu"], weights)
        return Trainer(wrapped, optim.SGD(wrapped.parameters(), lr=0.1), folder=tmp_path, progress=False)

    first = trainer("measured")
    first.fit(batches(), epochs=1)
    kept = first.model.weights
    assert len(kept) == 2
    resumed = trainer("measured")
    resumed._resume(True)
    assert resumed.model.weights == kept
    given = trainer([1.0, 3.0])
    given._resume(True)
    assert given.model.weights == [1.0, 3.0]
