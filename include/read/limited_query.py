"""Statements of other users: each runs in a process with limits of its own, which is killed at the deadline.

Guarantee: whatever a statement does, it ends in time, uses no more memory than its limit, writes no file and reads
nothing but published tables; nobody's statements keep those of others from running.
After a crash: a process that ends is replaced for the next statement.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from include.ground.errors import Terminal, Transient
from include.ground.process_end import ended_how
from include.ground.settings import CLONE
from include.read.published_sql import QueryFailed, QueryRefused, tables_mentioned
from include.read.published_tables import PinnedTables
from include.read.query_worker import DONE, FRAME, ROWS

WORKER = "include.read.query_worker"
# Neither secrets nor settings.
PASSED_ON = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH")
# Memory comes from malloc, which the kernel can refuse, in few arenas, so that the address space is what is used.
ALLOCATION = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
STARTS_WITHIN = 60.0
AT_ONCE, AT_ONCE_EACH, WAITING, WAITING_EACH, WAIT_SECONDS = 4, 3, 12, 6, 5.0
STATEMENTS_OF_A_PROCESS = 200
MOST_FRAME_BYTES = 64_000_000
# Allocators that get no memory abort, or write to address 0.
OUT_OF_MEMORY = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL)
OUT_OF_TIME = (-signal.SIGALRM, -signal.SIGXCPU)


class QueryTimedOut(Terminal):
    """The statement ran longer than its limit and was ended."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the query ran longer than {seconds:g} s and was ended", "headrace query has no time limit")
        self.seconds = seconds


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
        command = [sys.executable, "-m", WORKER]
        how: dict[str, Any] = {"cwd": CLONE, "env": environment, "bufsize": 0, "start_new_session": True}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how)
        self.statements, self.is_ready = 0, False

    @property
    def is_usable(self) -> bool:
        """Whether it can run another statement; its address space grows a little with each."""
        return self.process.poll() is None and self.statements < STATEMENTS_OF_A_PROCESS

    def run(self, job: dict[str, Any]) -> tuple[list[bytes], bytes, dict[str, Any]]:
        """Run a statement; return its rows as Arrow streams, the kind of the last frame, and that frame's facts.

        Raises TimeoutError, WorkerEnded.
        """
        if not self.is_ready:
            self._await_start()
        self.statements += 1
        deadline, streams = time.monotonic() + job["seconds"], list[bytes]()
        try:
            os.write(self._pipe(self.process.stdin), json.dumps(job).encode() + b"\n")
        except OSError as error:
            raise WorkerEnded from error
        while (frame := self._frame(deadline))[0] == ROWS:
            streams.append(frame[1])
        return streams, frame[0], json.loads(frame[1])

    def _await_start(self) -> None:
        try:
            self._frame(time.monotonic() + STARTS_WITHIN)
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

    def _frame(self, deadline: float) -> tuple[bytes, bytes]:
        kind, length = FRAME.unpack(self._read(FRAME.size, deadline))
        return kind, self._read(length, deadline)

    def _read(self, length: int, deadline: float) -> bytes:
        if length > MOST_FRAME_BYTES:
            raise WorkerEnded
        pipe, data = self._pipe(self.process.stdout), bytearray()
        waiting = select.poll()
        waiting.register(pipe, select.POLLIN)
        while len(data) < length:
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            if not (chunk := os.read(pipe, length - len(data))):
                raise WorkerEnded
            data += chunk
        return bytes(data)

    @staticmethod
    def _pipe(pipe: Any) -> int:
        number: int = pipe.fileno()
        return number

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


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
        """Kill the processes that run nothing."""
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

    Raises QueryRefused, QueryFailed, QueryTimedOut, QueriesBusy, and what opening a table raises, as Terminal.
    """
    known = sorted(reading.tables)
    mentioned = [reading.tables[name] for name in tables_mentioned(sql, known)]
    tables = [asdict(table) | {"path": str(table.path)} for table in mentioned]
    job = {"sql": sql, "tables": tables, **asdict(limits)}
    try:
        with QUERIES.process(who) as process:
            streams, kind, facts = process.run(job)
    except TimeoutError as error:
        raise QueryTimedOut(limits.seconds) from error
    except WorkerEnded as error:
        if process.process.returncode in OUT_OF_TIME:
            raise QueryTimedOut(limits.seconds) from error
        raise QueryFailed(process.end_reason, known) from error
    if kind != DONE:
        raise _error_of(facts, known)
    return _rows_of(streams, facts["is_cut"], known)


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
