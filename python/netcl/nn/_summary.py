"""``Module.summary``: a module as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netcl import autograd as ag
from netcl._netcl import Tensor

if TYPE_CHECKING:
    from netcl.nn.module import Module

__all__ = ["table"]


def table(module: Module, inputs: tuple[Any, ...]) -> str:
    """The rows of a module and of all modules inside it, with the totals below."""
    shapes = _shapes(module, inputs) if inputs else {}
    rows = [("module", "kind", "output", "parameters")]
    for path, part in module.named_modules():
        own = sum(tensor.size for tensor in part._parameters.values() if tensor is not None)
        depth = path.count(".") + 1 if path else 0
        name = "  " * depth + (path.rsplit(".", 1)[-1] or "(top)")
        rows.append((name, type(part).__name__, shapes.get(id(part), ""), f"{own:,}" if own else ""))
    columns = [0, 1, 2, 3] if inputs else [0, 1, 3]
    widths = [max(len(row[c]) for row in rows) for c in columns]
    lines = []
    for row in rows:
        cells = [row[c].rjust(w) if c == 3 else row[c].ljust(w) for c, w in zip(columns, widths)]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    total = module.num_parameters()
    trainable = sum(parameter.size for parameter in module.parameters() if parameter.requires_grad)
    return "\n".join([*lines, lines[1], f"{total:,} parameters, {trainable:,} of them trained"])


def _shapes(module: Module, inputs: tuple[Any, ...]) -> dict[int, str]:
    """What comes out of each module, by its id."""
    first = next(iter(module.parameters()), None)
    queue, dtype = (None, None) if first is None else (first.queue, first.dtype)

    def given(x: Any) -> Any:
        # A tuple of numbers is a shape; anything else is an input already.
        if isinstance(x, tuple) and all(hasattr(length, "__index__") for length in x):
            return Tensor.from_shape(queue, x, dtype)
        return x

    found: dict[int, str] = {}

    def note(part: Module, _args: Any, output: Any) -> None:
        found[id(part)] = _shape(output)

    modes = [(part, part.training) for part in module.modules()]
    handles = [part.register_forward_hook(note) for part, _ in modes]
    try:
        module.eval()
        with ag.no_grad():
            module(*(given(x) for x in inputs))
    finally:
        for handle in handles:
            handle.remove()
        for part, mode in modes:
            part.training = mode
    return found


def _shape(output: Any) -> str:
    if isinstance(output, Tensor):
        return str(tuple(output.shape))
    if isinstance(output, (list, tuple)):
        return ", ".join(_shape(part) for part in output)
    return type(output).__name__
