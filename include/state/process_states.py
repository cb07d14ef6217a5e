"""The names of the processes, and what each can be seen to be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

RUNNER = "runner"
BROKER = "broker"
AIRFLOW = "airflow"
STREAM = "stream:"


def stream_name(dataset: str) -> str:
    """Process name of a dataset's stream."""
    return f"{STREAM}{dataset}"


class ProcessState(Enum):
    """A state as seen from outside: its name, what it means, and whether the process is gone."""

    STARTING = ("starting", "started, not ready yet", False)
    RUNNING = ("running", "at work", False)
    WAITING = ("waiting", "at work, waiting for something outside", False)
    HALTED = ("halted", "bronze goes on, refine is stopped by an error and tried again", False)
    DRAINING = ("draining", "finishing its batch, then it stops", False)
    PENDING = ("pending", "wanted and not there now, the runner starts it", False)
    STOPPED = ("stopped", "not running, and not meant to", True)
    FAILED = ("failed", "gave up and said why", True)
    CRASHED = ("crashed", "gone without a word", True)
    UNKNOWN = ("unknown", "the process is there, but gives no sign, or its record cannot be read", False)

    def __init__(self, label: str, meaning: str, terminal: bool) -> None:
        self.label = label
        self.meaning = meaning
        self.terminal = terminal


STATES = {state.label: state for state in ProcessState}


WORKING_STATES = {ProcessState.RUNNING, ProcessState.WAITING, ProcessState.HALTED}


@dataclass(frozen=True)
class ProcessStatus:
    """One process as seen now: `runner`, `broker` or `stream:<dataset>`, its pid (None when gone), state, a sentence.

    As the runner says of it: how often it was started again, why it ended last, when it is started next (UTC).
    """

    name: str
    pid: int | None
    state: ProcessState
    detail: str = ""
    restarts: int = 0
    last_error: str = ""
    next_try: datetime | None = None
