"""Measures the peers next to the platform: the same offsets of one topic, the same sink contract, one after the other.

A run is one broker. The platform drains first, since the events become visible to its warm driver at once; then its
driver ends, and each peer drains the same offsets into tables of its own, after a warm-up with as many events. Which
peer is first changes from run to run. Figures of a system whose tables are wrong are invalid.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import psutil
import pyarrow.dataset as ds
from deltalake import DeltaTable

from benchmarks.cpu_usage import broker_cpu, per_million, tree_cpu, used_between
from benchmarks.drain_mode import measure_drain
from benchmarks.event_supply import FEEDS, EventSupply
from benchmarks.gate import audited, published_problems, table_problems
from benchmarks.peers.peer_job import DONE, READY, PeerJob, TopicSpan
from benchmarks.result import PLATFORM, Figures, Measurement
from benchmarks.sending import Target, send_frames
from benchmarks.sent_records import VIEW_ROWS, SentRecords
from benchmarks.session import PARTITIONS, BenchSession, warm_session
from benchmarks.state import SOURCES, LogLine
from include.ground.errors import Terminal
from include.ground.kafka import ensure_topic, readable_end_offsets
from include.ground.settings import CLONE
from include.run.start_stop import down

DATASET = "ad_events"
PEERS = {
    "PySpark, MERGE": "benchmarks.peers.spark_merge",
    "polars, delta-rs": "benchmarks.peers.polars_delta_rs",
    "Spark pipelines": "benchmarks.peers.spark_pipelines",
    "Flink SQL, batch": "benchmarks.peers.flink_sql",
}
"""The module of each peer, by the name that results show."""
ENDS_WITHIN = 30.0
MOST_SECONDS = 1800.0
"""A peer that works for longer is killed."""
LOG_LINES = 5


class PeerEnded(Terminal):
    """A peer's process ended before its drain was complete; the other systems are still measured."""

    def __init__(self, line: str, log_file: Path) -> None:
        tail = " | ".join(log_file.read_text(errors="replace").splitlines()[-LOG_LINES:])
        super().__init__(f"it ended before “{line}”: {tail}", "the same command with --keep, then read its log")


@dataclass(frozen=True)
class PeerOptions:
    """Which peers to measure, and with how many events."""

    peers: tuple[str, ...]
    runs: int
    warm_up: int
    events: int
    keep: bool


def measured_peers(options: PeerOptions, log: LogLine) -> Iterator[Measurement]:
    """Yield the measurements of each run: the platform's, then the peers' in turn."""
    for run in range(1, options.runs + 1):
        log(f"run {run} of {options.runs}")
        yield from _measured_run(options, run, log)


def _measured_run(options: PeerOptions, run: int, log: LogLine) -> Iterator[Measurement]:
    with warm_session(DATASET, options.warm_up, options.keep, log) as session:
        # Whole blocks: a duplicate and its original are both before the measured offsets, or both in them.
        send_frames(session.target, session.supply.frames(session.supply.block_rows()))
        session.await_published()
        before, start, events = (
            deepcopy(session.sent),
            session.readable_ends(),
            session.supply.whole_blocks(options.events),
        )
        figures = measure_drain(session, events)
        measured = TopicSpan(session.target.topic, dict(start), dict(session.readable_ends()))
        problems = audited(session)[1] + published_problems(session)
        yield _measurement(run, PLATFORM, events, figures, problems)
        down(session.settings, log, [DATASET])
        warm_up, sent = _warm_up_topic(session, options.warm_up), session.sent.since(before)
        for peer in in_turn(options.peers, run):
            job = _peer_job(session, peer, warm_up, measured)
            log(f"{peer}: warm-up, then the same {events:,} events …")
            figures, problems = measure_peer(session, PEERS[peer], job, sent)
            yield _measurement(run, peer, events, figures, problems)


def in_turn(peers: Sequence[str], run: int) -> list[str]:
    """Return the peers in the order of a run: another one is first in each."""
    first = (run - 1) % len(peers) if peers else 0
    return [*peers[first:], *peers[:first]]


def _measurement(run: int, system: str, events: int, figures: Figures, problems: Sequence[str]) -> Measurement:
    return Measurement(
        run=run,
        system=system,
        dataset=DATASET,
        mode="drain",
        setting=f"{events:,} events",
        figures=figures,
        problems=tuple(problems),
    )


def _warm_up_topic(session: BenchSession, events: int) -> TopicSpan:
    """Send the events of the warm-up again, to a topic that only peers read."""
    topic = f"{session.target.topic}.warm-up"
    ensure_topic(session.bootstrap, topic, PARTITIONS)
    send_frames(Target(session.bootstrap, topic, SentRecords(DATASET)), EventSupply(DATASET).frames(events))
    ends = readable_end_offsets(session.bootstrap, topic)
    return TopicSpan(topic, dict.fromkeys(ends, 0), ends)


def _peer_job(session: BenchSession, peer: str, warm_up: TopicSpan, measured: TopicSpan) -> PeerJob:
    folder = session.settings.state / "peers" / PEERS[peer].rpartition(".")[2]
    folder.mkdir(parents=True)
    return PeerJob(
        bootstrap=session.bootstrap,
        warm_up=warm_up,
        measured=measured,
        folder=str(folder),
        ads=str(SOURCES[DATASET] / "reference" / "ads.csv"),
        cores=session.settings.driver_cores,
        memory=session.settings.driver_memory,
        jars=str(session.settings.jars / "spark"),
    )


def measure_peer(session: BenchSession, module: str, job: PeerJob, sent: SentRecords) -> tuple[Figures, list[str]]:
    """Run a peer's process; return the figures of its drain, and problems with its tables or its exit."""
    log_file = Path(job.folder) / "log"
    with log_file.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, job.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=CLONE,
        )
    limit = threading.Timer(MOST_SECONDS, process.kill)
    limit.start()
    try:
        _await_line(process, READY, log_file)
        before, began = tree_cpu(process.pid) | broker_cpu(session.settings), time.monotonic()
        _resume(process)
        _await_line(process, DONE, log_file)
        seconds = time.monotonic() - began
        used = used_between(before, tree_cpu(process.pid) | broker_cpu(session.settings))
    except PeerEnded as error:
        return {}, [error.what]
    finally:
        limit.cancel()
        _end(process)
    figures = {"events/s": sent.records / seconds} | per_million(used, sent.records)
    return figures, _problems(Path(job.folder) / "tables", sent)


def _resume(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    # A peer that has ended states the reason in its log; the wait for its next line raises it.
    with suppress(BrokenPipeError):
        process.stdin.write("go\n")
        process.stdin.flush()


def _await_line(process: subprocess.Popen[str], line: str, log_file: Path) -> None:
    """Wait for a line of the peer's output. Raises PeerEnded when it ends before."""
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    raise PeerEnded(line, log_file)


def _end(process: subprocess.Popen[str]) -> None:
    """Let a peer end by itself, then end what is left of it."""
    tree = [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDS_WITHIN)
    process.kill()
    process.wait()
    for child in tree:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def _problems(tables: Path, sent: SentRecords) -> list[str]:
    """Compare a peer's tables with the measured records; return what differs."""
    found = {name: _rows_of(tables / name) for name in ("silver", "gold")}
    if missing := [name for name, rows in found.items() if rows is None]:
        return [f"it wrote no table {name}" for name in missing]
    silver, gold = found["silver"], found["gold"]
    assert silver is not None
    assert gold is not None
    identities = silver.select(FEEDS[DATASET].id_field).collect().to_series()
    # Flink writes times without a zone.
    views = gold.select(pl.col(name).cast(kind) for name, kind in VIEW_ROWS.items()).collect()
    return table_problems(sent, [identities], ds.dataset(views.to_arrow()))


def _rows_of(table: Path) -> pl.LazyFrame | None:
    """Return a table in Delta, or one of Parquet files, whose names begin with anything but a dot; None without one."""
    if DeltaTable.is_deltatable(str(table)):
        return pl.scan_delta(str(table))
    files = [path for path in table.rglob("*") if path.is_file() and not path.name.startswith((".", "_"))]
    return pl.scan_parquet(files) if files else None
