"""A process that runs reading statements for others: `python -m include.read.query_worker`, until its input ends.

Reads: one JSON object per line of its input, and the tables that it names.  Writes: frames into its output, no file.
Guarantee: the kernel refuses memory beyond a statement's limit and any byte in a file, and ends the process soon after
the statement's deadline, also when the process that sent the statement is gone.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from contextlib import closing
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

from include.ground.errors import HeadraceError
from include.read.publication import PublishedTable
from include.read.published_sql import ROWS_AT_A_TIME, QueryFailed, QueryRefused, database_of, validate_reading
from include.read.published_tables import PinnedTables

FRAME = struct.Struct(">cI")
READY, ROWS, DONE, FAILED = b"R", b"A", b"D", b"E"
MARGIN_BYTES = 256 * 2**20
"""What a statement may use beyond DuckDB's own limit: values that DuckDB does not count, and rows that are sent."""
GRACE_SECONDS = 1.0
MEMORY_UNITS = {"MB": 10**6, "GB": 10**9}


def main() -> None:
    """Run statements until the input ends."""
    out = _own_output()
    _warm_up()
    os.chdir("/")
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))
    send(out, READY)
    for line in sys.stdin.buffer:
        _answer(out, json.loads(line))


def send(out: BinaryIO, kind: bytes, body: bytes = b"") -> None:
    """Write one frame."""
    out.write(FRAME.pack(kind, len(body)) + body)
    out.flush()


def memory_bytes(memory: str) -> int:
    """Return the bytes of a limit in DuckDB's notation, MB or GB."""
    return int(float(memory[:-2]) * MEMORY_UNITS[memory[-2:]])


def _own_output() -> BinaryIO:
    """Return the output for frames; whatever else prints goes to the error output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def _warm_up() -> None:
    """Import what a statement needs, so that the first one does not wait and its limit counts none of it."""
    import deltalake
    import pyarrow.dataset

    with closing(database_of(PinnedTables({}), [], memory="64MB", threads=1, spills=False)) as database:
        database.sql("select 1").to_arrow_reader().read_all()
    assert deltalake, pyarrow.dataset


def _answer(out: BinaryIO, job: dict[str, Any]) -> None:
    _limit(job)
    try:
        send(out, DONE, json.dumps({"is_cut": _send_rows(out, job)}).encode())
    except HeadraceError as error:
        send(out, FAILED, json.dumps(_facts(error)).encode())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit(job: dict[str, Any]) -> None:
    """Have the kernel end this process after the deadline, and refuse memory beyond the limit."""
    signal.setitimer(signal.ITIMER_REAL, job["seconds"] + GRACE_SECONDS)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = ceil(used.ru_utime + used.ru_stime + job["threads"] * (job["seconds"] + GRACE_SECONDS))
    _lower(resource.RLIMIT_CPU, seconds)
    _lower(resource.RLIMIT_AS, address_space() + memory_bytes(job["memory"]) + MARGIN_BYTES)


def _lower(kind: int, limit: int) -> None:
    """Set a limit that the next statement may raise again, within the one that this process was started with."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def address_space() -> int:
    """Return the bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()


def _send_rows(out: BinaryIO, job: dict[str, Any]) -> bool:
    """Send the first rows of the statement; return whether it has more. Raises QueryRefused, QueryFailed."""
    import duckdb
    import pyarrow as pa

    tables = {each["name"]: PublishedTable(**{**each, "path": Path(each["path"])}) for each in job["tables"]}
    try:
        validate_reading(job["sql"])
        limits = {"memory": job["memory"], "threads": job["threads"], "spills": False}
        with closing(database_of(PinnedTables(tables), list(tables), **limits)) as database:
            reader = database.sql(job["sql"]).to_arrow_reader(min(ROWS_AT_A_TIME, job["rows"] + 1))
            send(out, ROWS, _arrow_stream(reader.schema))
            return _send_batches(out, reader, job["rows"], job["size"])
    except (duckdb.OutOfMemoryException, pa.ArrowMemoryError, MemoryError) as error:
        raise QueryFailed(f"it needs more memory than its limit, {job['memory']}", []) from error
    except (duckdb.Error, pa.ArrowException, OSError, OverflowError, RuntimeError) as error:
        raise QueryFailed(str(error), []) from error


def _send_batches(out: BinaryIO, reader: Any, rows: int, size: int) -> bool:
    for batch in reader:
        count = _fitting(batch, rows, size)
        if count:
            send(out, ROWS, _arrow_stream(batch.schema, batch.slice(0, count)))
            rows, size = rows - count, size - batch.slice(0, count).nbytes
        if count < batch.num_rows:
            return True
    return False


def _fitting(batch: Any, rows: int, size: int) -> int:
    """Return how many of the first rows to send: at most `rows`, and about as many as `size` bytes hold."""
    count: int = min(rows, batch.num_rows)
    while count and batch.slice(0, count).nbytes > size:
        count //= 2
    return count


def _arrow_stream(schema: Any, *batches: Any) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _facts(error: HeadraceError) -> dict[str, str]:
    reason = error.reason if isinstance(error, QueryRefused | QueryFailed) else ""
    return {"kind": type(error).__name__, "reason": reason, "what": error.what, "remedy": error.remedy}


if __name__ == "__main__":
    main()
