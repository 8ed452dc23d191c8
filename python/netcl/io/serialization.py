"""Models and tensors in files of any kind: ``.netcl``, ``.npz``, safetensors (also in shards) and PyTorch's ``.pt``.

A file is written as its name says and read as its content says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from netcl._netcl import IndexTensor, Tensor, io as _io
from netcl.core.device import manager
from netcl.nn._arguments import resolve_queue
from netcl.nn._state import Rename, rules_of
from netcl.nn.container import Sequential
from netcl.nn.factory import build_layer, layer_to_config, to_config
from netcl.nn.module import Module

__all__ = ["load_model", "load_tensors", "save_model", "save_tensors"]


def save_model(model: Module, path: str | os.PathLike[str], *, metadata: Mapping[str, Any] | None = None) -> None:
    """Writes a model's parameters and buffers, and how to build it again, to one file.

        save_model(model, "model.netcl")       # np.load opens it
        save_model(model, "model.safetensors") # or .pt, .npz, .safetensors.index.json: only the tensors

    ``load_model`` builds a ``Sequential`` and every layer and model of netcl from a ``.netcl`` file; a class of one's own is
    made first and then loaded: ``load_model(path, model=Net())``. ``metadata`` is kept in the file.
    """
    if not isinstance(model, Module):
        raise TypeError(f"save_model(model, path): the model is a netcl.nn.Module, not a {type(model).__name__}")
    # An ending of another kind would be a surprise, none is netcl's own.
    path = os.fspath(path)
    path = path if os.path.splitext(path)[1] else f"{path}.netcl"
    # Other kinds of files hold what their own readers expect.
    described = describe(model) if path.endswith(".netcl") else {}
    _io.save_model(path, model, json.dumps({**(metadata or {}), **described}))


def load_model(
    path: str | os.PathLike[str],
    queue: Any = None,
    *,
    model: Module | None = None,
    strict: bool = True,
    rename: Rename | None = None,
) -> Module:
    """The model of a file, on a queue or the active device.

    A ``.netcl`` file of ``save_model`` (also of the published package) is built from its configuration. For a class of one's
    own, and for other files, give the ``model`` to load into: its names are compared with the file's, after ``rename`` has
    replaced patterns in these (``rename={r"^module\\.": ""}``, or pairs); a name that becomes empty is left out. With
    ``strict=False`` names that only one side has are left alone, but one at least must fit. An error names everything that
    does not fit, and nothing has changed then.
    """
    rules = rules_of(rename)
    if model is None:
        kind, metadata = _io.metadata(path)
        model = _built(os.fspath(path), kind, json.loads(metadata), None if queue is None else resolve_queue(queue))
    elif queue is not None:
        model.to(queue)
    _io.load_weights(path, model, strict, rules)
    return model


def load_tensors(
    path: str | os.PathLike[str], queue: Any = None, *, dtype: str | None = None, rename: Rename | None = None
) -> dict[str, Tensor | IndexTensor]:
    """The tensors of a file by name, on a queue or the active device: ``model.load_state_dict(load_tensors("a.safetensors"))``.

    Floating-point ones are converted to ``dtype`` if it is given, whole numbers are index tensors. Tensors in nested
    dictionaries of a PyTorch file have dotted names: ``"optimizer.state.0.exp_avg"``.
    """
    return _io.load_tensors(path, None if queue is None else resolve_queue(queue), dtype, rules_of(rename))


def save_tensors(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, Any] | None = None,
    max_shard_size: int | None = None,
) -> None:
    """Writes tensors or arrays by name, such as a ``state_dict``: ``save_tensors(model.state_dict(), "model.safetensors")``.

    ``"model.safetensors.index.json"`` writes shards of at most ``max_shard_size`` bytes (5 GB) and their index, as Hugging Face
    does.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(f"save_tensors(tensors, path): the tensors are a dictionary by name, not a {type(tensors).__name__}")
    held = {name: _tensor(name, value) for name, value in tensors.items()}
    _io.save_tensors(path, held, json.dumps(dict(metadata or {})), max_shard_size)


def _tensor(name: str, value: Any) -> Tensor | IndexTensor:
    import numpy as np

    if isinstance(value, (Tensor, IndexTensor)):
        return value
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return Tensor.from_host(manager.default("cpu").queue, array, array.dtype.name)
    if array.dtype.kind in "biu":
        return IndexTensor.from_host(manager.default("cpu").queue, array)
    raise TypeError(f"save_tensors: {name!r} holds {array.dtype} values instead of numbers")


def describe(model: Module) -> dict[str, Any]:
    """What a file says of a model: its configuration, or only the name of a class that nobody can build from one."""
    from netcl.distributed._wrapper import Wrapper

    if isinstance(model, Wrapper):
        model = model.module
    try:
        if type(model) is Sequential:
            return {"type": "Sequential", "config": to_config(model)}
        return layer_to_config(model)
    except ValueError:
        return {"class": type(model).__qualname__}


def _built(path: str, kind: str, metadata: dict[str, Any], queue: Any) -> Module:
    """A new model of what a file says of itself."""
    if metadata.get("type") == "Sequential" and "config" in metadata:
        metadata = {"type": "Sequential", "args": {"layers": metadata["config"]}}
    if isinstance(metadata.get("type"), str):
        entry = {name: metadata[name] for name in ("type", "args") if name in metadata}
        return build_layer(queue, entry, path)
    if "progress" in metadata and "class" not in metadata:
        beside = os.path.join(os.path.dirname(path), "model.netcl")
        if os.path.exists(beside):
            raise ValueError(f"{path} is a checkpoint, without how to build its model: load {beside}")
    what = f"the weights of a {metadata['class']}" if "class" in metadata else f"weights without a configuration ({kind})"
    raise ValueError(f"{path} holds {what}: make the model first, then load_model(path, model=...) loads into it")
