"""Data sets, the loader, and changes of samples on the host and on the device."""

__all__: list[str] = []
