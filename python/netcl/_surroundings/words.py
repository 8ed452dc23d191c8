"""What cannot be described, and how two descriptions differ, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["PLAIN", "Key", "Refused", "difference", "path"]

# Types whose values compare as what they are.
PLAIN = frozenset({int, bool, str, bytes, complex, type(None), type(Ellipsis), type(NotImplemented), range})


class Refused(Exception):
    """The surroundings cannot be described: the function runs as it is. ``where`` is a path, innermost name first."""

    def __init__(self, what: str, opaque: bool = False) -> None:
        super().__init__(what)
        self.what, self.opaque = what, opaque
        self.where: list[str] = []
        #: Whether it is an argument that nobody can look into, which the caller can do something about.
        self.is_argument = False

    def __str__(self) -> str:
        if self.is_argument:
            return (
                f"{path(reversed(self.where))} is {self.what}: neither a tensor nor a plain value nor an object of such; pass "
                "its tensors and numbers instead"
            )
        return f"it reads {path(reversed(self.where))}, {self.what}" if self.where else self.what


def path(labels: Iterable[Any]) -> str:
    """``model``, ``.layers``, ``[0]`` as one name."""
    text = ""
    for label in filter(None, labels):
        text += label if not text or label[0] in ".[(" else f".{label}"
    return text or "the function"


class Key:
    """A value that is compared often and hashed once."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self.value, self._hash = value, hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Key) and self._hash == other._hash and self.value == other.value)

    def __repr__(self) -> str:
        return repr(self.value)


def difference(old: Any, new: Any) -> str:
    """In words, the first place in which two keys differ."""
    return _difference(old, new, []) or "something else"


def _difference(old: Any, new: Any, where: list[Any]) -> str | None:
    if old == new:
        return None
    old, new = (part.value if isinstance(part, Key) else part for part in (old, new))
    if not (isinstance(old, tuple) and isinstance(new, tuple)):
        return f"{path(where)} is something else"
    if _is_node(old) and _is_node(new) and old[:2] == new[:2]:
        for labels, others, what in ((new[2], old[2], "is new"), (old[2], new[2], "is gone")):
            for label in labels:
                if label not in others:
                    return f"{path([*where, label])} {what}"
        pairs = zip(old[2], old[3], new[3])
        return next((found for label, a, b in pairs if (found := _difference(a, b, [*where, label]))), None)
    if len(old) == len(new) and old and old[0] in PLAIN | {float} and old[0] is new[0]:
        return f"{path(where)} was {old[1]!r} and is {new[1]!r}"
    if len(old) == len(new) and not _is_node(old):
        return next((found for a, b in zip(old, new) if (found := _difference(a, b, where))), None)
    return f"{path(where)} is something else"


def _is_node(part: tuple[Any, ...]) -> bool:
    return len(part) == 4 and isinstance(part[0], str) and isinstance(part[2], tuple)
