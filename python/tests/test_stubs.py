"""What type checkers see that stubtest does not compare: elementwise operations, gathered names, texts and defaults."""

import ast
import importlib.resources
import inspect
import pkgutil

import make_method_stubs

import netcl
import netcl._netcl as extension
from netcl.autograd import elementwise as recorded_elementwise
from netcl.ops import elementwise


def declared(module: str, name: str) -> set[str]:
    source = importlib.resources.files(module).joinpath(name).read_text()
    return {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def test_every_elementwise_operation_has_a_stub():
    assert set(elementwise.__all__) <= declared("netcl.ops", "elementwise.pyi")
    assert set(recorded_elementwise.__all__) == declared("netcl.autograd", "elementwise.pyi")


def test_packages_list_every_name_that_they_gather():
    # Type checkers read lists of literals, so that a list made of others' lists would hide the names; without a list they follow *.
    gathered = 0
    for found in pkgutil.walk_packages(netcl.__path__, "netcl."):
        module = importlib.import_module(found.name)
        if not (module.__file__ or "").endswith(".py") or not hasattr(module, "__all__"):
            continue
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                missing = set(importlib.import_module(node.module).__all__) - set(module.__all__)
                assert not missing, f"{found.name} lacks {missing} of {node.module}"
                gathered += 1
    assert gathered > 3


def test_public_functions_and_classes_are_documented():
    names = {**vars(extension.autograd), **vars(extension.functions), **vars(extension.nn), **vars(extension.optim), **vars(extension.runtime)}
    names |= vars(extension) | vars(extension.data)
    undocumented = [n for n, v in names.items() if callable(v) and not n.startswith("_") and not v.__doc__]
    assert not undocumented


def test_a_missing_dtype_is_shown_as_the_one_that_is_used():
    shape = inspect.signature(extension.Tensor.from_shape).parameters
    assert shape["dtype"].default == "float32" and shape["fill"].default == 0.0
    for function in (extension.full, extension.arange, extension.uniform, extension.normal, extension.bernoulli):
        assert inspect.signature(function).parameters["dtype"].default == "float32"
    assert inspect.signature(extension.softmax).parameters["axis"].default == -1


def test_the_stub_of_methods_is_current():
    written = (make_method_stubs.PACKAGE / "_methods.pyi").read_text()
    assert ast.dump(ast.parse(written)) == ast.dump(ast.parse(make_method_stubs.stub())), "run tests/make_method_stubs.py"
