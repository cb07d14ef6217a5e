"""The decision log: what was decided about rejected records, a payload to validate instead, or that one stays rejected.

One file per dataset, next to its tables, for all releases; one line per decision, oldest first. The record stays in
bronze unchanged. A line that a crash cut off was not written. (adr-0001)
"""

from __future__ import annotations

import base64
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
    reader = DecisionLogReader(decision_log_path(settings, dataset))
    reader.advance(decision_log_size(settings, dataset))
    return reader.of_batches(-sys.maxsize, sys.maxsize)


class DecisionLogReader:
    """Reads a list of decisions up to a size; later only what was appended since.

    `end`: where the last whole line ends. An editor may leave it without its line feed: `is_line_open`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clear()

    def _clear(self) -> None:
        self.end, self.is_line_open, self._lines = 0, False, 0
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
        self.end, self.is_line_open = self.end + len(line), not is_ended
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
    with appending(path) as file:
        reader = DecisionLogReader(path)
        reader.advance(path.stat().st_size)
        known = reader.of_batches(-sys.maxsize, sys.maxsize)
        fresh = [each for each in decisions if not _is_same(known.get((each.partition, each.offset)), each)]
        file.truncate(reader.end)
        file.write(b"\n" if reader.is_line_open else b"")
        file.write("".join(f"{_line(decision)}\n" for decision in fresh).encode())
    return len(fresh)


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
