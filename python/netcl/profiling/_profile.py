"""Profiles of scopes: which kernels, modules and lines take the time, and who holds the memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any

from netcl._netcl import _event_ms, _Profile, _Profiler, _Timer
from netcl.nn._scope import watching

__all__ = ["Command", "EventTimer", "Holder", "KernelRow", "LineRow", "Memory", "ModuleRow", "ProfileRecord", "profile"]


@dataclass(frozen=True)
class KernelRow:
    """All runs of one kernel, or all copies of one direction, on one device."""

    name: str
    #: ``"kernel"``, ``"upload"``, ``"download"``, or ``"host"`` for work of the host between launches.
    kind: str
    device: str
    calls: int
    total_ms: float
    mean_ms: float
    flops: float
    bytes: float
    gflops: float
    gbps: float
    #: The share of what the device can do at most with so many operations per byte; ``None`` where that is not known.
    ceiling: float | None
    #: The share of all device time of the profile.
    share: float
    #: The OpenCL source; ``None`` on the native CPU.
    source: str | None = field(repr=False)


@dataclass(frozen=True)
class ModuleRow:
    """What a module and those inside it took; the path ``""`` stands for what no module asked for."""

    path: str
    calls: int
    forward_ms: float
    backward_ms: float
    total_ms: float
    #: Without inner modules.
    own_ms: float
    share: float


@dataclass(frozen=True)
class LineRow:
    """What one line of the program asked for: ``file:line``."""

    line: str
    calls: int
    total_ms: float
    share: float


@dataclass(frozen=True)
class Holder:
    """Blocks of one purpose of one module."""

    label: str
    module: str
    line: str | None
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Memory:
    """The memory of one device during a scope."""

    device: str
    before_bytes: int
    peak_bytes: int
    peak_ms: float
    allocations: int
    #: Milliseconds since the scope began, and the bytes held then.
    points: list[tuple[float, int]] = field(repr=False)
    #: Who held the scope's own memory at the peak, the largest first.
    holders: list[Holder]


@dataclass(frozen=True)
class Command:
    """One launch or copy; times are milliseconds since the scope began, from and to."""

    name: str
    kind: str
    device: str
    thread: int
    module: str
    backward: bool
    line: str | None
    flops: float
    bytes: float
    host_ms: tuple[float, float]
    device_ms: tuple[float, float]
    grid: str | None


class profile:
    """Profiles everything that runs inside of a ``with``::

        with netcl.profiling.profile() as p:
            train_step(x, y)
        print(p)

    It sees eager launches, those of replayed steps and compiled functions, copies and allocations, of every thread and on every
    device. Device times come from OpenCL events, on the native CPU from the clock; no environment variable is needed. Scopes
    may be nested: each has its own result. After an exception inside of the scope, the result holds what ran until then.

    ``ceilings=False`` leaves out the measurement of what a device can do at most, which takes some tenths of a second once per
    process and device.
    """

    def __init__(self, *, ceilings: bool = True) -> None:
        self._ceilings = bool(ceilings)
        self._running: _Profiler | None = None
        self._found: _Profile | None = None

    def __enter__(self) -> profile:
        if self._running is not None:
            raise RuntimeError("profile: this scope is open already; make another one to nest them")
        for name in ("kernels", "modules", "lines", "memory", "commands"):
            self.__dict__.pop(name, None)
        self._found = None
        self._running = _Profiler(self._ceilings)
        watching.append(None)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        running, self._running = self._running, None
        if running is None:
            raise RuntimeError("profile: the scope was never entered; use it in a with statement")
        watching.pop()
        self._found = running.stop()

    @property
    def _result(self) -> _Profile:
        if self._found is None:
            raise RuntimeError("profile: there are no results before the end of the scope; leave the with statement first")
        return self._found

    @cached_property
    def kernels(self) -> list[KernelRow]:
        """One row per kernel and device, the one that took longest first; copies are rows of their own."""
        return [KernelRow(**row) for row in self._result.kernels()]

    @cached_property
    def modules(self) -> list[ModuleRow]:
        """One row per module, in the order in which they first ran."""
        return [ModuleRow(**row) for row in self._result.modules()]

    @cached_property
    def lines(self) -> list[LineRow]:
        """One row per line of the program, the one that took longest first."""
        return [LineRow(**row) for row in self._result.lines()]

    @cached_property
    def memory(self) -> list[Memory]:
        """The memory of each device that was used."""

        def one(row: dict[str, Any]) -> Memory:
            return Memory(**{**row, "holders": [Holder(**holder) for holder in row["holders"]]})

        return [one(row) for row in self._result.memory()]

    @cached_property
    def commands(self) -> list[Command]:
        """All launches and copies, in the order of the calls."""
        return [Command(**row) for row in self._result.commands()]

    @property
    def span_ms(self) -> float:
        """How long the scope was open, the wait for the devices included."""
        return self._result.span_ms

    @property
    def device_ms(self) -> float:
        """What all launches and copies took on their devices together."""
        return self._result.device_ms

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace that https://ui.perfetto.dev and Chrome's about:tracing open."""
        self._result.trace(os.fspath(path))

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes one page with everything, which opens in any browser and loads nothing from elsewhere."""
        self._result.html(os.fspath(path))

    def __str__(self) -> str:
        return str(self._result) if self._found is not None else repr(self)


@dataclass(frozen=True)
class ProfileRecord:
    """How long a command took on the device."""

    name: str
    duration_ms: float


class EventTimer:
    """Times commands on the device: one by its event, or all launches and copies of a scope::

        with EventTimer(queue) as t:
            y = model(x)
        print(t.elapsed_ms)

    ``queue`` is a queue, a device handle or a selector; ``None`` means every device.
    """

    def __init__(self, queue: Any = None) -> None:
        self.queue = queue
        self._running: _Timer | None = None
        #: From the start of the first command on the device to the end of the last.
        self.elapsed_ms = 0.0
        #: What the commands took together.
        self.busy_ms = 0.0
        self.records: list[ProfileRecord] = []

    def time_event(self, event: Any, name: str = "") -> ProfileRecord:
        """Waits for an event of netcl or PyOpenCL, whose queue must have been made for profiling, and gives its time."""
        return ProfileRecord(name, _event_ms(event))

    def __enter__(self) -> EventTimer:
        if self._running is not None:
            raise RuntimeError("EventTimer: this scope is open already; make another one to nest them")
        self._running = _Timer(self.queue)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        running, self._running = self._running, None
        if running is None:
            raise RuntimeError("EventTimer: the scope was never entered; use it in a with statement")
        self.elapsed_ms, self.busy_ms, records = running.stop()
        self.records = [ProfileRecord(name, ms) for name, ms in records]
