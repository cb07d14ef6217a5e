"""Keeps the ingest query running: restart with back-off, wait for the broker, drain at a batch boundary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.streaming.query import StreamingQuery

from include.ground.errors import Terminal, Transient
from include.ground.kafka import KafkaRefused, TopicMissing, log_end_offsets
from include.state.broker_address import bootstrap_servers
from spark_jobs.stream.back_off import BackOff
from spark_jobs.stream.batch_limit import BatchLimitChanged
from spark_jobs.stream.ingest import DRAINED, Ingest
from spark_jobs.stream.preflight import refuse_changed_topic
from spark_jobs.stream.status_reporter import StatusReporter
from spark_jobs.tables.log_lines import error_reason, log_line

MAX_FAILURES = 6
"""Failures in a row after the same batch."""
DRAIN_SECONDS = 50.0


class IngestFailed(Terminal):
    """Ingest failed `failures` times in a row after bronze batch `batch`; `reason` is the last failure.

    `reading`: the half-open ranges of offsets, by partition, of the batch that failed.
    """

    def __init__(
        self, dataset: str, failures: int, batch: int, reason: str, reading: Mapping[int, tuple[int, int]]
    ) -> None:
        ranges = ", ".join(f"partition {p} offsets [{start}, {end})" for p, (start, end) in sorted(reading.items()))
        super().__init__(
            f"{dataset}: ingest failed {failures} times in a row after bronze batch {batch}: {reason}; the driver ends,"
            f" what is published stays readable, and the batch stays planned ({ranges or 'none was begun'})",
            f"headrace doctor, then headrace up {dataset}",
        )
        self.dataset, self.failures, self.batch, self.reason = dataset, failures, batch, reason


@dataclass
class IngestSupervisor:
    """The ingest query, and the pause before it is restarted."""

    ingest: Ingest
    reporter: StatusReporter
    query: StreamingQuery = field(init=False)
    has_ended: bool = False
    back_off: BackOff = field(default_factory=BackOff)
    failures: int = 0
    failed_after: int = -2
    """Bronze batch that `failures` counts for."""

    def start(self, bootstrap: str) -> None:
        """Start the query."""
        self.query = self.ingest.start(bootstrap)
        self.has_ended = False

    def restart_ended(self) -> None:
        """Start an ended query again, once its pause is over and the broker answers with the topic that bronze has.

        Raises IngestFailed, the query's own Terminal error, TopicReplaced, TablesDisagree, or RecordsReplaced. Refine
        continues meanwhile.
        """
        if not self.has_ended and not self.query.isActive:
            self._note_end()
        if self.has_ended and not self.back_off.is_pausing and self._topic_answers():
            self.start(bootstrap_servers(self.ingest.settings))
            self.reporter.report("running")

    def drain(self) -> None:
        """End the query at a batch boundary: a running batch is committed, a planned one stays planned."""
        if self.has_ended:
            self.ingest.close()
            return
        self.ingest.mute()
        end = time.monotonic() + DRAIN_SECONDS
        while self.query.isActive and time.monotonic() < end:
            status = self.query.status
            if not status["isTriggerActive"] and not status["isDataAvailable"]:
                break
            time.sleep(0.05)
        self.query.stop()
        self.ingest.close()
        error = self.query.exception()
        # Without a broker the last batch stays planned, like one that the drain interrupts.
        expected = isinstance(self.ingest.failure, (Transient, BatchLimitChanged))
        if error is not None and DRAINED not in str(error) and not expected:
            raise error

    def _note_end(self) -> None:
        self.has_ended, batch = True, self.ingest.last_batch
        # The pause, or the broker's outage, may be long.
        self.ingest.close()
        error = self.ingest.failure or self.query.exception()
        if isinstance(error, Terminal) and not isinstance(error, TopicMissing):
            raise error
        if isinstance(error, BatchLimitChanged):
            log_line(f"ingest starts again after bronze batch {batch}: {error}")
            return
        reason = error_reason(error) if error else "the query ended without an error"
        if self.failed_after != batch:
            self._forget_failures()
            self.failed_after = batch
        self.failures += 1
        if self.failures > MAX_FAILURES:
            raise IngestFailed(self.ingest.dataset.name, self.failures, batch, reason, self.ingest.reading)
        pause = self.back_off.lengthen()
        log_line(f"ingest stopped after bronze batch {batch}: {reason}; restart in {pause:.0f} s, refine continues")
        self.reporter.report("waiting", f"ingest restarts in {pause:.0f} s: {reason}")

    def _forget_failures(self) -> None:
        self.failures = 0
        self.back_off.end()

    def _topic_answers(self) -> bool:
        """Wait for an unreachable broker or a missing topic without limit; neither counts as a failure of ingest.

        Either may return with another topic, or without its newest records.
        """
        ingest = self.ingest
        try:
            bootstrap = bootstrap_servers(ingest.settings)
            log_end_offsets(bootstrap, ingest.generation.topic, timeout=2.0)
            refuse_changed_topic(ingest.dataset, ingest.bronze, ingest.generation, bootstrap)
            return True
        except (Transient, TopicMissing, KafkaRefused) as error:
            self._forget_failures()
            self.back_off.lengthen()
            self.reporter.report("waiting", error.what)
            return False
