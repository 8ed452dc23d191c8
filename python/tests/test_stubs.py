"""The stubs name what the extension has, and nothing else."""

import ast
import importlib.resources
import types

import netcl._netcl as extension
from netcl.autograd import elementwise as recorded_elementwise
from netcl.ops import elementwise


def declared(module: str, name: str) -> set[str]:
    source = importlib.resources.files(module).joinpath(name).read_text()
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {n for n in names if not n.startswith("_") or n == "__version__"}


def test_the_extension_and_its_stub_agree():
    real = {n for n, v in vars(extension).items() if not isinstance(v, types.ModuleType)}
    real = {n for n in real if not n.startswith("_") or n == "__version__"}
    assert real == declared("netcl", "_netcl/__init__.pyi")


def test_the_parts_of_the_extension_and_their_stubs_agree():
    for name in ("autograd", "nn", "optim", "runtime"):
        real = {n for n in vars(getattr(extension, name)) if not n.startswith("_")}
        assert real == declared("netcl", f"_netcl/{name}.pyi"), name


def test_every_elementwise_operation_has_a_stub():
    assert set(elementwise.__all__) <= declared("netcl.ops", "elementwise.pyi")
    assert set(recorded_elementwise.__all__) == declared("netcl.autograd", "elementwise.pyi")


def test_public_functions_and_classes_are_documented():
    names = {**vars(extension.autograd), **vars(extension.nn), **vars(extension.optim), **vars(extension.runtime)}
    names |= vars(extension)
    undocumented = [n for n, v in names.items() if callable(v) and not n.startswith("_") and not v.__doc__]
    assert not undocumented
