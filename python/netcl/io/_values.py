"""Values of any state as JSON and arrays, and back.

JSON has no tuples, bytes, keys other than texts, infinities or integers beyond 64 bits: they are objects of one entry whose
name starts with "$". Arrays of floating-point numbers are kept beside the JSON, which holds their names.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

from netcl._netcl import IndexTensor, Tensor

__all__ = ["pack", "unpack"]


def pack(value: Any, at: str, arrays: dict[str, Any]) -> Any:
    """A value as JSON; arrays in it are added to ``arrays`` under the name of their place."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else {"$int": str(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {str(key): pack(item, f"{at}.{key}", arrays) for key, item in value.items()}
        pairs = ([pack(key, at, arrays), pack(item, f"{at}[{key!r}]", arrays)] for key, item in value.items())
        return {"$items": list(pairs)}
    if isinstance(value, (list, tuple)):
        items = [pack(item, f"{at}.{i}", arrays) for i, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, (Tensor, IndexTensor)):
        value = value.to_host()
    if hasattr(value, "__array__"):
        import numpy as np

        array = np.asarray(value)
        if isinstance(value, np.generic):
            return pack(value.item(), at, arrays)
        if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
            arrays[at] = array
            return {"$array": at}
        if array.dtype.kind in "biu":
            return {"$integers": [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]}
    raise TypeError(f"{at} is a {type(value).__name__}; a checkpoint holds numbers, texts, lists, dictionaries and arrays")


def unpack(value: Any, arrays: Mapping[str, Any]) -> Any:
    """The value that ``pack`` was given; lists are lists and tuples are tuples again, tensors are arrays."""
    if isinstance(value, list):
        return [unpack(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "$array":
            return arrays[content]
        if kind == "$tuple":
            return tuple(unpack(content, arrays))
        if kind == "$items":
            return {unpack(key, arrays): unpack(item, arrays) for key, item in content}
        if kind in _SIMPLE:
            return _SIMPLE[kind](content)
    return {key: unpack(item, arrays) for key, item in value.items()}


def _integers(content: list[Any]) -> Any:
    import numpy as np

    dtype, shape, encoded = content
    return np.frombuffer(base64.b64decode(encoded), dtype).reshape(shape).copy()


_SIMPLE: dict[str, Callable[[Any], Any]] = {"$int": int, "$float": float, "$bytes": base64.b64decode, "$integers": _integers}
