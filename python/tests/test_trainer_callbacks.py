"""Callbacks as a run calls them, those of users, and TensorBoard's files read by a reader of our own."""

import csv
import json
import struct

import numpy as np
import pytest

from netcl import Tensor
from netcl._netcl.trainer import _rehearse
from netcl.core.device import manager
from netcl.trainer import callbacks


def test_early_stopping_and_checkpoints():
    stopping = callbacks.EarlyStopping("val_loss", patience=2)
    losses = [1.0, 0.5, 0.6, 0.7, 0.8]
    stop, _ = _rehearse(stopping, None, [{"val_loss": loss} for loss in losses])
    assert stop == "val_loss is no better than 0.500000 of epoch 2, for 2 epochs"
    assert (stopping.best, stopping.best_epoch) == (0.5, 2)
    again = callbacks.EarlyStopping("val_loss", patience=2)
    again.load_state_dict(stopping.state_dict())
    assert again.best == 0.5
    checkpoint = callbacks.ModelCheckpoint("accuracy", every=2)
    _, kept = _rehearse(checkpoint, None, [{"accuracy": value} for value in (0.5, 0.4, 0.6)])
    assert kept == ["best", "last", "epoch-0002", "last", "best", "last"]
    assert (checkpoint.best, checkpoint.best_epoch) == (0.6, 3)
    with pytest.raises(ValueError, match='has no "val_loss"; it has loss') as caught:
        _rehearse(callbacks.Checkpoint(), None, [{"loss": 1.0}])
    assert caught.value.__notes__ == ["netcl.trainer: in the callback Checkpoint"]
    with pytest.raises(ValueError, match="patience is 0"):
        callbacks.EarlyStopping(patience=0)
    with pytest.raises(ValueError, match='there is no mode "up"'):
        callbacks.Checkpoint(mode="up")


def test_logs(tmp_path):
    epochs = [{"loss": 0.75}, {"loss": 0.5, "val_loss": 0.25}]
    _rehearse(callbacks.CSVLogger(tmp_path / "a" / "log.csv"), None, epochs)
    rows = list(csv.DictReader((tmp_path / "a" / "log.csv").open()))
    assert [row["val_loss"] for row in rows] == ["", "0.25"] and rows[1]["steps"] == "4"
    _rehearse(callbacks.JSONLines(tmp_path / "log.jsonl"), None, epochs)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["step", "step", "epoch"] * 2
    assert lines[-1]["values"] == epochs[1]
    rates = callbacks.LearningRateLog()
    _rehearse(rates, None, epochs)
    assert rates.rates == [(1, 0.1), (3, 0.05)]
    with pytest.raises(OSError, match="log.csv") as caught:
        _rehearse(callbacks.JSONLines(tmp_path / "a" / "log.csv" / "x"), None, epochs)
    assert "JsonLines" in caught.value.__notes__[0]


def test_callbacks_that_users_write():
    seen = []

    class Mine(callbacks.Callback):
        def __init__(self, goal):
            self.goal = goal

        def on_fit_begin(self, trainer):
            seen.append(trainer)

        def on_epoch_begin(self, trainer, epoch):
            seen.append(epoch)

        def on_step_end(self, trainer, step):
            seen.append((step["step"], step["samples"]))

        def on_epoch_end(self, trainer, epoch):
            if epoch["accuracy"] > self.goal:
                return f"reached in epoch {epoch['epoch']}"

        def on_fit_end(self, trainer):
            seen.append("end")

        def state_dict(self):
            return {"goal": self.goal}

        def load_state_dict(self, state):
            self.goal = state["goal"]

    stop, _ = _rehearse(Mine(0.5), "the trainer", [{"accuracy": 0.4}, {"accuracy": 0.6}])
    assert stop == "reached in epoch 2"
    assert seen == ["the trainer", 1, (1, 4), (2, 4), 2, (3, 4), (4, 4), "end"]

    class Partly:
        """Not derived from ours, and with one of the methods."""

        def on_epoch_end(self, trainer, epoch):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        _rehearse(Partly(), None, [{}])
    assert caught.value.__notes__ == ["netcl.trainer: in the callback Partly"]
    _rehearse(callbacks.Callback(), None, [{}])

    class Louder(callbacks.EarlyStopping):
        def on_epoch_end(self, trainer, epoch):
            seen.append(self.best)

    seen.clear()
    assert _rehearse(Louder(patience=1), None, [{"val_loss": 1.0}, {"val_loss": 2.0}])[0].startswith("val_loss is no better")
    assert seen == [1.0, 1.0]


def test_functions_are_callbacks():
    events = []

    def watch(trainer, event, value):
        events.append((event, value if event == "epoch_begin" else value and sorted(value)))
        return "enough" if event == "epoch_end" else None

    assert _rehearse(watch, None, [{"loss": 1.0}]) == ("enough", [])
    step = ("step_end", ["epoch", "loss", "lr", "samples", "step"])
    end = ("epoch_end", ["epoch", "loss", "samples", "seconds", "steps"])
    assert events == [("fit_begin", None), ("epoch_begin", 1), step, step, end, ("fit_end", None)]

    def broken(trainer, event, value):
        raise OSError("full")

    with pytest.raises(OSError, match="full") as caught:
        _rehearse(broken, None, [])
    assert caught.value.__notes__[0].endswith("broken")
    with pytest.raises(TypeError, match="int is neither"):
        _rehearse(3, None, [])


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """The fields of a protobuf message as (number, value)."""
    found, at = [], 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
            continue
        length = {1: 8, 5: 4}.get(key & 7) or varint()
        found.append((key >> 3, data[at : at + length]))
        at += length
    return found


def values(folder):
    """The values of all events by tag and step."""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            content = data[at + 12 : at + 12 + length]
            assert struct.unpack_from("<I", data, at + 8)[0] == masked_crc(data[at : at + 8])
            assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc(content)
            at += 16 + length
            event = dict(fields(content))
            for _, value in fields(event.get(5, b"")):
                value = dict(fields(value))
                found[value[1].decode(), event[2]] = value
    return found


def test_tensorboard_as_a_callback(tmp_path):
    board = callbacks.TensorBoard(tmp_path, weights=2, gradients=3)
    _rehearse(board, None, [{"loss": 0.75}, {"loss": 0.5}])
    found = values(tmp_path)
    assert struct.unpack("<f", found["epoch/loss", 4][2]) == (0.5,)
    assert struct.unpack("<f", found["step/loss", 2][2]) == (0.5,)
    assert ("weights/weight", 4) in found and ("weights/weight", 2) not in found
    assert ("gradients/bias", 3) in found and ("model", 0) in found


def test_tensorboard_by_hand(tmp_path):
    with callbacks.TensorBoard(tmp_path) as board:
        board.add_scalar("loss", 0.5, 1)
        board.add_scalar("loss", 0.25, global_step=2)
        numbers = Tensor.from_host(manager.default("cpu").queue, np.arange(8, dtype=np.float32))
        board.add_histogram("numbers", numbers, 1)
        board.add_text("about", "a *run*")
        grey = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
        board.add_image("grey", grey, 1, dataformats="HW")
        board.add_image("colours", np.zeros((3, 2, 2), np.uint8), 1)
        for image, formats, error in [
            (grey, "CHW", "is not CHW"),
            (grey, "WH", "there is no format"),
            (np.zeros((2, 2), int), "HW", "uint8 or floats"),
            (np.zeros((2, 2, 2), np.uint8), "CHW", "2 channels"),
        ]:
            with pytest.raises((TypeError, ValueError), match=error):
                board.add_image("wrong", image, 1, formats)
    found = values(tmp_path)
    assert struct.unpack("<f", found["loss", 2][2]) == (0.25,)
    histogram = dict(fields(found["numbers", 1][5]))
    assert [struct.unpack("<d", histogram[field])[0] for field in (1, 2, 3, 4)] == [0, 7, 8, 28]
    assert sum(np.frombuffer(histogram[7])) == 8
    grey = dict(fields(found["grey", 1][4]))
    assert (grey[1], grey[2], grey[3], grey[4][:4]) == (2, 3, 1, b"\x89PNG")
    assert b"a *run*" in found["about", 0][8]
