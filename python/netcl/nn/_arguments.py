"""What the constructors of layers have in common: the queue that may be left out, and sizes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from netcl._netcl import DeviceHandle, Tensor, device as _device

__all__ = ["WrongInput", "depth", "positive", "queue_first", "resolve_queue", "with_queue"]


def _passed(got: Any) -> str:
    """What was passed, and what to pass instead: ``a torch.Tensor: use netcl.from_dlpack(...)``."""
    kind = type(got)
    home = kind.__module__.partition(".")[0]
    if isinstance(got, Tensor):
        return f"one of {got.dtype}: use x.float(), and x.float() / 255 for the bytes of images"
    if home == "numpy" and hasattr(got, "ndim") and got.ndim and got.dtype == "uint8":
        return 'a NumPy array of bytes: use netcl.tensor(x.astype("float32") / 255)'
    if home == "numpy":
        return "a NumPy array: use netcl.tensor(...)" if hasattr(got, "ndim") else f"a numpy.{kind.__name__}"
    if home not in ("builtins", "netcl") and hasattr(got, "__dlpack__"):
        return f"a {home}.{kind.__name__}: use netcl.from_dlpack(...)"
    if isinstance(got, (list, tuple)):
        return f"a {kind.__name__}: use netcl.tensor(...)"
    return kind.__name__


class WrongInput(TypeError):
    """A layer of this package was called with something that is no tensor, or no tensor of floats."""

    def __init__(self, layer: Any, got: Any) -> None:
        self.layer, self.path = layer, ""
        self.got = _passed(got)
        super().__init__(layer, got)

    @classmethod
    def of(cls, layer: Any, args: tuple[Any, ...], error: Exception) -> WrongInput | None:
        """What to raise instead of an error of a layer's code, if its first input is the cause."""
        home = type(layer).__module__
        if not home.startswith("netcl.nn.") or home == "netcl.nn.container" or not args:
            return None
        if isinstance(args[0], Tensor):
            whole = "expected a float tensor" in str(error) and not args[0].is_floating_point()
            return cls(layer, args[0]) if whole else None
        if isinstance(error, AttributeError):
            return cls(layer, args[0]) if error.obj is args[0] else None
        texts = "is not an instance of 'Tensor'", "operands are tensors", "at least one operand must be a tensor"
        return cls(layer, args[0]) if any(text in str(error) for text in texts) else None

    def called_in(self, module: Any) -> None:
        """Takes the layer's name from the model that was called."""
        names = (name for name, part in module.named_modules() if part is self.layer and name)
        self.path = next(names, self.path)

    def __str__(self) -> str:
        kind = type(self.layer).__name__
        wanted = "a Tensor of floats" if self.got.startswith("one of") else "a Tensor"
        return f"{f'{self.path} ({kind})' if self.path else kind}: expected {wanted}, got {self.got}"


def queue_first(init: Callable[..., None]) -> Callable[..., None]:
    """Lets a constructor be called with or without the queue that its first parameter names."""

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *with_queue(type(self).__name__, args, kwargs), **kwargs)

    return wrapper


def with_queue(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Positional arguments that start with the queue, wherever it was given.

    ``Linear(queue, 2, 32)``, ``Linear(2, 32)``, ``Linear(2, 32, queue=queue)`` and ``Linear(2, 32, device="cpu")`` all work.
    """
    if "device" in kwargs:
        device = kwargs.pop("device")
        if device is not None:
            if kwargs.get("queue") is not None:
                raise TypeError(f"{name}: give a queue or a device, not both")
            kwargs["queue"] = resolve_queue(device)
    # Sizes are numbers or sequences of them, kinds of blocks are classes; queues are none of these.
    if "queue" in kwargs or not args or isinstance(args[0], (list, tuple, type)) or hasattr(args[0], "__index__"):
        return (kwargs.pop("queue", None), *args)
    return args


def resolve_queue(device: Any) -> Any:
    """The queue of a device: of a selector (``"cpu"``, ``"gpu"``, ``0``), of a handle, or the queue itself."""
    if isinstance(device, (str, int)):
        return _device(device).queue  # says what is there where nothing matches
    return device.queue if isinstance(device, DeviceHandle) else device


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def positive(layer: str, **sizes: int) -> None:
    """Refuses sizes that are not whole numbers above 0, by name."""
    for name, size in sizes.items():
        if not _is_whole(size):
            raise TypeError(f"{layer}: {name} is a whole number, not {size!r}")
        if size < 1:
            raise ValueError(f"{layer}: {name} is {size}; it must be at least 1")


def depth(layer: str, **counts: int) -> None:
    """Refuses more layers than anybody can build: making them one by one would seem to hang."""
    for name, count in counts.items():
        if count > 10_000:
            raise ValueError(f"{layer}: {name} is {count}; a model can have at most 10,000 layers of a kind")
