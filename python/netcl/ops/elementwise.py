"""The elementwise operations as functions, made from the library's table."""

from __future__ import annotations

import keyword
from typing import Any

from netcl._netcl import Tensor, elementwise, elementwise_table

__all__ = ["elementwise_binary", "gelu", "swish"]


def _make(name: str, doc: str, operands: list[str], params: list[tuple[str, float]]) -> Any:
    """A function of the table's operands, then its parameters, then ``out``."""
    defaults = dict(params)
    parameters = [*operands, *defaults]

    def function(*args: Any, out: Tensor | None = None, **kwargs: float) -> Tensor:
        if len(args) > len(parameters):
            raise TypeError(f"{name} takes at most {len(parameters)} arguments ({', '.join(parameters)}), got {len(args)}")
        given = dict(zip(parameters, args))
        for key, value in kwargs.items():
            if key not in parameters or key in given:
                raise TypeError(f"{name} got an unexpected or repeated argument {key!r}; it takes {', '.join(parameters)}")
            given[key] = value
        missing = [operand for operand in operands if operand not in given]
        if missing:
            raise TypeError(f"{name} is missing {', '.join(missing)}")
        return elementwise(
            name, [given[operand] for operand in operands], [given.get(k, d) for k, d in defaults.items()], out
        )

    signature = ", ".join([*operands, *(f"{k}={d:g}" for k, d in params), "*", "out=None"])
    function.__name__ = function.__qualname__ = python_name(name)
    function.__doc__ = f"{python_name(name)}({signature})\n\n{doc}"
    function.__text_signature__ = f"({signature})"  # type: ignore[attr-defined]
    return function


def python_name(name: str) -> str:
    """``where`` stays; names that Python reserves get an underscore."""
    return name + "_" if keyword.iskeyword(name) else name


for _name, _doc, _operands, _params in elementwise_table():
    if _name != "cast":
        globals()[python_name(_name)] = _make(_name, _doc, _operands, _params)
        __all__.append(python_name(_name))

_gelu_exact, _gelu_tanh = globals()["gelu"], globals()["gelu_tanh"]
swish = globals()["silu"]


def gelu(x: Tensor, approximate: str = "none", *, out: Tensor | None = None) -> Tensor:
    """``x * normcdf(x)``: exactly, or with ``approximate="tanh"`` in its tanh approximation."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f'approximate must be "none" or "tanh", not {approximate!r}')
    return (_gelu_tanh if approximate == "tanh" else _gelu_exact)(x, out=out)


_SYMBOLS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def elementwise_binary(a: Any, b: Any, op: str = "add", *, out: Tensor | None = None) -> Tensor:
    """A two-operand operation by its name (``"add"``, ``"mul"``, ...) or symbol (``"+"``, ``"*"``, ...)."""
    return elementwise(_SYMBOLS.get(op, op), [a, b], [], out)
