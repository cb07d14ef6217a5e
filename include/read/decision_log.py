"""The decision log: the decisions on rejected records, such as a corrected payload, or that a record stays rejected.

One file per dataset, next to its tables, for all releases; one line per decision, oldest first. The record stays in
bronze unchanged. An incomplete last line counts as not written. (adr-0001)
"""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.ground.durable_files import appending
from include.ground.errors import Terminal
from include.ground.paths import decision_log_path
from include.ground.settings import Settings

FIX, DISCARD, REINSTATE = "fix", "discard", "reinstate"
Position = tuple[int, int]
"""Partition and offset."""


class DecisionLogUnreadable(Terminal):
    """The file is not a list of decisions; only complete lines are appended, so it was edited."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(
            f"{path}: line {line} is not a decision about a record ({why}); nothing was validated",
            "restore the file from a backup, or correct the line",
        )
        self.path, self.line = path, line


@dataclass(frozen=True)
class Decision:
    """One decision about one record: `act` is FIX (with `payload`), DISCARD or REINSTATE. `batch` is the record's."""

    act: str
    partition: int
    offset: int
    batch: int
    at: datetime
    by: str
    why: str
    payload: bytes | None = None


@dataclass(frozen=True)
class DecidedRecord:
    """All decisions about one record, oldest first."""

    decisions: Sequence[Decision]

    @property
    def batch(self) -> int:
        """The record's batch."""
        return self.decisions[0].batch

    @property
    def payload(self) -> bytes | None:
        """The payload that replaces the record's own; None without a fix."""
        return next((decision.payload for decision in reversed(self.decisions) if decision.act == FIX), None)

    @property
    def is_discarded(self) -> bool:
        """Whether the record is discarded and has not been reinstated since."""
        acts = [decision.act for decision in self.decisions if decision.act != FIX]
        return bool(acts) and acts[-1] == DISCARD


def decision_log_size(settings: Settings, dataset: str) -> int:
    """Return the current size of the list of decisions in bytes; lines are only appended."""
    path = decision_log_path(settings, dataset)
    return path.stat().st_size if path.exists() else 0


def decided_records(settings: Settings, dataset: str) -> dict[Position, DecidedRecord]:
    """Return the decisions by record. Raises DecisionLogUnreadable."""
    with _remembered(decision_log_path(settings, dataset)) as reader:
        return reader.of_batches(-sys.maxsize, sys.maxsize)


class DecisionLogReader:
    """Reads a list of decisions up to a size; later calls read only appended lines.

    `end`: where the last whole line ends. An editor may leave it without its line feed: `is_line_open`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clear()

    def _clear(self) -> None:
        self.end, self.is_line_open, self._lines, self._last = 0, False, 0, b""
        self._file: tuple[int, int, int] | None = None
        self._decisions: dict[Position, list[Decision]] = {}
        self._of_batch: dict[int, list[Position]] = defaultdict(list)

    def advance(self, until: int) -> None:
        """Read the list up to `until` bytes, again from its beginning if that is less than what was read.

        Raises DecisionLogUnreadable.
        """
        if until < self.end:
            self._clear()
        if until == self.end or not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self.end)
            for line in file:
                if not self._read_line(line[: until - self.end]):
                    return

    def advance_to_end(self) -> None:
        """Read appended lines, or all lines when the list was edited. Raises DecisionLogUnreadable."""
        found = self._path.stat() if self._path.exists() else None
        file = (0, 0, 0) if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)
        if file != self._file:
            if self._file is not None and not self._is_appended(file):
                self._clear()
            try:
                self.advance(file[1])
            except DecisionLogUnreadable:
                # A manual correction may have changed other lines too.
                self._clear()
                raise
            self._file = file

    def _is_appended(self, file: tuple[int, int, int]) -> bool:
        """Whether the file is the one that was read, only longer, with the last line read at the same place."""
        if self._file is None or file[0] != self._file[0] or file[1] <= self._file[1]:
            return False
        with self._path.open("rb") as stored:
            stored.seek(self.end - len(self._last))
            return stored.read(len(self._last)) == self._last

    def of_record(self, position: Position) -> DecidedRecord | None:
        """Return the decisions about a record, None without one."""
        found = self._decisions.get(position)
        return None if found is None else DecidedRecord(tuple(found))

    def of_batches(self, first: int, last: int) -> dict[Position, DecidedRecord]:
        """Return the decisions about records of batches [first, last]; reads no others."""
        known = self._of_batch
        batches = range(first, last + 1) if last - first < len(known) else [b for b in known if first <= b <= last]
        positions = (position for batch in batches for position in known.get(batch, ()))
        return {position: DecidedRecord(tuple(self._decisions[position])) for position in positions}

    def _read_line(self, line: bytes) -> bool:
        """Add a line; return whether it was complete: a line that a crash truncated is not JSON."""
        is_ended = line.endswith(b"\n")
        if not (is_ended or _is_whole(line)):
            return False
        if not (self.is_line_open and not line.strip()):
            self._add(line)
        self.end, self.is_line_open, self._last = self.end + len(line), not is_ended, line
        return True

    def _add(self, line: bytes) -> None:
        try:
            decision = _decision(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise DecisionLogUnreadable(self._path, self._lines + 1, f"{type(error).__name__}: {error}") from error
        self._lines += 1
        position = decision.partition, decision.offset
        if position not in self._decisions:
            self._decisions[position] = []
            self._of_batch[decision.batch].append(position)
        self._decisions[position].append(decision)


def append_decisions(settings: Settings, dataset: str, decisions: Iterable[Decision]) -> int:
    """Add decisions, durably, and return how many were new; one that changes nothing is not written again.

    A decision changes nothing when the last one about the record is the same, whoever made it.
    """
    path = decision_log_path(settings, dataset)
    with appending(path) as file, _remembered(path) as reader:
        fresh = [each for each in decisions if not _is_same(reader.of_record((each.partition, each.offset)), each)]
        file.truncate(reader.end)
        file.write(b"\n" if reader.is_line_open else b"")
        file.write("".join(f"{_line(decision)}\n" for decision in fresh).encode())
    return len(fresh)


# A process reads each line once: the console shows decisions on every page of a dataset.
_READERS: dict[Path, DecisionLogReader] = {}
_READING = threading.Lock()


@contextmanager
def _remembered(path: Path) -> Iterator[DecisionLogReader]:
    """Hold this process's reader of a list, advanced to its end. Raises DecisionLogUnreadable."""
    with _READING:
        reader = _READERS.setdefault(path, DecisionLogReader(path))
        reader.advance_to_end()
        yield reader


def _is_same(known: DecidedRecord | None, decision: Decision) -> bool:
    last = known.decisions[-1] if known else None
    return last is not None and (last.act, last.payload) == (decision.act, decision.payload)


def _line(decision: Decision) -> str:
    payload = None if decision.payload is None else base64.b64encode(decision.payload).decode("ascii")
    return json.dumps({**decision.__dict__, "at": decision.at.isoformat(), "payload": payload})


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _decision(stored: Mapping[str, str]) -> Decision:
    if stored["act"] not in (FIX, DISCARD, REINSTATE):
        raise ValueError(f"act {stored['act']!r}")
    payload = None if stored["payload"] is None else base64.b64decode(stored["payload"], validate=True)
    position = {name: int(stored[name]) for name in ("partition", "offset", "batch")}
    at = datetime.fromisoformat(stored["at"])
    return Decision(act=stored["act"], **position, at=at, by=stored["by"], why=stored["why"], payload=payload)
