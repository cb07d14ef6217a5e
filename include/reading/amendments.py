"""Decisions about rejected records: a payload to validate instead, or that a record stays rejected.

One file per dataset, next to its tables, for all releases; one line per decision, oldest first. The record stays in
bronze as it came. A line that a crash cut off was not written. (adr-0001)
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.errors import Terminal
from include.paths import amendments_path
from include.settings import Settings

FIX, DISCARD, REINSTATE = "fix", "discard", "reinstate"
Coordinates = tuple[int, int]
"""Partition and offset."""


class AmendmentsUnreadable(Terminal):
    """The file is no list of decisions; lines are only ever added whole, so somebody edited it."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(
            f"{path}: line {line} is no decision about a record ({why}); nothing was validated",
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
class Amendment:
    """What is decided about one record by now."""

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


def amendments_size(settings: Settings, dataset: str) -> int:
    """Return the current size of the list of decisions in bytes; lines are only appended."""
    path = amendments_path(settings, dataset)
    return path.stat().st_size if path.exists() else 0


def amendments(settings: Settings, dataset: str, until: int | None = None) -> dict[Coordinates, Amendment]:
    """Return what is decided about each record that anything is decided about; AmendmentsUnreadable.

    With `until` only what was when the list reached so far (`decided_until`).
    """
    found: dict[Coordinates, list[Decision]] = defaultdict(list)
    for decision in _decisions(amendments_path(settings, dataset), until):
        found[decision.partition, decision.offset].append(decision)
    return {place: Amendment(decisions) for place, decisions in found.items()}


def append_decisions(settings: Settings, dataset: str, decisions: Iterable[Decision]) -> int:
    """Add decisions, durably, and return how many were new; one that changes nothing is not written again.

    A decision changes nothing when the last one about the record is the same, whoever took it.
    """
    path = amendments_path(settings, dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path), path.open("ab") as file:
        known = {place: amendment.decisions[-1] for place, amendment in amendments(settings, dataset).items()}
        fresh = [
            decision
            for decision in decisions
            if not _is_same(known.get((decision.partition, decision.offset)), decision)
        ]
        text = path.read_bytes()
        kept = text.rfind(b"\n") + 1
        whole = bool(text[kept:]) and _is_whole(text[kept:])
        file.truncate(len(text) if whole else kept)
        file.write(b"\n" if whole else b"")
        file.write("".join(f"{_line(decision)}\n" for decision in fresh).encode())
        file.flush()
        os.fsync(file.fileno())
    return len(fresh)


def _is_same(last: Decision | None, decision: Decision) -> bool:
    return last is not None and (last.act, last.payload) == (decision.act, decision.payload)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.with_name(f".{path.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _line(decision: Decision) -> str:
    payload = None if decision.payload is None else base64.b64encode(decision.payload).decode("ascii")
    return json.dumps({**decision.__dict__, "at": decision.at.isoformat(), "payload": payload})


def _decisions(path: Path, until: int | None) -> Iterator[Decision]:
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes()[:until].splitlines(keepends=True), 1):
        # An editor may leave the last line without its end; one that a crash cut off is no JSON.
        if line.endswith(b"\n") or _is_whole(line):
            try:
                yield _decision(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise AmendmentsUnreadable(path, number, f"{type(error).__name__}: {error}") from error


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
