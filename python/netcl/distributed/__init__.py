"""Several devices of a process, several processes of a host, several hosts."""

from __future__ import annotations

__all__: list[str] = []
