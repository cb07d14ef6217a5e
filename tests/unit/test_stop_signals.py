"""A signal to stop reaches a process whatever its main thread does at that moment."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STOPPED = """
import os, signal, threading, time
from include.ground.processes import stop_on
stop = stop_on(signal.SIGTERM, signal.SIGINT)
{meanwhile}
print(stop.wait(20), flush=True)
"""
HOLDING_THE_LOCK = """
with stop._cond:
    os.kill(os.getpid(), {number})
    for _ in range(1000):
        pass
"""
OTHER_FIRST = """
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)
assert not stop.wait(0.5)
os.kill(os.getpid(), {number})
"""


SECOND_CALL = """
stop = stop_on(signal.SIGTERM)
os.kill(os.getpid(), {number})
"""


def ended(meanwhile: str) -> str:
    command = [sys.executable, "-c", STOPPED.format(meanwhile=meanwhile)]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_the_main_thread_holds_the_lock_of_the_event_stops_it(number: int) -> None:
    """As in `Event.wait`, for some instructions of each call."""
    assert ended(HOLDING_THE_LOCK.format(number=int(number))) == "True"


def test_other_signal_stops_nothing() -> None:
    assert ended(OTHER_FIRST.format(number=int(signal.SIGTERM))) == "True"


def test_later_call_takes_the_signals_over() -> None:
    assert ended(SECOND_CALL.format(number=int(signal.SIGTERM))) == "True"
