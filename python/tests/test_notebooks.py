"""The notebooks run from top to bottom, each in a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def program(notebook: Path) -> str:
    """The code cells as one program that names the cell that fails."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    run = "names = {'__name__': '__main__'}\nfor n, code in enumerate(codes):\n    exec(compile(code, f'cell {n}', 'exec'), names)\n"
    return f"codes = {codes!r}\n{run}"


def test_there_are_notebooks():
    assert [notebook.stem for notebook in NOTEBOOKS] == ["first_network", "look_inside"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook, tmp_path):
    environment = {**os.environ, "NETCL_DEVICE": "cpu"}
    command = [sys.executable, "-c", program(notebook)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_committed_without_results(notebook):
    # Results would go stale, and differ on every machine.
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code")
