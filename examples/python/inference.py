"""Inference from a safetensors file, with weights that somebody else has trained: ``python inference.py [device] [file]``.

Without a file it makes one: a network for the digits that come with netcl.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import netcl
from netcl import nn, optim
from netcl.data import DataLoader, digits
from netcl.data.augment import Normalize
from netcl.io import load_model, save_model
from netcl.nn import functional as F

NORMALIZE = Normalize(0.3, 0.4)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def train(path: Path) -> None:
    """Makes the file. Yours comes from elsewhere: ``netcl inspect FILE`` shows its names and shapes."""
    netcl.manual_seed(0)
    model = network()
    opt = optim.AdamW(model.parameters(), lr=3e-3)
    queue = model[1].weight.queue
    for _ in range(4):
        for x, y in DataLoader(digits(), batch_size=32, shuffle=True, transforms=[NORMALIZE], device_queue=queue, seed=0):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
    save_model(model, path)


def main(device: str = "auto", file: str | None = None) -> float:
    with tempfile.TemporaryDirectory() as folder, netcl.device(device):
        path = Path(file or Path(folder) / "digits.safetensors")
        if file is None:
            train(path)
        # A name or a shape that does not fit is an error that says which; rename= maps names.
        model = load_model(path, model=network()).eval()
        right = count = 0
        for images, labels in DataLoader(digits("test"), batch_size=128, transforms=[NORMALIZE]):
            with netcl.no_grad():
                chances = model(netcl.tensor(images)).softmax(-1)
            guesses = chances.argmax(dim=1).tolist()
            right += sum(guess == label for guess, label in zip(guesses, labels.tolist()))
            count += len(guesses)
    print(f"test accuracy {right / count:.4f}")
    return right / count


if __name__ == "__main__":
    main(*sys.argv[1:])
