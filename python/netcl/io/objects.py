"""``netcl.save`` and ``netcl.load``: dictionaries of tensors, as ``state_dict`` gives them, and what is around them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any, BinaryIO

from netcl._netcl import Tensor
from netcl.core.device import device
from netcl.io.serialization import load_tensors, save_tensors
from netcl.nn._arguments import resolve_queue

__all__ = ["load", "save"]

ENDINGS = (".netcl", ".npz", ".safetensors", ".pt")
ALLOWED = {
    ("netcl.core.tensor", "_rebuild"),
    ("collections", "OrderedDict"),
    ("netcl.nn.module", "Parameters"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
}
"""What a file may name; all of these only make values."""


def save(obj: Any, f: str | os.PathLike[str] | BinaryIO) -> None:
    """Writes an object to a file: ``netcl.save(model.state_dict(), "model.pt")``.

    Tensors by name go to a file of the kind that its ending says (``.pt``, which PyTorch opens, ``.safetensors``, ``.npz``,
    ``.netcl``). Anything else (nested dictionaries, optimizers' states) is pickled.
    """
    if not isinstance(f, (str, os.PathLike)):
        return pickle.dump(obj, f)
    path = os.fspath(f)
    flat = isinstance(obj, Mapping) and bool(obj) and all(isinstance(part, Tensor) for part in obj.values())
    if flat and path.endswith(ENDINGS):
        return save_tensors(obj, path)
    with open(path, "wb") as file:
        return pickle.dump(obj, file)


def load(f: str | os.PathLike[str] | BinaryIO, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """What ``save`` wrote, or the tensors of a PyTorch, safetensors or NumPy file, on a device or the active one.

    ``weights_only=False`` also makes objects of any class that a pickled file names, and runs their code: only for files whose
    origin you trust.
    """
    queue = None if map_location is None else resolve_queue(map_location)
    if not isinstance(f, (str, os.PathLike)):
        return _unpickled(f, map_location, weights_only)
    with open(f, "rb") as file:
        if file.read(1) == b"\x80":
            file.seek(0)
            return _unpickled(file, map_location, weights_only)
    return load_tensors(f, queue)


def _unpickled(file: Any, map_location: Any, weights_only: bool) -> Any:
    read = _Reader(file) if weights_only else pickle.Unpickler(file)
    if map_location is None:
        return read.load()
    with device(map_location):
        return read.load()


class _Reader(pickle.Unpickler):
    """Makes nothing but tensors, arrays and Python's own values."""

    def find_class(self, module: str, name: str) -> Any:
        # A dotted name would reach through what the module imports, to the whole of Python.
        known = (module, name) in ALLOWED or (module == "numpy.dtypes" and name.isidentifier() and name.endswith("DType"))
        if not known:
            raise pickle.UnpicklingError(
                f"the file names {module}.{name}, which is more than tensors; load(..., weights_only=False) makes it if you "
                "trust the file's origin"
            )
        return super().find_class(module, name)
