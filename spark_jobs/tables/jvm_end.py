"""Why the JVM of this process has ended: a call of a dead JVM fails as a refused connection, which says nothing."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from include.ground.errors import Transient
from include.ground.process_end import ended_how

END_SECONDS = 5.0
"""The connection breaks before the process is gone: how long its end is waited for."""
TAIL_BYTES = 64 << 10
TELLING = re.compile(r"OutOfMemoryError|StackOverflowError|fatal error|SIG[A-Z]{3,}|hs_err_pid|Cannot allocate memory")
"""What the last words of a JVM are about."""


class JvmEnded(Transient):
    """The JVM of this process ended; only another process can go on."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; this process ends, and nothing that it had begun is visible", "headrace status")


def jvm_end(error: BaseException) -> JvmEnded | None:
    """Return why the JVM has ended, if that is the reason of an error; None while it runs, or there is none."""
    gateway = _gateway()
    process = getattr(gateway, "proc", None)
    if not isinstance(process, subprocess.Popen):
        return None
    if process.poll() is None and (not _is_lost_connection(error) or _listens(gateway)):
        return None
    try:
        code = process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    words = _last_words(_own_log())
    return JvmEnded(f"the JVM {ended_how(code)}" + (f": {words}" if words else ""))


def _gateway() -> Any:
    # A process that has not imported Spark has no JVM, and importing it takes a second.
    spark: Any = sys.modules.get("pyspark")
    return getattr(spark.SparkContext, "_gateway", None) if spark is not None else None


def _listens(gateway: Any) -> bool:
    """Return whether the JVM takes calls: then another process has broken the connection that an error is about."""
    at = gateway.gateway_parameters
    with suppress(OSError), socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((at.address, at.port)) != errno.ECONNREFUSED
    return True


def _is_lost_connection(error: BaseException | None) -> bool:
    """Return whether an error can be a call that did not reach the JVM, or got no answer: a database gives the same."""
    while error is not None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if names & {"ConnectionError", "EOFError", "Py4JNetworkError"} or type(error).__name__ == "Py4JError":
            return True
        error = error.__cause__ or error.__context__
    return False


def _own_log() -> Path | None:
    """Return the file of this process's standard error, which is the JVM's too."""
    with suppress(OSError):
        path = Path(os.readlink(f"/proc/self/fd/{sys.__stderr__.fileno() if sys.__stderr__ else 2}"))
        return path if path.is_file() else None
    return None


def _last_words(log: Path | None) -> str:
    """Return the last line of a log that says why a JVM ended, "" for none."""
    if log is None:
        return ""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        return next(iter(deque((line.strip()[:150] for line in lines if TELLING.search(line)), maxlen=1)), "")
    return ""
