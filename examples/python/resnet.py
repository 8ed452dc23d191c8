"""A narrow ResNet-18 reads drawn digits: ``python resnet.py [device]``."""

import sys

import numpy as np
from drawn_digits import digits

import netcl
from netcl.core.tensor import Tensor
from netcl.nn import functional as F
from netcl.nn.resnet import ResNet18
from netcl.optim import SGD


def main(device: str = "auto") -> float:
    netcl.manual_seed(0)
    queue = netcl.manager.default(device).queue
    # The published network has 64 channels in its first stage; digits need fewer.
    model = ResNet18(queue, num_classes=10, base_channels=8, in_channels=1)
    print(f"ResNet-18 of {model.num_parameters():,} parameters")
    opt = SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images, labels = digits(1024, seed=1)
    order = np.random.default_rng(0)
    for epoch in range(1, 6):
        total, batches = 0.0, order.permutation(len(images)).reshape(-1, 32)
        for batch in batches:
            loss = F.cross_entropy(model(Tensor.from_host(queue, images[batch])), labels[batch])
            loss.backward()
            opt.step()
            opt.zero_grad()
            total += loss.item()
        print(f"epoch {epoch}  loss {total / len(batches):.4f}")
    images, labels = digits(512, seed=2)
    model.eval()
    with netcl.autograd.no_grad():
        accuracy = float((model(Tensor.from_host(queue, images)).to_host().argmax(1) == labels).mean())
    print(f"test accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main(*sys.argv[1:])
