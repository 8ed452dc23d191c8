"""Models over several devices and over ranks: equal to one device with the whole batch."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl import IndexTensor, Tensor, amp, autograd as ag, distributed as dist, nn, optim
from netcl.core.device import manager
from netcl.io import load_model, save_model
from netcl.nn import functional as F
from netcl.runtime import capture

SELECTORS: list[Any] = [s if s == "cpu" else int(s) for s in find_device_selectors()]
DEVICES = [["cpu", "cpu"], SELECTORS, [*SELECTORS[1:], "cpu"]]
CPU = manager.default("cpu").queue
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(11, 2, 5, 5)), rng.normal(size=(11, 3))


def tensor(queue: Any, values: np.ndarray) -> Tensor:
    return Tensor.from_host(queue, values, dtype=str(values.dtype))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(CPU, 50, 7), nn.Tanh(), nn.Linear(CPU, 7, 3))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(CPU, 2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(CPU, 36, 3))


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(CPU, 2, 4, 3), nn.BatchNorm2d(CPU, 4), nn.ReLU(), nn.Flatten(), nn.Linear(CPU, 36, 6),
        nn.BatchNorm1d(CPU, 6), nn.Linear(CPU, 6, 3),
    )


def made(build: Callable[[], nn.Module], dtype: str = "float64") -> nn.Module:
    """The same model every time."""
    model = build().to(dtype)
    state = model.state_dict()
    for at, name in enumerate(name for name, _ in model.named_parameters()):
        state[name] = (np.random.default_rng(at).normal(size=state[name].shape) / 3).astype(state[name].dtype)
    model.load_state_dict(state)
    return model


def train(model: nn.Module, part: slice = slice(None), sync: Callable[[], None] = lambda: None) -> dict[str, np.ndarray]:
    """The state after some steps."""
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    queue, dtype = model.parameters()[0].queue, model.parameters()[0].dtype
    for step in range(3):
        x = tensor(queue, (X[part] + step).astype(dtype))
        opt.zero_grad()
        F.mse_loss(model(x), tensor(queue, Y[part].astype(dtype))).backward()
        sync()
        opt.step()
    return model.state_dict()


def close(a: dict[str, np.ndarray], b: dict[str, np.ndarray], tolerance: float = 1e-12) -> None:
    assert list(a) == list(b)
    for name in a:
        scale = np.abs(b[name]).max() + 1e-30
        np.testing.assert_array_less(np.abs(a[name] - b[name]).max() / scale, tolerance, err_msg=name)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def on_ranks(size: int, run: Callable[[Any], Any]) -> list[Any]:
    """What a function gives on ranks that are threads."""
    results: list[Any] = [None] * size

    def start(group: Any) -> None:
        try:
            results[group.rank] = run(group)
        except BaseException as error:
            results[group.rank] = error

    threads = [threading.Thread(target=start, args=(group,), daemon=True) for group in dist.threads(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


# ---- devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", DEVICES, ids=str)
@pytest.mark.parametrize("build", [mlp, cnn])
def test_devices_train_as_one_does(build: Callable[[], nn.Module], devices: list[Any]) -> None:
    alone = train(made(build))
    for weights in (None, [k + 0.5 for k in range(len(devices))]):
        runs = [train(dist.DataParallel(made(build), devices, weights)) for _ in range(2)]
        close(runs[0], alone)
        same(runs[0], runs[1])


def updated(model: Any, captured: bool, sync: Callable[[], None] = lambda: None) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and state after updates as written, replays, an update between replays, and a replay."""
    opt = optim.AdamW(model.parameters(), lr=0.05)
    queue = model.parameters()[0].queue

    def update(x: Tensor, y: Tensor) -> Tensor:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        sync()
        opt.step()
        return loss

    step = capture(update)
    losses = []
    for at, replays in enumerate([False, False, True, True, True, False, True]):
        inputs = tensor(queue, X + at), tensor(queue, Y * at)
        losses.append((step if replays and captured else update)(*inputs).item())
    assert step.recordings == captured
    return losses, model.state_dict()


@pytest.mark.parametrize("devices", DEVICES, ids=str)
def test_a_captured_step_over_devices_is_the_step(devices: list[Any]) -> None:
    uneven = [k + 0.5 for k in range(len(devices))]
    for wrap in (lambda: dist.DataParallel(made(normed), devices), lambda: dist.DataParallel(made(mlp), devices, uneven)):
        (losses, state), (eager_losses, eager_state) = updated(wrap(), True), updated(wrap(), False)
        assert losses == eager_losses
        same(state, eager_state)
    words = IndexTensor.from_host(CPU, np.arange(11) % 5)
    model = dist.DataParallel(nn.Embedding(CPU, 5, 3), devices)
    np.testing.assert_array_equal(capture(model)(words.to(model.queues[0])).to_host(), model.module(words.to(model.queues[0])).to_host())
    measured = dist.DataParallel(made(mlp), devices, "measured")
    with pytest.raises(RuntimeError, match="run one batch"):
        capture(measured)(tensor(measured.queues[0], X))
    synchronised = dist.DataParallel(made(normed), devices, sync_batch_norm=True)
    with pytest.raises(RuntimeError, match="a rank for each device"):
        capture(synchronised)(tensor(synchronised.queues[0], X))


def test_a_captured_function_moves_tensors_between_devices() -> None:
    home, *others = [manager.default(selector).queue for selector in SELECTORS] * 2

    def around(x: Tensor) -> Tensor:
        for queue in others:
            x = ag.tanh((x * 1.5).to(queue)) + 0.25
        return x.to(home)

    def gradient(x: Tensor) -> Tensor:
        return ag.grad(ag.sum(around(weight * x)), [weight])[0]

    weight = tensor(home, np.linspace(-1, 1, 5)).requires_grad_()
    step, slope = capture(around), capture(gradient)
    for at in range(3):
        x = tensor(home, X[at])
        np.testing.assert_array_equal(step(x).to_host(), around(x).to_host())
        np.testing.assert_array_equal(slope(x).to_host(), gradient(x).to_host())


def test_two_devices_of_one_driver() -> None:
    code = (
        "from test_distributed_data_parallel import *\n"
        "names = [device.name for _, device in manager.discover()]\n"
        "pocl = [at for at, (platform, _) in enumerate(manager.discover()) if 'Portable' in platform.name]\n"
        "assert len(pocl) == 2, names\n"
        "close(train(dist.DataParallel(made(mlp), pocl)), train(made(mlp)))\n"
        "test_a_captured_step_over_devices_is_the_step(pocl[::-1])\n"
        "print('equal')\n"
    )
    if not any("Portable" in platform for platform in _platforms()):
        pytest.skip("there is no PoCL here")
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=os.path.dirname(__file__), env={**os.environ, "POCL_DEVICES": "basic basic"}, text=True,
        capture_output=True, timeout=120,
    )
    assert child.stdout.endswith("equal\n"), child.stdout + child.stderr


def _platforms() -> list[str]:
    return [platform.name for platform, _ in manager.discover()]


def test_the_wrapped_model_is_the_model() -> None:
    inner = made(normed)
    model = dist.DataParallel(inner, ["cpu", "cpu"])
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in inner.named_parameters()]
    assert list(model.state_dict()) == list(inner.state_dict())
    assert all(a is b for a, b in zip(model.parameters(), inner.parameters()))
    assert "devices=2" in repr(model) and model.num_parameters() == inner.num_parameters()
    model.eval()
    assert not inner.training and not any(module.training for module in inner.modules())
    x = tensor(CPU, X)
    np.testing.assert_allclose(model(x).to_host(), inner(x).to_host(), rtol=1e-13)
    inner.train()
    assert model.training
    # The first device's statistics count: those of its 6 samples.
    alone = made(normed)
    alone(tensor(CPU, X[:6]))
    model(x)
    np.testing.assert_array_equal(model.state_dict()["1.running_mean"], alone.state_dict()["1.running_mean"])
    assert int(inner[1].num_batches_tracked) == 1
    # Tables are as before, also after an error inside.
    with pytest.raises(ValueError):
        model(tensor(CPU, X[:, :1]))
    assert all(parameter.is_leaf for parameter in inner.parameters())
    twin = copy.deepcopy(model)
    same(twin.state_dict(), model.state_dict())
    assert twin.parameters()[0] is not model.parameters()[0]
    same(train(twin), train(model))


def test_files_load_on_any_number_of_devices(tmp_path: Any) -> None:
    path = tmp_path / "model.netcl"
    two = dist.DataParallel(made(cnn), ["cpu", "cpu"])
    state = train(two)
    save_model(two, path)
    assert type(load_model(path)) is nn.Sequential
    alone = load_model(path, model=made(cnn))
    same(alone.state_dict(), state)
    three = dist.DataParallel(made(cnn), ["cpu"] * 3)
    load_model(path, model=three)
    same(three.state_dict(), state)


class Pairs(nn.Module):
    """Several inputs and results, tied and frozen parameters, one that is not used."""

    def __init__(self) -> None:
        self.first = nn.Linear(CPU, 4, 4)
        self.second = nn.Linear(CPU, 4, 4)
        self.second.weight = self.first.weight
        self.unused = nn.Linear(CPU, 4, 4)
        self.first.bias.requires_grad = False
        self.calls = 0

    def forward(self, a: Tensor, scale: Any = None, *, extra: Any = None) -> Any:
        self.calls += 1
        assert len(extra["rows"]) == a.shape[0]
        hidden = self.second(F.relu(self.first(a) * scale))
        return {"hidden": hidden, "loss": (hidden * hidden).mean(), "rows": (extra["rows"], None, "text")}


@pytest.mark.parametrize("devices", DEVICES, ids=str)
def test_several_inputs_and_results(devices: list[Any]) -> None:
    model = Pairs()
    wrapped = dist.DataParallel(model, devices)
    queue = model.first.weight.queue
    a, scale = rng.normal(size=(9, 4)).astype("float32"), rng.normal(size=(1, 4)).astype("float32")
    rows = np.arange(9)

    def run(called: nn.Module) -> tuple[Any, list[Any]]:
        model.zero_grad()
        out = called(tensor(queue, a), scale=tensor(queue, scale), extra={"rows": rows})
        (out["hidden"] * out["hidden"]).sum().backward()
        return out, [parameter.grad for parameter in model.parameters()]

    alone, expected = run(model)
    assert model.calls == 1
    out, grads = run(wrapped)
    assert wrapped.calls == 1 + len(devices)
    np.testing.assert_allclose(out["hidden"].to_host(), alone["hidden"].to_host(), rtol=1e-5, atol=1e-6)
    assert out["loss"].shape == (len(devices),)
    np.testing.assert_array_equal(out["rows"][0], rows)
    assert out["rows"][1:] == (None, "text")
    for got, wanted in zip(grads, expected):
        assert (got is None) == (wanted is None)
        if wanted is not None:
            np.testing.assert_allclose(got.to_host(), wanted.to_host(), rtol=1e-4, atol=1e-5)
    assert model.unused.weight.grad is None and model.first.bias.grad is None
    # Fewer samples than devices.
    one = wrapped(tensor(queue, a[:1]), scale=tensor(queue, scale), extra={"rows": rows[:1]})
    assert one["hidden"].shape == (1, 4)


def test_accumulation_amp_and_measured_weights() -> None:
    model = dist.DataParallel(made(cnn, "float32"), ["cpu", "cpu"], weights="measured")
    x, y = (tensor(CPU, values.astype("float32")) for values in (X, Y))
    alone = made(cnn, "float32")
    for part in (slice(0, 6), slice(6, 11)):
        (F.mse_loss(model(x[part]), y[part]) * 0.5).backward()
        (F.mse_loss(alone(x[part]), y[part]) * 0.5).backward()
    assert len(model.weights) == 2 and abs(sum(model.weights) - 1) < 0.01
    for got, wanted in zip(model.parameters(), alone.parameters()):
        np.testing.assert_allclose(got.grad.to_host(), wanted.grad.to_host(), rtol=1e-4, atol=1e-6)
    losses = []
    for one in (model, alone):
        opt, scaler = optim.SGD(one.parameters(), lr=0.05), amp.GradScaler(init_scale=8.0)
        opt.zero_grad()
        for _ in range(3):
            with amp.autocast():
                loss = F.mse_loss(one(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        losses.append(float(loss.to_host()))
    assert abs(losses[0] - losses[1]) < 0.02 * abs(losses[1])


def test_wrong_arguments_say_what_to_do() -> None:
    for arguments, text in [
        ({"model": 3}, "netcl.nn.Module"),
        ({"model": mlp(), "devices": []}, "no devices"),
        ({"model": mlp(), "devices": "cpu"}, "list of devices"),
        ({"model": mlp(), "devices": ["cpu", "cpu"], "weights": [1.0]}, "2 shards"),
        ({"model": mlp(), "devices": ["cpu"], "weights": "guessed"}, "measured"),
    ]:
        with pytest.raises((TypeError, ValueError), match=text):
            dist.DataParallel(**arguments)


# ---- ranks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
def test_ranks_train_as_one_device_does(overlap: bool) -> None:
    alone = train(made(cnn))
    ends = [0, 3, 11]

    def run(group: Any) -> dict[str, np.ndarray]:
        model = made(cnn)
        if group.rank == 1:
            nn.init.constant_(model[0].weight, 5.0)  # rank 0's values count
        parallel = dist.DataParallel(model, ["cpu", "cpu"], group=group, overlap=overlap)
        part = slice(ends[group.rank], ends[group.rank + 1])
        parallel.share = (part.stop - part.start) / 11
        return train(parallel, part, parallel.sync_grads)

    ranks = on_ranks(2, run)
    close(ranks[0], alone)
    same(ranks[0], ranks[1])


def test_a_captured_step_over_ranks_is_the_step() -> None:
    def run(captured: bool) -> Callable[[Any], Any]:
        def on_rank(group: Any) -> Any:
            model = dist.DataParallel(made(mlp), ["cpu"], group=group)
            model.share = 0.25 + group.rank / 2
            return updated(model, captured, model.sync_grads)

        return on_rank

    for (losses, state), (eager_losses, eager_state) in zip(on_ranks(2, run(True)), on_ranks(2, run(False))):
        assert losses == eager_losses
        same(state, eager_state)


def test_synchronised_norm_is_that_of_the_whole_batch() -> None:
    alone = train(made(normed))
    ends = [0, 4, 5, 11]

    def run(group: Any) -> dict[str, np.ndarray]:
        model = dist.convert_sync_batchnorm(made(normed), group)
        assert isinstance(model[1], dist.SyncBatchNorm) and isinstance(model[5], dist.SyncBatchNorm)
        parallel = dist.DataParallel(model, ["cpu"], group=group)
        part = slice(ends[group.rank], ends[group.rank + 1])
        parallel.share = (part.stop - part.start) / 11
        return train(parallel, part, parallel.sync_grads)

    ranks = on_ranks(3, run)
    close(ranks[0], alone)
    for rank in ranks[1:]:
        same(rank, ranks[0])


def test_no_sync_accumulates() -> None:
    def run(group: Any) -> list[np.ndarray]:
        model = dist.DataParallel(made(mlp), ["cpu"], group=group)
        x = tensor(CPU, X)
        with model.no_sync():
            model(x[:5]).sum().backward()
        model(x[5:]).sum().backward()
        model.sync_grads()
        return [parameter.grad.to_host() for parameter in model.parameters()]

    alone = made(mlp)
    alone(tensor(CPU, X)).sum().backward()
    for got, wanted in zip(on_ranks(2, run)[1], alone.parameters()):
        np.testing.assert_allclose(got, wanted.grad.to_host(), rtol=1e-12, atol=1e-13)


# ---- the published functions ----------------------------------------------------------------------------------------


def test_shard_batch() -> None:
    x = np.arange(20).reshape(10, 2)
    assert [len(part) for part in dist.shard_batch(x, 3)] == [4, 3, 3]
    np.testing.assert_array_equal(np.concatenate(dist.shard_batch(x, 4)), x)
    parts = dist.shard_batch(tensor(CPU, x.astype("float32")), 2, weights=[4, 1])
    assert [part.shape for part in parts] == [(8, 2), (2, 2)]
    with pytest.raises(ValueError, match="num_shards is 0"):
        dist.shard_batch(x, 0)


@pytest.mark.parametrize("count", [8, 7, 1])
def test_data_parallel_step_is_a_step_of_one_device(count: int, tmp_path: Any) -> None:
    x, y = rng.normal(size=(count, 4)), rng.normal(size=(count, 2))
    source = [nn.Parameter(rng.normal(size=shape), dtype="float64", queue=CPU) for shape in [(4, 2), (2,), (3,)]]
    replicas = dist.prepare_replicas(source, ["cpu", SELECTORS[-1]])
    assert all(parameter.requires_grad for replica in replicas for parameter in replica)
    optimizers = [optim.SGD(replica, lr=0.1) for replica in replicas]
    calls: list[Any] = []

    def forward(queue: Any, x: np.ndarray, y: np.ndarray, params: list[Tensor]) -> tuple[Tensor, ag.Tape]:
        with ag.Tape() as tape:
            out = tensor(queue, x) @ params[0] + params[1]
            loss = F.mse_loss(out, tensor(queue, y))
        return loss, tape

    got = dist.data_parallel_step(
        forward, replicas, optimizers, (x, y), pre_shard_hook=lambda x, y: calls.append(x.shape),
        post_sync_hook=lambda replicas: calls.append(len(replicas)), post_step_hook=calls.append,
    )
    assert calls == [(count, 4), 2, 0, 1]
    losses = dist.data_parallel_step(forward, replicas, optimizers, loader=[(x, y)] * 2, checkpoint=tmp_path / "p.npz")
    alone = [nn.Parameter(parameter.to_host(), dtype="float64", queue=CPU) for parameter in source]
    opt, expected = optim.SGD(alone, lr=0.1), []
    for _ in range(3):
        opt.zero_grad()
        loss, tape = forward(CPU, x, y, alone)
        tape.backward(loss)
        opt.step()
        expected.append(float(loss.to_host()))
    np.testing.assert_allclose([got, *losses], expected, rtol=1e-12)
    for replica in replicas:
        for parameter, wanted in zip(replica, alone):
            np.testing.assert_allclose(parameter.to_host(), wanted.to_host(), rtol=1e-12)
    np.testing.assert_array_equal(np.load(tmp_path / "p.npz")["0"], replicas[0][0].to_host())


def test_sync_grads_and_broadcast_params() -> None:
    models = [made(mlp), made(mlp).to(SELECTORS[-1])]
    for at, model in enumerate(models):
        (model(tensor(model.parameters()[0].queue, X[at : at + 1])).sum()).backward()
    wanted = [sum(m.parameters()[0].grad.to_host() for m in models) / 2]
    models[0].parameters()[3].grad = None
    dist.sync_grads(models)
    for model in models:
        np.testing.assert_allclose(model.parameters()[0].grad.to_host(), wanted[0], rtol=1e-14)
        np.testing.assert_allclose(model.parameters()[3].grad.to_host(), 0.5)
    nn.init.constant_(models[0][1].weight, 3.0)
    dist.broadcast_params(None, models)
    assert (models[1][1].weight.to_host() == 3.0).all()
    with pytest.raises(ValueError, match="no group 2"):
        dist.broadcast_params(None, models, root=2)


# ---- pipelines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("micro_batches", "splits"), [(None, None), (4, [1]), (1, [3]), (20, [2])])
def test_a_pipeline_equals_the_unsplit_model(micro_batches: int | None, splits: list[int] | None) -> None:
    alone = train(made(cnn))
    model = dist.Pipeline(made(cnn), [SELECTORS[-1], "cpu"], micro_batches, splits)
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = model.queues[0]
    for step in range(3):
        opt.zero_grad()
        F.mse_loss(model(tensor(first, X + step)), tensor(CPU, Y)).backward()
        opt.step()
    close(model.state_dict(), alone)
    assert len(model.splits) == 1 and model.module[0].weight.queue == first
    assert model.module[3].weight.queue != first


def test_wrong_pipelines_say_what_to_do() -> None:
    tied = mlp()
    tied[3] = tied[1]
    for arguments, text in [
        ({"model": Pairs(), "devices": ["cpu"]}, "Sequential"),
        ({"model": mlp(), "devices": []}, "list of devices"),
        ({"model": mlp(), "devices": ["cpu", "cpu"], "splits": [1, 2]}, "2 stages"),
        ({"model": mlp(), "devices": ["cpu", "cpu"], "micro_batches": 0}, "num_shards is 0"),
        ({"model": tied, "devices": ["cpu", "cpu"], "splits": [2]}, "share a parameter"),
    ]:
        with pytest.raises((TypeError, ValueError), match=text):
            dist.Pipeline(**arguments)
