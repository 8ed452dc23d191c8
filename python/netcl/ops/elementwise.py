"""The elementwise operations as functions, made from the library's table."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable
from typing import Any

from netcl._netcl import Tensor, elementwise, elementwise_table

__all__ = ["elementwise_binary", "gelu", "swish"]


def _make(name: str, doc: str, operands: list[str], params: list[tuple[str, float]]) -> Any:
    """A function of the table's operands, then its parameters, then ``out``."""
    bind = binder(name, operands, params)

    def function(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:
        given, numbers = bind(args, kwargs)
        return elementwise(name, given, numbers, out)

    signature = ", ".join([signature_of(operands, params), "*", "out=None"])
    function.__name__ = function.__qualname__ = python_name(name)
    function.__doc__ = f"{python_name(name)}({signature})\n\n{doc}"
    function.__text_signature__ = f"({signature})"  # type: ignore[attr-defined]
    return function


def binder(
    name: str, operands: list[str], params: list[tuple[str, float]]
) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[list[Any], list[Any]]]:
    """What tells the arguments of a call apart: the operands, and the table's parameters with their defaults."""
    names = [*operands, *(key for key, _ in params)]
    # A bound that is infinite unless given; None is no bound.
    bounds = [key for key, default in params if math.isinf(default)]

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        if len(args) > len(names):
            raise TypeError(f"{name} takes at most {len(names)} arguments ({', '.join(names)}), got {len(args)}")
        given = dict(zip(names, args))
        for key, value in kwargs.items():
            if key not in names or key in given:
                raise TypeError(f"{name} got an unexpected or repeated argument {key!r}; it takes {', '.join(names)}")
            given[key] = value
        missing = [operand for operand in operands if operand not in given]
        if missing:
            raise TypeError(f"{name} is missing {', '.join(missing)}")
        if bounds and all(given.get(key) is None for key in bounds):
            raise ValueError(f"{name}: neither bound is given; give {', '.join(bounds)} or both")
        numbers = []
        for key, default in params:
            value = given.get(key, default)
            if value is None and key in bounds:
                value = default
            elif not hasattr(value, "__float__"):
                raise TypeError(f"{name}: {key} is a number, not {type(value).__name__}")
            numbers.append(value)
        if name == "hardtanh" and numbers[0] > numbers[1]:
            raise ValueError(f"hardtanh: min_val={numbers[0]} is above max_val={numbers[1]}; exchange them")
        return [given[operand] for operand in operands], numbers

    return bind


def signature_of(operands: list[str], params: list[tuple[str, float]]) -> str:
    """The operands, and the parameters with their defaults."""
    return ", ".join([*operands, *(f"{k}=None" if math.isinf(d) else f"{k}={d!r}" for k, d in params)])


def python_name(name: str) -> str:
    """``where`` stays; names that Python reserves get an underscore."""
    return name + "_" if keyword.iskeyword(name) else name


for _name, _doc, _operands, _params in elementwise_table():
    # Those beside the cast have defaults that depend on the dtype or that are booleans; ``netcl.autograd`` has them.
    if _name not in ("cast", "isclose", "nan_to_num"):
        globals()[python_name(_name)] = _make(_name, _doc, _operands, _params)
        __all__.append(python_name(_name))

_gelu_exact, _gelu_tanh = globals()["gelu"], globals()["gelu_tanh"]
swish = globals()["silu"]


def gelu(x: Tensor, approximate: str = "none", *, out: Tensor | None = None) -> Tensor:
    """``x * normcdf(x)``: exactly, or with ``approximate="tanh"`` in its tanh approximation."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f'approximate must be "none" or "tanh", not {approximate!r}')
    return (_gelu_tanh if approximate == "tanh" else _gelu_exact)(x, out=out)


SYMBOLS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def elementwise_binary(a: Any, b: Any, op: str = "add", *, out: Tensor | None = None) -> Tensor:
    """A two-operand operation by its name (``"add"``, ``"mul"``, ...) or symbol (``"+"``, ``"*"``, ...)."""
    return elementwise(SYMBOLS.get(op, op), [a, b], [], out)
