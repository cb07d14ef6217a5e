"""Lines of a process's log: time (UTC), text, and the end of the traceback. A full disk loses lines silently.

A call of a dead JVM fails as a refused connection, so `jvm_end` finds out why the JVM has ended.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
import traceback
from collections import deque
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from deltalake.exceptions import DeltaError

from include.ground.errors import HeadraceError, Transient
from include.ground.processes import ended_how

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


ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CAUSE = "Caused by: "
CALL = re.compile(r"\AAn error occurred while calling .*\n: ")
"""Py4J names its own object before what Java has thrown."""


log_of_thread: ContextVar[TextIO | None] = ContextVar("log_of_thread", default=None)
"""Where the lines of a thread go; None: to the log of the process."""


def log_line(line: str, error: BaseException | None = None) -> None:
    """Write a line to the log, followed by the last three frames of `error`'s traceback."""
    with suppress(OSError):
        log = log_of_thread.get() or sys.stderr
        print(f"{datetime.now(UTC).isoformat()} {line}", file=log)
        if error is not None:
            traceback.print_exception(error, limit=-3, file=log)


def error_reason(error: BaseException) -> str:
    """Return the reason of a failure in one line of at most 300 characters: what failed, and its root cause."""
    known = error if isinstance(error, HeadraceError) else jvm_end(error)
    if known is not None:
        return known.what.strip().splitlines()[0][:300]
    text = CALL.sub("", ANSI_COLOUR.sub("", str(error)).strip()) or type(error).__name__
    lines = [line.strip(" \t↳") for line in text.splitlines()]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    root = causes[-1] if causes else lines[-1] if isinstance(error, OSError | DeltaError) else ""
    parts = [lines[0], root] if root and root not in lines[0] else [lines[0]]
    return ": ".join(part[:145] if len(parts) > 1 else part[:300] for part in parts)
