"""The process that sends OpenLineage events. `python -m include.observe.lineage_emitter`

Reads / Writes: what event_follower.py does, and its status.
Guarantee: a receiver that is missing delays nothing but its events; they are tried again with growing pauses.
After a crash: the runner starts it again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from include.ground.errors import HeadraceError
from include.ground.settings import Settings, load_settings
from include.ground.stop_signals import stop_on
from include.observe.event_delivery import receiver, receiver_name
from include.observe.event_follower import EventFollower
from include.state.driver_status import DriverStatus, status_file
from include.state.process_states import OPENLINEAGE, ProcessState

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
REFUSED = 2
Wait = Callable[[float], object]


def follow(follower: EventFollower, seconds: float, wait: Wait, ended: Callable[[], bool]) -> None:
    """Poll until `ended`; after an error with pauses that double up to a minute."""
    pause, waiting = FIRST_PAUSE, ""
    while not ended():
        try:
            follower.poll()
        except (HeadraceError, OSError) as error:
            if str(error) != waiting:
                waiting = str(error)
                report(follower, waiting)
            wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            continue
        if waiting:
            report(follower, "")
        pause, waiting = FIRST_PAUSE, ""
        wait(seconds)


def report(follower: EventFollower, waiting: str) -> None:
    """Report why events wait, in the log and in the process's status; "": they are accepted again."""
    follower.show(waiting or "events are accepted again")
    state = ProcessState.WAITING if waiting else ProcessState.RUNNING
    reason = waiting.partition("\n")[0] or None
    with suppress(OSError):
        status_file(follower.settings, OPENLINEAGE).write(
            DriverStatus(state=state.label, reason=reason, pid=os.getpid(), at=datetime.now(UTC))
        )


def serve(settings: Settings, show: Callable[[str], None]) -> None:
    """Send events until SIGTERM or Ctrl-C. Raises NoReceiver, PasswordUnreadable, LockHeld."""
    ended = stop_on(signal.SIGTERM, signal.SIGINT)
    follower = EventFollower(settings, receiver(settings), show)
    with follower.alone():
        show(f"sends OpenLineage events to {receiver_name(settings)}")
        follow(follower, settings.openlineage_seconds, ended.wait, ended.is_set)


def main() -> int:
    """Send events until the process is ended; return the exit code."""
    try:
        serve(load_settings(), lambda line: print(f"{datetime.now(UTC):%FT%TZ} {line}", flush=True))
    except HeadraceError as error:
        print(f"headrace: {error}", flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
