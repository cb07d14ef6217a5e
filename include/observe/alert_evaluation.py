"""Evaluates the alert conditions of one state folder, and delivers their changes, for `headrace alerts`.

Reads: the figures of a scrape.  Writes: the states of the alerts, after their changes were delivered.
Guarantee: one evaluation at a time for a state folder, so that no two of them deliver the same change.
After a crash: see `alert_states.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property

from include.ground.errors import HeadraceError
from include.ground.paths import alerts_path
from include.ground.process_place import process_label
from include.ground.settings import Settings
from include.observe.alert_delivery import Deliver, deliver_due
from include.observe.alert_states import AlertStates, states_file, updated_states
from include.observe.dataset_metrics import HeadraceCollector
from include.state.file_locks import take_lock


class AlertEvaluation:
    """Evaluates repeatedly; `show` prints a line."""

    def __init__(self, settings: Settings, receiver: Deliver | None, show: Callable[[str], None]) -> None:
        self.settings, self.receiver, self.show = settings, receiver, show
        self._collector = HeadraceCollector(settings)

    @cached_property
    def states(self) -> AlertStates:
        """The states after the last evaluation, of whichever process. Raises StateFileUnreadable."""
        return states_file(self.settings).read() or AlertStates()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from evaluating the same alerts. Raises LockHeld."""
        with take_lock(alerts_path(self.settings).with_suffix(".lock"), process_label()):
            yield

    def firing(self, now: datetime) -> int:
        """Evaluate and deliver; return how many alerts fire. Raises HeadraceError, OSError."""
        states = updated_states(self.states, self._collector.collect(), now)
        # Updated in memory first: if the file cannot be written, delivered changes are not delivered again.
        self.states = deliver_due(states, now, self.receiver, self.show)
        states_file(self.settings).write(self.states)
        return sum(state.delivered and state.holds for state in self.states.alerts.values())

    def continue_after_errors(self, now: datetime) -> None:
        """Evaluate and deliver; an error, such as a full disk, is shown, and the next evaluation follows."""
        try:
            self.firing(now)
        except (HeadraceError, OSError) as error:
            self.show(f"{now:%Y-%m-%d %H:%M:%S} {error}; evaluated again")
