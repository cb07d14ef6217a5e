"""Statements of other users: each runs in a process with limits of its own, which is killed at the deadline.

The processes run this module; a process that ends is replaced for the next statement. Whatever a statement does, it
ends in time, uses no more memory than its limit, writes no file and reads nothing but published tables; nobody's
statements keep those of others from running. The kernel refuses memory beyond the limit and any byte in a file, and
ends the process soon after the deadline, also when the process that sent the statement is gone.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from math import ceil
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from include.ground.errors import HeadraceError, Terminal, Transient
from include.ground.processes import ended_how
from include.ground.settings import CLONE
from include.ground.stored_path import access_to, path_of, reach_store
from include.read.publication import PublishedTable
from include.read.published_sql import (
    ROWS_AT_A_TIME,
    QueryFailed,
    QueryRefused,
    database_of,
    tables_mentioned,
    validate_reading,
)
from include.read.published_tables import PinnedTables

READY, ROWS, DONE, FAILED = b"R", b"A", b"D", b"E"
"""The first byte of a message."""
MARGIN_BYTES = 256 * 2**20
"""What a statement may use beyond DuckDB's own limit: values that DuckDB does not count, and rows that are sent."""
GRACE_SECONDS = 1.0
MEMORY_UNITS = {"MB": 10**6, "GB": 10**9}


def main(pipe: Connection) -> None:
    """Run statements until the process that sends them closes the pipe."""
    _warm_up()
    os.chdir("/")
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(kind, (0, 0))
    with suppress(EOFError, ConnectionError):
        pipe.send_bytes(READY)
        while True:
            _answer(pipe, json.loads(pipe.recv_bytes()))


def memory_bytes(memory: str) -> int:
    """Return the bytes of a limit in DuckDB's notation, MB or GB."""
    return int(float(memory[:-2]) * MEMORY_UNITS[memory[-2:]])


def _warm_up() -> None:
    """Import what a statement needs, so that the first one does not wait and its limit counts none of it."""
    import deltalake
    import pyarrow.dataset

    with closing(database_of(PinnedTables({}), [], memory="64MB", threads=1, spills=False)) as database:
        database.sql("select 1").to_arrow_reader().read_all()
    assert deltalake, pyarrow.dataset


def _answer(pipe: Connection, job: dict[str, Any]) -> None:
    _limit(job)
    try:
        pipe.send_bytes(DONE + json.dumps({"is_cut": _send_rows(pipe, job)}).encode())
    except HeadraceError as error:
        pipe.send_bytes(FAILED + json.dumps(_facts(error)).encode())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit(job: dict[str, Any]) -> None:
    """Have the kernel end this process after the deadline, and refuse memory beyond the limit."""
    signal.setitimer(signal.ITIMER_REAL, job["seconds"] + GRACE_SECONDS)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = ceil(used.ru_utime + used.ru_stime + job["threads"] * (job["seconds"] + GRACE_SECONDS))
    _lower(resource.RLIMIT_CPU, seconds)
    _lower(resource.RLIMIT_AS, _address_space() + memory_bytes(job["memory"]) + MARGIN_BYTES)


def _lower(kind: int, limit: int) -> None:
    """Set a limit that the next statement may raise again, within the one that this process was started with."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()


def _send_rows(pipe: Connection, job: dict[str, Any]) -> bool:
    import duckdb
    import pyarrow as pa

    reach_store(job["access"])
    tables = {each["name"]: PublishedTable(**{**each, "path": path_of(each["path"])}) for each in job["tables"]}
    try:
        validate_reading(job["sql"])
        limits = {"memory": job["memory"], "threads": job["threads"], "spills": False}
        with closing(database_of(PinnedTables(tables), list(tables), **limits)) as database:
            reader = database.sql(job["sql"]).to_arrow_reader(min(ROWS_AT_A_TIME, job["rows"] + 1))
            pipe.send_bytes(ROWS + _arrow_stream(reader.schema))
            return _send_batches(pipe, reader, job["rows"], job["size"])
    except (duckdb.OutOfMemoryException, pa.ArrowMemoryError, MemoryError) as error:
        raise QueryFailed(f"it needs more memory than its limit, {job['memory']}", []) from error
    except (duckdb.Error, pa.ArrowException, OSError, OverflowError, RuntimeError) as error:
        raise QueryFailed(str(error), []) from error


def _send_batches(pipe: Connection, reader: Any, rows: int, size: int) -> bool:
    for batch in reader:
        count = _fitting(batch, rows, size)
        if count:
            pipe.send_bytes(ROWS + _arrow_stream(batch.schema, batch.slice(0, count)))
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


WORKER = "include.read.limited_query"
# Neither secrets nor settings; a store's role is no secret.
OF_ROLE = ("AWS_REGION", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE")
PASSED_ON = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", *OF_ROLE)
# Memory comes from malloc, which the kernel can refuse, in few arenas, so that the address space is what is used.
ALLOCATION = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
STARTS_WITHIN = 60.0
AT_ONCE, AT_ONCE_EACH, WAITING, WAITING_EACH, WAIT_SECONDS = 4, 3, 12, 6, 5.0
STATEMENTS_OF_A_PROCESS = 200
MOST_MESSAGE_BYTES = 64_000_000
# Allocators that get no memory abort, or write to address 0.
OUT_OF_MEMORY = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL)
OUT_OF_TIME = (-signal.SIGALRM, -signal.SIGXCPU)


class QueriesBusy(Transient):
    """The statement was not started: too many have not ended (`is_own`: of the same user), or there is no process."""

    def __init__(self, why: str, *, is_own: bool = False) -> None:
        super().__init__(f"{why}; this query was not started", "try again in a moment")
        self.is_own = is_own


@dataclass(frozen=True)
class QueryLimits:
    """What a statement may use: seconds, memory (DuckDB's notation), threads; the rows and bytes that it may return."""

    seconds: float
    memory: str = "512MB"
    threads: int = 1
    rows: int = 10_000
    size: int = 16_000_000


@dataclass(frozen=True)
class LimitedRows:
    """The first rows of a result as Python values: `types` are Arrow's; `is_cut` when there are more."""

    columns: tuple[str, ...]
    types: tuple[Any, ...]
    rows: Sequence[tuple[Any, ...]]
    is_cut: bool


class WorkerEnded(Exception):
    """The process of a statement has ended."""


class QueryProcess:
    """One process that runs statements, one after the other."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | ALLOCATION
        self.pipe, other = Pipe()
        with other:
            # Also what a library prints goes nowhere: the pipe is for messages only.
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            how: dict[str, Any] = {"cwd": CLONE, "env": environment, "start_new_session": True}
            command = [sys.executable, "-m", WORKER, str(other.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[other.fileno()], **streams, **how)
        self.statements, self.is_ready = 0, False

    @property
    def is_usable(self) -> bool:
        """Whether it can run another statement; its address space grows a little with each."""
        return self.process.poll() is None and self.statements < STATEMENTS_OF_A_PROCESS

    def run(self, job: dict[str, Any]) -> tuple[list[bytes], bytes, dict[str, Any]]:
        """Run a statement; return its rows as Arrow streams, the kind of the last message, and its facts.

        Raises TimeoutError, WorkerEnded.
        """
        if not self.is_ready:
            self._await_start()
        self.statements += 1
        deadline, streams = time.monotonic() + job["seconds"], list[bytes]()
        try:
            self.pipe.send_bytes(json.dumps(job).encode())
        except OSError as error:
            raise WorkerEnded from error
        while (message := self._message(deadline)).startswith(ROWS):
            streams.append(message[1:])
        return streams, message[:1], json.loads(message[1:])

    def _await_start(self) -> None:
        try:
            self._message(time.monotonic() + STARTS_WITHIN)
        except TimeoutError as error:
            raise WorkerEnded from error
        self.is_ready = True

    @property
    def end_reason(self) -> str:
        """Why the process of a statement has ended by itself, or was not ready in time."""
        code = self.process.returncode
        if not self.is_ready:
            return f"its process did not start ({ended_how(code)})"
        if code in OUT_OF_MEMORY:
            return f"it needs more memory than its limit, so that its process was ended ({ended_how(code)})"
        return f"its process ended ({ended_how(code)})"

    def _message(self, deadline: float) -> bytes:
        """Return the next message. Once begun it comes or ends soon: the kernel ends the process after the deadline."""
        if not self.pipe.poll(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        try:
            return self.pipe.recv_bytes(MOST_MESSAGE_BYTES)
        except (EOFError, OSError) as error:
            raise WorkerEnded from error

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()


@dataclass
class QueryPool:
    """The processes of this process's statements: few at once, and not all of them for one user."""

    idle: list[QueryProcess] = field(default_factory=list)
    running: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    _changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))

    def start_one(self) -> None:
        """Start a process for the next statement, unless one waits for it."""
        with self._changed:
            if not self.idle:
                self.idle.append(QueryProcess())

    @contextmanager
    def process(self, who: str) -> Iterator[QueryProcess]:
        """Lend a process to a user's statement; one that failed is replaced. Raises QueriesBusy."""
        with self._changed:
            self._await_turn(who)
            try:
                taken = self._usable() or QueryProcess()
            except OSError as error:
                raise QueriesBusy(f"no process could be started ({error})") from error
            self.running[who] += 1
            # Otherwise the next statement would wait for Python to start, if this one is killed.
            with suppress(OSError):
                self.start_one()
        try:
            yield taken
        except BaseException:
            taken.end()
            raise
        finally:
            with self._changed:
                self.running -= Counter({who: 1})
                if taken.is_usable:
                    self.idle.append(taken)
                self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            while self.idle:
                self.idle.pop().end()

    def _await_turn(self, who: str) -> None:
        if self._has_turn(who):
            return
        if self.waiting.total() >= WAITING or self.waiting[who] >= WAITING_EACH:
            raise self._busy(who)
        self.waiting[who] += 1
        try:
            if not self._changed.wait_for(lambda: self._has_turn(who), WAIT_SECONDS):
                raise self._busy(who)
        finally:
            self.waiting -= Counter({who: 1})

    def _busy(self, who: str) -> QueriesBusy:
        is_own = self.running[who] >= AT_ONCE_EACH
        return QueriesBusy(
            f"{'your other queries' if is_own else 'the queries of others'} have not ended", is_own=is_own
        )

    def _has_turn(self, who: str) -> bool:
        return self.running.total() < AT_ONCE and self.running[who] < AT_ONCE_EACH

    def _usable(self) -> QueryProcess | None:
        while self.idle:
            found = self.idle.pop()
            if found.is_usable:
                return found
            found.end()
        return None


QUERIES = QueryPool()
atexit.register(QUERIES.end)


def limited_query(reading: PinnedTables, sql: str, limits: QueryLimits, who: str = "") -> LimitedRows:
    """Run one reading statement of a user within limits and return its first rows.

    Raises QueryRefused, QueryFailed, Terminal (query-timed-out), QueriesBusy, and what opening a table raises.
    """
    known = sorted(reading.tables)
    mentioned = [reading.tables[name] for name in tables_mentioned(sql, known)]
    tables = [asdict(table) | {"path": str(table.path)} for table in mentioned]
    access = access_to(table.path for table in mentioned)
    job = {"sql": sql, "tables": tables, "access": access, **asdict(limits)}
    try:
        with QUERIES.process(who) as process:
            streams, kind, facts = process.run(job)
    except TimeoutError as error:
        raise _timed_out(limits.seconds) from error
    except WorkerEnded as error:
        if process.process.returncode in OUT_OF_TIME:
            raise _timed_out(limits.seconds) from error
        raise QueryFailed(process.end_reason, known) from error
    if kind != DONE:
        raise _error_of(facts, known)
    return _rows_of(streams, facts["is_cut"], known)


def _timed_out(seconds: float) -> Terminal:
    what = f"the query ran longer than {seconds:g} s and was ended"
    return Terminal(what, "headrace query has no time limit", code="query-timed-out", seconds=seconds)


def _error_of(facts: dict[str, Any], known: list[str]) -> Terminal:
    if facts["kind"] == QueryRefused.__name__:
        return QueryRefused(facts["reason"])
    if facts["kind"] == QueryFailed.__name__:
        return QueryFailed(facts["reason"], known)
    return Terminal(facts["what"], facts["remedy"])


def _rows_of(streams: list[bytes], is_cut: bool, known: list[str]) -> LimitedRows:
    import pyarrow as pa

    try:
        tables = [pa.ipc.open_stream(stream).read_all() for stream in streams]
        rows = [row for table in tables for row in zip(*(each.to_pylist() for each in table.columns), strict=True)]
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise QueryFailed(str(error), known) from error
    schema = tables[0].schema
    return LimitedRows(tuple(schema.names), tuple(schema.types), rows, is_cut)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
