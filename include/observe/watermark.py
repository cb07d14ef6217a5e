"""The watermark of a published dataset: which partition holds it, since when, and what closes when it moves on.

Reads the publication, the last commit of silver that it has, and the ledger's times of a few runs; never acts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from include.declare.dataset import Dataset, released_dataset
from include.declare.event_times import WatermarkProgress, read_progress, utc_text
from include.ground.delta_log import newest_metadata
from include.ground.errors import HeadraceError
from include.ground.paths import snapshot_path
from include.ground.settings import Settings
from include.observe.ledger_reader import LedgerReader
from include.read.publication import Publication, tables_of


class PartitionState(StrEnum):
    """What a partition does for the watermark.

    IDLE: read to its end and quiet, it holds nothing back. LAGGING: Kafka has records of it that are not published.
    TRANSACTION: an open transaction hides what follows. WAITING: published to its end, and not quiet for long enough.
    UNKNOWN: Kafka does not answer.
    """

    IDLE = "idle"
    LAGGING = "lagging"
    TRANSACTION = "in a transaction"
    WAITING = "waiting"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class PartitionTime:
    """How far a partition is: its greatest event time, and `since` when silver has no newer row of it.

    None of a partition of which silver has no row.
    """

    partition: int
    latest: datetime | None
    state: PartitionState
    since: datetime | None
    holds: bool

    @property
    def sentence(self) -> str:
        since = f" and came at {utc_text(self.since)}" if self.since else ""
        state = "" if self.state is PartitionState.UNKNOWN else f" ({self.state})"
        latest = (
            f"its latest row is of {utc_text(self.latest)}{since}" if self.latest else "all its records are rejected"
        )
        return f"partition {self.partition}{state} holds the watermark: {latest}"


@dataclass(frozen=True)
class TableWait:
    """What a table with `on_close` waits for: its next window closes when the watermark reaches `closes`.

    None before the first event, and for sessions, whose ends are in their rows.
    """

    table: str
    closes: datetime | None

    @property
    def sentence(self) -> str:
        if self.closes is None:
            return f"{self.table} gets a row when the watermark has passed it"
        return f"{self.table}: the next window closes when the watermark reaches {utc_text(self.closes)}"


@dataclass(frozen=True)
class WatermarkStatus:
    """The watermark, how far each partition with rows is, and what tables wait for; `idle_after` as declared."""

    watermark: datetime | None
    idle_after: timedelta | None
    partitions: tuple[PartitionTime, ...]
    waits: tuple[TableWait, ...]

    @property
    def holder(self) -> PartitionTime | None:
        return next((each for each in self.partitions if each.holds), None)

    @property
    def is_held(self) -> bool:
        """Whether a partition holds it while another is ahead."""
        if self.holder is None:
            return False
        held = self.holder.latest
        return any(each.latest is not None and (held is None or each.latest > held) for each in self.partitions)


_known: dict[Path, Dataset] = {}
_followed: dict[Path, WatermarkProgress] = {}
"""By snapshot the watermark that the commits of earlier versions give: pages ask for it again and again."""


def _declared(settings: Settings, publication: Publication) -> Dataset:
    """Return the dataset as a release declares it; a snapshot never changes."""
    place = snapshot_path(settings, publication.dataset, publication.release)
    if place not in _known:
        _known[place] = released_dataset(settings, publication.dataset, publication.release)
    return _known[place]


def published_progress(
    settings: Settings, declared: Dataset, publication: Publication, ledger: LedgerReader
) -> WatermarkProgress:
    """Return the progress of the watermark as of a publication. Raises the ledger's errors, for earlier versions only.

    Silver's last commit has it; of commits of earlier versions the ledger has what it follows from.
    """
    lateness = declared.pipeline.lateness
    silver = tables_of(settings, publication)[f"silver.{publication.dataset}"]
    known = read_progress(lateness, newest_metadata(silver.path, silver.version, "event_time_max"))
    if known is not None:
        return known
    place = snapshot_path(settings, publication.dataset, publication.release)
    progress = _followed.pop(place, WatermarkProgress(lateness))
    if progress.batch > publication.batch:
        progress = WatermarkProgress(lateness)
    runs, _ = ledger.event_times(publication.dataset, publication.release, progress.batch)
    for batch, text in runs:
        if batch <= publication.batch:
            progress.advance(batch, text)
    _followed[place] = progress
    return progress


def watermark_status(
    settings: Settings,
    publication: Publication,
    ledger: LedgerReader,
    behind: Mapping[int, int] | None,
    uncommitted: Mapping[int, int],
) -> WatermarkStatus | None:
    """Return the status of a dataset with a topic, None of a derived one.

    `behind`: offsets by partition that are not published, None when they are not known.
    """
    if publication.is_derived:
        return None
    declared = _declared(settings, publication)
    progress = published_progress(settings, declared, publication, ledger)
    times = dict[int, datetime]()
    # Without the ledger, which the other figures report, only the times are unknown.
    with suppress(HeadraceError):
        times = ledger.commit_times(publication.dataset, publication.release, sorted(set(progress.brought.values())))

    def state_of(partition: int) -> PartitionState:
        if behind is None:
            return PartitionState.IDLE if str(partition) in progress.idle else PartitionState.UNKNOWN
        if partition in uncommitted:
            return PartitionState.TRANSACTION
        if partition in behind:
            return PartitionState.LAGGING
        return PartitionState.IDLE if str(partition) in progress.idle else PartitionState.WAITING

    partitions = [
        PartitionTime(
            int(name), latest, state_of(int(name)), times.get(progress.brought.get(name, -1)), name == progress.holder
        )
        for name, latest in {**progress.max_event_times, **dict.fromkeys(progress.rowless)}.items()
    ]
    ordered = tuple(sorted(partitions, key=lambda each: each.partition))
    return WatermarkStatus(progress.watermark, declared.pipeline.idle, ordered, tuple(_waits(declared, progress)))


def _waits(declared: Dataset, progress: WatermarkProgress) -> Iterator[TableWait]:
    for gold in declared.pipeline.gold:
        if not gold.closes:
            continue
        window = gold.window
        start = window.first_open(progress.watermark) if window and progress.watermark else None
        yield TableWait(gold.table, window.end(start) if window and start is not None else None)


def watermark_json(found: WatermarkStatus | None) -> object:
    """Return it as JSON values; times are ISO 8601 in UTC."""
    if found is None:
        return None
    return {
        "at": found.watermark.isoformat() if found.watermark else None,
        "held_by": found.holder.partition if found.holder else None,
        "idle_after_seconds": found.idle_after.total_seconds() if found.idle_after else None,
        "partitions": {
            str(each.partition): {
                "latest": each.latest.isoformat() if each.latest else None,
                "state": str(each.state),
                "since": each.since.isoformat() if each.since else None,
            }
            for each in found.partitions
        },
        "waiting": {each.table: each.closes.isoformat() if each.closes else None for each in found.waits},
    }
