"""Sends the demo's runs, each once: the flights with faults, and on request the weather.

Guarantee: a run whose manifest is finished is not sent again; a stopped one continues.
After a crash: the chunk being sent is sent a second time; the manifest records it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from demo.state import DemoRefused, demo_folder
from include.declare.dataset import declared_dataset
from include.ground.durable_files import write_atomically
from include.ground.kafka import ensure_topic, log_end_offsets
from include.ground.settings import Settings
from include.producers.faults import DEFAULT_SEED, DEFAULT_SHARES
from include.producers.flights import FLIGHTS
from include.producers.manifest import journal_path, read_manifest
from include.producers.sending import Pace, Run, SendProgress, deliveries, send
from include.producers.weather import WEATHER


@dataclass(frozen=True)
class FeedProgress:
    """Progress of a run: `sent` of `total` records (None: unknown), records/s; `before`: sent by an earlier demo."""

    feed: str
    sent: int = 0
    total: int | None = None
    rate: float = 0.0
    finished: bool = False
    before: bool = False


def demo_runs(
    since: datetime | None = None, until: datetime | None = None, *, weather: bool = False
) -> tuple[Run, ...]:
    """Return the runs of the demo, in order."""
    flights = Run(FLIGHTS, since, until, shares=DEFAULT_SHARES, seed=DEFAULT_SEED)
    return (flights, Run(WEATHER, since, until, seed=DEFAULT_SEED)) if weather else (flights,)


def manifest_path(settings: Settings, run: Run) -> Path:
    """Return the path of a run's manifest."""
    return demo_folder(settings) / f"{run.feed.name}.manifest.jsonl"


def ends_path(settings: Settings, run: Run) -> Path:
    """Return the path of the topic's end offsets at the end of the run."""
    return demo_folder(settings) / f"{run.feed.name}.ends.json"


def finished_records(settings: Settings, run: Run) -> int | None:
    """Return the records of a finished run, None when it is not finished. Raises DemoRefused."""
    manifest = manifest_path(settings, run)
    if not manifest.exists():
        return None
    head = next(read_manifest(manifest), {})
    if head.get("run") != run.facts():
        what = f"{manifest} is the manifest of a demo with another range or other faults; nothing was sent"
        remedy = "the same --from and --to as before, or: headrace demo --fresh"
        raise DemoRefused(what, remedy, code="manifest-mismatch")
    return int(head["sent"]) if head["finished"] else None


def open_topics(settings: Settings, runs: Sequence[Run], bootstrap: str) -> None:
    """Create missing topics of the runs. Raises as `require_own_records`."""
    for run in runs:
        ensure_topic(bootstrap, run.feed.topic, declared_dataset(settings, run.feed.name).pipeline.partitions)
    require_own_records(settings, runs, bootstrap)


def require_own_records(settings: Settings, runs: Sequence[Run], bootstrap: str) -> None:
    """Raise DemoRefused unless each topic is empty or as the demo left it."""
    for run in runs:
        finished, topic = finished_records(settings, run), run.feed.topic
        records = sum(log_end_offsets(bootstrap, topic).values())
        begun = manifest_path(settings, run).exists() or journal_path(manifest_path(settings, run)).exists()
        if records and not begun:
            what = f"topic {topic} in {settings.state} holds {records:,} records that the demo did not send"
            remedy = "headrace demo --fresh   (removes them), or another folder with HEADRACE_STATE"
            raise DemoRefused(f"{what}; it sent nothing", remedy, code="foreign-records", topic=topic, records=records)
        if finished is not None and records < finished:
            what = f"topic {topic} holds {records:,} records, but the demo's manifest says that {finished:,} were sent"
            why = "the broker's data was replaced; nothing was sent"
            raise DemoRefused(f"{what}: {why}", "headrace demo --fresh", code="topic-incomplete")


class FeedSender:
    """Derives the runs and, once the broker is up, sends them one after the other, in a background thread."""

    def __init__(self, settings: Settings, runs: Sequence[Run], now: datetime | None = None) -> None:
        self._settings, self._runs = settings, runs
        self._now = now or datetime.now(UTC)
        self._bootstrap: Future[str] = Future()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="feeding", daemon=True)
        self.fed = {run.feed.name: _fed_before(settings, run) for run in runs}
        self.found, self.finished_earlier = self.sent, self.finished
        self.error: Exception | None = None

    @property
    def finished(self) -> bool:
        return all(fed.finished for fed in self.fed.values())

    @property
    def sent(self) -> int:
        """Records sent so far, including earlier demos."""
        return sum(fed.sent for fed in self.fed.values())

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def start(self) -> None:
        """Begin to derive the events."""
        self._thread.start()

    def open(self, bootstrap: str) -> None:
        """Begin to send: the broker is up and the topics are checked."""
        self._bootstrap.set_result(bootstrap)

    def stop(self) -> None:
        """Stop, and return when every record handed to Kafka is delivered and in the manifest."""
        self._stop.set()
        self._bootstrap.cancel()
        if self._thread.is_alive():
            self._thread.join()

    def _send_all(self) -> None:
        try:
            for run in self._runs:
                if not self._stop.is_set():
                    self._send(run)
        except CancelledError:
            return
        except Exception as error:  # noqa: BLE001  (raised by raise_error in the main thread)
            self.error = error

    def _send(self, run: Run) -> None:
        name, manifest = run.feed.name, manifest_path(self._settings, run)
        if not self.fed[name].before:
            rows = deliveries(run, self._now)
            sent = send(
                run,
                self._bootstrap.result(),
                now=self._now,
                rows=rows,
                manifest=manifest,
                pace=Pace(on_progress=self._record_progress(name), stop=self._stop.is_set),
            )
            self.fed[name] = replace(self.fed[name], sent=sent.produced.next_row, total=sent.total)
            if not sent.finished:
                return
        if not self.fed[name].finished:
            write_ends(self._settings, run, self._bootstrap.result())
        self.fed[name] = replace(self.fed[name], finished=True)

    def _record_progress(self, name: str) -> Callable[[SendProgress], None]:
        def note(progress: SendProgress) -> None:
            self.fed[name] = replace(self.fed[name], sent=progress.sent, total=progress.total, rate=progress.rate)

        return note


def _fed_before(settings: Settings, run: Run) -> FeedProgress:
    sent = finished_records(settings, run)
    if sent is None:
        return FeedProgress(run.feed.name, sent=interrupted_records(settings, run))
    return FeedProgress(run.feed.name, sent, sent, finished=ends_path(settings, run).exists(), before=True)


def interrupted_records(settings: Settings, run: Run) -> int:
    """Return the records of a stopped run, 0 when it was not begun or was killed before its manifest."""
    manifest = manifest_path(settings, run)
    return int(next(read_manifest(manifest), {}).get("sent", 0)) if manifest.exists() else 0


def write_ends(settings: Settings, run: Run, bootstrap: str) -> None:
    """Store the topic's end offsets at the end of the run: later records do not belong to the demo."""
    ends = log_end_offsets(bootstrap, run.feed.topic)
    write_atomically(ends_path(settings, run), json.dumps({str(part): end for part, end in ends.items()}))


def read_ends(settings: Settings, run: Run) -> dict[int, int]:
    """Return the topic's end offsets by partition at the end of the run."""
    return {int(part): end for part, end in json.loads(ends_path(settings, run).read_text()).items()}
