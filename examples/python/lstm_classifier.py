"""An LSTM tells rising from falling sequences: ``python lstm_classifier.py``.

Only the lines of imports and the device differ from PyTorch's.
"""

from __future__ import annotations

import numpy as np

import netcl as torch
from netcl import nn, optim
from netcl.nn import functional as F

DEVICE = "auto"
LENGTH, VOCABULARY = 12, 20


class Classifier(nn.Module):
    def __init__(self, width: int = 16, hidden: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        logits: torch.Tensor = self.fc(hidden[-1])
        return logits


def sequences(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (N, L) that rise (1) or fall (0) with noise."""
    labels = rng.integers(0, 2, count)
    ramp = np.linspace(2, VOCABULARY - 3, LENGTH)
    tokens = np.where(labels[:, None] == 1, ramp, ramp[::-1]) + rng.integers(-2, 3, (count, LENGTH))
    return tokens.astype(np.int64), labels.astype(np.int64)


def build() -> nn.Module:
    torch.manual_seed(0)
    return Classifier().to(DEVICE)


def train(model: nn.Module, steps: int) -> list[float]:
    """The loss of each step."""
    rng = np.random.default_rng(1)
    optimizer = optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for _ in range(steps):
        tokens, labels = sequences(32, rng)
        x, y = torch.tensor(tokens).to(DEVICE), torch.tensor(labels).to(DEVICE)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    model = build()
    losses = train(model, 60)
    tokens, labels = sequences(256, np.random.default_rng(2))
    with torch.no_grad():
        predicted = model(torch.tensor(tokens).to(DEVICE)).argmax(dim=1)
    correct = (predicted == torch.tensor(labels).to(DEVICE)).sum().item()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {correct} of {len(labels)} right")
