"""Enters the owner's commits into the ledger in a thread, while the next run proceeds.

A publication is readable before it is in the ledger: by a second and one call at most, while the ledger answers.

Reads: the logs of the dataset's tables, the publication. Writes: the ledger.
Guarantee: commits are entered by one thread, in order; those before the last `begin` when `finish` returns or, if the
ledger does not answer, by a later call or the next driver.
After a crash: the next driver enters what is missing when it starts.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.observe.ledger_writer import LedgerWriter, project_dataset
from spark_jobs.tables.log_lines import error_reason, log_line

INTERVAL = 1.0
"""Least seconds between two calls: at two runs a second each call would enter one, at 19 ms of CPU."""


@dataclass
class LedgerProjection:
    """The projection of one dataset; at most one call runs and one waits."""

    ledger: LedgerWriter
    settings: Settings
    dataset: str
    interval: float = INTERVAL
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "ledger"))
    _last: Future[None] | None = None
    _is_waiting: bool = False
    """Whether the last call has yet to read what was committed."""
    _not_before: float = 0.0
    _is_finishing: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        """Enter new commits in the thread; a waiting call will include them. Raises what an earlier one raised."""
        if self._last is not None and self._last.done():
            self._last.result()
        if not self._is_waiting:
            self._is_waiting = True
            self._last = self._thread.submit(self._project)

    def finish(self) -> None:
        """Return when the commits up to the last `begin` are entered, or the ledger did not answer."""
        self._is_finishing.set()
        try:
            if self._last is not None:
                self._last.result()
        finally:
            self._is_finishing.clear()

    def _project(self) -> None:
        """Enter the commits; if the ledger does not answer, a later call catches up."""
        self._is_finishing.wait(self._not_before - time.monotonic())
        self._is_waiting = False
        try:
            project_dataset(self.ledger, self.settings, self.dataset)
        except HeadraceError as error:
            log_line(f"ledger not updated, the next batch tries again: {error.what}")
        except Exception as error:
            # `begin` may replace this future before its error is read.
            log_line(f"ledger not updated: {error_reason(error)}", error)
            raise
        finally:
            self._not_before = time.monotonic() + self.interval
