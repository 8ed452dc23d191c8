"""The training step of ResNet-18 on small images beside PyTorch's, in alternating turns.

    python benches/resnet_peers.py --device gpu --torch-device cuda
    python benches/resnet_peers.py --device cpu --torch-device cpu --batch 4

Forward, cross-entropy, backward and SGD with momentum. Both begin with the same weights, and their losses over the first steps are
compared. ``highest`` and ``high`` are netcl's precisions of products, for PyTorch float32 and tf32; ``amp`` is autocast to bfloat16.
Each tool has the device to itself for a second at a time; a ratio above 1 means that ours is faster. ``--profile`` prints where our
step's time goes. The interpreter must have both netcl and PyTorch.
"""

import argparse

import numpy as np
from steps import compare, netcl_training, show_profile

LEARNING_RATE, MOMENTUM = 0.01, 0.9


def torch_model():
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
            self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
            self.downsample = None
            if stride != 1 or inputs != outputs:
                self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
            return (y + (x if self.downsample is None else self.downsample(x))).relu()

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
            inputs = 64
            for number, (outputs, stride) in enumerate(((64, 1), (128, 2), (256, 2), (512, 2)), 1):
                setattr(self, f"layer{number}", nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1)))
                inputs = outputs
            self.fc = nn.Linear(512, 10)

        def forward(self, x):
            x = self.bn1(self.conv1(x)).relu()
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(x.mean((2, 3)))

    return ResNet()


def torch_step(state, images, labels, precision, device, channels_last):
    import torch

    torch.backends.cudnn.benchmark = True
    model = torch_model().to(device)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    x, y = torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=device != "cpu")

    def step():
        # The switches are the whole process's.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "highest"
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "amp"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, (torch.cuda.synchronize if device != "cpu" else lambda: None)


def netcl_step(state, images, labels, precision, device, captured):
    import netcl as nc
    from netcl.core.device import manager
    from netcl.nn.resnet import ResNet18
    from netcl.optim import SGD

    queue = manager.default(device).queue
    model = ResNet18(queue, num_classes=10)
    model.load_state_dict(state)
    optimizer = SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    x, y = nc.Tensor.from_host(queue, images), nc.IndexTensor.from_host(queue, labels)
    return netcl_training(model, optimizer, x, y, precision, queue, captured)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", help="netcl's device")
    parser.add_argument("--torch-device", default="cuda")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--precisions", nargs="+", default=["highest", "high", "amp"], choices=["highest", "high", "amp"])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    random = np.random.default_rng(2026)
    images = random.normal(size=(options.batch, 3, 32, 32)).astype(np.float32)
    labels = (np.arange(options.batch) * 7 % 10).astype(np.int64)
    state = {name: value.numpy().copy() for name, value in torch_model().state_dict().items()}
    for precision in options.precisions:
        made = {
            "PyTorch eager": torch_step(state, images, labels, precision, options.torch_device, False),
            "PyTorch eager, channels last": torch_step(state, images, labels, precision, options.torch_device, True),
            "netcl eager": netcl_step(state, images, labels, precision, options.device, False),
            "netcl captured": netcl_step(state, images, labels, precision, options.device, True),
        }
        compare(precision, made, options.rounds, options.seconds)
        if options.profile:
            show_profile(*made["netcl captured"])


if __name__ == "__main__":
    main()
