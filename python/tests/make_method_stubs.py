"""Makes netcl/_methods.pyi, the types of tensors' methods, from those of the functions: ``python make_method_stubs.py``."""

from __future__ import annotations

import ast
from pathlib import Path

import netcl
from netcl import _methods

PACKAGE = Path(netcl.__file__).parent
HEADER = '''"""Types of the methods of tensors; made by tests/make_method_stubs.py.

The first argument of a method that is a function has the function's name for it.
"""

import builtins
from collections.abc import Sequence
from typing import Any, overload

from numpy.typing import ArrayLike

from netcl._factories import Generator
from netcl._netcl import IndexTensor, Tensor
from netcl._netcl.functions import ValuesAndIndices

_Axis = builtins.int | Sequence[builtins.int] | None
_Data = Tensor | ArrayLike
_Indices = IndexTensor | Tensor | ArrayLike
_Numbers = builtins.int | Sequence[builtins.int]
_Operand = Tensor | builtins.float

class Count(builtins.int):
    def __call__(self, dim: builtins.int | None = None) -> Any: ...

class Methods:
'''


class _Builtins(ast.NodeTransformer):
    """Names of types that are also names of methods, with their module."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Attribute(ast.Name("builtins"), node.id) if node.id in ("int", "float", "bool", "type") else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name(node.attr) if isinstance(node.value, ast.Name) and node.value.id == "make" else node


def declared(path: str) -> dict[str, list[ast.FunctionDef]]:
    """The functions of a file by name; overloads instead of what implements them."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in ast.parse((PACKAGE / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in found:
            found[node.targets[0].id] = [_renamed(part, node.targets[0].id) for part in found[node.value.id]]
    return {name: [part for part in parts if part.decorator_list] or parts for name, parts in found.items()}


def _renamed(function: ast.FunctionDef, name: str) -> ast.FunctionDef:
    copy = ast.parse(ast.unparse(function)).body[0]
    copy.name = name
    return copy


def method(function: ast.FunctionDef, name: str, returns: str | None = None) -> str:
    """A function's declaration as that of a method."""
    made = _renamed(function, name)
    made.body = [ast.Expr(ast.Constant(...))]
    first = (made.args.posonlyargs + made.args.args)[0]
    first.annotation = None
    if returns:
        made.returns = ast.Name(returns)
    text = ast.unparse(_Builtins().visit(made)).replace(":\n    ...", ": ...")
    return "\n".join(f"    {line}" for line in text.splitlines())


def stub() -> str:
    """The text of the stub."""
    places = [declared(path) for path in ("_netcl/__init__.pyi", "_netcl/functions.pyi", "autograd/elementwise.pyi")]
    signatures = {name: parts for place in places for name, parts in place.items()}
    own = {f"netcl.{file}": declared(f"{file}.py") for file in ("_functions", "_composed", "_names")}
    lines = []
    methods = next(
        n for n in ast.parse((PACKAGE / "_methods.py").read_text()).body if isinstance(n, ast.ClassDef) and n.name == "Methods"
    )
    odd = [node for node in methods.body if isinstance(node, ast.FunctionDef)]
    lines += [method(node, node.name) for node in odd]
    lines += [f"    def {name}(self) -> Tensor: ..." for name in _methods.DTYPES]
    # The extension's stub has what the extension's class has.
    extension = ast.parse((PACKAGE / "_netcl/__init__.pyi").read_text()).body
    native = next(node for node in extension if isinstance(node, ast.ClassDef) and node.name == "Tensor")
    taken = {node.name for node in (*odd, *native.body) if isinstance(node, ast.FunctionDef)}
    for name, function in sorted(_methods.names().items()):
        home = own.get(function.__module__, signatures)
        # Another name of a function of another file has that function's declaration.
        parts = home.get(name) or home[function.__name__]
        if name not in taken:
            lines += [method(part, name) for part in parts]
        if name in _methods.IN_PLACE and f"{name}_" not in taken:
            lines.append(method(parts[-1], f"{name}_", "Tensor"))
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    (PACKAGE / "_methods.pyi").write_text(stub())
