"""Run a command that the kernel kills when the process which started it ends (Linux).

    python -m include.ground.process_tether PARENT COMMAND ...

The parent's end is the end of the thread that started this, so a runner starts its drivers from its main thread. A
driver's JVM ends with the driver: its standard input is a pipe that no process holds then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
PARENT_GONE = 3


def signal_with_parent(number: signal.Signals, parent: int | None = None) -> None:
    """Have the kernel send a signal to this process when its parent dies; inherited by exec, not by fork.

    With `parent`, exit at once when that process has died already: the kernel would send nothing.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os._exit(PARENT_GONE)


def main(arguments: Sequence[str]) -> int:
    """Tie this process to its parent, then execute the command in it; return 3 when the parent is gone already."""
    parent, *command = arguments
    signal_with_parent(signal.SIGKILL)
    if os.getppid() == int(parent):
        os.execv(command[0], command)
    return PARENT_GONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
