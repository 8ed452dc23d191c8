"""A Wasserstein GAN with gradient penalty learns a ring of points: ``python gan.py``.

Only the lines of imports and the device differ from PyTorch's.
"""

from __future__ import annotations

import numpy as np

import netcl as torch
from netcl import nn, optim

DEVICE = "auto"
LATENT = 2


class Models(nn.Module):
    """Generator and critic, together so that their weights travel together."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(LATENT, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 2)
        )
        self.critic = nn.Sequential(
            nn.Linear(2, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1)
        )


def gradient_penalty(critic: nn.Module, real: torch.Tensor, fake: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = critic(mixed)
    gradients = torch.autograd.grad(
        outputs=score, inputs=mixed, grad_outputs=torch.ones_like(score), create_graph=True, retain_graph=True
    )[0]
    gradients = gradients.view(gradients.shape[0], -1)
    penalty: torch.Tensor = ((gradients.norm(2, dim=1) - 1) ** 2).mean()
    return penalty


def ring(count: int, rng: np.random.Generator) -> np.ndarray:
    angle = rng.uniform(0, 2 * np.pi, count)
    points = np.stack([np.cos(angle), np.sin(angle)], 1) + rng.normal(0, 0.05, (count, 2))
    return points.astype(np.float32)


def build() -> nn.Module:
    torch.manual_seed(0)
    return Models().to(DEVICE)


def train(models: nn.Module, steps: int) -> list[float]:
    """The critic's loss of each step."""
    rng = np.random.default_rng(1)
    generator, critic = models.generator, models.critic
    opt_g = optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_d = optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    losses = []

    def noise(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(DEVICE)

    for step in range(steps):
        real = torch.from_numpy(ring(64, rng)).to(DEVICE)
        fake = generator(noise(64, LATENT)).detach()
        alpha = torch.from_numpy(rng.random((64, 1)).astype(np.float32)).to(DEVICE)
        loss_d = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(critic, real, fake, alpha)
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        if step % 5 == 0:  # the critic stays ahead of the generator
            loss_g = -critic(generator(noise(64, LATENT))).mean()
            opt_g.zero_grad()
            loss_g.backward()
            opt_g.step()
        losses.append(loss_d.item())
    return losses


if __name__ == "__main__":
    models = build()
    losses = train(models, 600)
    with torch.no_grad():
        points = models.generator(torch.randn(256, LATENT).to(DEVICE))
        radius = points.norm(dim=1)
    print(f"critic's loss {losses[0]:.3f} -> {losses[-1]:.3f}, radius {radius.mean():.2f} +- {radius.std():.2f}")
