"""The examples in PyTorch's style beside their PyTorch twins: the same losses from the same weights. Needs PyTorch.

    python benches/twins.py [device]
"""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "python"
TWINS = ["char_gpt", "vae", "unet", "lstm_classifier", "gan", "transformer"]
STEPS = 20
# The lines that differ: what is imported, and the device.
LINES = [
    (r"^import netcl as torch$", "import torch"),
    (r"^from netcl(.*) import ", r"from torch\1 import "),
]


def program(name: str, device: str, twin: bool) -> types.ModuleType:
    """An example as a module, or what it is with PyTorch."""
    text = (EXAMPLES / f"{name}.py").read_text()
    for pattern, line in LINES if twin else []:
        text = re.sub(pattern, line, text, flags=re.MULTILINE)
    text = re.sub(r"^DEVICE = .*$", f"DEVICE = {'cpu' if twin else device!r}", text, flags=re.MULTILINE)
    module = types.ModuleType(name)
    # Annotations that name what only one of the packages has are never looked at.
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return module


def losses(name: str, device: str, steps: int = STEPS) -> tuple[list[float], list[float]]:
    """The losses of both, from the twin's weights."""
    import netcl

    ours, twin = program(name, device, twin=False), program(name, device, twin=True)
    model, reference = ours.build(), twin.build()
    weights: dict[str, Any] = {key: netcl.tensor(value.numpy()) for key, value in reference.state_dict().items()}
    model.load_state_dict(weights)
    return ours.train(model, steps), twin.train(reference, steps)


def main(device: str = "auto") -> None:
    worst = 0.0
    for name in TWINS:
        ours, theirs = losses(name, device)
        apart = max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(ours, theirs, strict=True))
        worst = max(worst, apart)
        print(f"{name:16} {theirs[0]:9.5f} -> {theirs[-1]:9.5f} (PyTorch) {ours[-1]:9.5f} (netcl), at most {apart:.1e} apart")
    if worst > 2e-3:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main(*sys.argv[1:])
