"""Runs a command next to a process that has a given pid of this namespace: `python same_pid.py PID COMMAND…`.

Exits as the command does; SIGNALLED when the process did not survive it. Linux gives the next process the pid after
`ns_last_pid`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SIGNALLED = 99
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def main(pid: int, command: list[str]) -> int:
    """Start the process, run the command, end the process."""
    LAST_PID.write_text(str(pid - 1))
    process = subprocess.Popen(["sleep", "600"])
    assert process.pid == pid, f"the process has pid {process.pid}, not {pid}"
    try:
        code = subprocess.run(command, check=False).returncode
        if process.poll() is None:
            return code
        print(f"pid {pid} was ended: {process.returncode}", file=sys.stderr)
        return SIGNALLED
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
