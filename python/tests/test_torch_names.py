"""Each row of the book's table of PyTorch's names: both sides run, and are compared where PyTorch is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netcl

torch: Any
try:
    import torch
except ImportError:
    torch = None

PAGE = Path(__file__).resolve().parents[2] / "docs" / "src" / "torch-names.md"
ROW = re.compile(r"^\| `(torch\.[^`]*|\w[^`]*)` \| `([^`]+)` \| ")
ROWS = [match.groups() for line in PAGE.read_text(encoding="utf-8").splitlines() if (match := ROW.match(line))]

RANDOM = np.random.default_rng(3)
ARRAYS = {
    "x": RANDOM.normal(size=(3, 4)).astype(np.float32),
    "y": RANDOM.normal(size=(3, 4)).astype(np.float32),
    "w": RANDOM.normal(size=(4,)).astype(np.float32),
    "img": RANDOM.normal(size=(2, 3, 6, 6)).astype(np.float32),
    "b": RANDOM.normal(size=(2, 3, 4)).astype(np.float32),
    "labels": np.array([1, 3, 0]),
}
GRADIENT = RANDOM.normal(size=(3, 4)).astype(np.float32)


def names(library: Any, path: Path) -> dict[str, Any]:
    """What a row may use, made with one of the two libraries."""
    found = {name: library.tensor(array) for name, array in ARRAYS.items()}
    found["w"].requires_grad_()
    parameter = library.nn.Parameter(library.tensor(ARRAYS["x"]))
    parameter.grad = library.tensor(GRADIENT)
    found |= {"netcl": netcl, "torch": torch, "array": ARRAYS["x"], "params": [parameter], "path": str(path)}
    found["opt"] = library.optim.SGD([library.nn.Parameter(library.tensor(ARRAYS["y"]))], lr=0.1)
    return found


def evaluate(code: str, library: Any, path: Path) -> Any:
    """What a side gives, as numbers and texts: a module's state, an optimizer's first two steps, a schedule's rates."""
    found = names(library, path)
    value = eval(code, found)
    if hasattr(value, "state_dict") and hasattr(value, "forward"):
        return {name: tuple(tensor.shape) for name, tensor in value.state_dict().items()}
    if hasattr(value, "zero_grad"):
        value.step()
        value.step()
        return np.asarray(found["params"][0].tolist())
    if hasattr(value, "step"):
        rates = []
        for _ in range(4):
            found["opt"].step()
            value.step(1.0) if "Plateau" in code else value.step()
            rates.append(found["opt"].param_groups[0]["lr"])
        return np.array(rates)
    if hasattr(value, "tolist"):
        return np.asarray(value.tolist())
    return value


def test_the_table_has_rows():
    assert len(ROWS) > 60


@pytest.mark.parametrize(("theirs", "ours"), ROWS, ids=[theirs for theirs, _ in ROWS])
def test_a_row(theirs, ours, tmp_path):
    with netcl.device("cpu"):
        actual = evaluate(ours, netcl, tmp_path / "ours")
    if torch is None:
        pytest.skip("PyTorch is not installed; netcl's side ran")
    expected = evaluate(theirs, torch, tmp_path / "theirs")
    if isinstance(expected, np.ndarray):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)
    else:
        assert actual == expected
