"""A convolutional network reads drawn digits: ``python cnn.py [device]``."""

import sys
from typing import Any

import numpy as np
from drawn_digits import digits

import netcl
from netcl import nn
from netcl.core.tensor import Tensor
from netcl.optim import SGD


def network(queue: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(queue, 1, 16, 3, pad=1, bias=False),
        nn.BatchNorm2d(queue, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(queue, 16, 32, 3, pad=1, bias=False),
        nn.BatchNorm2d(queue, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(queue, 32 * 3 * 3, 10),
    )


def accuracy(model: nn.Module, images: np.ndarray, labels: np.ndarray, queue: Any) -> float:
    model.eval()
    with netcl.autograd.no_grad():
        guesses = model(Tensor.from_host(queue, images)).to_host().argmax(1)
    model.train()
    return float((guesses == labels).mean())


def main(device: str = "auto") -> float:
    netcl.manual_seed(0)
    queue = netcl.manager.default(device).queue
    model, loss_of = network(queue), nn.CrossEntropyLoss(label_smoothing=0.05)
    print(model.summary((1, 1, 12, 12)))
    opt = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    images, labels = digits(2048, seed=1)
    test_images, test_labels = digits(512, seed=2)
    order = np.random.default_rng(0)
    for epoch in range(1, 4):
        total, batches = 0.0, order.permutation(len(images)).reshape(-1, 64)
        for batch in batches:
            loss = loss_of(model(Tensor.from_host(queue, images[batch])), labels[batch])
            loss.backward()
            opt.step()
            opt.zero_grad()
            total += loss.item()
        score = accuracy(model, test_images, test_labels, queue)
        print(f"epoch {epoch}  loss {total / len(batches):.4f}  test accuracy {score:.3f}")
    # For inference the norms can be folded into the convolutions.
    folded = accuracy(nn.fuse_conv_bn(model.eval()), test_images, test_labels, queue)
    print(f"test accuracy {folded:.3f}")
    return folded


if __name__ == "__main__":
    main(*sys.argv[1:])
