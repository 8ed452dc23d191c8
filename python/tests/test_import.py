"""What `import netcl` imports, and what follows when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("netcl")

# Above what is imported today (30), and far below all of the package (88).
MOST = 40

CODE = """
import sys
import netcl

ours = [name for name in sys.modules if name.split(".")[0] == "netcl" and not name.startswith("netcl._netcl")]
assert len(ours) <= MOST, sorted(ours)
assert not {"numpy", "netcl.nn", "netcl.data", "netcl.trainer", "netcl._surroundings"} & set(sys.modules)

lazy = "amp data distributed io linalg nn optim profiling runtime trainer utils".split()
assert {*lazy, "load", "save", "zeros"} <= set(dir(netcl))
for name in lazy:
    assert getattr(netcl, name) is sys.modules[f"netcl.{name}"], name
    assert name in vars(netcl), name
assert netcl.save is sys.modules["netcl.io.objects"].save
assert not hasattr(netcl, "nothing") and not hasattr(netcl.autograd, "nothing")

import netcl.autograd as ag
from netcl.autograd import Compiled, jit_compile
assert ag.jit is sys.modules["netcl.autograd.compiler"].jit and "jit" in dir(ag)
"""


def test_subpackages_are_imported_when_they_are_asked_for():
    done = subprocess.run([sys.executable, "-c", f"MOST = {MOST}\n{CODE}"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "from netcl.nn.parameter import Parameter",
        "from netcl.nn.utils import clip_grad_norm_, parameters_to_vector",
        "from netcl.nn.utils.rnn import pad_sequence",
        "from netcl.optim.lr_scheduler import StepLR",
        "from netcl.utils.checkpoint import checkpoint",
        "from netcl.utils.data import DataLoader, Dataset, random_split",
        "import netcl.utils.data",
    ],
)
def test_pytorch_places_can_be_imported_from(line):
    exec(line, {})
