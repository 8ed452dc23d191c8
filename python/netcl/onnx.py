"""Models from ONNX files, and modules as ONNX files.

    model = netcl.onnx.load("model.onnx", device="gpu")
    y = model(x)
    netcl.onnx.save(model, "again.onnx", x)
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from netcl._netcl import Tensor, device as _device
from netcl._netcl.onnx import Model as _Model, check as _check, save as _save
from netcl.nn import Module
from netcl.nn._scope import watching as _watching

__all__ = ["OnnxModule", "check", "load", "save"]


class OnnxModule(Module):
    """A model that was read from an ONNX file: its initialisers are parameters under the names that they have there."""

    def __init__(self, model: _Model) -> None:
        super().__init__()
        self._model = model
        for name, role, tensor in model.stored():
            *path, leaf = name.split(".")
            inside: Module = self
            for part in path:
                child = inside._modules.get(part)
                if child is None:
                    child = Module()
                    inside.add_module(part, child)
                inside = child
            if role == "parameter":
                inside.register_parameter(leaf, tensor)
            else:
                inside.register_buffer(leaf, tensor, persistent=role == "buffer")

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs, in the order of the call."""
        return [name for name, _, _ in self._model.inputs]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return [name for name, _, _ in self._model.outputs]

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """The result; a tuple where the model has several. Inputs in order or by name."""
        given = dict(zip(self.inputs, inputs, strict=False)) | named
        unknown = set(named) - set(self.inputs)
        if unknown or len(inputs) > len(self.inputs) or len(given) != len(self.inputs):
            raise TypeError(f"the model takes the inputs {', '.join(self.inputs)}")
        results = self._model.run([given[name] for name in self.inputs])
        return results[0] if len(results) == 1 else tuple(results)


def load(path: str | PathLike[str], device: Any = "auto") -> OnnxModule:
    """Reads a model; an error lists every operator that is not supported, with the names of its nodes."""
    handle = _device(device) if isinstance(device, str) else device
    return OnnxModule(_Model(path, getattr(handle, "queue", handle)))


def check(path: str | PathLike[str]) -> dict[str, dict[str, Any]]:
    """A file's operators: ``{"operators": {name: count}, "missing": {name: nodes}}``; also of a model that cannot run."""
    operators, missing = _check(path)
    return {"operators": operators, "missing": missing}


def save(
    model: Module,
    path: str | PathLike[str],
    *example_inputs: Tensor,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_batch: bool = True,
    external_data: bool | None = None,
) -> None:
    """Writes a module as an ONNX file (operator set 18), by running it on example inputs.

    Parameters keep their names. With ``dynamic_batch`` the first axis of the first input, and of every other one that is as
    long there, may have any length. Weights lie in a file beside the model where they are too large for one, or with
    ``external_data=True``. An error lists every operation that cannot be written, with its modules.
    """
    names = list(input_names or ()), list(output_names or ())
    # Modules say their paths while somebody watches.
    _watching.append(None)
    try:
        _save(model, path, list(example_inputs), *names, dynamic_batch, external_data)
    finally:
        _watching.pop()
