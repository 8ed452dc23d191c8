"""Several devices of one process train one network: ``python data_parallel.py [device ...]``.

Each device has a copy of the network and a part of every batch. ``distributed.py`` does it with several processes.
"""

import sys

import netcl
from netcl import nn, optim
from netcl.data import DataLoader, digits
from netcl.data.augment import Normalize
from netcl.distributed import DataParallel
from netcl.nn import functional as F


def main(*devices: str) -> float:
    devices = devices if len(devices) > 1 else ("auto", "cpu")  # the numbers of `netcl devices`: "0", "1"
    netcl.manual_seed(0)
    normalize = Normalize(0.3, 0.4)
    queue = netcl.device(devices[0]).queue
    train = DataLoader(digits(), batch_size=64, shuffle=True, transforms=[normalize], device_queue=queue, seed=0)
    test = DataLoader(digits("test"), batch_size=360, transforms=[normalize], device_queue=queue)
    with netcl.device(devices[0]):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    parallel = DataParallel(model, devices=list(devices))
    opt = optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(4):
        for x, y in train:
            loss = F.cross_entropy(parallel(x), y)  # a part on each device; the results come together on the first
            loss.backward()  # the gradients are summed in the order of the devices
            opt.step()
            opt.zero_grad()
        print(f"epoch {epoch + 1}  loss {loss.item():.4f}")
    model.eval()  # the plain model: it is saved and used as ever
    x, y = next(iter(test))
    with netcl.no_grad():
        guesses = model(x).argmax(dim=1).tolist()
    accuracy: float = sum(guess == label for guess, label in zip(guesses, y.tolist())) / len(guesses)
    print(f"test accuracy {accuracy:.4f}")
    return accuracy


if __name__ == "__main__":
    main(*sys.argv[1:])
