"""What is recorded: the tape, and the scopes that turn recording on and off. All belong to the thread that enters them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, TypeVar, overload

from netcl._netcl import Tensor
from netcl._netcl.autograd import (
    backward as _backward,
    enter_scope,
    is_grad_enabled,
    leave_scope,
    set_anomaly_enabled,
    set_grad_enabled as _set,
)

_F = TypeVar("_F", bound=Callable[..., Any])
_S = TypeVar("_S", bound="_Scope")

__all__ = ["Tape", "detect_anomaly", "enable_grad", "inference_mode", "no_grad", "set_detect_anomaly", "set_grad_enabled"]


class _Scope(ContextDecorator):
    """A context manager and a decorator; what it changes is restored at the end, also after an exception."""

    _kind: str

    @overload
    def __new__(cls: type[_S]) -> _S: ...
    @overload
    def __new__(cls, function: _F) -> _F: ...  # type: ignore[misc]
    def __new__(cls, function: Any = None) -> Any:
        scope = super().__new__(cls)
        return scope if function is None else scope(function)

    def __enter__(self: _S) -> _S:
        enter_scope(self._kind)
        return self

    def __exit__(self, *exception: object) -> None:
        leave_scope()


class no_grad(_Scope):
    """Nothing is recorded inside: ``with no_grad(): ...`` or ``@no_grad()``."""

    _kind = "no_grad"


class enable_grad(_Scope):
    """Recording is on inside, also within ``no_grad``."""

    _kind = "enable_grad"


class set_grad_enabled(ContextDecorator):
    """Recording is on or off from now on; as a context manager until its end, as a decorator inside a function."""

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self._before = [is_grad_enabled()]
        _set(mode)

    def __call__(self, func: _F) -> _F:
        _set(self._before.pop())
        return super().__call__(func)

    def __enter__(self) -> set_grad_enabled:
        # Made for this scope, it has the state before already; entered once more, it takes the present one.
        if not self._before or self._entered:
            self._before.append(is_grad_enabled())
        self._entered = True
        _set(self.mode)
        return self

    _entered = False

    def __exit__(self, *exception: object) -> None:
        _set(self._before.pop())


class inference_mode(_Scope):
    """Nothing is recorded inside: ``no_grad``, under PyTorch's other name."""

    _kind = "no_grad"

    def __new__(cls, mode: Any = True) -> Any:
        if callable(mode):
            return super().__new__(cls, mode)
        return super().__new__(cls) if mode else enable_grad()


class detect_anomaly(_Scope):
    """Every result and gradient is looked at: the first that is not finite is an error that names the operation and the line
    that called it. Slow; for finding bugs."""

    _kind = "detect_anomaly"


class set_detect_anomaly(ContextDecorator):
    """``detect_anomaly`` from now on, or not; as a context manager until its end."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = set_anomaly_enabled(mode)

    def __enter__(self) -> set_detect_anomaly:
        return self

    def __exit__(self, *exception: object) -> None:
        set_anomaly_enabled(self._before)


class Tape:
    """A scope in which operations are recorded, also within ``no_grad``.

    Recording is on by default, so that a tape is never needed: it makes the extent visible. It owns nothing: a graph belongs to
    its results and goes with them.
    """

    def __enter__(self) -> Tape:
        enter_scope("enable_grad")
        return self

    def __exit__(self, *exception: object) -> None:
        leave_scope()

    def backward(self, loss: Tensor, grad: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        """Computes the gradients of ``loss`` and adds them to the ``grad`` of the leaves; inside the scope or after it.

        A loss of other than one element needs its own gradient ``grad``. ``retain_graph`` keeps what the walk uses, so that it
        can be repeated; ``create_graph`` records the walk itself, so that gradients can be differentiated.
        """
        _backward(loss, grad, retain_graph, create_graph)
