"""Valid records on which the dataset's `silver.py` fails: found by bisection and rejected (adr-0008).

Reads: files of valid records. Writes: rows of silver through the caller's function; files of the failing records.
Guarantee: every record is written by one successful Spark job, or rejected after it failed alone.
Cost: about 2 · log2(n) Spark jobs for each failing record among n; nothing when no record fails.
Does not: reject a record for an error of the machine (files, memory, a dead worker).
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from typing import TypeVar

from include.ground.errors import Terminal, mask_secrets

TRANSFORM_ERROR = "transform_error"
FailedRecord = tuple[int, int, str]
"""Partition, offset, and the error's text."""
Rows = TypeVar("Rows")
MOST_TOLERATED = 100
ALWAYS_TOLERATED = 10
"""Failing records of a bronze batch, however small it is: on a quiet topic one bad record is a batch."""
MOST_CHARACTERS = 300
TRACEBACK = "Traceback (most recent call last):\n"
# Classes in the JVM that report a value which an expression or a Python function cannot take.
RECORD_ERRORS = re.compile(
    r"org\.apache\.spark\.Spark(Arithmetic|ArrayIndexOutOfBounds|DateTime|IllegalArgument|NoSuchElement|NumberFormat|"
    r"Runtime)Exception"
    r"|org\.apache\.spark\.(api\.python\.PythonException|SparkException: \[MALFORMED_RECORD_IN_PARSING)"
    r"|java\.lang\.(Arithmetic|ClassCast|IllegalArgument|\w*IndexOutOfBounds|NullPointer|NumberFormat)Exception"
    r"|java\.time\.|java\.util\.NoSuchElementException"
)
# Raised by a Python function, but not because of a record.
MACHINE_ERRORS = (OSError, MemoryError, ImportError)
# PySpark's own, on a host of a cluster with another Python than the driver's.
OTHER_PYTHON = "[PYTHON_VERSION_MISMATCH]"
PACKAGES = re.compile(r"^(?:[a-z]\w*\.)+")
# The address of an object would make two validations of one record differ.
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")


class TransformationFailed(Terminal):
    """`silver.py` fails on too many records of a bronze batch. `first`: partition, offset and error of the first."""

    def __init__(self, dataset: str, batch: int, failed: int, first: FailedRecord) -> None:
        partition, offset, error = first
        super().__init__(
            f"{dataset}: silver.py fails on {failed} or more records of batch {batch}; nothing was committed."
            f" The first is partition {partition} offset {offset}: {error}",
            f"correct silver.py, then: headrace release run --dataset {dataset}",
        )
        self.dataset, self.batch, self.failed, self.first = dataset, batch, failed, first


def failure_of(write: Callable[[Rows], None], rows: Rows) -> str | None:
    """Write rows; return the text of an error that a record can cause, None after success. Others are raised."""
    try:
        write(rows)
    except Exception as error:
        text = record_error(error)
        if text is None:
            raise
        return text
    return None


def record_error(error: Exception) -> str | None:
    """Return class and first line of an error that a record can cause, masked and bounded; None for any other."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None and not RECORD_ERRORS.match(str(cause.toString())):
        cause = cause.getCause()
    if cause is None:
        return None
    text = str(cause.toString())
    if TRACEBACK in text:
        lines = text.rpartition(TRACEBACK)[2].splitlines()
        text = next(line for line in lines if line and not line.startswith(" "))
        if OTHER_PYTHON in text:
            return None
        raised = getattr(builtins, text.partition(":")[0], None)
        if isinstance(raised, type) and issubclass(raised, MACHINE_ERRORS):
            return None
    line = mask_secrets(PACKAGES.sub("", text.partition("\n")[0]))
    return ADDRESS.sub("0x…", line)[:MOST_CHARACTERS]


def most_tolerated(rows: int) -> int:
    """Return how many of a bronze batch's records may fail: a tenth, but at least 10 and at most 100.

    Stream and rebuilds group records differently, but have the same batches.
    """
    return min(MOST_TOLERATED, max(ALWAYS_TOLERATED, rows // 10))
