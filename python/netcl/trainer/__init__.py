"""Training: a model, an optimizer and a loader become a run that can be watched, stopped and resumed."""

from __future__ import annotations

__all__: list[str] = []
