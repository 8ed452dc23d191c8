"""A U-Net finds discs in noisy pictures: ``python unet.py``. Only the lines of imports and the device differ from PyTorch's."""

from __future__ import annotations

import numpy as np

import netcl as torch
from netcl import nn, optim
from netcl.nn import functional as F

DEVICE = "auto"
SIDE = 32


class DoubleConv(nn.Module):
    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        return out


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1 = DoubleConv(1, width)
        self.down2 = DoubleConv(width, 2 * width)
        self.bottom = DoubleConv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.conv2 = DoubleConv(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.conv1 = DoubleConv(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        d1 = self.down1(x)
        d2 = self.down2(F.max_pool2d(d1, 2))
        h = self.bottom(F.max_pool2d(d2, 2))
        h = self.conv2(torch.cat([self.up2(h), d2], dim=1))
        h = self.conv1(torch.cat([self.up1(h), d1], dim=1))
        out: torch.Tensor = self.out(h)
        return out


def discs(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pictures (N, 1, H, W) and where their disc is."""
    row, column = np.mgrid[:SIDE, :SIDE]
    place = rng.uniform(8, SIDE - 8, (count, 2, 1, 1))
    inside = (row - place[:, 0]) ** 2 + (column - place[:, 1]) ** 2 < rng.uniform(3, 7, (count, 1, 1)) ** 2
    mask = inside[:, None].astype(np.float32)
    return mask + rng.normal(0, 0.4, mask.shape).astype(np.float32), mask


def dice(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    p = torch.sigmoid(logits)
    overlap = 2 * (p * mask).sum(dim=(1, 2, 3))
    return 1 - ((overlap + 1) / (p.sum(dim=(1, 2, 3)) + mask.sum(dim=(1, 2, 3)) + 1)).mean()


def build() -> nn.Module:
    torch.manual_seed(0)
    return UNet().to(DEVICE)


def train(model: nn.Module, steps: int) -> list[float]:
    """The loss of each step."""
    rng = np.random.default_rng(1)
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 30, gamma=0.5)
    losses = []
    model.train()
    for _ in range(steps):
        noisy, mask = discs(8, rng)
        x, y = torch.from_numpy(noisy.astype(np.float32)).to(DEVICE), torch.from_numpy(mask).to(DEVICE)
        logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits, y) + dice(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    model = build()
    losses = train(model, 60)
    model.eval()
    with torch.no_grad():
        noisy, mask = discs(16, np.random.default_rng(2))
        found = torch.sigmoid(model(torch.from_numpy(noisy.astype(np.float32)).to(DEVICE))) > 0.5
        right = (found.cpu() == (torch.from_numpy(mask) > 0.5)).float().mean()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {right:.1%} of the pixels are right")
