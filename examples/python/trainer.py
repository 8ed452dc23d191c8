"""A network for images through the trainer: capture, schedule, metrics, checkpoints, a report.

    python examples/python/trainer.py [cpu|gpu] [--data digits|fashion-mnist|cifar-10] [--model cnn|resnet18] [--epochs 10]

Run it again after Ctrl+C to go on.
"""

from __future__ import annotations

import argparse
import time

import netcl
from netcl import nn, optim
from netcl.data import DataLoader
from netcl.data.augment import Compose, Normalize, RandomCrop, RandomHorizontalFlip
from netcl.data.dataset import ImageDataset
from netcl.trainer import Trainer


def cnn(channels: int, side: int, classes: int) -> nn.Sequential:
    """Two convolutions with normalisation and pooling, two linear layers: the network of ``netcl train --model cnn``."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * (side // 4) ** 2, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def main(arguments: list[str] | None = None) -> float:
    """The accuracy on the test images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="auto")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", choices=["cnn", "resnet18"], default="cnn")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--augment", action="store_true", help="shift and mirror the training images")
    parser.add_argument("--folder")
    given = parser.parse_args(arguments)

    train, test = ImageDataset(given.data), ImageDataset(given.data, split="test")
    channels, side, _ = train[0][0].shape
    normal = [Normalize([0.3] * channels, [0.35] * channels)]
    changes = [RandomCrop(side, padding=1 if side < 32 else 4), RandomHorizontalFlip()] if given.augment else []
    size = given.batch_size
    loader = DataLoader(train, size, shuffle=True, num_workers=2, transforms=Compose([*changes, *normal]))
    tested = DataLoader(test, 256, num_workers=2, transforms=Compose(normal))

    netcl.manual_seed(0)
    with netcl.device(given.device):
        classes = len(train.classes)
        if given.model == "cnn":
            model: nn.Module = cnn(channels, side, classes)
        else:
            model = nn.ResNet18(num_classes=classes, in_channels=channels)
        optimizer = optim.AdamW(model.parameters(), lr=given.lr, weight_decay=0.01)
        schedule = optim.OneCycleLR(optimizer, max_lr=given.lr, total_steps=given.epochs * len(loader))
        trainer = Trainer(model, optimizer, schedule=schedule, metrics=["accuracy"], folder=given.folder)
        start = time.perf_counter()
        history = trainer.fit(loader, tested, epochs=given.epochs, resume=given.folder is not None)
    accuracy = history["val_accuracy"][-1]
    print(f"{time.perf_counter() - start:.1f} s")
    print(f"test accuracy {accuracy:.4f}")
    if given.folder:
        print("report:", trainer.report(f"{given.folder}/report.html"))
    return accuracy


if __name__ == "__main__":
    main()
