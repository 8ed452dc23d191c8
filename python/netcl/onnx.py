"""Models from ONNX files, and modules as ONNX files.

model = netcl.onnx.load("model.onnx", device="gpu")
y = model(x)
netcl.onnx.save(model, "again.onnx", x)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
            self._hold(name, role, tensor)

    def _hold(self, name: str, role: str, tensor: Tensor) -> None:
        """Keeps a tensor under a path of modules, or under its whole name where that is no path: files may use any text."""
        *path, leaf = name.split(".")
        inside: Module = self
        for part in path:
            child = inside._modules.get(part)
            if child is None:
                if not part or hasattr(inside, part):
                    break
                child = Module()
                inside.add_module(part, child)
            inside = child
        else:
            if leaf and not hasattr(inside, leaf):
                if role == "parameter":
                    inside.register_parameter(leaf, tensor)
                else:
                    inside.register_buffer(leaf, tensor, persistent=role == "buffer")
                return
        # Not as an attribute: `inputs`, `forward` and other members are what they are.
        (self._parameters if role == "parameter" else self._buffers)[name] = tensor
        if role == "constant":
            self._unsaved.add(name)

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs, in the order of the call."""
        return [name for name, _, _ in self._model.inputs]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return [name for name, _, _ in self._model.outputs]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The result; a tuple where the model has several. Inputs in order or by name.

        A number is an input without axes that stays on the host: what it decides (a sampling rate, a length) is decided when a
        function is compiled. NumPy arrays are taken as well, to the model's device; those of 8 and 16 bits, unsigned ones and
        texts stay on the host, and results of such types are NumPy arrays.
        """
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


def _listed(
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]],
    names: tuple[list[str], list[str]],
    examples: Sequence[Tensor],
) -> list[tuple[str, int, str]]:
    """Input, axis and name of each dynamic axis."""
    count = len(examples)
    inputs = names[0] or (["input"] if count == 1 else [f"input_{at}" for at in range(count)])
    listed = []
    for name, axes in dynamic_axes.items():
        if name not in inputs:
            # PyTorch wants the outputs' axes as well; here they follow from those of the inputs.
            if name in (names[1] or ["output"]) or (not names[1] and name.startswith("output_")):
                continue
            raise ValueError(f"dynamic_axes names {name!r}; the inputs are {', '.join(inputs)}")
        rank = examples[inputs.index(name)].ndim
        named = axes if isinstance(axes, Mapping) else {axis: f"{name}_{axis}" for axis in axes}
        for axis, length in named.items():
            if not -rank <= axis < rank:
                raise ValueError(f"dynamic_axes names axis {axis} of {name!r}, which has {rank}")
            listed.append((name, axis % rank, length))
    return listed


def save(
    model: Module,
    path: str | PathLike[str],
    *example_inputs: Tensor,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_batch: bool = True,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None,
    external_data: bool | None = None,
) -> None:
    """Writes a module as an ONNX file (operator set 18; 22 with bfloat16), by running it on example inputs.

    Parameters keep their names. With ``dynamic_batch`` the first axis of the first input, and of every other one that is as
    long there, may have any length. ``dynamic_axes`` says instead which axes do, as PyTorch's does:
    ``{"tokens": {0: "batch", 1: "sequence"}}``. Axes of one name are equally long; lengths of outputs follow. Weights lie in a
    file beside the model where they are too large for one, or with ``external_data=True``. An error lists every operation that
    cannot be written, with its modules; also what follows from values that the model reads (``item()``, ``numpy()``), which a
    file would repeat for all inputs. To find these the model runs with other sizes and values as well.
    """
    names = list(input_names or ()), list(output_names or ())
    axes = None if dynamic_axes is None else _listed(dynamic_axes, names, example_inputs)
    # Modules say their paths while somebody watches.
    _watching.append(None)
    try:
        _save(model, path, list(example_inputs), *names, dynamic_batch, axes, external_data)
    finally:
        _watching.pop()
