"""The elementwise operations as recorded functions, made from the library's table."""

from __future__ import annotations

from typing import Any

from netcl._netcl import Tensor, elementwise_table
from netcl._netcl.autograd import elementwise
from netcl.ops.elementwise import binder, python_name, signature_of

__all__ = ["gelu", "swish"]


def _make(name: str, doc: str, operands: list[str], params: list[tuple[str, float]]) -> Any:
    """A function of the table's operands, then its parameters."""
    function: Any
    # What most operations look like gets a function without a loop in it: a small operation takes a microsecond.
    if not params and operands == ["x"]:

        def function(x: Any) -> Tensor:
            return elementwise(name, x)

    elif not params and operands == ["x", "y"]:

        def function(x: Any, y: Any) -> Tensor:
            return elementwise(name, x, y)

    else:
        function = _with_parameters(name, operands, params)
    signature = signature_of(operands, params)
    function.__name__ = function.__qualname__ = python_name(name)
    function.__doc__ = f"{python_name(name)}({signature})\n\n{doc}"
    function.__text_signature__ = f"({signature})"
    return function


def _with_parameters(name: str, operands: list[str], params: list[tuple[str, float]]) -> Any:
    bind = binder(name, operands, params)

    def function(*args: Any, **kwargs: Any) -> Tensor:
        given, numbers = bind(args, kwargs)
        return elementwise(name, *given, params=numbers)

    return function


for _name, _doc, _operands, _params in elementwise_table():
    # The condition of ``where`` has no gradient, a cast is more than an expression, and the others have defaults that depend on
    # the dtype or that are booleans: the extension has all of them.
    if _name not in ("cast", "where", "isclose", "nan_to_num"):
        globals()[python_name(_name)] = _make(_name, _doc, _operands, _params)
        __all__.append(python_name(_name))

_gelu_exact, _gelu_tanh = globals()["gelu"], globals()["gelu_tanh"]
swish = globals()["silu"]


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """``x * normcdf(x)``: exactly, or with ``approximate="tanh"`` in its tanh approximation."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f'approximate must be "none" or "tanh", not {approximate!r}')
    result: Tensor = (_gelu_tanh if approximate == "tanh" else _gelu_exact)(x)
    return result
