"""The ``netcl`` command: ``netcl train``, or ``python -m netcl train`` where no folder of programs is on the path."""

import os
import signal
import sys

from netcl._netcl import run_command

__all__ = ["main"]


def main() -> int:
    """Runs the command with the process's arguments, and returns its exit code."""
    # A command is no Python program: Ctrl+C ends it after the step under way, and a second one at once.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # This file is not started by its name: its folder's modules would hide those of the standard library.
    by_module = os.path.basename(sys.argv[0]) == "__main__.py"
    again = [sys.executable, "-m", "netcl"] if by_module else [sys.executable, sys.argv[0]]
    return run_command(sys.argv[1:], again, sys.executable)


if __name__ == "__main__":
    sys.exit(main())
