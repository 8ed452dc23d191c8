"""The end of a process that used OpenCL; the extension module installs this with the first stream, not at import.

Ctrl+C raises ``KeyboardInterrupt`` as ever, once the call into the driver has returned. When it does not return within three
seconds (a kernel that never ends), or at a second Ctrl+C, the process ends with exit code 130. ``SIGTERM`` always ends the
process, also where the program handles it and a kernel keeps the handler from running. ``NETCL_SIGNALS=0`` leaves all signals
alone.
"""

import atexit

from netcl._netcl import finish_at_exit

__all__ = ["finish_at_exit", "install"]


def install() -> None:
    """Has the interpreter wait for the devices before it goes; a forked child, whose devices they are not, does not wait."""
    atexit.register(finish_at_exit)
