"""The trainer against loops written by hand, and what it says when something is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import netcl
from netcl import nn, optim
from netcl.nn import functional as F
from netcl.trainer import Trainer


def data(batches=6, size=8, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(batches * size - 3, 4)).astype("float32")
    y = (x[:, 0] > x[:, 1]).astype("int64") + (x[:, 2] > 0.5)
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def network(queue=None, dropout=0.2):
    netcl.manual_seed(5)
    return nn.Sequential(nn.Linear(queue, 4, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(queue, 16, 3))


def weights(model):
    return {name: value.to_host().copy() for name, value in model.named_parameters()}


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def by_hand(model, opt, batches, epochs, schedule=None):
    losses = []
    for _ in range(epochs):
        for x, y in batches:
            loss = F.cross_entropy(model(netcl.Tensor.from_host(model[0].weight.queue, x)), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
        if schedule:
            schedule.step()
    return losses


def test_fit_is_the_loop_that_one_would_write():
    batches = data()
    first, second = network(), network()
    opt = optim.Adam(first.parameters(), lr=0.01)
    netcl.manual_seed(1)
    losses = by_hand(first, opt, batches, 3, optim.StepLR(opt, 1, 0.5))
    opt = optim.Adam(second.parameters(), lr=0.01)
    netcl.manual_seed(1)
    trainer = Trainer(second, opt, schedule=optim.StepLR(opt, 1, 0.5), progress=False)
    history = trainer.fit(batches, epochs=3)
    assert [step["loss"] for step in history.steps] == losses
    assert same(weights(first), weights(second))
    assert trainer._loop.eager is None
    assert trainer._single.recordings == 2, "the last batch has another shape"


def test_a_second_fit_goes_on():
    model = network(dropout=0.0)
    trainer = Trainer(model, optim.SGD(model.parameters(), lr=0.1), progress=False)
    trainer.fit(data(), epochs=2)
    history = trainer.fit(data(), epochs=3)
    assert [epoch["epoch"] for epoch in history.epochs] == [1, 2, 3, 4, 5]
    assert history["loss"][-1] < history["loss"][0]
    with pytest.raises(KeyError, match="there is"):
        history["acuracy"]


@pytest.mark.parametrize("precision", [False, "bfloat16", True])
def test_resume_gives_the_same_bits(tmp_path, precision):
    batches = data()

    def trainer(folder):
        model = network()
        netcl.manual_seed(2)
        opt = optim.AdamW(model.parameters(), lr=0.01)
        return Trainer(
            model,
            opt,
            mixed_precision=precision,
            grad_clip=1.0,
            accumulation_steps=2,
            ema=0.9,
            schedule=optim.CosineAnnealingLR(opt, 4),
            folder=folder,
            progress=False,
        )

    whole = trainer(tmp_path / "whole")
    whole.fit(batches, batches[:2], epochs=4)
    first = trainer(tmp_path / "parts")
    first.fit(batches, batches[:2], epochs=2)
    second = trainer(tmp_path / "parts")
    history = second.fit(batches, batches[:2], epochs=4, resume=True)
    assert same(weights(whole.model), weights(second.model))
    assert history.steps == whole.history.steps
    assert history["val_loss"] == whole.history["val_loss"]
    again = trainer(tmp_path / "parts")
    again.fit(batches, epochs=4, resume=tmp_path / "parts")  # nothing is left to do
    assert same(weights(whole.model), weights(again.model))


def test_a_task_of_ones_own_with_dict_batches():
    model = nn.Linear(2, 1)

    def step(model, batch):
        predictions = model(batch["x"])
        return {"loss": F.l1_loss(predictions, batch["y"]), "predictions": predictions, "targets": batch["y"]}

    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 2))
    batches = [{"x": x, "y": x.sum(1, keepdims=True)}]
    trainer = Trainer(model, optim.Adam(model.parameters(), 0.05), training_step=step, progress=False)
    history = trainer.fit(batches, epochs=100)
    assert history["loss"][-1] < 0.05
    assert trainer.evaluate(batches)["loss"] < 0.05
    assert trainer._loop.eager is None


def test_a_derived_trainer_and_models_of_two_inputs():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(4, 3)

        def forward(self, x, z):
            return self.a(x) + self.b(z)

    class Doubled(Trainer):
        def training_step(self, batch):
            x, z, y = batch
            return F.mse_loss(self.model(x, z), y) * 2.0

    rng = np.random.default_rng(0)
    batch = tuple(rng.normal(size=(16, n)).astype("float32") for n in (2, 4, 3))
    netcl.manual_seed(0)
    model = Both()
    plain = Trainer(model, optim.SGD(model.parameters(), 1e-9), loss_fn=F.mse_loss, progress=False)
    twice = Doubled(model, optim.SGD(model.parameters(), 1e-9), progress=False)
    once = plain.fit([batch] * 4).steps[0]["loss"]
    assert twice.fit([batch] * 4).steps[0]["loss"] == pytest.approx(2 * once)


def test_language_models_and_predict():
    netcl.manual_seed(0)
    model = nn.GPT(vocab_size=11, block_size=8, n_layer=1, n_head=2, n_embd=16)
    tokens = np.arange(33) % 11
    x = np.stack([tokens[i : i + 8] for i in range(24)])
    y = np.stack([tokens[i + 1 : i + 9] for i in range(24)])
    trainer = Trainer(model, optim.AdamW(model.parameters(), lr=1e-2), progress=False)
    history = trainer.fit([(x, y)] * 5, epochs=6)
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert trainer.predict([x[:3]]).shape == (3, 8, 11)


def test_the_report_is_one_page_of_its_own(tmp_path):
    model = network(dropout=0.0)
    trainer = Trainer(model, optim.SGD(model.parameters(), 0.1), metrics=["accuracy"], progress=False)
    trainer.fit(data(), data()[:2], epochs=2)
    page = trainer.report(tmp_path / "run.html", "<mine>").read_text()
    assert "val_accuracy" in page and "Linear" in page and "<mine>" not in page
    assert "src=\"http" not in page and "<link" not in page
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "lr", "samples_per_second"} <= set(trainer.history.epochs[0])


def test_find_lr_puts_everything_back():
    model = network(dropout=0.1)
    trainer = Trainer(model, optim.Adam(model.parameters(), lr=0.01), progress=False)
    trainer.fit(data())
    before = weights(model)
    rate, points = trainer.find_lr(data(), 1e-5, 10.0, 40)
    assert 1e-5 <= rate <= 10.0 and len(points) > 10
    assert same(before, weights(model)) and trainer.optimizer.lr == 0.01
    with pytest.raises(ValueError, match="start < end"):
        trainer.find_lr(data(), 1.0, 0.1)


def test_a_loss_that_is_not_finite_says_where():
    class Logs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(netcl.autograd.log(x))

    netcl.manual_seed(0)
    batches = [(np.abs(x) + 0.1, y) for x, y in data(8)]
    model = Logs()
    Trainer(model, optim.SGD(model.parameters(), 0.1), progress=False).fit(batches[:5])
    good = weights(model)
    netcl.manual_seed(0)
    batches[5] = (-batches[5][0], batches[5][1])
    model = Logs()
    with pytest.raises(RuntimeError, match=r"(?s)NaN at step 6 .*batch 6.*log.*test_trainer.py"):
        Trainer(model, optim.SGD(model.parameters(), 0.1), progress=False).fit(batches)
    assert same(good, weights(model)), "the update was skipped"


def test_a_run_goes_on_after_a_loss_that_was_not_finite():
    model = network(dropout=0.0)
    trainer = Trainer(model, optim.SGD(model.parameters(), 0.1), progress=False)
    spoilt = data(20)
    spoilt[10] = (np.full_like(spoilt[10][0], np.nan), spoilt[10][1])
    with pytest.raises(RuntimeError, match="step 11 "):
        trainer.fit(spoilt)
    history = trainer.fit(data(20))
    assert all(np.isfinite(step["loss"]) for step in history.steps)
    assert history.steps[-1]["loss"] < history.steps[0]["loss"]


def test_a_step_that_cannot_be_captured_runs_and_says_why(capsys):
    model = nn.Linear(4, 3)
    seen = []

    def step(model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        seen.append(loss.item())
        return loss

    trainer = Trainer(model, optim.SGD(model.parameters(), 0.1), training_step=step)
    history = trainer.fit(data(), epochs=2)
    assert len(history.steps) == 12 and trainer._loop.eager
    assert "not captured" in capsys.readouterr().err
    assert seen[-1] == pytest.approx(history.steps[-1]["loss"])


def test_a_layer_that_is_frozen_between_epochs_stays_as_it_is():
    model = network(dropout=0.0)
    trainer = Trainer(model, optim.SGD(model.parameters(), 0.1), progress=False)
    trainer.fit(data(), epochs=2)
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    frozen, free = model[0].weight.to_host().copy(), model[3].weight.to_host().copy()
    trainer.fit(data(), epochs=1)
    assert np.array_equal(frozen, model[0].weight.to_host())
    assert not np.array_equal(free, model[3].weight.to_host())


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: Trainer(None, None), TypeError, "Module is needed"),
        (lambda: Trainer(nn.Linear(2, 2), None), TypeError, "netcl.optim"),
        (lambda: Trainer(nn.ReLU(), optim.SGD(nn.Linear(1, 1).parameters(), 0.1)), ValueError, "no parameters"),
        (
            lambda: Trainer(nn.Linear(4, 3), optim.SGD(nn.Linear(4, 3).parameters(), 0.1)),
            ValueError,
            "holds none of the model's parameters; make it from this model",
        ),
        (lambda: make(accumulation_steps=0), ValueError, "at least 1 batch"),
        (lambda: make(grad_clip=-1.0), ValueError, "above 0"),
        (lambda: make(mixed_precision="int8"), ValueError, "bfloat16"),
        (lambda: make(schedule=3), TypeError, "no step"),
        (lambda: make(schedule_every="day").fit(data()), ValueError, '"step" or "epoch"'),
        (lambda: make().fit(data(), epochs=0), ValueError, "1 or more"),
        (lambda: make().fit(3), TypeError, "iterable of batches"),
        (lambda: make().fit([3]), TypeError, "no tensors"),
        (lambda: make().fit([np.ones((3, 4))]), TypeError, "training_step"),
        (lambda: make().fit(data(), resume=True), ValueError, "folder"),
        (lambda: make().fit(data(), resume="nowhere.netcl"), FileNotFoundError, "nowhere"),
        (lambda: make(training_step=lambda model, batch: 3.0).fit(data()), TypeError, "return the loss"),
    ],
)
def test_wrong_arguments_are_named(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


def make(**settings):
    model = nn.Linear(4, 3)
    return Trainer(model, optim.SGD(model.parameters(), 0.1), progress=False, **settings)


SCRIPT = """
    import sys, time
    import numpy as np, netcl
    from netcl import nn, optim
    from netcl.data import DataLoader, TensorDataset
    from netcl.trainer import Trainer

    folder, slow = sys.argv[1], float(sys.argv[2])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).astype("int64")), batch_size=8, shuffle=True, seed=3)
    netcl.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    netcl.manual_seed(1)

    def wait(*event):
        if slow:
            print("going", flush=True)
            time.sleep(slow)

    class Slow(Trainer):
        def _step_done(self, step):
            super()._step_done(step)
            wait()

    trainer = Slow(model, optim.Adam(model.parameters(), 0.01), folder=folder)
    trainer.fit(loader, epochs=4, resume=True)
    print(repr([p.to_host().tobytes().hex() for p in model.parameters()]))
"""


def run(script, folder, slow):
    command = [sys.executable, "-c", textwrap.dedent(script), str(folder), str(slow)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_interrupted_and_killed_runs_end_with_the_same_bits(tmp_path):
    expected, _ = run(SCRIPT, tmp_path / "whole", 0).communicate(timeout=120)
    assert expected
    for number, (how, after) in enumerate([(signal.SIGINT, 3), (signal.SIGKILL, 13), (signal.SIGINT, 20)]):
        folder = tmp_path / str(number)
        process = run(SCRIPT, folder, 0.01)
        for _ in range(after):
            process.stdout.readline()
        os.kill(process.pid, how)
        _, said = process.communicate(timeout=120)
        assert process.returncode != 0
        if how is signal.SIGINT:
            assert "resume=" in said and "KeyboardInterrupt" in said, said
        resumed, said = run(SCRIPT, folder, 0).communicate(timeout=120)
        assert resumed == expected, said


def test_an_optimizer_of_a_part_of_the_model_is_enough():
    model = network()
    for frozen in (False, True):
        model[0].weight.requires_grad = not frozen
        Trainer(model, optim.SGD([*nn.Linear(2, 2).parameters(), model[3].bias], 0.1), progress=False)
        assert [p.requires_grad for p in model.parameters()] == [not frozen, True, True, True]
    opt = optim.SGD(model.parameters(), 0.1)
    Trainer(model.half(), opt, progress=False)


@pytest.mark.parametrize("has_folder", [False, True])
def test_an_interrupted_run_is_kept_where_its_folder_cannot_be_written(tmp_path, monkeypatch, has_folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(netcl.trainer.trainer.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "interrupted.netcl").mkdir()  # a file that cannot be written, whoever runs the test
    model = network(dropout=0.0)
    opt = optim.SGD(model.parameters(), 0.1)

    class Interrupted(Trainer):
        def _step_done(self, step):
            super()._step_done(step)
            if has_folder:
                (tmp_path / "run" / "last.netcl").mkdir(parents=True, exist_ok=True)
            os.kill(os.getpid(), signal.SIGINT)

    trainer = Interrupted(model, opt, progress=False, folder=tmp_path / "run" if has_folder else None)
    with pytest.warns(RuntimeWarning, match="the checkpoint is"), pytest.raises(KeyboardInterrupt):
        trainer.fit(data(), epochs=2)
    (kept,) = (tmp_path / "temporary").glob("netcl-*/interrupted.netcl")
    other = network(dropout=0.0)
    history = Trainer(other, optim.SGD(other.parameters(), 0.1), progress=False).fit(data(), epochs=2, resume=kept)
    assert len(history.steps) == 2 * len(data())
