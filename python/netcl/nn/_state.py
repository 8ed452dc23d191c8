"""Saving and loading: modules as dictionaries of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from netcl._netcl import IndexTensor, Tensor
from netcl._netcl.io import rename
from netcl._netcl.nn import assign

if TYPE_CHECKING:
    import numpy as np

    from netcl.nn.module import Module

__all__ = ["IncompatibleKeys", "Rename", "StateDictError", "load", "rules_of", "save"]

Rename = Mapping[str, str] | Sequence[tuple[str, str]]
"""Patterns of names and what replaces them, in order."""


def rules_of(rename: Rename | None) -> list[tuple[str, str]]:
    """Patterns and replacements as pairs, of a dictionary as well."""
    rules = list(rename.items() if isinstance(rename, Mapping) else rename or ())
    if not all(isinstance(rule, (tuple, list)) and len(rule) == 2 for rule in rules):
        raise TypeError(f'rename: use a dict of patterns and replacements, such as {{r"^module\\.": ""}}, not {rename!r:.200}')
    return [(pattern, replacement) for pattern, replacement in rules]


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict(..., strict=False)`` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class StateDictError(ValueError, KeyError, RuntimeError):
    """A ``state_dict`` does not fit a module; nothing was loaded. The text and the attributes name every key at once.

    It is a RuntimeError as well, which PyTorch's programs catch."""

    def __init__(
        self, module: str, missing_keys: list[str], unexpected_keys: list[str], mismatched_keys: dict[str, str]
    ) -> None:
        self.module = module
        self.missing_keys, self.unexpected_keys = missing_keys, unexpected_keys
        #: What is wrong with the values of a key: their shape, their kind, or that names of one tensor have different ones.
        self.mismatched_keys = mismatched_keys
        super().__init__(module, missing_keys, unexpected_keys, mismatched_keys)

    def __str__(self) -> str:
        lines = [f"the state_dict does not fit {self.module}, and nothing was loaded:"]
        if self.missing_keys:
            lines.append(f"  missing {', '.join(map(repr, self.missing_keys))}")
        if self.unexpected_keys:
            lines.append(f"  unexpected {', '.join(map(repr, self.unexpected_keys))}")
        lines += [f"  {key!r} {what}" for key, what in self.mismatched_keys.items()]
        if not self.mismatched_keys:
            lines.append("load_state_dict(..., strict=False) loads what the two have in common")
        return "\n".join(lines)


def _walk(module: Module, prefix: str = "") -> Iterator[tuple[str, Module]]:
    """Every module under each of its names: one that is used twice comes twice."""
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{prefix}{name}.")


def _tensors(module: Module) -> Iterator[tuple[str, Tensor | IndexTensor]]:
    for prefix, part in _walk(module):
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if tensor is not None and name not in part._unsaved:
                yield prefix + name, tensor


def save(module: Module) -> dict[str, np.ndarray]:
    """Copies of what a module saves, in PyTorch's order."""
    import numpy as np

    return {name: np.array(tensor.to_host()) for name, tensor in _tensors(module)}


def load(module: Module, state: Mapping[str, Any], strict: bool, rules: Rename | None) -> IncompatibleKeys:
    """Overwrites what a module saves, or changes nothing and says all that is wrong."""
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict takes a dictionary of arrays by name, not {type(state).__name__}")
    state = state if rules is None else _renamed(state, rules_of(rules))
    targets = dict(_tensors(module))
    names: dict[int, list[str]] = {}
    for key, tensor in targets.items():
        names.setdefault(id(tensor), []).append(key)
    # One name of a shared tensor is enough. Counters are not needed for the result: files of other origin leave them out.
    needed = {key: tensor for key, tensor in targets.items() if not isinstance(tensor, IndexTensor)}
    missing = [key for key, tensor in needed.items() if not any(name in state for name in names[id(tensor)])]
    unexpected = [key for key in state if key not in targets]
    wrong: dict[str, str] = {}
    sources: dict[int, tuple[Tensor | IndexTensor, Tensor | IndexTensor]] = {}
    for key, target in targets.items():
        if key not in state:
            continue
        try:
            source = _source(state[key], target)
        except (TypeError, ValueError) as problem:
            wrong[key] = str(problem)
            continue
        first = sources.setdefault(id(target), (target, source))[1]
        if first is not source and not _equal(first, source):
            others = [name for name in names[id(target)] if name != key]
            wrong[key] = f"differs from {', '.join(map(repr, others))}, which is the same tensor in the module"
    if wrong or (strict and (missing or unexpected)):
        raise StateDictError(type(module).__name__, missing if strict else [], unexpected if strict else [], wrong)
    for target, source in sources.values():
        assign(target, source)
    return IncompatibleKeys(missing, unexpected)


def _renamed(state: Mapping[str, Any], rules: list[tuple[str, str]]) -> dict[str, Any]:
    origins: dict[str, str] = {}
    for old, new in zip(state, rename(list(state), rules)):
        if new and origins.setdefault(new, old) != old:
            raise ValueError(f"load_state_dict: {origins[new]!r} and {old!r} are both renamed to {new!r}")
    return {new: state[old] for new, old in origins.items() if new}


def _source(value: Any, target: Tensor | IndexTensor) -> Tensor | IndexTensor:
    """The values for a tensor, on its device and in its dtype."""
    import numpy as np

    if isinstance(target, IndexTensor) and target.size == 1:
        # One number of whatever kind and shape.
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf" or array.item() != int(array.item()):
            raise TypeError(f"is a whole number, not {type(value).__name__}")
        value = np.array(int(array.item()), target.dtype).reshape(target.shape)
    if isinstance(value, Tensor):
        shape = tuple(value.shape)
    else:
        value = np.asarray(value)
        shape = value.shape
        if value.dtype.kind in "OSUMm":
            raise TypeError(f"holds {value.dtype} values instead of numbers")
    if shape != tuple(target.shape):
        raise ValueError(f"has shape {shape}, the module's has {tuple(target.shape)}")
    if isinstance(target, IndexTensor):
        return IndexTensor.from_host(target.queue, value, target.dtype)
    if isinstance(value, Tensor):
        return value.detach().to(target.queue, target.dtype)
    return Tensor.from_host(target.queue, value, dtype=target.dtype)


def _equal(a: Tensor | IndexTensor, b: Tensor | IndexTensor) -> bool:
    import numpy as np

    return np.array_equal(a.to_host(), b.to_host(), equal_nan=True)
