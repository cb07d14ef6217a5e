"""The names of the processes, and what each can be seen to be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

BROKER = "broker"
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
    STOPPED = ("stopped", "not running, and not meant to", True)
    FAILED = ("failed", "gave up and said why", True)
    CRASHED = ("crashed", "gone without a word", True)
    UNKNOWN = ("unknown", "the process is there, but gives no sign, or its record cannot be read", False)

    def __init__(self, label: str, meaning: str, terminal: bool) -> None:
        self.label = label
        self.meaning = meaning
        self.terminal = terminal


STATES = {state.label: state for state in ProcessState}


@dataclass(frozen=True)
class ProcessStatus:
    """One process as seen now: `broker` or `stream:<dataset>`, its pid (None when gone), state, and a sentence."""

    name: str
    pid: int | None
    state: ProcessState
    detail: str = ""
