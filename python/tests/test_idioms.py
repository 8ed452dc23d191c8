"""Lines that PyTorch's users type give what PyTorch gives: values, dtypes and shapes.

The lines are in golden/idioms_cases.py, PyTorch's answers in golden/idioms.json, made by golden/make_idioms.py.
"""

import json
import math
import sys
from pathlib import Path

import pytest
from conftest import find_device_selectors

import netcl

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "golden"))
from idioms_cases import IDIOMS, describe, evaluate  # noqa: E402

GOLDEN = json.loads((HERE / "golden" / "idioms.json").read_text())
MIGRATION = HERE.parents[1] / "docs" / "src" / "pytorch.md"

EXCEPTIONS = {
    "[10, 20, 30][k.argmax() % 3]": "argmax and argmin take floating-point tensors",
    "F.one_hot(lab, 4)": "one_hot gives float32, not int64",
    "x.clone().unsqueeze_(0).shape": "no shape changes in place",
}
"""Lines that do not give what PyTorch gives, and why. The book's page for PyTorch's users lists the same."""


def run(line: str, selector: str) -> None:
    with netcl.device(selector):
        actual = describe(evaluate(line, netcl, netcl.tensor))
    compare(actual, GOLDEN[line], line)


def compare(actual, expected, line: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(actual, dict), f"{line}: {actual} is no tensor"
        assert actual["shape"] == expected["shape"], line
        assert kind(actual["dtype"]) == kind(expected["dtype"]), line
        actual, expected = actual["values"], expected["values"]
    if isinstance(expected, list):
        assert isinstance(actual, list) and len(actual) == len(expected), f"{line}: {actual}, not {expected}"
        for one, other in zip(actual, expected, strict=True):
            compare(one, other, line)
    elif isinstance(expected, float):
        close = math.isclose(actual, expected, rel_tol=2e-5, abs_tol=2e-5) or (math.isnan(actual) and math.isnan(expected))
        assert close, f"{line}: {actual}, not {expected}"
    else:
        assert type(actual) is type(expected) and actual == expected, f"{line}: {actual!r}, not {expected!r}"


def kind(dtype: str) -> str:
    """A dtype; all whole numbers are alike, whatever their width."""
    return "int" if dtype.startswith("int") else dtype


@pytest.mark.parametrize("line", IDIOMS, ids=range(len(IDIOMS)))
def test_a_line_gives_what_pytorch_gives(line):
    if line in EXCEPTIONS:
        pytest.skip(EXCEPTIONS[line])
    run(line, "cpu")


@pytest.mark.parametrize("selector", [selector for selector in find_device_selectors() if selector != "cpu"])
def test_lines_on_opencl(selector):
    # A few: a driver builds the kernels of each in a fraction of a second.
    for line in IDIOMS[::16]:
        if line not in EXCEPTIONS:
            run(line, selector)


def test_exceptions_are_listed_in_the_book():
    rows = [line for line in MIGRATION.read_text().splitlines() if line.startswith("| `")]
    listed = {row.split("`")[1].replace("\\|", "|"): row.split("|")[-2].strip() for row in rows if row.count("|") >= 3}
    assert {line: listed.get(line.splitlines()[0]) for line in EXCEPTIONS} == EXCEPTIONS


def test_exceptions_are_still_exceptions():
    for line in EXCEPTIONS:
        with pytest.raises((AssertionError, AttributeError, TypeError, ValueError)):
            run(line, "cpu")
