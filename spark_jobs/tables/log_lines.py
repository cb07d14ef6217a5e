"""Lines of a process's log: time (UTC), text, and the end of the traceback. A full disk loses lines silently."""

from __future__ import annotations

import re
import sys
import traceback
from contextlib import suppress
from datetime import UTC, datetime

from deltalake.exceptions import DeltaError

from include.ground.errors import HeadraceError
from spark_jobs.tables.jvm_end import jvm_end

ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CAUSE = "Caused by: "
CALL = re.compile(r"\AAn error occurred while calling .*\n: ")
"""Py4J names its own object before what Java has thrown."""


def log_line(line: str, error: BaseException | None = None) -> None:
    """Write a line to the log, followed by the last three frames of `error`'s traceback."""
    with suppress(OSError):
        print(f"{datetime.now(UTC).isoformat()} {line}", file=sys.stderr)
        if error is not None:
            traceback.print_exception(error, limit=-3, file=sys.stderr)


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
