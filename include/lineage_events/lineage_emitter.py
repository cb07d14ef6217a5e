"""The process that sends OpenLineage events. `python -m include.lineage_events.lineage_emitter`

Reads / Writes: what event_follower.py does.
Guarantee: a receiver that is missing delays nothing but its events; they are tried again with growing pauses.
After a crash: the runner starts it again.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from include.errors import HeadraceError
from include.lineage_events.event_delivery import receiver
from include.lineage_events.event_follower import EventFollower
from include.settings import Settings, load_settings

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
REFUSED = 2
Wait = Callable[[float], object]


def follow(follower: EventFollower, seconds: float, wait: Wait, ended: Callable[[], bool]) -> None:
    """Look again and again until `ended`; after an error with pauses that double up to a minute."""
    pause, shown = FIRST_PAUSE, ""
    while not ended():
        try:
            follower.look()
        except (HeadraceError, OSError) as error:
            text = str(error)
            if text != shown:
                follower.show(text)
            wait(pause)
            pause, shown = min(pause * 2, LONGEST_PAUSE), text
            continue
        if shown:
            follower.show("events are taken again")
        pause, shown = FIRST_PAUSE, ""
        wait(seconds)


def serve(settings: Settings, show: Callable[[str], None]) -> None:
    """Send events until SIGTERM or Ctrl-C. Raises NoReceiver, PasswordUnreadable, LockHeld."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    follower = EventFollower(settings, receiver(settings), show)
    with follower.alone():
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
