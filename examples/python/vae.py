"""A variational autoencoder learns small pictures of bars: ``python vae.py``.

Only the lines of imports and the device differ from PyTorch's.
"""

from __future__ import annotations

import numpy as np

import netcl as torch
from netcl import nn, optim
from netcl.nn import functional as F

DEVICE = "auto"
SIDE = 8


class VAE(nn.Module):
    def __init__(self, hidden: int = 64, latent: int = 4) -> None:
        super().__init__()
        self.fc1 = nn.Linear(SIDE * SIDE, hidden)
        self.fc21 = nn.Linear(hidden, latent)
        self.fc22 = nn.Linear(hidden, latent)
        self.fc3 = nn.Linear(latent, hidden)
        self.fc4 = nn.Linear(hidden, SIDE * SIDE)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu: torch.Tensor, logvar: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        std = torch.exp(0.5 * logvar)
        return mu + eps * std

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x: torch.Tensor, eps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mu, logvar = self.encode(x.view(-1, SIDE * SIDE))
        z = self.reparameterize(mu, logvar, eps)
        return self.decode(z), mu, logvar


def loss_function(recon: torch.Tensor, x: torch.Tensor, mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
    bce = F.binary_cross_entropy(recon, x.view(-1, SIDE * SIDE), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


def pictures(count: int, rng: np.random.Generator) -> np.ndarray:
    """Pictures (N, 1, 8, 8) of a horizontal or a vertical bar."""
    made = np.zeros((count, 1, SIDE, SIDE), np.float32)
    for picture, place, upright in zip(made, rng.integers(0, SIDE, count), rng.integers(0, 2, count), strict=True):
        picture[0, :, place] = upright
        picture[0, place, :] += 1 - upright
    return made


def build() -> nn.Module:
    torch.manual_seed(0)
    return VAE().to(DEVICE)


def train(model: nn.Module, steps: int) -> list[float]:
    """The loss of each step, per picture."""
    rng = np.random.default_rng(1)
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(steps):
        x = torch.from_numpy(pictures(64, rng)).to(DEVICE)
        eps = torch.from_numpy(rng.standard_normal((64, 4)).astype(np.float32)).to(DEVICE)
        optimizer.zero_grad()
        recon, mu, logvar = model(x, eps)
        loss = loss_function(recon, x, mu, logvar)
        loss.backward()
        optimizer.step()
        losses.append(loss.item() / len(x))
    return losses


if __name__ == "__main__":
    model = build()
    losses = train(model, 400)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
