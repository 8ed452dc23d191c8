"""A module that runs another one in its own way, and has all of its members and names."""

from __future__ import annotations

from typing import Any

from netcl._surroundings import raise_version
from netcl.nn.module import Module

__all__ = ["Wrapper"]


class Wrapper(Module):
    """What ``DataParallel`` and ``Pipeline`` share: parameters, buffers, modules, names and the mode are the model's own."""

    module: Module

    def _wrap(self, model: Module, **own: Any) -> None:
        # The same tables, so that whoever walks over the members sees the model's.
        for name in ("_parameters", "_buffers", "_modules", "_unsaved"):
            self.__dict__[name] = getattr(model, name)
        self.__dict__.update(module=model, **own)
        raise_version(self)

    @property
    def training(self) -> bool:
        """Whether the model behaves as in training."""
        model = self.__dict__.get("module")
        return True if model is None else model.training

    @training.setter
    def training(self, mode: bool) -> None:
        # Compiled and captured functions look for it among the attributes.
        self.__dict__["training"] = mode
        if (model := self.__dict__.get("module")) is not None:
            model.training = mode

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "module" not in self.__dict__ or name.startswith("__"):
                raise
        return getattr(self.__dict__["module"], name)

    def __reduce__(self) -> Any:
        kind = type(self).__name__
        raise TypeError(f"{kind} cannot be pickled: pickle model.module, and wrap it again where it is loaded")
