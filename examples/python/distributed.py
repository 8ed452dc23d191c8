"""Several processes train one network: ``netcl launch -n 2 distributed.py [device]``; ``python distributed.py`` is one alone.

A plain loop with ``netcl.distributed``. ``netcl.trainer.Trainer`` does all of this by itself.
"""

import sys
from pathlib import Path

import netcl
from netcl import nn
from netcl.data import DataLoader, DistributedSampler, digits
from netcl.distributed import init
from netcl.io import load_checkpoint, save_checkpoint
from netcl.nn import functional as F
from netcl.optim import Adam


def main(device: str = "auto", checkpoint: str | None = None) -> float:
    group = init()  # the processes that netcl launch or mpirun have started together; one where nobody has
    netcl.manual_seed(0)
    queue = netcl.manager.default(device).queue
    train, test = digits("train"), digits("test")
    model = nn.Sequential(nn.Flatten(), nn.Linear(queue, 64, 128), nn.ReLU(), nn.Linear(queue, 128, 10))
    opt = Adam(model.parameters(), lr=0.003)
    first = 0
    if checkpoint and Path(checkpoint).exists():  # all ranks read it: they go on with the same weights
        first = load_checkpoint(checkpoint, model, opt)["epoch"]
    for parameter in model.parameters():  # the same seed has made them alike already; a resumed run may be on other machines
        group.broadcast(parameter, 0)

    # Each rank has every size-th image of an order that all know; together they have batches of 64.
    sampler = DistributedSampler(train, group.rank, group.size, seed=0)
    loader = DataLoader(train, batch_size=64 // group.size, sampler=sampler)
    for epoch in range(first, 12):
        loader.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(netcl.Tensor.from_host(queue, images)), netcl.IndexTensor.from_host(queue, labels))
            loss.backward()
            group.sync_grads(model.parameters(), share=1 / group.size)  # the mean over ranks, whose batches are equally large
            opt.step()
            opt.zero_grad()
        if group.rank == 0:
            print(f"epoch {epoch + 1:2}  loss {loss.item():.4f}")
            if checkpoint:
                save_checkpoint(checkpoint, model, opt, epoch=epoch + 1)

    model.eval()
    right = 0
    with netcl.autograd.no_grad():
        for images, labels in DataLoader(test, batch_size=256):
            logits = model(netcl.Tensor.from_host(queue, images)).to_host()
            right += int((logits.argmax(1) == labels).sum())
    if group.rank == 0:
        print(f"test accuracy {right / len(test):.4f}")
    return right / len(test)


if __name__ == "__main__":
    main(*sys.argv[1:])
