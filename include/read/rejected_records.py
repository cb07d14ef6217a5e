"""Rejected records with their payload, which stays in bronze, and the decisions about them."""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from include.ground.durable_files import appending
from include.ground.errors import Terminal
from include.ground.paths import decision_log_path
from include.ground.settings import Settings
from include.read.published_tables import PinnedTables

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


if TYPE_CHECKING:
    import polars as pl


OPEN, FIXED, DISCARDED, DUPLICATE, REINSTATED = "open", "fixed", "discarded", "duplicate", "reinstated"
WINNER = re.compile(r"\d+/\d+/\d+")
"""How `rejected` names the record whose identity a duplicate has: batch, partition, offset."""
NOTHING: Mapping[Position, DecidedRecord] = MappingProxyType({})


@dataclass(frozen=True)
class Reason:
    """One rule that a record broke: the rule's name, the column ('' for the record as a whole), what was found."""

    rule: str
    column: str
    detail: str | None

    @property
    def found(self) -> str:
        """What was found, for people: of a duplicate, the place of the record that has the identity."""
        if self.rule != DUPLICATE or not self.detail or not WINNER.fullmatch(self.detail):
            return self.detail or ""
        batch, partition, offset = map(int, self.detail.split("/"))
        return f"the first one is partition {partition}, offset {offset:,}, batch {batch:,}"


@dataclass(frozen=True)
class RejectedRecord:
    """A record that is not in silver. `payload` is the unchanged value, None for a record without one.

    `status`: see `status_of`; `fix` is the payload that is validated instead; `decisions` is all that was decided.
    """

    dataset: str
    topic: str
    partition: int
    offset: int
    batch: int
    disposition: str
    reasons: tuple[Reason, ...]
    contract_version: str
    first_seen: datetime
    payload: bytes | None
    status: str = OPEN
    fix: bytes | None = None
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class RejectedFilter:
    """A selection of rejected records: all given conditions must hold.

    `reason` is a rule's name, `column` one it was broken in; [`since`, `until`) are times in Kafka; `offsets` ranges
    [start, end) by partition; `status` is one that `status_of` returns.
    """

    reason: str | None = None
    column: str | None = None
    disposition: str | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    offsets: Mapping[int, tuple[int, int]] | None = None


ALL_REJECTED = RejectedFilter()


def status_of(disposition: str, record: DecidedRecord | None) -> str:
    """Return the status of a record in `rejected`.

    OPEN: no decision, or it was reinstated and rejected again; FIXED: it has a fix, not validated yet or invalid;
    DISCARDED: it stays rejected. No decision is possible about a DUPLICATE, which another record of its identity
    precedes, and about a tombstone, which has no value.
    """
    if disposition != "invalid":
        return disposition
    if record is None:
        return OPEN
    if record.is_discarded:
        return DISCARDED
    return OPEN if record.payload is None else FIXED


def rejected_datasets(reading: PinnedTables) -> list[str]:
    """Return the datasets that have a published table of rejected records."""
    return sorted({each.dataset for name, each in reading.tables.items() if name == f"rejected.{each.dataset}"})


def rejected_records(
    reading: PinnedTables,
    dataset: str,
    selection: RejectedFilter = ALL_REJECTED,
    decided: Mapping[Position, DecidedRecord] = NOTHING,
    limit: int | None = 20,
) -> list[RejectedRecord]:
    """Return rejected records, newest first. Payloads are read for these records only."""
    found = _chosen(reading, dataset, selection).sort("_batch_id", "_partition", "_offset", descending=True)
    if selection.status is None:
        rows = (found if limit is None else found.head(limit)).collect()
    else:
        rows = _with_status(found.collect(), decided, selection.status)
        rows = rows if limit is None else rows.head(limit)
    payloads = _payloads(reading, dataset, rows)
    return [_record(dataset, row, payloads, decided) for row in rows.iter_rows(named=True)]


def rejected_coordinates(
    reading: PinnedTables, dataset: str, selection: RejectedFilter, decided: Mapping[Position, DecidedRecord]
) -> dict[Position, int]:
    """Return the partition and offset of each such record, with its batch; no payload is read."""
    columns = ("_partition", "_offset", "_batch_id", "disposition")
    rows = _chosen(reading, dataset, selection).select(columns).collect()
    if selection.status is not None:
        rows = _with_status(rows, decided, selection.status)
    return {(partition, offset): batch for partition, offset, batch, _ in rows.iter_rows()}


def reason_counts(reading: PinnedTables, dataset: str) -> pl.DataFrame:
    """Return how many records each rule rejected: columns disposition, rule, column, records, most first.

    A record that breaks several rules counts under each of them. Elements that were rejected alone have the
    disposition `child`; places in an array count together, as `items[].price`.
    """
    import polars as pl

    table = f"rejected.{dataset}"
    records = reading.read(table, columns=["disposition", "reasons"])
    own = {name for name, each in reading.tables.items() if each.dataset == dataset and name.startswith("rejected.")}
    children = sorted(own - {table})
    elements = (reading.read(name, columns=["reasons"]).with_columns(disposition=pl.lit("child")) for name in children)
    reasons = pl.concat([records, *elements], how="diagonal").explode("reasons")
    named = reasons.select("disposition", pl.col("reasons").struct.field("rule", "column"))
    placed = named.with_columns(pl.col("column").str.replace_all(r"\[\d+\]", "[]"))
    counted = placed.group_by("disposition", "rule", "column").agg(records=pl.len())
    return counted.sort(["records", "rule", "column"], descending=[True, False, False]).collect()


def _chosen(reading: PinnedTables, dataset: str, selection: RejectedFilter) -> pl.LazyFrame:
    import polars as pl

    rows = reading.read(f"rejected.{dataset}")
    if selection.disposition is not None:
        rows = rows.filter(pl.col("disposition") == selection.disposition)
    for name, value in (("rule", selection.reason), ("column", selection.column)):
        if value is not None:
            rows = rows.filter(pl.col("reasons").list.eval(pl.element().struct.field(name) == value).list.any())
    if selection.since is not None:
        rows = rows.filter(pl.col("first_seen") >= selection.since)
    if selection.until is not None:
        rows = rows.filter(pl.col("first_seen") < selection.until)
    if selection.offsets is not None:
        inside = (
            (pl.col("_partition") == part) & (pl.col("_offset") >= start) & (pl.col("_offset") < end)
            for part, (start, end) in selection.offsets.items()
        )
        rows = rows.filter(pl.any_horizontal(*inside))
    return rows


def _with_status(rows: pl.DataFrame, decided: Mapping[Position, DecidedRecord], status: str) -> pl.DataFrame:
    import polars as pl

    facts = rows.select("disposition", "_partition", "_offset").iter_rows()
    return rows.filter(pl.Series([status_of(d, decided.get((p, o))) == status for d, p, o in facts], dtype=pl.Boolean))


def _payloads(reading: PinnedTables, dataset: str, rows: pl.DataFrame) -> dict[Position, bytes | None]:
    import pyarrow.compute as pc

    found: dict[Position, bytes | None] = {}
    bronze = reading.arrow(f"bronze.{dataset}")
    for (partition,), part in rows.group_by(["_partition"]):
        offsets: Sequence[int] = part["_offset"].to_list()
        batches: Any = part["_batch_id"].to_list()
        near = (pc.field("_batch_id") >= min(batches)) & (pc.field("_batch_id") <= max(batches))
        between = (pc.field("offset") >= min(offsets)) & (pc.field("offset") <= max(offsets))
        selection = near & between & (pc.field("partition") == partition) & pc.field("offset").isin(offsets)
        table = bronze.to_table(columns=["offset", "value"], filter=selection)
        pairs = zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
        found.update({(int(str(partition)), offset): value for offset, value in pairs})
    return found


def _record(
    dataset: str,
    row: dict[str, Any],
    payloads: dict[Position, bytes | None],
    decided: Mapping[Position, DecidedRecord],
) -> RejectedRecord:
    position = (row["_partition"], row["_offset"])
    record = decided.get(position)
    return RejectedRecord(
        dataset=dataset,
        topic=row["_topic"],
        partition=position[0],
        offset=position[1],
        batch=row["_batch_id"],
        disposition=row["disposition"],
        reasons=tuple(Reason(each["rule"], each["column"], each["detail"]) for each in row["reasons"] or ()),
        contract_version=row["contract_version"],
        first_seen=row["first_seen"],
        payload=payloads.get(position),
        status=status_of(row["disposition"], record),
        fix=None if record is None else record.payload,
        decisions=() if record is None else tuple(record.decisions),
    )
