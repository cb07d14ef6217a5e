"""The decision log: what was decided about rejected records, a payload to validate instead, or that one stays rejected.

One file per dataset, next to its tables, for all releases; one line per decision, oldest first. The record stays in
bronze unchanged. A line that a crash cut off was not written. (adr-0001)
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

from include.durable_files import appending
from include.errors import Terminal
from include.paths import decision_log_path
from include.settings import Settings

FIX, DISCARD, REINSTATE = "fix", "discard", "reinstate"
Coordinates = tuple[int, int]
"""Partition and offset."""


class DecisionLogUnreadable(Terminal):
    """The file is not a list of decisions; lines are only ever added whole, so somebody edited it."""

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
    """A record about which something was decided: every decision, oldest first."""

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


def decided_records(settings: Settings, dataset: str) -> dict[Coordinates, DecidedRecord]:
    """Return what is decided about each record that anything is decided about. Raises DecisionLogUnreadable."""
    with _remembered(decision_log_path(settings, dataset)) as reader:
        return reader.of_batches(-sys.maxsize, sys.maxsize)


class DecisionLogReader:
    """Reads a list of decisions up to a size; later only what was appended since.

    `end`: where the last whole line ends. An editor may leave it without its line feed: `is_line_open`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clear()

    def _clear(self) -> None:
        self.end, self.is_line_open, self._lines, self._last = 0, False, 0, b""
        self._file: tuple[int, int, int] | None = None
        self._decisions: dict[Coordinates, list[Decision]] = {}
        self._of_batch: dict[int, list[Coordinates]] = defaultdict(list)

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
        """Read what was appended, and all of it again when the list was edited. Raises DecisionLogUnreadable."""
        found = self._path.stat() if self._path.exists() else None
        file = (0, 0, 0) if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)
        if file != self._file:
            if self._file is not None and not self._is_appended(file):
                self._clear()
            try:
                self.advance(file[1])
            except DecisionLogUnreadable:
                # Whoever corrects the line may change others too.
                self._clear()
                raise
            self._file = file

    def _is_appended(self, file: tuple[int, int, int]) -> bool:
        """Whether the file is the one that was read, and longer, and the last line that was read is where it was."""
        if self._file is None or file[0] != self._file[0] or file[1] <= self._file[1]:
            return False
        with self._path.open("rb") as stored:
            stored.seek(self.end - len(self._last))
            return stored.read(len(self._last)) == self._last

    def of_record(self, place: Coordinates) -> DecidedRecord | None:
        """Return what is decided about a record, None when nothing is."""
        found = self._decisions.get(place)
        return None if found is None else DecidedRecord(tuple(found))

    def of_batches(self, first: int, last: int) -> dict[Coordinates, DecidedRecord]:
        """Return what is decided about records of batches [first, last]; looks at no decision about others."""
        known = self._of_batch
        batches = range(first, last + 1) if last - first < len(known) else [b for b in known if first <= b <= last]
        places = (place for batch in batches for place in known.get(batch, ()))
        return {place: DecidedRecord(tuple(self._decisions[place])) for place in places}

    def _read_line(self, line: bytes) -> bool:
        """Take in a line; return whether it was whole: one that a crash cut off is not JSON."""
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
        place = decision.partition, decision.offset
        if place not in self._decisions:
            self._decisions[place] = []
            self._of_batch[decision.batch].append(place)
        self._decisions[place].append(decision)


def append_decisions(settings: Settings, dataset: str, decisions: Iterable[Decision]) -> int:
    """Add decisions, durably, and return how many were new; one that changes nothing is not written again.

    A decision changes nothing when the last one about the record is the same, whoever took it.
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
    place = {name: int(stored[name]) for name in ("partition", "offset", "batch")}
    at = datetime.fromisoformat(stored["at"])
    return Decision(act=stored["act"], **place, at=at, by=stored["by"], why=stored["why"], payload=payload)
