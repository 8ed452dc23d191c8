"""The stubs name what the extension has, and nothing else."""

import ast
import importlib.resources
import inspect
import types
from collections.abc import Iterator
from typing import Any

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


def declared_functions(body: list[ast.stmt], owner: Any, path: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, object and declared defaults of every function and method of a stub, but for operators."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from declared_functions(node.body, getattr(owner, node.name), f"{path}.{node.name}")
        elif isinstance(node, ast.FunctionDef) and (not node.name.startswith("__") or node.name == "__new__"):
            if any(
                ast.unparse(mark) in ("property", "overload") or "setter" in ast.unparse(mark)
                for mark in node.decorator_list
            ):
                continue
            positional = node.args.posonlyargs + node.args.args
            defaults: dict[str, Any] = {one.arg: inspect.Parameter.empty for one in positional + node.args.kwonlyargs}
            given = [
                *zip(reversed(positional), reversed(node.args.defaults)),
                *zip(node.args.kwonlyargs, node.args.kw_defaults),
            ]
            defaults |= {one.arg: ast.literal_eval(value) for one, value in given if value is not None}
            for bound in ("self", "cls"):
                defaults.pop(bound, None)
            found = owner if node.name == "__new__" else getattr(owner, node.name)
            yield f"{path}.{node.name}", found, defaults


def test_signatures_show_the_defaults_of_the_stubs():
    seen, wrong = 0, []
    for part in ("__init__", "autograd", "nn", "optim", "runtime"):
        source = importlib.resources.files("netcl").joinpath(f"_netcl/{part}.pyi").read_text()
        module = extension if part == "__init__" else getattr(extension, part)
        for name, found, defaults in declared_functions(ast.parse(source).body, module, part):
            parameters = inspect.signature(found).parameters.values()
            named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
            shown = {one.name: one.default for one in named if one.name not in ("self", "cls")}
            seen += 1
            if repr(shown) != repr(defaults):
                wrong.append(f"{name}: {shown}, the stub says {defaults}")
    assert not wrong, "\n".join(wrong)
    assert seen > 300


def test_a_missing_dtype_is_shown_as_the_one_that_is_used():
    shape = inspect.signature(extension.Tensor.from_shape).parameters
    assert shape["dtype"].default == "float32" and shape["fill"].default == 0.0
    for function in (extension.full, extension.arange, extension.uniform, extension.normal, extension.bernoulli):
        assert inspect.signature(function).parameters["dtype"].default == "float32"
    assert inspect.signature(extension.softmax).parameters["axis"].default == -1
