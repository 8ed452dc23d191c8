"""Training steps of torchvision's networks beside PyTorch's, in alternating turns.

    python benches/network_peers.py --device gpu --torch-device cuda --models resnet50 mobilenet_v2 vit_b_16
    python benches/network_peers.py --device cpu --torch-device cpu --models resnet18 --batch 2 --side 64 --no-peer

Forward, cross-entropy, backward and the optimizer (SGD with momentum; AdamW for ViT), from the same weights; the losses of the first
steps are compared. ``amp`` is autocast to bfloat16, ``high`` tf32. PyTorch runs channels last; ``--compile`` adds torch.compile with
CUDA graphs. ``--profile`` prints where our step's time goes. The interpreter must have netcl, PyTorch and torchvision; with
``--no-peer`` only netcl.
"""

import argparse

import numpy as np
from steps import compare, netcl_training, show_profile


def torch_step(name, state, images, labels, precision, device, compiled):
    import torch
    import torchvision

    torch.backends.cudnn.benchmark = True
    model = getattr(torchvision.models, name)(weights=None).to(device)
    model.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()})
    model = model.to(memory_format=torch.channels_last)
    x = torch.from_numpy(images).to(device).to(memory_format=torch.channels_last)
    y = torch.from_numpy(labels).to(device)
    if name.startswith("vit"):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=device != "cpu")
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=device != "cpu")

    def loss_of(x, y):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "amp"):
            return torch.nn.functional.cross_entropy(model(x), y)

    forward = torch.compile(loss_of, mode="reduce-overhead") if compiled else loss_of

    def step():
        # The switches are the whole process's.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "highest"
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return step, (torch.cuda.synchronize if device != "cpu" else lambda: None)


def netcl_step(name, model, images, labels, precision, queue):
    import netcl as nc
    from netcl.optim import SGD, AdamW

    if name.startswith("vit"):
        optimizer = AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    else:
        optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = nc.Tensor.from_host(queue, images), nc.IndexTensor.from_host(queue, labels)
    return netcl_training(model, optimizer, x, y, precision, queue)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", help="netcl's device")
    parser.add_argument("--torch-device", default="cuda")
    parser.add_argument("--models", nargs="+", default=["resnet50", "mobilenet_v2", "vit_b_16"])
    parser.add_argument("--precisions", nargs="+", default=["amp"], choices=["highest", "high", "amp"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=224, help="of the images")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    from netcl.core.device import manager
    from netcl.nn import models

    queue = manager.default(options.device).queue
    random = np.random.default_rng(2026)
    images = random.normal(size=(options.batch, 3, options.side, options.side)).astype(np.float32)
    labels = (np.arange(options.batch) * 7 % 1000).astype(np.int64)
    for name in options.models:
        for precision in options.precisions:
            # Without dropout, whose random numbers are not PyTorch's.
            more = {"dropout": 0.0} if name == "mobilenet_v2" else {}
            model = getattr(models, name)(queue, **more)
            made = {}
            if options.peer:
                state = {key: np.array(value) for key, value in model.state_dict().items()}
                for compiled in [False, True][: 1 + options.compile]:
                    label = "PyTorch compiled" if compiled else "PyTorch eager"
                    made[label] = torch_step(name, state, images, labels, precision, options.torch_device, compiled)
            made["netcl captured"] = netcl_step(name, model, images, labels, precision, queue)
            compare(f"{name} {precision}", made, options.rounds, options.seconds)
            if options.profile:
                show_profile(*made["netcl captured"])


if __name__ == "__main__":
    main()
